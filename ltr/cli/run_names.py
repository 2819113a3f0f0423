"""What a run is called: its folder where none is named, and the classes that it is made of."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import jsonargparse

from ltr.in_batch import OwnLists
from ltr.run.run_folder import RunFolder


def folder_by_name(config: jsonargparse.Namespace, plain: dict[str, Any]) -> Path:
    """Where the last --config is the config.yaml of a run, the folder of that run. Else
    ``runs/<experiment>/seed=<n>``, with the file's path below ``experiments/``, or its name.

    In a sweep of Weights & Biases each combination of options is an experiment,
    ``runs/<experiment>/sweep-<digest>/seed=<n>``.
    """
    parts: tuple[str, ...] = ("unnamed",)
    if config.config:
        file = Path(os.path.relpath(str(config.config[-1])))
        run = RunFolder(file.parent)
        if file.name == run.config.name and run.checkpoints.is_dir():
            return run.path
        parts = file.with_suffix("").parts
        if "experiments" in parts[:-1]:
            parts = parts[parts.index("experiments") + 1 :]
        else:
            parts = parts[-1:]
    if "WANDB_SWEEP_ID" in os.environ:
        options = json.dumps([plain["model"], plain["data"], plain["trainer"]])
        digest = hashlib.sha256(options.encode()).hexdigest()
        parts += (f"sweep-{digest[:8]}",)
    return Path("runs", *parts, f"seed={config.seed_everything}")


def class_names(config: jsonargparse.Namespace) -> list[str]:
    """The class names of ranker, loss, margin, in-batch policy and data. Parts that are None are
    left out, and OwnLists, the in-batch policy that adds nothing.
    """
    model = config.model
    parts = (model.ranker, model.loss, model.margin, model.in_batch, config.data)
    return [type(part).__name__ for part in parts if not isinstance(part, OwnLists | None)]
