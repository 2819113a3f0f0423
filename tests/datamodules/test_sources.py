"""Several sources in one training."""

import json
import logging
import math
import pickle
import shutil
from itertools import islice

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback

from ltr.callbacks import HardNegativeMining
from ltr.data.cache_contents import Cache
from ltr.data.collate import sources_of_queries
from ltr.data.cross_validation import Fold
from ltr.data.layouts import ApartTexts, JoinedPairs, SingleTexts
from ltr.data.template import Template
from ltr.datamodules import (
    Evaluation,
    GroupDataModule,
    ListDataModule,
    Mixture,
    TripletDataModule,
)
from ltr.datamodules.sources import DataSource, sources_of, weights_of
from ltr.errors import InputError
from ltr.in_batch import AllTexts, OtherQueries
from ltr.losses import SoftmaxLoss
from ltr.mining.filters import Recipe
from ltr.mining.mined_negatives import MinedNegatives
from tests.world.backbones import wordpiece_tokenizer
from tests.world.collections import write_collection, write_jsonl
from tests.world.data_modules import data_module, trainer_of_rank
from tests.world.rankers import dual_encoder, trainer

KINDS = {
    "triplets": (TripletDataModule, {"negatives_per_query": 3, "batch_size": 4}),
    "lists": (ListDataModule, {"batch_size": 4}),
    "groups": (GroupDataModule, {"groups": 4, "docs_per_group": 1}),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """30 and 11 queries in each split; and 7, without dev."""
    folder = tmp_path_factory.mktemp("sources")
    for seed, (name, n_queries) in enumerate({"a": 30, "b": 11, "c": 7}.items()):
        write_collection(folder / name, n_queries=n_queries, seed=seed)
    (folder / "c/qrels/dev.tsv").unlink()
    shutil.copytree(folder / "c", folder / "d")
    return {name: str(folder / name) for name in "abcd"}


def reads(kind="triplets"):
    tokenizer = wordpiece_tokenizer()
    if kind == "groups":
        return ApartTexts(SingleTexts(tokenizer, 24), SingleTexts(tokenizer, 16))
    return JoinedPairs(tokenizer, 24)


def opened(path, kind="triplets", rank=0, world_size=1, **options):
    """Set up for fit, as under a trainer of this process."""
    module, usual = KINDS[kind]
    data = data_module(module, path, reads=reads(kind), **usual | {"seed": 5} | options)
    data.trainer = trainer_of_rank(rank, world_size)
    data.setup("fit")
    return data


def from_step(data, epoch, step, count):
    """Batches as a run gets them that resumes there."""
    total = data.trainer.fit_loop.epoch_loop.batch_progress.total
    total.processed = epoch * len(data.train) + step
    return list(islice(data.train_dataloader(), count))


def fields(batch):
    """Everything of a batch but the numbers of its texts, as plain lists."""
    found = {"labels": batch.labels, "mask": batch.mask, "judged_grades": batch.judged_grades}
    for name in ("pairs", "queries", "docs"):
        texts = getattr(batch, name)
        if texts is not None:
            found |= {f"{name} {part}": value for part, value in texts._asdict().items()}
    return {name: value.tolist() for name, value in found.items() if value is not None}


def lists_of(data):
    """All training lists, epoch after epoch."""
    plan = data.train.plan
    for epoch in range(9):
        for step in range(len(plan)):
            yield from plan.lists(epoch, step)


# Batches


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_one_source_is_that_of_a_training_on_it_alone(folders, kind):
    """2 : 1 over eight and three steps: an epoch has eleven. The k-th batch that a source gives is
    the k-th of its own training, epoch after epoch.
    """
    path = [{"path": folders["a"], "weight": 2}, {"path": folders["b"], "weight": 1}]
    data = opened(path, kind)
    alone = [opened(folders[name], kind) for name in "ab"]
    assert len(data.train) == sum(len(each.train) for each in alone) == 11
    given = [0, 0]
    for epoch in range(3):
        for step in range(11):
            batch = data.train[epoch, step]
            (source,) = set(batch.sources.tolist())
            own = divmod(given[source], len(alone[source].train))
            expected = alone[source].train[own]
            assert fields(batch) == fields(expected)
            first_query = data.joined.first_queries[source]
            assert (batch.query_rows - first_query).tolist() == expected.query_rows.tolist()
            first_doc = data.joined.first_docs[source]
            moved = torch.where(batch.mask, batch.doc_rows - first_doc, 0)
            assert moved.tolist() == expected.doc_rows.tolist()
            given[source] += 1
    assert given == [22, 11]


@pytest.mark.parametrize("kind", KINDS)
def test_a_mixed_batch_has_the_lists_that_its_sources_give_alone(folders, kind):
    """3 : 1 in batches of four: three lists and one, in the order of each source's own batches."""
    path = [{"path": folders["a"], "weight": 3}, {"path": folders["b"], "weight": 1}]
    data = opened(path, kind, mixture=Mixture("mixed"))
    streams = [lists_of(opened(folders[name], kind)) for name in "ab"]
    # A last group alone has nothing to be told from, and is left out.
    assert len(data.train) == (10 if kind == "groups" else 11)
    for epoch in range(2):
        for step in range(10):
            lists = data.train.plan.lists(epoch, step)
            query_rows = np.array([one.query_row for one in lists])
            sources = sources_of_queries(data.joined.first_queries, query_rows)
            assert sources.tolist() == [0, 0, 0, 1]
            for source, labelled in zip(sources.tolist(), lists, strict=True):
                expected = data.joined.shift_of(source)(next(streams[source]))
                assert labelled.query_row == expected.query_row
                assert labelled.doc_rows.tolist() == expected.doc_rows.tolist()
                assert labelled.labels.tolist() == expected.labels.tolist()
        # The eleventh has one list, of the source whose turn it is.
        next(streams[data.train.plan.turns.source(epoch * 41 + 40)])


@pytest.mark.parametrize("kind", KINDS)
def test_only_groups_are_warned_of_being_alone_in_a_batch(folders, kind, caplog):
    """9 : 1 in batches of four: 0.4 of the second source. A triplet brings its own negatives."""
    path = [{"path": folders["a"], "weight": 9}, {"path": folders["b"], "weight": 1}]
    opened(path, kind, mixture=Mixture("mixed"))
    assert ("source b gives 0.4 groups to a batch" in caplog.text) == (kind == "groups")


@pytest.mark.parametrize(
    ("kind", "batches"),
    [
        pytest.param(kind, batches, marks=[pytest.mark.long] * (kind != "lists"))
        for kind in KINDS
        for batches in ("one_source", "mixed")
    ],
)
def test_batches_follow_from_seed_epoch_and_step_alone(folders, kind, batches):
    """Whatever came before, with other workers, and as two processes share them."""
    path = [folders["a"], folders["b"]]
    options = {"mixture": Mixture(batches), "bucket_window": 3}
    whole = opened(path, kind, **options)
    steps = len(whole.train)
    in_order = [fields(one) for epoch in (0, 1) for one in from_step(whole, epoch, 0, steps)]
    assert len(in_order) == 2 * steps
    resumed = opened(path, kind, num_workers=2, **options)
    for epoch, step in ((1, 7), (0, 5)):
        found = [fields(one) for one in from_step(resumed, epoch, step, steps - step)]
        assert found == in_order[epoch * steps + step : (epoch + 1) * steps]
    ranks = [opened(path, kind, rank, 2, **options) for rank in (0, 1)]
    for epoch, step in ((0, 4), (1, 0), (1, steps - 1)):
        expected = [one.query_row for one in whole.train.plan.lists(epoch, step)]
        of_ranks = [one.train.plan.lists(epoch, step) for one in ranks]
        for rank, lists in enumerate(of_ranks):
            assert [one.query_row for one in lists] == expected[rank::2]
    other = opened(path, kind, **options | {"seed": 6})
    assert fields(other.train[0, 0]) != in_order[0]


@pytest.mark.parametrize("batches", ["one_source", "mixed"])
def test_a_worker_that_is_not_forked_gets_the_same_batches(folders, batches):
    data = opened([folders["a"], folders["b"]], mixture=Mixture(batches))
    there = pickle.loads(pickle.dumps(data.train))
    for step in (0, 7):
        assert fields(there[1, step]) == fields(data.train[1, step])


def test_an_epoch_without_weights_has_every_query_of_every_source_once(folders):
    for batches in ("one_source", "mixed"):
        data = opened([folders["a"], folders["b"], folders["c"]], mixture=Mixture(batches))
        for epoch in (0, 1):
            queries = [
                int(query)
                for step in range(len(data.train))
                for query in data.train[epoch, step].query_rows
            ]
            names = sorted(data.joined.query_ids[query] for query in queries)
            assert names == sorted(
                f"{name}/train-q{q}"
                for name, n in (("a", 30), ("b", 11), ("c", 7))
                for q in range(n)
            )


def test_each_source_has_negatives_of_its_own(folders):
    """Of a, from the pools of a query, which are its own documents; of b, any of b's."""
    path = [{"path": folders["a"]}, {"path": folders["b"], "negatives": {"random": 2}}]
    data = opened(path, mixture=Mixture("mixed"))
    doc_ids = data.joined.doc_ids
    strangers = {"a": 0, "b": 0}
    for step in range(len(data.train)):
        for labelled in data.train.plan.lists(0, step):
            query = data.joined.query_ids[labelled.query_row]
            docs = [doc_ids[row] for row in labelled.doc_rows.tolist()]
            assert len(docs) == {"a": 4, "b": 3}[query[0]]
            assert {doc[0] for doc in docs} == {query[0]}
            strangers[query[0]] += sum(not doc.startswith(f"{query}-") for doc in docs)
    assert strangers["a"] == 0 and strangers["b"] > 11


def test_the_instruction_of_a_source_is_read_where_a_query_has_none(tmp_path):
    write_collection(tmp_path / "a", n_queries=4)
    write_collection(tmp_path / "b", n_queries=4, seed=1)
    file = tmp_path / "b/queries.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines[::2]:
        line["instruction"] = "w3 w4"
    write_jsonl(file, lines)
    template = Template("{instruction} a {query}", "{document}", instruction="w9")
    path = [str(tmp_path / "a"), {"path": str(tmp_path / "b"), "instruction": "w1 w2"}]
    data = data_module(
        TripletDataModule, path, reads=JoinedPairs(wordpiece_tokenizer(), 24, template)
    )
    data.setup("fit")
    tokenizer = data.reads.tokenizer
    seen = set()
    for step in range(len(data.train)):
        batch = data.train[0, step]
        texts = iter(batch.pairs.ids.split(batch.pairs.lengths.tolist()))
        for query, mask in zip(batch.query_rows.tolist(), batch.mask, strict=True):
            name = data.joined.query_ids[query]
            own = name[0] == "b" and int(name[-1]) % 2 == 0
            instruction = "w9" if name[0] == "a" else "w3 w4" if own else "w1 w2"
            for _ in range(int(mask.sum())):
                assert tokenizer.decode(next(texts)).startswith(f"[CLS] {instruction} a ")
            seen.add(instruction)
    assert seen == {"w9", "w1 w2", "w3 w4"}
    plain = data_module(TripletDataModule, path, reads=JoinedPairs(wordpiece_tokenizer(), 24))
    with pytest.raises(InputError, match=r"path\[1\]: the ranker must read instructions"):
        plain.setup("fit")


def test_a_source_in_another_language(tmp_path):
    """Every character is a word; the two are read with one tokenizer."""
    write_collection(tmp_path / "english", n_queries=6)
    chinese = tmp_path / "chinese"
    (chinese / "qrels").mkdir(parents=True)
    illnesses = ["糖尿病", "高血压", "感冒", "头痛"]
    queries = []
    docs = []
    lines = ["query-id\tcorpus-id\tscore"]
    for number, illness in enumerate(illnesses):
        queries.append({"_id": f"问{number}", "text": f"{illness}怎么办"})
        docs.append({"_id": f"答{number}", "text": f"{illness}应该去看医生"})
        lines.append(f"问{number}\t答{number}\t1")
    write_jsonl(chinese / "queries.jsonl", queries)
    write_jsonl(chinese / "corpus.jsonl", docs)
    for split in ("train", "dev", "test"):
        (chinese / f"qrels/{split}.tsv").write_text("\n".join(lines) + "\n")
    tokenizer = wordpiece_tokenizer()
    tokenizer.add_tokens(sorted(set("".join(illnesses) + "怎么办应该去看医生")))
    options = {"negatives": "random", "negatives_per_query": 2, "batch_size": 4}
    data = data_module(
        TripletDataModule,
        [str(tmp_path / "english"), str(chinese)],
        reads=JoinedPairs(tokenizer, 24),
        mixture=Mixture("mixed"),
        candidates="bm25",
        depth=3,
        **options,
    )
    data.setup("fit")
    read = {}
    for step in range(len(data.train)):
        batch = data.train[0, step]
        first_of_list = torch.cat([torch.zeros(1), batch.mask.sum(dim=1).cumsum(0)]).long()
        texts = batch.pairs.ids.split(batch.pairs.lengths.tolist())
        for query, place in zip(batch.query_rows.tolist(), first_of_list.tolist(), strict=False):
            words = tokenizer.decode(texts[place]).replace(" ", "")
            read[data.joined.query_ids[query]] = words
    for number, illness in enumerate(illnesses):
        expected = f"[CLS]{illness}怎么办[SEP]{illness}应该去看医生[SEP]"
        assert read[f"chinese/问{number}"] == expected
    assert len(read) == 10
    dev = [one for batch in data.eval_batches("dev").batches for one in batch]
    dev_sources = sources_of_queries(
        data.joined.first_queries, np.array([one.query_row for one in dev])
    )
    of_chinese = [one for one, source in zip(dev, dev_sources, strict=True) if source == 1]
    assert len(dev) == 10 and len(of_chinese) == 4
    for one in of_chinese:  # BM25 of its own corpus
        names = {data.joined.doc_ids[row] for row in one.doc_rows.tolist()}
        assert 1 <= len(names) <= 3 and all(name.startswith("chinese/答") for name in names)


# Training and measuring


@pytest.mark.parametrize("batches", ["one_source", "mixed"])
@pytest.mark.parametrize("policy", [OtherQueries, AllTexts])
def test_a_dual_encoder_learns_from_several(folders, backbone, tmp_path, batches, policy):
    module = dual_encoder(backbone, SoftmaxLoss(), in_batch=policy(), lr=0.01)
    path = [folders["a"], folders["b"]]
    options = {"groups": 8, "mixture": Mixture(batches)}
    data = data_module(GroupDataModule, path, reads=module.ranker.reads, **options)
    before = module.ranker.key
    fit = trainer(tmp_path, max_epochs=1)
    fit.fit(module, data)
    # 4 + 2 batches; or 41 groups in batches of 8, of which the last is alone.
    n_steps = 6 if batches == "one_source" else 5
    assert fit.global_step == len(data.train) == n_steps and module.ranker.key != before
    assert torch.isfinite(module.last_step.loss)


def measured(module, path, tmp_path, **options):
    """What a validation logs."""
    options = {"batch_size": 4, "eval_batch_size": 5} | options
    data = data_module(TripletDataModule, path, reads=module.ranker.reads, **options)
    run = trainer(tmp_path)
    run.validate(module, data, verbose=False)
    return {name.removeprefix("val/"): float(value) for name, value in run.callback_metrics.items()}


@pytest.mark.parametrize("candidates", ["candidates", "bm25", "corpus"])
def test_metrics_are_those_of_each_source_alone_and_their_mean(
    folders, backbone, tmp_path, candidates
):
    """The sources have 30 and 11 queries: their mean is not that of 41."""
    module = dual_encoder(backbone, SoftmaxLoss())
    options = {"candidates": candidates, "depth": 10}
    together = measured(module, [folders["a"], folders["b"], folders["c"]], tmp_path, **options)
    alone = {name: measured(module, folders[name], tmp_path, **options) for name in "ab"}
    expected = {}
    for metric in alone["a"]:
        values = [alone[name][metric] for name in "ab"]
        finite = [value for value in values if not math.isnan(value)]
        expected[metric] = sum(finite) / len(finite)
        for name, value in zip("ab", values, strict=True):
            if not math.isnan(value):
                expected[f"{name}/{metric}"] = value
    assert together == pytest.approx(expected, abs=1e-6)
    assert alone["a"]["nDCG@10"] != alone["b"]["nDCG@10"]


def test_a_corpus_that_sources_share_is_encoded_and_tokenised_once(
    folders, backbone, tmp_path, monkeypatch
):
    """Two of three sources have the documents of a; other questions to them have the same names."""
    monkeypatch.setenv("LTR_CACHE", str(tmp_path / "cache"))
    other = write_collection(tmp_path / "other", n_queries=30, seed=0)
    lines = (other / "queries.jsonl").read_text().replace('"text": "', '"text": "w7 ')
    (other / "queries.jsonl").write_text(lines)
    module = dual_encoder(backbone, SoftmaxLoss())
    options = {"candidates": "corpus", "depth": 10}
    path = [folders["a"], folders["b"], str(other)]
    together = measured(module, path, tmp_path / "run", **options)
    kinds = [entry.kind for entry in Cache().entries]
    assert kinds.count("encodings") == 2 and kinds.count("tokens") == 3 + 2
    alone = measured(module, str(other), tmp_path / "alone", **options)
    assert together["other/nDCG@10"] == pytest.approx(alone["nDCG@10"], abs=1e-6)


def mined_of_two(module, folders, **options):
    """Negatives of a and c are mined; those of b are random."""
    path = [
        {"path": folders["a"], "weight": 2, "negatives": "mined"},
        {"path": folders["b"], "weight": 1, "negatives": "random"},
        {"path": folders["c"], "weight": 1, "negatives": "mined"},
    ]
    usual = {"negatives_per_query": 3, "batch_size": 4, "bucket_window": 3}
    return data_module(TripletDataModule, path, reads=module.ranker.reads, **usual | options)


class Seen(Callback):
    """The ids of the queries and documents of every batch."""

    def __init__(self):
        self.batches = []

    def on_train_batch_start(self, trainer, module, batch, number):
        query_ids, doc_ids = trainer.datamodule.names("train")
        lists = []
        for query, rows, mask in zip(batch.query_rows, batch.doc_rows, batch.mask, strict=True):
            lists.append((query_ids[int(query)], [doc_ids[row] for row in rows[mask].tolist()]))
        self.batches.append(lists)


def test_negatives_are_mined_of_each_source_that_says_so(folders, backbone, tmp_path):
    """Every 3 steps: before the first batch, and before steps 3, 6 and 9. What a row of a or of c
    draws is what was mined last for its query, in a folder of its source.
    """
    module = dual_encoder(backbone, SoftmaxLoss(), in_batch=OtherQueries(), lr=0.01)
    data = mined_of_two(module, folders)
    seen = Seen()
    mining = HardNegativeMining(every_n_steps=3, recipe=Recipe(depth=20, n=6, relative=None))
    fit = trainer(tmp_path, max_epochs=1, callbacks=[mining, seen], limit_val_batches=0)
    fit.fit(module, data)
    n_steps = 8 + 3 + 2
    assert fit.global_step == n_steps == len(seen.batches)
    mined_at = range(0, n_steps, 3)
    for name in "ac":
        found = {file.name for file in (tmp_path / "negatives" / name).iterdir()}
        assert found == {f"step={step}" for step in mined_at}
    assert {file.name for file in (tmp_path / "negatives").iterdir()} == {"a", "c"}
    turns = {"a": 0, "b": 0, "c": 0}
    queries = {"a": [], "b": [], "c": []}
    for step, lists in enumerate(seen.batches):
        (name,) = {query[0] for query, _ in lists}
        turns[name] += 1
        collection = data.joined.collections["abc".index(name)]
        queries[name] += [query for query, _ in lists]
        if name == "b":
            continue
        folder = tmp_path / "negatives" / name / f"step={step // 3 * 3}"
        mined = MinedNegatives.open(folder, collection).lists
        for query, docs in lists:
            rows, _ = mined.of(collection.queries.row(query.split("/")[1]))
            allowed = {f"{name}/{collection.corpus.ids[row]}" for row in rows.tolist()}
            assert len(docs) == 4 and set(docs[1:]) <= allowed
    assert turns == {"a": 7, "b": 3, "c": 3}
    # An epoch of a source has each of its queries once, though refreshes come in its midst.
    assert len(set(queries["a"])) == len(queries["a"])
    assert len(set(queries["b"])) == 11 and len(set(queries["c"])) == 7


def test_what_is_left_out_is_tested_and_neither_trained_on_nor_validated(folders):
    path = [folders["a"], {"path": folders["b"], "negatives": "bm25"}, folders["c"]]
    data = opened(path, mixture=Mixture(leave_out="a"))
    alone = opened([{"path": folders["b"], "negatives": "bm25"}, folders["c"]])
    assert len(data.train) == len(alone.train)
    for step in range(len(alone.train)):
        assert fields(data.train[0, step]) == fields(alone.train[0, step])
        assert 0 not in data.train[0, step].sources
    dev = [one.query_row for batch in data.eval_batches("dev").batches for one in batch]
    assert set(sources_of_queries(data.joined.first_queries, np.array(dev))) == {1}
    assert not any(name.startswith("a judgements") for name in data.digests)
    data.setup("test")
    test = [one.query_row for batch in data.eval_batches("test").batches for one in batch]
    assert len(test) == 30 + 11 + 7
    with pytest.raises(InputError, match="leave_out must be the name of a source, a, b, got 'x'"):
        TripletDataModule(["a", "b"], mixture=Mixture(leave_out="x"))


def test_what_is_predicted_needs_no_judgements_in_any_source(folders, tmp_path):
    """A source with pools alone is predicted beside another, as it is by itself."""
    shutil.copytree(folders["b"], tmp_path / "pools")
    (tmp_path / "pools/qrels/test.tsv").unlink()
    path = [{"path": folders["a"]}, {"path": str(tmp_path / "pools")}]
    data = opened(path, evaluation={"candidates": "candidates"})
    data.open("predict")
    rows = data.query_rows_of_rank("test")
    predicted = [data.joined.query_ids[row].partition("/")[0] for row in rows]
    assert predicted.count("a") == 30 and predicted.count("pools") == 11


def test_a_source_without_dev_is_left_out_of_the_mean_and_said(folders, caplog):
    with caplog.at_level(logging.INFO):
        data = opened([folders["a"], folders["c"]])
    said = [line for line in caplog.messages if "leaves out c" in line]
    assert said == ["the mean over sources leaves out c, without judgements for 'dev'"]
    queries = [one.query_row for batch in data.eval_batches("dev").batches for one in batch]
    assert len(queries) == 30 and max(queries) < data.joined.first_queries[1]
    with caplog.at_level(logging.INFO):
        none = opened([folders["c"], folders["d"]])
    assert none.eval_batches("dev") is None
    assert any("training goes without validation" in line for line in caplog.messages)


def test_what_is_learnt_from_is_told_of_each_source(folders):
    data = opened([folders["a"], folders["b"]])
    names = {"queries", "documents", "judgements", "negatives"}
    expected = {f"{source} {name}" for source in "ab" for name in names} | {"mixture"}
    assert data.digests.keys() == expected
    alone = opened(folders["b"])
    for name, digest in alone.digests.items():
        assert data.digests[f"b {name}"] == digest
    dev = data.evaluation_digests("dev")
    assert dev["a queries"] == data.digests["a queries"] and "judgements" in dev


def test_a_resume_under_other_weights_is_refused(folders):
    def weighted(weight, **options):
        return opened(
            [{"path": folders["a"], "weight": weight}, {"path": folders["b"], "weight": 1}],
            **options,
        )

    state = weighted(3).state_dict()
    weighted(3).load_state_dict(state)
    with pytest.raises(InputError, match="the checkpoint was trained on other mixture; resume"):
        weighted(2).load_state_dict(state)


# Shares


def test_shares_by_hand():
    """Sizes 9 and 4: as they are, and by a temperature of 2 as their roots, 3 : 2."""
    sources = [DataSource("a", "a"), DataSource("b", "b")]
    assert weights_of(sources, Mixture(), [9, 4]) == [9, 4]
    by_temperature = weights_of(sources, Mixture(temperature=2.0), [9, 4])
    assert by_temperature[0] / by_temperature[1] == pytest.approx(3 / 2)
    cold = weights_of(sources, Mixture(temperature=0.001), [9, 4])
    assert cold[0] == 1 and 0 < cold[1] < 1e-5
    weighted = [DataSource("a", "a", 3.0), DataSource("b", "b", 1.0)]
    assert weights_of(weighted, Mixture(), [9, 4]) == [3, 1]


def test_names_are_the_shortest_that_tell_sources_apart():
    assert [one.name for one in sources_of(["x/a", "y/b", "ir_datasets:beir/nfcorpus"])] == [
        "a",
        "b",
        "beir-nfcorpus",
    ]
    assert [one.name for one in sources_of(["x/a", "y/a"])] == ["x-a", "y-a"]
    named = sources_of([{"path": "x/a", "name": "mine"}, {"path": "y/a"}])
    assert [one.name for one in named] == ["mine", "a"]
    assert [one.name for one in sources_of(["two words/train.tsv.xz", "b"])] == ["train", "b"]


BAD = {
    "empty": ([], "two sources or more, got a list of 0"),
    "one": (["a"], "two sources or more, got a list of 1"),
    "a number": (["a", 3], r"path\[1\]: a source must be a path, or path: with .*, got 3"),
    "without path": (["a", {"weight": 1}], r"path\[1\]: path must be a text, got None"),
    "an unknown key": (
        ["a", {"path": "b", "wieght": 1}],
        r"path\[1\]: a source has path, weight, .*, got 'wieght'",
    ),
    "twice": (
        ["a", "./a"],
        r"path\[1\]: each source must stand there once, and './a' is path\[0\]",
    ),
    "weight 0": ([{"path": "a", "weight": 0}, "b"], r"path\[0\]: weight must be .* above 0, got 0"),
    "weight nan": (
        [{"path": "a", "weight": math.nan}, "b"],
        r"path\[0\]: weight must be .* above 0, got nan",
    ),
    "weight inf": (
        [{"path": "a", "weight": math.inf}, "b"],
        r"path\[0\]: weight must be .* above 0, got inf",
    ),
    "weight true": ([{"path": "a", "weight": True}, "b"], "got True"),
    "one weight": (
        [{"path": "a", "weight": 1}, "b"],
        r"path\[1\]: all sources must have a weight, or none, and 'b' has none",
    ),
    "name": ([{"path": "a", "name": "x/y"}, "b"], "name must be letters, digits, and"),
    "one name": (
        [{"path": "a", "name": "x"}, {"path": "b", "name": "x"}],
        "2 are called 'x'; rename one",
    ),
    "instruction": ([{"path": "a", "instruction": 3}, "b"], "instruction must be a text, got 3"),
    "negatives": ([{"path": "a", "negatives": []}, "b"], "negatives must be a source of negatives"),
    "address": (["s3://bucket/a", "b"], r"path\[0\].path: must be a local path"),
}

for _name in ("..", "", "a:b", "a b", "a\0b", "\x1b[31m", "../x", "-x", "a\u202eb"):
    BAD[f"name {_name!r}"] = (
        [{"path": "a", "name": _name}, "b"],
        r"path\[0\]: name must be letters, digits, and",
    )
BAD["name of its folder"] = (["a:b", "b"], "name of the source 'a:b' must be letters.*add name:")


@pytest.mark.parametrize("case", BAD)
def test_bad_sources_are_refused_in_one_line(case):
    path, message = BAD[case]
    with pytest.raises(InputError, match=message) as error:
        TripletDataModule(path)
    assert "\n" not in str(error.value)


def test_what_does_not_fit_together_is_refused(folders, backbone, tmp_path):
    path = [{"path": "a", "weight": 1}, {"path": "b", "weight": 1}]
    with pytest.raises(InputError, match="temperature must have no weights beside it"):
        TripletDataModule(path, mixture=Mixture(temperature=2.0))
    both = [{"path": "a", "negatives": "random"}, "b"]
    with pytest.raises(InputError, match="negatives must be said once, got 'random' there"):
        TripletDataModule(both, negatives="bm25")
    with pytest.raises(InputError, match="a cross-validation is of one collection, got fold"):
        TripletDataModule(["a", "b"], evaluation=Evaluation(fold=Fold(1, 3)))
    with pytest.raises(InputError, match="a split of another name is of one collection, got"):
        TripletDataModule(["a", "b"]).test_on("test.clean")
    with pytest.raises(InputError, match="one collection must be named to be measured so"):
        TripletDataModule(["a", "b"]).measured_collection()
    with pytest.raises(InputError, match="ListDataModule takes no negatives, got 'random'"):
        ListDataModule(both)
    with pytest.raises(InputError, match=r"path\[0\]: negatives 'mined' need batches of one"):
        TripletDataModule(["a", "b"], negatives="mined", mixture=Mixture("mixed"))
    for options in ({"temperature": 0.0}, {"temperature": math.inf}, {"batches": "both"}):
        with pytest.raises(InputError, match="mixture|temperature"):
            Mixture(**options)
    with pytest.raises(InputError, match="the scores of a teacher are of one collection"):
        opened([folders["a"], folders["b"]], scores="somewhere")
    module = dual_encoder(backbone, SoftmaxLoss())
    data = data_module(TripletDataModule, [folders["a"], folders["b"]], reads=module.ranker.reads)
    for callback, message in (
        (HardNegativeMining(), "needs a source whose negatives are 'mined'"),
        (HardNegativeMining(asynchronous=True), "leave out asynchronous"),
    ):
        if callback.asynchronous:
            data = mined_of_two(module, folders)
        fit = trainer(tmp_path, max_epochs=1, callbacks=[callback])
        with pytest.raises(InputError, match=message):
            fit.fit(module, data)
    data = mined_of_two(module, folders)
    with pytest.raises(InputError, match="must be mined while training, and nothing does that"):
        trainer(tmp_path, max_epochs=1).fit(module, data)


def test_a_source_that_has_no_train_is_refused(folders, tmp_path):
    write_collection(tmp_path / "tested", n_queries=3)
    (tmp_path / "tested/qrels/train.tsv").unlink()
    with pytest.raises(InputError, match="each source must have a split 'train', and tested has"):
        opened([folders["a"], str(tmp_path / "tested")])


def test_a_mixture_of_one_source_has_no_effect_and_that_is_said(folders, caplog):
    data = opened(folders["a"], mixture=Mixture("mixed"))
    assert "mixture has no effect: path names one source" in caplog.text
    assert fields(data.train[0, 0]) == fields(opened(folders["a"]).train[0, 0])


def test_a_mixed_batch_has_the_same_distances_in_any_number_of_processes(folders, tmp_path):
    """Mined negatives of one source, random ones of the other: the lists of the second have none,
    and take none from the first. One mined distance is exactly 0.
    """
    collection = opened(folders["a"]).collection
    judged = collection.judgements("train")
    generator = np.random.default_rng(0)
    rows = []
    for query in judged.query_rows.tolist():
        others = np.setdiff1d(np.arange(len(collection.corpus)), judged.of(query)[0])
        rows.append(generator.choice(others, 5, replace=False))
    distances = np.tile(np.float32([0.0, 0.5, 1.0, 1.5, 2.0]), (len(rows), 1))
    mined = MinedNegatives.from_matrix(
        judged.query_rows, np.stack(rows), distances, {"split": "train"}
    )
    mined.save(tmp_path / "mined", collection)
    path = [
        {"path": folders["a"], "name": "a", "negatives": str(tmp_path / "mined")},
        {"path": folders["b"], "name": "b", "negatives": "random"},
    ]

    def of_pairs(world_size):
        """The distance of each pair of a query and a document in the first three batches."""
        seen = {}
        for rank in range(world_size):
            data = opened(path, rank=rank, world_size=world_size, mixture=Mixture("mixed"))
            assert [source.has_distances for source in data.sources] == [True, False]
            assert not data.has_distances
            for step in range(3):
                batch = data.train[0, step]
                given = batch.distances
                queries = batch.query_rows.unsqueeze(1).expand_as(given)
                for query, doc, distance in zip(
                    queries[batch.mask].tolist(),
                    batch.doc_rows[batch.mask].tolist(),
                    given[batch.mask].tolist(),
                    strict=True,
                ):
                    seen[step, query, doc] = None if math.isnan(distance) else distance
        return seen

    expected = of_pairs(1)
    known = [distance for distance in expected.values() if distance is not None]
    assert (
        0.0 in known and len(known) == 27
    )  # three lists of four are of `a`, with 3 negatives each
    assert of_pairs(2) == expected
    assert of_pairs(4) == expected
