"""``config.yaml`` of a run: what its entries are that are read again. It is read here, but for the
parser of the command line.
"""

from pathlib import Path
from typing import Any, NotRequired, TypedDict

from ltr.entries import check_entries
from ltr.errors import InputError
from ltr.run.yaml_files import read_yaml


class ClassEntry(TypedDict):
    """A class with its options."""

    class_path: str
    init_args: NotRequired[dict[str, Any] | None]


class DataOptionsEntry(TypedDict):
    """The options of a data module that are read again."""

    path: NotRequired[str | list[Any] | None]  # a list: of several sources
    evaluation: NotRequired[dict[str, Any] | None]


class DataEntry(TypedDict):
    """A data module with its options."""

    class_path: str
    init_args: NotRequired[DataOptionsEntry]


class ModelEntry(TypedDict):
    """The options of :class:`ltr.module.RankerModule` that are read again."""

    ranker: ClassEntry | str
    loss: NotRequired[ClassEntry | str]
    margin: NotRequired[ClassEntry | str | None]
    in_batch: NotRequired[ClassEntry | str | None]


class BestEntry(TypedDict):
    """See :class:`ltr.run.checkpoint_options.BestOptions`."""

    monitor: str | None
    save_top_k: NotRequired[int]


class TrainerEntry(TypedDict):
    """The options of Lightning's trainer that are read again."""

    precision: NotRequired[str | int | None]
    devices: NotRequired[list[int] | int | str]
    num_nodes: NotRequired[int]
    callbacks: list[ClassEntry | str] | ClassEntry | str | None
    accumulate_grad_batches: int
    overfit_batches: float
    max_epochs: NotRequired[int | None]
    max_steps: NotRequired[int]
    max_time: NotRequired[dict[str, int] | str | None]


class Configuration(TypedDict):
    """The whole file: the options of ``ltr fit``."""

    seed_everything: int | bool
    model: ModelEntry
    data: DataEntry
    trainer: TrainerEntry
    best: NotRequired[BestEntry]
    init_from: NotRequired[str | None]


MEND = "restore it"

# The other names that Lightning has for a precision; none stands for the first of them.
PRECISIONS = {"None": "32-true", "32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}


def full_precision_name(precision: str | int | None) -> str:
    """The full name of a precision: ``32-true`` for 32, and for None."""
    return PRECISIONS.get(str(precision), str(precision))


def read_config(file: Path) -> dict[str, Any]:
    """The options in ``config.yaml`` of a run. A precision has its full name.

    Raises:
        InputError: if the file is damaged, or an entry is not what it must be.
    """
    options = read_yaml(file)
    if options is None:
        raise InputError(
            f"{file}: the file must hold the options of a run, and holds nothing; {MEND}"
        )
    check_entries(options, Configuration, file, MEND)
    trainer = options["trainer"]
    trainer["precision"] = full_precision_name(trainer.get("precision"))
    return options
