"""The run folder of a command: the one that is named, or else a folder by the configuration's name."""

import hashlib
import json
import os
from pathlib import Path

from ltr.cli.parsed import ParsedCommand
from ltr.run.run_folder import RunFolder
from ltr.run.shipped_recipes import is_recipe


def folder_of_command(command: ParsedCommand) -> RunFolder:
    """What ``--trainer.default_root_dir`` names. Else, where the last --config is the config.yaml of
    a run, the folder of that run. Else ``runs/<experiment>/seed=<n>``, with the file's path below
    ``experiments/``, or its name; that of a recipe is its name.

    In a sweep of Weights & Biases each combination of options is an experiment,
    ``runs/<experiment>/sweep-<digest>/seed=<n>``.
    """
    options = command.options
    if options.trainer.default_root_dir:
        return RunFolder(options.trainer.default_root_dir)
    parts: tuple[str, ...] = ("unnamed",)
    if options.config:
        file = Path(os.path.relpath(str(options.config[-1])))
        run = RunFolder(file.parent)
        if file.name == run.config.name and run.checkpoints.is_dir():
            return run
        parts = file.with_suffix("").parts
        # Where ltr is installed, recipes may lie below a folder of that name.
        if "experiments" in parts[:-1] and not is_recipe(file):
            parts = parts[parts.index("experiments") + 1 :]
        else:
            parts = parts[-1:]
    if "WANDB_SWEEP_ID" in os.environ:
        plain = command.plain_options()
        combination = json.dumps([plain["model"], plain["data"], plain["trainer"]])
        digest = hashlib.sha256(combination.encode()).hexdigest()
        parts += (f"sweep-{digest[:8]}",)
    return RunFolder(Path("runs", *parts, f"seed={options.seed_everything}"))
