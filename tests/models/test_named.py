"""From a name to a ranker: every cell of the table of docs/names.md, and checkpoints that make none."""

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
    BertForTokenClassification,
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
from ltr.models import DualEncoder, PairWiseBertRanker, Ranker
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.models.named import open_ranker, ranker_named
from ltr.module import RankerModule
from ltr.run.init_from import take_weights
from tests.world.backbones import make_classifier
from tests.world.decoders import save_decoder

PAGE = (Path(__file__).parents[2] / "docs/names.md").read_text()
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


KINDS = ("cross", "decoder", "dual", "features")


def settings(kind: str, backbone: str) -> dict:
    """How a run of each kind of ranker says what it is built of."""
    if kind == "features":
        return FEATURES
    if kind == "decoder":
        options = {"backbone": f"{backbone}-decoder", "max_length": 300}
        return {"class_path": "ltr.models.DecoderRanker", "init_args": options}
    options = {"backbone": backbone, "max_length": 20}
    if kind == "cross":
        return {"class_path": "ltr.models.PairWiseBertRanker", "init_args": options}
    options |= {"query_prompt": "w1 ", "encoder": {"pooling": "cls"}}
    return {"class_path": "ltr.models.DualEncoder", "init_args": options}


@pytest.fixture(scope="module")
def rankers(backbone, made_once):
    """One of each kind, with weights that no backbone has."""
    made_once(f"{Path(backbone).name}-decoder", save_decoder)
    torch.manual_seed(7)
    models = {kind: built(settings(kind, backbone)) for kind in KINDS}
    for model in models.values():
        for weight in model.parameters():
            weight.data += 0.01 * torch.randn_like(weight)
    return models


def built(said: dict) -> Ranker:
    """The ranker of its settings."""
    options = dict(said["init_args"])
    if "encoder" in options:
        options["encoder"] = TextEncoder.Options(**options["encoder"])
    return getattr(ltr.models, said["class_path"].rpartition(".")[2])(**options)


def write_checkpoint(file: Path, ranker: dict | None, weights: dict) -> Path:
    """What a run saves of its ranker, whose settings may be missing."""
    checkpoint = {
        "state_dict": {f"ranker.{name}": weight for name, weight in weights.items()},
        "pytorch-lightning_version": "2.6.0",
        "hyper_parameters": {} if ranker is None else {"ranker": ranker},
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save(checkpoint, file)
    return file


@pytest.fixture(scope="module")
def names(rankers, backbone, tmp_path_factory):
    """The name of each ranker by kind of name; of a feature ranker only those that it can have."""
    root = tmp_path_factory.mktemp("names")
    found = {}
    for kind, model in rankers.items():
        run = root / f"run-{kind}"
        checkpoint = run / "checkpoints/best.ckpt"
        write_checkpoint(checkpoint, settings(kind, backbone), model.state_dict())
        found["a run folder", kind] = str(run)
        found["a checkpoint", kind] = str(checkpoint)
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
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(root / "hub"))
    return found


def beside(backbone, name, **options):
    """The encoder of this name, which a dual encoder is trained with."""
    ranker = DualEncoder(backbone, max_length=24)
    module = RankerModule(ranker, SoftmaxLoss(), lr=1e-3, **options)
    return module.in_batch._encoders_beside[name]


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
        return beside(backbone, name, in_batch=OtherQueries(guide=name))
    if door == "encoder":
        return beside(backbone, name, margin=FromQuery(encoder=name))
    module = RankerModule(built(settings(kind, backbone)), SoftmaxLoss(), lr=1e-3)
    take_weights(module, name, "--init_from")
    assert module.ranker.new_parts == (), "what was made up has been replaced"
    return module.ranker


def every_day() -> set[tuple[str, str]]:
    """Each row and each door once."""
    by_row = {row: (row, door) for row, door in CELLS}
    by_door = {door: (row, door) for row, door in reversed(CELLS)}
    return {*by_row.values(), *by_door.values()}


@pytest.mark.parametrize(
    ("row", "door"),
    [pytest.param(*cell, marks=[pytest.mark.long] * (cell not in every_day())) for cell in CELLS],
)
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


OTHER_TASKS = {  # what is left out of it as a backbone, and why it is no ranker
    "two labels": ("its head of 2 labels", "gives 2; take"),
    "NLI": ("its head of 3 labels", "gives 3; take"),
    "tags": ("its head (BertForTokenClassification)", None),
    "T5": ("its decoder (T5ForConditionalGeneration)", None),
    "ColBERT": ("its head (HF_ColBERT)", None),
}


def save_of_another_task(kind, backbone, folder):
    tokenizer = AutoTokenizer.from_pretrained(backbone)
    tokenizer.save_pretrained(folder)
    if kind in ("two labels", "NLI"):
        make_classifier(folder, n_labels=2 if kind == "two labels" else 3)
    elif kind == "T5":
        sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
        config = T5Config(vocab_size=len(tokenizer), **sizes)
        T5ForConditionalGeneration(config).save_pretrained(folder)
    elif kind == "tags":
        config = BertConfig.from_pretrained(backbone)
        BertForTokenClassification(config).save_pretrained(folder)
    else:
        shutil.copytree(backbone, folder, dirs_exist_ok=True)
        said = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(said | {"architectures": ["HF_ColBERT"]}))


@pytest.mark.parametrize("kind", OTHER_TASKS)
def test_what_was_trained_for_another_task_is_refused_by_name_and_told_as_a_backbone(
    kind, tmp_path, backbone, caplog
):
    folder = tmp_path / "model"
    save_of_another_task(kind, backbone, folder)
    left_out, refusal = OTHER_TASKS[kind]
    refusal = refusal or f"{left_out} would not be read"
    for needs in ("any", "texts", "embeddings"):
        with pytest.raises(InputError, match=re.escape(refusal)):
            ranker_named(folder, "source", needs)
    assert not caplog.messages
    DualEncoder(str(folder), max_length=20)
    assert [line for line in caplog.messages if line.startswith("backbone")] == [
        f"backbone {str(folder)!r} is of another task: {left_out} is left out, and its encoder, "
        "with mean pooling, is only the start of a dual encoder"
    ]
    if kind == "T5":  # a cross-encoder has no decoder
        return
    caplog.clear()
    PairWiseBertRanker(str(folder), max_length=20)
    assert caplog.messages == [
        f"backbone {str(folder)!r}: {left_out} is left out; the ranker begins with another one"
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
    told = (
        f"backbone {backbone!r} says nothing of a pooling: its encoder is read without a head, "
        "with mean pooling; encoder.pooling sets another"
    )
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


TOO_LONG = ("a" * 256, "é" * 128, "a/" * 2500)
NO_NAMES = {
    # As of a variable of the shell that is not set. As a path it would be the working directory.
    "": "judge must name a run, a checkpoint or a model",
    " ": "judge must name a run, a checkpoint or a model",
    "{here}/nothing": "--judge .*nothing: there is no run, checkpoint or model",
    "runs/nothing": "--judge runs/nothing: there is no run, checkpoint or model",
    "grid/me@work/model": "--judge grid/me@work/model: there is no run, checkpoint or model",
    "me/no@a/branch": "--judge me/no@a/branch: .*me/no@a/branch: the hub must have this revision",
    "{here}/grid": "holds several runs; name one: .*seed=0",
    "{here}/run": "--judge best: there is no .*best.ckpt; train first",
    "no/model": "--judge no/model: backbone 'no/model' can't be loaded",
    "package:ltr_nothing": "--judge package:ltr_nothing: .* is not installed",
} | dict.fromkeys(TOO_LONG, "at most 255 bytes, and a path 4095, got")


@pytest.mark.parametrize("name", NO_NAMES)
def test_what_is_no_name_is_one_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grid/seed=0").mkdir(parents=True)
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    (tmp_path / "run/config.yaml").write_text("")
    with pytest.raises(InputError, match=NO_NAMES[name]) as error:
        ranker_named(name.format(here=tmp_path), "--judge")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", TOO_LONG)
def test_a_folder_whose_name_no_disk_takes_is_not_written(name, tmp_path):
    with pytest.raises(InputError, match="at most 255 bytes"):
        write_new(tmp_path / name, Path.mkdir, "the folder")


OVERFLOWN = {"head.weight": torch.tensor([[1.0, float("inf")]]), "head.bias": torch.zeros(1)}


DAMAGED = "the file is damaged, hyper_parameters.ranker."


def dual(**options: object) -> dict:
    return {"class_path": "ltr.models.DualEncoder", "init_args": options}


@pytest.mark.parametrize(
    ("ranker", "weights", "message"),
    [
        (None, {}, "the checkpoint must say how its ranker is built, and does not"),
        (FEATURES | {"init_args": None}, {}, f"{DAMAGED}init_args must be an object, got null"),
        (FEATURES | {"class_path": 5}, {}, f"{DAMAGED}class_path must be a text, got 5"),
        (dual(encoder=5), {}, "the file is damaged, .*init_args.encoder must be an object, got 5"),
        (FEATURES, {"other": torch.zeros(1)}, "the weights do not fit the ranker"),
        (FEATURES, OVERFLOWN, "the weights hold NaN or infinity; the model has diverged"),
        (dual(backbone="nowhere/gone"), {}, "gone' can't be loaded"),
        # The parser lets null pass, also for a number.
        (dual(backbone=".", temperature=None), {}, "DualEncoder can't be built here: .*'NoneType'"),
    ],
)
def test_a_checkpoint_that_makes_no_ranker_is_one_line(
    tmp_path, ranker, weights, message, backbone, monkeypatch
):
    monkeypatch.chdir(backbone)
    file = write_checkpoint(tmp_path / "a.ckpt", ranker, weights)
    with pytest.raises(InputError, match=message) as error:
        ranker_named(file, "--judge")
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
    """``evil.py`` here leaves a file where it is imported; beside it a ranker of one's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evil.py").write_text(EVIL)
    (tmp_path / "evil_package").mkdir()
    (tmp_path / "evil_package/__init__.py").write_text(EVIL)
    (tmp_path / "own_rankers.py").write_text(OWN)
    yield
    for module in ("evil", "evil_package", "evil_package.part", "own_rankers"):
        sys.modules.pop(module, None)


OWN_RANKER = "own_rankers.Own"
DUAL = "ltr.models.DualEncoder"


@pytest.mark.parametrize("needs", ["any", "embeddings"])
@pytest.mark.parametrize(
    ("class_path", "options", "message"),
    [
        ("not_there.Ranker", {}, "its ranker not_there.Ranker can't be built here"),
        ("ltr.models.NoRanker", {}, "its ranker ltr.models.NoRanker can't be built here"),
        ("NoDot", {}, "its ranker NoDot can't be built here"),
        ("evil.Ranker", {}, "its ranker .* evil is not imported; import it first, if you trust it"),
        ("evil_package.part.Ranker", {}, "its ranker .* evil_package.part is not imported"),
        ("subprocess.Popen", CODE["init_args"], "its ranker .* must be a subclass of ltr.models"),
        ("torch.nn.Linear", {"in_features": 1}, "its ranker .* must be a subclass of ltr"),
        ("ltr.models.Ranker", {"x": CODE}, "its ranker .* must be a subclass of ltr.models.Ranker"),
        (DUAL, {"backbone": "b", "x": CODE}, "its ranker .* has no option x here; was the"),
        (DUAL, {"backbone": CODE}, ""),
        (DUAL, {"backbone": "package:evil_package.part"}, ""),
        (DUAL, {"backbone": "package:evil"}, ""),
        (DUAL, {"backbone": "b", "encoder": {"dropout": CODE}}, ""),
        (DUAL, {"backbone": "b", "encoder": {"x": CODE}}, ""),
        (OWN_RANKER, {"part": "evil.Part"}, ".*evil is not imported"),
        (OWN_RANKER, {"part": PART}, ".*evil is not imported"),
        (OWN_RANKER, {"rest": [{"a": PART}]}, ".*evil is not imported"),
        (OWN_RANKER, {"rest": CODE}, ".*subprocess.Popen, of its options, is no torch.nn.Module"),
        (OWN_RANKER, {"others": CODE}, ".*subprocess.Popen, of its options, is no torch.nn.Module"),
    ],
)
def test_a_checkpoint_runs_no_code_by_the_name_or_the_options_of_its_ranker(
    folder_with_code, class_path, options, message, needs
):
    if class_path == OWN_RANKER:
        import_module("own_rankers")
        options = {"n_features": 2} | options
    named = {"class_path": class_path, "init_args": options}
    file = write_checkpoint(Path("a.ckpt"), named, {})
    with pytest.raises(InputError, match=f"^--judge a.ckpt: {message}") as error:
        ranker_named(file, "--judge", needs)
    assert "\n" not in str(error.value)
    assert not Path("EVIL_RAN").exists()


def test_an_own_ranker_is_opened_where_its_module_is_imported(folder_with_code):
    weights = {"head.weight": torch.ones(1, 2), "head.bias": torch.zeros(1)}
    part = {"class_path": "torch.nn.Linear", "init_args": {"in_features": 1, "out_features": 1}}
    options = {"n_features": 2, "part": part, "rest": "no.class", "other": 1}
    own = {"class_path": OWN_RANKER, "init_args": options}
    file = write_checkpoint(Path("a.ckpt"), own, weights)
    with pytest.raises(InputError, match="own_rankers is not imported"):
        ltr.load(file)
    import_module("own_rankers")
    assert ltr.load(file).score([[1.0, 2.0]]).tolist() == [3.0]


def test_a_relative_backbone_is_that_of_where_the_run_was_started(backbone, tmp_path, monkeypatch):
    """From anywhere, also where another model of the same name lies."""
    start = tmp_path / "start"
    run = start / "runs/a"
    shutil.copytree(backbone, start / "bb")
    saved = settings("dual", "bb")
    saved["init_args"]["doc_backbone"] = "bb"
    monkeypatch.chdir(start)
    ranker = built(saved)
    write_checkpoint(run / "checkpoints/best.ckpt", saved, ranker.state_dict())
    (run / "metrics.json").write_text(json.dumps({"format": FORMAT, "directory": str(start)}))
    assert ranker_named("runs/a", "source").key == ranker.key
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "bb").mkdir(parents=True)
    monkeypatch.chdir(elsewhere)
    for name in (run, run / "checkpoints/best.ckpt", "../start/runs/a"):
        assert ranker_named(name, "source").key == ranker.key
    for content in ("{", "[]", '{"directory": 3}'):
        (run / "metrics.json").write_text(content)
        with pytest.raises(InputError, match=r"backbone 'bb' .*seen from .*elsewhere"):
            ranker_named(run, "source")
