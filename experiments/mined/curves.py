"""Draws how fast experiments learn, and prints what their refreshes did: python
experiments/mined/curves.py RUNS docs/heart.svg EXPERIMENT …

RUNS is the folder of a grid, an EXPERIMENT a cell of it. Left, the metric on dev by step; right, by
second: of training and refreshes, and of an encoding of the corpus for each refresh, which a
validation has done for it, of the quickest seed. A line is the mean over seeds, a band the lowest
to the highest seed.
"""

import csv
import json
import sys
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from figure import STYLE
from matplotlib.figure import Figure

METRIC = "nDCG@10"
COLUMNS = {
    "active_before": "active pairs before",
    "active_after": "active pairs after",
    "overlap": "kept from before",
    "left_out_relative": "left out by the relative filter",
    "distance_relevant": "distance, relevant",
    "distance_negatives": "distance, negatives",
}


class Curve(NamedTuple):
    """The validations of one run.

    Attributes:
        steps: of each validation.
        seconds: until each validation, as the module says.
        values: of the metric.
    """

    steps: list[int]
    seconds: list[float]
    values: list[float]


def refreshes_of(run: Path) -> dict[int, dict[str, float]]:
    """What the logger was told of each refresh, by its step."""
    refreshes: dict[int, dict[str, float]] = {}
    for file in sorted(run.glob("logs/*/metrics.csv")):
        with file.open() as lines:
            for row in csv.DictReader(lines):
                for name, value in row.items():
                    if name.startswith("mining/") and value:
                        of_step = refreshes.setdefault(int(row["step"]), {})
                        of_step[name.removeprefix("mining/")] = float(value)
    return refreshes


def curve_of(run: Path) -> Curve:
    """The validations of a run, the one before training first."""
    results = json.loads((run / "metrics.json").read_text())
    refresh_steps = np.array(sorted(refreshes_of(run)))
    validations = results["validations"]
    n_validations = len(validations) + ("start" in results)
    encoding = results["took"]["validations"] / n_validations
    steps: list[int] = []
    seconds: list[float] = []
    values: list[float] = []
    if "start" in results:
        steps.append(0)
        seconds.append(0.0)
        values.append(results["start"][METRIC])
    for validation in validations:
        n_refreshes = int((refresh_steps < validation["step"]).sum())
        steps.append(validation["step"])
        seconds.append(validation["seconds"] + n_refreshes * encoding)
        values.append(validation[METRIC])
    return Curve(steps, seconds, values)


def table_of(experiment: Path) -> str:
    """A Markdown table of the refreshes of an experiment, the mean over its seeds."""
    runs = sorted(experiment.glob("seed=*"))
    of_runs = [refreshes_of(run) for run in runs]
    steps = sorted(set.intersection(*(set(refreshes) for refreshes in of_runs)))
    lines = [
        f"**{experiment.name}**, mean of {len(runs)} seeds",
        "",
        "| step | " + " | ".join(COLUMNS.values()) + " |",
        "| --- " * (len(COLUMNS) + 1) + "|",
    ]
    for step in steps:
        cells = [str(step)]
        for name in COLUMNS:
            values = [refreshes[step][name] for refreshes in of_runs if name in refreshes[step]]
            if not values:  # the first refresh has none before it
                cells.append("")
            elif name == "left_out_relative":  # a count
                cells.append(f"{np.mean(values):,.0f}")
            else:
                cells.append(f"{np.mean(values):.3f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Read the runs, print the tables, draw."""
    folder, file, *names = sys.argv[1:]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 3.2), layout="constrained")
        by_step, by_second = figure.subplots(1, 2, sharey=True)
        for name in names:
            curves = [curve_of(run) for run in sorted(Path(folder, name).glob("seed=*"))]
            values = np.array([curve.values for curve in curves])
            seconds = min((curve.seconds for curve in curves), key=lambda times: times[-1])
            for axes, places in ((by_step, curves[0].steps), (by_second, seconds)):
                (line,) = axes.plot(places, values.mean(0), "o-", ms=3, label=name)
                low, high = values.min(0), values.max(0)
                axes.fill_between(places, low, high, alpha=0.2, color=line.get_color(), lw=0)
        by_step.set(xlabel="step", ylabel=f"{METRIC} on dev")
        by_second.set(xlabel="seconds, with the encodings that refreshes need")
        by_step.legend(frameon=False, fontsize=8)
        figure.savefig(file, metadata={"Date": None})
    for name in names:
        if refreshes_of(Path(folder, name, "seed=0")):
            print(table_of(Path(folder, name)), end="\n\n")


if __name__ == "__main__":
    main()
