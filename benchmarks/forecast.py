"""How far is a forecast of ltr check from what the training then takes?  python benchmarks/forecast.py
CONFIG [CONFIG …]

Each configuration is forecast, and then trained in a folder of its own that goes. What ltr fit
forecasts itself, after its first batches, stands beside it.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from harness.machine import machine_line
from harness.options import parser
from harness.tables import head, row

TINY = ["--trainer.max_epochs", "1"]


def main() -> None:
    """Print a row for each configuration, then the median and the largest error."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("configs", nargs="+", help="configurations of ltr fit")
    options = arguments.parse_args()
    print(machine_line())
    columns = ["configuration", "steps", "forecast, s", "took, s", "error", "by ltr fit, s"]
    print(head([*columns, "memory, GB", "disk, MB"]))
    errors = []
    for config in options.configs:
        with tempfile.TemporaryDirectory() as folder:
            forecast, run = measured(config, Path(folder), TINY if options.tiny else [])
        took = run["took"]
        error = forecast["seconds"] / took["seconds"] - 1
        errors.append(abs(error))
        cells = [Path(config).stem, run["fit"]["steps"], f"{forecast['seconds']:.1f}"]
        cells += [f"{took['seconds']:.1f}", f"{error:+.0%}"]
        cells.append(f"{run['forecast']['seconds']:.1f}" if "forecast" in run else "")
        cells.append(f"{forecast['memory'] / 1e9:.2f} / {took['memory'] / 1e9:.2f}")
        cells.append(f"{forecast['disk'] / 1e6:.1f} / {took['disk'] / 1e6:.1f}")
        print(row(cells), flush=True)
    print(f"\nmedian error {median(errors):.0%}, largest {max(errors):.0%}")


def measured(
    config: str, folder: Path, changes: list[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The forecast of a configuration, and the metrics.json of its training."""
    file = folder / "check.json"
    ltr(["check", "--config", config, "--json", str(file)])
    run = folder / "run"
    ltr(["fit", "--config", config, "--trainer.default_root_dir", str(run), *changes])
    sections = json.loads(file.read_text())["sections"]
    (forecast,) = [section["entries"] for section in sections if section["title"] == "Forecast"]
    return forecast, json.loads((run / "metrics.json").read_text())


def ltr(words: list[str]) -> None:
    """Run a command in a process of its own; what it says is shown where it fails."""
    environment = os.environ | {"WANDB_MODE": "offline"}
    done = subprocess.run(
        [sys.executable, "-m", "ltr", *words], capture_output=True, text=True, env=environment
    )
    if done.returncode:
        raise SystemExit(f"ltr {' '.join(words)}\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
