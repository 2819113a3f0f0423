"""A comparison as tables of text: what they hold, whatever the format."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ltr.compare.comparison import MetricResult
from ltr.compare.group_result import Comparison, ExperimentResult, GroupResult
from ltr.compare.ranges import interval_of_difference, interval_of_mean
from ltr.compare.statistics import PLANNED_SEEDS

# The columns of a table of comparisons, behind their names.
COMPARED = [
    "verdict",
    "difference",
    "95 % interval",
    "p",
    "p, Holm",
    "p of these models",
    "effect",
    "wins / ties / losses",
]
# Keys of test.made that the last footnote prints, in this order.
PROVENANCE = ("ltr", "commit", "machine", "date", "torch", "transformers")


CUT = "{}: intervals that reach beyond what the metric can be are cut there: the seeds or the queries are too few to say more"
P_VALUES = (
    "p: over queries and seeds, of one seed over queries; "
    "p of these models: paired randomisation test over queries"
)


class Table(NamedTuple):
    """Cells as text.

    Attributes:
        title: stands above it.
        header: the names of the columns.
        rows: cells of the columns.
        text_columns: the columns that hold texts, beside the first one; the others hold numbers, which
            stand to the right.
    """

    title: str
    header: list[str]
    rows: list[list[str]]
    text_columns: Sequence[str] = ("verdict",)


def tables(
    results: Sequence[MetricResult], alpha: float = 0.05, plan: float | None = None
) -> list[Table]:
    """For each metric the comparisons, and the experiments; of sets also the comparisons on each; and
    how much data would show a difference.

    Args:
        results: by metric.
        alpha: the level of each family.
        plan: the difference to plan for, of one group; None for no plan.
    """
    made = []
    for result in results:
        main = result.main
        # The comparisons come before the means: the verdicts are what the reader came for.
        if main.comparisons:
            made.append(_comparison_table(result, alpha))
        made.append(_table_of_means(result))
        if main.comparisons and result.over_sets is not None:
            title = f"{main.metric}{_on_split(main)} by set, {_against(main, alpha)}"
            made.append(_comparisons_by_group(title, result))
        if main.comparisons and plan is not None:
            made.append(_plan_table(main, plan))
    return made


def footnotes(results: Sequence[MetricResult]) -> list[str]:
    """What must stand beside the tables."""
    described: list[GroupResult] = []
    for result in results:
        described += result.groups.values() if result.over_sets is None else [result.over_sets]
    lines = [f"{result.metric}: {result.convention}" for result in described]
    lines += [note for result in described for note in result.notes]
    lines += [CUT.format(result.metric) for result in described if _has_cut_interval(result)]
    lines = list(dict.fromkeys(lines))  # in order, each once
    n_comparisons = sum(len(result.comparisons) for result in described)
    correction = _family(n_comparisons)
    if results[0].over_sets is not None and n_comparisons:
        lines.append(
            "the mean: each set counts alike, queries are drawn within sets, and seeds are those of all sets; its wins / ties / losses are of sets"
        )
        correction_of_sets = _family(n_comparisons * len(results[0].groups))
        correction = f"of means: {correction}; of sets, apart from them: {correction_of_sets}"
    if results[0].changes:
        lines.append(
            "the difference of two splits is that of one experiment's means; queries are drawn, and each comes with the splits that it is in"
        )
    if n_comparisons:
        lines.append(f"{P_VALUES}; {correction}; effect: Cohen's d over queries")
    return [*lines, _provenance_line(described[0])]


def _has_cut_interval(result: GroupResult) -> bool:
    for row in result.rows:
        if interval_of_mean(row.estimate, result.metric) != row.estimate.interval():
            return True
    for comparison in result.comparisons:
        whole = comparison.difference.interval(comparison.confidence)
        if comparison.interval(result.metric) != whole:
            return True
    return False


def _family(n_comparisons: int) -> str:
    """How many comparisons are corrected together, in words."""
    if n_comparisons == 1:
        return "one comparison, so nothing to correct"
    return f"Holm's correction over {n_comparisons} comparisons"


def _provenance_line(result: GroupResult) -> str:
    """With what the runs were tested: seeds, versions, commit, machine, dates."""
    seeds = set()
    values: dict[str, set[str]] = {name: set() for name in PROVENANCE}
    for row in result.rows:
        for run in row.experiment.runs:
            seeds.add(run.seed)
            made = run.report["made"] | run.report["made"]["packages"]
            for name in PROVENANCE:
                if name in made:
                    values[name].add(made[name])
    parts = [f"seeds {', '.join(map(str, sorted(seeds)))}"]
    for name in PROVENANCE:
        if values[name]:
            parts.append(f"{name} {', '.join(sorted(values[name]))}")
    return "; ".join(parts)


def _comparison_table(result: MetricResult, alpha: float) -> Table:
    """The comparisons that say whether experiments differ."""
    main = result.main
    against = _against(main, alpha)
    if result.changes:
        return _comparisons_by_group(f"{main.metric} by split, {against}", result)
    over = "" if result.over_sets is None else f", mean of {len(result.groups)} sets,"
    title = f"{main.metric}{_on_split(main)}{over} {against}"
    rows = _comparison_rows(main, _comparison_names(main))
    return Table(title, ["experiment", *COMPARED], rows)


def _comparisons_by_group(title: str, result: MetricResult) -> Table:
    """The comparisons on each split or set."""
    rows = []
    for group, group_result in result.groups.items():
        names = _comparison_names(group_result)
        # Where there are several comparisons, each says which.
        names = [group] if len(names) == 1 else [f"{group}: {name}" for name in names]
        rows += _comparison_rows(group_result, names)
    return Table(title, [result.by, *COMPARED], rows)


def _against(result: GroupResult, alpha: float) -> str:
    """With what experiments are compared, and how strictly, in words."""
    baselines = dict.fromkeys(comparison.baseline for comparison in result.comparisons)
    return f"against {', '.join(baselines)}; level {alpha:g}"


def _table_of_means(result: MetricResult) -> Table:
    if result.over_sets is not None:
        return _means_by_set(result, result.over_sets)
    if result.changes:
        return _means_by_split(result)
    return _experiment_table(result.main)


def _means_by_set(result: MetricResult, mean: GroupResult) -> Table:
    """The mean of each experiment on each set, and the mean of these."""
    header = ["set", "queries", *(row.experiment.name for row in mean.rows)]
    rows = []
    for name, group_result in result.groups.items():
        cells = [f"{row.estimate.mean:.4f}" for row in group_result.rows]
        rows.append([name, f"{group_result.n_queries:,}", *cells])
    whole = ["mean of the sets", f"{mean.n_queries:,}"]
    intervals = ["its 95 % interval", ""]
    for row in mean.rows:
        whole.append(_mean_cell(row))
        low, high = interval_of_mean(row.estimate, mean.metric)
        intervals.append(f"{low:.4f} to {high:.4f}")
    title = f"{mean.metric}{_on_split(mean)}, mean of {len(result.groups)} sets"
    return Table(title, header, [*rows, whole, intervals])


def _means_by_split(result: MetricResult) -> Table:
    """The mean of each experiment on each split, and how it changes from the first one."""
    metric = result.main.metric
    first_split = next(iter(result.groups))
    header = ["experiment", "seeds"]
    rows = []
    for row in result.main.rows:
        rows.append([row.experiment.name, str(len(row.experiment.runs))])
    for split, group_result in result.groups.items():
        header.append(f"{split}, {group_result.n_queries:,} queries")
        for cells, row in zip(rows, group_result.rows, strict=True):
            cells.append(_mean_cell(row))
        if split == first_split:
            continue
        header += [f"{split} − {first_split}", "95 % interval"]
        for cells, row in zip(rows, group_result.rows, strict=True):
            change = result.changes[split][row.experiment.name]
            low, high = interval_of_difference(change, metric)
            cells += [f"{change.mean:+.4f}", f"{low:+.4f} to {high:+.4f}"]
    return Table(f"{metric} by split", header, rows)


def _experiment_table(result: GroupResult) -> Table:
    """The mean of each experiment, and what else is known of it."""
    header = ["experiment", "seeds", result.metric, "95 % interval"]
    rows = []
    for row in result.rows:
        low, high = interval_of_mean(row.estimate, result.metric)
        rows.append(
            [
                row.experiment.name,
                str(len(row.experiment.runs)),
                _mean_cell(row),
                f"{low:.4f} to {high:.4f}",
            ]
        )
    optional = {
        "before training, dev": [number_or_empty(row.start, ".4f") for row in result.rows],
        "ceiling": [number_or_empty(row.ceiling, ".4f") for row in result.rows],
        "training, s": [number_or_empty(row.seconds, ",.0f") for row in result.rows],
    }
    for name, cells in optional.items():
        if not any(cells):
            continue
        header.append(name)
        for row_cells, cell in zip(rows, cells, strict=True):
            row_cells.append(cell)
    title = f"{result.metric}{_on_split(result)}, {result.n_queries:,} queries"
    return Table(title, header, rows)


def _on_split(result: GroupResult) -> str:
    """The split of a result, to stand behind the name of its metric; nothing for test."""
    split = result.rows[0].experiment.split
    return "" if split == "test" else f" on {split}"


def _mean_cell(row: ExperimentResult) -> str:
    deviation = "" if row.deviation is None else f" ± {row.deviation:.4f}"
    return f"{row.estimate.mean:.4f}{deviation}"


def number_or_empty(value: float | None, form: str) -> str:
    """The number in a form such as ``.4f``; an empty cell for None."""
    return "" if value is None else f"{value:{form}}"


def _comparison_rows(result: GroupResult, names: Sequence[str]) -> list[list[str]]:
    """A row for each comparison, under its name and the columns of :data:`COMPARED`."""
    rows = []
    for name, comparison in zip(names, result.comparisons, strict=True):
        low, high = comparison.interval(result.metric)
        rows.append(
            [
                name,
                comparison.verdict,
                f"{comparison.difference.mean:+.4f}",
                f"{low:+.4f} to {high:+.4f}",
                p_value(comparison.p),
                p_value(comparison.corrected),
                p_value(comparison.p_models),
                number_or_empty(effect_or_none(comparison), "+.2f"),
                f"{comparison.wins} / {comparison.ties} / {comparison.losses}",
            ]
        )
    return rows


def _comparison_names(result: GroupResult) -> list[str]:
    """What tables call the comparisons: the experiment, of several baselines with its own."""
    if len({comparison.baseline for comparison in result.comparisons}) == 1:
        return [comparison.name for comparison in result.comparisons]
    return [f"{comparison.name} − {comparison.baseline}" for comparison in result.comparisons]


def effect_or_none(comparison: Comparison) -> float | None:
    """The effect; None where it is not defined."""
    return None if math.isnan(comparison.effect) else comparison.effect


def _plan_table(result: GroupResult, difference: float) -> Table:
    title = f"queries that show a difference of {difference:g} in {result.metric} with a probability of 0.8"
    header = ["experiment", *(f"{n} seeds" for n in PLANNED_SEEDS)]
    rows = []
    for name, comparison in zip(_comparison_names(result), result.comparisons, strict=True):
        rows.append([name, *_queries_needed(comparison, difference, result.level)])
    return Table(title, header, rows)


def _queries_needed(comparison: Comparison, difference: float, level: float) -> list[str]:
    """A cell for each number of seeds of a plan."""
    if not comparison.has_several_seeds:
        # Nobody knows how other seeds would vary, only how many queries tell these models apart.
        over_queries = replace(
            comparison.difference, seed_variances=(), shared_variances=(), n_seeds=()
        )
        # The number of seeds has no effect without seed_variances.
        n = over_queries.queries_needed(difference, n_seeds=1, alpha=level)
        # The first cell speaks of other seeds, the last one of the models that are there.
        empty = [""] * (len(PLANNED_SEEDS) - 2)
        last = "" if n is None else f"{n:,} for these models"
        return ["unknown: train more than one seed", *empty, last]
    cells = []
    for n_seeds in PLANNED_SEEDS:
        n = comparison.difference.queries_needed(difference, n_seeds, level)
        cells.append("no number" if n is None else f"{n:,}")
    return cells


def p_value(value: float) -> str:
    """Three decimals; below 0.001 only ``< 0.001`` or ``< 0.0001``."""
    if value < 0.0001:
        return "< 0.0001"
    if value < 0.001:
        return "< 0.001"
    return f"{value:.3f}"
