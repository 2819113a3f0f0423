"""What the loggers get of a refresh of negatives and of the step after it."""

import csv
from unittest import mock

import pytest
import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger, WandbLogger

from ltr.batch import ScoredLists
from ltr.callbacks import HardNegativeMining
from ltr.callbacks.refresh_log import RefreshLog
from ltr.datamodules import TripletDataModule
from ltr.losses import SoftmaxLoss
from ltr.margins import FromDistance
from ltr.mining.filters import Recipe
from ltr.models import DualEncoder
from ltr.module import LastStep, RankerModule
from ltr.run.loggers import ending_wandb_run
from tests.world.configurations import QUIET
from tests.world.data_modules import data_module


def test_a_refresh_is_logged_with_its_margins_and_the_active_pairs(
    tmp_path, collection_folder, backbone
):
    """CSV has the numbers; Weights & Biases also a histogram and a table."""
    seed_everything(0)
    ranker = DualEncoder(backbone, max_length=24, temperature=0.1)
    module = RankerModule(ranker, SoftmaxLoss(), FromDistance(k=2.0, power=0.5), lr=1e-3)
    data = data_module(
        TripletDataModule,
        str(collection_folder),
        "mined",
        negatives_per_query=2,
        batch_size=5,
        reads=ranker.reads,
    )
    online = WandbLogger(save_dir=tmp_path, offline=True)
    with (
        ending_wandb_run(),
        mock.patch.object(online.experiment, "log_artifact") as kept,
        mock.patch.object(online.experiment, "log") as logged,
    ):
        loggers = [CSVLogger(tmp_path, "logs"), online]
        options = QUIET | {
            "max_epochs": 2,
            "limit_val_batches": 0,
            "enable_checkpointing": False,
            "logger": loggers,
        }
        Trainer(
            default_root_dir=tmp_path,
            callbacks=[HardNegativeMining(recipe=Recipe(depth=12, n=4, relative=None))],
            **options,
        ).fit(module, data)
    rows = list(csv.DictReader((tmp_path / "logs/version_0/metrics.csv").open()))
    told = {
        name: [float(row[name]) for row in rows if row.get(name)]
        for name in rows[0]
        if name.startswith("mining/")
    }
    assert (
        len(told["mining/seconds_encode"]) == len(told["mining/active_after"]) == 2
        and len(told["mining/overlap"]) == 1
    )
    assert len(told["mining/active_before"]) == 1 and 0 < told["mining/active_before"][0] <= 1
    low, middle, high = (told[f"mining/margin_{name}"] for name in ("low", "median", "high"))
    assert 0 < low[0] <= middle[0] <= high[0] <= 2 * 2**0.5
    histograms = [
        call.args[0]["mining/margins"]
        for call in logged.call_args_list
        if "mining/margins" in call.args[0]
    ]
    assert len(histograms) == 2
    first, _ = (
        call.args[0]["mining/sample"]
        for call in logged.call_args_list
        if "mining/sample" in call.args[0]
    )
    assert (
        first.columns == ["query", "relevant", "negative", "distance", "margin"]
        and len(first.data) == 20
    )
    assert all(
        margin == pytest.approx(2 * distance**0.5, abs=1e-4) for *_, distance, margin in first.data
    )
    artifacts = [call.args[0] for call in kept.call_args_list]
    assert [one.type for one in artifacts] == ["negatives"] * 2 and [
        one.metadata["step"] for one in artifacts
    ] == [0, 6]


def test_the_margins_of_lists_of_any_size_are_logged():
    """One list of 2^24 + 1 negatives, more than torch.quantile takes, with margins from 0 to 1."""
    n_negatives = 2**24 + 1
    zero = torch.zeros(1, 1).expand(1, n_negatives)
    lists = ScoredLists(scores=zero, labels=zero, mask=zero == 0)
    margin = torch.linspace(0, 1, n_negatives).unsqueeze(0)
    module = mock.Mock(last_step=LastStep(lists, margin, torch.zeros(())))
    logger = mock.Mock()
    refresh_log = RefreshLog()
    refresh_log._step_after_refresh = 6
    with mock.patch("ltr.callbacks.refresh_log.active_share", return_value=0.5):
        refresh_log.report_next_step(mock.Mock(loggers=[logger], global_step=6), module)
    numbers, step = logger.log_metrics.call_args.args
    assert step == 6, "that of the seventh step, of which this may be the first of several batches"
    quantiles = [numbers[f"mining/margin_{name}"] for name in ("low", "median", "high")]
    assert quantiles == pytest.approx([0.1, 0.5, 0.9], abs=1e-6)
