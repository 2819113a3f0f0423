"""A comparison as tables, for a terminal, Markdown, LaTeX and CSV."""

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from ltr.compare.comparison import Comparison, MetricResult, Row
from ltr.compare.suites import SuiteResult

PLANNED_SEEDS = (3, 5, 10)  # the columns of a plan
# The columns of the CSV: of an experiment, and of its comparison with a baseline.
EXPERIMENT_COLUMNS = [
    "metric",
    "experiment",
    "seeds",
    "queries",
    "mean",
    "deviation",
    "low",
    "high",
    "start",
    "ceiling",
    "seconds",
]
COMPARISON_COLUMNS = [
    "baseline",
    "difference",
    "difference_low",
    "difference_high",
    "p",
    "p_corrected",
    "p_models",
    "effect",
    "wins",
    "ties",
    "losses",
    "detectable",
    "verdict",
]
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
        lines.append(f"{P_VALUES}; {_family(n_comparisons)}; effect: Cohen's d over queries")
    return [*lines, _provenance(results[0])]


def _family(n_comparisons: int) -> str:
    if n_comparisons == 1:
        return "one comparison, so nothing to correct"
    return f"Holm's correction over {n_comparisons} comparisons"


def _provenance(result: MetricResult) -> str:
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
        title = f"{mean.metric}, mean of {len(result.of_sets)} sets"
        level = f"against {_baselines(mean)}; level {alpha:g}"
        if mean.comparisons:
            lines = _comparison_lines(mean, _names(mean))
            made.append(Table(f"{title}, {level}", ["experiment", *COMPARED], lines))
        made.append(_suite_experiment_table(result, title))
        if mean.comparisons:
            lines = []
            for name, of_set in result.of_sets.items():
                names = _names(of_set)
                # Where there are several comparisons, each says which.
                names = [name] if len(names) == 1 else [f"{name}: {each}" for each in names]
                lines += _comparison_lines(of_set, names)
            made.append(Table(f"{mean.metric} by set, {level}", ["set", *COMPARED], lines))
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
        low, high = row.mean.interval()
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
            f"{P_VALUES}; of means: {_family(n_means)}; of sets, apart from them: {_family(n_sets)}; effect: Cohen's d over queries"
        )
    return [*lines, _provenance(means[0])]


def _experiment_table(result: MetricResult) -> Table:
    header = ["experiment", "seeds", result.metric, "95 % interval"]
    lines = [_experiment_cells(row) for row in result.rows]
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
    return Table(f"{result.metric}, {result.n_queries:,} queries", header, lines)


def _experiment_cells(row: Row) -> list[str]:
    mean = f"{row.mean.mean:.4f}"
    if row.deviation is not None:
        mean += f" ± {row.deviation:.4f}"
    low, high = row.mean.interval()
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
    title = f"{result.metric} against {_baselines(result)}; level {alpha:g}"
    return Table(title, ["experiment", *COMPARED], _comparison_lines(result, _names(result)))


def _baselines(result: MetricResult) -> str:
    return ", ".join(dict.fromkeys(comparison.baseline for comparison in result.comparisons))


def _comparison_lines(result: MetricResult, names: Sequence[str]) -> list[list[str]]:
    """A line for each comparison, under its name and the columns of :data:`COMPARED`."""
    lines = []
    for name, comparison in zip(names, result.comparisons, strict=True):
        low, high = comparison.difference.interval()
        lines.append(
            [
                name,
                comparison.verdict,
                f"{comparison.difference.mean:+.4f}",
                f"{low:+.4f} to {high:+.4f}",
                p_value(comparison.p),
                p_value(comparison.corrected),
                p_value(comparison.p_models),
                _number(_effect(comparison), "+.2f"),
                f"{comparison.wins} / {comparison.ties} / {comparison.losses}",
            ]
        )
    return lines


def _names(result: MetricResult) -> list[str]:
    """What tables call the comparisons: by the experiment, and by the baseline where there are
    several.
    """
    if len({comparison.baseline for comparison in result.comparisons}) == 1:
        return [comparison.name for comparison in result.comparisons]
    return [f"{comparison.name} − {comparison.baseline}" for comparison in result.comparisons]


def _effect(comparison: Comparison) -> float | None:
    return None if math.isnan(comparison.effect) else comparison.effect


def _plan_table(result: MetricResult, difference: float, level: float) -> Table:
    title = f"queries that show a difference of {difference:g} in {result.metric} with a probability of 0.8"
    header = ["experiment", *(f"{n} seeds" for n in PLANNED_SEEDS)]
    lines = []
    for name, comparison in zip(_names(result), result.comparisons, strict=True):
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


# The formats


def terminal(tables: Sequence[Table], notes: Sequence[str], console: Console) -> None:
    """Print the tables."""
    for table in tables:
        console.print(table.title, style="bold", markup=False, highlight=False)
        printed = RichTable(box=box.SIMPLE_HEAD)
        for number, name in enumerate(table.header):
            is_text = number == 0 or name in table.of_texts
            printed.add_column(name, justify="left" if is_text else "right", overflow="fold")
        for cells in table.rows:
            printed.add_row(*(cell.replace("[", r"\[") for cell in cells))  # else rich reads markup
        console.print(printed)
    for note in notes:
        console.print(note, style="dim", markup=False, highlight=False)


def markdown(tables: Sequence[Table], notes: Sequence[str]) -> str:
    """Tables under their titles."""
    paragraphs = []
    for table in tables:
        lines = [_markdown_row(table.header), _markdown_row(["---"] * len(table.header))]
        lines += map(_markdown_row, table.rows)
        paragraphs += [f"**{table.title}**", "\n".join(lines)]
    return "\n\n".join([*paragraphs, *notes]) + "\n"


def _markdown_row(cells: Sequence[str]) -> str:
    escaped = [cell.replace("|", r"\|") for cell in cells]
    return f"| {' | '.join(escaped)} |"


def latex(tables: Sequence[Table], notes: Sequence[str]) -> str:
    """Tables for the package booktabs."""
    paragraphs = []
    for table in tables:
        columns = "l" + "r" * (len(table.header) - 1)  # names to the left, numbers to the right
        lines = [
            r"\begin{table}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            _latex_row(table.header),
            r"\midrule",
            *map(_latex_row, table.rows),
            r"\bottomrule",
            r"\end{tabular}",
            rf"\caption{{{_latex_text(table.title)}}}",
            r"\end{table}",
        ]
        paragraphs.append("\n".join(lines))
    paragraphs += [f"% {note}" for note in notes]
    return "\n\n".join(paragraphs) + "\n"


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(map(_latex_text, cells)) + r" \\"


def _latex_text(text: str) -> str:
    """Text with LaTeX's special letters escaped."""
    # The backslash first: the later escapes add backslashes of their own.
    text = text.replace("\\", r"\textbackslash ")
    text = re.sub(r"([&%$#_{}])", r"\\\1", text)
    text = text.replace("±", r"$\pm$")
    text = text.replace("−", "$-$")
    text = text.replace("<", "$<$")
    text = text.replace("~", r"\textasciitilde ")
    text = text.replace("^", r"\textasciicircum ")
    # A minus before a number; not a hyphen within a name, as in bm25-2.
    return re.sub(r"(?<![\w$.])-(?=\d)", "$-$", text)


def as_csv(results: Sequence[MetricResult]) -> str:
    """A line for each experiment, metric and baseline, with all digits; an experiment that is
    compared with none has one line, with empty comparison columns.
    """
    return _csv([], [([], result) for result in results])


def suite_csv(results: Sequence[SuiteResult]) -> str:
    """The same for each set, which the first column names; it is empty for the mean of the sets."""
    of_sets: list[tuple[list[str], MetricResult]] = []
    for result in results:
        of_sets.append(([""], result.of_mean))
        of_sets += [([name], of_set) for name, of_set in result.of_sets.items()]
    return _csv(["set"], of_sets)


def _csv(header: list[str], results: Sequence[tuple[list[str], MetricResult]]) -> str:
    """Lines of results, each with cells that stand before its own."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header + EXPERIMENT_COLUMNS + COMPARISON_COLUMNS)
    for first_cells, result in results:
        for row in result.rows:
            of_experiment = [*first_cells, *_experiment_values(row, result)]
            has_baseline = False
            for comparison in result.comparisons:
                if comparison.name == row.experiment.name:
                    has_baseline = True
                    writer.writerow(of_experiment + _comparison_values(comparison))
            if not has_baseline:
                writer.writerow(of_experiment + [None] * len(COMPARISON_COLUMNS))
    return out.getvalue()


def _experiment_values(row: Row, result: MetricResult) -> list[object]:
    """In the order of :data:`EXPERIMENT_COLUMNS`."""
    low, high = row.mean.interval()
    return [
        result.metric,
        row.experiment.name,
        len(row.experiment.runs),
        result.n_queries,
        row.mean.mean,
        row.deviation,
        low,
        high,
        row.start,
        row.ceiling,
        row.seconds,
    ]


def _comparison_values(comparison: Comparison) -> list[object]:
    """In the order of :data:`COMPARISON_COLUMNS`."""
    low, high = comparison.difference.interval()
    return [
        comparison.baseline,
        comparison.difference.mean,
        low,
        high,
        comparison.p,
        comparison.corrected,
        comparison.p_models,
        _effect(comparison),
        comparison.wins,
        comparison.ties,
        comparison.losses,
        comparison.detectable,
        comparison.verdict,
    ]
