"""Two ranks are two processes (gloo on CPU)."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from ltr.__main__ import main
from ltr.data.trec import read_run
from ltr.metrics import RankingMetric
from tests.child_processes import run_command, run_ranks
from tests.test_metrics import random_lists
from tests.world.collections import write_collection, write_t2ranking
from tests.world.configurations import QUIET, write_config
from tests.world.runs import losses, metrics

pytestmark = pytest.mark.usefixtures("programs_begin_warm")
ROOT = Path(__file__).parents[1]
TWO = ["--trainer.strategy", "ddp", "--trainer.devices", "2", "--trainer.accelerator", "cpu"]


def two_processes(command: str, config: Path, *options: str) -> None:
    arguments = [sys.executable, "-m", "ltr", command, "--config", str(config), *TWO, *options]
    done = run_command(arguments, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_two_ranks_train_and_measure_each_query_once(tmp_path, backbone, collection_folder):
    """30 queries in batches of 7: five batches, three for one rank and two for the other. In
    training 30 rows in batches of 4: eight steps an epoch, the last one with a row for each rank.
    """
    config = write_config(tmp_path, backbone, collection_folder)
    run = tmp_path / "run"
    two_processes("fit", config)
    assert metrics(run)["fit"]["steps"] == 16
    to_one = ["--trainer.default_root_dir", str(run / "one")]
    assert main(["fit", "--config", str(config), *to_one]) == 0
    digests = metrics(run / "one")["trained_with"]
    assert digests["models"].keys() == {"model.ranker.backbone"}
    assert metrics(run)["trained_with"] == digests
    weights, alone_weights = (
        torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
        for folder in (run, run / "one")
    )
    for name, weight in alone_weights.items():
        # Their gradients are 0, so Adam moves them by what rounding makes of that.
        if not name.endswith(("key.bias", "head.bias")):
            torch.testing.assert_close(weights[name], weight, atol=2e-5, rtol=1e-4, msg=name)
    two_processes("test", run / "config.yaml", "--ckpt_path", "best")
    both = metrics(run)["test"]
    both_run = list(read_run(run / "test.run"))
    one = ["--trainer.devices", "1", "--trainer.strategy", "auto", "--ckpt_path", "best"]
    assert main(["test", "--config", str(run / "config.yaml"), *one]) == 0
    alone = metrics(run)["test"]
    alone_run = list(read_run(run / "test.run"))
    assert both["queries"] == alone["queries"] == len({r.query for _, r in both_run}) == 30
    assert len(both_run) == len(alone_run) == 30 * 8
    for name in ("nDCG@10", "RR@10", "AP", "swapped_pairs"):
        assert both[name] == pytest.approx(alone[name], abs=1e-6)
    assert [(r.query, r.doc) for _, r in both_run] == [(r.query, r.doc) for _, r in alone_run]


@pytest.mark.long
def test_fewer_queries_than_ranks(tmp_path, backbone):
    """One query to validate and to test: the second rank measures an empty batch."""
    folder = write_collection(tmp_path / "data", n_queries=8)
    for split in ("dev", "test"):
        qrels = folder / f"qrels/{split}.tsv"
        qrels.write_text("".join(line + "\n" for line in qrels.read_text().splitlines()[:3]))
    config = write_config(tmp_path, backbone, folder)
    two_processes("fit", config)
    two_processes("test", tmp_path / "run/config.yaml", "--ckpt_path", "last")
    assert metrics(tmp_path / "run")["test"]["queries"] == 1


def mined(
    folder: Path, collection: Path, backbone: str, processes: int, fault: int | None = None
) -> subprocess.CompletedProcess:
    """A run of 10 steps of 6 queries over all processes, refreshed after every 3rd, in the midst of
    windows of 4 batches.
    """
    folder.mkdir()
    recipe = {"depth": 12, "n": 4, "relative": None}
    mining = {"every_n_steps": 3, "recipe": recipe}
    watched = {"folder": str(folder), "fault": fault}
    callbacks = [
        {"class_path": "ltr.callbacks.HardNegativeMining", "init_args": mining},
        {"class_path": "tests.faults.Watched", "init_args": watched},
    ]
    ranker = {"backbone": backbone, "max_length": 24}
    data = {"path": str(collection), "loading": {"bucket_window": 4}, "batch_size": 6}
    data |= {"negatives": "mined", "negatives_per_query": 2}
    length = {"max_epochs": 2, "limit_val_batches": 0}
    config = {
        "model": {
            "ranker": {"class_path": "DualEncoder", "init_args": ranker},
            "loss": "ltr.losses.SoftmaxLoss",
        },
        "data": {"class_path": "TripletDataModule", "init_args": data},
        "trainer": {**QUIET, **length, "logger": False, "callbacks": callbacks},
    }
    (folder / "mined.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "ltr", "fit", "--config", str(folder / "mined.yaml")]
    ddp = [*TWO[:-3], str(processes), *TWO[-2:]] if processes > 1 else []
    arguments = [*command, *ddp, "--trainer.default_root_dir", str(folder / "run")]
    return run_command(arguments, cwd=ROOT)


@pytest.mark.long
@pytest.mark.parametrize("processes", [2, 3])
def test_processes_mine_what_one_mines_and_each_encodes_its_share(
    tmp_path, backbone, collection_folder, processes
):
    """720 documents and 30 queries. Sums are rounded otherwise, so two documents of nearly the same
    score may change places in later refreshes.
    """
    told = [mined(tmp_path / str(n), collection_folder, backbone, n) for n in (1, processes)]
    assert [one.returncode for one in told] == [0, 0], told[-1].stderr
    steps = (0, 3, 6, 9)
    alone, shared = (
        [np.load(tmp_path / f"{n}/run/negatives/step={s}/ids.npy") for s in steps]
        for n in (1, processes)
    )
    np.testing.assert_array_equal(alone[0], shared[0])
    assert all((np.sort(a) == np.sort(b)).mean() > 0.99 for a, b in zip(alone, shared, strict=True))
    of_ranks = [torch.load(tmp_path / f"{processes}/{rank}.pt") for rank in range(processes)]
    # In each of four refreshes 750 texts, by shards of 256 documents: nobody encodes all of them.
    counts = [n for n, _ in of_ranks]
    assert sum(counts) == 4 * 750 and min(counts) >= 4 * 750 / processes / 2
    for _, batches in of_ranks:
        for step, queries, docs in batches:
            ids = shared[(step - 1) // 3]
            for query, row in zip(queries, docs, strict=True):
                assert {*row[1:]} <= {*ids[query].tolist()}
    for epoch in (slice(0, 5), slice(5, 10)):
        visited = []
        for _, batches in of_ranks:
            for _, queries, _ in batches[epoch]:
                visited += queries
        assert len(visited) == len(set(visited)) == 30


@pytest.mark.long
@pytest.mark.parametrize("policy", ["OneList", "OtherQueries"])
def test_mined_negatives_at_a_level_teach_two_ranks_what_they_teach_one(tmp_path, backbone, policy):
    """Of six queries five have a document at the level: the second step of an epoch has one list, and
    the second rank none.
    """
    changes = {
        "model.ranker": {"class_path": "DualEncoder", "init_args": {"backbone": backbone}},
        "model.in_batch": f"ltr.in_batch.{policy}",
        "data.init_args.relevant_from": 2,
        "data.init_args.negatives": "mined",
        "trainer.callbacks": [
            {"class_path": "HardNegativeMining", "init_args": {"every_n_steps": 2}}
        ],
    }
    config = write_config(tmp_path, backbone, write_t2ranking(tmp_path / "t2"), **changes)
    two_processes("fit", config)
    to_one = ["--trainer.default_root_dir", str(tmp_path / "one")]
    assert main(["fit", "--config", str(config), *to_one]) == 0
    of_two, of_one = ([*map(float, losses(tmp_path / name))] for name in ("run", "one"))
    assert len(of_one) == 4 and min(of_one) > 0
    assert of_two == pytest.approx(of_one, rel=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("fault", [0, 1])
def test_a_fault_in_a_refresh_on_one_rank_ends_all(tmp_path, backbone, collection_folder, fault):
    told = mined(tmp_path / "run", collection_folder, backbone, 2, fault)
    assert told.returncode == 2, told.stderr
    assert "a fault" in told.stderr and "Traceback" not in told.stderr, told.stderr


MEASURES = ("nDCG@10", "AP", "swapped_pairs")


def measured(parts: list[tuple]) -> list[float]:
    values = []
    for measure in MEASURES:
        metric = RankingMetric(measure)
        for lists in parts:
            metric.update(*lists)
        values.append(metric.compute().item())
    return values


def _measure_part(rank: int, store: str, parts: list, results: str) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2
    )
    torch.save(measured(parts[rank]), f"{results}/{rank}")
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("cut", [13, 40])
def test_a_metric_over_two_ranks_is_the_metric_over_all_queries(tmp_path, cut):
    """Uneven parts; at 40 the second rank has no query at all."""
    lists = random_lists(0)
    parts = [[tuple(t[:cut] for t in lists)], [tuple(t[cut:] for t in lists)] if cut < 40 else []]
    run_ranks(_measure_part, str(tmp_path / "store"), parts, str(tmp_path))
    for rank in range(2):
        assert torch.load(tmp_path / str(rank)) == pytest.approx(measured([lists]), abs=1e-12)
