"""How fast are documents embedded, ltr against sentence-transformers?  python benchmarks/encode.py

A step embeds 16 batches of documents of the corpus, drawn at random, the same on both sides, whose
embeddings must agree. sentence-transformers tokenises within the step. ltr has tokenised the corpus
before: of that time the step gets the share of its documents, by their tokens before they are cut.
harness/compare.py says what is measured, and how.
"""

import json
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from harness.compare import compare
from harness.meter import Meter
from harness.sides import Setting, Side, fastest_attention, tokenising_line

if TYPE_CHECKING:
    from ltr.data.layouts import SingleTexts
    from ltr.data.tokens import TokenStore
    from ltr.models.encoder.text_encoder import TextEncoder

BATCHES = 16  # of a step
CHECKED = 64  # documents, against sentence-transformers
# Of the comparison of bf16 with float32:
SEARCHED = 1000  # documents
QUERIES = 100  # of these documents, which search the others
DEPTH = 100


class Encoding(NamedTuple):
    """What embeds the corpus: the encoder on the CPU, its tokens, and how texts are laid out."""

    encoder: "TextEncoder"
    store: "TokenStore"
    form: "SingleTexts"

    def embed(self, rows: np.ndarray) -> np.ndarray:
        """The documents of these rows, embedded."""
        from ltr.search.embed_texts import encode_in_memory

        return encode_in_memory(self.encoder, self.store, self.form, rows)


def rows_of_steps(setting: Setting, n_docs: int) -> list[np.ndarray]:
    """Rows of the documents of every step: the same on all sides."""
    rng = np.random.default_rng(0)
    size = min(n_docs, BATCHES * setting.batch)
    n_steps = setting.warm_up + setting.turns * setting.steps
    return [rng.choice(n_docs, size, replace=False) for _ in range(n_steps)]


def prepare(setting: Setting) -> tuple[float, str]:
    """Tokenise, and compare the embeddings of some documents in float32."""
    from sentence_transformers import SentenceTransformer

    from ltr.data.collection import open_collection

    corpus = open_collection(setting.data).corpus
    encoding = our_encoding(setting)
    rows = np.random.default_rng(1).choice(len(corpus), min(len(corpus), CHECKED), replace=False)
    embeddings = encoding.embed(rows)
    model = SentenceTransformer(setting.backbone, device="cpu")
    model.max_seq_length = setting.max_length
    expected = model.encode([corpus.texts[row] for row in rows], show_progress_bar=False)
    cosine = cosines(embeddings, expected)
    assert cosine.min() > 0.999, f"the sides' embeddings differ: a cosine of {cosine.min():.4f}"
    store = encoding.store
    lengths = encoding.form.lengths(store.lengths(np.arange(len(store))))
    line = tokenising_line(store)
    if setting.precision == "bf16":
        line += f"; {agreement(setting)}"
    return float(lengths.mean()), line


def agreement(setting: Setting) -> str:
    """How near embeddings in bf16 are to those in float32, and how many documents both find for the
    same query.
    """
    import torch

    encoding = our_encoding(setting)
    encoding.encoder.to(setting.device)
    n_docs = len(encoding.store)
    rows = np.random.default_rng(2).choice(n_docs, min(n_docs, SEARCHED), replace=False)
    exact = encoding.embed(rows)
    with torch.autocast(setting.device, torch.bfloat16):
        half = encoding.embed(rows)
    depth = min(DEPTH, len(rows))
    overlaps = []
    for by_exact, by_half in zip(nearest(exact, depth), nearest(half, depth), strict=True):
        overlaps.append(len(np.intersect1d(by_exact, by_half)) / depth)
    lowest = cosines(exact, half).min()
    return (
        f"in bf16 cosines to float32 are {lowest:.5f} or more, "
        f"and {np.mean(overlaps):.1%} of the first {depth} documents are the same"
    )


def nearest(embeddings: np.ndarray, depth: int) -> np.ndarray:
    """``[Q, depth]``: for the first documents as queries, the documents of the highest scores."""
    scores = embeddings[:QUERIES] @ embeddings.T
    return np.argsort(-scores, axis=1)[:, :depth]


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Row by row."""
    return (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def our_encoding(setting: Setting, kernels: str = "auto") -> Encoding:
    """Tokenise the corpus, unless it was done before, and load the encoder."""
    from ltr.data.collection import open_collection
    from ltr.data.layouts import SingleTexts
    from ltr.data.tokens import TokenStore
    from ltr.models.encoder.loading.pretrained import load_encoder, load_tokenizer
    from ltr.models.encoder.text_encoder import TextEncoder

    tokenizer = load_tokenizer(setting.backbone)
    model, _ = load_encoder(setting.backbone, dropout="none")
    options = TextEncoder.Options(kernels=kernels)
    return Encoding(
        encoder=TextEncoder(model, tokenizer.pad_token_id, options=options),
        store=TokenStore.open(open_collection(setting.data).corpus, tokenizer),
        form=SingleTexts(tokenizer, setting.max_length),
    )


def ours(meter: Meter, setting: Setting, side: Side) -> None:
    """From the token store to an array."""
    import torch

    encoding = our_encoding(setting, side.kernels)
    encoding.encoder.to(setting.device)
    meter.watch(encoding.encoder.model)
    store = encoding.store
    manifest = json.loads((store.folder / "manifest.json").read_text())
    seconds_per_token = manifest["seconds"] / manifest["tokens"]
    for rows in rows_of_steps(setting, len(store)):
        with torch.autocast(setting.device, torch.bfloat16, enabled=side.precision == "bf16"):
            encoding.embed(rows)
        meter.step_ended(extra=seconds_per_token * store.lengths(rows).sum())


def theirs(meter: Meter, setting: Setting, side: Side) -> None:
    """From texts in memory to an array."""
    import torch
    from sentence_transformers import SentenceTransformer

    from ltr.data.collection import open_collection

    options = {"dtype": torch.bfloat16} if side.precision == "bf16" else {}
    if side.tuned:
        options["attn_implementation"] = fastest_attention(setting, side)
    model = SentenceTransformer(setting.backbone, device=setting.device, model_kwargs=options)
    model.max_seq_length = setting.max_length
    meter.watch(model.transformers_model)
    corpus = open_collection(setting.data).corpus
    steps = [[corpus.texts[row] for row in rows] for rows in rows_of_steps(setting, len(corpus))]
    for texts in steps:
        model.encode(texts, batch_size=setting.batch, show_progress_bar=False)
        meter.step_ended()


if __name__ == "__main__":
    compare(__doc__, prepare, theirs, ours, unit="documents", batch=32, passes=1)
