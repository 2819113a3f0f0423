"""What the architectures of transformers call their layers, positions and dropout."""

import pytest
import torch
from torch import nn
from transformers import AutoModel, BertConfig, DistilBertConfig, DistilBertModel, XLMConfig

import ltr
from ltr.batch import Texts
from ltr.errors import InputError
from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.models.encoder.loading.architecture import (
    leave_out_dropout,
    padding_index,
    turn_off_fixed_dropout,
)
from ltr.models.encoder.loading.pretrained import load_encoder
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.use.rankers import TextRanker
from tests.models.encoder.test_packed import CONFIGS, built
from tests.world.backbones import wordpiece_tokenizer
from tests.world.encoders import bert, modernbert, reader

PADDING_INDEX = {"roberta": 1, "xlm-roberta": 1}

TEXTS = Texts(torch.arange(5, 16), torch.tensor([4, 7]))


ENCODERS = {
    "bert": lambda: bert(num_hidden_layers=6),
    "distilbert": lambda: DistilBertModel(
        DistilBertConfig(vocab_size=60, dim=16, n_heads=2, hidden_dim=32, n_layers=6)
    ),
    "modernbert": lambda: modernbert(num_hidden_layers=6, global_attn_every_n_layers=3),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_every_second_layer_is_kept_and_saved(name, tmp_path):
    """As a model of the library with these layers; a plain load of the saved one gives the same."""
    model = ENCODERS[name]().eval()
    third = {key: value.clone() for key, value in model.state_dict().items() if ".2." in key}
    small = reader(model, layers=3, dropout="none").eval()
    assert model.config.num_hidden_layers == 3 and third
    found = model.state_dict()
    for key, value in third.items():  # the third layer is now the second
        torch.testing.assert_close(found[key.replace(".2.", ".1.")], value)
    assert not any(".3." in key for key in found)
    with torch.no_grad():
        expected = small(TEXTS)
    model.set_attn_implementation("eager")
    model.save_pretrained(tmp_path)
    loaded = reader(AutoModel.from_pretrained(tmp_path).eval(), dropout="none").eval()
    with torch.no_grad():
        torch.testing.assert_close(loaded(TEXTS), expected, atol=1e-5, rtol=1e-5)
    if name == "modernbert":
        assert len(model.config.layer_types) == 3


def test_one_layer_and_all():
    model = bert(num_hidden_layers=6)
    for layers in (6, 1):
        reader(model, layers=layers)
        assert model.config.num_hidden_layers == layers
    with pytest.raises(InputError, match="layers must be at most 1, which the encoder has, got 2"):
        reader(model, layers=2)
    with pytest.raises(InputError, match="layers must be at least 1, got 0"):
        TextEncoder.Options(layers=0)


@pytest.mark.parametrize("kind", [PairWiseBertRanker, DualEncoder])
def test_a_small_ranker_is_exported_with_its_layers(kind, tmp_path):
    bert(num_hidden_layers=6, vocab_size=70).save_pretrained(tmp_path / "six")
    wordpiece_tokenizer().save_pretrained(tmp_path / "six")
    options = TextEncoder.Options(layers=2, new_weights=True)  # it has no pooler
    ranker = kind(str(tmp_path / "six"), max_length=20, encoder=options)
    pairs = [("w1", "w2 w3"), ("w4", "w5")]
    ranker.save(tmp_path / "two")
    assert AutoModel.from_pretrained(tmp_path / "two").config.num_hidden_layers == 2
    expected = TextRanker(ranker).score(pairs)
    assert ltr.load(tmp_path / "two", "32-true").score(pairs) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_padding_index(name):
    assert padding_index(built(name)) == PADDING_INDEX.get(name)


@pytest.mark.parametrize(
    "config",
    [XLMConfig(emb_dim=16, n_layers=1, n_heads=2), DistilBertConfig(dim=16, n_layers=1, n_heads=2)],
)
def test_no_dropout_is_none_whatever_an_architecture_calls_it(config, tmp_path):
    config.vocab_size = 100
    config.max_position_embeddings = 64
    config.architectures = None
    AutoModel.from_config(config).save_pretrained(tmp_path)
    ids = torch.arange(3, 13)[None]
    for dropout, same in (("none", True), ("own", False)):
        model = load_encoder(str(tmp_path), dropout)[0].train()
        assert torch.equal(model(ids).last_hidden_state, model(ids).last_hidden_state) == same


def test_hidden_leaves_out_the_dropout_of_attention_alone():
    config = BertConfig(hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.3)
    assert leave_out_dropout(config, "own") == {}
    assert leave_out_dropout(config, "hidden") == {"attention_probs_dropout_prob": 0.3}
    assert config.attention_probs_dropout_prob == 0.0 and config.hidden_dropout_prob == 0.2
    assert leave_out_dropout(config, "none") == {"hidden_dropout_prob": 0.2}


@pytest.mark.parametrize("dropout, p", [("none", 0.0), ("hidden", 0.4), ("own", 0.4)])
def test_fixed_dropout_is_turned_off_under_none_only(dropout, p):
    layer = nn.Sequential(nn.Dropout(0.4))
    turn_off_fixed_dropout(layer, dropout)
    assert layer[0].p == p
