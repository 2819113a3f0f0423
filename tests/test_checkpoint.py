"""Checkpoints: which one is meant, what is refused, and that writing one changes no other."""

import pytest
import torch

from ltr.checkpoint import (
    FORMAT,
    best_or_last_checkpoint,
    holds_checkpoints,
    read_checkpoint,
    write_checkpoint,
)
from ltr.errors import InputError

RUN = {"format": FORMAT, "identity": {}, "monitor": None, "scores": {}, "stopped": False}


def checkpoint(weight: float) -> dict:
    state = {"weight": torch.full((1000,), weight)}
    return {"state_dict": state, "pytorch-lightning_version": "2.6.0"}


def test_the_best_weights_or_else_the_last(tmp_path, caplog):
    missing = r"--ckpt_path best: there is no .*best\.ckpt; train first"
    with pytest.raises(InputError, match=missing):
        best_or_last_checkpoint(tmp_path, "--ckpt_path")
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    assert not holds_checkpoints(tmp_path)
    (folder / "last.ckpt").touch()
    assert best_or_last_checkpoint(tmp_path, "--ckpt_path") == folder / "last.ckpt"
    assert "there is no best.ckpt; taking last.ckpt" in caplog.text
    assert holds_checkpoints(tmp_path)
    (folder / "best.ckpt").touch()
    assert best_or_last_checkpoint(tmp_path, "--ckpt_path") == folder / "best.ckpt"


def test_what_was_written_is_read(tmp_path):
    file = tmp_path / "last.ckpt"
    write_checkpoint(checkpoint(3.0), file)
    for path in (file, str(file)):
        assert torch.equal(read_checkpoint(path)["state_dict"]["weight"], torch.full((1000,), 3.0))


def test_one_wrong_bit_is_refused_unless_no_tensor_is_read(tmp_path):
    file = tmp_path / "last.ckpt"
    write_checkpoint(checkpoint(3.0), file)
    content = bytearray(file.read_bytes())
    tensor = torch.full((1000,), 3.0).numpy().tobytes()
    content[content.index(tensor) + 1234] ^= 1
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"can't be read \(BadZipFile\); take another one"):
        read_checkpoint(file)
    assert read_checkpoint(file, checksums=False)["pytorch-lightning_version"] == "2.6.0"


def test_weights_without_a_checkpoint_are_refused(tmp_path):
    for content, missing in (
        ({"state_dict": {}}, "no pytorch-lightning_version"),
        ([1.0], "no pytorch-lightning_version and no state_dict"),
    ):
        torch.save(content, tmp_path / "own.ckpt")
        told = rf"no Lightning checkpoint, it has {missing}; weights alone"
        with pytest.raises(InputError, match=told):
            read_checkpoint(tmp_path / "own.ckpt")


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ({"state_dict": "text"}, 'state_dict must be an object, got "text"'),
        ({"state_dict": {1: 2}}, "state_dict must have keys that are a text, got 1"),
        ({"hyper_parameters": [1]}, r"hyper_parameters must be an object, got \[1\]"),
        ({"global_step": "6"}, 'global_step must be a whole number, got "6"'),
        (
            {"run": RUN | {"scores": {"6": 0.5}}},
            "run.scores must have keys that are a whole number",
        ),
        ({"run": RUN | {"identity": None}}, "run.identity must be an object, got null"),
    ],
)
def test_an_entry_of_another_type_is_named_with_the_file(tmp_path, entries, text):
    torch.save(checkpoint(3.0) | entries, tmp_path / "own.ckpt")
    with pytest.raises(InputError, match=rf"--ckpt_path .*own\.ckpt: the file is damaged, {text}"):
        read_checkpoint(tmp_path / "own.ckpt")


def test_what_is_no_checkpoint_is_named_with_its_option(tmp_path):
    (tmp_path / "config.yaml").write_text("seed_everything: 0\n")
    text = rf"source .*config\.yaml: the file is no checkpoint; a run is named by its folder, {tmp_path}"
    with pytest.raises(InputError, match=text):
        read_checkpoint(tmp_path / "config.yaml", "source")
    with pytest.raises(InputError, match=r"--init_from .*none\.ckpt: there is no such file"):
        read_checkpoint(tmp_path / "none.ckpt", "--init_from")


def test_what_a_killed_process_left_is_no_second_name_to_write_by(tmp_path):
    """Killed between the two files of a validation, a run leaves its new best weights under the
    name of the temporary file.
    """
    best = tmp_path / "best.ckpt"
    temporary = tmp_path / ".checkpoint.tmp"
    write_checkpoint({"global_step": 8}, best)
    temporary.hardlink_to(best)
    write_checkpoint({"global_step": 16}, temporary)
    assert [torch.load(file)["global_step"] for file in (best, temporary)] == [8, 16]


def test_a_disk_that_is_full_says_so(tmp_path, monkeypatch):
    """torch raises an error of its own, in whose context that of the file stands."""

    def save(*_):
        try:
            raise OSError(28, "No space left on device")
        except OSError:
            raise RuntimeError("unexpected pos 128 vs 22")  # noqa: B904  # as torch does

    monkeypatch.setattr(torch, "save", save)
    with pytest.raises(OSError, match=r"No space left on device: .*last\.ckpt") as caught:
        write_checkpoint({}, tmp_path / "last.ckpt")
    assert caught.value.errno == 28
