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
from harness.tables import head
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
from ltr.models.encoder.loading.model_folder import resolve
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
        has_negative: whether each row has a negative of its own.
    """

    loss: Loss
    in_batch: type[InBatch]
    ranker: dict[str, Any]
    theirs: Callable[[nn.Module], nn.Module]
    columns: Literal["pairs", "triplets", "labels"]
    has_negative: bool = False


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

    return {
        "in-batch softmax": Recipe(
            loss=SoftmaxLoss(),
            in_batch=OtherQueries,
            ranker={"temperature": 1 / SCALE},
            theirs=lambda model: losses.MultipleNegativesRankingLoss(model, scale=SCALE),
            columns="pairs",
        ),
        "batch-all": Recipe(
            loss=BatchAllTripletLoss(margin=MARGIN),
            in_batch=AllTexts,
            ranker={"similarity": "euclidean"},
            theirs=lambda model: losses.BatchAllTripletLoss(model, margin=MARGIN),
            columns="labels",
        ),
        "batch-hard": Recipe(
            loss=BatchHardTripletLoss(margin=MARGIN),
            in_batch=AllTexts,
            ranker={"similarity": "euclidean"},
            theirs=lambda model: losses.BatchHardTripletLoss(model, margin=MARGIN),
            columns="labels",
        ),
        "margin ranking": Recipe(
            loss=MarginRankingLoss(margin=MARGIN),
            in_batch=OwnLists,
            ranker={},
            theirs=lambda model: losses.TripletLoss(
                model, distance_metric=cosine_distance, triplet_margin=MARGIN
            ),
            columns="triplets",
            has_negative=True,
        ),
    }


def batches(
    collection: Collection, examples: int, batch: int, has_negative: bool, seed: int
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
        while has_negative and len(chosen) < 2:
            other = rng.integers(len(collection.corpus))
            if other not in doc_rows[relevant]:
                chosen.append(other)
                labels.append(0.0)
        lists.append(
            LabelledList(
                int(query_row),
                np.asarray(chosen),
                np.asarray(labels, np.float32),
                known_rows=doc_rows,
                known_grades=grades,
            )
        )
        if len(lists) == examples:
            break
    begins = range(0, len(lists) - batch + 1, batch)
    return [lists[begin : begin + batch] for begin in begins]


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
    data.trainer = None  # not that of the last test
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
    labelled_lists = [labelled for lists in epoch for labelled in lists]
    query_rows = [labelled.query_row for labelled in labelled_lists]
    doc_rows = [labelled.doc_rows for labelled in labelled_lists]
    queries = [data.collection.queries.texts[row] for row in query_rows]
    docs = [[data.collection.corpus.texts[row] for row in of_list] for of_list in doc_rows]
    all_docs = [doc for of_list in docs for doc in of_list]
    collator = data.collator
    query_lengths = collator.query_tokens.lengths(np.asarray(query_rows))
    doc_lengths = collator.doc_tokens.lengths(np.concatenate(doc_rows))
    check_lengths(model, queries, collator.layouts.queries.lengths(query_lengths))
    check_lengths(model, all_docs, collator.layouts.docs.lengths(doc_lengths))
    n_rows = len(epoch[0])
    if recipe.columns == "labels":
        texts = []
        for query, of_list in zip(queries, docs, strict=True):
            texts += [query, *of_list]
        # A query and its document are alike; all other texts are not.
        columns = {"text": texts, "label": np.repeat(np.arange(len(queries)), 2)}
        n_rows = 2 * n_rows
    else:
        columns = {"anchor": queries, "positive": [of_list[0] for of_list in docs]}
        if recipe.columns == "triplets":
            columns["negative"] = [of_list[1] for of_list in docs]
    settings = SentenceTransformerTrainingArguments(
        **training_arguments(folder, n_rows, LR, WARM_UP, DECAY, seed)
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
    (metrics,) = quiet_trainer().test(module, data, verbose=False)
    return [metrics[f"test/{name}"] for name in MEASURES]


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
    chosen = recipes()
    if options.losses:
        unknown = set(options.losses) - set(chosen)
        if unknown:
            arguments.error(f"there is no loss {sorted(unknown)}, but {', '.join(chosen)}")
        chosen = {name: recipe for name, recipe in chosen.items() if name in options.losses}
    silence()
    print(f"{options.data}; {machine_line()}\n")
    compare(options, chosen)
    how = f"batches of {options.batch}, {options.max_length} tokens at most"
    if options.exact:
        how += ", no dropout"
    print(
        f"\nMean ± standard deviation over seeds {options.seeds}; "
        f"the difference is taken seed by seed. One epoch, {how}."
    )


def compare(options: Namespace, chosen: dict[str, Recipe]) -> None:
    """Train both sides under every seed, and print the rows; without the peer's modules, ours
    alone.
    """
    ranker = DualEncoder(options.backbone, max_length=options.max_length)
    untrained = RankerModule(ranker, SoftmaxLoss(), metrics=MEASURES)
    pools = {}
    for target in options.candidates:
        depth = 100 if target == "corpus" else None
        pools[target] = PoolDataModule(options.data, Evaluation(target, depth=depth, batch_size=32))
        pools[target].reads = ranker.reads
    data = next(iter(pools.values()))  # all have the same training queries
    print(head(["test queries search", "loss", "side", *MEASURES]))
    for target, pool in pools.items():
        values = np.asarray(measure(untrained, pool))
        print(f"| {target} | none | untrained | {_spread([values])} |", flush=True)
    absent = absent_peers()
    pairs_of: dict[tuple[str, str], list[Pair]] = {}  # by target and loss: of each seed
    for target in pools:
        for name in chosen:
            pairs_of[target, name] = []
    for seed, (name, recipe) in product(options.seeds, chosen.items()):
        epoch = batches(data.collection, options.examples, options.batch, recipe.has_negative, seed)
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
                ours=np.asarray(measure(ours, pool)),
                theirs=None if theirs is None else np.asarray(measure(theirs, pool)),
            )
            pairs_of[target, name].append(pair)
            print(
                f"{target}, {name}, seed {seed}: {pair.ours} {pair.theirs}",
                file=sys.stderr,
                flush=True,
            )
    for (target, name), pairs in pairs_of.items():
        _print_rows(f"| {target} | {name}", pairs, absent)


def _print_rows(begin: str, pairs: list[Pair], absent: list[str]) -> None:
    """The rows of both sides and of their difference, over the seeds."""
    print(f"{begin} | ltr | {_spread([pair.ours for pair in pairs])} |")
    if absent:
        reason = f"{', '.join(absent)} absent (pip install -e '.[bench]')"
        empty = " |" * (len(MEASURES) - 1)
        print(f"{begin} | sentence-transformers | cannot run: {reason} |{empty}")
        return
    differences = [pair.ours - pair.theirs for pair in pairs]
    print(f"{begin} | sentence-transformers | {_spread([pair.theirs for pair in pairs])} |")
    print(f"{begin} | difference | {_spread(differences, sign='+')} |")


def _spread(values: list[np.ndarray], sign: str = "") -> str:
    """Cells of mean and standard deviation over the seeds."""
    cells = [f"{mean:{sign}.4f}" for mean in np.mean(values, axis=0)]
    if len(values) > 1:
        deviations = np.std(values, axis=0, ddof=1)
        cells = [
            f"{mean} ± {deviation:.4f}" for mean, deviation in zip(cells, deviations, strict=True)
        ]
    return " | ".join(cells)


if __name__ == "__main__":
    main()
