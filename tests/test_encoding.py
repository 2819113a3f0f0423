import numpy as np
import pytest
import torch
from transformers import AutoModel

from ltr.data.collection import open_collection
from ltr.data.formats import SingleTexts
from ltr.data.tokens import TokenStore
from ltr.encoding import BATCH_TOKENS, _batches, encode
from ltr.models.backbone import load_encoder, load_tokenizer
from ltr.models.text_encoder import TextEncoder


@pytest.fixture
def world(backbone, collection_folder):
    """An encoder, the tokens of a corpus, and how a text is laid out."""
    tokenizer = load_tokenizer(backbone)
    corpus = open_collection(str(collection_folder)).corpus
    model, _ = load_encoder(backbone)
    return TextEncoder(model), TokenStore.open(corpus, tokenizer), SingleTexts(tokenizer, 12), corpus, tokenizer


def test_a_row_is_what_its_text_gives_alone(world, backbone, tmp_path):
    encoder, store, form, corpus, tokenizer = world
    rows = np.random.default_rng(0).permutation(len(store))[:50]
    found = encode(encoder, store, form, tmp_path / "docs.npy", rows)
    alone = AutoModel.from_pretrained(backbone).eval()
    with torch.no_grad():
        for row, embedding in zip(rows, found, strict=True):
            inputs = tokenizer(corpus.texts[row], truncation=True, max_length=12, return_tensors="pt")
            expected = alone(**inputs).last_hidden_state[0].mean(dim=0)
            torch.testing.assert_close(torch.from_numpy(embedding.copy()), expected, atol=1e-5, rtol=1e-5)
    assert [file.name for file in tmp_path.iterdir()] == ["docs.npy"]
    assert isinstance(found, np.memmap) and found.dtype == np.float32 and not found.flags.writeable


def test_all_rows_in_batches_of_any_size(world, tmp_path, monkeypatch):
    encoder, store, form, *_ = world
    expected = encode(encoder, store, form, tmp_path / "one.npy")
    monkeypatch.setattr("ltr.encoding.BATCH_TOKENS", 100)
    np.testing.assert_allclose(encode(encoder, store, form, tmp_path / "many.npy"), expected, atol=1e-5)
    assert len(expected) == len(store)


def test_dropout_is_off_and_the_mode_comes_back(world, tmp_path):
    encoder, store, form, *_ = world
    encoder.train()
    rows = np.arange(5)
    np.testing.assert_array_equal(
        encode(encoder, store, form, tmp_path / "a.npy", rows), encode(encoder, store, form, tmp_path / "b.npy", rows)
    )
    assert encoder.training


def test_half_precision_comes_from_autocast(world, tmp_path):
    encoder, store, form, *_ = world
    full = encode(encoder, store, form, tmp_path / "full.npy")
    with torch.autocast("cpu", torch.bfloat16):
        half = encode(encoder, store, form, tmp_path / "half.npy")
    assert half.dtype == np.float32 and np.abs(half - full).max() > 0
    np.testing.assert_allclose(half, full, atol=0.1)


def test_a_failure_leaves_the_old_file_and_nothing_half_written(world, tmp_path, monkeypatch):
    encoder, store, form, *_ = world
    monkeypatch.setattr("ltr.encoding.BATCH_TOKENS", 100)
    before = np.array(encode(encoder, store, form, tmp_path / "docs.npy"))
    calls = []

    def fail_at_the_third(texts):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("out of memory")
        return TextEncoder.forward(encoder, texts)

    monkeypatch.setattr(encoder, "forward", fail_at_the_third)
    with pytest.raises(RuntimeError, match="out of memory"):
        encode(encoder, store, form, tmp_path / "docs.npy")
    assert [file.name for file in tmp_path.iterdir()] == ["docs.npy"]
    np.testing.assert_array_equal(np.load(tmp_path / "docs.npy"), before)


def test_no_text_is_refused(world, tmp_path):
    encoder, store, form, *_ = world
    with pytest.raises(ValueError, match="at least one text"):
        encode(encoder, store, form, tmp_path / "docs.npy", np.arange(0))


def test_batches_hold_every_row_once_in_order_and_about_the_budget():
    lengths = np.random.default_rng(0).integers(1, 400, 2000)
    order = np.argsort(-lengths)
    batches = _batches(order, lengths)
    np.testing.assert_array_equal(np.concatenate(batches), order)
    assert max(lengths[batch].sum() for batch in batches) < BATCH_TOKENS + 400
    assert len(batches) == -(-lengths.sum() // BATCH_TOKENS)
