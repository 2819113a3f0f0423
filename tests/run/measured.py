"""Runs that are measured."""

import json

import pytest
import yaml

from tests.run.resumes import configured
from tests.world.features import write_letor


@pytest.fixture
def config(tmp_path):
    """A feature ranker over three epochs; ``run`` is its folder."""
    write_letor(tmp_path / "letor")
    options = {"trainer.default_root_dir": str(tmp_path / "run")}
    (tmp_path / "features.yaml").write_text(yaml.safe_dump(configured(options, tmp_path)))
    return str(tmp_path / "features.yaml")


def results(tmp_path):
    return json.loads((tmp_path / "run/metrics.json").read_text())
