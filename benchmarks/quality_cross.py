"""How good are cross-encoders trained by ltr and by sentence-transformers on the same lists?
python benchmarks/quality_cross.py

The same start, the same lists in the same order, the same epochs, AdamW with the same decay and
warm-up, no gradient clipping; each side with its own head and dropout. A list is a query, one of
its relevant documents and others of its pool (random ones where the pool has fewer). Each side
chooses its learning rate on dev, with the first seed, for each loss. Both are measured by the same
code on the pools of the source, theirs from the folder that it saves. A row has the mean over the
seeds, and the difference over queries and seeds (ltr.compare.statistics).

Wants ``pip install -e '.[bench]'``.
"""

import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from harness.machine import machine_line
from harness.options import WIKIQA, add_backbone, add_data, parser
from harness.tables import head, row
from harness.trainers import absent_peers, quiet_trainer, silence, training_arguments
from lightning.pytorch import seed_everything
from torch import nn
from torch.utils.data import DataLoader

from ltr.compare.query_values import values_by_query
from ltr.compare.statistics import estimate, randomisation_p
from ltr.data.collate import collator_of
from ltr.data.collection import Collection, open_collection
from ltr.data.query_lists import LabelledList, QueryLists
from ltr.losses import BCELoss, LambdaLoss, ListNetLoss, Loss, RankNetLoss, SoftmaxLoss
from ltr.metrics import RankingMetric
from ltr.mining.judge import TextScorer
from ltr.models import PairWiseBertRanker
from ltr.models.encoder.loading.model_folder import resolve
from ltr.module import RankerModule

WARM_UP = 0.1
DECAY = 0.01
Lists = list[LabelledList]


class Recipe(NamedTuple):
    """One loss on both sides.

    Attributes:
        loss: ours.
        theirs: makes that of sentence-transformers for a model; None where it has none.
        pairs: whether it reads pairs of texts instead of lists.
    """

    loss: Loss
    theirs: Callable[[nn.Module], nn.Module] | None
    pairs: bool = False


def recipes() -> dict[str, Recipe]:
    """The losses that both have, and the softmax."""
    from sentence_transformers.cross_encoder import losses

    return {
        "binary cross entropy": Recipe(BCELoss(), losses.BinaryCrossEntropyLoss, pairs=True),
        "RankNet": Recipe(RankNetLoss(), losses.RankNetLoss),
        "LambdaLoss": Recipe(LambdaLoss(), losses.LambdaLoss),
        "ListNet": Recipe(ListNetLoss(), losses.ListNetLoss),
        "softmax": Recipe(SoftmaxLoss(), None),
    }


def batches_of_all_epochs(collection: Collection, options: Namespace, seed: int) -> list[Lists]:
    """The same for both sides; lists that fill no batch at the end of an epoch are left out."""
    judged = collection.learnable("train")
    n_docs = len(collection.corpus)
    rng = np.random.default_rng([seed, 7])
    batches = []
    for _ in range(options.epochs):
        lists = []
        for query_row in judged.query_rows:
            lists.append(one_list(judged, int(query_row), n_docs, options.negatives, rng))
        order = rng.permutation(len(lists))[: options.examples]
        for begin in range(0, len(order) - options.batch + 1, options.batch):
            batches.append([lists[i] for i in order[begin : begin + options.batch]])
    return batches


def one_list(
    judged: QueryLists, query_row: int, n_docs: int, n: int, rng: np.random.Generator
) -> LabelledList:
    """A relevant document, and n that are not."""
    doc_rows, grades = judged.of(query_row)
    relevant = doc_rows[grades > 0]
    others = rng.permutation(doc_rows[grades <= 0])[:n].tolist()
    while len(others) < n:
        other = int(rng.integers(n_docs))
        if other not in relevant and other not in others:
            others.append(other)
    labels = np.asarray([1.0, *[0.0] * n], np.float32)
    return LabelledList(query_row, np.asarray([rng.choice(relevant), *others]), labels)


def train_ours(
    recipe: Recipe,
    batches: list[Lists],
    collection: Collection,
    options: Namespace,
    lr: float,
    seed: int,
) -> PairWiseBertRanker:
    """The ranker under Lightning's Trainer, with these batches."""
    seed_everything(seed, verbose=False)
    ranker = PairWiseBertRanker(options.backbone, max_length=options.max_length)
    module = RankerModule(ranker, recipe.loss, lr=lr, warmup=WARM_UP, weight_decay=DECAY)
    collator = collator_of([collection.queries], [collection.corpus], ranker.reads)
    quiet_trainer(max_epochs=1).fit(
        module, DataLoader(batches, batch_size=None, collate_fn=collator)
    )
    return ranker


def train_theirs(
    recipe: Recipe,
    batches: list[Lists],
    collection: Collection,
    options: Namespace,
    lr: float,
    seed: int,
) -> PairWiseBertRanker:
    """A CrossEncoderTrainer on the same texts; its model, read as ours is."""
    from datasets import Dataset
    from sentence_transformers.cross_encoder import (
        CrossEncoder,
        CrossEncoderTrainer,
        CrossEncoderTrainingArguments,
    )
    from transformers import PrinterCallback

    seed_everything(seed, verbose=False)
    model = CrossEncoder(
        resolve(options.backbone), num_labels=1, max_length=options.max_length, device="cpu"
    )
    columns = (
        pair_columns(batches, collection) if recipe.pairs else list_columns(batches, collection)
    )
    # One epoch: the rows are those of all epochs.
    n_rows = options.batch
    if recipe.pairs:
        n_rows = options.batch * (options.negatives + 1)
    with tempfile.TemporaryDirectory() as folder:
        settings = CrossEncoderTrainingArguments(
            **training_arguments(Path(folder), n_rows, lr, WARM_UP, DECAY, seed)
        )
        assert recipe.theirs is not None
        trainer = CrossEncoderTrainer(
            model=model,
            args=settings,
            train_dataset=Dataset.from_dict(columns),
            loss=recipe.theirs(model),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        model.save_pretrained(str(Path(folder, "model")))
        return PairWiseBertRanker(str(Path(folder, "model")), max_length=options.max_length)


def list_columns(batches: list[Lists], collection: Collection) -> dict[str, list[Any]]:
    """A row for each list."""
    columns: dict[str, list[Any]] = {"query": [], "docs": [], "labels": []}
    for lists in batches:
        for labelled in lists:
            columns["query"].append(collection.queries.texts[labelled.query_row])
            columns["docs"].append([collection.corpus.texts[row] for row in labelled.doc_rows])
            columns["labels"].append(labelled.labels.tolist())
    return columns


def pair_columns(batches: list[Lists], collection: Collection) -> dict[str, list[Any]]:
    """A row for each document of each list."""
    columns: dict[str, list[Any]] = {"query": [], "doc": [], "label": []}
    by_list = list_columns(batches, collection)
    for query, docs, labels in zip(*by_list.values(), strict=True):
        for doc, label in zip(docs, labels, strict=True):
            columns["query"].append(query)
            columns["doc"].append(doc)
            columns["label"].append(label)
    return columns


def values_of_split(
    ranker: PairWiseBertRanker, collection: Collection, split: str, measure: str
) -> np.ndarray:
    """The metric of each query with a relevant document, on the pools of the source."""
    pools = collection.pools(split, option="candidates")
    judged = collection.judgements(split).of_queries(pools.query_rows)
    lists = [judged.labelled(row, pools.of(row)[0]) for row in pools.query_rows.tolist()]
    scores = TextScorer("", ranker, collection).score_lists(lists)
    ranked = pools._replace(values=np.concatenate(scores)).best_first()
    (values,) = values_by_query(ranked, judged, [RankingMetric(measure)])
    return values[~np.isnan(values)]


class Side(NamedTuple):
    """What a side has reached with a loss."""

    values: np.ndarray  # of the test queries, [S, Q]
    lr: float


def best_on_dev(
    name: str,
    train: Callable[..., PairWiseBertRanker],
    loss: str,
    recipe: Recipe,
    collection: Collection,
    options: Namespace,
) -> Side:
    """A side with the learning rate that is best on dev, by the first seed."""
    rankers: dict[tuple[float, int], PairWiseBertRanker] = {}  # by rate and seed

    def ranker(lr: float, seed: int) -> PairWiseBertRanker:
        if (lr, seed) not in rankers:
            batches = batches_of_all_epochs(collection, options, seed)
            rankers[lr, seed] = train(recipe, batches, collection, options, lr, seed)
        return rankers[lr, seed]

    best = options.lr[0]
    if len(options.lr) > 1:
        on_dev = {}
        for lr in options.lr:
            values = values_of_split(
                ranker(lr, options.seeds[0]), collection, "dev", options.measure
            )
            on_dev[lr] = values.mean()
        best = max(on_dev, key=on_dev.__getitem__)
    by_seed = []
    for seed in options.seeds:
        values = values_of_split(ranker(best, seed), collection, "test", options.measure)
        by_seed.append(values)
        print(
            f"{loss}, {name}, lr {best:g}, seed {seed}: {values.mean():.4f}",
            file=sys.stderr,
            flush=True,
        )
    return Side(np.stack(by_seed), best)


def main() -> None:
    """Read the options, train, print the table."""
    arguments = parser(__doc__)
    add_data(arguments, WIKIQA)
    add_backbone(arguments)
    arguments.add_argument("--losses", nargs="+", help="names of rows; all by default")
    arguments.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    arguments.add_argument(
        "--lr",
        nargs="+",
        type=float,
        default=[1e-4, 2e-4],
        help="the best one on dev is taken, by the first seed",
    )
    arguments.add_argument(
        "--examples", type=int, default=100000, help="training lists of an epoch at most"
    )
    arguments.add_argument("--epochs", type=int, default=2)
    arguments.add_argument("--negatives", type=int, default=5)
    arguments.add_argument("--batch", type=int, default=16)
    arguments.add_argument("--max-length", type=int, default=96)
    arguments.add_argument("--measure", default="AP")
    options = arguments.parse_args()
    if options.tiny:
        options.seeds = [0, 1]
        options.lr = [1e-3]
        options.examples = 2
        options.epochs = 1
        options.batch = 2
        options.losses = ["RankNet", "softmax"]
        options.negatives = 2
        options.max_length = 16
    chosen = recipes()
    if options.losses:
        unknown = set(options.losses) - set(chosen)
        if unknown:
            arguments.error(f"there is no loss {sorted(unknown)}, but {', '.join(chosen)}")
        chosen = {name: recipe for name, recipe in chosen.items() if name in options.losses}
    silence()
    print(f"{options.data}; {machine_line()}\n")
    collection = open_collection(options.data)
    columns = [
        "loss",
        f"ltr, {options.measure}",
        "lr",
        "sentence-transformers",
        "lr",
        "difference",
        "p",
        "p of these models",
    ]
    print(head(columns))
    for name, recipe in chosen.items():
        ours = best_on_dev("ltr", train_ours, name, recipe, collection, options)
        cells = [name, spread(ours.values), f"{ours.lr:g}"]
        absent = absent_peers()
        if absent:
            cells += [f"{', '.join(absent)} absent", "", "", "", ""]
        elif recipe.theirs is None:
            cells += ["has none", "", "", "", ""]
        else:
            theirs = best_on_dev(
                "sentence-transformers", train_theirs, name, recipe, collection, options
            )
            cells += [spread(theirs.values), f"{theirs.lr:g}"]
            cells += difference_cells(ours.values, theirs.values)
        print(row(cells), flush=True)
    how = f"{options.epochs} epochs of lists of 1 + {options.negatives}, batches of {options.batch}"
    print(
        f"\nMean ± deviation over seeds {options.seeds}; {how}, "
        f"{options.max_length} tokens at most."
    )


def difference_cells(ours: np.ndarray, theirs: np.ndarray) -> list[str]:
    """The difference with its interval; p over queries and seeds, and over queries alone."""
    difference = estimate(ours, theirs)
    low, high = difference.interval()
    p_models = randomisation_p((ours - theirs).mean(axis=0))
    return [
        f"{difference.mean:+.4f} ({low:+.4f} to {high:+.4f})",
        f"{difference.p:.3f}",
        f"{p_models:.3f}",
    ]


def spread(values: np.ndarray) -> str:
    """Mean ± deviation over the seeds."""
    means = values.mean(axis=1)
    mean = f"{means.mean():.4f}"
    if len(means) == 1:
        return mean
    return f"{mean} ± {means.std(ddof=1):.4f}"


if __name__ == "__main__":
    main()
