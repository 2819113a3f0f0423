"""The drivers of examples/cluster: whichever engine encodes a corpus, and although a worker is killed
with SIGKILL, the digest of the whole is that of one process alone.
"""

import importlib.util
import json
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from torch.distributed import TCPStore

from ltr.data.text_files import open_texts
from ltr.search.encoding_places import EncodingOfFolder
from ltr.use.corpus_encoding import open_encoding
from ltr.use.load import load
from ltr.use.retriever import SearchableCorpus
from tests.child_processes import run_command, until
from tests.run.any_processes import OF_RAY
from tests.slurm import cluster, environment_of, kill_all_of, why_not
from tests.world.collections import write_collection

ROOT = Path(__file__).parents[1]
DRIVERS = ROOT / "examples/cluster"
N_SHARDS = 10  # 2,400 documents in shards of 256
KILLED = 4  # the number of the shard whose worker is killed

# Python reads this file at the start of every process. Each shard is noted before it gets its name;
# the process that makes the chosen one kills itself there, once: the shard is lost. Where torchrun
# will start both its processes again, that one first waits until the other has begun, too, and the
# other waits with the last shard that is missing for the signal that ends it: an agent whose process
# has done all meanwhile would wait for the other, for five minutes. A process that has begun alone,
# as one agent comes late on a busy machine, makes nothing.
KILLER = f"""
import os
import signal
import socket
import time

folder = os.path.dirname(__file__)
killed = os.path.join(folder, "killed")
is_alone = False
waits_for_restart = False


def n_started():
    with open(os.path.join(folder, "started"), "a+") as started:
        started.seek(0)
        return len(started.readlines())


if "TORCHELASTIC_RUN_ID" in os.environ:
    # A shard is written by a thread, in which no signal is handled.
    heard, hearing = socket.socketpair()
    hearing.setblocking(False)
    signal.set_wakeup_fd(hearing.fileno())
    is_alone = os.environ["WORLD_SIZE"] == "1"
    if is_alone:
        open(os.path.join(folder, "alone"), "w").close()
    else:
        with open(os.path.join(folder, "started"), "a") as started:
            started.write("one\\n")
        waits_for_restart = n_started() <= 2 or not os.path.exists(killed)
replace = os.replace


def is_shard(name):
    return name.endswith(".npy") and name[:-4].isdigit()


def noted_replace(source, target, **options):
    place, name = os.path.split(os.fspath(target))
    if is_shard(name):
        number = int(name[:-4])
        kills = number == {KILLED} and not os.path.exists(killed)
        if is_alone:
            heard.recv(1)
            os.kill(os.getpid(), signal.SIGKILL)
        if waits_for_restart and kills:
            while n_started() < 2:
                time.sleep(0.05)
        elif waits_for_restart and sum(map(is_shard, os.listdir(place))) == {N_SHARDS - 1}:
            heard.recv(1)
        with open(os.path.join(folder, "made"), "a") as made:
            made.write(f"{{number}}\\n")
        if kills:
            open(killed, "x").close()
            os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target, **options)


os.replace = noted_replace
"""


@dataclass
class World:
    """A corpus to be encoded by processes of which one is killed.

    Attributes:
        words: ranker, corpus and the folder of the encoding.
        environment: of all processes.
        digest: of an encoding by one process that nobody has killed.
        notes: the folder in which the processes note what they have made.
    """

    words: list[str]
    environment: dict[str, str]
    digest: str
    notes: Path

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command with the words behind it, in the folder of the notes."""
        words = [*command, *self.words]
        return run_command(words, env=self.environment | environment, cwd=self.notes)

    def check(self, most_lost: int = 1) -> None:
        """The folder holds what one process alone writes, and nothing else. The kill has cost one
        shard, or no more than ``most_lost``.
        """
        folder = Path(self.words[-1])
        manifest = json.loads((folder / "manifest.json").read_text())
        assert manifest["digest"] == self.digest
        shards = {f"{number:06d}.npy" for number in range(N_SHARDS)}
        others = {"ids.npy", "ids.offsets.npy", "manifest.json", "plan.json"}
        assert {file.name for file in folder.iterdir()} == shards | others
        assert (self.notes / "killed").exists()
        times_made = Counter(map(int, (self.notes / "made").read_text().split()))
        assert set(times_made) == set(range(N_SHARDS))
        assert times_made[KILLED] > 1
        assert times_made.total() - N_SHARDS <= most_lost


def encode(ranker: str, corpus: str, folder: str) -> list[str]:
    """The command, with the ``python`` that stands first in the environment."""
    return ["python", "-m", "ltr", "encode", ranker, "--corpus", corpus, "--output", folder]


@pytest.fixture
def world(backbone, tmp_path, warm_python) -> Iterator[World]:
    """What of the processes still runs in the end is killed."""
    corpus = str(write_collection(tmp_path / "corpus", n_queries=100))
    environment = environment_of(tmp_path, warm_python)
    environment |= {"PYTHON_EXEC": warm_python, "TMPDIR": str(tmp_path)}  # the first for torchrun
    whole = tmp_path / "whole"
    done = run_command(encode(backbone, corpus, str(whole)), env=environment)
    assert done.returncode == 0, done.stderr
    digest = json.loads((whole / "manifest.json").read_text())["digest"]
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "sitecustomize.py").write_text(KILLER)
    environment["PYTHONPATH"] = f"{notes}:{ROOT}"
    yield World([backbone, corpus, str(tmp_path / "encoded")], environment, digest, notes)
    kill_all_of(environment)


@pytest.mark.long
def test_one_process_is_started_again(world):
    for code in (-signal.SIGKILL, 0):
        done = run_command(encode(*world.words), env=world.environment)
        assert done.returncode == code, done.stderr
    world.check()


@pytest.mark.long
def test_torchrun_starts_its_processes_again(world):
    done = world.run(str(DRIVERS / "encode_torchrun.sh"), WORKERS="2")
    assert done.returncode == 0, done.stderr
    world.check(most_lost=2)


@pytest.mark.long
@pytest.mark.parametrize("comes_late", [False, True])
def test_two_agents_of_torchrun_start_one_another_again(world, comes_late):
    """As on two nodes, of which one may come when the other has begun alone, after half a minute.
    The rendezvous is kept by the test, so nobody else can take its port.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    endpoint = f"127.0.0.1:{store.port}"

    def agent(number: int) -> subprocess.CompletedProcess[str]:
        if comes_late and number == 1:
            until((world.notes / "alone").exists)
        driver = str(DRIVERS / "encode_torchrun.sh")
        return world.run(driver, NODES="2", ENDPOINT=endpoint)

    with ThreadPoolExecutor(2) as agents:
        for done in agents.map(agent, range(2)):
            assert done.returncode == 0, done.stderr
    world.check(most_lost=2)


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
def test_ray_gives_the_task_to_another_worker(world):
    # Names of sockets must be short, and those of the folders of tests are not.
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:
        driver = str(DRIVERS / "encode_ray.py")
        done = world.run(sys.executable, driver, **OF_RAY, RAY_TMPDIR=folder)
    assert done.returncode == 0, done.stderr
    assert f"{N_SHARDS} shards made; digest {world.digest}" in done.stdout
    world.check()


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="no Dask is installed")
def test_dask_gives_the_task_to_another_worker(world):
    done = world.run(sys.executable, str(DRIVERS / "encode_dask.py"))
    assert done.returncode == 0, done.stderr
    assert f"{N_SHARDS} shards made; digest {world.digest}" in done.stdout
    world.check()


@pytest.fixture
def slurm(world) -> Iterator[None]:
    """A cluster of two nodes on this machine, to which the commands of SLURM speak."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with cluster(world.environment):
        yield


@pytest.mark.long
def test_elements_of_an_array_of_slurm_do_what_a_killed_one_has_left(world, slurm):
    driver = str(DRIVERS / "encode_slurm.sh")
    done = world.run("sbatch", "--wait", "--array=0-2", driver)
    logs = "".join(file.read_text() for file in world.notes.glob("encode-*.log"))
    assert done.returncode != 0, logs  # of the killed one
    assert logs.count(f"digest {world.digest}") == 2, logs
    world.check()


def test_a_search_by_shards_finds_what_a_search_of_all_finds(backbone, collection_folder, tmp_path):
    """The two functions of the README, over tasks of one shard and of two."""
    page = (DRIVERS / "README.md").read_text()
    (code,) = re.findall(r"<!-- example: search -->\n```python\n(.*?)```", page, re.DOTALL)
    scope = {}
    exec(code, scope)
    encoding = open_encoding(backbone, str(collection_folder), tmp_path / "encoded", "float32")
    encoding.encode_missing()
    encoding.finish()
    retriever = load(backbone)
    texts = ["w1 w3", "w7", "w20 w5 w5"]
    question = retriever.encode(texts, "query"), retriever.model.similarity, 300
    found = []
    for numbers in (range(0, 1), range(1, 3)):
        found.append(scope["best_of_shards"](tmp_path / "encoded", numbers, *question))
    scores, rows = scope["best_of_all"](found)
    documents = open_texts(str(collection_folder), "document", "corpus")
    whole = SearchableCorpus(retriever, documents, EncodingOfFolder(tmp_path / "encoded"))
    expected_scores, expected_rows = whole.search_all(texts, 300)
    np.testing.assert_array_equal(rows, expected_rows)
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-6)
    assert {row // 256 for row in rows[0].tolist()} == {0, 1, 2}
