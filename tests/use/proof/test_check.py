"""``proof/check.py`` of every form passes in a process that knows nothing of ltr, and says what
differs where a folder was changed.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import ltr
from ltr.__main__ import main
from ltr.models import DualEncoder
from tests.use.proof.exported import classifier_folder, make_cased_backbone
from tests.use.verify.test_verify_library import SIGMOID, cut_at, settings

# Each check is run as a script is; only ltr is out of reach.
ELSEWHERE = """
import importlib.util, io, json, runpy, sys
from contextlib import redirect_stdout
sys.path = [path for path in sys.path if path not in ("", {root!r})]
sys.meta_path = [one for one in sys.meta_path if "__editable__" not in str(one)]
assert importlib.util.find_spec("ltr") is None, "the process must not know ltr"
found = {{}}
for folder in json.load(sys.stdin):
    said = io.StringIO()
    with redirect_stdout(said):
        try:
            runpy.run_path(folder + "/proof/check.py", run_name="__main__")
        except SystemExit as stop:
            found[folder] = [stop.code, said.getvalue()]
print("FOUND" + json.dumps(found))
"""


def checked(folders: list[Path]) -> dict[str, list]:
    """The exit code and the output of each folder's check, by the name of the folder."""
    code = ELSEWHERE.format(root=str(Path(ltr.__file__).parents[1]))
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        input=json.dumps([str(folder) for folder in folders]),
        capture_output=True,
        text=True,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.partition("FOUND")[2])
    return {Path(folder).name: result for folder, result in found.items()}


def copied(folder: Path, place: Path, plant: Callable[[Path], None]) -> Path:
    shutil.copytree(folder, place)
    plant(place)
    return place


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
    backbone = str(make_cased_backbone(folder / "backbone"))
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
    cross, dual, plain = folders
    changed = [
        copied(cross, tmp_path / "sigmoid", SIGMOID),
        copied(cross, tmp_path / "cut", cut_at(512)),
        copied(dual, tmp_path / "no-prompts", no_prompts),
    ]
    found = checked([*folders, *changed])
    for folder in folders:
        code, said = found[folder.name]
        assert code == 0 and said.splitlines()[-1] == "pass", said  # some package may speak before
    for name, said in (
        ("sigmoid", "score of probe 0: "),
        ("cut", "tokens of pair "),
        ("no-prompts", "tokens of query 0: "),
    ):
        code, told = found[name]
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
    found = checked(slow_folders)
    for folder in slow_folders:
        code, said = found[folder.name]
        assert code == 0 and said.splitlines()[-1] == "pass", (folder, said)
    are_verified(slow_folders, capsys)


def test_a_check_is_short_and_knows_its_own_library_alone(folders):
    for folder in folders:
        text = (folder / "proof" / "check.py").read_text()
        form = json.loads((folder / "proof" / "contract.json").read_text())["form"]
        assert text.count("def by_") == 1 and f"def by_{form.replace('-', '_')}(" in text
        assert len(text.splitlines()) <= 90 and "ltr" not in text
