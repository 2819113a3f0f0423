"""Train and test the cells of a grid by the command line, into run folders; a run that is there
already is read.
"""

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
from ltr.grid.definition import Cell, Grid


class Run(NamedTuple):
    """One training and its test.

    Attributes:
        grid: that the cell is of.
        cell: the options and the seed.
        fold: of the data, or None.
        options: further ones of ``ltr fit``.
        runs: the folder of run folders.
    """

    grid: Grid
    cell: Cell
    fold: int | None = None
    options: tuple[str, ...] = ()
    runs: Path = Path("runs")

    @property
    def folder(self) -> Path:
        """``RUNS/GRID[/fold=K]/NAME/seed=N``."""
        folder = self.runs / self.grid.name
        if self.fold is not None:
            folder = folder / f"fold={self.fold}"
        return folder / self.cell.folder

    def fit_words(self) -> list[str]:
        """The command line after ``ltr``."""
        words = ["fit"]
        for file in self.grid.base:
            words += ["--config", str(file)]
        words += ["--seed_everything", str(self.cell.seed), *self.cell.words()]
        if self.fold is not None:
            words += ["--data.init_args.fold", str(self.fold)]
        words += self.options
        words += ["--trainer.default_root_dir", str(self.folder)]
        return [*words, "--trainer.enable_progress_bar", "false"]


def train(run: Run) -> Path:
    """Fit and test, unless the run is there; returns its folder.

    Raises:
        RuntimeError: with the last line of the output, if either fails.
    """
    folder = run.folder
    if (folder / "test.run").is_file():
        return folder
    torch.set_num_threads(1)
    # An interrupted run begins anew: resumed, its seconds would be those of its last part.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    output = folder / "output.txt"
    with (
        open(output, "w") as file,
        contextlib.redirect_stdout(file),
        contextlib.redirect_stderr(file),
    ):
        code = ltr(run.fit_words())
        if not code:
            code = ltr(["test", "--config", str(folder / "config.yaml"), "--ckpt_path", "best"])
    if code:
        raise RuntimeError(f"{folder}: {output.read_text().splitlines()[-1]}")
    return folder


def train_all(runs: Sequence[Run], jobs: int | None = None) -> None:
    """Train what is missing, ``jobs`` at a time in processes of one thread (as many as cores; with
    1: in this process).
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    if jobs == 1:
        for run in runs:
            train(run)
        return
    context = get_context("forkserver")
    context.set_forkserver_preload(["ltr.cli", "ltr.datamodules", "ltr.module"])
    with ProcessPoolExecutor(jobs or os.cpu_count(), mp_context=context) as pool:
        futures = [pool.submit(train, run) for run in runs]
        for number, future in enumerate(as_completed(futures), start=1):
            print(f"{number}/{len(runs)} {future.result()}", end="\r", flush=True)
    print()
