"""How fast are documents embedded, ltr against sentence-transformers?  python benchmarks/encode.py

A step embeds 16 batches of documents of the corpus, drawn at random, the same on both sides, whose
embeddings must agree. sentence-transformers tokenises within the step. ltr has tokenised the corpus
before: of that time the step gets the share of its documents, by their tokens before they are cut.
harness/compare.py says what is measured, and how.
"""

import json

import numpy as np
from harness.compare import compare
from harness.meter import Meter
from harness.sides import Setting, Side, fastest_attention, tokenising

BATCHES = 16  # of a step
CHECKED = 64  # documents, against sentence-transformers
# documents in bf16 against float32, those that search, and how deep
SEARCHED = 1000
QUERIES = 100
DEPTH = 100


def samples(setting: Setting, n_docs: int) -> list[np.ndarray]:
    """Rows of the documents of every step: the same on all sides."""
    rng = np.random.default_rng(0)
    size = min(n_docs, BATCHES * setting.batch)
    return [
        rng.choice(n_docs, size, replace=False)
        for _ in range(setting.warm_up + setting.turns * setting.steps)
    ]


def prepare(setting: Setting) -> tuple[float, str]:
    """Tokenise, and compare the embeddings of some documents in float32."""
    from sentence_transformers import SentenceTransformer

    from ltr.data.collection import open_collection
    from ltr.search.encode import encode

    corpus = open_collection(setting.data).corpus
    encoder, store, form = our_encoder(setting)
    rows = np.random.default_rng(1).choice(len(corpus), min(len(corpus), CHECKED), replace=False)
    found = encode(encoder, store, form, setting.folder / "checked.npy", rows=rows)
    model = SentenceTransformer(setting.backbone, device="cpu")
    model.max_seq_length = setting.max_length
    expected = model.encode([corpus.texts[row] for row in rows], show_progress_bar=False)
    cosine = cosines(found, expected)
    assert cosine.min() > 0.999, f"the sides' embeddings differ: a cosine of {cosine.min():.4f}"
    mean = float(form.lengths(store.lengths(np.arange(len(store)))).mean())
    return mean, tokenising(store) + (
        f"; {agreement(setting)}" if setting.precision == "bf16" else ""
    )


def agreement(setting: Setting) -> str:
    """How near embeddings in bf16 are to those in float32, and how many documents both find for the
    same query.
    """
    import torch

    from ltr.search.encode import encode

    encoder, store, form = our_encoder(setting)
    encoder.to(setting.device)
    rows = np.random.default_rng(2).choice(len(store), min(len(store), SEARCHED), replace=False)
    exact = encode(encoder, store, form, setting.folder / "exact.npy", rows=rows)
    with torch.autocast(setting.device, torch.bfloat16):
        half = encode(encoder, store, form, setting.folder / "half.npy", rows=rows)
    depth = min(DEPTH, len(rows))
    found = [np.argsort(-one[:QUERIES] @ one.T, axis=1)[:, :depth] for one in (exact, half)]
    overlap = np.mean([len(np.intersect1d(*pair)) / depth for pair in zip(*found, strict=True)])
    lowest = cosines(exact, half).min()
    return f"in bf16 cosines to float32 are {lowest:.5f} or more, and {overlap:.1%} of the first {depth} documents are the same"


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Row by row."""
    return (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def our_encoder(setting: Setting, kernels: str = "auto"):
    """The encoder on the CPU, the tokens of the corpus, and how texts are laid out."""
    from ltr.data.collection import open_collection
    from ltr.data.formats import SingleTexts
    from ltr.data.tokens import TokenStore
    from ltr.models.encoder.loading.pretrained import load_encoder, load_tokenizer
    from ltr.models.encoder.text_encoder import TextEncoder

    tokenizer = load_tokenizer(setting.backbone)
    store = TokenStore.open(open_collection(setting.data).corpus, tokenizer)
    model = load_encoder(setting.backbone, dropout="none").model
    return (
        TextEncoder(model, tokenizer.pad_token_id, options=TextEncoder.Options(kernels=kernels)),
        store,
        SingleTexts(tokenizer, setting.max_length),
    )


def ours(meter: Meter, setting: Setting, side: Side) -> None:
    """From the token store to a memory map."""
    import torch

    from ltr.search.encode import encode

    encoder, store, form = our_encoder(setting, side.kernels)
    encoder.to(setting.device)
    meter.watch(encoder.model)
    counts = json.loads((store.folder / "manifest.json").read_text())
    file = setting.folder / f"{side.name}.npy"
    for rows in samples(setting, len(store)):
        with torch.autocast(setting.device, torch.bfloat16, enabled=side.precision == "bf16"):
            encode(encoder, store, form, file, rows=rows)
        meter.step_ended(extra=counts["seconds"] * store.lengths(rows).sum() / counts["tokens"])


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
    steps = [[corpus.texts[row] for row in rows] for rows in samples(setting, len(corpus))]
    for texts in steps:
        model.encode(texts, batch_size=setting.batch, show_progress_bar=False)
        meter.step_ended()


if __name__ == "__main__":
    compare(__doc__, prepare, theirs, ours, unit="documents", batch=32, passes=1)
