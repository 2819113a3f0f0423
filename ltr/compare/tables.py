"""A comparison as tables of text: what they hold, whatever the format."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ltr.compare.comparison import Comparison, MetricResult, Row
from ltr.compare.ranges import interval_of_difference, interval_of_mean

PLANNED_SEEDS = (3, 5, 10)  # the columns of a plan
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
        of_texts: the columns that hold texts, beside the first one and ``verdict``; the others hold
            numbers, which stand to the right.
    """

    title: str
    header: list[str]
    rows: list[list[str]]
    of_texts: Sequence[str] = ("verdict",)


def tables(
    results: Sequence[MetricResult], alpha: float = 0.05, plan: float | None = None
) -> list[Table]:
    """For each metric the comparisons, and the experiments; and how much data would show a
    difference.

    Args:
        results: by metric.
        alpha: the level of the family.
        plan: the difference to plan for; None for no plan.
    """
    n_comparisons = sum(len(result.comparisons) for result in results)
    made = []
    for result in results:
        # The comparisons come before the means: the verdicts are what the reader came for.
        if result.comparisons:
            made.append(_comparison_table(result, alpha))
        made.append(_experiment_table(result))
        if result.comparisons and plan is not None:
            made.append(_plan_table(result, plan, level=alpha / n_comparisons))
    return made


def footnotes(results: Sequence[MetricResult]) -> list[str]:
    """What must stand beside the tables."""
    lines = [f"{result.metric}: {result.convention}" for result in results]
    notes = [note for result in results for note in result.notes]
    lines += list(dict.fromkeys(notes))  # in order, each once
    n_comparisons = sum(len(result.comparisons) for result in results)
    if n_comparisons:
        lines.append(f"{P_VALUES}; {family(n_comparisons)}; effect: Cohen's d over queries")
    return [*lines, provenance_line(results[0])]


def family(n_comparisons: int) -> str:
    """How many comparisons are corrected together, in words."""
    if n_comparisons == 1:
        return "one comparison, so nothing to correct"
    return f"Holm's correction over {n_comparisons} comparisons"


def provenance_line(result: MetricResult) -> str:
    """With what the runs were tested: seeds, versions, commit, machine, dates."""
    seeds = set()
    values: dict[str, set[str]] = {name: set() for name in PROVENANCE}
    for row in result.rows:
        for run in row.experiment.runs:
            seeds.add(run.seed)
            if "made" not in run.test:
                continue
            made = run.test["made"] | run.test["made"]["packages"]
            for name in PROVENANCE:
                if name in made:
                    values[name].add(made[name])
    parts = [f"seeds {', '.join(map(str, sorted(seeds)))}"]
    for name in PROVENANCE:
        if values[name]:
            parts.append(f"{name} {', '.join(sorted(values[name]))}")
    return "; ".join(parts)


def _experiment_table(result: MetricResult) -> Table:
    header = ["experiment", "seeds", result.metric, "95 % interval"]
    lines = [_experiment_cells(row, result.metric) for row in result.rows]
    optional = {
        "before training, dev": [_number(row.start, ".4f") for row in result.rows],
        "ceiling": [_number(row.ceiling, ".4f") for row in result.rows],
        "training, s": [_number(row.seconds, ",.0f") for row in result.rows],
    }
    for name, cells in optional.items():
        if not any(cells):
            continue
        header.append(name)
        for line, cell in zip(lines, cells, strict=True):
            line.append(cell)
    title = f"{result.metric}{on_split(result)}, {result.n_queries:,} queries"
    return Table(title, header, lines)


def on_split(result: MetricResult) -> str:
    """The split of a result, to stand behind the name of its metric; nothing for test."""
    split = result.rows[0].experiment.split
    return "" if split == "test" else f" on {split}"


def _experiment_cells(row: Row, metric: str) -> list[str]:
    mean = f"{row.mean.mean:.4f}"
    if row.deviation is not None:
        mean += f" ± {row.deviation:.4f}"
    low, high = interval_of_mean(row.mean, metric)
    return [
        row.experiment.name,
        str(len(row.experiment.runs)),
        mean,
        f"{low:.4f} to {high:.4f}",
    ]


def _number(value: float | None, form: str) -> str:
    """The number in a form such as ``.4f``; an empty cell for None."""
    return "" if value is None else f"{value:{form}}"


def _comparison_table(result: MetricResult, alpha: float) -> Table:
    title = f"{result.metric}{on_split(result)} against {baselines(result)}; level {alpha:g}"
    return Table(
        title, ["experiment", *COMPARED], comparison_lines(result, comparison_names(result))
    )


def baselines(result: MetricResult) -> str:
    """The names of the baselines, each once."""
    return ", ".join(dict.fromkeys(comparison.baseline for comparison in result.comparisons))


def comparison_lines(result: MetricResult, names: Sequence[str]) -> list[list[str]]:
    """A line for each comparison, under its name and the columns of :data:`COMPARED`."""
    lines = []
    for name, comparison in zip(names, result.comparisons, strict=True):
        low, high = interval_of_difference(comparison.difference, result.metric)
        lines.append(
            [
                name,
                comparison.verdict,
                f"{comparison.difference.mean:+.4f}",
                f"{low:+.4f} to {high:+.4f}",
                p_value(comparison.p),
                p_value(comparison.corrected),
                p_value(comparison.p_models),
                _number(effect_or_none(comparison), "+.2f"),
                f"{comparison.wins} / {comparison.ties} / {comparison.losses}",
            ]
        )
    return lines


def comparison_names(result: MetricResult) -> list[str]:
    """What tables call the comparisons: by the experiment, and by the baseline where there are
    several.
    """
    if len({comparison.baseline for comparison in result.comparisons}) == 1:
        return [comparison.name for comparison in result.comparisons]
    return [f"{comparison.name} − {comparison.baseline}" for comparison in result.comparisons]


def effect_or_none(comparison: Comparison) -> float | None:
    """The effect; None where it is not defined."""
    return None if math.isnan(comparison.effect) else comparison.effect


def _plan_table(result: MetricResult, difference: float, level: float) -> Table:
    title = f"queries that show a difference of {difference:g} in {result.metric} with a probability of 0.8"
    header = ["experiment", *(f"{n} seeds" for n in PLANNED_SEEDS)]
    lines = []
    for name, comparison in zip(comparison_names(result), result.comparisons, strict=True):
        lines.append([name, *_queries_needed(comparison, difference, level)])
    return Table(title, header, lines)


def _queries_needed(comparison: Comparison, difference: float, level: float) -> list[str]:
    """A cell for each number of seeds of a plan."""
    if not comparison.has_seeds:
        # Nobody knows how other seeds would vary, only how many queries tell these models apart.
        of_models = replace(comparison.difference, of_seeds=(), shared=(), n_seeds=())
        # The number of seeds has no effect without of_seeds.
        n = of_models.queries_needed(difference, n_seeds=1, alpha=level)
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
