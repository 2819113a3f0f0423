"""Packed reading gives what padded reading gives, and who cannot read so is found."""

import math

import pytest
import torch
import torch._dynamo.testing
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    BertConfig,
    DistilBertConfig,
    EuroBertConfig,
    Gemma3TextConfig,
    MistralConfig,
    ModernBertConfig,
    MPNetConfig,
    RobertaConfig,
    XLMRobertaConfig,
)

from ltr.errors import InputError
from ltr.models.encoder import packed
from ltr.models.encoder.chunks import packed_chunks, padded_chunks
from ltr.models.encoder.loading.architecture import padding_index
from ltr.models.encoder.packed import (
    enable_packing,
    hidden_states,
    longest_packed,
    read_logits,
    read_pooled,
)
from tests.world.encoders import (
    LENGTHS,
    LOCAL,
    SIZES,
    SPECIAL,
    assert_same_gradients,
    gradients,
    logits_one_by_one,
    texts,
    with_large_weights,
)

COMMON = {"max_position_embeddings": 64, "pad_token_id": 1, "num_labels": 1}
DISTILBERT = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "vocab_size": 60}
MODERN = SIZES | COMMON | SPECIAL | LOCAL
CONFIGS = {
    "bert": BertConfig(**SIZES, **COMMON),
    "roberta": RobertaConfig(**SIZES, **COMMON),
    "xlm-roberta": XLMRobertaConfig(**SIZES, **COMMON),
    "distilbert": DistilBertConfig(**DISTILBERT, **COMMON),
    "modernbert": ModernBertConfig(**MODERN),
    "modernbert-mean": ModernBertConfig(**MODERN, classifier_pooling="mean"),
}
# Two heads of the query share a head of key and value. Gemma's are read in both directions.
GROUPED = SIZES | COMMON | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
WINDOWED = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
GROUPED_CONFIGS = {
    "eurobert": EuroBertConfig(**GROUPED, bos_token_id=0, eos_token_id=2, mask_token_id=3),
    "gemma-3": Gemma3TextConfig(**GROUPED, **WINDOWED, use_bidirectional_attention=True),
}


@pytest.fixture(params=CONFIGS | GROUPED_CONFIGS)
def encoder(request):
    return built(request.param)


def built(name, kind=AutoModel):
    """Without dropout, and without a pooler that nothing reads."""
    torch.manual_seed(0)
    model = with_large_weights(kind.from_config((CONFIGS | GROUPED_CONFIGS)[name]))
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    return model


def read_packed(read, of, max_tokens, padding):
    chunks = list(packed_chunks(of, max_tokens, padding))
    rows = torch.cat([chunk.rows for chunk in chunks])
    return torch.cat([read(chunk) for chunk in chunks])[rows.argsort()]


def read(encoder, how, of, max_tokens=40):
    padding = padding_index(encoder.base_model)
    return read_packed(lambda chunk: read_pooled(encoder, chunk, how), of, max_tokens, padding)


def read_padded(encoder, how, of):
    """The same from padded chunks, by the means of transformers alone."""
    rows = []
    outputs = []
    for chunk in padded_chunks(of, 10_000, pad_id=1):
        hidden = encoder(**chunk.inputs).last_hidden_state.float()
        mask = chunk.inputs["attention_mask"].unsqueeze(2)
        rows.append(chunk.rows)
        if how == "cls":
            outputs.append(hidden[:, 0])
        elif how == "max":
            outputs.append(hidden.masked_fill(mask == 0, float("-inf")).max(dim=1).values)
        else:
            outputs.append((hidden * mask).sum(dim=1) / mask.sum(dim=1))
    return torch.cat(outputs)[torch.cat(rows).argsort()]


@pytest.mark.parametrize("how", ["mean", "cls", "max"])
@pytest.mark.parametrize("max_tokens", [1, 40, 1000])
def test_outputs_and_gradients_are_the_padded_ones(encoder, how, max_tokens):
    of = texts()
    weights = torch.randn(len(LENGTHS), 16)
    expected = read_padded(encoder, how, of)
    expected_gradients = gradients(encoder, (expected * weights).sum())
    assert enable_packing(encoder)
    outputs = read(encoder, how, of, max_tokens)
    torch.testing.assert_close(outputs, expected, atol=1e-5, rtol=1e-5)
    found = gradients(encoder, (outputs * weights).sum())
    assert found.keys() == dict(encoder.named_parameters()).keys()
    assert_same_gradients(found, expected_gradients)


@pytest.mark.parametrize("how", ["mean", "cls"])
def test_a_text_may_hold_the_token_of_the_padding(encoder, how):
    """RoBERTa does not count it. It stands first, in the middle, last, and twice."""
    of = texts()
    ends = of.lengths.cumsum(0)
    of.ids[[0, int(ends[2]) - 1, *range(int(ends[4]) + 2, int(ends[4]) + 4)]] = 1
    expected = read_padded(encoder, how, of)
    assert enable_packing(encoder)
    torch.testing.assert_close(read(encoder, how, of), expected, atol=1e-5, rtol=1e-5)


def test_an_enabled_encoder_reads_padded_texts_as_before(encoder):
    of = texts()
    expected = read_padded(encoder, "mean", of)
    unmasked = encoder(of.ids[None, :30]).last_hidden_state
    assert enable_packing(encoder)
    torch.testing.assert_close(read_padded(encoder, "mean", of), expected)
    torch.testing.assert_close(encoder(of.ids[None, :30]).last_hidden_state, unmasked)


@pytest.mark.parametrize("max_tokens", [1, 1000])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_ready_cross_encoder_keeps_its_head(name, max_tokens):
    model = built(name, AutoModelForSequenceClassification)
    of = texts()
    expected = logits_one_by_one(model, of)
    expected_gradients = gradients(model, expected.square().sum())
    assert enable_packing(model)
    padding = padding_index(model.base_model)
    found = read_packed(lambda chunk: read_logits(model, chunk), of, max_tokens, padding)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert_same_gradients(gradients(model, found.square().sum()), expected_gradients)
    torch.testing.assert_close(logits_one_by_one(model, of), expected)


def test_token_types_go_with_their_tokens():
    encoder = built("bert")
    of = texts(types=True)
    expected = read_padded(encoder, "mean", of)
    assert enable_packing(encoder)
    torch.testing.assert_close(read(encoder, "mean", of), expected, atol=1e-5, rtol=1e-5)
    assert (read(encoder, "mean", of._replace(type_ids=None)) - expected).abs().max() > 0.01


def test_a_text_does_not_depend_on_its_neighbours(encoder):
    assert enable_packing(encoder)
    of = texts()
    other = texts(seed=1)
    ids = [*of.ids.split(LENGTHS)]
    ids[4] = other.ids.split(LENGTHS)[4]  # of 7 tokens, as two others
    before = read(encoder, "mean", of, 1000)
    after = read(encoder, "mean", of._replace(ids=torch.cat(ids)), 1000)
    same = torch.arange(len(LENGTHS)) != 4
    torch.testing.assert_close(after[same], before[same], atol=1e-6, rtol=0)
    assert (after[4] - before[4]).abs().max() > 0.01


def test_close_in_mixed_precision(encoder):
    of = texts()
    expected = read_padded(encoder, "mean", of)
    assert enable_packing(encoder)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = read(encoder, "mean", of)
        padded = read_padded(encoder, "mean", of)
    assert outputs.dtype == torch.float32 and outputs.isfinite().all()
    # Rounded in other places, but not further from the exact ones.
    assert (outputs - padded).abs().mean() < 1e-2 * expected.abs().max()
    assert (outputs - expected).norm() < 1.5 * (padded - expected).norm()
    for name, gradient in gradients(encoder, outputs.square().sum()).items():
        assert gradient.isfinite().all(), name


@pytest.mark.parametrize("kind", [AutoModel, AutoModelForSequenceClassification])
def test_what_cannot_read_packed_texts_is_left_alone(kind, caplog):
    """MPNet has an attention of its own, with a bias by distance."""
    model = kind.from_config(MPNetConfig(**SIZES, **COMMON)).train()
    before = model.config._attn_implementation
    with caplog.at_level("INFO", logger="ltr"):
        assert not enable_packing(model)
    assert "can't read packed texts" in caplog.records[-1].message
    assert model.config._attn_implementation == before
    assert all(module.training for module in model.modules())


def longest_trial(model):
    """Tokens of the longest text that an encoder reads while it is tried, and whether it passes."""
    lengths = []
    model.get_input_embeddings().register_forward_pre_hook(
        lambda module, args: lengths.append(args[0].shape[-1])
    )
    return enable_packing(model), max(lengths)


@pytest.mark.parametrize("window", [4096, 131072])
def test_a_decoder_with_a_long_window_is_tried_with_few_tokens(window):
    """Texts as long as its window would take seconds; so longer texts are not packed."""
    sizes = GROUPED | {"max_position_embeddings": 2 * window}
    config = MistralConfig(**sizes, sliding_window=window)
    passes, longest = longest_trial(AutoModel.from_config(config))
    assert passes and longest <= 10
    assert longest_packed(config) == window


@pytest.mark.parametrize("window", [8, 64])
def test_the_trial_goes_beyond_a_window(window):
    config = ModernBertConfig(**MODERN | {"local_attention": 2 * window})
    passes, longest = longest_trial(AutoModel.from_config(config))
    assert passes and longest > window


def test_texts_beyond_a_window_that_is_not_tried_are_not_packed(monkeypatch):
    config = built("modernbert").config  # local attention of 8: 4 to each side
    monkeypatch.setattr(packed, "LONGEST_WINDOW", 3)
    assert longest_packed(config) == 4
    monkeypatch.setattr(packed, "LONGEST_WINDOW", 4)
    assert longest_packed(config) is None


def test_enabling_keeps_who_trains(encoder):
    encoder.train()
    encoder.get_input_embeddings().eval()
    before = [module.training for module in encoder.modules()]
    state = torch.random.get_rng_state()
    assert enable_packing(encoder)
    assert [module.training for module in encoder.modules()] == before
    assert torch.equal(torch.random.get_rng_state(), state)


def test_checkpointed_layers_attend_alike_when_they_run_again():
    encoder = built("bert")
    assert enable_packing(encoder)
    of = texts()
    expected = gradients(encoder, read(encoder, "mean", of).square().sum())
    if hasattr(encoder, "activation_checkpointing_enable"):
        encoder.activation_checkpointing_enable()
    else:  # transformers before 5.18
        encoder.gradient_checkpointing_enable()
    found = gradients(encoder.train(), read(encoder, "mean", of).square().sum())
    torch.testing.assert_close(found, expected)


@pytest.mark.long
def test_a_compiled_encoder_is_compiled_once_for_all_layouts():
    # What other tests of this process have compiled counts too: of code that was compiled too often
    # torch compiles nothing more.
    torch._dynamo.reset()
    encoder = built("bert").eval()
    assert enable_packing(encoder)
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(encoder, dynamic=True, backend=counter)
    for number, lengths in enumerate([[3, 4, 5], [9, 2, 2, 30], [7]]):
        of = texts(lengths)
        (chunk,) = packed_chunks(of, 100, padding_index=None)
        torch.testing.assert_close(hidden_states(compiled, chunk), hidden_states(encoder, chunk))
        if number == 0:
            frames = counter.frame_count
    assert counter.frame_count == frames > 0


def test_the_fill_of_a_chunk_changes_nothing(encoder, monkeypatch):
    """300 tokens are filled up to 304. Outputs and gradients are those of 300."""
    of = texts([20] * 15)

    def read():
        (chunk,) = packed_chunks(of, 2048, padding_index(encoder))
        hidden = hidden_states(encoder, chunk)
        weights = torch.linspace(-1, 1, hidden.numel()).view_as(hidden)
        found = gradients(encoder, (hidden * weights).sum())
        return chunk.inputs["input_ids"].shape[1], hidden, found

    enable_packing(encoder)
    n_filled, filled, found = read()
    place = "ltr.models.encoder.chunks.padded_size"
    monkeypatch.setattr(place, lambda n_tokens, max_tokens: n_tokens)
    n_alone, alone, expected = read()
    assert (n_filled, n_alone) == (304, 300)
    torch.testing.assert_close(filled, alone)
    torch.testing.assert_close(found, expected)


def test_the_difference_of_outputs_by_hand():
    """|4 - 1| over the mean of |1| and |3|; a NaN anywhere is no small difference."""
    x = torch.tensor([1.0, -3.0])
    assert packed._difference([x, x], [x, torch.tensor([4.0, -3.0])]) == 1.5
    zeros = torch.zeros(2)
    assert packed._difference([x, zeros], [x, zeros]) == 0.0
    assert math.isnan(packed._difference([x, x], [x, torch.tensor([1.0, float("nan")])]))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_encoder_that_gives_no_numbers_is_refused(value):
    """It would be read padded, and train on NaN."""
    encoder = built("bert")
    encoder.encoder.layer[0].output.dense.weight.data[0, 0] = value
    with pytest.raises(InputError, match="BertModel gives outputs that are NaN or infinite"):
        enable_packing(encoder)
