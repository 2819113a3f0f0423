"""Does it matter which processes compute a run?  python tests/run/any_processes.py [--runs …]
[--launchers …] [--processes 1 2 3] [--kills 1] [--seed 0] [--results FILE]

Runs of four kinds are trained by several launchers with one, two and three processes. Each job
trains a run to its end; is killed at random moments (one process, or a whole agent, by SIGKILL) and
goes on each time; and its first remains are resumed by another job, with another number of
processes. With the same number of processes the result must be that of any other launcher, and that
of a run that nobody has killed, to the bit. With another number it must be equal but for rounding:
the table has the largest difference of a weight. Where a job has two nodes, it is also resumed with
the run folder missing on one of them, and must be refused.

Programs begin by a Python that has imported everything (warm.py), but with ``--cold``. With
``--results`` each row is kept in a file. A job that has one of the same seed is not tried again.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))
import torch
import yaml

from tests import slurm
from tests.run.resumes import VARIANTS, configured, differences, kind, outcome, write_world
from tests.run.warm import warm_python

ROOT = Path(__file__).parents[2]
# The runs, and their variants of resumes.py.
CHOSEN = {
    "features": "plain",
    "cross-encoder": "a cross-encoder with dropout",
    "dual encoder": "a dual encoder over groups",
    "mining": "negatives mined every epoch",
}
LAUNCHERS = ("lightning", "torchrun", "two agents", "slurm", "ray")
# Of these the gradient is 0 but for rounding, of which Adam makes steps.
WITHOUT_GRADIENT = ("key.bias", "head.bias")
MOST_ROUNDING = 5e-3  # of the way that training has moved a weight at most
SECONDS = 600  # until a job that does nothing more is given up
SECONDS_TO_END = 60  # until what is left of a job after a kill has ended by itself
SECONDS_A_STEP = 0.1
NAME_IN_SLURM = "fit"
OF_RAY = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600",
}


class Job(NamedTuple):
    """Who computes a run: a launcher and its processes."""

    launcher: str
    processes: int

    @property
    def agents(self) -> int:
        """How many programs are started by hand."""
        return 2 if self.launcher == "two agents" else 1

    @property
    def nodes(self) -> int:
        """How many nodes the processes take themselves to be on."""
        if self.launcher == "slurm":
            return self.processes
        return self.agents

    def is_possible(self) -> bool:
        """Two agents have equally many processes each."""
        return self.processes % self.agents == 0


class Place(NamedTuple):
    """Where jobs run: a Python and the environment of its programs."""

    python: str
    environment: dict[str, str]


@dataclass
class Row:
    """What became of a job: a row of the table."""

    run: str  # of CHOSEN
    launcher: str
    processes: int
    seed: int  # of the moments
    from_one: float = 0.0  # the largest difference of a weight from the run of one process
    moved: float = 0.0  # how far training has moved a weight at most
    kills_of_process: int = 0  # of a process of a run, and
    kills_of_agent: int = 0  # of an agent of torchrun or the driver of Ray, with all its processes
    steps: list[int] = field(default_factory=list)  # of last.ckpt after each kill; -1: none yet
    killed_by_hand: int = 0  # how often what a kill had left did not end by itself
    resumed_by: str = ""  # another job
    from_one_resumed: float = 0.0  # as from_one
    refused: bool | None = None  # a missing folder; None: the job has not two nodes
    wrong: list[str] = field(default_factory=list)  # what should not be

    COLUMNS = (
        "run",
        "launcher",
        "processes",
        "from one process",
        "kills",
        "at steps",
        "killed and resumed",
        "resumed by others, from one process",
        "folder missing on a node",
    )

    def cells(self) -> list[str]:
        """As the table shows it."""
        share = self.from_one / self.moved if self.moved else 0.0
        share_resumed = self.from_one_resumed / self.moved if self.moved else 0.0
        steps = " ".join("–" if step < 0 else str(step) for step in sorted(self.steps))
        refused = {None: "", True: "refused", False: "NOT REFUSED"}[self.refused]
        resumed = "equal to the bit" if not self.wrong else f"WRONG: {'; '.join(self.wrong)}"
        return [
            self.run,
            self.launcher,
            str(self.processes),
            f"{share:.0e}" if share else "0",
            kills_in([self]),
            steps,
            resumed,
            f"{self.resumed_by}: {share_resumed:.0e}",
            refused,
        ]


def kills_in(rows: Sequence[Row]) -> str:
    """How many kills there were."""
    n_agent = sum(row.kills_of_agent for row in rows)
    kills = f"{n_agent + sum(row.kills_of_process for row in rows)}"
    return f"{kills}, {n_agent} of an agent" if n_agent else kills


# Programs


def fit_words(config: Path, run: Path) -> list[str]:
    """The one command: what a launcher starts."""
    words = ["--config", str(config), "--trainer.default_root_dir", str(run)]
    return [*words, "--trainer.accelerator", "cpu"]


def commands(job: Job, place: Place, config: Path, runs: Sequence[Path], port: int) -> list:
    """What is started by hand for a job. ``runs``: the run folder as each of the nodes sees it."""
    fit = ["-m", "ltr", "fit"]
    last = ["--ckpt_path", "last"]
    if job.launcher == "lightning":
        of_lightning = ["--trainer.devices", str(job.processes)]
        if job.processes > 1:
            of_lightning += ["--trainer.strategy", "ddp"]
        return [[place.python, *fit, *fit_words(config, runs[0]), *last, *of_lightning]]
    if job.launcher == "ray":
        driver = str(ROOT / "examples/cluster/ray_fit.py")
        return [[place.python, driver, str(job.processes), *fit_words(config, runs[0])]]
    if job.launcher == "slurm":
        srun = ["srun", f"--nodes={job.nodes}", "--ntasks-per-node=1", "--kill-on-bad-exit=1"]
        srun += [f"--job-name={NAME_IN_SLURM}"]
        # The same command on all nodes, but for the folder.
        words = [place.python, *fit, *fit_words(config, Path("RUN")), *last]
        folder = f'[ "$SLURM_NODEID" = 0 ] && RUN={runs[0]} || RUN={runs[-1]}'
        line = " ".join('"$RUN"' if word == "RUN" else word for word in words)
        return [[*srun, "bash", "-c", f"{folder}; exec {line}"]]
    of_agent = job.processes // job.agents
    torchrun = [place.python, "-m", "torch.distributed.run"]
    torchrun += ["--nnodes", str(job.agents), "--nproc-per-node", str(of_agent)]
    torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]
    torchrun += ["--rdzv-id", str(port), *fit]
    return [[*torchrun, *fit_words(config, run), *last] for run in runs[: job.agents]]


class Running:
    """A job that runs.

    Args:
        log: each agent writes into a file beside it.
        runs: the run folder as each node sees it; a single one: all see the same.
    """

    count = 0  # of all jobs, to tell their processes

    def __init__(self, job: Job, place: Place, config: Path, runs: Sequence[Path], log: Path):
        Running.count += 1
        self.job = job
        self.mark = f"LTR_JOB={os.getpid()}.{Running.count}"
        runs = [*runs, *[runs[-1]] * (job.nodes - len(runs))]
        (port,) = slurm.free_ports(1)
        name, value = self.mark.split("=")
        self.environment = place.environment | {name: value}
        self.outputs = []
        self.agents = []
        for number, command in enumerate(commands(job, place, config, runs, port)):
            self.outputs.append(log.with_suffix(f".{number}"))
            with open(self.outputs[-1], "w") as output:
                self.agents.append(
                    subprocess.Popen(
                        command,
                        cwd=ROOT,
                        env=self.environment | {"LTR_AGENT": f"{value}.{number}"},
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )

    def output(self) -> str:
        """What all have said."""
        return "\n".join(output.read_text(errors="replace") for output in self.outputs)

    def is_over(self) -> bool:
        """Whether all agents have ended."""
        return all(agent.poll() is not None for agent in self.agents)

    def end(self, seconds: float = SECONDS) -> list[int] | None:
        """The exit codes of the agents; None where one did not end in time, and all were killed."""
        latest = time.monotonic() + seconds
        while not self.is_over() and time.monotonic() < latest:
            time.sleep(0.05)
        ended = self.is_over()
        self.kill()
        return [agent.returncode for agent in self.agents] if ended else None

    def kill(self) -> None:
        """End all that is left."""
        slurm.kill_all_with(self.mark)
        if self.job.launcher == "ray":
            kill_workers_of_ray()
        if self.job.launcher == "slurm":
            # A job whose srun was killed keeps its nodes.
            command = ["scancel", f"--name={NAME_IN_SLURM}"]
            subprocess.run(command, env=self.environment, check=True)
        for agent in self.agents:
            agent.wait()

    def kill_agent(self, rng: random.Random) -> bool:
        """Kill an agent, or the driver of Ray, with all of its processes. False if it has ended
        before.
        """
        agent = rng.randrange(len(self.agents))
        if self.agents[agent].poll() is not None:
            return False
        slurm.kill_all_with(f"LTR_AGENT={self.mark.partition('=')[2]}.{agent}")
        if self.job.launcher == "ray":
            kill_workers_of_ray()
        return True

    def kill_process(self, rng: random.Random) -> bool:
        """Kill one process of the run. False if there is none (any more)."""
        found = workers_of_ray() if self.job.launcher == "ray" else self._processes()
        if not found:
            return False
        with suppress(ProcessLookupError):
            os.kill(rng.choice(found), signal.SIGKILL)
            return True
        return False

    def _processes(self) -> list[int]:
        """Those of the run, without launchers."""
        found = []
        for each in Path("/proc").glob("[0-9]*"):
            words = words_of(each)
            is_python = len(words) > 1 and "python" in Path(words[0]).name
            trains = is_python and "fit" in words and "torch.distributed.run" not in words
            if trains and slurm.has_in_environment(each, self.mark):
                found.append(int(each.name))
        return found


def words_of(process: Path) -> list[str]:
    """The command line of a process of ``/proc``."""
    with suppress(OSError):
        return (process / "cmdline").read_text(errors="replace").split("\0")
    return []


def workers_of_ray() -> list[int]:
    """The processes that train by Ray."""
    processes = [(int(each.name), words_of(each)) for each in Path("/proc").glob("[0-9]*")]
    return [number for number, words in processes if "RayTrainWorker" in "".join(words[:1])]


def kill_workers_of_ray() -> None:
    """Of a driver that is gone; Ray ends them too, in its time."""
    while workers := workers_of_ray():
        for worker in workers:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        time.sleep(0.1)


# What is tried


class Trial:
    """A run that jobs compute, and what it must become.

    Args:
        name: of :data:`CHOSEN`.
        seed: of the moments.
        folder: a new one.
    """

    def __init__(self, name: str, seed: int, place: Place, world: Path, folder: Path) -> None:
        folder.mkdir()
        self.seed = seed
        self.name = name
        self.place = place
        self.folder = folder
        self.config = folder / "run.yaml"
        variant = VARIANTS[CHOSEN[name]]
        slow = kind("tests.faults.SlowSteps", seconds=SECONDS_A_STEP)
        variant = variant | {"trainer.callbacks": [*variant.get("trainer.callbacks", []), slow]}
        self.config.write_text(yaml.safe_dump(configured(variant, world)))
        untrained = folder / "untrained.yaml"
        no_steps = {"trainer.max_steps": 1, "trainer.max_epochs": -1, "model.lr": 0.0}
        untrained.write_text(yaml.safe_dump(configured(variant | no_steps, world)))
        one = Job("lightning", 1)
        self.begin = folder / "untrained"
        self.alone = folder / "alone"
        for config, run in ((untrained, self.begin), (self.config, self.alone)):
            running = Running(one, place, config, [run], folder / f"{run.name}.log")
            codes = running.end()
            assert codes == [0], running.output()
        self.expected = {1: outcome(self.alone)}  # by the number of processes

    def distance(self, run: Path) -> tuple[float, float]:
        """The largest difference of a weight from the run of one process, and how far training has
        moved a weight at most.
        """
        return distance(run, self.alone, last_weights(self.begin))

    def try_job(self, job: Job, others: Sequence[Job], kills: int, rng: random.Random) -> Row:
        """Whatever becomes of a job, as a row."""
        row = Row(self.name, job.launcher, job.processes, self.seed)
        place = self.folder / f"{job.launcher} {job.processes}".replace(" ", "-")
        place.mkdir()
        begun = time.time()
        if not self._ends(job, place / "whole", row, "uninterrupted"):
            return row
        spans = Spans(time.time() - begun, time.time() - begin_of_training(place / "whole"))
        result = outcome(place / "whole")
        expected = self.expected.setdefault(job.processes, result)
        row.wrong += [
            f"not as other launchers: {each}" for each in list(differences(expected, result))[:1]
        ]
        row.from_one, row.moved = self.distance(place / "whole")
        if row.from_one > MOST_ROUNDING * row.moved:
            row.wrong.append(f"{row.from_one / row.moved:.0e} from one process")
        for number in range(100):
            left = kills - row.kills_of_process - row.kills_of_agent
            if left <= 0:
                break
            self._chain(job, place / f"killed{number}", row, left, spans, expected, rng)
            if row.wrong:
                break
        self._resume_by_others(job, others, place, row, rng)
        if job.nodes == 2:
            self._resume_without_folder(job, place, row)
        return row

    def _start(self, job: Job, runs: Sequence[Path]) -> Running:
        return Running(job, self.place, self.config, runs, runs[0].with_suffix(".log"))

    def _ends(self, job: Job, run: Path, row: Row, what: str) -> bool:
        """Train to the end."""
        running = self._start(job, [run])
        codes = running.end()
        if codes == [0] * job.agents:
            return True
        lines = running.output().strip().splitlines()
        row.wrong.append(f"{what}: exit codes {codes}: {' / '.join(lines[-3:])}"[:300])
        print(running.output(), file=sys.stderr)
        return False

    def _chain(
        self,
        job: Job,
        run: Path,
        row: Row,
        kills: int,
        spans: "Spans",
        expected: Mapping[str, Any],
        rng: random.Random,
    ) -> None:
        """Kill a run so often, or until it is done, and let it go on each time."""
        for _ in range(kills):
            running = self._start(job, [run])
            self._wait(running, run, spans, rng)
            has_agent = job.launcher in ("torchrun", "two agents", "ray")
            if has_agent and rng.random() < 0.6:
                was_killed = running.kill_agent(rng)
                row.kills_of_agent += was_killed
            else:
                was_killed = running.kill_process(rng)
                row.kills_of_process += was_killed
            if was_killed:
                row.steps.append(step_of(run))
            # Ray starts its workers again when one was killed: the run goes on to its end.
            codes = running.end(SECONDS if job.launcher == "ray" else SECONDS_TO_END)
            if codes is None:
                row.killed_by_hand += 1
            if codes == [0] * job.agents:
                break  # it was done
            first = run.with_name("other")
            if not first.exists() and run.exists():
                shutil.copytree(run, first)
        if self._ends(job, run, row, "resumed"):
            found = list(differences(expected, outcome(run)))
            row.wrong += [f"resumed: {each}" for each in found[:1]]

    def _wait(self, running: Running, run: Path, spans: "Spans", rng: random.Random) -> None:
        """Until a random moment: of five mostly within training, once anywhere."""
        seconds = rng.uniform(0.0, spans.training)
        if rng.random() < 0.2:
            seconds = rng.uniform(0.0, spans.whole)
        else:
            begin = begin_of_training(run)
            while begin_of_training(run) == begin and not running.is_over():
                time.sleep(0.02)
        latest = time.monotonic() + seconds
        while time.monotonic() < latest and not running.is_over():
            time.sleep(0.02)

    def _resume_by_others(
        self, job: Job, others: Sequence[Job], place: Path, row: Row, rng: random.Random
    ) -> None:
        choice = [other for other in others if other.processes != job.processes]
        other = rng.choice(choice) if choice else Job("lightning", 3 - min(job.processes, 2))
        row.resumed_by = f"{other.launcher} {other.processes}"
        left = place / "other"
        kept = place / "for-missing"
        if left.exists():
            shutil.copytree(left, kept)
        if self._ends(other, left, row, f"resumed by {row.resumed_by}"):
            row.from_one_resumed, _ = self.distance(left)
            if row.from_one_resumed > MOST_ROUNDING * row.moved:
                share = row.from_one_resumed / row.moved
                row.wrong.append(f"resumed by {row.resumed_by}: {share:.0e} from one process")

    def _resume_without_folder(self, job: Job, place: Path, row: Row) -> None:
        """The second node has another disk at that path. A run that has all of its steps is done."""
        run = place / "for-missing"
        missing = place / "elsewhere/run"
        last = run / "checkpoints/last.ckpt"
        before = last.read_bytes() if last.exists() else None
        running = self._start(job, [run, missing])
        codes = running.end()
        after = last.read_bytes() if last.exists() else None
        if "nothing to do, nothing changed" in running.output() and before == after:
            return  # it was killed behind its last step: there is nothing to refuse
        said = "must be one folder that all processes of a run see" in running.output()
        failed = codes is not None and 0 not in codes
        row.refused = said and failed and before == after and not missing.exists()
        if not row.refused:
            row.wrong.append(f"folder missing on a node: exit codes {codes}")
            print(running.output(), file=sys.stderr)


class Spans(NamedTuple):
    """How long a job takes, in seconds: all of it, and from the first step on."""

    whole: float
    training: float


def begin_of_training(run: Path) -> float:
    """When the last start of a run has begun to train; 0: it has not."""
    config = run / "config.yaml"  # is written then
    return config.stat().st_mtime if config.exists() else 0.0


def step_of(run: Path) -> int:
    """The step that a run resumes from; -1: it begins."""
    last = run / "checkpoints/last.ckpt"
    if not last.exists():
        return -1
    return torch.load(last, weights_only=True)["global_step"]


def last_weights(run: Path) -> dict[str, torch.Tensor]:
    """The weights of ``last.ckpt``."""
    return torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"]


def distance(run: Path, other: Path, begin: dict[str, torch.Tensor]) -> tuple[float, float]:
    """The largest difference of a weight of two runs, and how far a weight was moved at most."""
    weights, other_weights = (last_weights(folder) for folder in (run, other))
    largest = 0.0
    moved = 0.0
    for name, weight in weights.items():
        if name.endswith(WITHOUT_GRADIENT) or not weight.is_floating_point():
            continue
        largest = max(largest, float((weight - other_weights[name]).abs().max()))
        moved = max(moved, float((weight - begin[name]).abs().max()))
    return largest, moved


def start_ray(stack: ExitStack, python: str, environment: dict[str, str]) -> None:
    """A Ray cluster of one node, to which the drivers go."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray", dir="/tmp"))
    (port,) = slurm.free_ports(1)
    environment |= OF_RAY | {"LTR_RAY": folder}
    ray = str(Path(sys.executable).parent / "ray")
    command = [python, ray, "start", "--head", f"--port={port}"]
    command += ["--node-ip-address=127.0.0.1", "--num-cpus=4", "--include-dashboard=false"]
    command += [f"--temp-dir={folder}", f"--object-store-memory={200 * 2**20}"]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    stack.callback(slurm.kill_all_with, f"LTR_RAY={folder}")
    environment["RAY_ADDRESS"] = f"127.0.0.1:{port}"


def read_rows(file: Path | None) -> list[Row]:
    """The rows of earlier calls."""
    if file is None or not file.exists():
        return []
    return [Row(**json.loads(line)) for line in file.read_text().splitlines()]


def print_table(rows: Sequence[Row], seconds: float) -> int:
    """Print a line for each job over all runs, and sums; return the number of wrong trials."""
    names = list(dict.fromkeys(row.run for row in rows))
    columns = ["launcher", "processes", "kills", *(f"{name}, from one process" for name in names)]
    print(f"\n| {' | '.join(columns)} | result |")
    print("| --- " * (1 + len(columns)) + "|")
    for job in dict.fromkeys(Job(row.launcher, row.processes) for row in rows):
        of_job = [row for row in rows if (row.launcher, row.processes) == job]
        shares = []
        for name in names:
            of_run = [row.from_one / row.moved for row in of_job if row.run == name and row.moved]
            shares.append(f"{max(of_run):.0e}".replace("0e+00", "0") if of_run else "")
        n_wrong = sum(bool(row.wrong) for row in of_job)
        result = "equal to the bit" if n_wrong == 0 else f"{n_wrong} WRONG"
        cells = [job.launcher, str(job.processes), kills_in(of_job), *shares, result]
        print(f"| {' | '.join(cells)} |")
    n_wrong = sum(bool(row.wrong) for row in rows)
    n_process = sum(row.kills_of_process for row in rows)
    n_agent = sum(row.kills_of_agent for row in rows)
    refused = [row.refused for row in rows if row.refused is not None]
    by_hand = sum(row.killed_by_hand for row in rows)
    furthest = max((row.from_one_resumed / row.moved for row in rows if row.moved), default=0.0)
    print(
        f"\n{len(rows)} trials; {n_process + n_agent} kills, {n_agent} of a whole agent, after",
        f"which {by_hand} jobs did not end within {SECONDS_TO_END} s; resumed by others: at most",
        f"{furthest:.0e} from one process; a folder missing on a node: {sum(refused)} of",
        f"{len(refused)} refused; {n_wrong} wrong; {seconds / 60:.0f} minutes",
    )
    return n_wrong


def main() -> None:
    """Try the jobs and print the table; exit code 1 where a result is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", nargs="+", default=list(CHOSEN), choices=list(CHOSEN))
    parser.add_argument("--launchers", nargs="+", default=LAUNCHERS, choices=LAUNCHERS)
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--kills", type=int, default=1, help="of each job")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cold", action="store_true", help="start each program anew")
    parser.add_argument("--results", type=Path, help="a file for the rows, to go on with")
    options = parser.parse_args()
    jobs = [Job(launcher, n) for launcher in options.launchers for n in options.processes]
    jobs = [job for job in jobs if job.is_possible()]
    begun = time.monotonic()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # what it has started ends
    rows = read_rows(options.results)
    done = {(row.run, row.launcher, row.processes, row.seed) for row in rows}
    environment = dict(os.environ)
    environment |= {"OMP_NUM_THREADS": "1", "WANDB_MODE": "offline", "PYTHONPATH": str(ROOT)}
    environment |= {"MASTER_ADDR": "127.0.0.1"}  # of SLURM, whose nodes have no address here
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
        environment["LTR_CACHE"] = f"{folder}/cache"
        os.environ["LTR_CACHE"] = environment["LTR_CACHE"]
        world = folder / "world"
        world.mkdir()
        write_world(world)
        python = sys.executable
        if not options.cold:
            python = stack.enter_context(warm_python(folder / "warm", environment))
        environment["PYTHON_EXEC"] = python  # for torchrun
        if any(job.launcher == "slurm" for job in jobs):
            most = max(job.nodes for job in jobs)
            stack.enter_context(slurm.cluster(environment, n_nodes=most))
        if any(job.launcher == "ray" for job in jobs):
            start_ray(stack, python, environment)
        print(f"| {' | '.join(Row.COLUMNS)} |\n{'| --- ' * len(Row.COLUMNS)}|", flush=True)
        for name in options.runs:
            missing = [job for job in jobs if (name, *job, options.seed) not in done]
            if not missing:
                continue
            place = Place(python, environment)
            trial = Trial(name, options.seed, place, world, folder / name.replace(" ", "-"))
            for job in missing:
                # The same moments, whichever jobs are tried.
                rng = random.Random(f"{options.seed} {name} {job}")
                before = time.monotonic()
                row = trial.try_job(job, jobs, options.kills, rng)
                rows.append(row)
                print(
                    f"| {' | '.join(row.cells())} | {time.monotonic() - before:.0f} s", flush=True
                )
                if options.results is not None:
                    with open(options.results, "a") as file:
                        file.write(json.dumps(asdict(row)) + "\n")
            shutil.rmtree(trial.folder)
    sys.exit(print_table(rows, time.monotonic() - begun) > 0)


if __name__ == "__main__":
    main()
