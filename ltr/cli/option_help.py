"""``--help`` of the commands that take a configuration: ltr's own options first, Lightning's in a line
each, and nothing that is refused.
"""

import re
from argparse import SUPPRESS, Action, ArgumentParser

from jsonargparse import DefaultHelpFormatter
from jsonargparse._actions import _ActionConfigLoad, _ActionHelpClassPath
from jsonargparse._typehints import ActionTypeHint, get_all_subclass_paths

from ltr.cli.refused import PACKAGE_OF_PART
from ltr.run.trainer_checks import REFUSED

# Bases of others, and what is refused or does not work here: see docs/runs.md.
NO_CHOICE = {kind.__name__ for kind in REFUSED} | {
    "BaseFinetuning",
    "BasePredictionWriter",
    "Callback",
    "Checkpoint",
    "DeepSpeedStrategy",
    "DummyLogger",
    "FSDPStrategy",
    "InBatch",
    "Loss",
    "Margin",
    "ModelParallelStrategy",
    "PoolDataModule",
    "ProgressBar",
    "Ranker",
    "RankingDataModule",
    "SaveConfigCallback",
    "Timer",
}
# Options that are there for Lightning, and here are refused or have no effect.
NOT_OFFERED = {
    "trainer.barebones",
    "trainer.enable_checkpointing",
    "trainer.model_registry",
    "trainer.use_distributed_sampler",
    "weights_only",
}
# Options of the trainer that only a training heeds: the helps of the other commands leave them out.
OF_TRAINING = {
    "trainer.accumulate_grad_batches",
    "trainer.check_val_every_n_epoch",
    "trainer.gradient_clip_algorithm",
    "trainer.gradient_clip_val",
    "trainer.limit_train_batches",
    "trainer.log_every_n_steps",
    "trainer.max_epochs",
    "trainer.max_steps",
    "trainer.max_time",
    "trainer.min_epochs",
    "trainer.min_steps",
    "trainer.num_sanity_val_steps",
    "trainer.val_check_interval",
}
# What an option of Lightning or jsonargparse does here, in the place of what they say of it.
HERE = {
    "ckpt_path": "The weights: best, last or a checkpoint. Of fit: the checkpoint that it resumes from.",
    "data": "The data module. Its options are --data.path and the like.",
    "seed_everything": "The seed of the run.",
}
# The line of each option of the trainer. In --help.trainer it stands before what Lightning says.
LINES = {
    "accelerator": "cpu, gpu or auto",
    "accumulate_grad_batches": "batches of a step",
    "benchmark": "let cuDNN look for its fastest kernels",
    "callbacks": "EarlyStopping, HardNegativeMining, Health",
    "check_val_every_n_epoch": "epochs between two validations",
    "default_root_dir": "the run folder; else runs/EXPERIMENT/seed=N",
    "detect_anomaly": "look for NaN in gradients; slow",
    "deterministic": "allow deterministic kernels alone",
    "devices": "how many processes or GPUs, or which",
    "enable_autolog_hparams": "log the configuration",
    "enable_model_summary": "print a table of modules",
    "enable_progress_bar": "a bar; else one on terminals alone",
    "fast_dev_run": "try some batches, and write nothing",
    "gradient_clip_algorithm": "what is clipped: norm or value",
    "gradient_clip_val": "clip gradients at this",
    "inference_mode": "measure in torch.inference_mode",
    "limit_predict_batches": "share or number of batches to rank",
    "limit_test_batches": "share or number of batches of test",
    "limit_train_batches": "share or number of batches of an epoch",
    "limit_val_batches": "share or number of batches of dev",
    "log_every_n_steps": "steps between two logged rows",
    "logger": "in place of CSV files and of --wandb",
    "max_epochs": "ends training; -1: never",
    "max_steps": "ends training; -1: never",
    "max_time": "ends training, such as 00:12:00:00",
    "min_epochs": "no early stop before",
    "min_steps": "no early stop before",
    "num_nodes": "machines",
    "num_sanity_val_steps": "-1: all of dev before training",
    "overfit_batches": "train on these batches alone",
    "plugins": "of Lightning",
    "precision": "32-true, bf16-mixed or 16-mixed",
    "profiler": "simple, advanced or pytorch",
    "reload_dataloaders_every_n_epochs": "make loaders anew",
    "strategy": "of several processes: auto or ddp",
    "sync_batchnorm": "of layers that no ranker here has",
    "val_check_interval": "steps to a validation, or share of an epoch",
}
COMMAND = ""  # the path of the options of a command itself
# The parts of the help behind the first one, in their order: by the path that their options are below.
TITLES = {
    "model": "model; all options of a class: --model.help DualEncoder, --model.loss.help LambdaLoss",
    "data": "data; all options of a class: --data.help TripletDataModule",
    "best": "best weights",
    "last": "last weights",
    COMMAND: "",
    "trainer": "trainer: Lightning's options, a line each; more on each: --help.trainer",
}
NAME_WIDTH = 33  # letters of the column of the trainer's options


class OptionHelp(DefaultHelpFormatter):
    """The help of options: which classes may be named is said by their names."""

    def __init__(self, prog: str, indent_increment: int = 2, max_help_position: int = 32) -> None:
        super().__init__(prog, indent_increment, max_help_position)

    def _get_help_string(self, action: Action) -> str:
        text = _without_roles(HERE.get(action.dest, action.help or ""))
        line = LINES.get(action.dest.removeprefix("trainer."))
        if line is not None and not text.startswith(line):
            text = f"{line[0].upper()}{line[1:]}. Lightning: {text}"
        notes = ["required"] if action.required else []
        classes = offered_classes(action)
        if classes:
            notes.append(f"one of {', '.join(classes)}")
        elif not (self._get_type_str(action) or "Literal").startswith(("Literal", "bool")):
            notes.append("type: %(type)s")
        if action.option_strings and action.default not in (None, SUPPRESS):
            notes.append("default: %(default)s")
        return f"{text} ({', '.join(notes)})" if notes else text


class CommandHelp(OptionHelp):
    """The help of a command: the options of its parts, without those that only show other helps or
    read a part from a file.
    """

    def _format_action(self, action: Action) -> str:
        if isinstance(action, _ActionHelpClassPath | _ActionConfigLoad):
            return ""
        if action.dest in NOT_OFFERED:
            return ""
        if action.dest in OF_TRAINING and not self._prog.endswith(" fit"):
            return ""
        if action.dest.startswith("trainer."):
            return self._line(action)
        return super()._format_action(action)

    def _line(self, action: Action) -> str:
        name = action.option_strings[0]
        line = LINES.get(action.dest.removeprefix("trainer."), "see --help.trainer")
        default = "" if action.default is None else f" [{action.default}]"
        return f"  {name:<{NAME_WIDTH}} {line}{default}\n"


def offered_classes(action: Action) -> list[str]:
    """The names of the classes that an option takes; none for one that takes no class."""
    if not isinstance(action, ActionTypeHint):
        return []
    names = []
    for path in get_all_subclass_paths(action._typehint, closed_types=False):
        name = path.rpartition(".")[2]
        is_ours = path.startswith("ltr.")
        is_public = any(path == f"{each.__name__}.{name}" for each in PACKAGE_OF_PART.values())
        if name not in NO_CHOICE and (is_public or not is_ours):
            names.append(name)
    return names


def arrange_help(parser: ArgumentParser, command: str) -> None:
    """Give the parts of the help of a command their order and their titles."""
    parts = ["options", *TITLES]
    places = {}
    for group in parser._action_groups:
        paths = {action.dest.partition(".")[0] for action in group._group_actions} & TITLES.keys()
        if group.title == "options" or not group._group_actions:
            part = "options"
        elif paths:
            (part,) = paths
            group.title = TITLES[part]
        else:
            part = COMMAND
            group.title = f"ltr {command}"
        places[group] = parts.index(part)
    parser._action_groups.sort(key=lambda group: places[group])


def _without_roles(text: str) -> str:
    """A text without the marks of docstrings: ``:class:`ltr.callbacks.Health``` is ltr.callbacks.Health."""
    return re.sub(r":\w+:`~?([^`]*)`", r"\1", text).replace("``", "")
