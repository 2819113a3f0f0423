from contextlib import nullcontext

import numpy as np
import pytest
import torch
from transformers import AutoModel

from ltr.data.collection import open_collection
from ltr.data.layouts import SingleTexts
from ltr.data.tokens import TokenStore
from ltr.models.encoder.loading.pretrained import load_encoder, load_tokenizer
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.search.embed_texts import Batch, LaidOut, encode_batches, encode_in_memory, places_of_rank


@pytest.fixture
def world(backbone, collection_folder):
    """An encoder, the tokens of a corpus, and how a text is laid out."""
    tokenizer = load_tokenizer(backbone)
    corpus = open_collection(str(collection_folder)).corpus
    model, _ = load_encoder(backbone)
    return (
        TextEncoder(model),
        TokenStore.open(corpus, tokenizer),
        SingleTexts(tokenizer, 12),
        corpus,
        tokenizer,
    )


def test_a_row_is_what_its_text_gives_alone(world, backbone, tmp_path):
    encoder, store, form, corpus, tokenizer = world
    rows = np.random.default_rng(0).permutation(len(store))[:50]
    found = encode_in_memory(encoder, store, form, rows)
    alone = AutoModel.from_pretrained(backbone).eval()
    with torch.no_grad():
        for row, embedding in zip(rows, found, strict=True):
            inputs = tokenizer(
                corpus.texts[row], truncation=True, max_length=12, return_tensors="pt"
            )
            expected = alone(**inputs).last_hidden_state[0].mean(dim=0)
            torch.testing.assert_close(
                torch.from_numpy(embedding.copy()), expected, atol=1e-5, rtol=1e-5
            )
    assert found.dtype == np.float32


def test_all_rows_in_batches_of_any_size(world, tmp_path, monkeypatch):
    encoder, store, form, *_ = world
    expected = encode_in_memory(encoder, store, form, np.arange(len(store)))
    monkeypatch.setattr("ltr.search.embed_texts.BATCH_TOKENS", 100)
    np.testing.assert_allclose(
        encode_in_memory(encoder, store, form, np.arange(len(store))), expected, atol=1e-5
    )
    assert len(expected) == len(store)


def test_dropout_is_off_and_each_module_gets_its_mode_back(world, tmp_path):
    encoder, store, form, *_ = world
    encoder.train()
    encoder.model.embeddings.eval()
    modes = [module.training for module in encoder.modules()]
    rows = np.arange(5)
    np.testing.assert_array_equal(
        encode_in_memory(encoder, store, form, rows),
        encode_in_memory(encoder, store, form, rows),
    )
    assert [module.training for module in encoder.modules()] == modes


def test_half_precision_comes_from_autocast(world, tmp_path):
    encoder, store, form, *_ = world
    full = encode_in_memory(encoder, store, form, np.arange(len(store)))
    with torch.autocast("cpu", torch.bfloat16):
        half = encode_in_memory(encoder, store, form, np.arange(len(store)))
    assert half.dtype == np.float32 and np.abs(half - full).max() > 0
    np.testing.assert_allclose(half, full, atol=0.1)


def test_weights_are_laid_out_for_many_tokens_alone(world, tmp_path, monkeypatch):
    """What that does, and in which precision: tests/models/encoder/test_linear.py."""
    encoder, store, form, *_ = world
    laid_out = []
    monkeypatch.setattr(
        "ltr.search.embed_texts.cast_once", lambda model: nullcontext(laid_out.append(model))
    )
    total = int(form.lengths(store.lengths(np.arange(len(store)))).sum())
    for least, n_times in ((total + 1, 0), (total, 1)):
        monkeypatch.setattr("ltr.search.embed_texts.MANY_TOKENS", least)
        laid_out.clear()
        encode_in_memory(encoder, store, form, np.arange(len(store)))
        assert laid_out == [encoder.model] * n_times


def test_shares_are_of_equal_length_and_make_the_whole(world):
    """Of 720 texts each of three processes takes 240; of two texts the third takes none."""
    encoder, store, form, *_ = world
    rows = np.arange(len(store))
    places = [places_of_rank(store, form, rows, rank, 3) for rank in range(3)]
    assert sorted(np.concatenate(places).tolist()) == rows.tolist()
    tokens = [form.lengths(store.lengths(of_rank)).sum() for of_rank in places]
    assert max(tokens) - min(tokens) <= 12  # of the longest text, by which they may differ at most
    assert len(places_of_rank(store, form, rows[:2], 2, 3)) == 0
    assert list(encode_batches(encoder, LaidOut(store, form, rows[:0]))) == []


def test_batches_for_a_gpu_are_pinned(world, monkeypatch):
    _, store, form, *_ = world
    monkeypatch.setattr(Batch, "pinned", lambda batch, device: ("pinned", device))
    device = torch.device("cuda", 1)
    assert list(LaidOut(store, form, np.arange(5), device)) == [("pinned", device)]
    (batch,) = LaidOut(store, form, np.arange(5))
    assert isinstance(batch, Batch)


def test_no_text_is_refused(world, tmp_path):
    encoder, store, form, *_ = world
    with pytest.raises(ValueError, match="at least one text"):
        encode_in_memory(encoder, store, form, np.arange(0))


def test_a_row_that_is_none_is_refused(world, tmp_path):
    """A search fills up with -1."""
    encoder, store, form, *_ = world
    with pytest.raises(IndexError, match=r"between 0 and \d+, got -1"):
        encode_in_memory(encoder, store, form, np.array([3, -1]))


def test_batches_are_of_similar_texts_and_within_the_budget(world, tmp_path, monkeypatch):
    encoder, store, form, *_ = world
    monkeypatch.setattr("ltr.search.embed_texts.BATCH_TOKENS", 100)
    lengths = []
    encoder.register_forward_pre_hook(lambda _, args: lengths.append(args[0].lengths))
    encode_in_memory(encoder, store, form, np.arange(len(store)))
    assert all(90 <= batch.sum() <= 100 for batch in lengths[:-1])
    assert (torch.cat(lengths).diff() <= 0).all() and len(torch.cat(lengths)) == len(store)
