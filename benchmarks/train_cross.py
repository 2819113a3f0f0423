"""How fast does a cross-encoder train, ltr against sentence-transformers?  python
benchmarks/train_cross.py

16 queries with a relevant document and a random one each: 32 pairs a step, the same pairs on both
sides. Each side trains with its own trainer and data loader, dropout and AdamW as by default: ltr's
PairWiseBertRanker under RankNet, and a CrossEncoderTrainer under binary cross-entropy. By default
ltr reads the mean of the tokens, and sentence-transformers the first one, which ltr reads with
--pooling cls. harness/compare.py says what is measured, and how.

Wants ``pip install -e '.[bench]'``.
"""

from typing import TYPE_CHECKING

import numpy as np
from harness.compare import compare
from harness.meter import Meter
from harness.sides import Setting, Side, check_lengths, fit, load_options, tokenising_line, train

if TYPE_CHECKING:
    from ltr.data.layouts import JoinedPairs
    from ltr.datamodules import TripletDataModule

CHECKED = 512  # pairs
NEEDS = ("datasets", "accelerate")


def triplets(setting: Setting, reads: "JoinedPairs") -> "TripletDataModule":
    """A relevant document and a random one for each query."""
    from ltr.datamodules import Evaluation, Loading, TripletDataModule

    options = {
        "negatives": "random",
        "negatives_per_query": 1,
        "batch_size": setting.batch,
        "evaluation": Evaluation("bm25", depth=1),
        "loading": Loading(seed=0),
    }
    data = TripletDataModule(setting.data, **options)
    data.reads = reads
    return data


def prepare(setting: Setting) -> tuple[float, str]:
    """Save the pairs of our first epoch for sentence-transformers."""
    from ltr.data.layouts import JoinedPairs
    from ltr.models.encoder.loading.pretrained import load_tokenizer

    data = triplets(setting, JoinedPairs(load_tokenizer(setting.backbone), setting.max_length))
    data.setup("fit")
    plan = data.train.plan
    lists = [plan.rows.draw(0, row) for row in range(plan.n_rows)]  # of epoch 0
    lengths = np.concatenate([data.collator.costs(labelled) for labelled in lists])
    if setting.peers:
        save_pairs(setting, data, lists, lengths)
    return float(lengths.mean()), tokenising_line(
        data.collator.query_tokens, data.collator.doc_tokens
    )


def save_pairs(
    setting: Setting, data: "TripletDataModule", lists: list, lengths: np.ndarray
) -> None:
    """As a data set of sentence-transformers, which must find as many tokens in each pair."""
    from datasets import Dataset
    from sentence_transformers import CrossEncoder

    query_texts = data.collection.queries.texts
    doc_texts = data.collection.corpus.texts
    queries = []
    docs = []
    labels = []
    for labelled in lists:
        for doc_row, label in zip(labelled.doc_rows, labelled.labels, strict=True):
            queries.append(query_texts[labelled.query_row])
            docs.append(doc_texts[doc_row])
            labels.append(float(label > 0))
    pairs = Dataset.from_dict({"query": queries, "document": docs, "label": labels})
    pairs.save_to_disk(str(setting.folder / "pairs"))
    model = CrossEncoder(
        setting.backbone, num_labels=1, max_length=setting.max_length, device="cpu"
    )
    first_pairs = list(zip(queries, docs, strict=True))[:CHECKED]
    check_lengths(model, first_pairs, lengths[:CHECKED])


def ours(meter: Meter, setting: Setting, side: Side) -> None:
    """The module and the data module as a configuration would name them."""
    from ltr.losses import RankNetLoss
    from ltr.models import PairWiseBertRanker
    from ltr.models.encoder.text_encoder import TextEncoder
    from ltr.module import RankerModule

    options = TextEncoder.Options(pooling=setting.pooling, kernels=side.kernels)
    ranker = PairWiseBertRanker(setting.backbone, setting.max_length, encoder=options)
    meter.watch(ranker.encoder.model)
    fit(RankerModule(ranker, RankNetLoss()), triplets(setting, ranker.reads), meter, setting, side)


def theirs(meter: Meter, setting: Setting, side: Side) -> None:
    """As many pairs a step, in random order, tokenised on the fly."""
    from sentence_transformers.cross_encoder import (
        CrossEncoder,
        CrossEncoderTrainer,
        CrossEncoderTrainingArguments,
    )
    from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss

    model = CrossEncoder(
        setting.backbone, num_labels=1, max_length=setting.max_length, **load_options(setting, side)
    )
    meter.watch(model.transformers_model)
    train(
        trainer=CrossEncoderTrainer,
        arguments=CrossEncoderTrainingArguments,
        model=model,
        loss=BinaryCrossEntropyLoss(model),
        rows=setting.folder / "pairs",
        batch=2 * setting.batch,  # a query of ours has two pairs
        meter=meter,
        side=side,
    )


if __name__ == "__main__":
    compare(__doc__, prepare, theirs, ours, unit="pairs", batch=16, passes=3, needs=NEEDS)
