"""Decoders read packed texts as transformers reads padded ones, or each text alone."""

from functools import partial

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from ltr.errors import InputError
from ltr.models.encoder import attention, packed, text_encoder
from ltr.models.encoder.packed import enable_packing, is_causal
from ltr.models.encoder.text_encoder import TextEncoder
from tests.world import encoders
from tests.world.decoders import CONFIGS, decoder
from tests.world.encoders import (
    assert_same_gradients,
    gradients,
    logits_one_by_one,
    one_by_one,
    reader,
)

# One token, equal ones, longer than the window, and up to 200.
LENGTHS = [7, 1, 200, 3, 7, 12, 90, 1, 5]


def texts(lengths=LENGTHS):
    return encoders.texts(lengths, ids=(4, 400))


def read_and_gradients(model, encoder, of):
    """What an encoder of this model reads, and the gradients of a weighted sum of it."""
    outputs = encoder(of)
    weights = torch.linspace(-1, 1, outputs.numel()).view_as(outputs)
    return outputs, gradients(model, (outputs * weights).sum())


def assert_read_as_alone(model, encoder, of, of_whom=None):
    """As each text by itself, by the means of transformers alone, in value and gradient."""
    alone = partial(one_by_one, of_whom or model, pooling="last")
    expected, expected_gradients = read_and_gradients(of_whom or model, alone, of)
    outputs, found = read_and_gradients(model, encoder, of)
    torch.testing.assert_close(outputs, expected, atol=1e-5, rtol=1e-5)
    assert_same_gradients(found, expected_gradients)


@pytest.mark.parametrize("max_tokens", [1, 100, 1000])
@pytest.mark.parametrize("name", CONFIGS)
def test_packed_texts_give_the_outputs_and_gradients_of_texts_alone(name, max_tokens):
    encoder = reader(decoder(name), 3, pooling="last", max_tokens=max_tokens)
    assert encoder.reads_packed and encoder.causal
    of = texts()._replace(keys=torch.zeros(len(LENGTHS), dtype=torch.int64))
    assert_read_as_alone(encoder.model, encoder, of, decoder(name))


@pytest.mark.parametrize("name", CONFIGS)
def test_padded_texts_give_the_same(name, monkeypatch):
    """What is read where a trial fails: the last token is that of each text, not the padding's."""
    monkeypatch.setattr(text_encoder, "enable_packing", lambda *_: False)
    encoder = reader(decoder(name), 3, pooling="last").eval()
    assert not encoder.reads_packed
    assert_read_as_alone(encoder.model, encoder, texts(), decoder(name))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_text_longer_than_a_window_that_was_not_tried_is_padded(name, monkeypatch):
    """Texts within the window are packed. Both are read rightly, in value and gradient."""
    monkeypatch.setattr(packed, "LONGEST_WINDOW", 3)
    windowed = CONFIGS[name].to_dict().get("sliding_window") is not None
    encoder = reader(decoder(name), 3, pooling="last").eval()
    assert encoder.reads_packed and encoder.longest_packed == (8 if windowed else None)
    for lengths in ([7, 1, 8, 3], LENGTHS):
        of = texts(lengths)
        is_packed = not windowed or max(lengths) <= 8
        for chunk in encoder._chunks(of):
            assert ("packed_layout" in chunk.inputs) == is_packed
        assert_read_as_alone(encoder.model, encoder, of, decoder(name))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_causal_attention_is_needed(name, monkeypatch):
    """Read as an encoder's, a decoder's texts fail the trial, and are padded."""
    model = decoder(name)
    assert is_causal(model)
    before = model.config._attn_implementation
    assert not enable_packing(model, causal=False)
    assert model.config._attn_implementation == before
    assert enable_packing(model)


def test_a_window_of_a_decoder_is_one_sided(monkeypatch):
    """A two-sided or a missing window fails the trial."""
    whole = attention._mask
    for wrong in (
        lambda length, window, causal, device: whole(length, window, False, device),
        lambda length, window, causal, device: None,
    ):
        monkeypatch.setattr(attention, "_mask", wrong)
        assert not enable_packing(decoder("mistral"))
    monkeypatch.setattr(attention, "_mask", whole)
    assert enable_packing(decoder("mistral"))


def test_a_soft_cap_that_is_left_out_fails_the_trial(monkeypatch):
    """Gemma 2 caps its scores; read without the cap, its texts are padded."""
    settings = attention._Settings

    def without_cap(*values):
        return settings(*values)._replace(softcap=None)

    monkeypatch.setattr(attention, "_Settings", without_cap)
    assert not enable_packing(decoder("gemma2"))
    monkeypatch.setattr(attention, "_Settings", settings)
    assert enable_packing(decoder("gemma2"))


@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_classifier_of_transformers_keeps_its_head(name, packs, monkeypatch):
    """It reads the last token that isn't padding's: a text may end with some, or hold no other."""
    model = decoder(name, "classifier")
    of = texts()
    ends = of.lengths.cumsum(0)
    of.ids[[int(ends[1]) - 1, int(ends[2]) - 1, int(ends[2]) - 2, int(ends[3]) - 2]] = 3
    expected = logits_one_by_one(model, of)
    expected_gradients = gradients(model, expected.square().sum())
    if not packs:
        monkeypatch.setattr(text_encoder, "enable_packing", lambda *_: False)
    encoder = TextEncoder(model, 3).eval()
    assert encoder.reads_packed == packs
    scores = encoder.logits(of)
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-5)
    assert_same_gradients(gradients(model, scores.square().sum()), expected_gradients)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert encoder.logits(of).dtype == torch.float32


def test_scores_of_a_classifier_do_not_tie_in_half_precision():
    """Last hidden states are bfloat16 under autocast; the head reads them in float32."""
    encoder = TextEncoder(decoder("llama", "classifier"), 3).eval()
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        scores = encoder.logits(texts([20] * 300))
    assert len(scores.unique()) == 300
    assert len(scores.bfloat16().unique()) < 300


@pytest.mark.parametrize("pooling", [None, "mean", "cls", "max"])
def test_other_poolings_of_a_decoder_are_refused(pooling):
    rule = r"LlamaModel is a decoder.*set pooling to last.*\(option pooling\)"
    with pytest.raises(InputError, match=rule):
        reader(decoder("llama"), 3, pooling=pooling)


def test_the_classes_of_classifiers_are_those_of_transformers():
    for config in CONFIGS.values():
        model = AutoModelForSequenceClassification.from_config(config)
        assert isinstance(model, packed.GenericForSequenceClassification)
