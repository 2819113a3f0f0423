"""Which batches a trainer sees: by the data module, by its loader alone, limited, or the same ones again; and who knows what."""

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.tuner import Tuner

from ltr.batch import RankingBatch
from ltr.data.formats import ApartTexts, FeatureVectors, JoinedPairs, SingleTexts
from ltr.datamodules import FeatureDataModule, GroupDataModule, LabelDataModule, ListDataModule, PoolDataModule, TripletDataModule
from ltr.errors import InputError
from tests.conftest import wordpiece_tokenizer


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
    return FeatureDataModule(str(folder), seed=0, batch_size=4, list_size=4, bucket_window=4, num_workers=workers)


def expected(folder, epoch: int, steps: range) -> list[list]:
    data = data_of(folder)
    data.setup("fit")
    return [data.train[epoch, step].doc_rows.tolist() for step in steps]


def trained(tmp_path, **options) -> tuple[Trainer, Seen]:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
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
def test_a_limited_epoch_has_its_first_batches_and_overfitting_repeats_them(tmp_path, letor_folder, kind):
    trainer, module = trained(tmp_path, **{kind: 3})
    trainer.fit(module, datamodule=data_of(letor_folder))
    second = 0 if kind == "overfit_batches" else 1
    assert module.docs == expected(letor_folder, 0, range(3)) + expected(letor_folder, second, range(3))


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_a_search_for_a_batch_size_that_would_measure_nothing_is_refused(tmp_path, letor_folder):
    """Lightning sets the attribute after setup has planned the batches: every size would be tried with batches of 4."""
    trainer, module = trained(tmp_path)
    with pytest.raises(InputError, match=r"batch_size is fixed by setup\('fit'\), there 4, and now 8; .*\(option batch_size\)"):
        Tuner(trainer).scale_batch_size(module, datamodule=data_of(letor_folder))
    data = data_of(letor_folder)
    data.setup("fit")
    data.batch_size = 8
    data.setup("fit")
    assert len(next(iter(data.train_dataloader())).query_rows) == 8


# What the data is told of the ranker, and tells others


def reads_of(kind: str) -> JoinedPairs | ApartTexts | FeatureVectors | None:
    tokenizer = wordpiece_tokenizer()
    made = {
        "pairs": lambda: JoinedPairs(tokenizer, 24),
        "apart": lambda: ApartTexts(SingleTexts(tokenizer, 24), SingleTexts(tokenizer, 16)),
        "features": lambda: FeatureVectors(5),
        "nothing": lambda: None,
    }
    return made[kind]()


@pytest.mark.parametrize("kind", [TripletDataModule, ListDataModule, GroupDataModule, LabelDataModule])
def test_texts_must_know_how_they_are_read(kind, collection_folder):
    for reads, came in (("nothing", "got nothing"), ("features", "got a ranker of feature vectors")):
        with pytest.raises(InputError, match=f"{kind.__name__} serves texts and must know .* {came}; pass reads=ranker.reads"):
            kind(str(collection_folder), reads=reads_of(reads)).setup("fit")


def test_features_are_as_many_as_the_ranker_reads_or_the_data_has(letor_folder):
    data = FeatureDataModule(str(letor_folder), seed=0)
    data.setup("fit")
    assert data.n_features == 5 and data.train[0, 0].features.shape[2] == 5
    data = FeatureDataModule(str(letor_folder), seed=0, reads=FeatureVectors(7))
    data.setup("fit")
    assert data.n_features == 7 and data.train[0, 0].features.shape[2] == 7
    assert not data.train[0, 0].features[..., 5:].any()
    with pytest.raises(InputError, match="the data has 5 features, the model 4"):
        FeatureDataModule(str(letor_folder), reads=FeatureVectors(4)).setup("fit")
    for kind in ("pairs", "apart"):
        with pytest.raises(InputError, match="serves feature vectors, got a ranker that reads texts"):
            FeatureDataModule(str(letor_folder), reads=reads_of(kind)).setup("fit")


def test_a_cross_encoder_can_neither_search_nor_learn_from_groups(collection_folder):
    path = str(collection_folder)
    with pytest.raises(InputError, match="only a dual encoder can search the corpus: .* set candidates to candidates or bm25"):
        TripletDataModule(path, candidates="corpus", depth=5, reads=reads_of("pairs")).setup("fit")
    with pytest.raises(InputError, match="a cross-encoder can't learn from groups"):
        GroupDataModule(path, reads=reads_of("pairs")).setup("fit")


def test_evaluated_documents_come_from_somewhere(collection_folder):
    data = PoolDataModule(str(collection_folder), candidates=None, reads=reads_of("pairs"))
    with pytest.raises(InputError, match="candidates must be one of candidates, bm25, corpus, got None"):
        data.setup("validate")


def test_what_others_may_know_of_the_data(collection_folder, letor_folder):
    reads = reads_of("apart")
    data = ListDataModule(str(collection_folder), candidates="corpus", depth=5, index="IVF4,Flat", reads=reads)
    assert data.corpus is None and not data.needs_in_batch
    data.setup("fit")
    corpus = data.corpus
    assert (corpus.reads, corpus.depth, corpus.index, corpus.own_texts) == (reads, 5, "IVF4,Flat", False)
    assert (len(corpus.queries), len(corpus.docs)) == (len(data.collection.queries), len(data.collection.corpus)) == (90, 720)
    assert data.conventions() == {"candidates": "corpus", "depth": 5, "index": "IVF4,Flat"}
    assert sorted(data.query_rows_of_rank("dev")) == data.collection.judgements("dev").query_rows.tolist()
    assert data.query_rows_of_rank("test").tolist() == []  # not set up
    pools = GroupDataModule(str(collection_folder), reads=reads)
    pools.setup("fit")
    assert pools.corpus is None and pools.needs_in_batch and pools.conventions() == {"candidates": "candidates", "depth": None}
    features = FeatureDataModule(str(letor_folder))
    assert features.corpus is None and not features.needs_in_batch and features.conventions() == {}


def test_the_queries_of_two_ranks_are_all_queries(collection_folder, monkeypatch):
    monkeypatch.setattr(ListDataModule, "world_size", 2)
    seen = []
    for rank in range(2):
        monkeypatch.setattr(ListDataModule, "rank", rank)
        data = ListDataModule(str(collection_folder), candidates="corpus", depth=5, eval_batch_size=7, reads=reads_of("apart"))
        data.setup("validate")
        seen += data.query_rows_of_rank("dev").tolist()
    assert sorted(seen) == data.collection.judgements("dev").query_rows.tolist()
