"""A comparison on several splits as tables: the means side by side, and the comparisons on each."""

from collections.abc import Sequence

from ltr.compare.comparison import MetricResult
from ltr.compare.ranges import interval_of_difference
from ltr.compare.splits import SplitResult
from ltr.compare.tables import (
    COMPARED,
    P_VALUES,
    Table,
    baselines,
    comparison_lines,
    comparison_names,
    family,
    provenance_line,
)


def split_tables(results: Sequence[SplitResult], alpha: float = 0.05) -> list[Table]:
    """For each metric the comparisons by split, and the means of the experiments side by side.

    Args:
        results: by metric.
        alpha: the level of the family.
    """
    made = []
    for result in results:
        first = next(iter(result.of_splits.values()))
        if first.comparisons:
            lines = []
            for split, of_split in result.of_splits.items():
                names = comparison_names(of_split)
                # Where there are several comparisons, each says which.
                names = [split] if len(names) == 1 else [f"{split}: {each}" for each in names]
                lines += comparison_lines(of_split, names)
            title = f"{first.metric} by split, against {baselines(first)}; level {alpha:g}"
            made.append(Table(title, ["split", *COMPARED], lines))
        made.append(_table_of_means(result, first.metric))
    return made


def _table_of_means(result: SplitResult, metric: str) -> Table:
    """The mean of each experiment on each split; how it changes from the first one."""
    first_split = next(iter(result.of_splits))
    header = ["experiment", "seeds"]
    lines = []
    for row in result.of_splits[first_split].rows:
        lines.append([row.experiment.name, str(len(row.experiment.runs))])
    for split, of_split in result.of_splits.items():
        header.append(f"{split}, {of_split.n_queries:,} queries")
        for line, row in zip(lines, of_split.rows, strict=True):
            deviation = "" if row.deviation is None else f" ± {row.deviation:.4f}"
            line.append(f"{row.mean.mean:.4f}{deviation}")
        if split == first_split:
            continue
        header += [f"{split} − {first_split}", "95 % interval"]
        for line in lines:
            change = result.changes[split][line[0]]
            low, high = interval_of_difference(change, metric)
            line += [f"{change.mean:+.4f}", f"{low:+.4f} to {high:+.4f}"]
    return Table(f"{metric} by split", header, lines)


def split_footnotes(results: Sequence[SplitResult]) -> list[str]:
    """What must stand beside the tables."""
    all_results: list[MetricResult] = []
    for result in results:
        all_results += result.of_splits.values()
    lines = [f"{result.metric}: {result.convention}" for result in all_results]
    for of_split in all_results:
        lines += of_split.notes
    lines = list(dict.fromkeys(lines))  # in order, each once
    lines.append(
        "the difference of two splits is that of one experiment's means; queries are drawn, and each comes with the splits that it is in"
    )
    n_comparisons = sum(len(result.comparisons) for result in all_results)
    if n_comparisons:
        lines.append(f"{P_VALUES}; {family(n_comparisons)}; effect: Cohen's d over queries")
    return [*lines, provenance_line(all_results[0])]
