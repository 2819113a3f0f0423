"""Draws the refreshes of a run: python experiments/mined/figure.py RUN docs/mining.svg

Left, how far the negatives of each refresh lie from their queries, and the margins that
FromDistance makes of it. Right, the mean distances, and the share of the negatives that were
negatives at the refresh before.
"""

import json
import sys
from pathlib import Path

import matplotlib
import numpy as np
import yaml
from matplotlib.figure import Figure

STYLE = {
    "font.size": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "ltr",
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def main() -> None:
    """Read the folders of negatives, draw."""
    run, file = map(Path, sys.argv[1:])
    folders = sorted(
        (run / "negatives").glob("step=*"), key=lambda one: int(one.name.removeprefix("step="))
    )
    manifests = [json.loads((one / "manifest.json").read_text()) for one in folders]
    steps = [one["step"] for one in manifests]
    margin = yaml.safe_load((run / "config.yaml").read_text())["model"].get("margin") or {}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 3), layout="constrained")
        left, right = figure.subplots(1, 2)
        edges = np.linspace(0.5, 1.3, 65)
        for number, (folder, step) in enumerate(zip(folders, steps, strict=True)):
            ids, distances = (np.load(folder / f"{name}.npy") for name in ("ids", "distances"))
            shares = np.histogram(distances[ids >= 0], edges)[0] / (ids >= 0).sum()
            shade = matplotlib.colormaps["viridis"](0.85 * (1 - number / max(1, len(folders) - 1)))
            left.plot((edges[1:] + edges[:-1]) / 2, 100 * shares, color=shade, label=f"step {step}")
        left.set(
            xlabel="distance of a negative to its query",
            ylabel="% of the negatives",
            ylim=(0, None),
        )
        left.legend(frameon=False, fontsize=8)
        if (
            margin.get("class_path", "").endswith("FromDistance")
            and margin["init_args"].get("power", 1.0) == 1.0
        ):
            k = margin["init_args"].get("k", 1.0)
            left.secondary_xaxis("top", functions=(lambda d: k * d, lambda m: m / k)).set_xlabel(
                f"margin ({k:g} · distance)"
            )
        for name, label, style in (
            ("relevant", "relevant documents", "o-"),
            ("negatives", "negatives", "s-"),
        ):
            right.plot(
                steps,
                [one["mean_distance"][name] for one in manifests],
                style,
                label=f"mean distance, {label}",
                ms=4,
            )
        overlaps = [one.get("overlap") for one in manifests[1:]]
        right.plot(steps[1:], overlaps, "k^:", label="share that were negatives before", ms=4)
        right.set(xlabel="step of the refresh", ylim=(0, 1.7), xticks=steps)
        right.legend(frameon=False, fontsize=8, loc="upper right")
        figure.savefig(file, metadata={"Date": None})


if __name__ == "__main__":
    main()
