"""Damaged files of runs, negatives, scores and models: each command does its work, or says in one
line which file is damaged. Never a traceback.
"""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from ltr.__main__ import main
from ltr.cli import reproduce as reproduce_module
from ltr.data.collection import open_collection
from ltr.grid.definition import Grid
from ltr.grid.folder import GridFolder
from ltr.mining.mined_negatives import MinedNegatives
from ltr.mining.overlay import save_overlay
from tests.cli import damages
from tests.run.resumes import BASE
from tests.world.backbones import make_backbone
from tests.world.collections import write_collection
from tests.world.commands import run_ltr
from tests.world.configurations import QUIET
from tests.world.features import write_letor
from tests.world.tested_runs import write_run

KINDS: dict[str, Callable[[bytes], Iterator[damages.Damage]]] = {
    ".json": damages.of_json,
    ".yaml": damages.of_yaml,
    ".npy": damages.of_array,
    ".ckpt": damages.of_checkpoint,
    ".tsv": damages.of_text,
    ".run": damages.of_text,
}
RUN = "features/seed=3"
AGAIN = "features/again"
OTHER = "features/seed=4"
COMPARED = ["compare", RUN, OTHER, "--html", "new.html"]
REPRODUCED = ["reproduce", RUN, "--output", AGAIN]
GRID = ["grid", "grid.yaml", "--runs", "grid", "--table"]
CELL = "grid/ranknet/seed=3"
RANKED = ["--query", "w1", "--documents", "docs.txt"]
FIT = ["fit", "--config", "cross.yaml", "--trainer.default_root_dir", "new"]
NEGATIVES = "dual/negatives/n"
OVERLAY = f"{NEGATIVES}.soft-1"
SOFT = [*FIT, "--data.negatives", OVERLAY, "--model.loss", "ltr.losses.RankNetLoss"]
AUDIT = ["negatives", "audit", NEGATIVES, "--judge", "cross"]
DIFF = ["negatives", "diff", NEGATIVES, "other", "--data", "tiny"]
SCORE = ["score", "dual", "--data", "tiny", "--output"]
TAUGHT = [*FIT, "--data.labels.scores", "scores", "--model.loss", "ltr.losses.MarginMSELoss"]

SAMPLES = 8  # damages of each of the files in LONG

# By files, the commands that read them.
QUICK = {
    f"{RUN}/metrics.json": [["compare", RUN, OTHER], REPRODUCED],
    f"{RUN}/config.yaml": [["compare", RUN, OTHER], REPRODUCED],
    f"{RUN}/per_query.tsv": [["compare", RUN, OTHER]],
    f"{NEGATIVES}/*": [DIFF],
}
LONG = {
    f"{RUN}/per_query.tsv": [COMPARED],
    f"{CELL}/cell.json": [GRID],
    f"{CELL}/config.yaml": [GRID],
    f"{CELL}/metrics.json": [GRID],
    f"{RUN}/metrics.json": [COMPARED, REPRODUCED, ["fit", RUN], ["test", RUN]],
    f"{RUN}/config.yaml": [COMPARED, REPRODUCED, ["fit", RUN], ["test", RUN]],
    f"{RUN}/checkpoints/best.ckpt": [["test", RUN], [*GRID]],
    f"{RUN}/checkpoints/last.ckpt": [["fit", RUN, "--trainer.max_epochs", "2"]],
    "dual/metrics.json": [["export", "dual", "new"], AUDIT, ["compare", "dual", "cross"]],
    "dual/config.yaml": [["export", "dual", "new"], AUDIT, ["rank", "dual", *RANKED]],
    "dual/checkpoints/best.ckpt": [["rank", "dual", *RANKED], [*FIT, "--init_from", "dual"]],
    "dual/per_query.tsv": [["export", "dual", "new"]],
    "dual/test.run": [["compare", "dual", "cross", "--html", "new.html"]],
    f"{NEGATIVES}/*": [DIFF, AUDIT, [*FIT, "--data.negatives", NEGATIVES]],
    f"{OVERLAY}/*": [SOFT, [*SCORE, "new", "--documents", OVERLAY]],
    "scores/*": [TAUGHT, [*SCORE, "scores"]],
    "dual-exported/*.json": [["rank", "dual-exported", *RANKED]],
    "dual-exported/*/*.json": [["rank", "dual-exported", *RANKED]],
    "cross-exported/*.json": [["rank", "cross-exported", *RANKED]],
    "cross-exported/*/*.json": [["rank", "cross-exported", *RANKED]],
}


def _fitted(folder: str, config: dict, *options: str) -> None:
    file = Path(f"{folder.replace('/', '-')}.yaml")
    file.write_text(yaml.safe_dump(config))
    run = ["--trainer.default_root_dir", folder]
    assert run_ltr(f"fit --config {file}", *run, *options) == 0
    assert run_ltr(f"test {folder}") == 0


def _write_features(world: Path) -> None:
    """Two seeds of a feature ranker, a copy of the first one, and a grid that has made it."""
    write_letor(world / "letor")
    base = BASE | {"trainer": BASE["trainer"] | {"max_epochs": 1}}
    (world / "base.yaml").write_text(yaml.safe_dump(base))
    for seed in (3, 4):
        _fitted(f"features/seed={seed}", base, "--seed_everything", str(seed))
    shutil.copytree(RUN, AGAIN)
    axes = {"loss": {"ranknet": {"model.loss": "ltr.losses.RankNetLoss"}}}
    grid = {"base": ["base.yaml"], "axes": axes, "seeds": [3]}
    Path("grid.yaml").write_text(yaml.safe_dump(grid))
    folder = GridFolder(Grid.read(Path("grid.yaml")), Path("grid"))
    (cell,) = folder.grid.cells([3], ())
    shutil.copytree(RUN, CELL)
    Path(CELL, "cell.json").write_text(json.dumps(folder.content(cell)))


def _write_negatives(world: Path) -> None:
    """A collection, two folders of negatives, and an overlay beside the first."""
    write_collection(world / "tiny", n_queries=8, n_docs=6)
    collection = open_collection("tiny")
    generator = np.random.default_rng(0)
    rows = np.arange(len(collection.queries))
    shape = (len(rows), 4)
    ids = generator.integers(0, len(collection.corpus), shape)
    distances = generator.random(shape).astype(np.float32)
    manifest = {"key": "k", "mean_distance": {"relevant": 0.5}}
    mined = MinedNegatives.from_matrix(rows, ids, distances, manifest)
    mined.save(world / NEGATIVES, collection)
    other = MinedNegatives.from_matrix(rows, ids[:, ::-1].copy(), distances, {})
    other.save(world / "other", collection)
    queries = collection.judgements("train").query_rows
    save_overlay(
        world / NEGATIVES,
        collection,
        {"policy": "soft", "content": mined.lists.digest()},
        query_rows=queries,
        doc_rows=ids[queries, 0],
        scores=np.ones(len(queries), np.float32),
        labels=np.full(len(queries), 0.5, np.float32),
    )


def _write_rankers(world: Path) -> None:
    """A run of each kind of ranker of texts, exported, and the scores of one."""
    make_backbone(world / "backbone")
    data = {"path": "tiny", "negatives": "candidates", "negatives_per_query": 2, "batch_size": 8}
    for name, ranker in (("cross", "PairWiseBertRanker"), ("dual", "DualEncoder")):
        options = {"backbone": "backbone", "max_length": 20}
        config = {
            "model": {
                "ranker": {"class_path": f"ltr.models.{ranker}", "init_args": options},
                "loss": "ltr.losses.SoftmaxLoss",
            },
            "data": {"class_path": "ltr.datamodules.TripletDataModule", "init_args": data},
            "trainer": {"max_steps": 1, "logger": False, **QUIET},
        }
        _fitted(name, config)
        assert run_ltr(f"export {name} {name}-exported") == 0
    assert main([*SCORE, "scores"]) == 0
    Path("docs.txt").write_text("w1 w2\nw3 w4\n")


@pytest.fixture(scope="module")
def small_world(tmp_path_factory):
    """Nothing is trained here: runs as ``ltr test`` leaves them."""
    world = tmp_path_factory.mktemp("small")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(world)
        _write_negatives(world)
    values = np.linspace(0.1, 0.9, 40)
    for folder, seed in ((RUN, 3), (AGAIN, 3), (OTHER, 4)):
        write_run(world / folder, values, seed=seed)
    return world


@pytest.fixture(scope="module")
def whole_world(tmp_path_factory):
    world = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(world)
        _write_negatives(world)
        _write_features(world)
        _write_rankers(world)
    return world


def _damaged(world: Path, files: str, count: int) -> list[tuple[Path, str, bytes]]:
    """Some of the ways to damage files: the file, what is damaged, and its new content."""
    damaged = []
    for file in sorted(path.relative_to(world) for path in world.glob(files)):
        for name, content in KINDS[file.suffix]((world / file).read_bytes()):
            damaged.append((file, name, content))
    assert damaged
    chosen = random.Random(files).sample(damaged, min(count, len(damaged)))
    return [(file, name, content()) for file, name, content in chosen]


def _check_outcome(command: list[str], file: Path, name: str, capsys) -> None:
    """Call a command on a damaged file: it does its work, or one line names the file."""
    capsys.readouterr()
    code = main(command)  # which raises a mistake of ours
    said = capsys.readouterr().err
    what = f"{' '.join(command)}, {file}: {name}: {code}, {said[-300:]!r}"
    assert code in (0, 2), what
    lines = [line for line in said.splitlines() if line.startswith("ltr: ")]
    assert len(lines) == (1 if code == 2 else 0), what
    # An option of the configuration is told by its own name.
    option = name.split(" ")[0].rpartition(".")[2]
    names = [str(file), str(file.parent), file.stem, option]
    if file.parts[0].endswith("-exported"):
        names.append(file.parts[0])
    # Where a number is too large for Lightning or torch, it alone is told.
    names.append("a number is too large")
    assert code == 0 or any(part in lines[0] for part in names), what


@pytest.fixture(autouse=True)
def nothing_is_trained_again(monkeypatch):
    """What ``ltr reproduce`` would train takes minutes, so damage must be found before."""

    def train(args: list[str]) -> None:
        raise AssertionError(f"ltr {' '.join(args)} is called")

    monkeypatch.setattr(reproduce_module, "run_in_process", train)


@pytest.mark.parametrize("files", QUICK)
def test_a_damaged_file_is_one_line(files, small_world, capsys, monkeypatch):
    monkeypatch.chdir(small_world)
    for file, name, content in _damaged(small_world, files, 10):
        whole = file.read_bytes()
        file.write_bytes(content)
        for command in QUICK[files]:
            _check_outcome(command, file, name, capsys)
        file.write_bytes(whole)


@pytest.mark.long
@pytest.mark.parametrize("files", LONG)
def test_whatever_is_damaged_is_one_line(files, whole_world, tmp_path, capsys, monkeypatch):
    for number, (file, name, content) in enumerate(_damaged(whole_world, files, SAMPLES)):
        for command in LONG[files]:
            # In a copy: a command that goes on writes something.
            world = tmp_path / f"{number}"
            shutil.copytree(whole_world, world)
            monkeypatch.chdir(world)
            file.write_bytes(content)
            _check_outcome(command, file, name, capsys)
            shutil.rmtree(world)
