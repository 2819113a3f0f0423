"""An exported folder gives the same scores in the libraries it is made for, in processes that know
nothing of ltr."""

import os
import random
import signal
import sys

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder

import ltr
from ltr.__main__ import main
from ltr.errors import InputError
from ltr.models import PairWiseBertRanker
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.use.export import export
from ltr.use.rankers import TextRanker
from tests.run.kills import Child
from tests.use.exported import PAIRS, classifier
from tests.world.backbones import make_backbone
from tests.world.runs import trained_on_texts

# An exported folder, whose scores it has, and the scale of these: embeddings are compared without
# the temperature.
FOLDERS = [(f"to-{name}", name, 1) for name in ("cross", "bert", "roberta", "cls", "max")]
FOLDERS += [("to-dual", "dual", 0.1), ("plain-bert", "bert", 1), ("plain-roberta", "roberta", 1)]


@pytest.mark.parametrize(("place", "name", "scale"), FOLDERS)
def test_other_libraries_score_alike(exported, scores_of_others, place, name, scale):
    folder, own, _ = exported
    assert np.ptp(own[name]) > 1e-3
    expected = (own[name] * scale).tolist()
    assert scores_of_others[str(folder / place)] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", ["cross", "dual", "bert", "roberta", "cls", "max"])
def test_an_exported_folder_is_a_backbone_again(exported, name):
    """Its length, pooling and head come back with it."""
    folder, own, _ = exported
    ranker = ltr.load(folder / f"to-{name}", "32-true")
    scale = 0.1 if name == "dual" else 1
    assert ranker.score(PAIRS) == pytest.approx(own[name] * scale, abs=1e-5)


def test_a_crossencoder_of_sentence_transformers_is_measured_and_trained(exported):
    """Its pooling and linear layer are the start, and the document alone is cut."""
    folder, own, _ = exported
    backbone = str(folder / "to-max")
    model = PairWiseBertRanker(backbone, max_length=20)
    assert model.encoder.pooling == "max" and not model.has_own_head
    assert TextRanker(model).score(PAIRS) == pytest.approx(own["max"], abs=1e-5)
    by_cls = TextEncoder.Options(pooling="cls")
    own_pooling = PairWiseBertRanker(backbone, max_length=20, encoder=by_cls)
    assert own_pooling.encoder.pooling == "cls"


def test_one_trained_there_is_read_as_there(tmp_path, backbone):
    """A folder that sentence-transformers itself has made, without our truncation: short pairs,
    equal logits.
    """
    theirs = CrossEncoder(str(classifier(tmp_path / "plain")), device="cpu", max_length=32)
    theirs.save(str(tmp_path / "ce"))
    short = PAIRS[1:2] + PAIRS[3:]
    expected = theirs.predict(short, activation_fn=torch.nn.Identity())
    assert ltr.load(tmp_path / "ce", "32-true").score(short) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            ["to-cross", "out", "--int8", "DATA"],
            "int8 is for ONNX graphs, got --to sentence-transformers",
        ),
        (["to-cross", "out", "--to", "onnx", "--int8", "nowhere"], "nowhere"),
        (
            ["to-cross", "out", "--to", "transformers"],
            "transformers has no head for this ranker, a linear layer behind the mean",
        ),
        (["to-dual", "out", "--to", "transformers"], "a dual encoder is no sequence classifier"),
        (["to-cross", "to-dual"], "must not exist yet"),
        (["to-cross", "out", "--to", "tflite"], "tflite"),
        (["nothing/at/all", "out"], "there is no run, checkpoint or model"),
    ],
)
def test_what_cannot_be_exported_leaves_no_folder(exported, monkeypatch, capsys, args, said):
    folder, _, _ = exported
    monkeypatch.chdir(folder)
    before = sorted(folder.iterdir())
    assert main(["export", *args]) == 2
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1 and sorted(folder.iterdir()) == before


def test_a_missing_package_is_named(exported, tmp_path, monkeypatch):
    folder, _, _ = exported
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(InputError, match=r"onnxruntime: pip install 'ltr-lab\[onnx\]'"):
        export(folder / "to-cross", tmp_path / "out", "onnx")
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_what_killed_exports_have_left_the_next_export_removes(tmp_path):
    """Killed anywhere, an export leaves the whole folder or none."""
    source = str(classifier(tmp_path / "source"))
    whole = tmp_path / "whole"
    assert main(["export", source, str(whole)]) == 0
    names = {file.name for file in whole.rglob("*")}
    place = tmp_path / "place"
    out = place / "out"
    n_left = 0
    for number in range(8):
        child = Child(["export", source, str(out)], tmp_path / "said")
        # The half of them once it writes, where little time is left.
        within = out.parent / ".out.ltr-tmp" if number % 2 else None
        seconds = random.uniform(0, 2)
        while child.process.exitcode is None and (within is not None and not within.exists()):
            pass
        code = child.end_after(random.uniform(0, 0.02) if within else seconds)
        assert code in (0, -signal.SIGKILL), (tmp_path / "said").read_text()
        n_left += len(list(place.glob(".*")))
        if out.exists():
            assert {file.name for file in out.rglob("*")} == names
            out.rename(place / f"out-{number}")
    assert main(["export", source, str(out)]) == 0
    assert not list(place.glob(".*")) and {file.name for file in out.rglob("*")} == names
    assert n_left, "none was killed while it wrote: this test has shown nothing"


@pytest.mark.long
def test_all_that_commands_write_has_the_modes_of_new_files(tmp_path, collection_folder):
    """Runs, checkpoints, curves, negatives, scores, pages, exports, the cache."""
    backbone = str(make_backbone(tmp_path / "backbone"))
    world = tmp_path / "world"
    before = os.umask(0o027)
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("LTR_CACHE", str(world / "cache"))
            run = str(trained_on_texts(world, "dual", collection_folder, backbone))
            page = ["--html", str(world / "page.html"), "--csv", str(world / "table.csv")]
            assert main(["compare", run, *page]) == 0
            assert main(["mine", run]) == 0
            data = ["--data", str(collection_folder), "--output", str(world / "scores")]
            assert main(["score", run, *data]) == 0
            assert main(["export", run, str(world / "exported")]) == 0
            assert main(["export", run, str(world / "graphs"), "--to", "onnx"]) == 0
    finally:
        os.umask(before)
    written = list(world.rglob("*"))
    endings = {path.suffix for path in written}
    assert {".json", ".yaml", ".run", ".tsv", ".ckpt", ".npy", ".html", ".safetensors"} <= endings
    for path in written:
        mode = 0o750 if path.is_dir() else 0o640
        assert path.stat().st_mode & 0o777 == mode, path
