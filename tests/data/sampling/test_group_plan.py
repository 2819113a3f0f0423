"""Batches of groups: whole epochs, on any number of processes."""

from collections import Counter

import numpy as np
import pytest

from ltr.data.query_lists import QueryLists
from ltr.data.sampling.group_plan import GroupPlan
from ltr.data.sampling.group_rows import LabelGroups, QueryGroups
from tests.data.sampling.judgements import many_judged, shuffled_labels
from tests.world.refusals import refused


def plans(groups, groups_per_batch, world_size) -> list[GroupPlan]:
    return [GroupPlan(groups, groups_per_batch, 3, rank, world_size) for rank in range(world_size)]


def every_list(plan, epoch) -> list[list[tuple[int, list[int]]]]:
    """Owner and documents of the groups at each step."""
    return [
        [(one.query_row, one.doc_rows.tolist()) for one in plan.lists(epoch, step)]
        for step in range(len(plan))
    ]


def query_groups(size, epoch, seed=3):
    judged = many_judged(43)
    return QueryGroups(judged, judged, size, seed, epoch_over=epoch, where="here")


def label_groups(labels, size, seed=0):
    return LabelGroups(labels, size, seed, where="here")


KINDS = {
    "queries": lambda: query_groups(3, "queries"),
    "pairs": lambda: query_groups(2, "pairs"),
    "labels": lambda: label_groups(shuffled_labels(35, 26, 22, 12, 14, 3, 5, 2, 8), 3, 3),
    "one common label": lambda: label_groups(shuffled_labels(300, 10, 9, 8, 7), 2, 3),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_ranks_together_are_one_process_and_no_group_is_cut(kind, world_size):
    groups = KINDS[kind]()
    alone = every_list(GroupPlan(groups, 5, 3), 2)
    ranks = [every_list(plan, 2) for plan in plans(groups, 5, world_size)]
    assert {len(steps) for steps in ranks} == {len(alone)}
    for step, parts in enumerate(zip(*ranks, strict=True)):
        assert all(part == alone[step][rank::world_size] for rank, part in enumerate(parts))


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_holds_no_owner_twice_and_an_epoch_no_document(kind):
    """With ``pairs`` two groups of one query may share a batch: an epoch is then any order of all
    groups.
    """
    plan = GroupPlan(KINDS[kind](), 5, 3)
    sizes = [len(step) for step in every_list(plan, 0)]
    for epoch in range(5):
        steps = every_list(plan, epoch)
        assert [len(step) for step in steps] == sizes, "the same in every epoch"
        for step in steps:
            owners = [owner for owner, _ in step]
            assert 2 <= len(owners) <= 5 and (kind == "pairs" or len(owners) == len(set(owners)))
        seen = Counter((owner, doc) for step in steps for owner, docs in step for doc in docs)
        assert set(seen.values()) == {1}
        assert sum(map(len, steps)) == plan.lists_per_step(0).sum() <= plan.n_rows


def test_every_query_has_its_group_once_an_epoch():
    """43 queries in batches of 5: 9 steps, the last of 3; in batches of 6 one query is left out,
    another one each time.
    """
    groups = query_groups(3, "queries", seed=0)

    def owners(groups_per_batch, epoch):
        steps = every_list(GroupPlan(groups, groups_per_batch, 0), epoch)
        return [[owner for owner, _ in step] for step in steps]

    assert [len(step) for step in owners(5, 0)] == [5] * 8 + [3]
    assert sorted(sum(owners(5, 0), [])) == list(range(43))
    missing = [set(range(43)) - {*sum(owners(6, epoch), [])} for epoch in range(6)]
    assert {len(left) for left in missing} == {1} and len(set.union(*missing)) > 1
    # In the last step one of four ranks has no query.
    assert len(GroupPlan(groups, 5, 0, 0, 4)) == 9


def test_labels_by_hand():
    """Texts 0-4 of one label and 5-6 of another in twos: groups of 2 and 2 (one text is left over)
    and of 2; one mixed batch, and nothing for the second group of the first label to be told from.
    """
    groups = label_groups(np.asarray([0, 0, 0, 0, 0, 1, 1]), 2)
    assert groups.owners.tolist() == [0, 0, 1]
    plan = GroupPlan(groups, 2, 0)
    assert len(plan) == 1 and plan.n_rows == 3 and plan.lists_per_step(0).sum() == 2
    seen = set()
    for epoch in range(30):
        both = dict(every_list(plan, epoch)[0])
        assert both.keys() == {0, 1} and sorted(both[1]) == [5, 6]
        assert len(set(both[0])) == 2 and set(both[0]) <= set(range(5))
        seen |= set(both[0])
    assert seen == set(range(5))


def test_an_epoch_visits_every_text_but_the_ones_left_over():
    """10 labels of 13 texts in fours: 3 groups and a text left over each; 30 groups fill 6 batches
    of 5 exactly.
    """
    groups = label_groups(shuffled_labels(*[13] * 10), 4)
    plan = GroupPlan(groups, 5, 0)
    left = []
    for epoch in range(8):
        steps = every_list(plan, epoch)
        assert [len(step) for step in steps] == [5] * 6
        seen = [doc for step in steps for _, docs in step for doc in docs]
        assert all((groups.labels[docs] == owner).all() for step in steps for owner, docs in step)
        left.append(set(range(130)) - set(seen))
        assert len(seen) == len(set(seen))
        assert sorted(groups.labels[list(left[-1])]) == list(range(10))
    assert len(set.union(*left)) > 30


def test_batches_stay_mixed_where_labels_are_unbalanced():
    """12 groups of one label, 6 + 4 + 2 of others, in pairs: the common label is in every one of 12
    batches, none is lost.
    """
    groups = label_groups(np.repeat([0, 1, 2, 3], [24, 12, 8, 4]), 2)
    plan = GroupPlan(groups, 2, 0)
    steps = every_list(plan, 1)
    assert len(steps) == 12 and plan.lists_per_step(0).sum() == plan.n_rows == 24
    assert Counter(owner for step in steps for owner, _ in step) == {0: 12, 1: 6, 2: 4, 3: 2}
    assert all(len(step) == 2 and 0 in dict(step) for step in steps)
    # Any batch may come at any time: a rare label does not always wait for the end of an epoch.
    epochs = [every_list(plan, epoch) for epoch in range(40)]
    for step in range(12):
        assert any(3 in dict(steps[step]) for steps in epochs)
    first = Counter(every_list(plan, epoch)[0][0][0] == 0 for epoch in range(100))
    assert 30 < first[True] < 70  # nor does the first rank always have the common label


def test_a_batch_does_not_depend_on_the_ones_before():
    for make in KINDS.values():
        plan = GroupPlan(make(), 5, 3)
        fresh = GroupPlan(make(), 5, 3)
        keys = [(epoch, step) for epoch in range(3) for step in range(len(plan))]
        in_order = {key: [one.doc_rows.tolist() for one in plan.lists(*key)] for key in keys}
        for key in reversed(keys):
            assert [one.doc_rows.tolist() for one in fresh.lists(*key)] == in_order[key]


def test_too_few_groups_are_refused():
    judged = QueryLists.from_rows([3, 3], [1, 2], [1.0, 1.0])
    with refused("here: a batch needs at least 2 queries.*got 1"):
        QueryGroups(judged, judged, 1, 0, epoch_over="pairs", where="here")
