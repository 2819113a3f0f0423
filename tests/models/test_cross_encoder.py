"""The cross-encoder: scores of pairs and lists, its heads, and what it loads or refuses."""

import shutil

import pytest
import torch
from transformers import BertForSequenceClassification, RobertaConfig, RobertaModel

from ltr.batch import RankingBatch, Texts
from ltr.data.layouts import JoinedPairs
from ltr.errors import InputError
from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.models.encoder.loading.architecture import max_positions
from ltr.models.encoder.text_encoder import CHUNK_TOKENS, TextEncoder
from tests.world.backbones import make_classifier, wordpiece_tokenizer
from tests.world.encoders import SIZES

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


def batch_of(inputs) -> RankingBatch:
    """A list of one pair and one of two."""
    mask = torch.tensor([[True, False], [True, True]])
    rows = torch.zeros(2, 2, dtype=torch.int64)
    return RankingBatch(torch.zeros(2, 2), mask, rows[0], rows, pairs=ragged(inputs))


@pytest.fixture
def sides(ranker):
    """Pairs with relevant documents, and with others."""
    return padded(ranker, QUERIES, DOCS), padded(ranker, QUERIES[:2], ["w1", "w2 w3"])


def test_both_sides_come_from_one_encoder_pass(ranker, sides):
    positive, negative = sides
    calls = []
    ranker.encoder.model.register_forward_hook(lambda *a: calls.append(1))
    s_positive, s_negative = ranker(positive, negative)
    assert len(calls) == 1 and s_positive.shape == (3,) and s_negative.shape == (2,)
    torch.testing.assert_close(ranker(positive, None), (s_positive, None))
    torch.testing.assert_close(ranker(None, negative), (None, s_negative))
    assert ranker(None, None) == (None, None)


def test_inputs_without_a_mask_are_not_padded_and_types_left_out_are_0(ranker, sides):
    """Each side as alone, whatever the other side brings."""
    positive, negative = sides
    length = int(positive["attention_mask"][1].sum())
    one = {name: ids[1:2, :length] for name, ids in positive.items()}
    unmasked = {name: ids for name, ids in one.items() if name != "attention_mask"}
    torch.testing.assert_close(ranker(unmasked, negative), ranker(one, negative))

    bare = {name: ids for name, ids in negative.items() if name != "token_type_ids"}
    zeros = bare | {"token_type_ids": torch.zeros_like(bare["input_ids"])}
    expected = ranker(positive, zeros)
    torch.testing.assert_close(ranker(positive, bare), expected)
    torch.testing.assert_close(ranker(bare, positive), expected[::-1])
    torch.testing.assert_close(ranker(bare, None)[0], expected[1])
    assert (ranker(None, negative)[1] - expected[1]).abs().max() > 1e-3  # the types say something


def test_a_pair_of_padding_alone_is_refused(ranker, sides):
    sides[1]["attention_mask"][1] = 0
    rule = "every pair must have a token, but 1 of 5 are padding alone"
    with pytest.raises(InputError, match=rule):
        ranker(*sides)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_ranker_of_another_precision_scores_in_float32(ranker, dtype):
    inputs = padded(ranker, QUERIES, DOCS)
    exact = ranker(inputs, None)[0]
    scores = ranker.to(dtype)(inputs, None)[0]
    assert scores.dtype == torch.float32
    tolerance = 0.05 if dtype == torch.bfloat16 else 0.005
    torch.testing.assert_close(scores, exact, atol=tolerance, rtol=0)
    scores.sum().backward()
    assert ranker.head.weight.grad.dtype == dtype


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({"dropout": p}, rf"dropout must be at least 0 and below 1, got {p} \(option dropout\)")
            for p in (-0.1, 1.0, float("nan"))
        ),
        ({"max_length": 65}, r"max_length must be at most 64, .*, got 65 \(option max_length\)"),
    ],
)
def test_options_out_of_bounds_are_refused(backbone, options, message):
    with pytest.raises(InputError, match=message):
        PairWiseBertRanker(backbone, **{"max_length": 32} | options)


def test_ragged_texts_score_as_padded_ones_in_any_order(ranker, monkeypatch):
    inputs = padded(ranker, QUERIES + QUERIES[::-1], DOCS + DOCS)
    expected, _ = ranker(inputs, None)
    for max_tokens in (1, 30, 10_000):
        monkeypatch.setitem(CHUNK_TOKENS, "cpu", max_tokens)
        torch.testing.assert_close(ranker.score(ragged(inputs)), expected)


def test_a_batch_gives_a_score_per_document_and_zero_at_the_padding(ranker):
    inputs = padded(ranker, ["w1", "w2", "w2"], ["w3", "w4", "w5 w6"])
    batch = batch_of(inputs)
    scores = ranker(batch)
    expected, _ = ranker(inputs, None)
    assert scores[0, 1] == 0
    torch.testing.assert_close(scores[batch.mask], expected)
    scores.sum().backward()
    assert ranker.head.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("max_tokens", [1, 10_000])
def test_represent_gives_the_scores_and_what_the_head_reads(backbone, pooling, max_tokens):
    ranker = cross_encoder(backbone, pooling=pooling, max_tokens=max_tokens).eval()
    batch = batch_of(padded(ranker, ["w1", "w2", "w2"], ["w3", "w4 w7 w8 w9", "w5 w6"]))
    scores, embeddings = ranker.represent(batch)
    torch.testing.assert_close(scores, ranker(batch))
    assert embeddings.shape == (2, 2, 16) and not embeddings[~batch.mask].any()
    of_head = ranker.head(embeddings[batch.mask]).squeeze(1)
    torch.testing.assert_close(of_head, scores[batch.mask])


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_pooling_is_what_it_says(backbone, pooling):
    ranker = cross_encoder(backbone, pooling=pooling).eval()
    inputs = padded(ranker, QUERIES, DOCS)
    hidden = ranker.encoder.model(**inputs).last_hidden_state
    rows = []
    for row, length in zip(hidden, inputs["attention_mask"].sum(dim=1), strict=True):
        rows.append(row[0] if pooling == "cls" else row[:length].mean(dim=0))
    torch.testing.assert_close(ranker(inputs, None)[0], ranker.head(torch.stack(rows)).squeeze(1))


def test_a_new_ranker_trains_with_dropout(backbone):
    """from_pretrained leaves modules in eval mode; a ranker must not."""
    ranker = cross_encoder(backbone)
    assert all(module.training for module in ranker.modules())
    inputs = padded(ranker, QUERIES, DOCS)
    assert not torch.equal(ranker(inputs, None)[0], ranker(inputs, None)[0])


def test_options_reach_the_encoder_and_the_head(backbone):
    options = {"max_tokens": 7, "keep_tokens": 0, "compile": True, "pooling": "max"}
    encoder = cross_encoder(backbone, **options, dropout="own").encoder
    assert encoder.options == TextEncoder.Options(**options, dropout="own")
    assert encoder.pooling == "max"
    layer = encoder.model.encoder.layer[0]
    assert layer._compiled_call_impl is not None and layer.attention.self.dropout.p == 0.1
    ranker = PairWiseBertRanker(backbone, max_length=64, dropout=0.3)
    assert isinstance(ranker.reads, JoinedPairs) and ranker.reads.max_length == 64
    assert ranker.dropout.p == 0.3


def test_nothing_in_the_model_is_left_without_a_gradient(backbone):
    """A leftover pooler would break training on several ranks."""
    ranker = cross_encoder(backbone)
    ranker(padded(ranker, QUERIES, DOCS), None)[0].square().sum().backward()
    assert [name for name, p in ranker.named_parameters() if p.grad is None] == []


def test_a_ready_cross_encoder_keeps_its_head(tmp_path):
    folder = make_classifier(tmp_path)
    ready = BertForSequenceClassification.from_pretrained(folder).eval()
    ranker = cross_encoder(folder).eval()
    inputs = padded(ranker, QUERIES, DOCS)
    torch.testing.assert_close(ranker(inputs, None)[0], ready(**inputs).logits[:, 0])
    assert not ranker.gives_embeddings


def test_roberta_scores_without_types_and_counts_positions_behind_the_padding(tmp_path):
    tokenizer = wordpiece_tokenizer()
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    tokenizer.save_pretrained(tmp_path)
    sizes = SIZES | {"vocab_size": len(tokenizer), "max_position_embeddings": 34}
    RobertaModel(RobertaConfig(**sizes, pad_token_id=0)).save_pretrained(tmp_path)
    ranker = cross_encoder(tmp_path).eval()
    assert max_positions(ranker.encoder.model) == 33
    inputs = padded(ranker, QUERIES, DOCS)
    real = inputs["attention_mask"].bool()
    texts = Texts(inputs["input_ids"][real], real.sum(dim=1))
    torch.testing.assert_close(ranker.score(texts), ranker(inputs, None)[0])


def without_tokenizer(folder):
    """transformers would make up a tokenizer to which every word is unknown."""
    for file in folder.glob("*token*"):
        file.unlink()


def with_a_word_more(folder):
    tokenizer = wordpiece_tokenizer()
    tokenizer.add_tokens(["new"])
    tokenizer.save_pretrained(folder)


def with_file(name, content):
    """Weights are in this file alone."""

    def change(folder):
        weights = folder / "model.safetensors"
        start = weights.read_bytes()[:1000]
        if not name.endswith("json"):
            weights.unlink()
        if content is not None:
            (folder / name).write_bytes(start if content == b"cut" else content)

    return change


CANT_LOAD = r"tmp.*/bert' can't be loaded: .*(\. Give a hub id.*|; save the model again) "
LARGER = (
    r"its tokenizer has token ids up to 67, but the encoder has embeddings for ids below 67; .*"
)


@pytest.mark.parametrize("kind", [PairWiseBertRanker, DualEncoder])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shutil.rmtree, "can't be loaded.*"),
        (without_tokenizer, "has no tokenizer, or one without words; .*"),
        (with_a_word_more, LARGER),
        (with_file("model.safetensors", None), CANT_LOAD),
        (with_file("model.safetensors", b""), CANT_LOAD),
        (with_file("model.safetensors", b"cut"), CANT_LOAD),
        (with_file("pytorch_model.bin", b""), CANT_LOAD),
        (with_file("pytorch_model.bin", b"version https://git-lfs.github.com/spec/v1"), CANT_LOAD),
        (with_file("config.json", b"[]"), CANT_LOAD),
        (with_file("tokenizer.json", b"{}"), CANT_LOAD),
    ],
)
def test_a_folder_that_is_no_backbone_is_one_line(backbone, tmp_path, kind, change, message):
    shutil.copytree(backbone, tmp_path / "bert")
    change(tmp_path / "bert")
    with pytest.raises(InputError, match=rf"{message}\(option backbone\)") as caught:
        kind(str(tmp_path / "bert"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_scores_under_mixed_precision_are_not_rounded_to_it(backbone, pooling):
    """Rounded scores would tie, and ties are broken by the documents' ids."""
    ranker = cross_encoder(backbone, pooling=pooling).eval()
    inputs = padded(ranker, QUERIES, DOCS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = ranker.score(ragged(inputs))
    assert scores.dtype == torch.float32 and not torch.equal(scores, scores.bfloat16().float())
    torch.testing.assert_close(scores, ranker.score(ragged(inputs)), atol=0.05, rtol=0.05)
