"""Test results of run folders as a table, mean ± deviation over seeds: python experiments/table.py runs/a/seed=0
runs/a/seed=1 …"""

import json
import statistics
import sys
from pathlib import Path


def main() -> None:
    """Print one row per experiment, and how the measures were counted."""
    groups: dict[Path, list[dict]] = {}
    for folder in map(Path, sys.argv[1:]):
        file = folder / "metrics.json"
        run = json.loads(file.read_text()) if file.is_file() else {}
        if "test" not in run:
            sys.exit(f"{folder}: a run must have been tested, got no test in metrics.json; ltr test -c {folder}/config.yaml")
        groups.setdefault(folder.parent, []).append(run)
    for experiment, runs in groups.items():
        tests = [run["test"] for run in runs]
        names = list(tests[0]["conventions"])
        print(f"\n{experiment}: {tests[0]['queries']} test queries, {len(runs)} seed(s)\n")
        print(f"| {' | '.join(names)} | training, s |\n|{' --- |' * (len(names) + 1)}")
        cells = [_cell([test[name] for test in tests], 4) for name in names]
        print(f"| {' | '.join(cells)} | {_cell([run['fit']['seconds'] for run in runs], 0)} |\n")
        print(*(f"{name}: {tests[0]['conventions'][name]}" for name in names), sep="\n")


def _cell(values: list[float], digits: int) -> str:
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"


if __name__ == "__main__":
    main()
