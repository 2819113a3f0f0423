"""Training on a cluster, and what is lost there: a run that was killed, preempted or warned ends as
one that nobody has interrupted. The drivers are those of examples/cluster.
"""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from ltr.__main__ import main
from tests.child_processes import run_command, until
from tests.run.any_processes import OF_RAY, Job, Place, Running, workers_of_ray
from tests.run.interrupted import world  # noqa: F401  # a fixture
from tests.run.resumes import VARIANTS, configured, differences, outcome
from tests.slurm import cluster, environment_of, free_ports, kill_all_of, kill_all_with, why_not

ROOT = Path(__file__).parents[1]
DRIVERS = ROOT / "examples/cluster"
TEXTS = "a cross-encoder with dropout"


def written(world: Path, folder: Path, *, variant: str = TEXTS, **changes) -> Path:
    """The file of a configuration in a new folder; callbacks join those of the variant."""
    folder.mkdir()
    callbacks = VARIANTS[variant].get("trainer.callbacks", []) + changes.pop("callbacks", [])
    whole = VARIANTS[variant] | changes | {"trainer.callbacks": callbacks}
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(configured(whole, world)))
    return file


def words(file: Path) -> list[str]:
    """The options of ``ltr fit``, into the folder of the file."""
    return ["--config", str(file), "--trainer.default_root_dir", str(file.parent / "run")]


def waiting(folder: Path, *steps: int) -> dict:
    """A callback that waits for a signal in these steps."""
    folder.mkdir()
    options = {"folder": str(folder), "steps": list(steps)}
    return {"class_path": "tests.faults.WaitForSignal", "init_args": options}


def slow(seconds: float) -> dict:
    """A callback that takes its time behind each step."""
    return {"class_path": "tests.faults.SlowSteps", "init_args": {"seconds": seconds}}


@pytest.fixture
def environment(tmp_path, warm_python) -> Iterator[dict[str, str]]:
    """In which ``python`` has imported everything. What still runs in the end is killed."""
    entries = environment_of(tmp_path, warm_python)
    # Here alone: the names of SLURM's nodes resolve to nothing.
    yield entries | {"MASTER_ADDR": "127.0.0.1"}
    kill_all_of(entries)


@pytest.fixture
def place(environment, warm_python) -> Place:
    return Place(warm_python, environment)


def ended(run: Path) -> dict:
    """What a run has become, wherever its command was called."""
    result = outcome(run)
    result["results"].pop("directory")
    return result


def ends_as(place: Place, file: Path, processes: int) -> dict:
    """What the run of a file becomes where nobody interrupts it."""
    run = file.with_name("whole")
    running = Running(Job("lightning", processes), place, file, [run], file.with_name("whole.log"))
    assert running.end() == [0], running.output()
    return ended(run)


def all_said(outputs: list[Path]) -> str:
    return "\n".join(output.read_text() for output in outputs)


# SLURM


class Slurm:
    """Commands of a cluster whose nodes are on this machine; a folder has the output of jobs."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self.environment = environment
        self.folder = folder

    def ask(self, *command: str) -> str:
        where = {"env": self.environment, "cwd": self.folder}
        done = subprocess.run(command, **where, capture_output=True, text=True)
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout.strip()

    def warn(self, job: str, *options: str) -> None:
        """Send SIGUSR1. Where the job is out of the nodes already, scancel says that it can't be
        altered now.
        """
        command = ["scancel", *options, "--signal=USR1", job]
        subprocess.run(command, env=self.environment, stderr=subprocess.DEVNULL)

    def submit(self, *command: str) -> str:
        return self.ask("sbatch", "--parsable", *command)

    def read(self, job: str, entry: str) -> str:
        """An entry of what SLURM says of a job, such as JobState."""
        return re.search(rf"\b{entry}=(\S+)", self.ask("scontrol", "show", "job", job))[1]

    def end(self, job: str) -> str:
        over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED")
        until(lambda: self.read(job, "JobState") in over)
        return self.read(job, "JobState")

    def until_written(self, job: str, file: Path) -> None:
        def exit_code() -> int | None:
            return 1 if self.read(job, "JobState") in ("FAILED", "CANCELLED", "TIMEOUT") else None

        until(file.exists, exit_code, said=self.output)

    def output(self) -> str:
        return "\n".join(file.read_text() for file in sorted(self.folder.glob("*.log")))


@pytest.fixture
def slurm(environment, tmp_path) -> Iterator[Slurm]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path / "jobs"
    folder.mkdir()
    with cluster(environment):
        yield Slurm(environment, folder)


@pytest.mark.long
def test_a_job_that_is_preempted_three_times_ends_as_one_that_is_not(world, tmp_path, place, slurm):
    """On two nodes, and as one run of Weights & Biases."""
    logged = {"trainer.max_epochs": 4, "trainer.logger": True}
    expected = ends_as(place, written(world, tmp_path / "whole", **logged), 2)
    steps = (2, 6, 11)
    callback = waiting(tmp_path / "waits", *steps)
    file = written(world, tmp_path / "job", callbacks=[callback], **logged)
    # The warning is far away: it is the preemption that ends the job.
    driver = [str(DRIVERS / "fit_slurm.sh"), *words(file), "--wandb", "ranking"]
    job = slurm.submit("--nodes=2", "--ntasks-per-node=1", "--time=60", *driver)
    for step in steps:
        slurm.until_written(job, tmp_path / f"waits/step={step}")
        urgent = slurm.submit("--partition=urgent", "--nodes=2", "--wrap", "sleep 1")
        assert slurm.end(urgent) == "COMPLETED"
    assert slurm.end(job) == "COMPLETED", slurm.output()
    restarts = int(slurm.read(job, "Restarts"))
    assert restarts >= 3
    run = file.parent / "run"
    assert list(differences(expected, ended(run))) == []
    assert len(list(run.glob("wandb/offline-run-*"))) == 1 + restarts
    assert len({folder.name.rpartition("-")[2] for folder in run.glob("wandb/offline-run-*")}) == 1
    assert list(run.glob("hpc_ckpt*")) == []


@pytest.mark.long
def test_a_job_that_is_warned_puts_itself_into_the_queue_again(world, tmp_path, place, slurm):
    """By SIGUSR1 to its processes, which is what ``--signal=USR1@120`` sends. A job that must not
    be requeued says so, and scancel ends one for good.
    """
    expected = ends_as(place, written(world, tmp_path / "whole"), 2)
    file = written(world, tmp_path / "job", callbacks=[waiting(tmp_path / "waits", 2, 5)])
    driver = [str(DRIVERS / "fit_slurm.sh"), *words(file)]
    job = slurm.submit("--nodes=2", "--ntasks-per-node=1", "--time=60", *driver)
    for step in (2, 5):
        slurm.until_written(job, tmp_path / f"waits/step={step}")
        slurm.warn(job)
    assert slurm.end(job) == "COMPLETED", slurm.output()
    restarts = int(slurm.read(job, "Restarts"))
    line = f"ltr: SIGUSR1, and SLURM puts job {job} into the queue again"
    assert slurm.output().count(line) == restarts >= 2
    assert list(differences(expected, ended(file.parent / "run"))) == []

    file = written(world, tmp_path / "other", callbacks=[waiting(tmp_path / "others", 2, 5)])
    driver = ["--nodes=2", "--ntasks-per-node=1", "--time=60"]
    driver += [str(DRIVERS / "fit_slurm.sh"), *words(file)]
    job = slurm.submit("--no-requeue", *driver)
    slurm.until_written(job, tmp_path / "others/step=2")
    slurm.warn(job)
    assert slurm.end(job) == "FAILED", slurm.output()
    assert f"job {job} is not put into the queue again" in slurm.output()
    job = slurm.submit(*driver)
    slurm.until_written(job, tmp_path / "others/step=5")
    slurm.ask("scancel", job)
    assert slurm.end(job) == "CANCELLED"
    assert slurm.read(job, "Restarts") == "0"


@pytest.mark.long
def test_an_array_of_five_seeds_fills_a_grid(world, tmp_path, place, slurm, capfd):
    """One element is warned in the midst of a training, and goes into the queue again."""
    base = written(world, tmp_path / "grid", variant="plain", callbacks=[slow(0.3)])
    base.write_text(base.read_text().replace("seed_everything: 3\n", ""))  # the grid names them
    losses = {"ranknet": "RankNetLoss", "softmax": "SoftmaxLoss"}
    axis = {name: {"model.loss": f"ltr.losses.{loss}"} for name, loss in losses.items()}
    grid = {"base": str(base), "axes": {"loss": axis}, "seeds": [0, 1, 2, 3, 4]}
    grid["metrics"] = ["nDCG_exp@10"]
    file = base.with_name("losses.yaml")
    file.write_text(yaml.safe_dump(grid))
    options = [str(file), "--runs", str(tmp_path / "runs")]
    job = slurm.submit("--array=0-4", "--time=60", str(DRIVERS / "grid_slurm.sh"), *options)
    begun = tmp_path / "runs/softmax/seed=1/config.yaml"
    slurm.until_written(f"{job}_1", begun)
    slurm.warn(f"{job}_1", "--batch")
    for element in range(5):
        assert slurm.end(f"{job}_{element}") == "COMPLETED", slurm.output()
    # SLURM was seen to warn an element again, a moment after its restart.
    assert int(slurm.read(f"{job}_1", "Restarts")) >= 1
    assert main(["grid", *options, "--table"]) == 0
    table = capfd.readouterr().out
    assert "softmax" in table and "ranknet" in table
    for loss in losses:
        for seed in range(5):
            assert (tmp_path / f"runs/{loss}/seed={seed}/test.run").is_file()


# torchrun


@pytest.mark.long
@pytest.mark.parametrize("lost", ["a process", "an agent"])
def test_torchrun_goes_on_where_something_was_killed(world, tmp_path, place, lost):
    """Of three agents with a process each. Those that are left restart their processes; with an
    agent less, two go on. ``ltr fit`` needs no other options for it.
    """
    expected = ends_as(place, written(world, tmp_path / "whole"), 3)
    file = written(world, tmp_path / "job", callbacks=[slow(0.5)], **{"last.every_n_steps": 1})
    (port,) = free_ports(1)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2:3", "--max-restarts=9"]
    torchrun += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=fit"]
    torchrun += ["--rdzv-conf=last_call_timeout=5", "--nproc-per-node=1", "-m", "ltr", "fit"]
    command = [*torchrun, *words(file), "--ckpt_path", "last"]
    outputs = [file.with_name(f"{number}.log") for number in range(3)]
    agents = []
    for number, output in enumerate(outputs):
        with open(output, "w") as told:
            # Otherwise a restart finds the addresses of dead processes.
            fresh = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
            marked = place.environment | fresh | {"LTR_AGENT": f"{file}.{number}"}
            agents.append(subprocess.Popen(command, env=marked, stdout=told, stderr=told))
        time.sleep(0.5 if number else 3)  # the first one keeps the rendezvous
    last = file.parent / "run/checkpoints/last.ckpt"
    until(last.exists, *[agent.poll for agent in agents], said=lambda: all_said(outputs))
    if lost == "an agent":
        kill_all_with(f"LTR_AGENT={file}.2")
    else:
        children = Path(f"/proc/{agents[2].pid}/task/{agents[2].pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)
    codes = [agent.wait() for agent in agents]
    told = all_said(outputs)
    if lost == "a process":
        assert codes == [0, 0, 0], told
        assert list(differences(expected, ended(last.parents[1]))) == []
    else:
        assert codes == [0, 0, -signal.SIGKILL], told
        assert "the run went on so far with 3 processes, and goes on with 2" in told


# Ray


@pytest.fixture
def ray(environment) -> Iterator[dict[str, str]]:
    """The environment of drivers that start a cluster of their own."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    # Names of sockets must be short, and those of the folders of tests are not.
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:
        yield environment | OF_RAY | {"RAY_TMPDIR": folder}
        kill_all_with(f"RAY_TMPDIR={folder}")


@pytest.mark.long
def test_ray_goes_on_where_a_worker_or_the_head_was_killed(world, tmp_path, ray, warm_python):
    """The workers are started again by Ray, the head by whoever has started it, by the same
    command.
    """
    expected = ends_as(Place(warm_python, ray), written(world, tmp_path / "whole"), 2)
    file = written(world, tmp_path / "job", callbacks=[slow(0.5)], **{"last.every_n_steps": 1})
    driver = [sys.executable, str(DRIVERS / "ray_fit.py"), "2", *words(file)]
    last = file.parent / "run/checkpoints/last.ckpt"
    with open(file.with_name("head.log"), "w") as told:
        head = subprocess.Popen(driver, env=ray, cwd=tmp_path, stdout=told, stderr=told)
    said = file.with_name("head.log").read_text
    until(last.exists, head.poll, said=said)
    os.kill(workers_of_ray()[1], signal.SIGKILL)
    time.sleep(1)
    begun = last.stat().st_mtime_ns
    until(lambda: last.stat().st_mtime_ns != begun, head.poll, said=said)
    head.kill()
    kill_all_with(f"RAY_TMPDIR={ray['RAY_TMPDIR']}")
    head.wait()
    done = run_command(driver, env=ray, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(differences(expected, ended(file.parent / "run"))) == []


@pytest.mark.long
def test_ray_tries_bad_input_once(world, tmp_path, ray):
    file = written(world, tmp_path / "job", **{"model.metrics": ["nDCG@0"]})
    driver = [sys.executable, str(DRIVERS / "ray_fit.py"), "1", *words(file)]
    done = run_command(driver, env=ray, cwd=tmp_path)
    told = done.stdout + done.stderr
    assert done.returncode == 2, told
    assert "ltr: a measure must be one of" in told
    assert len(set(re.findall(r"RayTrainWorker pid=(\d+)", told))) == 1  # it was not started again
