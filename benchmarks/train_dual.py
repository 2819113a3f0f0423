"""How fast does a dual encoder train, ltr against sentence-transformers?  python
benchmarks/train_dual.py

64 queries with a relevant document each, and the other documents of the batch as negatives: softmax
over 20 · cosine. Each side trains with its own trainer and data loader, dropout and AdamW as by
default: ltr's DualEncoder reads all texts of a batch in one pass, a SentenceTransformerTrainer has
MultipleNegativesRankingLoss. ``--cached --batch 1024`` takes batches that don't fit the memory at
once: ltr recomputes chunks in the backward pass, sentence-transformers has
CachedMultipleNegativesRankingLoss. harness/compare.py says what is measured, and how.

Wants ``pip install -e '.[bench]'``.
"""

from typing import TYPE_CHECKING

import numpy as np
from harness.compare import compare
from harness.meter import Meter
from harness.sides import Setting, Side, check_lengths, fit, load_options, tokenising_line, train

if TYPE_CHECKING:
    from ltr.datamodules import GroupDataModule

CHECKED = 256  # pairs
NEEDS = ("datasets", "accelerate")


def prepare(setting: Setting) -> tuple[float, str]:
    """Draw a relevant document for each query; save the texts for sentence-transformers."""
    from ltr.data.collection import open_collection
    from ltr.data.layouts import SingleTexts
    from ltr.data.tokens import TokenStore
    from ltr.models.encoder.loading.pretrained import load_tokenizer

    collection = open_collection(setting.data)
    judged = collection.judgements("train")
    rng = np.random.default_rng(0)
    query_rows = []
    doc_rows = []
    for query_row in judged.query_rows:
        docs, grades = judged.of(query_row)
        relevant = docs[grades > 0]
        if len(relevant):
            query_rows.append(query_row)
            doc_rows.append(rng.choice(relevant))
    tokenizer = load_tokenizer(setting.backbone)
    form = SingleTexts(tokenizer, setting.max_length)
    queries = TokenStore.open(collection.queries, tokenizer)
    docs = TokenStore.open(collection.corpus, tokenizer)
    query_lengths = form.lengths(queries.lengths(np.asarray(query_rows)))
    doc_lengths = form.lengths(docs.lengths(np.asarray(doc_rows)))
    if setting.peers:
        texts = {
            "anchor": [collection.queries.texts[row] for row in query_rows],
            "positive": [collection.corpus.texts[row] for row in doc_rows],
        }
        save_texts(setting, texts, [query_lengths, doc_lengths])
    tokens = query_lengths.sum() + doc_lengths.sum()
    return float(tokens / len(query_rows)), tokenising_line(queries, docs)


def save_texts(setting: Setting, texts: dict[str, list[str]], lengths: list[np.ndarray]) -> None:
    """As a data set of sentence-transformers, which must find as many tokens in each text."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer

    Dataset.from_dict(texts).save_to_disk(str(setting.folder / "pairs"))
    model = SentenceTransformer(setting.backbone, device="cpu")
    model.max_seq_length = setting.max_length
    for column, of_column in zip(texts.values(), lengths, strict=True):
        check_lengths(model, column[:CHECKED], of_column[:CHECKED])


def groups(setting: Setting) -> "GroupDataModule":
    """A query and one of its documents each."""
    from ltr.datamodules import Evaluation, GroupDataModule

    # No list is measured here, so that none is looked for: medquad-liveqa has pools for its test
    # split alone.
    searched = Evaluation("corpus", depth=10)
    return GroupDataModule(
        setting.data, groups=setting.batch, docs_per_group=1, evaluation=searched
    )


def ours(meter: Meter, setting: Setting, side: Side) -> None:
    """The softmax over groups of a query and one of its documents, drawn anew in every epoch."""
    from ltr.in_batch import OtherQueries
    from ltr.losses import SoftmaxLoss
    from ltr.models import DualEncoder
    from ltr.models.encoder.text_encoder import TextEncoder
    from ltr.module import RankerModule

    encoder = TextEncoder.Options(
        keep_tokens=0 if setting.cached else setting.keep_tokens, kernels=side.kernels
    )
    ranker = DualEncoder(
        setting.backbone, temperature=0.05, max_length=setting.max_length, encoder=encoder
    )
    meter.watch(ranker.query_tower.encoder.model)
    module = RankerModule(ranker, SoftmaxLoss(), in_batch=OtherQueries(), lr=5e-5)
    fit(module, groups(setting), meter, setting, side)


def theirs(meter: Meter, setting: Setting, side: Side) -> None:
    """Texts tokenised on the fly; the two columns are encoded one after the other."""
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import (
        CachedMultipleNegativesRankingLoss,
        MultipleNegativesRankingLoss,
    )

    model = SentenceTransformer(setting.backbone, **load_options(setting, side))
    model.max_seq_length = setting.max_length
    meter.watch(model.transformers_model)
    if setting.cached:
        loss = CachedMultipleNegativesRankingLoss(model)
    else:
        loss = MultipleNegativesRankingLoss(model)
    train(
        trainer=SentenceTransformerTrainer,
        arguments=SentenceTransformerTrainingArguments,
        model=model,
        loss=loss,
        rows=setting.folder / "pairs",
        batch=setting.batch,
        meter=meter,
        side=side,
    )


if __name__ == "__main__":
    compare(__doc__, prepare, theirs, ours, unit="pairs", batch=64, passes=3, needs=NEEDS)
