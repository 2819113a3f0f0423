"""``proof/check.py`` of every form passes in a process that knows nothing of ltr, and says what
differs where a folder was changed.
"""

import json
from pathlib import Path

import pytest

from ltr.__main__ import main
from ltr.models import DualEncoder
from tests.child_processes import Elsewhere, without_ltr
from tests.use.proof.exported import classifier_folder, make_cased_backbone
from tests.use.verify.test_verify_library import SIGMOID, cut_at, planted, settings

# Each check is run as a script is.
CHECKS = """
import io, runpy
from contextlib import redirect_stdout

found = {}
for folder in given:
    said = io.StringIO()
    with redirect_stdout(said):
        try:
            runpy.run_path(folder + "/proof/check.py", run_name="__main__")
        except SystemExit as stop:
            found[folder] = [stop.code, said.getvalue()]
"""


def pass_alone(folders: list[Path], where: Elsewhere = "new process") -> None:
    """Each check says so in its last line, in such a process; some package may speak before."""
    for name, (code, said) in checked(folders, where).items():
        assert code == 0 and said.splitlines()[-1] == "pass", (name, said)


def checked(folders: list[Path], where: Elsewhere = "new process") -> dict[str, list]:
    """The exit code and the output of each folder's check, by the name of the folder, in a process
    that does not know ltr.
    """
    found = without_ltr(CHECKS, [str(folder) for folder in folders], where)
    return {Path(folder).name: result for folder, result in found.items()}


@pytest.fixture(scope="module")
def folders(proofs, tmp_path_factory) -> list[Path]:
    """Right folders of the forms that are made in a moment."""
    folder = tmp_path_factory.mktemp("checked")
    source = str(classifier_folder(folder / "classifier"))
    assert main(["export", source, str(folder / "plain"), "--to", "transformers"]) == 0
    return [*proofs.values(), folder / "plain"]


@pytest.fixture(scope="module")
def slow_folders(proofs, tmp_path_factory) -> list[Path]:
    """Right folders of all other forms."""
    folder = tmp_path_factory.mktemp("checked")
    classifier = str(classifier_folder(folder / "classifier"))
    backbone = str(make_cased_backbone(folder / "backbone", cut="left"))
    towers = DualEncoder(backbone, doc_backbone=backbone, projection=6, similarity="euclidean")
    towers.save(folder / "two")
    exports = {
        "classifier-st": [classifier, "sentence-transformers"],
        "two-st": [str(folder / "two"), "sentence-transformers"],
        "cross-onnx": [str(proofs["cross"]), "onnx"],
        "dual-onnx": [str(proofs["dual"]), "onnx"],
        "two-onnx": [str(folder / "two"), "onnx"],
    }
    for name, (source, form) in exports.items():
        assert main(["export", source, str(folder / name), "--to", form]) == 0
    return [folder / name for name in exports]


def test_it_passes_without_ltr_and_says_what_differs(folders, tmp_path):
    no_prompts = settings("config_sentence_transformers.json", prompts={})
    cross, dual, _ = folders
    changed = {
        planted(cross, tmp_path / "sigmoid", SIGMOID): "score of probe 0: ",
        planted(cross, tmp_path / "cut", cut_at(512)): "tokens of pair ",
        planted(dual, tmp_path / "no-prompts", no_prompts): "tokens of query 0: ",
    }
    pass_alone(folders, "fork")
    found = checked([*changed], "fork")
    for folder, said in changed.items():
        code, told = found[folder.name]
        assert code == 1 and said in told and told.endswith(" differences\n")


def test_the_same_folders_are_verified_by_ltr(folders, capsys):
    """With the library that each is for."""
    are_verified(folders, capsys)


def are_verified(folders: list[Path], capsys) -> None:
    for folder in folders:
        capsys.readouterr()
        assert main(["verify", str(folder)]) == 0, capsys.readouterr().out
        assert capsys.readouterr().out.startswith("pass: 64 probes")


@pytest.mark.long
def test_every_other_form_passes_without_ltr_and_with_it(slow_folders, capsys):
    """Graphs, two towers, a ready classifier in sentence-transformers."""
    pass_alone(slow_folders)
    are_verified(slow_folders, capsys)


def interrupted(*_: object, **__: object) -> None:
    """As by Ctrl-C."""
    raise KeyboardInterrupt


@pytest.mark.parametrize("place", ["ltr.use.export.write_proof", "ltr.use.export.card"])
def test_an_export_that_is_interrupted_leaves_nothing_and_says_so(
    place, proofs, tmp_path, monkeypatch, capsys
):
    """Ctrl-C while the proof is written, and behind it."""
    monkeypatch.setattr(place, interrupted)
    folder = tmp_path / "out"
    assert main(["export", str(proofs["cross"]), str(folder)]) == 130
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", f"interrupted; {folder} is not written\n")
    assert list(tmp_path.iterdir()) == []


def test_a_verification_that_is_interrupted_says_so(proofs, monkeypatch, capsys):
    verification = "ltr.use.verify.verification.compare_layers"
    monkeypatch.setattr(verification, interrupted)
    capsys.readouterr()
    assert main(["verify", str(proofs["cross"])]) == 130
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", f"interrupted; {proofs['cross']} is not verified\n")


def test_a_check_is_short_and_knows_its_own_library_alone(folders):
    for folder in folders:
        text = (folder / "proof" / "check.py").read_text()
        form = json.loads((folder / "proof" / "contract.json").read_text())["form"]
        assert text.count("def by_") == 1 and f"def by_{form.replace('-', '_')}(" in text
        assert len(text.splitlines()) <= 90 and "ltr" not in text
