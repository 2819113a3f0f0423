"""Every YAML in experiments/ builds and runs one batch of training, validation; the data and the weights are tiny ones."""

from pathlib import Path

import pytest
import yaml

from ltr.__main__ import main
from tests.conftest import write_letor

ROOT = Path(__file__).parents[1]
CONFIGS = sorted(ROOT.glob("experiments/*/*.yaml"))


def test_there_are_experiments():
    assert len(CONFIGS) >= 4


@pytest.fixture
def tiny(tmp_path, backbone, collection_folder):
    """Options that shrink a configuration: texts and weights, or features in the layout that it reads."""

    def options(config: Path) -> dict[str, object]:
        parsed = yaml.safe_load(config.read_text())
        model, data = parsed["model"], parsed["data"]["init_args"]
        if "backbone" in model["ranker"]["init_args"]:
            weights = {"model.ranker.backbone": backbone, "model.ranker.max_length": 24}
            if "guide" in str(model.get("in_batch")):
                weights["model.in_batch.guide"] = backbone
            return weights | {"data.path": collection_folder}
        if data["path"] == "synthetic":
            return {}
        splits = ("train", "test") if "dev_share" in data else ("train", "vali", "test")
        write_letor(tmp_path / "letor" / ("Fold1" if "fold" in data else ""), *splits)
        return {"model.ranker.n_features": 5, "data.path": tmp_path / "letor"}

    return options


@pytest.mark.parametrize("config", CONFIGS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_an_experiment_runs(config, tmp_path, tiny):
    assert config.read_text().startswith("# Asks: ")
    quick = {
        "trainer.default_root_dir": tmp_path / "run",
        "trainer.fast_dev_run": "true",
        "trainer.accelerator": "cpu",
        "trainer.enable_progress_bar": "false",
    }
    options = [part for name, value in (tiny(config) | quick).items() for part in (f"--{name}", str(value))]
    assert main(["fit", "--config", str(config), *options]) == 0
