"""Negatives that are refreshed while a ranker trains."""

import csv
import itertools
import json
import logging
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from filelock import FileLock, Timeout
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger

from ltr.__main__ import main
from ltr.callbacks import HardNegativeMining
from ltr.datamodules import TripletDataModule
from ltr.errors import InputError
from ltr.losses import SoftmaxLoss
from ltr.mining.filters import Recipe
from ltr.mining.mined_negatives import MinedNegatives
from ltr.mining.miner import Miner
from ltr.mining.side_process import SideProcess
from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.models.ranker import digest_of_weights
from ltr.module import RankerModule
from tests.child_processes import until
from tests.world.configurations import QUIET
from tests.world.data_modules import data_module

RECIPE = Recipe(depth=12, n=4, relative=None)


class Batches(Callback):
    """Keeps what every training batch holds."""

    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.seen.append(
            (
                trainer.global_step,
                batch.query_rows.tolist(),
                batch.doc_rows.tolist(),
                batch.distances,
            )
        )


def trained(folder, collection, backbone, *, mining=None, batches=None, trainer=None, **data):
    """A dual encoder trained on 30 queries, 6 batches an epoch, and what its batches held."""
    seed_everything(0)
    ranker = DualEncoder(backbone, max_length=24, temperature=0.1)
    module = RankerModule(ranker, SoftmaxLoss(), lr=1e-3)
    options = {
        "negatives": "mined",
        "negatives_per_query": 2,
        "batch_size": 5,
        "bucket_window": 4,
    } | data
    batches = Batches()
    mining = mining or HardNegativeMining(recipe=RECIPE)
    options_of_trainer = {
        **QUIET,
        "logger": False,
        "enable_checkpointing": False,
        "max_epochs": 2,
        "limit_val_batches": 0,
    } | (trainer or {})
    fit = Trainer(default_root_dir=folder, callbacks=[mining, batches], **options_of_trainer)
    fit.fit(module, data_module(TripletDataModule, str(collection), **options, reads=ranker.reads))
    return module, batches.seen


def negatives_of(folder: Path) -> dict[int, np.ndarray]:
    """The ids of each refresh in a run folder, by step."""
    return {
        int(one.name.removeprefix("step=")): np.load(one / "ids.npy")
        for one in (folder / "negatives").glob("step=*")
    }


def in_force(refreshes: dict[int, np.ndarray], before: int) -> np.ndarray:
    """The negatives that the batch after step ``before`` must be drawn from."""
    return refreshes[max(step for step in refreshes if step <= before)]


def check_batches(seen, refreshes):
    """Every batch holds negatives of the refresh in force, and of no other; each epoch visits every
    query once.
    """
    for step, queries, docs, _ in seen:
        ids = in_force(refreshes, step - 1)
        for query, row in zip(queries, docs, strict=True):
            assert set(row[1:]) <= set(ids[query]), f"step {step}"
    for epoch in (seen[:6], seen[6:12]):
        visited = [query for _, queries, _, _ in epoch for query in queries]
        assert len(visited) == len(set(visited)) == 30


@pytest.mark.parametrize(
    "workers",
    [
        pytest.param({}, id="no workers"),
        pytest.param({"num_workers": 2}, marks=pytest.mark.long, id="workers"),
        pytest.param({"num_workers": 2, "persistent_workers": True}, id="persistent workers"),
    ],
)
def test_the_batch_after_a_refresh_holds_the_new_negatives(
    tmp_path, collection_folder, backbone, workers
):
    """Refreshed after every 4th step: in the second epoch in the midst of a window, which workers
    have fetched ahead.
    """
    mining = HardNegativeMining(every_n_steps=4, recipe=RECIPE)
    module, seen = trained(tmp_path, collection_folder, backbone, mining=mining, **workers)
    refreshes = negatives_of(tmp_path)
    assert sorted(refreshes) == [0, 4, 8] and len(seen) == 12, (
        "12 is the end: there is no batch for it"
    )
    assert not np.array_equal(refreshes[0], refreshes[4]) and not np.array_equal(
        refreshes[4], refreshes[8]
    )
    check_batches(seen, refreshes)
    alone = trained(
        tmp_path / "alone",
        collection_folder,
        backbone,
        mining=HardNegativeMining(every_n_steps=4, recipe=RECIPE),
    )
    for (_, *a, x), (_, *b, y) in zip(seen, alone[1], strict=True):
        assert a == b
        torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)
    for a, b in zip(module.parameters(), alone[0].parameters(), strict=True):
        assert torch.equal(a, b)


def test_persistent_workers_that_draw_themselves_draw_from_the_new_negatives(
    tmp_path, collection_folder, backbone
):
    """Lightning's overfit_batches hands them the numbers of batches, instead of their rows."""
    options = {"num_workers": 2, "persistent_workers": True, "trainer": {"overfit_batches": 3}}
    _, seen = trained(tmp_path, collection_folder, backbone, **options)
    refreshes = negatives_of(tmp_path)
    assert sorted(refreshes) == [0, 3] and not np.array_equal(refreshes[0], refreshes[3])
    for step, queries, docs, _ in seen:
        for query, row in zip(queries, docs, strict=True):
            assert set(row[1:]) <= set(in_force(refreshes, step - 1)[query]), f"step {step}"


def test_a_second_run_knows_nothing_of_the_first(tmp_path, collection_folder, backbone):
    """The same callback and data module in another folder; the first run is torn off, so Lightning
    calls no teardown.
    """
    mining = HardNegativeMining(every_n_steps=4, recipe=RECIPE)
    ranker = DualEncoder(backbone, max_length=24)
    data = data_module(
        TripletDataModule, str(collection_folder), "bm25", 1, 2, batch_size=5, reads=ranker.reads
    )

    class Fault(Callback):
        def on_train_batch_end(self, trainer, *_):
            assert trainer.global_step < 5

    def fit(folder, *callbacks):
        options = {
            **QUIET,
            "logger": False,
            "enable_checkpointing": False,
            "max_epochs": 1,
            "limit_val_batches": 0,
        }
        trainer = Trainer(default_root_dir=tmp_path / folder, callbacks=[*callbacks], **options)
        trainer.fit(RankerModule(ranker, SoftmaxLoss(), lr=1e-3), data)

    with pytest.raises(AssertionError):
        fit("first", mining, Fault())
    fit("second", mining)
    assert (
        sorted(negatives_of(tmp_path / "first")) == sorted(negatives_of(tmp_path / "second")) == [4]
    )
    with pytest.raises(AssertionError):
        fit("third", mining, Fault())
    fit("fourth")
    assert not (tmp_path / "fourth/negatives").exists()


def test_a_trial_leaves_nothing(tmp_path, collection_folder, backbone):
    _, seen = trained(tmp_path, collection_folder, backbone, trainer={"fast_dev_run": True})
    assert len(seen) == 1 and [*tmp_path.iterdir()] == []


def test_a_trial_starts_no_process_beside_it(tmp_path, collection_folder, backbone):
    mining = HardNegativeMining(every_n_steps=1, recipe=RECIPE, asynchronous=True)
    options = {"fast_dev_run": 3}
    trained(tmp_path, collection_folder, backbone, mining=mining, trainer=options)
    assert [*tmp_path.iterdir()] == []


def test_the_distances_of_a_batch_are_those_of_its_negatives(tmp_path, collection_folder, backbone):
    _, seen = trained(tmp_path, collection_folder, backbone)
    for step, queries, docs, distances in seen:
        folder = tmp_path / f"negatives/step={0 if step <= 6 else 6}"
        ids = np.load(folder / "ids.npy")
        known = np.load(folder / "distances.npy")
        for query, row, values in zip(queries, docs, distances.tolist(), strict=True):
            places = [ids[query].tolist().index(doc) for doc in row[1:]]
            assert np.isnan(values[0]), "a relevant document was not mined"
            assert values[1:] == known[query][places].tolist()


@pytest.mark.parametrize(
    "options, data, steps",
    [
        ({}, {}, [0, 6]),
        ({"every_n_epochs": None}, {}, [0]),
        pytest.param({"every_n_epochs": 2}, {}, [0], marks=pytest.mark.long),
        ({}, {"negatives": "bm25"}, [6]),
        pytest.param(
            {"every_n_steps": 5}, {"negatives": "random"}, [5, 10], marks=pytest.mark.long
        ),
        ({"every_n_steps": 5}, {"negatives": {"random": 1, "mined": 2}}, [0, 5, 10]),
        ({"keep": 1}, {}, [6]),
    ],
)
def test_when_a_refresh_comes(tmp_path, collection_folder, backbone, options, data, steps):
    _, seen = trained(
        tmp_path,
        collection_folder,
        backbone,
        mining=HardNegativeMining(recipe=RECIPE, **options),
        **data,
    )
    assert sorted(negatives_of(tmp_path)) == steps
    if isinstance(data.get("negatives"), dict):
        ids = negatives_of(tmp_path)
        for step, queries, docs, distances in seen:
            for query, row, values in zip(queries, docs, distances, strict=True):
                assert len(set(row)) == 4 and set(row[2:]) <= set(in_force(ids, step - 1)[query])
                assert values[1].isnan() and values[2:].isfinite().all(), (
                    "a random document has no distance"
                )


def test_a_fixed_miner_serves_a_cross_encoder(tmp_path, collection_folder, backbone):
    seed_everything(0)
    miner = DualEncoder(backbone, max_length=24)
    ranker = PairWiseBertRanker(backbone, max_length=24)
    module = RankerModule(ranker, SoftmaxLoss(), lr=1e-3)
    mining = HardNegativeMining(recipe=RECIPE, miner=miner)
    before = [p.clone() for p in miner.parameters()]
    data = data_module(
        TripletDataModule,
        str(collection_folder),
        "mined",
        negatives_per_query=2,
        batch_size=5,
        reads=ranker.reads,
    )
    trainer = Trainer(
        default_root_dir=tmp_path,
        callbacks=[mining],
        max_epochs=2,
        logger=False,
        limit_val_batches=0,
        **QUIET,
    )
    trainer.fit(module, data)
    first, second = (
        MinedNegatives.open(tmp_path / f"negatives/step={step}", data.collection) for step in (0, 6)
    )
    assert (
        np.array_equal(first.lists.doc_rows, second.lists.doc_rows)
        and first.manifest["weights"] == second.manifest["weights"]
    )
    assert all(torch.equal(a, b) for a, b in zip(before, miner.parameters(), strict=True))


@pytest.mark.long
def test_a_miner_and_a_judge_are_named_by_their_runs(tmp_path, collection_folder, backbone, capsys):
    """The second run searches with the best weights of the first, and judges with its last ones."""
    assert main(configuration(tmp_path, collection_folder, backbone)) == 0
    first = tmp_path / "run"
    last = tmp_path / "run/checkpoints/last.ckpt"
    miner = HardNegativeMining(miner=str(first)).fixed_searcher
    best = torch.load(first / "checkpoints/best.ckpt", weights_only=True)["state_dict"]
    assert all(
        torch.equal(value, best[f"ranker.{name}"]) for name, value in miner.state_dict().items()
    )
    (tmp_path / "second").mkdir()
    args = configuration(
        tmp_path / "second", collection_folder, backbone, miner=str(first), judge=str(last)
    )
    assert main([*args, "--trainer.max_epochs", "1"]) == 0
    manifest = json.loads((tmp_path / "second/run/negatives/step=0/manifest.json").read_text())
    assert manifest["weights"] == digest_of_weights(miner) and manifest["judge"] == "DualEncoder"
    (tmp_path / "third").mkdir()
    capsys.readouterr()
    assert main(configuration(tmp_path / "third", collection_folder, backbone, miner="no/run")) == 2
    told = capsys.readouterr().err
    assert "HardNegativeMining: miner no/run: backbone 'no/run' can't be loaded" in told
    assert told.count("\n") == 1


def test_a_miner_is_trained_beside_a_cross_encoder_which_scores_anew(
    tmp_path, collection_folder, backbone
):
    """The second refresh has other weights of the miner, and of what scores: other negatives. The
    cross-encoder is measured.
    """
    seed_everything(0)
    miner = DualEncoder(backbone, max_length=24, temperature=0.1)
    ranker = PairWiseBertRanker(backbone, max_length=24)
    module = RankerModule(ranker, SoftmaxLoss(), miner=miner, lr=1e-3)
    mining = HardNegativeMining(recipe=RECIPE, rescore=True)
    before = digest_of_weights(miner)
    data = data_module(
        TripletDataModule,
        str(collection_folder),
        "mined",
        negatives_per_query=2,
        batch_size=5,
        reads=module.reads,
    )
    seen = Batches()
    logger = CSVLogger(tmp_path)
    options = {**QUIET, "max_epochs": 2, "limit_val_batches": 0}
    Trainer(default_root_dir=tmp_path, callbacks=[mining, seen], logger=logger, **options).fit(
        module, data
    )
    refreshes = negatives_of(tmp_path)
    assert sorted(refreshes) == [0, 6] and not np.array_equal(*refreshes.values())
    check_batches(seen.seen, refreshes)
    manifests = [
        json.loads((tmp_path / f"negatives/step={step}/manifest.json").read_text())
        for step in (0, 6)
    ]
    assert manifests[0]["weights"] == before != manifests[1]["weights"]
    assert [one["rescorer"] for one in manifests] == ["PairWiseBertRanker"] * 2
    rows = csv.DictReader(open(f"{logger.log_dir}/metrics.csv"))
    assert sum(row["train/miner_loss"] != "" for row in rows) == 12
    found = Trainer(**QUIET, logger=False).predict(module, data)[0]
    batch = next(iter(data.predict_dataloader()))
    with torch.no_grad():
        torch.testing.assert_close(found["scores"], ranker.eval()(batch))


def test_what_does_not_fit_is_one_line(tmp_path, collection_folder, backbone):
    with pytest.raises(InputError, match="nothing does that; add the callback"):
        trained(tmp_path, collection_folder, backbone, mining=Batches())
    with pytest.raises(InputError, match="negatives with the source 'mined', got bm25, random"):
        trained(tmp_path, collection_folder, backbone, negatives={"bm25": 1, "random": 1})
    ranker = PairWiseBertRanker(backbone, max_length=24)
    data = data_module(TripletDataModule, str(collection_folder), "mined", reads=ranker.reads)
    trainer = Trainer(
        default_root_dir=tmp_path, callbacks=[HardNegativeMining()], logger=False, **QUIET
    )
    with pytest.raises(
        InputError,
        match="PairWiseBertRanker is none; give one as miner, or train one as model.miner",
    ):
        trainer.fit(RankerModule(ranker, SoftmaxLoss()), data)
    miner = DualEncoder(backbone, max_length=24)
    with pytest.raises(
        InputError,
        match="a miner is trained beside a cross-encoder, got DualEncoder; leave the miner out",
    ):
        RankerModule(miner, SoftmaxLoss(), miner=miner)
    beside = RankerModule(ranker, SoftmaxLoss(), miner=miner)
    data = data_module(TripletDataModule, str(collection_folder), "mined", reads=beside.reads)
    for mining, text in (
        (
            HardNegativeMining(miner=miner),
            "a miner that stays as it is, and the model trains one; leave one of them out",
        ),
        (
            HardNegativeMining(rescore=True),
            "got rescore, but DualEncoder has scored what it found by searching",
        ),
    ):
        trainer = Trainer(default_root_dir=tmp_path, callbacks=[mining], logger=False, **QUIET)
        module = RankerModule(miner, SoftmaxLoss()) if mining.rescore else beside
        with pytest.raises(InputError, match=text):
            trainer.fit(module, data)
    corpus = data_module(
        TripletDataModule,
        str(collection_folder),
        "random",
        candidates="corpus",
        depth=5,
        reads=beside.reads,
    )
    with pytest.raises(InputError, match="only a dual encoder can search the corpus"):
        corpus.setup("fit")
    with pytest.raises(InputError, match="PairWiseBertRanker is none; name another miner"):
        HardNegativeMining(miner=ranker)
    with pytest.raises(InputError, match="every_n_steps must be at least 1, got 0"):
        HardNegativeMining(every_n_steps=0)
    with pytest.raises(InputError, match="each with a number above 0"):
        TripletDataModule(str(collection_folder), {"mined": 0})


def test_a_refresh_and_the_validations_beside_it_encode_the_corpus_once(
    tmp_path, collection_folder, backbone, encoded
):
    """Of three epochs, each with a refresh before it and a validation by search behind it, at four
    states of the weights: each encodes the 720 documents once. The first refresh reads what the
    validation before training has encoded.
    """
    options = {"max_epochs": 3, "limit_val_batches": 1.0, "num_sanity_val_steps": -1}
    trained(tmp_path, collection_folder, backbone, trainer=options, candidates="corpus", depth=10)
    assert sum(encoded) == 4 * 720
    assert len(negatives_of(tmp_path)) == 3
    assert not (tmp_path / "encodings").exists(), "what the training has encoded goes with it"


# The command line


def configuration(folder: Path, collection: Path, backbone: str, **mining) -> list[str]:
    config = {
        "model": {
            "ranker": {
                "class_path": "DualEncoder",
                "init_args": {"backbone": backbone, "max_length": 24, "temperature": 0.1},
            },
            "loss": "ltr.losses.SoftmaxLoss",
            "lr": 1e-3,
        },
        "data": {
            "class_path": "TripletDataModule",
            "init_args": {
                "path": str(collection),
                "negatives": "mined",
                "negatives_per_query": 2,
                "batch_size": 5,
                "loading": {"bucket_window": 4},
            },
        },
        "trainer": {
            **QUIET,
            "logger": False,
            "max_epochs": 2,
            "callbacks": [
                {
                    "class_path": "ltr.callbacks.HardNegativeMining",
                    "init_args": {"recipe": {"depth": 12, "n": 4, "relative": None}} | mining,
                }
            ],
        },
        "last": {"every_n_steps": 1},
    }
    (folder / "mined.yaml").write_text(yaml.safe_dump(config))
    return [
        "fit",
        "--config",
        str(folder / "mined.yaml"),
        "--trainer.default_root_dir",
        str(folder / "run"),
    ]


def weights(run: Path) -> dict:
    return torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"]


def test_a_refresh_and_a_validation_are_no_steps(
    tmp_path, collection_folder, backbone, monkeypatch, capsys
):
    """Each takes 1,000 s by a clock that is moved, and a step less than one: a line on a step, or on
    a batch that is validated, would tell 0.001 a second with one of them in it.
    """
    moved = [0.0]
    real_clock = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real_clock() + moved[0])
    monkeypatch.setattr("ltr.data.progress.EVERY", 0.0)

    def slow(function):
        def slowed(*args, **options):
            moved[0] += 1000
            return function(*args, **options)

        return slowed

    monkeypatch.setattr(Miner, "mine", slow(Miner.mine))
    monkeypatch.setattr(
        RankerModule, "on_validation_epoch_start", slow(RankerModule.on_validation_epoch_start)
    )
    args = configuration(tmp_path, collection_folder, backbone, every_n_steps=5)
    assert main([*args, "--trainer.val_check_interval", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    steps = [line for line in lines if line.startswith("step ") and "steps/s" in line]
    assert len(steps) == 12 and moved[0] == 3 * 1000 + 3 * 1000
    for line in steps:
        assert float(re.search(r": (\S+) steps/s", line)[1]) > 0.01, line
    # Before training, and at steps 4 and 10. The last of two batches says nothing.
    validated = [line for line in lines if line.startswith("validating: 1 of 2 batches, ")]
    assert len(validated) == 3
    for line in validated:
        assert float(re.search(r", (\S+) batches/s", line)[1]) > 0.01, line


def test_a_signal_in_a_refresh_saves_and_the_resumed_run_is_the_same(
    tmp_path, collection_folder, backbone, monkeypatch, capsys
):
    """SIGTERM comes in the refresh after step 5: last.ckpt holds step 5, and the run resumes with
    that refresh.
    """
    (tmp_path / "whole").mkdir()
    assert (
        main(configuration(tmp_path / "whole", collection_folder, backbone, every_n_steps=5)) == 0
    )
    (tmp_path / "ended").mkdir()
    args = configuration(tmp_path / "ended", collection_folder, backbone, every_n_steps=5)
    real = MinedNegatives.overlap

    def interrupted(self, other):
        signal.raise_signal(signal.SIGTERM)
        return real(self, other)

    monkeypatch.setattr(MinedNegatives, "overlap", interrupted)
    assert main(args) == 143
    run = tmp_path / "ended/run"
    assert torch.load(run / "checkpoints/last.ckpt", weights_only=True)["global_step"] == 5
    assert sorted(negatives_of(run)) == [0]
    monkeypatch.undo()
    assert main(["fit", str(run)]) == 0
    assert sorted(negatives_of(run)) == [0, 5, 10]
    whole = weights(tmp_path / "whole/run")
    assert all(torch.equal(value, whole[name]) for name, value in weights(run).items())


def test_the_epoch_before_a_refresh_is_saved_whatever_it_costs(
    tmp_path, collection_folder, backbone, monkeypatch
):
    """Epochs of 6 steps. SIGTERM comes in the refresh before the third, which is left at once: two
    epochs are kept.
    """
    monkeypatch.setattr("ltr.run.checkpoints.MAX_SHARE_OF_TIME", 1e-9)
    args = configuration(tmp_path, collection_folder, backbone)
    refreshes = itertools.count(1)
    real = MinedNegatives.overlap

    def interrupted(self, other):
        if next(refreshes) == 2:
            signal.raise_signal(signal.SIGTERM)
        return real(self, other)

    monkeypatch.setattr(MinedNegatives, "overlap", interrupted)
    options = (
        "--trainer.max_epochs",
        "4",
        "--trainer.limit_val_batches",
        "0",
        "--last.every_n_steps",
        "500",
    )
    assert main([*args, *options]) == 143
    assert (
        torch.load(tmp_path / "run/checkpoints/last.ckpt", weights_only=True)["global_step"] == 12
    )


def test_a_run_is_not_resumed_without_its_negatives_or_with_another_recipe(
    tmp_path, collection_folder, backbone, capsys
):
    args = configuration(tmp_path, collection_folder, backbone)
    assert main([*args, "--trainer.max_epochs", "1"]) == 0
    run = tmp_path / "run"
    manifest = run / "negatives/step=0/manifest.json"
    manifest.write_text(manifest.read_text().replace('"key": "', '"key": "x'))
    assert main(["fit", str(run), "--trainer.max_epochs", "2"]) == 2
    assert "negatives/step=0, which are not there (any more)" in capsys.readouterr().err
    other = configuration(tmp_path, collection_folder, backbone, recipe={"depth": 11})
    assert main([*other, "--ckpt_path", "last"]) == 2
    assert "trainer.callbacks[0].recipe.depth was 12 and is 11" in capsys.readouterr().err


@pytest.mark.long
def test_negatives_of_the_same_weights_are_found_and_not_mined_again(
    tmp_path, collection_folder, backbone, monkeypatch, caplog
):
    """Killed after the refresh of step 6 and before the next checkpoint: the resumed run finds the
    folder.
    """
    args = configuration(tmp_path, collection_folder, backbone)
    assert main([*args, "--trainer.max_epochs", "1", "--last.every_n_steps", "100"]) == 0
    run = tmp_path / "run"
    before = (run / "checkpoints/last.ckpt").read_bytes()
    assert main(["fit", str(run), "--trainer.max_epochs", "2"]) == 0
    after = weights(run)
    (run / "checkpoints/last.ckpt").write_bytes(before)
    monkeypatch.setattr("ltr.mining.miner.Miner.mine", lambda *_: pytest.fail("mined again"))
    assert main(["fit", str(run), "--trainer.max_epochs", "2"]) == 0
    assert all(torch.equal(value, after[name]) for name, value in weights(run).items())


def killed_at(step: int, monkeypatch) -> None:
    """Let the next run end when the refresh of a step is done, as by ``kill -9``: nothing more is
    saved.
    """
    monkeypatch.setattr(
        "ltr.callbacks.refresh_log.summary_lines",
        lambda manifest: [] if manifest["step"] < step else 1 / 0,
    )


@pytest.mark.long
def test_the_negatives_of_the_last_checkpoint_are_kept(
    tmp_path, collection_folder, backbone, monkeypatch
):
    """Only the newest are kept, and two runs are killed between a refresh and the next checkpoint.

    The first leaves the negatives of step 10, which are newer than those of its checkpoint, and
    than what the second mines.
    """
    (tmp_path / "whole").mkdir()
    assert (
        main(
            configuration(tmp_path / "whole", collection_folder, backbone, every_n_steps=2, keep=1)
        )
        == 0
    )
    args = configuration(tmp_path, collection_folder, backbone, every_n_steps=2, keep=1)
    killed_at(10, monkeypatch)
    with pytest.raises(ZeroDivisionError):
        main([*args, "--last.every_n_steps", "100"])
    run = tmp_path / "run"
    assert sorted(negatives_of(run)) == [4, 10], "the checkpoint is that of the first epoch"
    killed_at(8, monkeypatch)
    with pytest.raises(ZeroDivisionError):
        main(["fit", str(run), "--last.every_n_steps", "1"])
    assert sorted(negatives_of(run)) == [6, 8, 10]
    monkeypatch.undo()
    assert main(["fit", str(run)]) == 0
    assert sorted(negatives_of(run)) == [8, 10]
    whole = weights(tmp_path / "whole/run")
    assert all(torch.equal(value, whole[name]) for name, value in weights(run).items())


@pytest.mark.long
def test_a_run_that_begins_again_takes_no_negatives_of_before(
    tmp_path, collection_folder, backbone, monkeypatch
):
    """Killed in the first epoch, and begun again with other token limits: the weights are the same,
    the negatives are not.
    """
    args = configuration(tmp_path, collection_folder, backbone)
    killed_at(0, monkeypatch)
    with pytest.raises(ZeroDivisionError):
        main(args)
    before = negatives_of(tmp_path / "run")
    with pytest.raises(ZeroDivisionError):
        main([*args, "--model.ranker.max_length", "5"])
    after = negatives_of(tmp_path / "run")
    assert [*before] == [*after] == [0] and not np.array_equal(before[0], after[0])


def test_a_refresh_is_told_in_a_few_lines(tmp_path, collection_folder, backbone, caplog):
    with caplog.at_level(logging.INFO, logger="ltr"):
        trained(tmp_path, collection_folder, backbone)
    told = [record.message for record in caplog.records if record.name == "ltr.callbacks.mining"]
    assert len(told) == 6
    assert told[0].startswith(
        "hard negatives at step 0: 30 queries, the 12 best documents of each; encode "
    )
    assert told[1].startswith("  of 360 found, left out: relevant ")
    assert "; kept: 120, at most " in told[1]
    assert "were negatives before" in told[5] and "were negatives before" not in told[2]


def test_an_overlay_of_an_audit_beside_the_folders_is_left_alone(
    tmp_path, collection_folder, backbone
):
    (tmp_path / "negatives/step=0.drop-1").mkdir(parents=True)
    trained(tmp_path, collection_folder, backbone, mining=HardNegativeMining(recipe=RECIPE, keep=1))
    assert sorted(one.name for one in (tmp_path / "negatives").iterdir() if one.is_dir()) == [
        "step=0.drop-1",
        "step=6",
    ]


@pytest.mark.long
@pytest.mark.slow
def test_a_refresh_beside_the_training_is_taken_when_it_is_there(
    tmp_path, collection_folder, backbone, capsys
):
    """Due after step 2; the process is waited for after step 4, so the batches from step 5 on hold
    its negatives of step 2.
    """
    run = tmp_path / "run"
    args = configuration(tmp_path, collection_folder, backbone, every_n_steps=2, asynchronous=True)
    config = yaml.safe_load((tmp_path / "mined.yaml").read_text())
    waits = {"file": str(run / "negatives/step=2/manifest.json"), "step": 4}
    config["trainer"] |= {"max_steps": 6}
    config["trainer"]["callbacks"] += [{"class_path": "tests.faults.WaitFor", "init_args": waits}]
    (tmp_path / "mined.yaml").write_text(yaml.safe_dump(config))
    assert main(args) == 0
    told = capsys.readouterr().out
    assert (
        "hard negatives at step 2: 30 queries" in told
        and "training went on for 2 steps meanwhile" in told
    )
    assert sorted(negatives_of(run)) == [0, 2]
    assert not (run / "negatives/beside/weights.ckpt").exists()
    state = torch.load(run / "checkpoints/last.ckpt", weights_only=True)["callbacks"][
        "HardNegativeMining"
    ]
    manifest = json.loads((run / "negatives/step=2/manifest.json").read_text())
    assert (state["step"], state["key"]) == (2, manifest["key"])
    first = json.loads((run / "negatives/step=0/manifest.json").read_text())
    assert manifest["weights"] != first["weights"]
    assert (first["seed"][1], manifest["seed"][1]) == (0, 2), "the step, as where it is mined here"


@pytest.mark.long
def test_a_process_beside_a_run_that_was_killed_ends_and_the_run_resumes(
    tmp_path, collection_folder, backbone
):
    """Killed after step 4, while the refresh of step 2 waits: its folder is soon free again."""
    run = tmp_path / "run"
    mines = tmp_path / "mines"
    args = configuration(tmp_path, collection_folder, backbone, every_n_steps=2, asynchronous=True)
    config = yaml.safe_load((tmp_path / "mined.yaml").read_text())
    (mining,) = config["trainer"]["callbacks"]
    mining["class_path"] = "tests.faults.WaitingMiner"
    mining["init_args"]["file"] = str(mines)
    waits = {"file": str(tmp_path / "goes on"), "step": 4}
    config["trainer"]["callbacks"] += [{"class_path": "tests.faults.WaitFor", "init_args": waits}]
    (tmp_path / "mined.yaml").write_text(yaml.safe_dump(config))
    fit = subprocess.Popen([sys.executable, "-m", "ltr", *args])
    try:
        until(mines.exists, fit.poll)
        held = FileLock(run / "negatives/beside/.lock")
        with pytest.raises(Timeout):
            held.acquire(timeout=0)
    finally:
        fit.kill()
        fit.wait()
    with held.acquire():
        pass
    (tmp_path / "goes on").touch()
    assert main(["fit", str(run)]) == 0


@pytest.mark.long
def test_a_process_beside_the_training_that_fails_ends_the_run_with_one_line(
    tmp_path, collection_folder, backbone, monkeypatch
):
    """Its last line is told; a run in Python has no configuration that such a process could read."""
    mining = HardNegativeMining(every_n_steps=2, recipe=RECIPE, asynchronous=True)
    with pytest.raises(
        InputError,
        match=r"a process beside the training needs .*config.yaml; start the run by ltr fit",
    ):
        trained(tmp_path, collection_folder, backbone, mining=mining)
    (tmp_path / "config.yaml").write_text("seed_everything: 1\n")
    mining = HardNegativeMining(every_n_steps=2, recipe=RECIPE, asynchronous=True)
    monkeypatch.setattr(
        "ltr.mining.side_process.SideProcess.is_done", waiting_for(SideProcess.is_done)
    )
    with pytest.raises(
        InputError, match=r"ended with code 2: .*needs model.ranker.* \(.*mine.log\)"
    ):
        trained(tmp_path, collection_folder, backbone, mining=mining)


def waiting_for(is_done):
    def wait(self):
        self._process.wait()
        return is_done(self)

    return wait
