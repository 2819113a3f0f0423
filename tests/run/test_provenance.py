"""Where a result comes from: the commit of the code, and the metadata of a run file."""

import subprocess

import yaml

from ltr.run import provenance as module
from ltr.run.provenance import made_by, write_ir_metadata
from ltr.run.run_folder import RunFolder


def test_a_changed_checkout_has_a_plus_sign_and_an_installed_package_no_commit(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "__file__", str(tmp_path / "ltr/run/provenance.py"))
    commit = module._commit.__wrapped__  # without the cache
    assert commit() is None

    def git(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(tmp_path), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    (tmp_path / "code.py").write_text("1\n")
    git("add", "code.py")
    git("commit", "-q", "-m", "one")
    expected = git("rev-parse", "--short=12", "HEAD")
    assert commit() == expected
    (tmp_path / "code.py").write_text("2\n")
    assert commit() == f"{expected}+"


def test_the_metadata_say_what_made_a_run_file(tmp_path):
    origin = made_by()
    assert list(origin)[:1] == ["ltr"] and "torch" in origin["packages"]
    test = {
        "made": origin | {"commit": "abc", "packages": {"torch": "2.0"}, "machine": "a machine"},
        "seconds": 1.5,
        "conventions": {"nDCG@10": "linear gain"},
        "evaluated": {"corpus": "123"},
        "queries": 7,
        "candidates": "bm25",
        "depth": 20,
    }
    config = {
        "seed_everything": 3,
        "model": {"loss": {"class_path": "a.Loss", "init_args": {"x": 1}}, "ranker": "a.Ranker"},
        "data": {"init_args": {"path": "medquad"}},
    }
    run = RunFolder(tmp_path)
    write_ir_metadata(run, test, config)
    metadata = yaml.safe_load(run.ir_metadata.read_text())
    assert metadata["platform"]["hardware"]["cpu"] == "a machine"
    assert metadata["platform"]["software"]["libraries"]["python"] == ["torch==2.0"]
    assert metadata["implementation"]["source"]["commit"] == "abc"
    assert metadata["resources"]["runtime"] == "1.5 s"
    method = metadata["method"]
    assert (method["model"], method["loss"], method["seed"]) == ("a.Ranker", "a.Loss", 3)
    assert method["candidates"] == "bm25, 20"
    collection = {"path": "medquad", "content": {"corpus": "123"}, "queries": 7}
    assert metadata["data"]["test collection"] == collection
