"""What the pages about models of the hub and about training options tell to type is run, on a tiny
model in the place of those of the hub; the options are those of the recipes.
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from ltr.datamodules import TripletDataModule
from ltr.models import PairWiseBertRanker
from ltr.module import RankerModule
from ltr.run.shipped_recipes import recipe_file
from tests.world.collections import write_collection
from tests.world.commands import run_ltr
from tests.world.runs import metrics

DOCS = Path(__file__).parents[2] / "docs"


def commands(page: str) -> list[str]:
    """Each command of the shell blocks of a page, in one line."""
    found = []
    text = (DOCS / page).read_text(encoding="utf-8")
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        found += [line for line in block.replace("\\\n", "").splitlines() if line]
    return found


@pytest.fixture
def data(tmp_path, monkeypatch) -> Path:
    """Where the commands find ``DATA``."""
    monkeypatch.chdir(tmp_path)
    return write_collection(tmp_path / "DATA", n_queries=3, n_docs=3)


def test_a_model_of_the_hub_is_used_as_the_page_says(tmp_path, backbone):
    text = (DOCS / "hub_models.md").read_text(encoding="utf-8")
    PairWiseBertRanker(backbone, max_length=20).save(tmp_path / "reranker")
    names: dict = {}
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        code = code.replace("cross-encoder/ms-marco-MiniLM-L6-v2", str(tmp_path / "reranker"))
        exec(code.replace("sentence-transformers/all-MiniLM-L6-v2", backbone), names)
    assert sorted(names["ids"]) == ["0", "1"]
    assert [one.text for one in names["best"]] == [names["documents"][int(n)] for n in names["ids"]]


def test_a_model_of_the_hub_is_measured_as_the_page_says(data, backbone):
    for line in commands("hub_models.md"):
        line = re.sub(r"--model.ranker.backbone \S+", f"--model.ranker.backbone {backbone}", line)
        assert run_ltr(f"{line.removeprefix('ltr ')} --model.ranker.max_length 24") == 0
        run = re.search(r"runs/\S+", line).group()
        assert metrics(Path(run))["test"]["queries"] == 3


@pytest.mark.parametrize("line", commands("training.md"))
def test_the_commands_of_training_train(data, backbone, line):
    line = line.removeprefix("ltr ").replace("--data.batch_size 256", "--data.batch_size 2")
    line += f" --model.ranker.backbone {backbone} --model.ranker.max_length 24"
    assert run_ltr(f"{line} --trainer.max_steps 1 --trainer.default_root_dir run") == 0
    assert Path("run/checkpoints/last.ckpt").exists()


def flat(node: object, name: str = "") -> Iterator[tuple[str, object]]:
    """The options of a recipe by their names on the command line."""
    if not isinstance(node, dict):
        yield name.removeprefix("."), node
        return
    for part, value in node.items():
        yield from flat(value, name if part == "init_args" else f"{name}.{part}")


def rows_of_options() -> list[list[str]]:
    """The cells of the table of options, its head first."""
    text = (DOCS / "training.md").read_text(encoding="utf-8")
    lines = re.findall(r"^(\| option \|.*)\n\| ---.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    ((head, rows),) = lines
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in [head, *rows.splitlines()]]


def test_the_options_are_those_of_the_recipes_and_the_defaults_those_of_the_classes():
    head, *rows = rows_of_options()
    parameters = {
        "model": inspect.signature(RankerModule).parameters,
        "data": inspect.signature(TripletDataModule).parameters,
    }
    n_defaults = 0
    for column, recipe in enumerate(head[3:], 3):
        options = dict(flat(yaml.safe_load(recipe_file(recipe.strip("`"), "name").read_text())))
        for row in rows:
            value = options.get(row[0].strip("`"), "")
            assert row[column] == value or float(row[column]) == value, (row[0], recipe)
    for option, _, default, *_ in rows:
        part, _, name = option.strip("`").partition(".")
        if part in parameters and name in parameters[part] and name != "lr":
            assert yaml.safe_load(default) == parameters[part][name].default
            n_defaults += 1
    assert n_defaults == 5
