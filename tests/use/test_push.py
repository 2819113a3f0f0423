"""A push to the hub, tried against a stand-in."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import ModelCard, constants

import ltr
from ltr.__main__ import main
from ltr.errors import InputError
from ltr.models import DualEncoder
from ltr.use.export import export
from ltr.use.hub_push import push_folder
from ltr.use.load import load
from tests.use.hub import LARGE, NAME, content, held


@pytest.fixture(scope="module")
def model(tmp_path_factory, backbone) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "model"
    DualEncoder(backbone, max_length=20).save(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory, model) -> Path:
    """What ``ltr export`` has written."""
    out = tmp_path_factory.mktemp("exported") / "out"
    export(model, out)
    return out


def test_a_push_makes_a_private_repository_of_the_same_files(hub, folder):
    pushed = push_folder(folder, NAME)
    files = content(folder)
    assert held(hub) == files
    assert hub.repositories[NAME].private and pushed.is_private and pushed.deleted == []
    assert len(hub.repositories[NAME].branches["main"]) == 2, "the hub's own commit, and one more"
    assert ".gitattributes" in hub.repositories[NAME].branches["main"][-1]
    large = [name for name, content in files.items() if len(content) >= LARGE]
    assert len(hub.blobs) == len({files[name] for name in large}) > 0, "large files go by LFS"
    assert pushed.url.startswith(f"{hub.url}/{NAME}/commit/")


def test_a_push_deletes_what_the_export_has_not(hub, folder):
    """Modules of another model would be read with the new weights."""
    hub.create(NAME).branches["main"].append({"modules.json": b"[]", "2_Dense/config.json": b"{}"})
    pushed = push_folder(folder, NAME)
    assert held(hub) == content(folder) and pushed.deleted == ["2_Dense/config.json"]


def test_a_branch_is_made_of_main_and_main_stays(hub, folder):
    hub.create(NAME)
    push_folder(folder, NAME, revision="tried")
    assert held(hub, "tried") == content(folder) and held(hub) == {}


def test_a_public_repository_is_pushed_to_where_that_is_said(hub, folder):
    hub.create(NAME, private=False)
    with pytest.raises(InputError, match="user/name is public, and a proof has texts of the data"):
        push_folder(folder, NAME)
    with pytest.raises(InputError, match=": --public says that everybody"):
        push_folder(folder, NAME, revision="tried")
    assert held(hub) == {} and set(hub.repositories[NAME].branches) == {"main"}
    assert not push_folder(folder, NAME, public=True).is_private
    assert held(hub) == content(folder)


@pytest.mark.parametrize(
    "words", [["push", "{model}", NAME], ["export", "{model}", "{out}", "--push", NAME]]
)
def test_a_public_repository_is_refused_before_an_export(hub, model, tmp_path, capsys, words):
    hub.create(NAME, private=False)
    out = tmp_path / "out"
    assert main([word.format(model=model, out=out) for word in words]) == 2
    said = capsys.readouterr()
    assert ": --public says that everybody" in said.err and said.err.count("\n") == 1
    assert not out.exists() and said.out == ""


@pytest.mark.parametrize("words", ["push {model} user/name --dry_run", "export {model} {out}"])
def test_what_packages_say_when_they_are_imported_is_no_result(
    model, tmp_path, capsys, monkeypatch, words
):
    def speaking(*args: Any, **options: Any) -> Any:
        print("[INFO] a package was imported")
        return load(*args, **options)

    monkeypatch.setattr("ltr.use.export.load", speaking)
    assert main(words.format(model=model, out=tmp_path / "out").split()) == 0
    said = capsys.readouterr()
    assert "[INFO]" in said.err and "[INFO]" not in said.out


def test_an_export_goes_to_a_public_repository_where_that_is_said(hub, model, tmp_path, capsys):
    """One word in both commands: it makes a new repository public, too."""
    hub.create(NAME, private=False)
    out = tmp_path / "out"
    assert main(["export", str(model), str(out), "--public"]) == 2
    assert "--public is of a push" in capsys.readouterr().err and not out.exists()
    assert main(["export", str(model), str(out), "--push", NAME, "--public"]) == 0
    assert held(hub) == content(out) and f"{NAME} (public) holds" in capsys.readouterr().out
    assert main(["export", str(model), f"{out}-2", "--push", "user/new", "--public"]) == 0
    assert not hub.repositories["user/new"].private


def test_a_failure_says_that_a_branch_is_there_now(hub, folder, capsys):
    hub.create(NAME)
    hub.answers["/commit"] = 500
    words = ["push", str(folder), NAME, "--revision", "v2"]
    assert main(words) == 2
    said = "nothing was committed, and its branch v2 is there now; push again later"
    assert said in capsys.readouterr().err
    assert main(words) == 2
    assert "is there now" not in capsys.readouterr().err, "the branch was there before"
    hub.answers.clear()
    assert main(words) == 0 and held(hub, "v2") == content(folder)


def test_a_card_that_the_hub_refuses_says_what_to_mend(hub, folder, capsys):
    hub.create(NAME)
    hub.answers["validate-yaml"] = 400
    assert main(["push", str(folder), NAME]) == 2
    said = capsys.readouterr().err
    assert "refused it (" in said and "mend --license or --language of the export" in said
    assert "push again" not in said and said.count("\n") == 1 and held(hub) == {}


def test_a_refusal_that_time_does_not_mend_advises_no_waiting(hub, folder, capsys):
    hub.create(NAME)
    hub.answers["/commit"] = 413
    assert main(["push", str(folder), NAME]) == 2
    assert "(refused with 413); nothing was committed; mend that" in capsys.readouterr().err


def test_a_push_of_texts_of_the_data_says_so(hub, tmp_path, model, collection_folder, capsys):
    out = tmp_path / "out"
    export(model, out, data=str(collection_folder))
    line = "proof/ has queries of dev (else test, else train) and documents of the corpus\n"
    assert main(["push", str(out), NAME, "--public"]) == 0
    assert line in capsys.readouterr().out
    export(model, tmp_path / "without")
    assert main(["push", str(tmp_path / "without"), NAME, "--public"]) == 0
    assert "proof/ has" not in capsys.readouterr().out


FAILURES = {
    ("/create", 401): "answered 401 (refused with 401); nothing was written there; log in",
    ("/create", 403): "answered 403 (refused with 403); nothing was written there; take a token",
    ("/create", 500): "answered 500 (refused with 500); nothing was written there; push again",
    ("/create", None): "broke off",
    ("/lfs-put", 403): "nothing was committed, and it is there now, empty",
    ("/commit", 409): "nothing was committed, and it is there now, empty; somebody else",
    ("/commit", 500): "answered 500 (refused with 500); nothing was committed",
    ("/commit", None): "nothing was committed, and it is there now, empty, unless the hub took it",
}


@pytest.mark.parametrize(("words", "status"), FAILURES)
def test_a_push_that_fails_says_so_in_a_line_and_leaves_nothing(hub, folder, capsys, words, status):
    hub.answers[words] = status
    assert main(["push", str(folder), NAME]) == 2
    said = capsys.readouterr()
    assert FAILURES[words, status] in said.err and said.err.count("\n") == 1, said.err
    assert said.out == ""
    assert words == "/create" or held(hub) == {}
    hub.answers.clear()
    assert main(["push", str(folder), NAME]) == 0, "the next one goes through"
    assert held(hub) == content(folder)


def test_a_failed_push_leaves_what_was_there(hub, folder, capsys):
    hub.create(NAME).branches["main"].append({"README.md": b"before"})
    hub.answers["/commit"] = 500
    assert main(["push", str(folder), NAME]) == 2
    assert held(hub) == {"README.md": b"before"}
    assert "it is there now" not in capsys.readouterr().err


def test_a_dry_run_prints_what_would_go_and_asks_nobody(hub, folder, model, capsys, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.delenv("HF_TOKEN")
    words = ["--dry_run", "--license", "mit", "--language", "en", "de"]
    assert main(["push", str(model), NAME, *words]) == 0
    said = capsys.readouterr().out
    for name in content(folder):
        assert f"B  {name}\n" in said
    assert "would go to user/name (private, if it is new), branch main: " in said
    assert "license: mit" in said and "language:\n- en\n- de\n" in said
    assert 'SentenceTransformer("user/name")' in said
    assert hub.asked == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("name", "must be USER/NAME, got 'name'"),
        ("a/b/c", "must be USER/NAME"),
        ("user/na me", "must be USER/NAME"),
        ("user/-name", "must be USER/NAME"),
    ],
)
def test_a_name_that_the_hub_refuses_is_refused_before(hub, model, capsys, name, said):
    assert main(["push", str(model), name]) == 2
    printed = capsys.readouterr().err
    assert said in printed and printed.count("\n") == 1
    assert hub.asked == []


def test_without_network_or_token_nothing_is_exported(hub, model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.delenv("HF_TOKEN")
    out = tmp_path / "out"
    assert main(["export", str(model), str(out), "--push", NAME]) == 2
    assert "a push needs a token of the hub; log in (hf auth login)" in capsys.readouterr().err
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert main(["export", str(model), str(out), "--push", NAME]) == 2
    assert "HF_HUB_OFFLINE is set" in capsys.readouterr().err
    assert not out.exists() and hub.asked == []


def test_an_export_goes_to_the_hub_as_it_is_here(hub, model, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["--push", NAME, "--license", "apache-2.0"]
    assert main(["export", str(model), str(out), *words]) == 0
    assert held(hub) == content(out)
    assert f"{NAME} (private) holds {len(content(out))} files, " in capsys.readouterr().out
    assert ModelCard.load(out / "README.md").data.license == "apache-2.0"


def test_an_exported_folder_goes_as_it_is(hub, folder, capsys):
    assert main(["push", str(folder), NAME, "--license", "mit"]) == 2
    assert "is exported and goes as it is" in capsys.readouterr().err
    assert hub.asked == []


def test_a_folder_that_has_lost_a_file_is_not_pushed(hub, model, tmp_path, capsys):
    out = tmp_path / "out"
    export(model, out)
    for lost, by in (("modules.json", "proof/contract.json"), ("proof/contract.json", "proof")):
        (out / lost).unlink()
        assert main(["push", str(out), NAME]) == 2
        assert f"has lost {lost}, as its {by} tells" in capsys.readouterr().err
    assert hub.asked == []


def test_what_a_repository_ignores_is_pushed_too(hub, folder):
    hub.create(NAME).branches["main"].append({".gitignore": b"*.safetensors\nproof/*\n"})
    pushed = push_folder(folder, NAME)
    files = held(hub)
    assert files.pop(".gitignore") == b"# Nothing is left out.\n" and pushed.deleted == []
    assert files == content(folder)


@pytest.mark.long
def test_the_card_of_a_branch_has_code_that_loads_the_branch(hub, model, backbone, tmp_path):
    """The hub's ``main`` is another model."""
    DualEncoder(backbone, max_length=20, doc_prompt="w1 w2 ").save(tmp_path / "other")
    texts = ["a question", "a document", "another document"]
    for source, revision in ((tmp_path / "other", "main"), (model, "v2")):
        assert main(["push", str(source), NAME, "--revision", revision]) == 0
    card = held(hub, "v2")["README.md"].decode()
    (code,) = re.findall("```python\n(.+?)```", card, re.DOTALL)
    assert f'SentenceTransformer("{NAME}", revision="v2")' in code
    names: dict[str, Any] = {}
    exec(code, names)
    expected = ltr.load(model, precision="32-true").encode(texts, "document")
    found = np.concatenate([names["queries"], names["documents"]])
    np.testing.assert_allclose(found, expected, atol=1e-6)
    other = ltr.load(tmp_path / "other", precision="32-true").encode(texts, "document")
    assert np.abs(other - expected).max() > 1e-3


def test_a_private_repository_stays_private_and_a_line_says_so(hub, folder, capsys):
    hub.create(NAME)
    assert main(["push", str(folder), NAME, "--public"]) == 0
    said = "user/name was there, and stays private: its settings at the hub make it public\n"
    assert capsys.readouterr().out.endswith(said) and hub.repositories[NAME].private


def test_an_export_whose_push_fails_says_how_to_push_it(hub, model, tmp_path, capsys):
    out = tmp_path / "out of it"
    hub.answers["/commit"] = 500
    assert main(["export", str(model), str(out), "--push", NAME]) == 2
    again = f"is written, and goes there by ltr push '{out}' {NAME}\n"
    said = capsys.readouterr().err
    assert said.endswith(again) and said.count("\n") == 1
    hub.answers.clear()
    assert main(["push", str(out), NAME]) == 0 and held(hub) == content(out)
