"""The Lightning command line of rankers: ``fit``, ``validate``, ``test``, ``predict`` into a run folder."""

import argparse
import logging
import netrc
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import jsonargparse
import torch
import transformers
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import CSVLogger, Logger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only

import ltr.models
from ltr.callbacks import LastCheckpoint, RunWriter
from ltr.data.files import write_whole
from ltr.datamodules import RankingDataModule
from ltr.errors import InputError
from ltr.metrics import LOWER_IS_BETTER
from ltr.module import RankerModule

log = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"  # in the run folder
COMMANDS = ("fit", "validate", "test", "predict")


def one_line(error: BaseException) -> str | None:
    """What to tell the user of an error that is theirs to mend; None for a mistake of ours, which deserves its traceback."""
    if isinstance(error, RuntimeError) and "loading state_dict" in str(error):
        first = " ".join(str(error).split())[:200]
        return f"--ckpt_path: the checkpoint does not fit the model of this configuration: {first}…"
    if not isinstance(error, (ValueError, OSError, ImportError, MisconfigurationException, jsonargparse.ArgumentError)):
        return None
    ours = _input_error(error)
    if ours is not None:
        return str(ours)
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, jsonargparse.ArgumentError):
        # The parser also tells which other types it has tried, and repeats the whole value.
        text = re.sub(r"Does not validate against any of the Union subtypes Subtypes: \[.*?\] Errors: - ", "", text)
        text = re.sub(r" - Expected a <class 'NoneType'>.*| Given value type:.*| - Not a valid subclass of .*", "", text)
        return f"{text} (all options: ltr COMMAND --help, and with --config FILE --print_config)"
    return f"{text} (LTR_DEBUG=1 shows where)"


def _input_error(error: BaseException | None) -> InputError | None:
    """The InputError behind an error: the parser wraps what a constructor raised."""
    while error is not None and not isinstance(error, InputError):
        error = error.__cause__ or error.__context__
    return error


def run(args: list[str]) -> None:
    """Parse the arguments and run the command.

    Raises:
        InputError: for an unknown command.
    """
    if args[0] not in COMMANDS:
        raise InputError(f"the first argument must be one of {', '.join(COMMANDS)}, got {args[0]!r}; see ltr --help")
    if os.getcwd() not in sys.path:  # a loss of one's own in the working directory, also for the console script
        sys.path.insert(0, os.getcwd())
    strict = {"exit_on_error": False, "allow_abbrev": False}
    transformers.utils.logging.disable_progress_bar()  # for what takes a tenth of a second
    try:
        RankerCLI(
            RankerModule,
            RankingDataModule,
            subclass_mode_data=True,
            auto_configure_optimizers=False,
            seed_everything_default=0,
            trainer_defaults={"max_epochs": 1, "log_every_n_steps": 10, "num_sanity_val_steps": 0},
            save_config_callback=RunConfig,
            save_config_kwargs={"save_to_log_dir": False},
            parser_kwargs=strict | {command: strict for command in COMMANDS},
            args=args,
        )
    finally:
        _stop_log()


class ModelHelp(argparse.Action):
    """``--model.help [RANKER]``: the options of the model alone, with those of a ranker such as ``DualEncoder``."""

    def __init__(self, option_strings: list[str], dest: str, **_: Any) -> None:
        help = "Show the options of the model, and of a ranker if one is named, and exit."
        super().__init__(option_strings, dest, nargs="?", metavar="RANKER", default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, _: Any, value: Any, option: str | None = None) -> None:
        shown = jsonargparse.ArgumentParser(add_help=False, usage="ltr COMMAND --config FILE [--model.OPTION VALUE …]")
        name = (value or "").rpartition(".")[2]
        if value is not None and name not in ltr.models.__all__:
            raise InputError(f"--model.help takes one of {', '.join(ltr.models.__all__)}, got {value!r}")
        shown.add_class_arguments(RankerModule, "model", skip=set() if value is None else {"ranker"})
        if value is not None:
            shown.add_class_arguments(vars(ltr.models)[name], "model.ranker")
        shown.print_help()
        parser.exit()


class RunConfig(SaveConfigCallback):
    """Writes the whole configuration of a ``fit`` into its run folder."""

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            config, folder = self.config.clone(), Path(trainer.default_root_dir)
            # What belongs to this run and not to its configuration: a copy of the file elsewhere must not write here.
            config.ckpt_path = None
            for callback in (config.best, config.last):
                if Path(callback.dirpath) == folder / CHECKPOINTS:
                    callback.dirpath = None
            write_whole(folder / "config.yaml", [self.parser.dump(config, skip_unset=False)])


class RankerCLI(LightningCLI):
    """LightningCLI with a run folder: ``runs/<experiment>/seed=<n>`` unless ``--trainer.default_root_dir`` names another."""

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        self.config = parser.parse_args(args)

    def instantiate_classes(self) -> None:
        with self._options_by_path():
            super().instantiate_classes()

    def _run_subcommand(self, subcommand: str) -> None:
        with self._options_by_path():
            super()._run_subcommand(subcommand)

    @contextmanager
    def _options_by_path(self) -> Iterator[None]:
        """An error inside names an option by its path in the configuration: ``data.depth`` for ``depth``."""
        try:
            yield
        except Exception as error:
            ours = _input_error(error)
            if ours is not None and ours.option is not None:
                ours.option = _path_of(ours, self.config[self.subcommand])
            raise

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument("--model.help", action=ModelHelp)
        # The data lays out what the ranker reads, and looks at nothing else of the model.
        parser.link_arguments(
            "model", "data.init_args.reads", compute_fn=lambda module: module.ranker.reads, apply_on="instantiate"
        )
        parser.add_lightning_class_args(ModelCheckpoint, "best")
        parser.set_defaults({"best.monitor": "val/nDCG@10", "best.mode": "max", "best.filename": "best"})
        off = ("auto_insert_metric_name", "enable_version_counter", "save_on_train_epoch_end")
        parser.set_defaults({f"best.{option}": False for option in off})
        parser.add_lightning_class_args(LastCheckpoint, "last")
        parser.add_argument(
            "--wandb",
            type=str | None,
            default=None,
            help="Weights & Biases project to log to; offline where there is no key or WANDB_MODE says so.",
        )

    def before_instantiate_classes(self) -> None:
        config = self.config[self.subcommand]
        folder = Path(config.trainer.default_root_dir or _run_folder(config))
        config.trainer.default_root_dir = str(folder)
        _start_log(folder / "train.log")
        for callback in (config.best, config.last):
            callback.dirpath = callback.dirpath or str(folder / CHECKPOINTS)
        best = Path(config.best.dirpath) / f"{config.best.filename}.ckpt"
        written = {"best": best, "last": Path(config.last.dirpath) / "last.ckpt"}
        present = any(file.is_file() for file in written.values())
        if config.ckpt_path in written:
            found = written[config.ckpt_path]
            if not found.is_file():
                raise InputError(f"--ckpt_path {config.ckpt_path}: there is no {found}; leave it out, or name a checkpoint file")
            config.ckpt_path = str(found)
        if config.ckpt_path:
            _check_checkpoint(config.ckpt_path)
        elif self.subcommand == "fit":
            if present and _is_rank_0():
                raise InputError(
                    f"{folder} already holds a run; go on with it (--ckpt_path last), choose another folder "
                    "(--trainer.default_root_dir), or remove it"
                )
        elif present:
            raise InputError(
                f"{folder} holds trained weights; say which to take (--ckpt_path best or last), or choose another folder "
                "(--trainer.default_root_dir) for those that the model starts from"
            )
        else:
            log.warning("no --ckpt_path: the weights that the model starts from are used, not trained ones")

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        config = self.config_init[self.subcommand]
        folder = Path(config.trainer.default_root_dir)
        if config.trainer.logger in (None, True):
            kwargs["logger"] = _loggers(folder, config.wandb)
        callbacks = [*(config.trainer.callbacks or []), RunWriter()]
        if kwargs.get("logger") and self.subcommand == "fit":
            callbacks.append(LearningRateMonitor())
        return super().instantiate_trainer(callbacks=callbacks, **kwargs)

    def before_fit(self) -> None:
        known = [f"val/{metric.measure}" for metric in self.model.measures]
        best = self.config.fit.best
        if known and best.monitor is not None and best.monitor.startswith("val/") and best.monitor not in known:
            raise InputError(f"best.monitor must be one of the measures {', '.join(known)}, got {best.monitor!r}")
        mode = "min" if best.monitor in [f"val/{name}" for name in LOWER_IS_BETTER] else "max"
        if best.monitor in known and best.mode != mode:
            raise InputError(f"best.mode must be {mode!r} for {best.monitor}, got {best.mode!r}; else the worst is kept")

    def _parse_ckpt_path(self) -> None:
        """Nothing: the configuration at hand says the model; a checkpoint that does not fit it is an error, not a wish."""


def _path_of(error: InputError, config: jsonargparse.Namespace) -> str | None:
    """The path of the error's option as the command line takes it, or the option itself where its place is not certain."""
    keys = {key.replace(".init_args", ""): value for key, value in vars(config.as_flat()).items()}
    paths = {".".join(parts[:end]) for parts in (key.split(".") for key in keys) for end in range(1, len(parts) + 1)}
    found = [path for path in paths if path == error.option or path.endswith(f".{error.option}")]
    if len(found) > 1:  # the one whose class has raised the error
        raisers = {type(frame.f_locals.get("self")).__name__ for frame, _ in traceback.walk_tb(error.__traceback__)}
        classes = keys | {"model.class_path": RankerModule.__name__}
        owners = [str(classes.get(f"{path.rpartition('.')[0]}.class_path")) for path in found]
        found = [path for path, owner in zip(found, owners, strict=True) if owner.rpartition(".")[2] in raisers]
    return found[0] if len(found) == 1 else error.option


def _run_folder(config: jsonargparse.Namespace) -> Path:
    """``runs/<experiment>/seed=<n>``: the experiment is named by the last --config, as a path below ``experiments``."""
    parts: tuple[str, ...] = ("unnamed",)
    if config.config:
        parts = Path(os.path.relpath(str(config.config[-1]))).with_suffix("").parts
        parts = parts[parts.index("experiments") + 1 :] if "experiments" in parts else parts[-1:]
    return Path("runs", *parts, f"seed={config.seed_everything}")


def _check_checkpoint(path: str) -> None:
    if "://" in path:
        return
    if not Path(path).is_file():
        raise InputError(f"--ckpt_path {path}: there is no such file")
    try:
        keys = torch.load(path, map_location="cpu", weights_only=True, mmap=True).keys()
    except Exception as error:  # whatever a broken file makes the reader stumble over
        raise InputError(f"--ckpt_path {path}: the checkpoint can't be read ({type(error).__name__}); take another one") from None
    if "state_dict" not in keys:
        raise InputError(f"--ckpt_path {path}: this is no Lightning checkpoint, it has no state_dict")


def _loggers(folder: Path, wandb_project: str | None) -> list[Logger]:
    loggers: list[Logger] = [CSVLogger(folder, name="logs")]  # a version for every start: a resumed run erases nothing
    if wandb_project:
        offline = "WANDB_MODE" not in os.environ and not _has_wandb_key()
        if offline:
            log.info("Weights & Biases: no key found, logging offline into %s", folder / "wandb")
        folder.mkdir(parents=True, exist_ok=True)
        name = "/".join(folder.parts[-3:])
        loggers.append(WandbLogger(name=name, save_dir=folder, project=wandb_project, offline=offline))
    return loggers


def _has_wandb_key() -> bool:
    """Whether ``wandb login`` was run here, or the environment holds a key."""
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return "WANDB_API_KEY" in os.environ or netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _is_rank_0() -> bool:
    return rank_zero_only.rank == 0  # type: ignore[attr-defined]  # Lightning sets it without declaring it


def _start_log(path: Path) -> None:
    """Messages of the project and warnings go to the terminal, and these and Lightning's to a file; rank 0 speaks for all."""
    if not _is_rank_0():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    file, terminal = logging.FileHandler(path, encoding="utf-8"), logging.StreamHandler()
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    terminal.setFormatter(logging.Formatter("%(message)s"))
    logging.captureWarnings(True)
    logging.getLogger("ltr").setLevel(logging.INFO)
    for name, handlers in (("ltr", (file, terminal)), ("py.warnings", (file, terminal)), ("lightning.pytorch", (file,))):
        for handler in handlers:
            logging.getLogger(name).addHandler(handler)


def _stop_log() -> None:
    logging.captureWarnings(False)
    for name in ("ltr", "py.warnings", "lightning.pytorch"):
        logger = logging.getLogger(name)
        for handler in [h for h in logger.handlers if isinstance(h, logging.FileHandler) or name != "lightning.pytorch"]:
            logger.removeHandler(handler)
            handler.close()
