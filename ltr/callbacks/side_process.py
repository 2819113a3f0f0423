"""A refresh of negatives in a process of its own, while training goes on."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import lightning
from lightning.pytorch import Trainer

from ltr.errors import InputError
from ltr.module import RankerModule
from ltr.run.folder import RunFolder, write_checkpoint

# What tells a process that it is one of several, as a launcher says it.
LAUNCHED = ("LOCAL_", "RANK", "NODE_RANK", "GROUP_RANK", "WORLD_SIZE", "MASTER_", "SLURM_", "TORCHELASTIC_", "OMPI_", "PMI_")


class SideProcess:
    """``ltr mine`` with a copy of the weights, into a folder of negatives. Only the first process of a run starts one.

    Attributes:
        folder: where the negatives come to lie; None while nothing is mined.
    """

    def __init__(self) -> None:
        self.folder: Path | None = None
        self._process: subprocess.Popen | None = None

    def start(self, trainer: Trainer, module: RankerModule, folder: Path) -> None:
        """Begin to mine with the weights as they stand; an InputError if the run has no configuration, as one begun in Python."""
        run = RunFolder(trainer.default_root_dir)
        if not run.config.is_file():
            hint = "start the run by ltr fit, or leave asynchronous out"
            raise InputError(f"HardNegativeMining: a process beside the training needs {run.config}; {hint}")
        if folder.exists():  # of an earlier run in this folder
            shutil.rmtree(folder)
        beside = folder.with_name("beside")  # a folder of its own: the run's is held by the training
        beside.mkdir(parents=True, exist_ok=True)
        weights = {name: value for name, value in module.state_dict().items() if name.startswith(("ranker.", "miner."))}
        checkpoint = {"state_dict": weights, "pytorch-lightning_version": lightning.__version__}
        write_checkpoint(checkpoint, beside / "weights.ckpt")
        options = {
            "config": run.config,
            "ckpt_path": beside / "weights.ckpt",
            "output": folder,
            "trainer.default_root_dir": beside,
            "trainer.devices": 1,
            "trainer.num_nodes": 1,
            "trainer.strategy": "auto",
            "trainer.logger": "false",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        alone = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHED)}
        with open(beside / "mine.log", "w") as log:
            command = [sys.executable, "-m", "ltr", "mine", *words]
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=alone)
        self.folder = folder

    def is_done(self) -> bool:
        """Whether the negatives are there; an InputError if the process has failed."""
        assert self._process is not None and self.folder is not None, "it was started"
        code = self._process.poll()
        if code:
            log = self.folder.with_name("beside") / "mine.log"
            last = (log.read_text().strip().splitlines() or ["it said nothing"])[-1]
            raise InputError(f"HardNegativeMining: the process beside the training ended with code {code}: {last} ({log})")
        return code == 0 or self.folder.exists()  # it is whole or absent; the process then only has to end

    def end(self) -> None:
        """End the process, if it runs, and forget it."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        if self.folder is not None:
            self.folder.with_name("beside").joinpath("weights.ckpt").unlink(missing_ok=True)
        self.folder = self._process = None
