"""Does it matter which processes compute a run?  python tests/run/any_processes.py [--variants …]
[--launchers …] [--processes 1 2 3] [--seed 0]

Runs of four kinds are trained by several launchers with one, two and three processes. Each is also
killed at a random moment (one process, or all of an agent of torchrun, by SIGKILL) and resumed with
the same number of processes, and with another one. With the same number the result must be equal to
the bit; else the table says how far it is from that of one process: the largest difference of a
weight, beside how far training has moved that weight at most.
"""

import argparse
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))
import torch
import yaml

from tests.run.resumes import VARIANTS, configured, differences, outcome, write_world

CHOSEN = (
    "plain",
    "a cross-encoder with dropout",
    "a dual encoder over groups",
    "negatives mined every epoch",
)
# Of these the gradient is 0 but for rounding, of which Adam makes steps.
WITHOUT_GRADIENT = ("key.bias", "head.bias")
ROOT = Path(__file__).parents[2]
SECONDS = 600  # until a job that does nothing more is given up


class Job(NamedTuple):
    """Who computes a run: a launcher and its processes; ``agents`` of torchrun."""

    launcher: str
    processes: int

    @property
    def agents(self) -> int:
        """How many programs are started by hand."""
        return 2 if self.launcher == "two agents" else 1

    def is_possible(self) -> bool:
        """Two agents have equally many processes each."""
        return self.processes % self.agents == 0


LAUNCHERS = ("lightning", "torchrun", "two agents")


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def command(job: Job, config: Path, run: Path, port: int) -> list[str]:
    """What each agent is started by: the same for all."""
    fit = ["-m", "ltr", "fit", "--config", str(config), "--trainer.default_root_dir", str(run)]
    fit += ["--ckpt_path", "last", "--trainer.accelerator", "cpu"]
    fit += ["--trainer.num_nodes", str(job.agents)]
    fit += ["--trainer.devices", str(job.processes // job.agents)]
    if job.processes > 1:
        fit += ["--trainer.strategy", "ddp"]
    if job.launcher == "lightning":
        return [sys.executable, *fit]
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    torchrun += ["--nnodes", str(job.agents), "--nproc-per-node", str(job.processes // job.agents)]
    torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]
    return [*torchrun, "--rdzv-id", str(port), *fit]


def start(job: Job, config: Path, run: Path, log: Path) -> list[subprocess.Popen]:
    """The agents of a job, each in a process group of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "WANDB_MODE": "offline"}
    port = free_port()
    agents = []
    for number in range(job.agents):
        with open(log.with_suffix(f".{number}"), "a") as output:
            agents.append(
                subprocess.Popen(
                    command(job, config, run, port),
                    cwd=ROOT,
                    env=environment,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
    return agents


def ended(agents: Sequence[subprocess.Popen]) -> list[int]:
    """The exit codes. What is left of a job after a failure is ended."""
    latest = time.monotonic() + SECONDS
    try:
        return [agent.wait(max(1, latest - time.monotonic())) for agent in agents]
    finally:
        for agent in agents:
            kill_group(agent)


def kill_group(agent: subprocess.Popen) -> None:
    """End an agent with all of its processes."""
    with suppress(ProcessLookupError):
        os.killpg(agent.pid, signal.SIGKILL)
    agent.wait()


def train(job: Job, config: Path, run: Path, log: Path) -> None:
    """Begin a run or go on with it, to its end."""
    codes = ended(start(job, config, run, log))
    assert codes == [0] * job.agents, f"{job}: exit codes {codes}, see {log}.*"


def interrupt(
    job: Job, config: Path, run: Path, log: Path, rng: random.Random, whole: float
) -> str:
    """Start a run, and kill an agent with its processes at a random moment. Returns when."""
    agents = start(job, config, run, log)
    seconds = rng.uniform(0.2, 1.0) * whole
    time.sleep(seconds)
    for agent in rng.sample(agents, k=rng.randint(1, len(agents))):
        kill_group(agent)
    # The others would end by themselves, in the time limit of their process group.
    time.sleep(1)
    for agent in agents:
        kill_group(agent)
    last = run / "checkpoints/last.ckpt"
    if not last.exists():
        return f"after {seconds:.0f} s, before its first checkpoint"
    step = torch.load(last, weights_only=True)["global_step"]
    return f"after {seconds:.0f} s, at step {step}"


def distance(run: Path, other: Path, begin: dict[str, torch.Tensor]) -> tuple[float, float]:
    """The largest difference of a weight of two runs, and how far a weight was moved at most."""
    weights, other_weights = (
        torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
        for folder in (run, other)
    )
    largest = 0.0
    moved = 0.0
    for name, weight in weights.items():
        if name.endswith(WITHOUT_GRADIENT) or not weight.is_floating_point():
            continue
        largest = max(largest, float((weight - other_weights[name]).abs().max()))
        moved = max(moved, float((weight - begin[name]).abs().max()))
    return largest, moved


def try_variant(
    name: str, jobs: Sequence[Job], world: Path, folder: Path, rng: random.Random
) -> list[str]:
    """Rows of the table."""
    folder.mkdir()
    config = folder / "variant.yaml"
    config.write_text(yaml.safe_dump(configured(VARIANTS[name], world)))
    alone = folder / "alone"
    train(Job("lightning", 1), config, alone, folder / "alone.log")
    untrained = folder / "untrained.yaml"
    no_steps = {"trainer.max_steps": 1, "trainer.max_epochs": -1, "model.lr": 0.0}
    untrained.write_text(yaml.safe_dump(configured(VARIANTS[name] | no_steps, world)))
    train(Job("lightning", 1), untrained, folder / "untrained", folder / "untrained.log")
    begin = torch.load(folder / "untrained/checkpoints/last.ckpt", weights_only=True)["state_dict"]
    rows = []
    for job in jobs:
        place = folder / f"{job.launcher} {job.processes}"
        whole = place / "whole"
        place.mkdir()
        begun = time.monotonic()
        train(job, config, whole, place / "whole.log")
        seconds = time.monotonic() - begun
        expected = outcome(whole)
        killed = place / "killed"
        when = interrupt(job, config, killed, place / "killed.log", rng, seconds)
        other = place / "other"
        if killed.exists():
            shutil.copytree(killed, other)
        train(job, config, killed, place / "killed.log")
        wrong = list(differences(expected, outcome(killed)))
        resumed = "equal to the bit" if not wrong else f"WRONG: {wrong[0]}"
        others = [job_of for job_of in jobs if job_of.processes != job.processes]
        goes_on = rng.choice(others) if others else Job("lightning", 1)
        train(goes_on, config, other, place / "other.log")
        from_alone, moved = distance(whole, alone, begin)
        from_other, _ = distance(other, alone, begin)
        rows.append(
            f"| {name} | {job.launcher} | {job.processes} | {from_alone:.1e} of {moved:.1e} | {when} | {resumed} | {goes_on.launcher}, {goes_on.processes}: {from_other:.1e} |"
        )
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Print the table; exit code 1 where a result is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--variants", nargs="+", default=CHOSEN)
    parser.add_argument("--launchers", nargs="+", default=LAUNCHERS, choices=LAUNCHERS)
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    jobs = [Job(launcher, n) for launcher in options.launchers for n in options.processes]
    jobs = [job for job in jobs if job.is_possible()]
    rng = random.Random(options.seed)
    columns = ["run", "launcher", "processes", "from one process", "killed", "resumed as before"]
    print(f"| {' | '.join(columns)} | resumed by others, from one process |")
    print("| --- " * (len(columns) + 1) + "|", flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LTR_CACHE"] = f"{folder}/cache"
        world = Path(folder, "world")
        world.mkdir()
        write_world(world)
        for number, name in enumerate(options.variants):
            rows += try_variant(name, jobs, world, Path(folder, f"variant{number}"), rng)
    n_wrong = sum("WRONG" in row for row in rows)
    print(
        f"\n{len(rows)} jobs, each killed once and resumed twice: {n_wrong} wrong; seed {options.seed}"
    )
    sys.exit(n_wrong > 0)


if __name__ == "__main__":
    main()
