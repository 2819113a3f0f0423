"""A comparison over data sets as tables: of the means, and by set."""

from collections.abc import Sequence

from ltr.compare.ranges import interval_of_mean
from ltr.compare.suites import SuiteResult
from ltr.compare.tables import (
    COMPARED,
    P_VALUES,
    Table,
    baselines,
    comparison_lines,
    comparison_names,
    family,
    on_split,
    provenance_line,
)


def suite_tables(results: Sequence[SuiteResult], alpha: float = 0.05) -> list[Table]:
    """For each metric the comparisons of the means over the sets, the experiments by set, and the
    comparisons by set.

    Args:
        results: by metric.
        alpha: the level of each family.
    """
    made = []
    for result in results:
        mean = result.of_mean
        title = f"{mean.metric}{on_split(mean)}, mean of {len(result.of_sets)} sets"
        level = f"against {baselines(mean)}; level {alpha:g}"
        if mean.comparisons:
            lines = comparison_lines(mean, comparison_names(mean))
            made.append(Table(f"{title}, {level}", ["experiment", *COMPARED], lines))
        made.append(_suite_experiment_table(result, title))
        if mean.comparisons:
            lines = []
            for name, of_set in result.of_sets.items():
                names = comparison_names(of_set)
                # Where there are several comparisons, each says which.
                names = [name] if len(names) == 1 else [f"{name}: {each}" for each in names]
                lines += comparison_lines(of_set, names)
            made.append(
                Table(f"{mean.metric}{on_split(mean)} by set, {level}", ["set", *COMPARED], lines)
            )
    return made


def _suite_experiment_table(result: SuiteResult, title: str) -> Table:
    mean = result.of_mean
    header = ["set", "queries", *(row.experiment.name for row in mean.rows)]
    lines = []
    for name, of_set in result.of_sets.items():
        cells = [f"{row.mean.mean:.4f}" for row in of_set.rows]
        lines.append([name, f"{of_set.n_queries:,}", *cells])
    whole = ["mean of the sets", f"{mean.n_queries:,}"]
    intervals = ["its 95 % interval", ""]
    for row in mean.rows:
        deviation = "" if row.deviation is None else f" ± {row.deviation:.4f}"
        whole.append(f"{row.mean.mean:.4f}{deviation}")
        low, high = interval_of_mean(row.mean, mean.metric)
        intervals.append(f"{low:.4f} to {high:.4f}")
    return Table(title, header, [*lines, whole, intervals])


def suite_footnotes(results: Sequence[SuiteResult]) -> list[str]:
    """What must stand beside the tables of a suite."""
    means = [result.of_mean for result in results]
    lines = [f"{mean.metric}: {mean.convention}" for mean in means]
    notes = [note for mean in means for note in mean.notes]
    lines += list(dict.fromkeys(notes))  # in order, each once
    n_means = sum(len(mean.comparisons) for mean in means)
    if n_means:
        n_sets = n_means * len(results[0].of_sets)
        lines.append(
            "the mean: each set counts alike, queries are drawn within sets, and seeds are those of all sets; its wins / ties / losses are of sets"
        )
        lines.append(
            f"{P_VALUES}; of means: {family(n_means)}; of sets, apart from them: {family(n_sets)}; effect: Cohen's d over queries"
        )
    return [*lines, provenance_line(means[0])]
