"""P×K batches: what a group holds, which groups share a batch, how ranks share them out."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ltr.batch import RankingBatch
from ltr.data.layouts import JoinedPairs
from ltr.datamodules import GroupDataModule, LabelDataModule, TripletDataModule
from ltr.errors import InputError
from ltr.in_batch.longer_lists import queries_against_all
from tests.datamodules.grouped import (
    apart,
    opened,
)
from tests.world.backbones import wordpiece_tokenizer
from tests.world.collections import WORDS, write_collection
from tests.world.data_modules import batches, data_module


def flat(batch) -> list[torch.Tensor]:
    texts = [part for side in (batch.queries, batch.docs) if side is not None for part in side]
    fields = (*batch[:4], *texts, batch.judged_rows, batch.judged_grades)
    return [tensor for tensor in fields if isinstance(tensor, torch.Tensor)]


def equal(a, b) -> bool:
    return all(torch.equal(x, y) for x, y in zip(flat(a), flat(b), strict=True))


def test_groups_of_queries_hold_relevant_documents_and_all_judgements(collection_folder):
    data = opened(collection_folder, docs_per_group=3)
    judged = data.collection.judgements("train")
    seen = []
    for batch in batches(data, 0):
        assert batch.labels.tolist() == [[1.0]] * len(
            batch.labels
        )  # the tiny world has one relevant document a query
        for query, docs, known in zip(
            *(t.tolist() for t in (batch.query_rows, batch.doc_rows, batch.judged_rows)),
            strict=True,
        ):
            rows, grades = judged.of(query)
            assert docs == rows[grades > 0].tolist() and known == rows.tolist()
            seen.append(query)
    assert sorted(seen) == judged.query_rows.tolist() and data.needs_in_batch
    assert sorted(q for b in data.val_dataloader() for q in b.query_rows.tolist()) == (
        data.collection.judgements("dev").query_rows.tolist()
    )


@pytest.mark.parametrize("kind", [GroupDataModule, LabelDataModule])
def test_the_tokens_of_a_batch_are_those_of_its_texts(collection_folder, labelled, kind):
    data = opened(labelled if kind is LabelDataModule else collection_folder, kind=kind)
    batch = data.train[1, 2]
    tokenizer = wordpiece_tokenizer()
    corpus = data.texts.tables["train"] if kind is LabelDataModule else data.collection.corpus
    read = tokenizer(
        [corpus.texts[row] for row in batch.doc_rows[batch.mask]], truncation=True, max_length=16
    )
    assert [ids.tolist() for ids in batch.docs.ids.split(batch.docs.lengths.tolist())] == read[
        "input_ids"
    ]
    if kind is LabelDataModule:
        assert batch.queries is None and batch.judged_rows is None
        names = [data.texts.label_names[number] for number in batch.query_rows]
        for name, docs, mask in zip(names, batch.doc_rows, batch.mask, strict=True):
            assert all(
                corpus.texts[row].startswith(f"{WORDS[int(name[6:])]} train") for row in docs[mask]
            )
        assert batch.labels[batch.mask].eq(1).all()
    else:
        asked = [f"w1 {data.collection.queries.texts[row]}" for row in batch.query_rows]
        read = tokenizer(asked, truncation=True, max_length=12)
        assert [
            ids.tolist() for ids in batch.queries.ids.split(batch.queries.lengths.tolist())
        ] == read["input_ids"]


@pytest.mark.parametrize("kind", [GroupDataModule, LabelDataModule])
def test_workers_change_nothing_and_epochs_and_seeds_do(collection_folder, labelled, kind):
    path = labelled if kind is LabelDataModule else collection_folder
    alone, helped, other = (
        opened(path, kind=kind, **o) for o in ({}, {"num_workers": 2}, {"seed": 1})
    )
    epochs = [batches(alone, epoch) for epoch in (0, 1)]
    for epoch, expected in enumerate(epochs):
        assert all(equal(a, b) for a, b in zip(expected, batches(helped, epoch), strict=True))
    assert not all(torch.equal(a.doc_rows, b.doc_rows) for a, b in zip(*epochs, strict=True))
    assert not all(
        torch.equal(a.doc_rows, b.doc_rows)
        for a, b in zip(epochs[0], batches(other, 0), strict=True)
    )


def under_a_trainer(data):
    """The data module as a trainer that has trained nothing yet holds it."""
    progress = SimpleNamespace(total=SimpleNamespace(processed=0))
    data.trainer = SimpleNamespace(
        global_rank=0,
        world_size=1,
        limit_train_batches=1.0,
        fit_loop=SimpleNamespace(epoch_loop=SimpleNamespace(batch_progress=progress)),
        lightning_module=None,
        state=SimpleNamespace(fn="fit"),
        strategy=SimpleNamespace(root_device=torch.device("cpu")),
    )
    return data


def test_a_resumed_run_goes_on_where_the_trainer_was(labelled):
    """Of 7 steps an epoch, 10 were consumed: the fourth batch of the second epoch comes next."""
    data = opened(labelled, kind=LabelDataModule, groups=3)
    n_steps = len(data.train)
    whole = batches(data, 0) + batches(data, 1)
    under_a_trainer(data)
    data.load_state_dict(data.state_dict() | {"consumed": n_steps + 3, "steps": n_steps})
    resumed = list(data.train_dataloader())
    assert len(resumed) == n_steps - 3 and all(
        equal(a, b) for a, b in zip(resumed, whole[n_steps + 3 :], strict=True)
    )
    with pytest.raises(InputError, match="the checkpoint comes from epochs of 99 steps"):
        data.load_state_dict(data.state_dict() | {"consumed": 3, "steps": 99})


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """20 queries, of which query q has q modulo 4 relevant documents more than one: 50 pairs."""
    folder = write_collection(tmp_path_factory.mktemp("several") / "c", n_queries=20)
    lines = [
        f"train-q{q}\ttrain-q{q}-d{d}\t{int(d <= q % 4)}\n" for q in range(20) for d in range(6)
    ]
    (folder / "qrels/train.tsv").write_text("".join(lines))
    return folder


KINDS = {
    "groups of one": (GroupDataModule, {"groups": 16, "docs_per_group": 1}),
    "groups of two": (GroupDataModule, {"groups": 16, "docs_per_group": 2}),
    "triplets": (
        TripletDataModule,
        {"batch_size": 16, "bucket_window": 2, "negatives_per_query": 2},
    ),
}


def of_pairs(path, kind: str, **options) -> GroupDataModule | TripletDataModule:
    module, own = KINDS[kind]
    data = data_module(module, str(path), **own | options, epoch="pairs", seed=0, reads=apart())
    data.prepare_data()
    data.setup("fit")
    return data


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_over_pairs_has_every_relevant_document_once(several, kind):
    data = of_pairs(several, kind)
    judged = data.collection.judgements("train")
    every = sorted(
        (q, doc)
        for q in judged.query_rows
        for doc, grade in zip(*judged.of(q), strict=True)
        if grade > 0
    )
    assert len(every) == 50 and data.state_dict()["steps"] == (
        2 if kind == "groups of two" else 4
    )  # of 30 groups, of 50 rows
    for epoch in range(2):
        seen = []
        for batch in batches(data, epoch):
            relevant = (batch.labels > 0) & batch.mask
            seen += zip(
                batch.query_rows[relevant.nonzero()[:, 0]].tolist(),
                batch.doc_rows[relevant].tolist(),
                strict=True,
            )
        assert sorted(seen) == every


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_pairs_does_not_depend_on_the_ones_before(several, kind):
    data = of_pairs(several, kind)
    fresh = of_pairs(several, kind, num_workers=2)
    whole = [batches(data, epoch) for epoch in range(2)]
    for step in reversed(range(len(data.train))):
        assert equal(fresh.train[1, step], whole[1][step])
    data = under_a_trainer(of_pairs(several, kind, num_workers=2))
    data.load_state_dict(
        data.state_dict() | {"consumed": len(whole[0]) + 1, "steps": len(whole[0])}
    )
    assert all(equal(a, b) for a, b in zip(data.train_dataloader(), whole[1][1:], strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_one_query_in_a_batch_never_take_its_relevant_documents_for_irrelevant(
    several, kind
):
    data = of_pairs(several, kind)
    n_shared = 0
    judged = data.collection.judgements("train")
    for batch in batches(data, 0):
        embeddings = torch.zeros(*batch.mask.shape, 1)
        lists = RankingBatch(
            labels=batch.labels,
            mask=batch.mask,
            query_rows=batch.query_rows,
            doc_rows=batch.doc_rows,
            judged_rows=batch.judged_rows,
        )
        longer = queries_against_all(lists, embeddings[:, 0], embeddings)
        n_shared += len(batch.query_rows) - len(set(batch.query_rows.tolist()))
        for query, labels, mask in zip(
            batch.query_rows.tolist(), longer.labels, longer.mask, strict=True
        ):
            rows, grades = judged.of(query)
            assert not set(batch.doc_rows.flatten()[mask & (labels == 0)].tolist()) & set(
                rows[grades > 0].tolist()
            )
            assert (mask & (labels > 0)).any() and (mask & (labels == 0)).any()
    assert n_shared > 0


def test_the_data_module_knows_its_rank(labelled, monkeypatch):
    whole = opened(labelled, kind=LabelDataModule).train[0, 0].query_rows.tolist()
    seen = []
    for rank in range(2):
        monkeypatch.setattr(LabelDataModule, "rank", rank)
        monkeypatch.setattr(LabelDataModule, "world_size", 2)
        seen.append(opened(labelled, kind=LabelDataModule).train[0, 0].query_rows.tolist())
    assert seen == [whole[0::2], whole[1::2]]
    # The last of five ranks has none of four groups.
    monkeypatch.setattr(LabelDataModule, "rank", 4)
    monkeypatch.setattr(LabelDataModule, "world_size", 5)
    assert opened(labelled, kind=LabelDataModule).train[0, 0].query_rows.tolist() == []


def test_what_cannot_be_learnt_from_is_refused(tmp_path, collection_folder, labelled):
    folder = write_collection(tmp_path / "c", n_queries=3)
    qrels = folder / "qrels/train.tsv"
    qrels.write_text(qrels.read_text().replace("train-q1-d0\t1", "train-q1-d0\t0"))
    data = opened(folder, groups=2)
    trained = np.concatenate([data.train[0, step].query_rows for step in range(len(data.train))])
    ids = [data.collection.queries.ids[row] for row in trained.tolist()]
    assert "train-q1" not in ids and "train-q0" in ids, "the others are trained on"
    qrels.write_text("train-q0\ttrain-q0-d0\t1\n")
    with pytest.raises(InputError, match="a batch needs at least 2 queries.*got 1"):
        opened(folder)
    with pytest.raises(
        InputError, match="groups must be at most 6, the labels with two texts or more, got 7"
    ):
        opened(labelled, kind=LabelDataModule, groups=7)
    (labelled / "train.tsv").write_text("one\ta\ntwo\ta\nthree\tb\n")
    with pytest.raises(
        InputError, match="at least two labels must have two texts or more, got 1 of 2 labels"
    ):
        opened(labelled, kind=LabelDataModule, groups=2)
    (labelled / "train.tsv").unlink()
    with pytest.raises(InputError, match="there is no train.tsv"):
        opened(labelled, kind=LabelDataModule, groups=2)
    for path, kind in ((collection_folder, GroupDataModule), (labelled, LabelDataModule)):
        data = data_module(kind, str(path), groups=2, reads=JoinedPairs(wordpiece_tokenizer(), 24))
        with pytest.raises(InputError, match="a cross-encoder can't learn from groups"):
            data.setup("fit")


@pytest.mark.parametrize(
    "kind, options, message",
    [
        (GroupDataModule, {"groups": 1}, "groups must be at least 2, got 1"),
        (
            GroupDataModule,
            {"epoch": "docs"},
            r"epoch must be one of queries, pairs, got 'docs' \(option epoch\)",
        ),
        (GroupDataModule, {"docs_per_group": 0}, "docs_per_group must be at least 1, got 0"),
        (LabelDataModule, {"groups": 1}, "groups must be at least 2, got 1"),
        (LabelDataModule, {"docs_per_group": 1}, "docs_per_group must be at least 2, got 1"),
        (LabelDataModule, {"candidates": "corpus"}, "candidates 'corpus' need a depth"),
    ],
)
def test_bad_options(kind, options, message):
    with pytest.raises(InputError, match=message):
        data_module(kind, "x", **options)
