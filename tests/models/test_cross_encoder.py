"""The cross-encoder: scores of pairs and lists, its heads, and what it loads or refuses."""

import shutil
from pathlib import Path

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    RobertaConfig,
    RobertaModel,
)

from ltr.batch import RankingBatch, Texts
from ltr.data.layouts import JoinedPairs
from ltr.dropout import KeyedDropout
from ltr.errors import InputError
from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.models.encoder.loading.architecture import max_positions
from ltr.models.encoder.text_encoder import CHUNK_TOKENS, TextEncoder
from tests.world.backbones import wordpiece_tokenizer
from tests.world.collections import WORDS

QUERIES = ["w1 w2", "w3", "w4 w5 w6"]
DOCS = ["w7", "w8 w9 w10 w11 w12 w13", "w14 w15"]


def cross_encoder(backbone, **options):
    return PairWiseBertRanker(str(backbone), max_length=32, encoder=TextEncoder.Options(**options))


@pytest.fixture
def ranker(backbone):
    return cross_encoder(backbone).eval()


def padded(ranker, queries, docs):
    return ranker.tokenizer(queries, docs, padding=True, return_tensors="pt")


def ragged(inputs) -> Texts:
    real = inputs["attention_mask"].bool()
    return Texts(inputs["input_ids"][real], real.sum(dim=1), inputs["token_type_ids"][real])


def test_both_sides_come_from_one_encoder_pass(ranker):
    positive = padded(ranker, QUERIES, DOCS)
    negative = padded(ranker, QUERIES[:2], ["w1", "w2 w3"])
    calls = []
    ranker.encoder.model.register_forward_hook(lambda *a: calls.append(1))
    s_positive, s_negative = ranker(positive, negative)
    assert len(calls) == 1 and s_positive.shape == (3,) and s_negative.shape == (2,)
    torch.testing.assert_close(ranker(positive, None)[0], s_positive)
    torch.testing.assert_close(ranker(None, negative)[1], s_negative)
    assert (
        ranker(positive, None)[1] is None
        and ranker(None, negative)[0] is None
        and ranker(None, None) == (None, None)
    )


def test_inputs_without_a_mask_are_not_padded_and_types_left_out_are_0(ranker):
    """Each side as alone, whatever the other side brings."""
    positive = padded(ranker, QUERIES, DOCS)
    negative = padded(ranker, QUERIES[:2], ["w1", "w2 w3"])
    one = {
        name: ids[1:2, : int(positive["attention_mask"][1].sum())] for name, ids in positive.items()
    }
    unmasked = {name: ids for name, ids in one.items() if name != "attention_mask"}
    torch.testing.assert_close(ranker(unmasked, negative), ranker(one, negative))

    bare = {name: ids for name, ids in negative.items() if name != "token_type_ids"}
    zeros = bare | {"token_type_ids": torch.zeros_like(bare["input_ids"])}
    expected = ranker(positive, zeros)
    torch.testing.assert_close(ranker(positive, bare), expected)
    torch.testing.assert_close(ranker(bare, positive), expected[::-1])
    torch.testing.assert_close(ranker(bare, None)[0], expected[1])
    assert (ranker(None, negative)[1] - expected[1]).abs().max() > 1e-3  # the types say something


def test_a_pair_of_padding_alone_is_refused(ranker):
    positive = padded(ranker, QUERIES, DOCS)
    negative = padded(ranker, QUERIES[:2], ["w1", "w2 w3"])
    negative["attention_mask"][1] = 0
    with pytest.raises(
        InputError, match="every pair must have a token, but 1 of 5 are padding alone"
    ):
        ranker(positive, negative)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_ranker_of_another_precision_scores_in_float32(ranker, dtype):
    inputs = padded(ranker, QUERIES, DOCS)
    exact = ranker(inputs, None)[0]
    scores = ranker.to(dtype)(inputs, None)[0]
    assert scores.dtype == torch.float32
    torch.testing.assert_close(
        scores, exact, atol=0.05 if dtype == torch.bfloat16 else 0.005, rtol=0
    )
    scores.sum().backward()
    assert ranker.head.weight.grad.dtype == dtype


@pytest.mark.parametrize("dropout", [-0.1, 1.0, float("nan")])
def test_a_dropout_that_is_no_share_is_refused(backbone, dropout):
    with pytest.raises(
        InputError,
        match=rf"dropout must be at least 0 and below 1, got {dropout} \(option dropout\)",
    ):
        PairWiseBertRanker(backbone, 32, dropout=dropout)


def test_ragged_texts_score_as_padded_ones_in_any_order(ranker, monkeypatch):
    inputs = padded(ranker, QUERIES + QUERIES[::-1], DOCS + DOCS)
    expected, _ = ranker(inputs, None)
    for max_tokens in (1, 30, 10_000):
        monkeypatch.setitem(CHUNK_TOKENS, "cpu", max_tokens)
        torch.testing.assert_close(ranker.score(ragged(inputs)), expected)


def test_a_batch_gives_a_score_per_document_and_zero_at_the_padding(ranker):
    inputs = padded(ranker, ["w1", "w2", "w2"], ["w3", "w4", "w5 w6"])
    mask = torch.tensor([[True, False], [True, True]])
    rows = torch.zeros(2, dtype=torch.int64)
    batch = RankingBatch(
        torch.zeros(2, 2), mask, rows, torch.zeros(2, 2, dtype=torch.int64), pairs=ragged(inputs)
    )
    scores = ranker(batch)
    expected, _ = ranker(inputs, None)
    assert scores[0, 1] == 0
    torch.testing.assert_close(scores[mask], expected)
    scores.sum().backward()
    assert ranker.head.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("max_tokens", [1, 10_000])
def test_represent_gives_the_scores_and_what_the_head_reads(
    backbone, pooling, max_tokens, monkeypatch
):
    monkeypatch.setitem(CHUNK_TOKENS, "cpu", max_tokens)
    ranker = cross_encoder(backbone, pooling=pooling).eval()
    inputs = padded(ranker, ["w1", "w2", "w2"], ["w3", "w4 w7 w8 w9", "w5 w6"])
    mask = torch.tensor([[True, False], [True, True]])
    rows = torch.zeros(2, dtype=torch.int64)
    batch = RankingBatch(
        torch.zeros(2, 2), mask, rows, torch.zeros(2, 2, dtype=torch.int64), pairs=ragged(inputs)
    )
    scores, embeddings = ranker.represent(batch)
    torch.testing.assert_close(scores, ranker(batch))
    assert embeddings.shape == (2, 2, 16) and (embeddings[~mask] == 0).all()
    torch.testing.assert_close(ranker.head(embeddings[mask]).squeeze(1), scores[mask])


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_pooling_is_what_it_says(backbone, pooling):
    ranker = cross_encoder(backbone, pooling=pooling).eval()
    inputs = padded(ranker, QUERIES, DOCS)
    hidden = ranker.encoder.model(**inputs).last_hidden_state
    lengths = inputs["attention_mask"].sum(dim=1)
    rows = [
        h[0] if pooling == "cls" else h[:n].mean(dim=0)
        for h, n in zip(hidden, lengths, strict=True)
    ]
    torch.testing.assert_close(ranker(inputs, None)[0], ranker.head(torch.stack(rows)).squeeze(1))


def test_a_new_ranker_trains_with_dropout(backbone):
    """from_pretrained leaves modules in eval mode; a ranker must not."""
    ranker = cross_encoder(backbone)
    assert all(module.training for module in ranker.modules())
    inputs = padded(ranker, QUERIES, DOCS)
    assert not torch.equal(ranker(inputs, None)[0], ranker(inputs, None)[0])


def test_dropout_of_the_encoder_is_what_it_says(backbone):
    def probabilities(how):
        model = cross_encoder(backbone, dropout=how).encoder.model
        layer = model.encoder.layer[0]
        return layer.attention.self.dropout.p, layer.output.dropout.p, type(layer.output.dropout)

    assert probabilities("own") == (0.1, 0.1, KeyedDropout)
    assert probabilities("hidden") == (0.0, 0.1, KeyedDropout)
    assert probabilities("none") == (0.0, 0.0, KeyedDropout)


def test_options_reach_the_encoder(backbone):
    encoder = cross_encoder(
        backbone, max_tokens=7, keep_tokens=0, compile=True, pooling="max"
    ).encoder
    assert encoder.options == TextEncoder.Options(
        max_tokens=7, keep_tokens=0, compile=True, pooling="max"
    )
    assert (
        encoder.pooling == "max" and encoder.model.encoder.layer[0]._compiled_call_impl is not None
    )


def test_it_reads_joined_pairs_that_it_has_positions_for(backbone, tmp_path):
    reads = PairWiseBertRanker(backbone, max_length=64).reads
    assert isinstance(reads, JoinedPairs) and reads.max_length == 64
    with pytest.raises(
        InputError, match="max_length must be at most 64, the positions of .*, got 65"
    ) as caught:
        PairWiseBertRanker(backbone, max_length=65)
    assert caught.value.option == "max_length"


def test_the_head_has_dropout_in_front(backbone):
    assert PairWiseBertRanker(backbone, 32, dropout=0.3).dropout.p == 0.3


def test_nothing_in_the_model_is_left_without_a_gradient(backbone):
    """A leftover pooler would break training on several ranks."""
    ranker = cross_encoder(backbone)
    ranker(padded(ranker, QUERIES, DOCS), None)[0].square().sum().backward()
    assert [name for name, p in ranker.named_parameters() if p.grad is None] == []


def test_a_ready_cross_encoder_keeps_its_head(tmp_path):
    tokenizer = wordpiece_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=1,
    )
    ready = BertForSequenceClassification(config).eval()
    ready.save_pretrained(tmp_path)
    ranker = cross_encoder(tmp_path).eval()
    inputs = padded(ranker, QUERIES, DOCS)
    torch.testing.assert_close(ranker(inputs, None)[0], ready(**inputs).logits[:, 0])
    assert not ranker.gives_embeddings


def test_roberta_scores_without_types_and_counts_positions_behind_the_padding(tmp_path):
    tokenizer = wordpiece_tokenizer()
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    tokenizer.save_pretrained(tmp_path)
    config = RobertaConfig(
        vocab_size=len(WORDS) + 20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=34, pad_token_id=0,
    )  # fmt: skip
    RobertaModel(config).save_pretrained(tmp_path)
    ranker = cross_encoder(tmp_path).eval()
    assert max_positions(ranker.encoder.model) == 33
    inputs = ranker.tokenizer(QUERIES, DOCS, padding=True, return_tensors="pt")
    real = inputs["attention_mask"].bool()
    torch.testing.assert_close(
        ranker.score(Texts(inputs["input_ids"][real], real.sum(dim=1))), ranker(inputs, None)[0]
    )


def test_a_backbone_that_cannot_be_loaded_is_one_line(tmp_path):
    with pytest.raises(InputError, match="can't be loaded") as caught:
        PairWiseBertRanker(str(tmp_path / "nowhere"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [PairWiseBertRanker, DualEncoder])
def test_a_backbone_without_its_tokenizer_is_refused(backbone, tmp_path, kind):
    """transformers would make up a tokenizer to which every word is unknown."""
    for name in ("config.json", "model.safetensors"):
        shutil.copy(Path(backbone, name), tmp_path)
    with pytest.raises(
        InputError, match=r"has no tokenizer, or one without words; .*\(option backbone\)"
    ):
        kind(str(tmp_path))


@pytest.mark.parametrize("kind", [PairWiseBertRanker, DualEncoder])
@pytest.mark.parametrize("name, content", [
    ("model.safetensors", None), ("model.safetensors", b""), ("model.safetensors", b"cut"), ("pytorch_model.bin", b""),
    ("pytorch_model.bin", b"version https://git-lfs.github.com/spec/v1"), ("config.json", b"[]"), ("tokenizer.json", b"{}"),
])  # fmt: skip
def test_missing_and_damaged_files_are_one_line(backbone, tmp_path, kind, name, content):
    shutil.copytree(backbone, tmp_path / "bert")
    whole = (tmp_path / "bert/model.safetensors").read_bytes()
    if name != "config.json" and name != "tokenizer.json":
        (tmp_path / "bert/model.safetensors").unlink()
    if content is not None:
        (tmp_path / "bert" / name).write_bytes(whole[:1000] if content == b"cut" else content)
    what_to_do = r"(\. Give a hub id.*|; save the model again)"
    with pytest.raises(
        InputError, match=rf"tmp.*/bert' can't be loaded: .*{what_to_do} \(option backbone\)"
    ) as caught:
        kind(str(tmp_path / "bert"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [PairWiseBertRanker, DualEncoder])
def test_a_tokenizer_larger_than_the_embeddings_is_refused(backbone, tmp_path, kind):
    shutil.copytree(backbone, tmp_path / "bert")
    tokenizer = wordpiece_tokenizer()
    tokenizer.add_tokens(["new"])
    tokenizer.save_pretrained(tmp_path / "bert")
    rule = r"its tokenizer has token ids up to 67, but the encoder has embeddings for ids below 67; .*\(option backbone\)"
    with pytest.raises(InputError, match=rule):
        kind(str(tmp_path / "bert"))


def test_weights_stored_in_half_precision_are_trained_in_float32(backbone, tmp_path):
    tokenizer = wordpiece_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    half = cross_encoder(backbone).encoder.model.to(torch.bfloat16)
    half.save_pretrained(tmp_path)
    ranker = cross_encoder(tmp_path)
    assert {p.dtype for p in ranker.parameters()} == {torch.float32}


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_scores_under_mixed_precision_are_not_rounded_to_it(backbone, pooling):
    """Rounded scores would tie, and ties are broken by the documents' ids."""
    ranker = cross_encoder(backbone, pooling=pooling).eval()
    inputs = padded(ranker, QUERIES, DOCS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = ranker.score(ragged(inputs))
    assert scores.dtype == torch.float32 and not torch.equal(scores, scores.bfloat16().float())
    torch.testing.assert_close(scores, ranker.score(ragged(inputs)), atol=0.05, rtol=0.05)
