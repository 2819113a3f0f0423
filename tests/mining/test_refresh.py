"""When negatives are refreshed, and which folders stay."""

import pytest

from ltr.mining.refresh import NegativesInForce, RefreshFolders, RefreshMoment, RefreshSchedule


def at(epoch: int, step: int) -> NegativesInForce:
    return NegativesInForce(epoch, step, key="k")


@pytest.mark.parametrize(("schedule", "due"), [
    (RefreshSchedule(1, None), [False, True, True]),
    (RefreshSchedule(2, None), [False, False, True]),
    (RefreshSchedule(None, 5), [False, False, True]),
    (RefreshSchedule(None, 10), [False, False, True]),
    (RefreshSchedule(None, None), [False, False, False]),
])  # fmt: skip
def test_a_refresh_is_due_when_its_multiple_has_been_passed(schedule, due):
    """After the one of epoch 0, step 0: at steps 4, 4 of the next epoch, and 12 of the third."""
    moments = [(0, 4), (1, 4), (2, 12)]
    assert [schedule.is_due(RefreshMoment(*moment), at(0, 0)) for moment in moments] == due
    assert [schedule.is_due(RefreshMoment(*moment), None) for moment in moments] == due


def test_steps_count_from_multiples_not_from_the_last_refresh():
    schedule = RefreshSchedule(None, 5)
    assert not schedule.is_due(RefreshMoment(0, 9), at(0, 7))
    assert schedule.is_due(RefreshMoment(0, 10), at(0, 7))


def folders(root) -> list[str]:
    return sorted(folder.name for folder in root.iterdir())


def test_older_folders_go_but_that_of_the_last_checkpoint(tmp_path):
    """Two are kept: that of step 12 and the newest before it. An overlay stays, and a later step."""
    for name in ("step=0", "step=4", "step=8", "step=12", "step=16", "step=4.drop-1", "other"):
        (tmp_path / name).mkdir()
    RefreshFolders(tmp_path, keep=2).remove_older(12, needed=0)
    assert folders(tmp_path) == ["other", "step=0", "step=12", "step=16", "step=4.drop-1", "step=8"]
    RefreshFolders(tmp_path, keep=None).remove_older(12, needed=None)
    assert len(folders(tmp_path)) == 6
    RefreshFolders(tmp_path, keep=1).remove_older(12, needed=None)
    assert folders(tmp_path) == ["other", "step=12", "step=16", "step=4.drop-1"]


def test_a_checkpoint_keeps_what_is_in_force():
    state = at(3, 17).state_dict()
    assert state == {"epoch": 3, "step": 17, "key": "k"}
    assert NegativesInForce.from_state_dict(state) == at(3, 17)
