"""What a run is: the options that decide what it learns. A resume under others would be another
run.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ltr.errors import InputError

# Options that a resumed run may change: where it runs, how fast, how it is measured, and how large
# its steps are. They are named by their paths below ``model`` and ``data``, without ``init_args``.
MODEL_STEPS = {"lr", "weight_decay", "warmup", "decay"}
# These change nothing of what is learnt, so they may also differ between the seeds of an experiment.
MODEL_MEASURES_AND_SPEED = {
    "metrics",
    "empty",
    "max_grade",
    "ranker.encoder.max_tokens",
    "ranker.encoder.keep_tokens",
    "ranker.encoder.kernels",
    "ranker.encoder.compile",
    "miner.encoder.max_tokens",
    "miner.encoder.keep_tokens",
    "miner.encoder.kernels",
    "miner.encoder.compile",
}
MODEL_MAY_CHANGE = MODEL_STEPS | MODEL_MEASURES_AND_SPEED
DATA_SPEED = {
    "eval_batch_size",
    "evaluation.batch_size",
    "loading.num_workers",
    "loading.persistent_workers",
}
DATA_MAY_CHANGE = DATA_SPEED | {
    "evaluation.candidates",
    "evaluation.depth",
    "evaluation.index",
}
# These decide what a run learns, but ``identity`` leaves them out. The data module compares the
# content of the files and the steps of an epoch when it takes its state from a checkpoint: a path
# does not say what is in the files.
DATA_COMPARED_ELSEWHERE = {"path", "batch_size", "groups"}
# All other options of the trainer may change, and all other callbacks.
DECIDING_TRAINER_OPTIONS = ("accumulate_grad_batches", "overfit_batches")
DECIDING_CALLBACKS = ("LossSchedule", "HardNegativeMining")

PATH_STARTS = ("/", "./", "../", "~")


def identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options that make a run what it is, by their paths.

    Args:
        config: the whole configuration of ``fit``, as plain dicts, lists and values.
    """
    trainer = config["trainer"]
    options = {"seed_everything": config["seed_everything"]}
    for path, value in flat_options(config["model"]):
        if path not in MODEL_MAY_CHANGE:
            options[f"model.{path}"] = without_parents(value)
    for path, value in flat_options(config["data"]):
        if path not in DATA_MAY_CHANGE | DATA_COMPARED_ELSEWHERE:
            options[f"data.{path}"] = without_parents(value)
    for name in DECIDING_TRAINER_OPTIONS:
        options[f"trainer.{name}"] = trainer[name]
    callbacks = _callbacks_of_identity(trainer["callbacks"] or [])
    if callbacks:
        options["trainer.callbacks"] = callbacks
    return options


def _callbacks_of_identity(callbacks: Any) -> list[Any]:
    """The callbacks that a resume may not change, of a list of callbacks or a single one."""
    if not isinstance(callbacks, list):
        callbacks = [callbacks]
    deciding = []
    for callback in callbacks:
        class_name = class_path_of(callback).rpartition(".")[2]
        # Also one of a user's that is named after its parent class.
        if any(name in class_name for name in DECIDING_CALLBACKS):
            deciding.append(callback)
    return deciding


def class_path_of(callback: Any) -> str:
    """The class of a callback of a configuration: a class path, or a dict of it with its options."""
    return str(callback["class_path"] if isinstance(callback, dict) else callback)


def flat_options(options: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The path and the value of every leaf of nested options. ``init_args`` adds nothing to a path.

    Args:
        options: a dict, or a leaf.
        path: of ``options``, with a dot at its end; empty at the top.
    """
    if not isinstance(options, dict) or not options:
        yield path.removesuffix("."), options
        return
    for name, value in options.items():
        if name == "init_args":
            yield from flat_options(value, path)
        else:
            yield from flat_options(value, f"{path}{name}.")


def without_parents(value: Any) -> Any:
    """The last name of a path, since a folder may be mounted elsewhere; any other value as it is."""
    if isinstance(value, str) and value.startswith(PATH_STARTS):
        return _last_name(value)
    return value


def ranker_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The part of an identity that decides how texts are scored, and so what a checkpoint's weights
    mean. Dropout is none of it: it acts in training alone.
    """
    part = {}
    for path, value in options.items():
        if path.startswith("model.ranker") and not path.endswith("encoder.dropout"):
            part[path] = value
    return part


def check_same(now: Mapping[str, Any], then: Mapping[str, Any], path: str, hint: str) -> None:
    """Check that a checkpoint comes from a run with this identity.

    Args:
        now: the identity of this configuration.
        then: that of the checkpoint; empty where it says none.
        path: the checkpoint.
        hint: what to do otherwise.

    Raises:
        InputError: if not; it names the options that differ.
    """
    if not then:
        return
    changes = []
    for name in sorted({*now, *then}):
        value = now.get(name)
        value_then = then.get(name)
        if not are_same(name, value, value_then):
            changes.append(f"{name} was {value_then!r} and is {value!r}")
    if changes:
        more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
        raise InputError(
            f"{path} comes from another configuration: {', '.join(changes[:3])}{more}; {hint}"
        )


def are_same(name: str, now: Any, then: Any) -> bool:
    """Whether two values of an option are the same.

    An identity holds a path like ``runs/neg`` whole, and one like ``/mine/runs/neg`` by its last
    name, ``neg``. Below ``data`` the two are taken for the same.
    """
    if now == then:
        return True
    if not name.startswith("data.") or not isinstance(now, str) or not isinstance(then, str):
        return False
    return now == _last_name(then) or then == _last_name(now)


def _last_name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
