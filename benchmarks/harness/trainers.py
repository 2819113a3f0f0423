"""What the trainings beside those of sentence-transformers share."""

import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from torch.utils.data import Sampler


class InOrder(Sampler):
    """Batches as they stand in the data set, for sentence-transformers."""

    def __init__(self, dataset, batch_size: int, drop_last: bool, **_: object) -> None:
        self.n = len(dataset)
        self.size = batch_size

    def __len__(self) -> int:
        return self.n // self.size

    def __iter__(self) -> Iterator[list[int]]:
        for begin in range(0, self.n, self.size):
            yield list(range(begin, begin + self.size))

    def set_epoch(self, epoch: int) -> None:
        """They are the same in each."""


def quiet_trainer(**options: Any) -> Trainer:
    """Lightning's, without files and lines; on a CPU, unless the options say otherwise."""
    quiet = {
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return Trainer(devices=1, default_root_dir=tempfile.gettempdir(), **quiet | options)


def training_arguments(
    folder: Path, batch: int, lr: float, warm_up: float, decay: float, seed: int
) -> dict[str, Any]:
    """Of a trainer of sentence-transformers: one epoch over batches as they stand, with its AdamW
    and no clipping.
    """
    return {
        "output_dir": str(folder / "output"),
        "num_train_epochs": 1,
        "per_device_train_batch_size": batch,
        "learning_rate": lr,
        "warmup_steps": warm_up,
        "weight_decay": decay,
        "max_grad_norm": 0.0,
        "batch_sampler": InOrder,
        "seed": seed,
        "use_cpu": True,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def absent_peers() -> list[str]:
    """The modules that the trainers of sentence-transformers need and that are not installed."""
    return [name for name in ("datasets", "accelerate") if find_spec(name) is None]


def silence() -> None:
    """Only the table is of interest."""
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "sentence_transformers", "ltr"):
        logging.getLogger(name).setLevel(logging.ERROR)
    os.environ.update(HF_DATASETS_DISABLE_PROGRESS_BARS="1", TOKENIZERS_PARALLELISM="false")
