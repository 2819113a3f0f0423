"""Results that lie at Weights & Biases are fetched, and compared as those here."""

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import wandb

from ltr.compare.experiment import read_experiments
from ltr.compare.wandb_runs import log_comparison
from ltr.errors import InputError
from tests.world.tested_runs import write_run


class Server:
    """Stands for the runs of a project that lie at Weights & Biases."""

    def __init__(self, folders, results=True):
        self.folders = folders
        self.results = results

    def runs(self, project, filters):
        assert project == "team/project"
        chosen = [one for one in self.folders if filters in ({}, {"group": one.parent.name})]
        return [self.run(one, one.parent.name, int(one.name[-1])) for one in chosen]

    def run(self, folder, group, seed=0):
        """A run whose results are those of a folder."""
        options = {"config": {"seed_everything": seed}, **self.logged(folder)}
        return mock.Mock(group=group, id="x", **options)

    def logged(self, folder):
        def download(root):
            Path(root).mkdir(parents=True)
            for name in ("metrics.json", "per_query.tsv", "test.run", "config.yaml"):
                Path(root, name).write_text((folder / name).read_text())

        artifact = mock.Mock(type="results" if self.results else "negatives", download=download)
        return {"logged_artifacts": lambda: [artifact]}


def test_runs_at_weights_and_biases_are_compared_as_those_here(tmp_path, monkeypatch):
    folders = []
    for loss in ("RankNetLoss", "SoftmaxLoss"):
        values = np.linspace(0, len(loss) / 20, 40)
        folders.append(write_run(tmp_path / loss / "seed=3", values, seed=3, loss=loss))
        (folders[-1] / "test.run").touch()
    monkeypatch.setattr(wandb, "Api", lambda: Server(folders))
    both = read_experiments(["wandb:team/project"])
    assert [one.name for one in both] == ["RankNetLoss", "SoftmaxLoss"]
    here = read_experiments([str(tmp_path / "*Loss")])
    assert [one.runs[0].by_query for one in both] == [one.runs[0].by_query for one in here]
    (one,) = read_experiments(["wandb:team/project:SoftmaxLoss"])
    assert one.runs[0].seed == 3 and one.runs[0].by_query == here[1].runs[0].by_query
    monkeypatch.setattr(wandb, "Api", lambda: Server(folders, results=False))
    said = "no run there has results; test them with Weights & Biases"
    with pytest.raises(InputError, match=said):
        read_experiments(["wandb:team/project"])


def test_a_group_of_others_does_not_lead_out_of_the_folder_of_derived_data(tmp_path, monkeypatch):
    mine = write_run(tmp_path / "mine/seed=0", [0.5] * 40)
    monkeypatch.setenv("LTR_CACHE", str(tmp_path / "cache"))
    server = Server([write_run(tmp_path / "x/seed=0", [0.5] * 40)])
    (tmp_path / "x/seed=0/test.run").touch()
    for group in (f"/{mine.parent}", f"{'../' * 20}{mine.parent}"):
        run = server.run(tmp_path / "x/seed=0", group)
        monkeypatch.setattr(server, "runs", lambda *_, run=run, **__: [run])
        monkeypatch.setattr(wandb, "Api", lambda: server)
        (one,) = read_experiments(["wandb:team/project"])
        assert (tmp_path / "cache/wandb") in one.runs[0].folder.parents
        assert (mine / "metrics.json").is_file()
    run = server.run(tmp_path / "x/seed=0", "same")
    monkeypatch.setattr(server, "runs", lambda *_, **__: [run] * 2)
    said = "^wandb:team/project: two runs of the group same have the seed 0"
    with pytest.raises(InputError, match=said):
        read_experiments(["wandb:team/project"])


@pytest.mark.parametrize(
    "project, entity, name", [("mine", None, "mine"), ("team/mine", "team", "mine")]
)
def test_a_comparison_goes_to_the_project_of_an_entity(monkeypatch, project, entity, name):
    """What Weights & Biases refuses is one line."""
    asked = {}

    def refuse(**options):
        asked.update(options)
        raise wandb.errors.CommError("no such\nentity")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(InputError, match=f"^--wandb {project}: no such entity$"):
        log_comparison(project, ["a", "b"], "<html></html>", "")
    assert (asked["entity"], asked["project"], asked["name"]) == (entity, name, "a and b")
