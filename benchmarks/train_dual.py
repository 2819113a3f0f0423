"""Train a dual encoder, ltr against sentence-transformers: python benchmarks/train_dual.py

64 queries with a relevant document each, and the other documents of the batch as negatives: softmax over 20 · cosine. Each side
trains with its own trainer and data loader, dropout and AdamW as by default: ltr's TextEncoder reads all texts of a batch in one
pass, a SentenceTransformerTrainer has MultipleNegativesRankingLoss. What is measured, and how, stands in sides.py.

Wants ``pip install 'sentence-transformers[train]' 'datasets < 5'``.
"""

import numpy as np
from meter import Meter
from sides import Setting, Side, check_lengths, compare, fit, load_options, tokenising, train

CHECKED = 256  # pairs


def prepare(setting: Setting) -> tuple[float, str]:
    """Draw a relevant document for each query; save the rows for us, and the texts for sentence-transformers."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer

    from ltr.data.collection import open_collection
    from ltr.data.formats import SingleTexts
    from ltr.data.tokens import TokenStore
    from ltr.models.backbone import load_tokenizer

    collection = open_collection(setting.data)
    judged, rng = collection.judgements("train"), np.random.default_rng(0)
    relevant = {row: docs[grades > 0] for row in judged.query_rows for docs, grades in [judged.of(row)]}
    rows = np.asarray([(row, rng.choice(docs)) for row, docs in relevant.items() if len(docs)])
    np.save(setting.folder / "pairs.npy", rows)
    tables = {"anchor": collection.queries, "positive": collection.corpus}
    texts = {name: [table.texts[row] for row in column] for (name, table), column in zip(tables.items(), rows.T, strict=True)}
    Dataset.from_dict(texts).save_to_disk(str(setting.folder / "pairs"))

    tokenizer = load_tokenizer(setting.backbone)
    stores = [TokenStore.open(table, tokenizer) for table in tables.values()]
    form = SingleTexts(tokenizer, setting.max_length)
    model = SentenceTransformer(setting.backbone, device="cpu")
    model.max_seq_length = setting.max_length
    total = 0
    for store, column, text in zip(stores, rows.T, texts.values(), strict=True):
        lengths = form.lengths(store.lengths(column))
        check_lengths(model, text[:CHECKED], lengths[:CHECKED])
        total += lengths.sum()
    return float(total / len(rows)), tokenising(*stores)


def ours(meter: Meter, setting: Setting, side: Side) -> None:
    """A plain LightningModule around the encoder."""
    import torch
    from lightning import LightningModule
    from torch import Tensor
    from torch.nn import functional as F
    from torch.utils.data import DataLoader

    from ltr.batch import Texts
    from ltr.data.collection import open_collection
    from ltr.data.formats import SingleTexts
    from ltr.data.tokens import TokenStore
    from ltr.models.backbone import load_encoder, load_tokenizer
    from ltr.models.text_encoder import TextEncoder

    class DualEncoder(LightningModule):
        def __init__(self, encoder: TextEncoder) -> None:
            super().__init__()
            self.encoder = encoder
            self.train()

        def training_step(self, texts: Texts) -> Tensor:
            queries, docs = F.normalize(self.encoder(texts)).chunk(2)
            return F.cross_entropy(20 * queries @ docs.T, torch.arange(len(queries), device=queries.device))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=5e-5, fused=True)

    tokenizer = load_tokenizer(setting.backbone)
    collection, form = open_collection(setting.data), SingleTexts(tokenizer, setting.max_length)
    queries, docs = (TokenStore.open(table, tokenizer) for table in (collection.queries, collection.corpus))

    def laid_out(pairs: list[np.ndarray]) -> Texts:
        """The queries of some pairs of rows, then their documents."""
        query_rows, doc_rows = np.stack(pairs).T
        sides = form.texts(queries, query_rows), form.texts(docs, doc_rows)
        return Texts(*(None if parts[0] is None else torch.cat(parts) for parts in zip(*sides, strict=True)))

    model, _ = load_encoder(setting.backbone)
    meter.watch(model)
    module = DualEncoder(TextEncoder(model, tokenizer.pad_token_id, pooling="mean"))
    rows = np.load(setting.folder / "pairs.npy")
    pin = setting.device == "cuda"
    fit(module, DataLoader(rows, setting.batch, shuffle=True, collate_fn=laid_out, pin_memory=pin), meter, setting, side)


def theirs(meter: Meter, setting: Setting, side: Side) -> None:
    """Texts tokenised on the fly; the two columns are encoded one after the other."""
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    model = SentenceTransformer(setting.backbone, **load_options(setting, side))
    model.max_seq_length = setting.max_length
    meter.watch(model.transformers_model)
    loss = MultipleNegativesRankingLoss(model)
    pairs, batch = setting.folder / "pairs", setting.batch
    train(SentenceTransformerTrainer, SentenceTransformerTrainingArguments, model, loss, pairs, batch, meter, side)


if __name__ == "__main__":
    compare(__doc__, prepare, theirs, ours, unit="pairs", batch=64, passes=3)
