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
import torch
from harness.machine import machine_line
from harness.options import WIKIQA, add_backbone, add_data, parser
from harness.trainers import absent_peers, quiet_trainer, silence, training_arguments
from lightning.pytorch import seed_everything
from torch import nn
from torch.utils.data import DataLoader

from ltr.compare.statistics import estimate, randomisation_p
from ltr.data.collate import text_collator
from ltr.data.collection import Collection, open_collection
from ltr.data.query_lists import LabelledList, QueryLists
from ltr.losses import BCELoss, LambdaLoss, ListNetLoss, Loss, RankNetLoss, SoftmaxLoss
from ltr.metrics import RankingMetric
from ltr.mining.judge import Judge
from ltr.models import PairWiseBertRanker
from ltr.models.encoder.loading.pretrained import resolve
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


def epochs(collection: Collection, options: Namespace, seed: int) -> list[Lists]:
    """The batches of all epochs."""
    judged = collection.learnable("train")
    rng = np.random.default_rng([seed, 7])
    made = []
    for _ in range(options.epochs):
        lists = [
            one_list(judged, int(row), len(collection.corpus), options.negatives, rng)
            for row in judged.query_rows
        ]
        lists = [lists[at] for at in rng.permutation(len(lists))][: options.examples]
        made += [
            lists[at : at + options.batch]
            for at in range(0, len(lists) - options.batch + 1, options.batch)
        ]
    return made


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


def trained_by_us(
    recipe: Recipe,
    batches: list[Lists],
    collection: Collection,
    options: Namespace,
    lr: float,
    seed: int,
):
    """The ranker under Lightning's Trainer, with these batches."""
    seed_everything(seed, verbose=False)
    ranker = PairWiseBertRanker(options.backbone, max_length=options.max_length)
    module = RankerModule(ranker, recipe.loss, lr=lr, warmup=WARM_UP, weight_decay=DECAY)
    collator = text_collator(collection.queries, collection.corpus, ranker.reads)
    quiet_trainer(max_epochs=1).fit(
        module, DataLoader(batches, batch_size=None, collate_fn=collator)
    )
    return ranker


def trained_by_them(
    recipe: Recipe,
    batches: list[Lists],
    collection: Collection,
    options: Namespace,
    lr: float,
    seed: int,
):
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
    rows = [one for lists in batches for one in lists]
    texts: list[tuple[str, list[str], list[float]]] = [
        (
            collection.queries.texts[one.query_row],
            [collection.corpus.texts[row] for row in one.doc_rows],
            one.labels.tolist(),
        )
        for one in rows
    ]
    columns: dict[str, list[Any]]
    if recipe.pairs:
        columns = {
            "query": [query for query, docs, _ in texts for _ in docs],
            "doc": [doc for _, docs, _ in texts for doc in docs],
            "label": [label for _, _, labels in texts for label in labels],
        }
    else:
        columns = dict(
            zip(("query", "docs", "labels"), map(list, zip(*texts, strict=True)), strict=True)
        )
    with tempfile.TemporaryDirectory() as folder:
        size = options.batch * (options.negatives + 1 if recipe.pairs else 1)
        # One epoch: the rows are those of all epochs.
        settings = CrossEncoderTrainingArguments(
            **training_arguments(Path(folder), size, lr, WARM_UP, DECAY, seed)
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


def by_query(
    ranker: PairWiseBertRanker, collection: Collection, split: str, measure: str
) -> np.ndarray:
    """The metric of each query with a relevant document, on the pools of the source."""
    pools = collection.pools(split, "candidates")
    judged = collection.judgements(split)
    metric = RankingMetric(measure)
    lists = [judged.labelled(int(row), pools.of(int(row))[0]) for row in pools.query_rows]
    found = []
    for one, scores in zip(lists, Judge("", ranker, collection).score_lists(lists), strict=True):
        parts = (scores, one.labels, np.ones(len(scores), dtype=bool), one.doc_rows)
        found.append(float(metric.per_query(*(torch.from_numpy(part)[None] for part in parts))))
    return np.asarray([value for value in found if not np.isnan(value)])


def side(
    name: str,
    train: Callable[..., PairWiseBertRanker],
    loss: str,
    recipe: Recipe,
    data: Collection,
    options: Namespace,
):
    """Test values ``[S, Q]`` with the learning rate that is best on dev, and that rate."""
    made: dict[tuple[float, int], PairWiseBertRanker] = {}

    def ranker(lr: float, seed: int) -> PairWiseBertRanker:
        if (lr, seed) not in made:
            made[lr, seed] = train(recipe, epochs(data, options, seed), data, options, lr, seed)
        return made[lr, seed]

    first = options.seeds[0]
    rates = options.lr
    on_dev = (
        {lr: by_query(ranker(lr, first), data, "dev", options.measure).mean() for lr in rates}
        if len(rates) > 1
        else {}
    )
    chosen = max(on_dev, key=lambda lr: on_dev[lr]) if on_dev else rates[0]
    values = []
    for seed in options.seeds:
        values.append(by_query(ranker(chosen, seed), data, "test", options.measure))
        print(
            f"{loss}, {name}, lr {chosen:g}, seed {seed}: {values[-1].mean():.4f}",
            file=sys.stderr,
            flush=True,
        )
    return np.stack(values), chosen


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
    chosen = {
        name: recipe
        for name, recipe in recipes().items()
        if not options.losses or name in options.losses
    }
    if unknown := set(options.losses or []) - set(chosen):
        arguments.error(f"there is no loss {sorted(unknown)}, but {', '.join(recipes())}")
    silence()
    print(f"{options.data}; {machine_line()}\n")
    data = open_collection(options.data)
    absent = absent_peers()
    heads = (
        "loss",
        f"ltr, {options.measure}",
        "lr",
        "sentence-transformers",
        "lr",
        "difference",
        "p",
        "p of these models",
    )
    print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for name, recipe in chosen.items():
        ours, lr = side("ltr", trained_by_us, name, recipe, data, options)
        cells = [name, spread(ours), f"{lr:g}"]
        if recipe.theirs is None or absent:
            cells += [f"{', '.join(absent)} absent" if absent else "has none", *[""] * 4]
        else:
            theirs, lr = side("sentence-transformers", trained_by_them, name, recipe, data, options)
            found = estimate(ours, theirs)
            models = randomisation_p((ours - theirs).mean(axis=0))
            low, high = found.interval()
            difference = f"{found.mean:+.4f} ({low:+.4f} to {high:+.4f})"
            cells += [spread(theirs), f"{lr:g}", difference, f"{found.p:.3f}", f"{models:.3f}"]
        print(f"| {' | '.join(cells)} |", flush=True)
    how = f"{options.epochs} epochs of lists of 1 + {options.negatives}, batches of {options.batch}"
    print(
        f"\nMean ± deviation over seeds {options.seeds}; {how}, {options.max_length} tokens at most."
    )


def spread(values: np.ndarray) -> str:
    """Mean ± deviation over the seeds."""
    means = values.mean(axis=1)
    return f"{means.mean():.4f}" + (f" ± {means.std(ddof=1):.4f}" if len(means) > 1 else "")


if __name__ == "__main__":
    main()
