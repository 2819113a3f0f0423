"""From a name to a ranker: every cell of the table of docs/use.md, and checkpoints that make none."""

import copy
import json
import logging
import re
import shutil
import sys
from functools import partial
from importlib import import_module
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    T5Config,
    T5ForConditionalGeneration,
)

import ltr
from ltr.callbacks import HardNegativeMining
from ltr.checkpoint import FORMAT
from ltr.data.whole_files import write_new
from ltr.errors import InputError
from ltr.in_batch import OtherQueries
from ltr.losses import SoftmaxLoss
from ltr.margins import FromQuery
from ltr.mining.judge import open_judge
from ltr.models import DecoderRanker, DualEncoder, FeatureRanker, PairWiseBertRanker
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.models.named import open_ranker, ranker_named
from ltr.module import RankerModule
from ltr.run.init_from import take_weights
from tests.world.decoders import save_decoder

PAGE = (Path(__file__).parents[2] / "docs/use.md").read_text()
FEATURES = {
    "class_path": "ltr.models.FeatureRanker",
    "init_args": {"n_features": 2, "preset": "linear"},
}
# What a cell of the table says, and the rankers that it means.
TAKES = {
    "all": {"cross", "decoder", "dual", "features"},
    "texts": {"cross", "decoder", "dual"},
    "dual": {"dual"},
    "none": set(),
}


def table() -> dict[tuple[str, str], set[str]]:
    """The rankers that the page says are taken, by kind of name and door."""
    lines = re.findall(r"^\|(.*)\|$", PAGE[PAGE.index("| a name is |") :], flags=re.MULTILINE)
    rows = [[cell.strip(" `") for cell in line.split("|")] for line in lines]
    names = rows[0][1:]
    cells = {}
    for kind, *values in rows[2 : 2 + 6]:
        for name, value in zip(names, values, strict=True):
            cells[kind, name] = TAKES[value]
    return cells


CELLS = table()


def settings(kind: str, backbone: str) -> dict:
    """How a run of each kind of ranker says what it is built of."""
    if kind == "features":
        return FEATURES
    if kind == "decoder":
        options = {"backbone": f"{backbone}-decoder", "max_length": 300}
        return {"class_path": "ltr.models.DecoderRanker", "init_args": options}
    name = {"cross": "PairWiseBertRanker", "dual": "DualEncoder"}[kind]
    options = {"backbone": backbone, "max_length": 20}
    if kind == "dual":
        options |= {"query_prompt": "w1 ", "encoder": {"pooling": "cls"}}
    return {"class_path": f"ltr.models.{name}", "init_args": options}


@pytest.fixture(scope="module")
def rankers(backbone):
    """One of each kind, with weights that no backbone has."""
    torch.manual_seed(7)
    dual = ranker_options(settings("dual", backbone))
    decoder = settings("decoder", backbone)["init_args"]
    save_decoder(Path(decoder["backbone"]))
    models = {
        "cross": PairWiseBertRanker(backbone, max_length=20),
        "decoder": DecoderRanker(**decoder),
        "dual": dual,
        "features": FeatureRanker(n_features=2, preset="linear"),
    }
    for model in models.values():
        for weight in model.parameters():
            weight.data += 0.01 * torch.randn_like(weight)
    return models


def ranker_options(said: dict) -> DualEncoder:
    options = dict(said["init_args"])
    return DualEncoder(**options | {"encoder": TextEncoder.Options(**options["encoder"])})


@pytest.fixture(scope="module")
def names(rankers, backbone, tmp_path_factory):
    """The name of each ranker by kind of name; of a feature ranker only those that it can have."""
    root = tmp_path_factory.mktemp("names")
    found = {}
    for kind, model in rankers.items():
        run = root / f"run-{kind}"
        (run / "checkpoints").mkdir(parents=True)
        checkpoint = {
            "state_dict": {f"ranker.{name}": v for name, v in model.state_dict().items()},
            "pytorch-lightning_version": "2.6.0",
            "hyper_parameters": {"ranker": settings(kind, backbone)},
        }
        torch.save(checkpoint, run / "checkpoints/best.ckpt")
        found["a run folder", kind] = str(run)
        found["a checkpoint", kind] = str(run / "checkpoints/best.ckpt")
        if kind == "features":
            continue
        exported = root / f"exported-{kind}"
        model.save(exported)
        found["an exported folder", kind] = str(exported)
        package = root / f"ltr_tiny_{kind}"
        shutil.copytree(exported, package)
        (package / "__init__.py").write_text("")
        found["package:NAME", kind] = f"package:{package.name}"
        cached = root / "hub" / f"models--tiny--{kind}"
        (cached / "refs").mkdir(parents=True)
        (cached / "refs/main").write_text("0" * 40)
        shutil.copytree(exported, cached / "snapshots" / ("0" * 40))
        found["a hub id", kind] = f"tiny/{kind}"
        adapters = root / f"adapters-{kind}"
        adapters.mkdir()
        config = {"peft_type": "LORA", "base_model_name_or_path": str(exported)}
        (adapters / "adapter_config.json").write_text(json.dumps(config))
        found["a folder of adapters", kind] = str(adapters)
    return root, found


@pytest.fixture
def named(names, monkeypatch):
    root, found = names
    monkeypatch.syspath_prepend(root)
    for module in (huggingface_hub.constants,):
        monkeypatch.setattr(module, "HF_HUB_CACHE", str(root / "hub"))
    return found


def module_of(ranker, **options):
    return RankerModule(ranker, SoftmaxLoss(), lr=1e-3, **options)


def through(door, name, kind, backbone):
    """The ranker that a door makes of a name."""
    if door == "load":
        return ltr.load(name).model
    if door == "--judge":
        return open_judge(name)
    if door == "judge":
        return HardNegativeMining(judge=name).judging_ranker
    if door == "miner":
        return HardNegativeMining(miner=name).fixed_searcher
    if door == "guide":
        module = module_of(DualEncoder(backbone, max_length=24), in_batch=OtherQueries(guide=name))
        return module.in_batch._encoders_beside[name]
    if door == "encoder":
        module = module_of(DualEncoder(backbone, max_length=24), margin=FromQuery(encoder=name))
        return module.in_batch._encoders_beside[name]
    said = settings(kind, backbone)["init_args"]
    kinds = {"cross": PairWiseBertRanker, "decoder": DecoderRanker, "features": FeatureRanker}
    ranker = ranker_options({"init_args": said}) if kind == "dual" else kinds[kind](**said)
    module = module_of(ranker)
    take_weights(module, name, "--init_from")
    assert module.ranker.new_parts == (), "what was made up has been replaced"
    return module.ranker


@pytest.mark.parametrize(("row", "door"), CELLS)
def test_every_cell_of_the_table_holds(named, rankers, backbone, row, door):
    """What it takes has the weights of the ranker that is named; the rest is refused in one line."""
    for kind, ranker in rankers.items():
        name = named.get((row, kind))
        if name is None:
            continue
        if kind not in CELLS[row, door]:
            with pytest.raises(InputError, match=re.escape(name)) as error:
                through(door, name, kind, backbone)
            assert "\n" not in str(error.value)
            continue
        model = through(door, name, kind, backbone)
        assert type(model) is type(ranker)
        expected = ranker.state_dict()
        assert all(torch.equal(v, expected[key]) for key, v in model.state_dict().items())


def test_what_was_trained_for_another_task_is_refused_by_name_and_told_as_a_backbone(
    tmp_path, backbone, caplog
):
    """Two labels, as nboost's rerankers; three, as of NLI; tags of words; T5; ColBERT."""
    tokenizer = AutoTokenizer.from_pretrained(backbone)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(
        vocab_size=len(tokenizer), intermediate_size=16, max_position_embeddings=64, **sizes
    )
    t5 = T5Config(vocab_size=len(tokenizer), d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    config.num_labels = 2
    models = {"two": BertForSequenceClassification(copy.deepcopy(config))}
    config.num_labels = 3
    models["nli"] = BertForSequenceClassification(config)
    models["tags"] = BertForTokenClassification(config)
    models["t5"] = T5ForConditionalGeneration(t5)
    models["colbert"] = BertModel(config)
    heads = {
        "two": "its head of 2 labels",
        "nli": "its head of 3 labels",
        "tags": "its head (BertForTokenClassification)",
        "t5": "its decoder (T5ForConditionalGeneration)",
        "colbert": "its head (HF_ColBERT)",
    }
    for kind, model in models.items():
        folder = tmp_path / kind
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        if kind == "colbert":
            said = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(
                json.dumps(said | {"architectures": ["HF_ColBERT"]})
            )
        counts = {"two": "gives 2; take", "nli": "gives 3; take"}
        refusal = counts.get(kind, f"{heads[kind]} would not be read")
        caplog.clear()
        for needs in ("any", "texts", "embeddings"):
            with pytest.raises(InputError, match=re.escape(refusal)):
                ranker_named(folder, "source", needs)
        assert not caplog.messages
        DualEncoder(str(folder), max_length=20)
        start = "with mean pooling, is only the start of a dual encoder"
        told = [line for line in caplog.messages if line.startswith("backbone")]
        assert told == [
            f"backbone {str(folder)!r} is of another task: {heads[kind]} is left out, and its encoder, {start}"
        ]
        if kind == "t5":  # a cross-encoder has no decoder
            continue
        caplog.clear()
        PairWiseBertRanker(str(folder), max_length=20)
        assert caplog.messages == [
            f"backbone {str(folder)!r}: {heads[kind]} is left out; the ranker begins with another one"
        ]


@pytest.mark.parametrize("kind", ["ColBERT", "MultiVectorEncoder", "SparseEncoder"])
def test_a_model_of_many_vectors_a_text_is_refused(backbone, tmp_path, kind):
    DualEncoder(backbone).save(tmp_path / "saved")
    settings = tmp_path / "saved/config_sentence_transformers.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"model_type": kind}))
    for open_it in (partial(ranker_named, option="source"), lambda name: DualEncoder(str(name))):
        with pytest.raises(InputError, match=f"is a {kind}, whose texts have no single embedding"):
            open_it(tmp_path / "saved")


def test_the_pooling_of_a_plain_encoder_is_told_once(backbone, tmp_path, caplog, named):
    """By name as a warning, of a ranker that is built as information, and not of a run."""
    told = f"backbone {backbone!r} says nothing of a pooling: its encoder is read without a head, with mean pooling; encoder.pooling sets another"
    with caplog.at_level(logging.INFO, logger="ltr"):
        ranker_named(backbone, "source")
        assert [(r.levelname, r.getMessage()) for r in caplog.records] == [("WARNING", told)]
        caplog.clear()
        ranker_named(backbone, "source", changes={"encoder": {"pooling": "cls"}})
        DualEncoder(backbone, encoder=TextEncoder.Options(pooling="mean"))
        ranker_named(named["a run folder", "dual"], "source")
        ranker_named(named["an exported folder", "dual"], "source")
        assert not caplog.records
        DualEncoder(backbone)
        assert [(r.levelname, r.getMessage()) for r in caplog.records] == [("INFO", told)]
    decoder = save_decoder(tmp_path / "decoder")
    caplog.clear()
    ranker_named(decoder, "source", "embeddings")
    assert caplog.messages == [told.replace(backbone, decoder).replace("mean", "last")]


def test_a_guide_of_a_run_reads_what_is_laid_out_for_the_ranker(named, backbone):
    """Its own prompt and length are not those of the ranker's tokens; its pooling stays."""
    guide = through("guide", named["a run folder", "dual"], "dual", backbone)
    assert [(form.prompt, form.max_length) for form in guide.reads] == [("", 24), ("", 24)]
    assert guide.query_tower.encoder.pooling == "cls" and not guide.training
    assert ranker_named(named["a run folder", "dual"], "x").reads.queries.prompt == "w1 "


@pytest.mark.parametrize("kind", ["cross", "dual"])
@pytest.mark.parametrize("row", ["a run folder", "an exported folder"])
def test_options_of_the_encoder_can_be_changed_one_by_one(named, row, kind):
    changes = {"encoder": {"max_tokens": 9}}
    ranker = ranker_named(named[row, kind], "x", changes=changes)
    encoder = ranker.encoder if kind == "cross" else ranker.query_tower.encoder
    assert encoder.options.max_tokens == 9 and encoder.options.keep_tokens is None


def test_the_length_of_a_model_of_no_run_can_be_set(named):
    exported = named["an exported folder", "cross"]
    assert ranker_named(exported, "x").reads.max_length == 20
    assert ranker_named(exported, "x", max_length=12).reads.max_length == 12
    run = open_ranker(named["a run folder", "cross"], "x", max_length=12)
    assert run.ranker.reads.max_length == 20 and run.file.name == "best.ckpt"


def test_what_is_no_name_is_one_line(tmp_path, backbone):
    (tmp_path / "grid/seed=0").mkdir(parents=True)
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    (tmp_path / "run/config.yaml").write_text("")
    for name, message in (
        (tmp_path / "nothing", "--judge .*nothing: there is no run, checkpoint or model"),
        ("runs/nothing", "--judge runs/nothing: there is no run, checkpoint or model"),
        (tmp_path / "grid", "holds several runs; name one: .*seed=0"),
        (tmp_path / "run", "--judge best: there is no .*best.ckpt; train first"),
        ("no/model", "--judge no/model: backbone 'no/model' can't be loaded"),
        ("package:ltr_nothing", "--judge package:ltr_nothing: .* is not installed"),
    ):
        with pytest.raises(InputError, match=message):
            ranker_named(name, "--judge")


OVERFLOWN = {
    "ranker.head.weight": torch.tensor([[1.0, float("inf")]]),
    "ranker.head.bias": torch.zeros(1),
}


def test_an_empty_name_is_refused(tmp_path, monkeypatch):
    """As of a variable of the shell that is not set. As a path it would be the working directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("", " "):
        with pytest.raises(InputError, match="judge must name a run, a checkpoint or a model"):
            open_ranker(name, "judge")


@pytest.mark.parametrize(
    ("settings", "weights", "message"),
    [
        ({}, {}, "the checkpoint must say how its ranker is built, and does not"),
        (
            {"ranker": FEATURES | {"init_args": None}},
            {},
            "the file is damaged, hyper_parameters.ranker.init_args must be an object, got null",
        ),
        (
            {"ranker": FEATURES | {"class_path": 5}},
            {},
            "the file is damaged, hyper_parameters.ranker.class_path must be a text, got 5",
        ),
        (
            {"ranker": {"class_path": "ltr.models.DualEncoder", "init_args": {"encoder": 5}}},
            {},
            "the file is damaged, .*init_args.encoder must be an object, got 5",
        ),
        (
            {"ranker": FEATURES},
            {"ranker.other": torch.zeros(1)},
            "the weights do not fit the ranker",
        ),
        (
            {"ranker": FEATURES},
            OVERFLOWN,
            "the weights hold NaN or infinity; the model has diverged",
        ),
    ],
)
def test_a_checkpoint_that_makes_no_ranker_is_one_line(tmp_path, settings, weights, message):
    file = tmp_path / "a.ckpt"
    torch.save(
        {"state_dict": weights, "pytorch-lightning_version": "2", "hyper_parameters": settings},
        file,
    )
    with pytest.raises(InputError, match=message) as error:
        ranker_named(file, "--judge")
    assert str(error.value).startswith(f"--judge {file}: ")


def test_a_checkpoint_with_an_option_that_no_constructor_takes_is_one_line(tmp_path, backbone):
    """The parser lets null pass, also for a number."""
    file = tmp_path / "a.ckpt"
    options = {"backbone": backbone, "temperature": None}
    settings = {"ranker": {"class_path": "ltr.models.DualEncoder", "init_args": options}}
    torch.save(
        {"state_dict": {}, "pytorch-lightning_version": "2", "hyper_parameters": settings}, file
    )
    with pytest.raises(InputError, match=r"DualEncoder can't be built here: .*'NoneType'") as error:
        ranker_named(file, "--judge")
    assert str(error.value).startswith(f"--judge {file}: ")


@pytest.mark.parametrize("needs", ["any", "embeddings"])
@pytest.mark.parametrize("class_path", ["not_there.Ranker", "ltr.models.NoRanker", "NoDot"])
def test_a_checkpoint_whose_class_is_not_here_is_one_line(tmp_path, class_path, needs):
    file = tmp_path / "a.ckpt"
    settings = {"ranker": {"class_path": class_path, "init_args": {}}}
    torch.save(
        {"state_dict": {}, "pytorch-lightning_version": "2", "hyper_parameters": settings}, file
    )
    with pytest.raises(InputError, match=f"its ranker {class_path} can't be built here") as error:
        ranker_named(file, "--judge", needs)
    assert str(error.value).startswith(f"--judge {file}: ") and "\n" not in str(error.value)


EVIL = """
from pathlib import Path

Path("EVIL_RAN").touch()
"""
OWN = """
from typing import Any

from torch import nn

from ltr.data.layouts import FeatureVectors
from ltr.models import FeatureRanker


class Own(FeatureRanker):
    def __init__(self, n_features: int, part: nn.Module | None = None, rest: Any = None, **others: Any):
        super().__init__(n_features, "linear")
"""
CODE = {"class_path": "subprocess.Popen", "init_args": {"args": ["touch", "EVIL_RAN"]}}
PART = {"class_path": "evil.Part"}


@pytest.fixture
def folder_with_code(tmp_path, monkeypatch):
    """A working directory with ``evil.py``, which leaves a file where it is imported, and a ranker
    of one's own.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evil.py").write_text(EVIL)
    (tmp_path / "evil_package").mkdir()
    (tmp_path / "evil_package/__init__.py").write_text(EVIL)
    (tmp_path / "own_rankers.py").write_text(OWN)
    yield
    for module in ("evil", "evil_package", "evil_package.part", "own_rankers"):
        sys.modules.pop(module, None)


def checkpoint_of(class_path: str, options: dict, weights: dict | None = None) -> str:
    named = {"class_path": class_path, "init_args": options}
    checkpoint = {
        "state_dict": weights or {},
        "pytorch-lightning_version": "2",
        "hyper_parameters": {"ranker": named},
    }
    torch.save(checkpoint, "a.ckpt")
    return "a.ckpt"


@pytest.mark.parametrize("needs", ["any", "embeddings"])
@pytest.mark.parametrize(
    ("class_path", "options", "message"),
    [
        ("evil.Ranker", {}, "evil is not imported; import it first, if you trust it"),
        ("evil_package.part.Ranker", {}, "evil_package.part is not imported"),
        (
            "subprocess.Popen",
            {"args": ["touch", "EVIL_RAN"]},
            "it must be a subclass of ltr.models",
        ),
        ("torch.nn.Linear", {"in_features": 1, "out_features": 1}, "it must be a subclass of ltr"),
        ("ltr.models.Ranker", {"x": CODE}, "it must be a subclass of ltr.models.Ranker"),
        ("ltr.models.DualEncoder", {"backbone": "b", "x": CODE}, "has no option x here; was the"),
    ],
)
def test_a_checkpoint_runs_no_code_by_the_name_of_its_ranker(
    folder_with_code, class_path, options, message, needs
):
    file = checkpoint_of(class_path, options)
    with pytest.raises(InputError, match=message) as error:
        ranker_named(file, "--judge", needs)
    assert str(error.value).startswith("--judge a.ckpt: its ranker ")
    assert not Path("EVIL_RAN").exists()


@pytest.mark.parametrize(
    "options",
    [
        {"backbone": CODE},
        {"backbone": "package:evil_package.part"},
        {"backbone": "package:evil"},
        {"backbone": "b", "encoder": {"dropout": CODE}},
        {"backbone": "b", "encoder": {"x": CODE}},
    ],
)
def test_a_checkpoint_runs_no_code_by_the_options_of_its_ranker(folder_with_code, options):
    file = checkpoint_of("ltr.models.DualEncoder", options)
    with pytest.raises(InputError, match=r"^--judge a.ckpt: "):
        ranker_named(file, "--judge")
    assert not Path("EVIL_RAN").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"part": "evil.Part"}, "evil is not imported"),
        ({"part": PART}, "evil is not imported"),
        ({"rest": [{"a": PART}]}, "evil is not imported"),
        ({"rest": CODE}, "subprocess.Popen, of its options, is no torch.nn.Module"),
        ({"others": CODE}, "subprocess.Popen, of its options, is no torch.nn.Module"),
    ],
)
def test_nor_by_the_options_of_an_own_ranker(folder_with_code, options, message):
    import_module("own_rankers")
    file = checkpoint_of("own_rankers.Own", {"n_features": 2} | options)
    with pytest.raises(InputError, match=message):
        ranker_named(file, "--judge")
    assert not Path("EVIL_RAN").exists()


def test_an_own_ranker_is_opened_where_its_module_is_imported(folder_with_code):
    weights = {"ranker.head.weight": torch.ones(1, 2), "ranker.head.bias": torch.zeros(1)}
    part = {"class_path": "torch.nn.Linear", "init_args": {"in_features": 1, "out_features": 1}}
    options = {"n_features": 2, "part": part, "rest": "no.class", "other": 1}
    file = checkpoint_of("own_rankers.Own", options, weights)
    with pytest.raises(InputError, match="own_rankers is not imported"):
        ltr.load(file)
    import_module("own_rankers")
    assert ltr.load(file).score([[1.0, 2.0]]).tolist() == [3.0]


def test_a_checkpoint_whose_backbone_is_gone_is_named(tmp_path):
    file = tmp_path / "a.ckpt"
    hyper_parameters = {"ranker": settings("cross", str(tmp_path / "gone"))}
    torch.save(
        {"state_dict": {}, "pytorch-lightning_version": "2", "hyper_parameters": hyper_parameters},
        file,
    )
    with pytest.raises(InputError, match="gone' can't be loaded") as error:
        ranker_named(file, "--judge")
    assert str(error.value).startswith(f"--judge {file}: ")


def test_a_relative_backbone_is_that_of_where_the_run_was_started(
    rankers, backbone, tmp_path, monkeypatch
):
    """From anywhere, also where another model of the same name lies."""
    start = tmp_path / "start"
    run = start / "runs/a"
    (run / "checkpoints").mkdir(parents=True)
    shutil.copytree(backbone, start / "bb")
    saved = settings("dual", backbone)
    saved["init_args"] |= {"backbone": "bb", "doc_backbone": "bb"}
    monkeypatch.chdir(start)
    built = ranker_options(saved)
    weights = {f"ranker.{name}": weight for name, weight in built.state_dict().items()}
    checkpoint = {"state_dict": weights, "pytorch-lightning_version": "2"}
    checkpoint["hyper_parameters"] = {"ranker": saved}
    torch.save(checkpoint, run / "checkpoints/best.ckpt")
    (run / "metrics.json").write_text(json.dumps({"format": FORMAT, "directory": str(start)}))
    assert ranker_named("runs/a", "source").key == built.key
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "bb").mkdir(parents=True)
    monkeypatch.chdir(elsewhere)
    for name in (run, run / "checkpoints/best.ckpt", "../start/runs/a"):
        assert ranker_named(name, "source").key == built.key
    for content in ("{", "[]", '{"directory": 3}'):
        (run / "metrics.json").write_text(content)
        with pytest.raises(InputError, match=r"backbone 'bb' .*seen from .*elsewhere"):
            ranker_named(run, "source")


@pytest.mark.parametrize("name", ["a" * 256, "é" * 128, "a/" * 2500])
def test_a_name_that_no_disk_takes_is_one_line(name, tmp_path):
    with pytest.raises(InputError, match="at most 255 bytes, and a path 4095, got"):
        ranker_named(name, "source")
    with pytest.raises(InputError, match="at most 255 bytes"):
        write_new(tmp_path / name, Path.mkdir, "the folder")
