"""A smaller encoder made of some layers of a larger one."""

import pytest
import torch
from transformers import (
    AutoModel,
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    ModernBertConfig,
    ModernBertModel,
)

import ltr
from ltr.batch import Texts
from ltr.errors import InputError
from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.use.rankers import TextRanker
from tests.conftest import wordpiece_tokenizer

SIZES = {
    "vocab_size": 70,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
}
TEXTS = Texts(torch.arange(5, 16), torch.tensor([4, 7]))


def encoders():
    torch.manual_seed(0)
    bert = BertModel(BertConfig(**SIZES, num_hidden_layers=6))
    distil = DistilBertModel(
        DistilBertConfig(vocab_size=70, dim=16, n_heads=2, hidden_dim=32, n_layers=6)
    )
    modern = ModernBertModel(
        ModernBertConfig(**SIZES, num_hidden_layers=6, pad_token_id=0, local_attention=4)
    )
    return {"bert": bert, "distilbert": distil, "modernbert": modern}


@pytest.mark.parametrize("name", ["bert", "distilbert", "modernbert"])
def test_every_second_layer_is_kept_and_saved(name, tmp_path):
    """As a model of the library with these layers; a plain load of the saved one gives the same."""
    model = encoders()[name].eval()
    names = [key for key in model.state_dict() if ".3." in key or ".2." in key]
    third = {key: value.clone() for key, value in model.state_dict().items() if ".2." in key}
    small = TextEncoder(model, 0, TextEncoder.Options(layers=3, dropout="none")).eval()
    assert model.config.num_hidden_layers == 3 and names
    found = model.state_dict()
    for key, value in third.items():  # the third layer is now the second
        torch.testing.assert_close(found[key.replace(".2.", ".1.")], value)
    assert not any(".3." in key for key in found)
    with torch.no_grad():
        expected = small(TEXTS)
    model.set_attn_implementation("eager")
    model.save_pretrained(tmp_path)
    loaded = TextEncoder(
        AutoModel.from_pretrained(tmp_path).eval(), 0, TextEncoder.Options(dropout="none")
    ).eval()
    with torch.no_grad():
        torch.testing.assert_close(loaded(TEXTS), expected, atol=1e-5, rtol=1e-5)
    if name == "modernbert":
        assert len(model.config.layer_types) == 3


def test_one_layer_and_all():
    model = encoders()["bert"]
    TextEncoder(model, 0, TextEncoder.Options(layers=6))
    assert model.config.num_hidden_layers == 6
    TextEncoder(model, 0, TextEncoder.Options(layers=1))
    assert model.config.num_hidden_layers == 1
    with pytest.raises(InputError, match="layers must be at most 1, which the encoder has, got 2"):
        TextEncoder(model, 0, TextEncoder.Options(layers=2))
    with pytest.raises(InputError, match="layers must be at least 1, got 0"):
        TextEncoder.Options(layers=0)


@pytest.mark.parametrize("kind", [PairWiseBertRanker, DualEncoder])
def test_a_small_ranker_is_exported_with_its_layers(kind, tmp_path):
    encoders()["bert"].save_pretrained(tmp_path / "six")
    wordpiece_tokenizer().save_pretrained(tmp_path / "six")
    ranker = kind(str(tmp_path / "six"), max_length=20, encoder=TextEncoder.Options(layers=2))
    pairs = [("w1", "w2 w3"), ("w4", "w5")]
    ranker.save(tmp_path / "two")
    assert AutoModel.from_pretrained(tmp_path / "two").config.num_hidden_layers == 2
    assert ltr.load(tmp_path / "two", "32-true").score(pairs) == pytest.approx(
        TextRanker(ranker).score(pairs), abs=1e-5
    )
