"""Data modules for tests, whose options are said flat."""

from types import SimpleNamespace
from typing import Any

import torch

from ltr.batch import RankingBatch
from ltr.datamodules import Evaluation, FeatureDataModule, Labels, Loading, RankingDataModule

PARTS = {
    "evaluation": {
        "candidates": "candidates",
        "depth": "depth",
        "index": "index",
        "eval_batch_size": "batch_size",
    },
    "loading": {
        "num_workers": "num_workers",
        "persistent_workers": "persistent_workers",
        "bucket_window": "bucket_window",
        "seed": "seed",
    },
    "labels": {
        "scores": "scores",
        "unscored": "unscored",
        "deviation": "deviation",
        "divide_by": "divide_by",
    },
}
KINDS = {"evaluation": Evaluation, "loading": Loading, "labels": Labels}


def nested(options: dict[str, Any], *, features: bool = False) -> dict[str, Any]:
    """Options of a data module as a configuration has them: ``depth`` in ``evaluation``, say."""
    named = dict(options)
    for part, names in PARTS.items():
        if features and part == "evaluation":
            continue
        inner = {new: named.pop(name) for name, new in names.items() if name in named}
        if inner:
            named[part] = inner
    return named


def data_module(
    kind: type[RankingDataModule], *args: Any, reads: Any = None, **options: Any
) -> Any:
    """A data module; what the ranker reads is set by hand."""
    named = nested(options, features=kind is FeatureDataModule)
    for part, made in KINDS.items():
        if part in named:
            named[part] = made(**named[part])
    data = kind(*args, **named)
    data.reads = reads
    return data


def trainer_of_rank(rank: int, world_size: int) -> SimpleNamespace:
    """What a data module asks its trainer in ``fit``, before the first batch."""
    return SimpleNamespace(
        global_rank=rank,
        world_size=world_size,
        lightning_module=None,
        state=SimpleNamespace(fn="fit"),
        strategy=SimpleNamespace(root_device=torch.device("cpu")),
        limit_train_batches=1.0,
        fit_loop=SimpleNamespace(
            epoch_loop=SimpleNamespace(
                batch_progress=SimpleNamespace(total=SimpleNamespace(processed=0))
            )
        ),
    )


def batches(data: RankingDataModule, epoch: int) -> list[RankingBatch]:
    """The training batches of an epoch."""
    loader = data.train_dataloader()
    loader.sampler.set_epoch(epoch)
    return list(loader)
