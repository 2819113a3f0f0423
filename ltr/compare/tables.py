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

from ltr.compare.comparison import Compared, Comparison, Row

SEEDS = (3, 5, 10)  # of a plan
# The columns of an experiment, and of its comparison with a baseline.
EXPERIMENT = [
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
COMPARISON = [
    "baseline",
    "difference",
    "difference_low",
    "difference_high",
    "p",
    "p_corrected",
    "p_models",
    "effect",
]
COMPARISON += ["wins", "ties", "losses", "detectable", "verdict"]


class Table(NamedTuple):
    """Cells as text."""

    title: str
    header: list[str]
    rows: list[list[str]]


def tables(
    found: Sequence[Compared], alpha: float = 0.05, plan: float | None = None
) -> list[Table]:
    """For each metric the experiments, and the comparisons; and how much data would show a
    difference.

    Args:
        found: by metric.
        alpha: the level of the family.
        plan: the difference to plan for; None for no plan.
    """
    made = []
    for one in found:
        if one.comparisons:  # what was asked comes first
            made.append(_comparisons(one, alpha))
        made.append(_experiments(one))
        if one.comparisons and plan is not None:
            made.append(_plan(one, plan, alpha / sum(len(each.comparisons) for each in found)))
    return made


def footnotes(found: Sequence[Compared]) -> list[str]:
    """What must stand beside the tables."""
    n = sum(len(one.comparisons) for one in found)
    lines = [f"{one.metric}: {one.convention}" for one in found]
    lines += list(dict.fromkeys(note for one in found for note in one.notes))
    if n:
        family = (
            f"Holm's correction over {n} comparisons"
            if n > 1
            else "one comparison, so nothing to correct"
        )
        lines.append(
            "p: over queries and seeds, of one seed over queries; "
            f"p of these models: paired randomisation test over queries; {family}; effect: Cohen's d over queries"
        )
    return [*lines, *_made(found)]


def _made(found: Sequence[Compared]) -> list[str]:
    """With what the runs were tested: seeds, versions, commit, machine, dates."""
    runs = [run for row in found[0].rows for run in row.experiment.runs]
    seeds = sorted({run.seed for run in runs})
    lines = [f"seeds {', '.join(map(str, seeds))}"]
    made = [run.test["made"] | run.test["made"]["packages"] for run in runs if "made" in run.test]
    for name in ("ltr", "commit", "machine", "date", "torch", "transformers"):
        if own := sorted({one[name] for one in made if name in one}):
            lines.append(f"{name} {', '.join(own)}")
    return ["; ".join(lines)]


def _experiments(found: Compared) -> Table:
    rows = found.rows
    optional = {
        "before training, dev": ["" if one.start is None else f"{one.start:.4f}" for one in rows],
        "ceiling": ["" if one.ceiling is None else f"{one.ceiling:.4f}" for one in rows],
        "training, s": ["" if one.seconds is None else f"{one.seconds:,.0f}" for one in rows],
    }
    shown = {name: values for name, values in optional.items() if any(values)}
    header = ["experiment", "seeds", found.metric, "95 % interval", *shown]
    cells = [[*_mean(one), *extra] for one, *extra in zip(rows, *shown.values(), strict=True)]
    return Table(f"{found.metric}, {found.n_queries:,} queries", header, cells)


def _mean(one: Row) -> list[str]:
    spread = "" if one.deviation is None else f" ± {one.deviation:.4f}"
    low, high = one.mean.interval()
    return [
        one.experiment.name,
        str(len(one.experiment.runs)),
        f"{one.mean.mean:.4f}{spread}",
        f"{low:.4f} to {high:.4f}",
    ]


def _comparisons(found: Compared, alpha: float) -> Table:
    bases = list(dict.fromkeys(one.baseline for one in found.comparisons))
    title = f"{found.metric} against {', '.join(bases)}; level {alpha:g}"
    header = [
        "experiment",
        "verdict",
        "difference",
        "95 % interval",
        "p",
        "p, Holm",
        "p of these models",
        "effect",
        "wins / ties / losses",
    ]
    rows = []
    for one in found.comparisons:
        name = one.name if len(bases) == 1 else f"{one.name} − {one.baseline}"
        low, high = one.difference.interval()
        tests = [p_value(value) for value in (one.p, one.corrected, one.p_models)]
        effect = "" if math.isnan(one.effect) else f"{one.effect:+.2f}"
        counts = f"{one.wins} / {one.ties} / {one.losses}"
        difference = [f"{one.difference.mean:+.4f}", f"{low:+.4f} to {high:+.4f}"]
        rows.append([name, one.verdict, *difference, *tests, effect, counts])
    return Table(title, header, rows)


def _plan(found: Compared, difference: float, level: float) -> Table:
    title = f"queries that show a difference of {difference:g} in {found.metric} with a probability of 0.8"
    header = ["experiment", *(f"{n} seeds" for n in SEEDS)]
    return Table(
        title, header, [[one.name, *_needed(one, difference, level)] for one in found.comparisons]
    )


def _needed(one: Comparison, difference: float, level: float) -> list[str]:
    if not one.has_seeds:
        models = replace(one.difference, of_seeds=(), shared=(), n_seeds=())
        n = models.queries_needed(difference, 1, level)
        return [
            "unknown: train more than one seed",
            *[""] * (len(SEEDS) - 2),
            "" if n is None else f"{n:,} for these models",
        ]
    found = [one.difference.queries_needed(difference, n, level) for n in SEEDS]
    return ["no number" if n is None else f"{n:,}" for n in found]


def p_value(value: float) -> str:
    """Three digits, of small ones the power of ten."""
    return f"{value:.3f}" if value >= 0.001 else "< 0.001" if value >= 0.0001 else "< 0.0001"


# The formats


def terminal(made: Sequence[Table], notes: Sequence[str], console: Console) -> None:
    """Print the tables."""
    for one in made:
        console.print(one.title, style="bold", markup=False, highlight=False)
        shown = RichTable(box=box.SIMPLE_HEAD)
        for number, name in enumerate(one.header):
            shown.add_column(
                name,
                justify="left" if number == 0 or name == "verdict" else "right",
                overflow="fold",
            )
        for row in one.rows:
            shown.add_row(*(cell.replace("[", r"\[") for cell in row))
        console.print(shown)
    for note in notes:
        console.print(note, style="dim", markup=False, highlight=False)


def markdown(made: Sequence[Table], notes: Sequence[str]) -> str:
    """Tables under their titles."""
    parts = []
    for one in made:
        lines = [_escaped(one.header), ["---"] * len(one.header), *map(_escaped, one.rows)]
        parts.append(
            f"**{one.title}**\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)
        )
    return "\n\n".join([*parts, *notes]) + "\n"


def _escaped(cells: Sequence[str]) -> list[str]:
    return [cell.replace("|", r"\|") for cell in cells]


def latex(made: Sequence[Table], notes: Sequence[str]) -> str:
    """Tables for the package booktabs."""
    parts = []
    for one in made:
        lines = [" & ".join(map(_tex, line)) + r" \\" for line in (one.header, *one.rows)]
        columns = "l" + "r" * (len(one.header) - 1)
        body = [
            r"\begin{table}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
        ]
        parts.append(
            "\n".join(
                [
                    *body,
                    r"\bottomrule",
                    r"\end{tabular}",
                    rf"\caption{{{_tex(one.title)}}}",
                    r"\end{table}",
                ]
            )
        )
    return "\n\n".join([*parts, *(f"% {note}" for note in notes)]) + "\n"


def _tex(text: str) -> str:
    text = re.sub(r"([&%$#_{}])", r"\\\1", text.replace("\\", r"\textbackslash "))
    for letter, command in (
        ("±", r"$\pm$"),
        ("−", "$-$"),
        ("<", "$<$"),
        ("~", r"\textasciitilde "),
        ("^", r"\textasciicircum "),
    ):
        text = text.replace(letter, command)
    return re.sub(r"(?<![\w$.])-(?=\d)", "$-$", text)


def as_csv(found: Sequence[Compared]) -> str:
    """A line for each experiment, metric and baseline, with all digits; an experiment without a
    baseline has a line alone.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(EXPERIMENT + COMPARISON)
    for one in found:
        for row in one.rows:
            low, high = row.mean.interval()
            own = [one.metric, row.experiment.name, len(row.experiment.runs), one.n_queries]
            numbers = [row.mean.mean, row.deviation, low, high, row.start, row.ceiling, row.seconds]
            against: list[Comparison | None] = [
                each for each in one.comparisons if each.name == row.experiment.name
            ]
            writer.writerows([*own, *numbers, *_numbers(each)] for each in against or [None])
    return out.getvalue()


def _numbers(one: Comparison | None) -> list[object]:
    if one is None:
        return [None] * len(COMPARISON)
    low, high = one.difference.interval()
    effect = None if math.isnan(one.effect) else one.effect
    found = [
        one.baseline,
        one.difference.mean,
        low,
        high,
        one.p,
        one.corrected,
        one.p_models,
        effect,
    ]
    return [*found, one.wins, one.ties, one.losses, one.detectable, one.verdict]
