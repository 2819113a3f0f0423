"""Fixtures of all tests. What they make is in tests/world. Nothing here needs a network.

What is slow to import is imported where it is used: the first process of pytest, which waits for its
workers and tells what they say, needs none of it, and they begin after it has read this file.
"""

import gc
import importlib
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from filelock import FileLock

from tests.child_processes import (
    MARK,
    kill_processes,
    left_by_workers,
    seconds_since_boot,
    started_processes,
)
from tests.world.runs import copied_run

if TYPE_CHECKING:
    import torch

__all__ = ["copied_run"]

os.environ.update(
    HF_HUB_OFFLINE="1", WANDB_MODE="offline", TOKENIZERS_PARALLELISM="false", WANDB_SILENT="true"
)

# A worker of pytest finds the number of the first process there.
os.environ[MARK] = f"{os.environ.get(MARK, str(os.getpid())).partition('.')[0]}.{os.getpid()}"
REPORTS = pytest.StashKey[list[pytest.TestReport]]()


@pytest.fixture(autouse=True, scope="session")
def sighup_is_heard():
    """Also where the tests themselves run under nohup."""
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def common_folder(tmp_path_factory) -> Path:
    """A folder that all workers of these tests share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def made_once(common_folder) -> Callable[[str, Callable[[Path], object]], Path]:
    """``made_once(name, make)``: a folder that the first worker to ask for it makes for all of them."""

    def folder_of(name: str, make: Callable[[Path], object]) -> Path:
        place = common_folder / name
        is_made = common_folder / f"{name}.made"
        with FileLock(common_folder / f"{name}.lock"):
            if not is_made.exists():
                shutil.rmtree(place, ignore_errors=True)  # where making it has failed
                make(place)
                is_made.touch()
        return place

    return folder_of


@pytest.fixture(scope="session")
def warm_python(common_folder) -> str:
    """The path of a Python that has imported everything: for tests that start several programs. One
    serves all workers.
    """
    from tests.run import warm

    place = common_folder / "warm"
    with FileLock(common_folder / "warm.lock"):
        if not place.exists():
            folder = Path(tempfile.mkdtemp())  # a socket needs a short path
            # Without the mark of this worker: it would end with a test of it that fails.
            environment = {name: value for name, value in os.environ.items() if name != MARK}
            warm.start_server(folder, environment, owner=int(os.environ[MARK].partition(".")[0]))
            place.symlink_to(folder)
    return str(place.resolve() / "python")


@pytest.fixture
def programs_begin_warm(warm_python, monkeypatch) -> None:
    """Whatever a test starts by ``sys.executable``, and what that starts in turn, imports nothing."""
    monkeypatch.setattr(sys, "executable", warm_python)


@pytest.fixture(autouse=True)
def nothing_is_left_by_a_test_that_fails(request):
    """The processes that it has started would go on for hours."""
    begun = seconds_since_boot()
    yield
    if any(report.failed for report in request.node.stash.get(REPORTS, ())):
        kill_processes(started_processes(since=begun))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.skipped and item.get_closest_marker("gpu"):
        import torch

        if torch.cuda.is_available():
            report.outcome = "failed"
            report.longrepr = f"skipped on a machine with a GPU: {report.longrepr[-1]}"
    item.stash.setdefault(REPORTS, []).append(report)
    return report


def pytest_collection_finish():
    """The garbage collector leaves alone what was imported and collected: half a million objects and
    more, none of which goes away. Looking through them took a twentieth of the time of a command.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config):
    """Also what a worker has left that was ended for a test that hangs."""
    gc.unfreeze()  # at its end Python takes all apart, or some libraries complain
    if not hasattr(config, "workerinput"):
        kill_processes(left_by_workers())


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    """Derived data of a test session lies apart from the user's, also that of fixtures of a session."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("LTR_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        yield


@pytest.fixture(autouse=True)
def every_test_begins_alike(request, monkeypatch):
    """Whichever came before it in this process: Lightning keeps the seed of the last ``fit`` in the
    environment, ``ltr check`` and ``RankerTrainer`` quieten it for good, and a command lets ``ltr``
    tell everything, and finds classes in the working directory: after thousands of tests each import
    would look into hundreds of folders. Errors are lines, as without ``LTR_DEBUG``.
    """
    import torch

    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    monkeypatch.delenv("LTR_DEBUG", raising=False)
    for package in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(package).setLevel(logging.INFO)
    logging.getLogger("ltr").setLevel(logging.NOTSET)
    # Under pytest, whose handlers are there first, both hand on what they say to one more console.
    logging.getLogger("lightning").handlers.clear()
    if request.node.get_closest_marker("gpu"):
        torch.manual_seed(0)
    else:
        # Half a millisecond faster: that one keeps the stack, for each kind of GPU that may begin later.
        torch.default_generator.manual_seed(0)


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """The working directory: a folder of the test's own, empty at first."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def no_run_of_wandb_is_left():
    """The next test of the process would log into it."""
    yield
    assert "wandb" not in sys.modules or sys.modules["wandb"].run is None


@pytest.fixture(scope="session")
def device() -> "torch.device":
    """The GPU that the tests marked ``gpu`` need. Where a machine has one, it must be found. With
    LTR_GPU_TESTS_ON=cpu it is the CPU: that shows that these tests run, and nothing else.
    """
    import torch

    # Read once, when cuBLAS begins: without it nothing is deterministic.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if os.environ.get("LTR_GPU_TESTS_ON") == "cpu":
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda", 0)
    if Path("/dev/nvidia0").exists():
        pytest.fail(f"torch {torch.__version__} does not find the GPU of this machine")
    return pytest.skip("there is no GPU here; LTR_GPU_TESTS_ON=cpu tries the tests themselves")


@pytest.fixture(scope="session")
def collection_folder(made_once) -> Path:
    from tests.world.collections import write_collection

    return made_once("collection", write_collection)


@pytest.fixture
def benchmark(monkeypatch) -> Callable[[str], ModuleType]:
    """Import a file of benchmarks/ by its name."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    return importlib.import_module


@pytest.fixture(scope="session")
def backbone(made_once) -> str:
    from tests.world.backbones import make_backbone

    return str(made_once("tiny-bert", make_backbone))


@pytest.fixture(scope="session")
def letor_folder(made_once) -> Path:
    from tests.world.features import write_letor

    return made_once("letor", write_letor)


@pytest.fixture
def encoded(monkeypatch) -> list[int]:
    """How many texts each batch of the encoder has had from now on, wherever a corpus is encoded."""
    from ltr.search import encoding_worker

    counts = []
    encode_batches = encoding_worker.encode_batches

    def counting(*args):
        for places, embeddings in encode_batches(*args):
            counts.append(len(places))
            yield places, embeddings

    monkeypatch.setattr(encoding_worker, "encode_batches", counting)
    return counts
