"""LightningDataModules: from files to batches."""

from ltr.datamodules.pools import PoolDataModule
from ltr.datamodules.triplets import TripletDataModule

__all__ = ["PoolDataModule", "TripletDataModule"]
