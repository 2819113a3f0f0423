"""Which margin, under which loss?  Mined negatives and those of the batch, refreshed before each epoch, as in refreshed.yaml.

    python experiments/mined/margins.py --data examples/medquad --queries 400

Every margin policy with a hinge, a squared hinge and a logistic loss. Scales are such that the mean margin of a mined negative is
about 4, a fifth in cosine: of 2, 4 and 8 the best constant one with a hinge (seed 0). Each row is compared with the constant
margin under the same loss; see ladder.py for the rest.
"""

import json
from pathlib import Path

from harness import collection, heading, make, parser, row

LOSSES = {
    "hinge": {"class_path": "ltr.losses.MarginRankingLoss"},
    "squared hinge": {"class_path": "ltr.losses.MarginRankingLoss", "init_args": {"squared": True}},
    "logistic": {"class_path": "ltr.losses.AdaptiveRankNetLoss"},
}
MARGINS = {
    "constant": ("Constant", {"value": 4.0}),
    "label gap": ("LabelGap", {"scale": 1.33}),  # grades are 3 and 0
    "k √d": ("FromDistance", {"k": 4.0, "power": 0.5}),
    "k d": ("FromDistance", {"k": 4.0, "power": 1.0}),
    "k d²": ("FromDistance", {"k": 4.0, "power": 2.0}),
    "from documents": ("FromDocuments", {"scale": 5.4}),
    "from query": ("FromQuery", {"scale": 16.0}),
    "normal samples": ("NormalSample", {"mean": 4.0, "std": 1.33, "high": 8.0}),
    "learnable": ("Learnable", {"k": 4.0, "cap": 8.0, "floor": 1.0}),
}


def main() -> None:
    """Make the runs, print a table for each loss."""
    made = parser(__doc__)
    made.add_argument("--losses", nargs="+", choices=LOSSES, default=list(LOSSES))
    asked, options = made.parse_known_args()
    root, data = collection(asked)
    config = Path(__file__).with_name("refreshed.yaml")
    for seed in asked.seeds:
        for loss in asked.losses if not asked.table else ():
            for name, (policy, given) in MARGINS.items():
                margin = json.dumps({"class_path": f"ltr.margins.{policy}", "init_args": given})
                parts = ["--model.loss", json.dumps(LOSSES[loss]), "--model.margin", margin]
                make(root / "margins" / loss / name / f"seed={seed}", config, data, seed, parts + options)
    for loss in asked.losses:
        print(f"\n{root}, {loss}: seeds {asked.seeds}\n\n{heading('margin', 'constant')}")
        constant = None
        for name in MARGINS:
            cells, now = row([root / "margins" / loss / name / f"seed={seed}" for seed in asked.seeds], constant)
            constant = now if name == "constant" else constant
            print(f"| {name} | {cells}")


if __name__ == "__main__":
    main()
