"""How good are dual encoders trained by ltr and by sentence-transformers on the same batches?
python benchmarks/quality_dual.py

One epoch over the same pairs in the same order, from the same weights, with AdamW, the same decay,
warm-up and learning rate, all of the encoder's dropout, and no gradient clipping. Two differences
remain: the draw of dropout, and ltr's masks, which leave out a query's other judged documents and
repeated ones (sentence-transformers takes them for irrelevant). ``--exact`` trains without dropout:
then only the masks and rounding differ. Both models are measured by the same code, theirs from the
folder that it saves; a row has the difference, seed by seed.

Wants ``pip install -e '.[bench]'``.
"""

import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from harness.machine import machine_line
from harness.options import MEDQUAD, add_backbone, add_data, parser
from harness.sides import check_lengths
from harness.trainers import absent_peers, quiet_trainer, silence, training_arguments
from lightning.pytorch import seed_everything
from torch import nn
from torch.utils.data import DataLoader

from ltr.data.collection import Collection
from ltr.data.query_lists import LabelledList
from ltr.datamodules import Evaluation, PoolDataModule
from ltr.in_batch import AllTexts, InBatch, OtherQueries, OwnLists
from ltr.losses import (
    BatchAllTripletLoss,
    BatchHardTripletLoss,
    Loss,
    MarginRankingLoss,
    SoftmaxLoss,
)
from ltr.models import DualEncoder
from ltr.models.encoder.loading.pretrained import resolve
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.module import RankerModule

LR = 5e-5
WARM_UP = 0.1
DECAY = 0.01
MARGIN = 0.3
SCALE = 20.0
MEASURES = ["nDCG@10", "RR@10", "AP", "R@100"]


class Recipe(NamedTuple):
    """One loss on both sides.

    Attributes:
        loss: ours.
        in_batch: what a row is ranked against.
        ranker: options of the dual encoder.
        theirs: makes the loss of sentence-transformers for a model.
        columns: what sentence-transformers reads: ``pairs``, ``triplets`` or ``labels``.
        own: whether each row has a negative of its own.
    """

    loss: Loss
    in_batch: type[InBatch]
    ranker: dict[str, Any]
    theirs: Callable[[nn.Module], nn.Module]
    columns: Literal["pairs", "triplets", "labels"]
    own: bool = False


class Pair(NamedTuple):
    """The metrics of both sides under one seed; None for a side that cannot run."""

    ours: np.ndarray
    theirs: np.ndarray | None


def recipes() -> dict[str, Recipe]:
    """The losses that both have."""
    from sentence_transformers.sentence_transformer import losses
    from sentence_transformers.util import pairwise_cos_sim

    def cosine_distance(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return 1 - pairwise_cos_sim(x, y)

    triplets = AllTexts, {"similarity": "euclidean"}
    return {
        "in-batch softmax": Recipe(
            SoftmaxLoss(),
            OtherQueries,
            {"temperature": 1 / SCALE},
            lambda model: losses.MultipleNegativesRankingLoss(model, scale=SCALE),
            "pairs",
        ),
        "batch-all": Recipe(
            BatchAllTripletLoss(margin=MARGIN),
            *triplets,
            lambda model: losses.BatchAllTripletLoss(model, margin=MARGIN),
            "labels",
        ),
        "batch-hard": Recipe(
            BatchHardTripletLoss(margin=MARGIN),
            *triplets,
            lambda model: losses.BatchHardTripletLoss(model, margin=MARGIN),
            "labels",
        ),
        "margin ranking": Recipe(
            MarginRankingLoss(margin=MARGIN),
            OwnLists,
            {},
            lambda model: losses.TripletLoss(
                model, distance_metric=cosine_distance, triplet_margin=MARGIN
            ),
            "triplets",
            own=True,
        ),
    }


def batches(
    collection: Collection, examples: int, batch: int, own: bool, seed: int
) -> list[list[LabelledList]]:
    """One epoch: each query with a relevant document, and one of the others drawn at random if it
    shall have its own.
    """
    judged = collection.judgements("train")
    rng = np.random.default_rng([seed, 7])
    lists = []
    for query_row in rng.permutation(judged.query_rows):
        doc_rows, grades = judged.of(query_row)
        relevant = np.flatnonzero(grades > 0)
        if not len(relevant):
            continue
        chosen = [doc_rows[rng.choice(relevant)]]
        labels = [1.0]
        while own and len(chosen) < 2:
            other = rng.integers(len(collection.corpus))
            if other not in doc_rows[relevant]:
                chosen = [*chosen, other]
                labels = [1.0, 0.0]
        labels = np.asarray(labels, np.float32)
        lists.append(
            LabelledList(
                int(query_row),
                np.asarray(chosen),
                labels,
                judged_rows=doc_rows,
                judged_grades=grades,
            )
        )
        if len(lists) == examples:
            break
    return [lists[at : at + batch] for at in range(0, len(lists) - batch + 1, batch)]


def train_ours(
    recipe: Recipe,
    epoch: list[list[LabelledList]],
    data: PoolDataModule,
    options: Namespace,
    seed: int,
) -> RankerModule:
    """The module under Lightning's Trainer, with these batches."""
    seed_everything(seed, verbose=False)
    encoder = TextEncoder.Options(dropout="none" if options.exact else "own")
    ranker = DualEncoder(
        options.backbone, max_length=options.max_length, encoder=encoder, **recipe.ranker
    )
    rates = {"lr": LR, "warmup": WARM_UP, "weight_decay": DECAY}
    module = RankerModule(
        ranker, recipe.loss, in_batch=recipe.in_batch(), **rates, metrics=MEASURES
    )
    data.trainer = None  # of the last test
    data.setup("test")
    loader = DataLoader(epoch, batch_size=None, collate_fn=data.collator)
    quiet_trainer(max_epochs=1).fit(module, loader)
    return module


def train_theirs(
    recipe: Recipe,
    epoch: list[list[LabelledList]],
    data: PoolDataModule,
    options: Namespace,
    seed: int,
    folder: Path,
) -> str:
    """A SentenceTransformerTrainer on the same tokens; returns the folder of the trained model."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from transformers import PrinterCallback

    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = SentenceTransformer(
        resolve(options.backbone), device="cpu", config_kwargs=no_dropout if options.exact else None
    )
    model.max_seq_length = options.max_length
    rows = [one for lists in epoch for one in lists]
    queries = [data.collection.queries.texts[one.query_row] for one in rows]
    docs = [[data.collection.corpus.texts[row] for row in one.doc_rows] for one in rows]
    doc_rows = np.concatenate([one.doc_rows for one in rows])
    for form, store, texts, at in [
        (
            data.collator.forms.queries,
            data.collator.queries,
            queries,
            [one.query_row for one in rows],
        ),
        (
            data.collator.forms.docs,
            data.collator.docs,
            [text for found in docs for text in found],
            doc_rows,
        ),
    ]:
        check_lengths(model, texts, form.lengths(store.lengths(np.asarray(at))))
    if recipe.columns == "labels":
        texts = [
            text for query, found in zip(queries, docs, strict=True) for text in (query, *found)
        ]
        columns = {"text": texts, "label": np.repeat(np.arange(len(rows)), 2)}
    else:
        names = ("positive", "negative")[: len(docs[0])]
        columns = {"anchor": queries} | {
            name: [found[i] for found in docs] for i, name in enumerate(names)
        }
    size = len(epoch[0]) * (2 if recipe.columns == "labels" else 1)
    settings = SentenceTransformerTrainingArguments(
        **training_arguments(folder, size, LR, WARM_UP, DECAY, seed)
    )
    trainer = SentenceTransformerTrainer(
        model=model,
        args=settings,
        train_dataset=Dataset.from_dict(columns),
        loss=recipe.theirs(model),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    model.save(str(folder / "model"), create_model_card=False)
    return str(folder / "model")


def measure(module: RankerModule, data: PoolDataModule) -> list[float]:
    """On the test split."""
    found = quiet_trainer().test(module, data, verbose=False)[0]
    return [found[f"test/{name}"] for name in MEASURES]


def main() -> None:
    """Read the options, train, print the table."""
    arguments = parser(__doc__)
    add_data(arguments, MEDQUAD)
    add_backbone(arguments)
    targets = ["corpus", "candidates"]
    arguments.add_argument(
        "--candidates",
        nargs="+",
        default=["corpus"],
        choices=targets,
        help="what the test queries search",
    )
    arguments.add_argument("--losses", nargs="+", help="names of rows; all by default")
    arguments.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    arguments.add_argument("--examples", type=int, default=100000, help="training pairs at most")
    arguments.add_argument("--batch", type=int, default=32)
    arguments.add_argument("--max-length", type=int, default=128)
    arguments.add_argument("--exact", action="store_true", help="no dropout")
    options = arguments.parse_args()
    if options.tiny:
        options.seeds = [0]
        options.examples = 2
        options.batch = 2
        options.max_length = 16
        options.losses = ["in-batch softmax"]
    chosen = {
        name: recipe
        for name, recipe in recipes().items()
        if not options.losses or name in options.losses
    }
    if unknown := set(options.losses or []) - set(chosen):
        arguments.error(f"there is no loss {sorted(unknown)}, but {', '.join(recipes())}")
    silence()
    print(f"{options.data}; {machine_line()}\n")
    compare(options, chosen)
    how = f"batches of {options.batch}, {options.max_length} tokens at most" + (
        ", no dropout" if options.exact else ""
    )
    print(
        f"\nMean ± standard deviation over seeds {options.seeds}; the difference is taken seed by seed. One epoch, {how}."
    )


def compare(options: Namespace, chosen: dict[str, Recipe]) -> None:
    """Train both sides under every seed, and print the rows; without the peer's modules, ours
    alone.
    """
    ranker = DualEncoder(options.backbone, max_length=options.max_length)
    untrained = RankerModule(ranker, SoftmaxLoss(), metrics=MEASURES)
    pools = {
        target: PoolDataModule(
            options.data,
            Evaluation(target, depth=100 if target == "corpus" else None, batch_size=32),
        )
        for target in options.candidates
    }
    for data in pools.values():
        data.reads = ranker.reads
    data = next(iter(pools.values()))
    print(
        f"| test queries search | loss | side | {' | '.join(MEASURES)} |\n|{' --- |' * (len(MEASURES) + 3)}"
    )
    for target, pool in pools.items():
        print(
            f"| {target} | none | untrained | {_spread([np.asarray(measure(untrained, pool))])} |",
            flush=True,
        )
    absent = absent_peers()
    found: dict[tuple[str, str], list[Pair]] = {
        (target, name): [] for target in pools for name in chosen
    }
    for seed, (name, recipe) in product(options.seeds, chosen.items()):
        epoch = batches(data.collection, options.examples, options.batch, recipe.own, seed)
        if not epoch:
            sys.exit(
                f"there are too few queries with a relevant document for a batch of {options.batch}"
            )
        ours = train_ours(recipe, epoch, data, options, seed)
        theirs = None
        if not absent:
            with tempfile.TemporaryDirectory() as folder:
                saved = train_theirs(recipe, epoch, data, options, seed, Path(folder))
                ranker = DualEncoder(saved, max_length=options.max_length, **recipe.ranker)
                theirs = RankerModule(ranker, SoftmaxLoss(), metrics=MEASURES)
        for target, pool in pools.items():
            pair = Pair(
                *(
                    None if module is None else np.asarray(measure(module, pool))
                    for module in (ours, theirs)
                )
            )
            found[target, name].append(pair)
            print(
                f"{target}, {name}, seed {seed}: {pair.ours} {pair.theirs}",
                file=sys.stderr,
                flush=True,
            )
    for (target, name), pairs in found.items():
        print(f"| {target} | {name} | ltr | {_spread([pair.ours for pair in pairs])} |")
        if absent:
            reason = f"{', '.join(absent)} absent (pip install -e '.[bench]')"
            print(
                f"| {target} | {name} | sentence-transformers | cannot run: {reason} |{' |' * (len(MEASURES) - 1)}"
            )
            continue
        print(
            f"| {target} | {name} | sentence-transformers | {_spread([pair.theirs for pair in pairs])} |"
        )
        print(
            f"| {target} | {name} | difference | {_spread([pair.ours - pair.theirs for pair in pairs], '+')} |"
        )


def _spread(values: list[np.ndarray], sign: str = "") -> str:
    """Cells of mean and standard deviation over the seeds."""
    deviations = (
        np.std(values, axis=0, ddof=1) if len(values) > 1 else np.full(len(values[0]), np.nan)
    )
    cells = zip(np.mean(values, axis=0), deviations, strict=True)
    return " | ".join(
        f"{mean:{sign}.4f}" + ("" if np.isnan(deviation) else f" ± {deviation:.4f}")
        for mean, deviation in cells
    )


if __name__ == "__main__":
    main()
