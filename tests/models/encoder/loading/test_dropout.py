"""Which dropout of an encoder is left out, whatever its architecture calls it."""

import pytest
import torch
from torch import nn
from transformers import AutoModel, BertConfig, DistilBertConfig, XLMConfig

from ltr.models.encoder.loading.dropout import leave_out_dropout, turn_off_fixed_dropout
from ltr.models.encoder.loading.pretrained import load_encoder


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
