"""A run says in which form it is written; one of another form is refused by whoever opens it."""

import json
from pathlib import Path

import pytest
import torch
import yaml

from ltr.__main__ import main
from ltr.checkpoint import FORMAT
from tests.run.resumes import BASE
from tests.world.features import write_letor

RUN = Path("runs/c/seed=3")
NEW = ["--trainer.default_root_dir", "new"]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A folder with a run that was trained and tested."""
    folder = tmp_path_factory.mktemp("format")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_letor(folder / "letor")
        Path("d.txt").write_text("w1\n")
        options = BASE | {"trainer": BASE["trainer"] | {"max_epochs": 1}}
        Path("c.yaml").write_text(yaml.safe_dump(options))
        assert main(["fit", "--config", "c.yaml"]) == main(["test", str(RUN)]) == 0
        assert json.loads((RUN / "metrics.json").read_text())["format"] == FORMAT
        yield folder


def rewritten(form: int | None) -> None:
    """Let the run say another form, or none."""

    def with_form(entries: dict) -> dict:
        rest = {name: value for name, value in entries.items() if name != "format"}
        return rest if form is None else rest | {"format": form}

    for file in RUN.glob("checkpoints/*.ckpt"):
        checkpoint = torch.load(file, weights_only=True)
        torch.save(checkpoint | {"run": with_form(checkpoint["run"])}, file)
    metrics = json.loads((RUN / "metrics.json").read_text())
    (RUN / "metrics.json").write_text(json.dumps(with_form(metrics)))


NUMBERED = [["test", str(RUN)], ["compare", str(RUN)]]  # by its checkpoint, and by its metrics
COMMANDS = [
    *NUMBERED,
    ["fit", str(RUN), "--trainer.max_epochs", "2"],
    ["fit", "--config", "c.yaml", "--trainer.max_epochs", "2", "--ckpt_path", "last"],
    ["fit", "--config", "c.yaml", "--init_from", str(RUN), *NEW],
    ["test", str(RUN), "--split", "dev", "test"],
    ["reproduce", str(RUN), "--output", "new"],
    ["rank", f"{RUN}/checkpoints/best.ckpt", "--query", "w", "--documents", "d.txt"],
    ["export", str(RUN), "new"],
]


@pytest.mark.parametrize(
    ("form", "shown", "commands"),
    [(None, "null", COMMANDS), (FORMAT + 1, f"{FORMAT + 1}", NUMBERED)],
    ids=["none", "another"],
)
def test_a_run_of_another_form_is_refused_in_a_line(here, capsys, form, shown, commands):
    rewritten(form)
    before = {file: file.read_bytes() for file in here.rglob("*") if file.is_file()}
    for command in commands:
        capsys.readouterr()
        assert main(command) == 2, command
        *_, line = capsys.readouterr().err.splitlines()
        assert f"this ltr reads runs of format {FORMAT}, got {shown}; train" in line, command
        after = {file: file.read_bytes() for file in here.rglob("*") if file.is_file()}
        assert after == before, command
    rewritten(FORMAT)
    assert main(["compare", str(RUN)]) == 0
