"""Is a run safe from kills?  python tests/run/kills.py [--kills 300] [--workers 0 2] [--processes
1] [--signal TERM] [--mining] [--variants VARIANT …]

Runs of several variants (resumes.py) are ended by a signal at random moments, and resumed, until
they are done. Each must then have the weights, the state of the optimiser and the validations of
the run that was never interrupted, and no torn file. With ``--signal TERM`` a run ends as a
cluster's time limit ends it. With ``--mining`` the runs mine negatives, and every second kill waits
for a refresh, which takes its time; the negatives must be the same, too.
"""

import argparse
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[2]))
import numpy as np
import torch
import yaml

from ltr.__main__ import main as ltr
from tests.child_processes import forkserver, until
from tests.run.resumes import VARIANTS, configured, differences, kind, outcome, write_world

CHOSEN = (
    "plain",
    "validation every second epoch",
    "validation every 3 steps",
    "accumulation of 2, validation every 3, the three best",
    "every step",
    "the three best",
    "early stopping within epochs",
    "a cross-encoder with dropout",
    "a dual encoder over groups",
    "several sources",
    "several sources, mixed",
)
MINING = tuple(name for name in VARIANTS if "negatives" in name or "miner" in name)


def _run(args: list[str], output: Path, environment: dict[str, str]) -> None:
    """In the process of a child."""
    os.setsid()
    os.environ.update(environment)
    told = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(told, 1)
    os.dup2(told, 2)
    torch.set_num_threads(1)
    # Of data workers, as in a program of its own.
    multiprocessing.set_start_method("fork", force=True)
    code = 1
    try:
        code = ltr(args)
    except Exception:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def exit_code(process: subprocess.Popen | multiprocessing.process.BaseProcess) -> int | None:
    """None while it runs."""
    return process.poll() if isinstance(process, subprocess.Popen) else process.exitcode


class Child:
    """``ltr fit`` in a process group of its own: forked from a server that has imported everything,
    or a new program.
    """

    def __init__(self, args: list[str], output: Path, processes: int = 1) -> None:
        self.output = output
        if processes > 1:
            command = [sys.executable, "-m", "ltr", *args]
            with open(output, "w") as told:
                self.process = subprocess.Popen(
                    command, stdout=told, stderr=subprocess.STDOUT, start_new_session=True
                )
        else:
            environment = dict(os.environ)
            self.process = forkserver().Process(target=_run, args=(args, output, environment))
            self.process.start()
        self.pid = self.process.pid

    def send(self, by: signal.Signals) -> None:
        """To the whole group, as terminals and clusters send it."""
        try:
            os.killpg(self.pid, by)
        except ProcessLookupError:  # it has not yet begun, or is over
            if self.exit_code() is None:
                os.kill(self.pid, by)

    def until(self, file: Path) -> None:
        """Return when the run has written a file, as ``tests.faults.WaitAt`` does."""
        until(file.exists, self.exit_code, said=self.output.read_text)

    def exit_code(self) -> int | None:
        """None while it runs."""
        return exit_code(self.process)

    def end(self) -> int:
        """The exit code; negative for a signal."""
        until(lambda: self.exit_code() is not None)
        return self.exit_code()

    def end_after(
        self, seconds: float, by: signal.Signals = signal.SIGKILL, within: Path | None = None
    ) -> int:
        """The exit code (negative for a signal) of a process that is ended if it is not done by
        then.

        Where a file is named, it is ended a moment after the file is next there. One that is still
        there a minute after the signal is killed: 1.
        """
        latest = time.monotonic() + seconds
        sent = False
        while (code := self.exit_code()) is None:
            late = time.monotonic() - latest
            if late > 0 and not sent and (within is None or within.exists()):
                time.sleep(0.0 if within is None else random.uniform(0, 0.8))
                self.send(by)
                sent = True
                latest = time.monotonic()
            elif sent and late > 60:
                self.send(signal.SIGKILL)
                return 1
            time.sleep(0.005)
        return code


def waiting(file: Path, step: int = 0, within: str = "step") -> dict:
    """The configuration of a callback that writes a file at a moment, and takes its time there."""
    return kind("tests.faults.WaitAt", file=str(file), step=step, within=within)


def start(run: Path, config: Path) -> list[str]:
    """What a job script would run, first or again."""
    words = ["fit", "--config", str(config), "--trainer.default_root_dir", str(run)]
    return [*words, "--ckpt_path", "last"]


def torn(run: Path) -> list[str]:
    """Files of a run that can't be read."""
    found = []
    for file in run.rglob("*"):
        try:
            if file.suffix == ".ckpt":
                torch.load(file, weights_only=True)
            elif file.suffix in (".json", ".yaml"):
                yaml.safe_load(file.read_text())
            elif file.suffix == ".npy" and file.parent.name.startswith("step="):
                np.load(file)
        except Exception as error:  # whatever a torn file makes a reader stumble over
            found.append(f"{file.name}: {error}")
    return found


def survive(
    run: Path, config: Path, options: argparse.Namespace, longest: float
) -> tuple[int, int, list[str]]:
    """How often a run was ended before it was done, how often within a refresh, and what was wrong."""
    kills = 0
    within = 0
    found = []
    refreshing = run.with_name("refreshing")
    by = signal.Signals[f"SIG{options.signal}"]
    fine = {-signal.SIGKILL} if options.signal == "KILL" else {143, -signal.SIGTERM}
    if options.processes > 1:
        # One that was ended before it could ignore the signal: Lightning then kills them all.
        fine.add(-signal.SIGKILL)
    while kills < 200:
        # The first kills come early or late, the later ones less and less often: else a run would
        # never end.
        seconds = random.uniform(0, longest * (1 + kills / 10))
        refreshing.unlink(missing_ok=True)
        child = Child(start(run, config), run.with_name("output"), options.processes)
        in_refresh = options.mining and random.random() < 0.5
        code = child.end_after(seconds, by, refreshing if in_refresh else None)
        found += torn(run)
        if code == 0:
            break
        kills += 1
        within += refreshing.exists()
        if code not in fine:
            told = run.with_name("output").read_text().strip().splitlines()
            return kills, within, [*found, f"exit {code}: {told[-1] if told else ''}"]
    return kills, within, found


def main() -> int:
    """Print a line for each chain of kills; 1 if something was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument(
        "--workers", type=int, nargs="+", default=[0, 2], help="data workers of the runs, in turn"
    )
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--signal", choices=["KILL", "TERM"], default="KILL")
    parser.add_argument("--mining", action="store_true", help="of runs that mine negatives")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, metavar="VARIANT")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random.seed(options.seed)
    torch.set_num_threads(1)
    kills = 0
    refreshes = 0
    chains = 0
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LTR_CACHE"] = f"{folder}/cache"
        world = Path(folder, "world")
        world.mkdir()
        with mock.patch("sys.stderr", open(os.devnull, "w")):  # noqa: SIM115
            write_world(world)
        whole: dict[tuple, tuple[dict, float]] = {}
        while kills < options.kills:
            name = random.choice(options.variants or (MINING if options.mining else CHOSEN))
            workers = options.workers[chains % len(options.workers)]
            chain = Path(folder, f"chain{chains}")
            chain.mkdir()
            config = configured(VARIANTS[name], world)
            config["data"]["init_args"].setdefault("loading", {})["num_workers"] = workers
            if options.mining:
                slow = kind("tests.faults.SlowRefresh", file=str(chain / "refreshing"))
                config["trainer"]["callbacks"].append(slow)
            if options.processes > 1:
                config["trainer"] |= {"devices": options.processes, "strategy": "ddp"}
            file = chain / "variant.yaml"
            file.write_text(yaml.safe_dump(config))
            if (name, workers) not in whole:
                begin = time.monotonic()
                words = start(chain / "whole", file)
                code = Child(words, chain / "output", options.processes).end()
                assert code == 0, (chain / "output").read_text()
                whole[name, workers] = outcome(chain / "whole"), time.monotonic() - begin
            expected, seconds = whole[name, workers]
            ended, within, found = survive(chain / "run", file, options, seconds)
            found += list(differences(expected, outcome(chain / "run")))[:3] if not found else []
            kills += ended
            refreshes += within
            chains += 1
            wrong += bool(found)
            told = f"{ended} times ended by SIG{options.signal}, {within} in a refresh, {len(found)} differences"
            print(f"{name}, {workers} workers: {told}", *found, sep="\n    ", flush=True)
            shutil.rmtree(chain)
    print(f"{kills} times ended, {refreshes} in a refresh, {chains} runs, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
