"""Modules over the tiny worlds, and data that lays out what they read."""

import inspect
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import torch
from lightning.pytorch import Trainer

from ltr.batch import RankingBatch
from ltr.datamodules import RankingDataModule, TripletDataModule
from ltr.losses import Loss
from ltr.models import DualEncoder, FeatureRanker, PairWiseBertRanker, Ranker
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.module import RankerModule
from tests.world.data_modules import data_module


def trainer(folder: Path, **options) -> Trainer:
    quiet = {
        "accelerator": "cpu",
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "logger": False,
        "enable_checkpointing": False,
    }
    options = quiet | options
    return Trainer(default_root_dir=folder, num_sanity_val_steps=0, **options)


def cross_encoder(backbone: str, loss: Loss, **options) -> RankerModule:
    return _module(PairWiseBertRanker, loss, {"backbone": backbone, "max_length": 24} | options)


def dual_encoder(backbone: str, loss: Loss, **options) -> RankerModule:
    return _module(DualEncoder, loss, {"backbone": backbone, "max_length": 24} | options)


def feature_ranker(
    n_features: int, loss: Loss, preset: str = "two_layer", **options
) -> RankerModule:
    """Measured as LETOR is, and without warm-up."""
    options = {"warmup": 0.0, "metrics": ["nDCG_exp@10", "AP", "swapped_pairs"]} | options
    return _module(FeatureRanker, loss, {"n_features": n_features, "preset": preset} | options)


def _module(kind: type[Ranker], loss: Loss, options: dict) -> RankerModule:
    """``encoder`` is a dict of encoder options; what the ranker does not know is the module's."""
    if "encoder" in options:
        options["encoder"] = TextEncoder.Options(**options["encoder"])
    own = options.keys() & inspect.signature(kind).parameters
    ranker = kind(**{name: options.pop(name) for name in own})
    return RankerModule(ranker, loss, **options)


def data_for(
    module: RankerModule, kind: type[RankingDataModule], path: object, **options
) -> RankingDataModule:
    """Data that lays out what the ranker reads."""
    return data_module(kind, str(path), reads=module.ranker.reads, **options)


def first_batch(data: RankingDataModule) -> RankingBatch:
    """The first one of training."""
    data.prepare_data()
    data.setup("fit")
    return next(iter(data.train_dataloader()))


def losses_of_repeated_batch(module: RankerModule, path: Path, lr: float) -> list[float]:
    """The losses of 50 steps of AdamW on one batch, of all weights that are trained."""
    options = {"negatives_per_query": 3, "batch_size": 4}
    batch = first_batch(data_for(module, TripletDataModule, path, **options))
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=lr)
    losses = []
    for _ in range(50):
        optimizer.zero_grad()
        loss = module.loss(module(batch), batch.labels, batch.mask)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def batches(data: RankingDataModule, n: int) -> Iterator[RankingBatch]:
    """The first n batches of training, epoch after epoch."""
    data.prepare_data()
    data.setup("fit")
    loader = data.train_dataloader()

    def epochs() -> Iterator[RankingBatch]:
        for epoch in count():
            loader.sampler.set_epoch(epoch)
            yield from loader

    return islice(epochs(), n)
