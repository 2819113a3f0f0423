"""How often should negatives be mined anew?  The rung refreshed.yaml under other schedules: quality and seconds.

python experiments/mined/schedule.py --data examples/medquad --queries 400
"""

import json
from pathlib import Path

from harness import collection, heading, make, parser, row

SCHEDULES: dict[str, dict[str, object] | None] = {
    "never: random negatives": None,
    "once": {"every_n_epochs": None},
    "every epoch": {"every_n_epochs": 1},
    "every 10 steps": {"every_n_steps": 10},
    "every 10 steps, where fewer than 60 % would be found again": {"every_n_steps": 10, "min_overlap": 0.6},
}


def main() -> None:
    """Make the runs, print the table."""
    asked, options = parser(__doc__).parse_known_args()
    root, data = collection(asked)
    before = None
    print(f"\n{root}: seeds {asked.seeds}\n\n{heading('refresh', 'the row above')}")
    for name, schedule in SCHEDULES.items():
        runs = [root / "schedule" / name.partition(",")[0].partition(":")[0] / f"seed={seed}" for seed in asked.seeds]
        if schedule is not None and "min_overlap" in schedule:
            runs = [root / "schedule" / "by overlap" / run.name for run in runs]
        for run, seed in zip(runs, asked.seeds, strict=True):
            rung = "random" if schedule is None else "refreshed"
            callback = {"class_path": "ltr.callbacks.HardNegativeMining", "init_args": schedule}
            given = [] if schedule is None else ["--trainer.callbacks", json.dumps([callback])]
            if not asked.table:
                make(run, Path(__file__).with_name(f"{rung}.yaml"), data, seed, given + options)
        cells, now = row(runs, before)
        before = before if now is None else now
        print(f"| {name} | {cells}", flush=True)


if __name__ == "__main__":
    main()
