"""A refresh of negatives in a process of its own, while training goes on."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import torch

from ltr.checkpoint import write_checkpoint
from ltr.errors import ENDED_BY_RUN, ENDING_SIGNALS, InputError

# Of the variables by which a launcher tells a process that it is one of several.
LAUNCHER_PREFIXES = (
    "LOCAL_",
    "RANK",
    "NODE_RANK",
    "GROUP_RANK",
    "WORLD_SIZE",
    "MASTER_",
    "SLURM_",
    "TORCHELASTIC_",
    "OMPI_",
    "PMI_",
)


BESIDE = "beside"  # the run folder of the process, in the folder of negatives


class SideProcess:
    """``ltr mine`` with a copy of the weights, into a folder of negatives. Only the first process
    of a run starts one.

    Attributes:
        folder: where the negatives come to lie; None while nothing is mined.
    """

    def __init__(self) -> None:
        self.folder: Path | None = None
        self._process: subprocess.Popen | None = None

    def start(
        self,
        config: Path,
        weights: dict[str, torch.Tensor],
        step: int,
        version: str,
        folder: Path,
        device: torch.device,
    ) -> None:
        """Begin to mine.

        Args:
            config: the configuration of the run.
            weights: of its module, as they stand.
            step: of the training, from which what is drawn at random depends.
            version: of Lightning, which a checkpoint names.
            folder: where the negatives come to lie.
            device: of the training. Where it is a GPU both share it, as the others have work too.

        Raises:
            InputError: if the run has no configuration, as one begun in Python.
        """
        if not config.is_file():
            raise InputError(
                f"HardNegativeMining: a process beside the training needs {config}; start the run by ltr fit, or leave asynchronous out"
            )
        if folder.exists():  # of an earlier run in this folder
            shutil.rmtree(folder)
        devices = "1"
        if device.type == "cuda":
            devices = f"[{device.index}]"
        # The process has a run folder of its own: that of the run is held by the training.
        run_folder = _run_folder_beside(folder)
        run_folder.mkdir(parents=True, exist_ok=True)
        checkpoint = {
            "state_dict": weights,
            "global_step": step,
            "pytorch-lightning_version": version,
        }
        write_checkpoint(checkpoint, run_folder / "weights.ckpt")
        options = {
            "config": config,
            "ckpt_path": run_folder / "weights.ckpt",
            "output": folder,
            "trainer.default_root_dir": run_folder,
            "trainer.devices": devices,
            "trainer.num_nodes": 1,
            "trainer.strategy": "auto",
            "trainer.logger": "false",
        }
        # It ends with this process, also where this one is killed: else it would hold its run folder
        # for the rest of its work, and a resume could not mine.
        command = [sys.executable, "-m", "ltr.cli.process", str(os.getpid()), "mine"]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        # It mines alone, however many processes train.
        environment = {}
        for name, value in os.environ.items():
            if not name.startswith(LAUNCHER_PREFIXES):
                environment[name] = value
        # It inherits that these signals are blocked: where they come to all processes, the run saves
        # before it ends this one.
        blocked_before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
        try:
            with open(run_folder / "mine.log", "w") as log:
                self._process = subprocess.Popen(
                    command,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    env=environment,
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)
        self.folder = folder

    def is_done(self) -> bool:
        """Whether the negatives are there; an InputError if the process has failed."""
        assert self._process is not None and self.folder is not None, "it was started"
        # The folder is whole or absent: where it is there, nothing is left for the process to do,
        # and how it ends does not matter.
        if self.folder.exists():
            return True
        code = self._process.poll()  # None while the process runs
        if code:
            log = _run_folder_beside(self.folder) / "mine.log"
            lines = log.read_text().strip().splitlines() or ["it said nothing"]
            raise InputError(
                f"HardNegativeMining: the process beside the training ended with code {code}: {lines[-1]} ({log})"
            )
        return code == 0

    def end(self) -> None:
        """End the process, if it runs, and forget it."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(ENDED_BY_RUN)
            self._process.wait()
        if self.folder is not None:
            weights = _run_folder_beside(self.folder) / "weights.ckpt"
            weights.unlink(missing_ok=True)
        self.folder = None
        self._process = None


def _run_folder_beside(folder: Path) -> Path:
    """Where the process has its configuration, weights and log."""
    return folder.with_name(BESIDE)


def is_beside_training(run_folder: Path) -> bool:
    """Whether this is the run folder of a process that mines beside a training."""
    return run_folder.name == BESIDE
