"""Which grades do the top ten documents have?  python experiments/by_grade.py
"runs/ladder-liveqa/*" --data data/medquad-liveqa

For each experiment the documents of each grade among the ten best of the test queries, and nDCG@10
if lower grades than ``--least`` counted as 0. Mean ± deviation over the seeds.
"""

import argparse
from collections import Counter

import numpy as np
import torch

from ltr.compare.documents import Ranking
from ltr.compare.runs import Run, experiments
from ltr.data.collection import Collection, open_collection
from ltr.metrics import NDCG, RankedLists

DEPTH = 10


def counted(run: Run, collection: Collection, least: float) -> tuple[Counter[float | None], float]:
    """Documents by grade, None for those that are not judged, and the mean nDCG@10."""
    judged = collection.judgements("test")
    ranking = Ranking(run, collection)
    counts: Counter[float | None] = Counter()
    values = []
    for row in judged.query_rows.tolist():
        top = [one.grade for one in ranking.top(collection.queries.ids[row], DEPTH, letters=0)]
        counts.update(top)
        ideal = np.sort([grade if grade >= least else 0.0 for grade in judged.of(row)[1]])[::-1]
        if ideal[0]:
            gains = [grade if grade is not None and grade >= least else 0.0 for grade in top]
            order = torch.arange(len(gains), 0, -1.0).unsqueeze(0)
            lists = RankedLists(order, torch.tensor([gains]), ideal=torch.tensor([ideal.tolist()]))
            values.append(NDCG(DEPTH).per_query(lists).item())
    return counts, float(np.mean(values))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", help="folders of experiments, or patterns of them")
    parser.add_argument("--data", required=True, help="the collection that they ranked")
    parser.add_argument("--least", type=float, default=2.0, help="the lowest grade that counts")
    asked = parser.parse_args()
    collection = open_collection(asked.data)
    grades: list[float | None] = [*np.unique(collection.judgements("test").values).tolist(), None]
    names = ["not judged" if grade is None else f"grade {grade:g}" for grade in grades]
    print(
        f"| experiment | {' | '.join(names)} | nDCG@10, grade {asked.least:g} or more |\n{'| --- ' * (len(names) + 2)}|"
    )
    for experiment in experiments(asked.runs):
        found = [counted(run, collection, asked.least) for run in experiment.runs]
        cells = [f"{np.mean([counts[grade] for counts, _ in found]):.0f}" for grade in grades]
        values = np.array([value for _, value in found])
        spread = f" ± {values.std(ddof=1):.4f}" if len(values) > 1 else ""
        print(f"| {experiment.name} | {' | '.join(cells)} | {values.mean():.4f}{spread} |")


if __name__ == "__main__":
    main()
