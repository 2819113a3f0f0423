"""P×K batches: what a group holds, which groups share a batch, how ranks share them out."""

import logging
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ltr.data.formats import ApartTexts, JoinedPairs, SingleTexts
from ltr.data.group_plan import GroupPlan, LabelGroups, QueryGroups
from ltr.data.query_lists import QueryLists
from ltr.datamodules import GroupDataModule
from ltr.errors import InputError
from tests.conftest import WORDS, wordpiece_tokenizer, write_collection


def apart() -> ApartTexts:
    tokenizer = wordpiece_tokenizer()
    return ApartTexts(SingleTexts(tokenizer, 12, "w1 "), SingleTexts(tokenizer, 16))


def opened(path, stage="fit", **options) -> GroupDataModule:
    data = GroupDataModule(str(path), **{"groups": 4, "docs_per_group": 2, "seed": 0, "eval_batch_size": 7} | options)
    data.text_format = apart()
    data.prepare_data()
    data.setup(stage)
    return data


def batches(data, epoch) -> list:
    loader = data.train_dataloader()
    loader.sampler.position = lambda: (epoch, 0)
    return list(loader)


def flat(batch) -> list[torch.Tensor]:
    texts = [t for side in (batch.queries, batch.docs) if side is not None for t in side]
    return [t for t in (*batch[:4], *texts, batch.judged_rows, batch.judged_grades) if t is not None]


def equal(a, b) -> bool:
    return all(torch.equal(x, y) for x, y in zip(flat(a), flat(b), strict=True))


@pytest.fixture
def labelled(tmp_path):
    """Six labels of 3 to 13 texts in ``train``, three labels of 5 in ``dev`` and ``test``; every text once."""
    for split, sizes in (("train", [3, 5, 7, 9, 11, 13]), ("dev", [5, 5, 5]), ("test", [5, 5, 5])):
        lines = [f"{WORDS[label]} {split} {WORDS[i]}\tlabel {label}\n" for label, n in enumerate(sizes) for i in range(n)]
        (tmp_path / f"{split}.tsv").write_text("".join(lines))
    return tmp_path


def many_judged(n_queries=11, n_relevant=5) -> QueryLists:
    """Query q has 1 to 5 relevant documents of grades 1 to 3, and a judged irrelevant one; rows 10 q to 10 q + 5."""
    rows = [(q, 10 * q + d, d % 3 + 1 if d else 0) for q in range(n_queries) for d in range(q % n_relevant + 2)]
    return QueryLists.from_rows(*zip(*rows, strict=True))


def plans(groups, groups_per_batch, world_size) -> list[GroupPlan]:
    return [GroupPlan(groups, groups_per_batch, 3, rank, world_size) for rank in range(world_size)]


def every_list(plan, epoch) -> list[list[tuple[int, list[int]]]]:
    """Owner and documents of the groups at each step."""
    return [[(one.query_row, one.doc_rows.tolist()) for one in plan.lists(epoch, step)] for step in range(len(plan))]


# The plan


def shuffled(*sizes: int) -> np.ndarray:
    """Labels 0, 1, … of so many texts each, in any order."""
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))


KINDS = {
    "queries": lambda: QueryGroups(many_judged(43), 3, 3, where="here"),
    "labels": lambda: LabelGroups(shuffled(35, 26, 22, 12, 14, 3, 5, 2, 8), 3, 3, where="here"),
    "one common label": lambda: LabelGroups(shuffled(300, 10, 9, 8, 7), 2, 3, where="here"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_ranks_together_are_one_process_and_no_group_is_cut(kind, world_size):
    groups = KINDS[kind]()
    alone, ranks = every_list(GroupPlan(groups, 5, 3), 2), [every_list(plan, 2) for plan in plans(groups, 5, world_size)]
    assert {len(steps) for steps in ranks} == {sum(len(step) >= world_size for step in alone)}  # a group for every rank
    for step, parts in enumerate(zip(*ranks, strict=True)):
        assert all(parts) and sorted(sum(parts, [])) == sorted(alone[step])
        assert all(part == alone[step][rank::world_size] for rank, part in enumerate(parts))


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_holds_no_owner_twice_and_an_epoch_no_document(kind):
    plan = GroupPlan(KINDS[kind](), 5, 3)
    for epoch in range(5):
        steps = every_list(plan, epoch)
        assert [len(step) for step in steps] == [len(step) for step in every_list(plan, 0)]  # the same steps in every epoch
        for step in steps:
            owners = [owner for owner, _ in step]
            assert 2 <= len(owners) == len(set(owners)) <= 5
        seen = Counter((owner, doc) for step in steps for owner, docs in step for doc in docs)
        assert set(seen.values()) == {1}
        assert sum(map(len, steps)) == plan.n_used <= plan.n_rows


def test_every_query_has_its_group_once_an_epoch():
    """43 queries in batches of 5: 9 steps, the last of 3; in batches of 6 one query is left out, another one each time."""
    groups = QueryGroups(many_judged(43), 3, 0, where="here")
    steps = every_list(GroupPlan(groups, 5, 0), 0)
    assert [len(step) for step in steps] == [5] * 8 + [3] and sorted(o for step in steps for o, _ in step) == list(range(43))
    missing = [set(range(43)) - {o for step in every_list(GroupPlan(groups, 6, 0), e) for o, _ in step} for e in range(6)]
    assert {len(left) for left in missing} == {1} and len(set.union(*missing)) > 1
    assert len(GroupPlan(groups, 5, 0, 0, 4)) == 8  # three queries are too few for four ranks


def test_a_group_is_drawn_from_the_relevant_documents_without_repeats():
    """Query 3 has four relevant documents, 31 to 34, of which every pair comes about as often."""
    judged = many_judged()
    groups = QueryGroups(judged, 2, 0, where="here")
    drawn = Counter()
    for epoch in range(600):
        one = groups.draw(epoch, 3)
        rows, grades = judged.of(3)
        assert one.labels.tolist() == [grades[rows == doc].item() for doc in one.doc_rows] and len(set(one.doc_rows)) == 2
        assert one.judged_rows is not None and one.judged_rows.tolist() == [30, 31, 32, 33, 34]
        drawn[frozenset(one.doc_rows.tolist())] += 1
    assert len(drawn) == 6 and min(drawn.values()) > 65 and max(drawn.values()) < 135  # each expected 100 times, deviation 9
    assert set().union(*drawn) == {31, 32, 33, 34}


def test_labels_by_hand():
    """Texts 0-4 of one label and 5-6 of another in twos: groups of 2 and 2 (one text is left over) and of 2; one mixed batch,
    and nothing for the second group of the first label to be told from."""
    groups = LabelGroups(np.asarray([0, 0, 0, 0, 0, 1, 1]), 2, 0, where="here")
    assert groups.owners.tolist() == [0, 0, 1]
    plan = GroupPlan(groups, 2, 0)
    assert len(plan) == 1 and plan.n_rows == 3 and plan.n_used == 2
    seen = set()
    for epoch in range(30):
        both = dict(every_list(plan, epoch)[0])
        assert both.keys() == {0, 1} and sorted(both[1]) == [5, 6] and len(set(both[0])) == 2 and set(both[0]) <= set(range(5))
        seen |= set(both[0])
    assert seen == set(range(5))


def test_a_rest_of_two_is_a_group_and_a_rest_of_one_is_not():
    """In threes: 8 texts give 3, 3 and 2; 7 give 3 and 3; 2 give 2; one gives nothing."""
    groups = LabelGroups(np.repeat([0, 1, 2, 3], [8, 7, 2, 1]), 3, 0, where="here")
    sizes = [(owner, len(groups.draw(0, group).doc_rows)) for group, owner in enumerate(groups.owners.tolist())]
    assert sizes == [(0, 3), (0, 3), (0, 2), (1, 3), (1, 3), (2, 2)] and groups.n_labels == 3


def test_an_epoch_visits_every_text_but_the_ones_left_over():
    """10 labels of 13 texts in fours: 3 groups and a text left over each; 30 groups fill 6 batches of 5 exactly."""
    groups = LabelGroups(shuffled(*[13] * 10), 4, 0, where="here")
    plan = GroupPlan(groups, 5, 0)
    left = []
    for epoch in range(8):
        steps = every_list(plan, epoch)
        assert [len(step) for step in steps] == [5] * 6
        seen = [doc for step in steps for _, docs in step for doc in docs]
        assert all((groups.labels[docs] == owner).all() for step in steps for owner, docs in step)
        left.append(set(range(130)) - set(seen))
        assert len(seen) == len(set(seen)) and sorted(groups.labels[list(left[-1])]) == list(range(10))
    assert len(set.union(*left)) > 30


def test_batches_stay_mixed_where_labels_are_unbalanced():
    """12 groups of one label, 6 + 4 + 2 of others, in pairs: the common label is in every one of 12 batches, none is lost."""
    groups = LabelGroups(np.repeat([0, 1, 2, 3], [24, 12, 8, 4]), 2, 0, where="here")
    plan = GroupPlan(groups, 2, 0)
    steps = every_list(plan, 1)
    assert len(steps) == 12 and plan.n_used == plan.n_rows == 24
    assert Counter(owner for step in steps for owner, _ in step) == {0: 12, 1: 6, 2: 4, 3: 2}
    assert all(len(step) == 2 and 0 in dict(step) for step in steps)
    # Any batch may come at any time: a rare label does not always wait for the end of an epoch.
    places = {step for epoch in range(40) for step, lists in enumerate(every_list(plan, epoch)) if 3 in dict(lists)}
    assert places == set(range(12))
    first = Counter(every_list(plan, epoch)[0][0][0] == 0 for epoch in range(100))
    assert 30 < first[True] < 70  # nor does the first rank always have the common label


def test_a_batch_does_not_depend_on_the_ones_before():
    for make in KINDS.values():
        plan, fresh = GroupPlan(make(), 5, 3), GroupPlan(make(), 5, 3)
        keys = [(epoch, step) for epoch in range(3) for step in range(len(plan))]
        in_order = {key: [one.doc_rows.tolist() for one in plan.lists(*key)] for key in keys}
        for key in reversed(keys):
            assert [one.doc_rows.tolist() for one in fresh.lists(*key)] == in_order[key]


# The data module


def test_groups_of_queries_hold_relevant_documents_and_all_judgements(collection_folder):
    data = opened(collection_folder, docs_per_group=3)
    judged, seen = data.collection.judgements("train"), []
    for batch in batches(data, 0):
        assert batch.labels.tolist() == [[1.0]] * len(batch.labels)  # the tiny world has one relevant document a query
        for query, docs, known in zip(*(t.tolist() for t in (batch.query_rows, batch.doc_rows, batch.judged_rows)), strict=True):
            rows, grades = judged.of(query)
            assert docs == rows[grades > 0].tolist() and known == rows.tolist()
            seen.append(query)
    assert sorted(seen) == judged.query_rows.tolist() and data.needs_in_batch
    assert sorted(q for b in data.val_dataloader() for q in b.query_rows.tolist()) == (
        data.collection.judgements("dev").query_rows.tolist()
    )


@pytest.mark.parametrize("source", ["queries", "labels"])
def test_the_tokens_of_a_batch_are_those_of_its_texts(collection_folder, labelled, source):
    data = opened(labelled if source == "labels" else collection_folder, source=source)
    batch, tokenizer = data.train[1, 2], wordpiece_tokenizer()
    corpus = data.texts.tables["train"] if source == "labels" else data.collection.corpus
    read = tokenizer([corpus.texts[row] for row in batch.doc_rows[batch.mask]], truncation=True, max_length=16)
    assert [ids.tolist() for ids in batch.docs.ids.split(batch.docs.lengths.tolist())] == read["input_ids"]
    if source == "labels":
        assert batch.queries is None and batch.judged_rows is None
        names = [data.texts.names[number] for number in batch.query_rows]
        for name, docs, mask in zip(names, batch.doc_rows, batch.mask, strict=True):
            assert all(corpus.texts[row].startswith(f"{WORDS[int(name[6:])]} train") for row in docs[mask])
        assert batch.labels[batch.mask].eq(1).all()
    else:
        asked = [f"w1 {data.collection.queries.texts[row]}" for row in batch.query_rows]
        read = tokenizer(asked, truncation=True, max_length=12)
        assert [ids.tolist() for ids in batch.queries.ids.split(batch.queries.lengths.tolist())] == read["input_ids"]


@pytest.mark.parametrize("source", ["queries", "labels"])
def test_workers_change_nothing_and_epochs_and_seeds_do(collection_folder, labelled, source):
    path = labelled if source == "labels" else collection_folder
    alone, helped, other = (opened(path, source=source, **o) for o in ({}, {"num_workers": 2}, {"seed": 1}))
    epochs = [batches(alone, epoch) for epoch in (0, 1)]
    for epoch, expected in enumerate(epochs):
        assert all(equal(a, b) for a, b in zip(expected, batches(helped, epoch), strict=True))
    assert not all(torch.equal(a.doc_rows, b.doc_rows) for a, b in zip(*epochs, strict=True))
    assert not all(torch.equal(a.doc_rows, b.doc_rows) for a, b in zip(epochs[0], batches(other, 0), strict=True))


def test_a_resumed_run_goes_on_where_the_trainer_was(labelled):
    """Of 7 steps an epoch, 10 were consumed: the fourth batch of the second epoch comes next."""
    data = opened(labelled, source="labels", groups=3)
    progress = SimpleNamespace(total=SimpleNamespace(processed=0))
    loop = SimpleNamespace(epoch_loop=SimpleNamespace(batch_progress=progress))
    n_steps = len(data.train)
    whole = batches(data, 0) + batches(data, 1)
    data.trainer = SimpleNamespace(
        global_rank=0,
        world_size=1,
        limit_train_batches=1.0,
        fit_loop=loop,
        state=SimpleNamespace(fn="fit"),
        strategy=SimpleNamespace(root_device=torch.device("cpu")),
    )
    data.load_state_dict({"consumed": n_steps + 3, "steps": n_steps})
    resumed = list(data.train_dataloader())
    assert len(resumed) == n_steps - 3 and all(equal(a, b) for a, b in zip(resumed, whole[n_steps + 3 :], strict=True))
    with pytest.raises(InputError, match="the checkpoint comes from epochs of 99 steps"):
        data.load_state_dict({"consumed": 3, "steps": 99})


def test_the_data_module_knows_its_rank(labelled, monkeypatch):
    whole = opened(labelled, source="labels").train[0, 0].query_rows.tolist()
    seen = []
    for rank in range(2):
        monkeypatch.setattr(GroupDataModule, "rank", rank)
        monkeypatch.setattr(GroupDataModule, "world_size", 2)
        seen.append(opened(labelled, source="labels").train[0, 0].query_rows.tolist())
    assert seen == [whole[0::2], whole[1::2]]
    monkeypatch.setattr(GroupDataModule, "world_size", 5)
    with pytest.raises(InputError, match="groups must be at least the number of processes, 5, got 4"):
        opened(labelled, source="labels")


def test_labelled_texts_are_queries_against_the_others_of_their_split(labelled, caplog):
    data = opened(labelled, source="labels", candidates="corpus", depth=4)
    assert data.collection.queries.key == data.collection.corpus.key and len(data.collection.corpus) == 15
    lists = [one for batch in data.pools("dev").batches for one in batch]
    assert sorted(one.query_row for one in lists) == list(range(15))
    assert all(len(one.judged_rows) == 4 and one.query_row not in one.judged_rows for one in lists)
    assert all(batch.queries is not None for batch in data.val_dataloader())
    data.setup("test")
    assert {text.split()[1] for text in data.collection.corpus.texts} == {"test"} and len(data.pools("test").batches) == 3
    with caplog.at_level(logging.INFO, "ltr"):
        assert opened(labelled, source="labels").pools("dev") is None
        (labelled / "dev.tsv").unlink()
        assert opened(labelled, source="labels", candidates="corpus", depth=4).val_dataloader() == []
    assert "labelled texts have no candidates, so training goes without validation" in caplog.text
    assert "has no judgements for 'dev': training goes without validation" in caplog.text
    with pytest.raises(InputError, match="labelled texts have no candidates; to measure, set data.init_args.candidates: corpus"):
        opened(labelled, "test", source="labels")


def test_a_split_that_is_not_measured_is_not_looked_at(labelled):
    """No two dev texts share a label, so nothing could be found there; ``test`` does not ask for it."""
    (labelled / "dev.tsv").write_text("one\ta\ntwo\tb\n")
    data = GroupDataModule(str(labelled), 2, 2, source="labels", candidates="corpus", depth=4, seed=0)
    module = SimpleNamespace(text_format=apart())
    data.trainer = SimpleNamespace(state=SimpleNamespace(fn="test"), lightning_module=module, global_rank=0, world_size=1)
    data.prepare_data()
    data.setup("test")
    assert len(data.pools("test").batches) == 1
    data.trainer.state.fn = "validate"
    with pytest.raises(InputError, match="no two texts have the same label"):
        data.prepare_data()


def test_the_log_says_what_an_epoch_does_not_see(tmp_path, caplog):
    """In threes: 10 texts of a (one left over), 5 of b (3 and 2), one of c; of 3 + 2 groups in pairs, one of a is alone."""
    lines = [f"{label} {i}\t{label}\n" for label, n in (("a", 10), ("b", 5), ("c", 1)) for i in range(n)]
    (tmp_path / "train.tsv").write_text("".join(lines))
    with caplog.at_level(logging.INFO, "ltr"):
        data = opened(tmp_path / "train.tsv", source="labels", groups=2, docs_per_group=3)
    assert len(data.train) == 2
    for message in ("1 of 3 labels have one text only and are left out", "1 of 16 texts are left over alone",
                    "1 of 5 groups have fewer than 3 documents", "1 of 5 groups find none to share a batch with"):  # fmt: skip
        assert message in caplog.text
    with caplog.at_level(logging.INFO, "ltr"):
        opened(write_collection(tmp_path / "c", n_queries=5), docs_per_group=2)
    assert "5 of 5 groups have fewer than 2 documents" in caplog.text


def test_what_cannot_be_learnt_from_is_refused(tmp_path, collection_folder, labelled):
    folder = write_collection(tmp_path / "c", n_queries=3)
    qrels = folder / "qrels/train.tsv"
    qrels.write_text(qrels.read_text().replace("train-q1-d0\t1", "train-q1-d0\t0"))
    with pytest.raises(InputError, match="1 of 3 queries have no document with a grade above 0, first 'train-q1'"):
        opened(folder)
    qrels.write_text("train-q0\ttrain-q0-d0\t1\n")
    with pytest.raises(InputError, match="a batch needs at least 2 queries.*got 1"):
        opened(folder)
    with pytest.raises(InputError, match="groups must be at most 6, the labels with two texts or more, got 7"):
        opened(labelled, source="labels", groups=7)
    (labelled / "train.tsv").write_text("one\ta\ntwo\ta\nthree\tb\n")
    with pytest.raises(InputError, match="at least two labels must have two texts or more, got 1 of 2 labels"):
        opened(labelled, source="labels", groups=2)
    (labelled / "train.tsv").unlink()
    with pytest.raises(InputError, match="there is no train.tsv"):
        opened(labelled, source="labels", groups=2)
    for path, source in ((collection_folder, "queries"), (labelled, "labels")):
        data = GroupDataModule(str(path), groups=2, source=source)
        data.text_format = JoinedPairs(wordpiece_tokenizer(), 24)
        with pytest.raises(InputError, match="a cross-encoder can't learn from groups"):
            data.setup("fit")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"groups": 1}, "groups must be at least 2, got 1"),
        ({"docs_per_group": 0}, "docs_per_group must be at least 1, got 0"),
        ({"docs_per_group": 1, "source": "labels"}, "docs_per_group must be at least 2 with source 'labels', got 1"),
        ({"source": "texts"}, r"source must be one of \('queries', 'labels'\), got 'texts'"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(InputError, match=message):
        GroupDataModule("x", **options)
