"""Which batches a trainer sees: by the data module, by its loader alone, limited, or the same ones
again; and who knows what."""

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.tuner import Tuner

from ltr.batch import RankingBatch
from ltr.data.layouts import FeatureVectors
from ltr.datamodules import FeatureDataModule, LabelDataModule, PoolDataModule, TripletDataModule
from ltr.errors import InputError
from tests.datamodules.read import reads_of
from tests.world.data_modules import data_module


@pytest.mark.parametrize("kind", [PoolDataModule, *PoolDataModule.__subclasses__()])
def test_a_collection_may_be_named_by_a_path(kind, collection_folder):
    """Opened as by its name: labelled texts are another kind of data, and told so."""
    data = data_module(kind, collection_folder, reads=reads_of("apart"))
    as_text = data_module(kind, str(collection_folder), reads=reads_of("apart"))
    assert data.path == as_text.path == str(collection_folder)
    if kind is LabelDataModule:
        with pytest.raises(InputError, match="must hold"):
            data.prepare_data()
        return
    data.prepare_data()
    assert len(data.collection.queries) == 90


def test_features_and_negatives_may_be_named_by_a_path(letor_folder, tmp_path):
    data = data_module(FeatureDataModule, letor_folder)
    data.setup("fit")
    assert len(data.train) > 0
    mined = TripletDataModule("data", tmp_path / "mined", negatives_per_query=2)
    assert mined.sources[0].negatives_per_row == {str(tmp_path / "mined"): 2}


class Seen(LightningModule):
    """Learns nothing, and keeps the documents of every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.docs: list[list] = []

    def training_step(self, batch: RankingBatch, batch_idx: int) -> torch.Tensor:
        self.docs.append(batch.doc_rows.tolist())
        return self.weight * 0

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters())


def data_of(folder, workers: int = 0) -> FeatureDataModule:
    return data_module(
        FeatureDataModule,
        str(folder),
        seed=0,
        batch_size=4,
        list_size=4,
        bucket_window=4,
        num_workers=workers,
    )


def expected(folder, epoch: int, steps: range) -> list[list]:
    data = data_of(folder)
    data.setup("fit")
    return [data.train[epoch, step].doc_rows.tolist() for step in steps]


def trained(tmp_path, **options) -> tuple[Trainer, Seen]:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    limits = {"accelerator": "cpu", "max_epochs": 2, "limit_val_batches": 0}
    return Trainer(default_root_dir=tmp_path, **quiet, **limits | options), Seen()


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*persistent_workers")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_alone_gives_other_batches_in_each_epoch_too(tmp_path, letor_folder, workers):
    """24 queries in batches of 4 are 6 steps."""
    data = data_of(letor_folder, workers)
    data.setup("fit")
    trainer, module = trained(tmp_path)
    trainer.fit(module, train_dataloaders=data.train_dataloader())
    epochs = [expected(letor_folder, epoch, range(6)) for epoch in range(2)]
    assert module.docs == epochs[0] + epochs[1] and epochs[0] != epochs[1]


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.parametrize("kind", ["limit_train_batches", "overfit_batches"])
def test_a_limited_epoch_has_its_first_batches_and_overfitting_repeats_them(
    tmp_path, letor_folder, kind
):
    trainer, module = trained(tmp_path, **{kind: 3})
    trainer.fit(module, datamodule=data_of(letor_folder))
    second = 0 if kind == "overfit_batches" else 1
    assert module.docs == expected(letor_folder, 0, range(3)) + expected(
        letor_folder, second, range(3)
    )


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_a_search_for_a_batch_size_that_would_measure_nothing_is_refused(tmp_path, letor_folder):
    """Lightning sets the attribute after setup has planned the batches: every size would be tried
    with batches of 4.
    """
    trainer, module = trained(tmp_path)
    with pytest.raises(
        InputError,
        match=r"batch_size is fixed by setup\('fit'\), there 4, and now 8; .*\(option batch_size\)",
    ):
        Tuner(trainer).scale_batch_size(module, datamodule=data_of(letor_folder))
    data = data_of(letor_folder)
    data.setup("fit")
    data.batch_size = 8
    data.setup("fit")
    assert len(next(iter(data.train_dataloader())).query_rows) == 8


def test_features_are_as_many_as_the_ranker_reads_or_the_data_has(letor_folder):
    data = data_module(FeatureDataModule, str(letor_folder), seed=0)
    data.setup("fit")
    assert data.n_features == 5 and data.train[0, 0].features.shape[2] == 5
    data = data_module(FeatureDataModule, str(letor_folder), seed=0, reads=FeatureVectors(7))
    data.setup("fit")
    assert data.n_features == 7 and data.train[0, 0].features.shape[2] == 7
    assert not data.train[0, 0].features[..., 5:].any()
    with pytest.raises(InputError, match="the data has 5 features, the model 4"):
        data_module(FeatureDataModule, str(letor_folder), reads=FeatureVectors(4)).setup("fit")
    for kind in ("pairs", "apart"):
        with pytest.raises(
            InputError, match="serves feature vectors, got a ranker that reads texts"
        ):
            data_module(FeatureDataModule, str(letor_folder), reads=reads_of(kind)).setup("fit")
