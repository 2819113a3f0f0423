"""Every YAML in experiments/ builds and runs one batch of training, validation; the data and the weights are tiny ones."""

from pathlib import Path

import pytest

from ltr.__main__ import main

ROOT = Path(__file__).parents[1]
CONFIGS = sorted(ROOT.glob("experiments/*/*.yaml"))


def test_there_are_experiments():
    assert len(CONFIGS) >= 4


@pytest.mark.parametrize("config", CONFIGS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_an_experiment_runs(config, tmp_path, backbone, collection_folder):
    assert config.read_text().startswith("# Asks: ")
    tiny = {
        "data.init_args.path": collection_folder,
        "model.init_args.backbone": backbone,
        "model.init_args.max_length": 24,
        "trainer.default_root_dir": tmp_path / "run",
        "trainer.fast_dev_run": "true",
        "trainer.accelerator": "cpu",
        "trainer.enable_progress_bar": "false",
    }
    options = [part for name, value in tiny.items() for part in (f"--{name}", str(value))]
    assert main(["fit", "--config", str(config), *options]) == 0
