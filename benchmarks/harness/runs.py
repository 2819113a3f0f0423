"""Train and test configurations by the command line, into run folders; a run that is there already is read."""

import contextlib
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import torch

from ltr.__main__ import main as ltr


class Run(NamedTuple):
    """One training and its test.

    Attributes:
        config: the configuration.
        seed: of everything.
        fold: of the data, or None.
        options: further ones of ``ltr fit``.
        runs: the folder of run folders.
    """

    config: Path
    seed: int
    fold: int | None = None
    options: tuple[str, ...] = ()
    runs: Path = Path("runs", "features")

    @property
    def folder(self) -> Path:
        """``RUNS/NAME[/fold=K]/seed=N``."""
        return Path(self.runs, self.config.stem, *([] if self.fold is None else [f"fold={self.fold}"]), f"seed={self.seed}")


def train(run: Run) -> Path:
    """Fit and test, unless the run is there; returns its folder.

    Raises:
        RuntimeError: with the last line of the output, if either fails.
    """
    folder = run.folder
    if not (folder / "test.run").is_file():
        torch.set_num_threads(1)
        shutil.rmtree(folder, ignore_errors=True)  # the seconds of an interrupted run would be those of its last part
        folder.mkdir(parents=True)
        quiet = ["--trainer.default_root_dir", str(folder), "--trainer.enable_progress_bar", "false"]
        which = [] if run.fold is None else ["--data.init_args.fold", str(run.fold)]
        with open(folder / "output.txt", "w") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
            code = ltr(["fit", "--config", str(run.config), "--seed_everything", str(run.seed), *which, *run.options, *quiet])
            code = code or ltr(["test", "--config", str(folder / "config.yaml"), "--ckpt_path", "best"])
        if code:
            raise RuntimeError(f"{folder}: {(folder / 'output.txt').read_text().splitlines()[-1]}")
    return folder


def train_all(runs: Sequence[Run], jobs: int | None = None) -> None:
    """Train what is missing, ``jobs`` at a time in processes of one thread (as many as cores; with 1: in this process)."""
    os.environ["OMP_NUM_THREADS"] = "1"
    if jobs == 1:
        for run in runs:
            train(run)
        return
    context = get_context("forkserver")
    context.set_forkserver_preload(["ltr.cli", "ltr.datamodules", "ltr.module"])
    with ProcessPoolExecutor(jobs or os.cpu_count(), mp_context=context) as pool:
        for number, future in enumerate(as_completed([pool.submit(train, run) for run in runs]), 1):
            print(f"{number}/{len(runs)} {future.result()}", end="\r", flush=True)
    print()
