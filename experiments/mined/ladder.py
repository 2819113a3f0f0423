"""The ladder of negatives: the same encoder, loss and budget under five sources of negatives.

    python experiments/mined/ladder.py --data examples/medquad --queries 400 --seeds 0 1 2 3 4

Trains and tests what is not there yet in runs/mined/<set>/<rung>/seed=<n>, then prints the table: mean and deviation over the
seeds, and each rung against the one before, over queries and seeds (`ltr.compare.statistics`). A run
that was interrupted is resumed. Several may run at once, with seeds or rungs of their own; give each one thread and one core.
"""

from pathlib import Path

from harness import collection, heading, make, parser, row

RUNGS = {
    "in_batch": "documents of other queries only",
    "random": "and random negatives",
    "static": "and mined once",
    "refreshed": "and mined before each epoch",
    "medquad": "and margins from their distances",
}


def main() -> None:
    """Make the runs, print the table."""
    made = parser(__doc__)
    made.add_argument("--rungs", nargs="+", choices=RUNGS, default=list(RUNGS))
    asked, options = made.parse_known_args()
    root, data = collection(asked)
    for seed in asked.seeds:
        for rung in asked.rungs if not asked.table else ():
            make(root / rung / f"seed={seed}", Path(__file__).with_name(f"{rung}.yaml"), data, seed, options)
    print(f"\n{root}: seeds {asked.seeds}\n\n{heading('negatives', 'the row above')}")
    before = None
    for rung in asked.rungs:
        cells, now = row([root / rung / f"seed={seed}" for seed in asked.seeds], before)
        before = before if now is None else now
        print(f"| {RUNGS[rung]} | {cells}")


if __name__ == "__main__":
    main()
