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
from ltr.grid import Cell, Grid


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
        return Path(
            self.runs,
            self.grid.name,
            *([] if self.fold is None else [f"fold={self.fold}"]),
            self.cell.folder,
        )


def train(run: Run) -> Path:
    """Fit and test, unless the run is there; returns its folder.

    Raises:
        RuntimeError: with the last line of the output, if either fails.
    """
    folder = run.folder
    if not (folder / "test.run").is_file():
        torch.set_num_threads(1)
        shutil.rmtree(
            folder, ignore_errors=True
        )  # the seconds of an interrupted run would be those of its last part
        folder.mkdir(parents=True)
        quiet = [
            "--trainer.default_root_dir",
            str(folder),
            "--trainer.enable_progress_bar",
            "false",
        ]
        which = [] if run.fold is None else ["--data.init_args.fold", str(run.fold)]
        base = [word for file in run.grid.base for word in ("--config", str(file))]
        words = [
            *base,
            "--seed_everything",
            str(run.cell.seed),
            *run.cell.words(),
            *which,
            *run.options,
            *quiet,
        ]
        with (
            open(folder / "output.txt", "w") as file,
            contextlib.redirect_stdout(file),
            contextlib.redirect_stderr(file),
        ):
            code = ltr(["fit", *words])
            code = code or ltr(
                ["test", "--config", str(folder / "config.yaml"), "--ckpt_path", "best"]
            )
        if code:
            raise RuntimeError(f"{folder}: {(folder / 'output.txt').read_text().splitlines()[-1]}")
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
        for number, future in enumerate(as_completed([pool.submit(train, run) for run in runs]), 1):
            print(f"{number}/{len(runs)} {future.result()}", end="\r", flush=True)
    print()
