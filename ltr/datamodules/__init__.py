"""LightningDataModules: from files to batches."""

from ltr.datamodules.evaluation import Evaluation
from ltr.datamodules.features import FeatureDataModule
from ltr.datamodules.groups import GroupDataModule
from ltr.datamodules.label_groups import LabelDataModule
from ltr.datamodules.lists import ListDataModule
from ltr.datamodules.loading import Loading
from ltr.datamodules.pools import PoolDataModule
from ltr.datamodules.ranking import RankingDataModule
from ltr.datamodules.sources import Mixture
from ltr.datamodules.training_labels import Labels
from ltr.datamodules.triplets import TripletDataModule

__all__ = [
    "Evaluation",
    "FeatureDataModule",
    "GroupDataModule",
    "LabelDataModule",
    "Labels",
    "ListDataModule",
    "Loading",
    "Mixture",
    "PoolDataModule",
    "RankingDataModule",
    "TripletDataModule",
]
