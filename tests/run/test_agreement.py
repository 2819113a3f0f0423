"""What several machines must share is checked at the start: else one line, exit 2, on each of them."""

import logging
import os
import shutil
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import distributed

import ltr
from ltr.errors import InputError
from ltr.run import agreement
from ltr.run.agreement import check_agreement
from ltr.run.run_folder import RunFolder
from tests.child_processes import run_ranks
from tests.run.interrupted import last_of
from tests.run.nodes import Ends, free_port
from tests.run.resumes import GROUPS
from tests.world.collections import write_collection

CONFIG = {
    "seed_everything": 3,
    "model": {"lr": 0.1, "ranker": {"class_path": "A", "init_args": {"backbone": "no/model"}}},
    "data": {"class_path": "B", "init_args": {"path": "/disk1/data"}},
    "trainer": {"default_root_dir": "/disk1/run", "max_epochs": 3},
    "ckpt_path": None,
}


def meet(rank: int, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    distributed.init_process_group("gloo", rank=rank, world_size=2)


def _agree(rank: int, port: int) -> None:
    meet(rank, port)
    for change, line in (
        ({}, None),
        # Folders of another name in front, and what is found by rank 0 alone.
        ({"ckpt_path": "last"}, None),
        ({"trainer": CONFIG["trainer"] | {"default_root_dir": "/disk2/run"}}, None),
        ({"data": {"class_path": "B", "init_args": {"path": "/disk2/other"}}}, None),
        ({"data": CONFIG["data"] | {"class_path": "C"}}, "data.class_path is 'B'"),
        ({"seed_everything": 4}, "seed_everything is 3"),
        ({"model": CONFIG["model"] | {"lr": 0.2}}, "model.lr is 0.1"),
        ({"trainer": {"max_epochs": 4}}, "trainer.max_epochs is 3"),
    ):
        line = line and f"{line} in process 0 (on "
        _check(rank, CONFIG if rank == 0 else CONFIG | change, line)
    # As ``auto`` is taken on nodes with GPUs of two kinds.
    taken = CONFIG["trainer"] | {"precision": ("bf16-mixed", "32-true")[rank]}
    with pytest.raises(InputError, match="'bf16-mixed' in process 0 .* name one for GPUs of sev"):
        check_agreement(CONFIG | {"trainer": taken})
    versions = agreement.versions
    if rank == 1:
        agreement.versions = lambda: versions() | {"torch": "2.0.0"}
    _check(rank, CONFIG, f"torch is {versions()['torch']} in process 0 (on ")
    agreement.versions = versions
    right = time.time
    for seconds, line in ((200, None), (400, "400 s ahead of that of process 0")):
        if rank == 1:
            time.time = lambda seconds=seconds: right() + seconds
        _check(rank, CONFIG, line)
        time.time = right
    distributed.destroy_process_group()


def _check(rank: int, config: dict, line: str | None) -> None:
    if line is None:
        check_agreement(config)
        return
    with pytest.raises(InputError) as raised:
        check_agreement(config)
    assert line in str(raised.value) and "process 1" in str(raised.value)


def test_processes_that_differ_are_all_refused():
    """Each of two says what differs, and takes what may differ."""
    run_ranks(_agree, free_port())


def _hold_lock(rank: int, port: int, path: str) -> None:
    meet(rank, port)
    folder = RunFolder(path)
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("ltr").addHandler(handler)
    with folder.owned() if rank == 0 else nullcontext():
        folder.check_seen_by_all()
    assert told == []
    distributed.barrier()
    folder.check_seen_by_all()  # nobody holds it, as where another machine does not see the lock
    assert len(told) == 1 and "whose locks hold on one machine alone" in told[0]
    distributed.destroy_process_group()


def test_a_lock_that_other_processes_do_not_see_is_told(tmp_path):
    run_ranks(_hold_lock, free_port(), str(tmp_path / "run"))


def _tokenizers(rank: int, port: int, backbones: list[str]) -> None:
    meet(rank, port)
    for backbone, line in ((0, None), (1, None), (2, "the digest of model.ranker.backbone is ")):
        ranker = {"class_path": "A", "init_args": {"backbone": backbones[rank * backbone]}}
        _check(rank, CONFIG | {"model": {"ranker": ranker}}, line)
    distributed.destroy_process_group()


def test_a_copy_of_a_model_with_another_tokenizer_is_refused(tmp_path, backbone):
    """An equal copy, and one whose tokenizer has another word; both are folders of one name."""
    for name in ("equal", "other"):
        shutil.copytree(backbone, tmp_path / name / Path(backbone).name)
    changed = tmp_path / "other" / Path(backbone).name / "tokenizer.json"
    changed.write_text(changed.read_text().replace('"w59"', '"w60"'))
    backbones = [backbone, *(str(tmp_path / n / Path(backbone).name) for n in ("equal", "other"))]
    run_ranks(_tokenizers, free_port(), backbones)


def refused(ended: list[tuple[int, list[str]]], part: str) -> None:
    """Both processes have ended with one line, the same, and no other."""
    assert [code for code, _ in ended] == [2, 2], ended
    lines = [told[-1] for _, told in ended]
    assert lines[0].removeprefix("ltr: ") == lines[1].removeprefix("ltr [rank 1]: ")
    assert part in lines[0], lines
    assert [len(told) for _, told in ended] == [1, 1], ended


@pytest.mark.long
def test_another_version_of_ltr(tmp_path, ends: Ends):
    """Two checkouts of one version whose code differs."""
    other = tmp_path / "other"
    shutil.copytree(Path(ltr.__file__).parent, other / "ltr")
    with open(other / "ltr/gains.py", "a") as code:
        code.write("# changed\n")
    here = {"PYTHONPATH": os.getcwd()}
    there = {"PYTHONPATH": f"{other}:{os.getcwd()}", "PYTHONSAFEPATH": "1"}
    refused(ends({}, environments=(here, there), forked=False), f"ltr is {ltr.__version__} (")
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_another_locale(tmp_path, ends: Ends):
    """One whose encoding is ASCII; Python would take UTF-8 for it, unless it is told not to."""
    ascii_alone = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ended = ends({}, environments=({"LC_ALL": "C.UTF-8"}, ascii_alone), forked=False)
    refused(ended, "the encoding of the locale is ")
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_another_clock(tmp_path, ends: Ends):
    clock = {"class_path": "tests.faults.OtherClock", "init_args": {"seconds": 3600.0}}
    ended = ends({"trainer.callbacks": [clock]})
    refused(ended, "the clocks of all processes must be at most 300 s apart")
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_another_configuration(tmp_path, ends: Ends):
    refused(ends({}, options=([], ["--model.lr", "0.3"])), "model.lr is 0.1 in process 0")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("change", ["judgements", "dev judgements", "nothing there"])
def test_other_data(tmp_path, ends: Ends, change):
    """Each process reads its own copy. In one of them a line is gone, or there is nothing at all."""
    copy = tmp_path / "copy"
    if change != "nothing there":
        write_collection(copy)
        qrels = copy / "qrels" / ("train.tsv" if change == "judgements" else "dev.tsv")
        qrels.write_text("\n".join(qrels.read_text().splitlines()[:-1]) + "\n")
    ended = ends(GROUPS, options=([], ["--data.path", str(copy)]))
    assert [code for code, _ in ended] == [2, 2], ended
    lines = [told[-1] for _, told in ended]
    if change == "nothing there":
        assert lines[1].startswith("ltr [rank 1]: ") and str(copy) in lines[1]
        reason = lines[1].removeprefix("ltr [rank 1]: ")
        assert lines[0].startswith(f"ltr: process 1 of 2 has ended: {reason}; ")
    else:
        for line in lines:
            assert "all processes of a run must read the same data, and the digest of" in line
            assert "judgements is " in line and "in process 1" in line
    assert not any("Traceback" in line for _, told in ended for line in told)
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_each_node_makes_its_own_cache_once(tmp_path, ends: Ends):
    """The run is that of nodes with a common cache, to the bit; a second start makes nothing anew."""
    own = tuple({"LTR_CACHE": str(tmp_path / folder)} for folder in ("one", "other"))
    common = ({"LTR_CACHE": str(tmp_path / "both")},) * 2

    def trained(name: str, environments: tuple, changes: dict) -> Path:
        run = tmp_path / name
        ended = ends(GROUPS | changes, runs=(run, run), environments=environments)
        assert [code for code, _ in ended] == [0, 0], ended
        return run

    weights = [
        last_of(trained(name, environments, {}))["state_dict"]
        for name, environments in (("own", own), ("common", common))
    ]
    for key, weight in weights[0].items():
        assert torch.equal(weight, weights[1][key]), key
    made = [_entries(tmp_path / folder) for folder in ("one", "other", "both")]
    assert made[0].keys() == made[1].keys() == made[2].keys() and len(made[0]) > 0
    trained("own", own, {"trainer.max_epochs": GROUPS["trainer.max_epochs"] + 1})
    assert [_entries(tmp_path / folder) for folder in ("one", "other")] == made[:2]


def _entries(cache: Path) -> dict[str, int]:
    """The entries of a cache, each with the number of its folder, which a new one would not have."""
    folders = [folder for folder in cache.glob("*/*") if folder.is_dir()]
    return {str(folder.relative_to(cache)): folder.stat().st_ino for folder in folders}
