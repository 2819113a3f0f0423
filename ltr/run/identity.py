"""What a run is: the options that decide what it learns. A resume under others would be another
run.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ltr.errors import InputError

# Options that a resumed run may change: where it runs, how fast, how it is measured, and how large
# its steps are.
MODEL_FREE = {"lr", "weight_decay", "warmup", "decay", "metrics", "empty", "max_grade"}
RANKER_FREE = {"encoder.max_tokens", "encoder.keep_tokens", "encoder.kernels", "encoder.compile"}
# Content, batch sizes and files are compared by the data module itself, with what is in them.
DATA_FREE = {
    "path",
    "batch_size",
    "groups",
    "eval_batch_size",
    "evaluation.candidates",
    "evaluation.depth",
    "evaluation.index",
    "evaluation.batch_size",
    "loading.num_workers",
    "loading.persistent_workers",
}
TRAINER = ("accumulate_grad_batches", "overfit_batches")
PATHS = ("/", "./", "../", "~")


def identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options that make a run what it is, by their paths.

    Args:
        config: the whole configuration of ``fit``, as plain dicts, lists and values.
    """
    found = {"seed_everything": config["seed_everything"]}
    found |= {
        f"model.{name}": value for name, value in _flat(config["model"]) if name not in MODEL_FREE
    }
    found |= {
        f"data.{name}": value for name, value in _flat(config["data"]) if name not in DATA_FREE
    }
    found |= {f"trainer.{name}": config["trainer"][name] for name in TRAINER}
    callbacks = config["trainer"]["callbacks"] or []
    given = callbacks if isinstance(callbacks, list) else [callbacks]
    deciding = [
        one
        for one in given
        if any(name in str(one) for name in ("LossSchedule", "HardNegativeMining"))
    ]
    found |= {"trainer.callbacks": deciding} if deciding else {}
    free = {f"model.{part}.{name}" for part in ("ranker", "miner") for name in RANKER_FREE}
    return {name: value for name, value in found.items() if name not in free}


def _flat(options: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every option below one, without the ``init_args`` in between."""
    if not isinstance(options, dict) or not options:
        # A folder is known by its name: it may be mounted elsewhere.
        name = (
            options.rstrip("/").rpartition("/")[2]
            if isinstance(options, str) and options.startswith(PATHS)
            else options
        )
        yield path.removesuffix("."), name
        return
    for name, value in options.items():
        yield from _flat(value, path if name == "init_args" else f"{path}{name}.")


def of_ranker(found: Mapping[str, Any]) -> dict[str, Any]:
    """The part that decides how texts are scored, and so what a checkpoint's weights mean."""
    return {
        k: v
        for k, v in found.items()
        if k.startswith("model.ranker") and not k.endswith("encoder.dropout")
    }


def check_same(now: Mapping[str, Any], then: Mapping[str, Any], path: str, hint: str) -> None:
    """Check that a checkpoint comes from what is at hand.

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
    differ = [name for name in sorted({*now, *then}) if now.get(name) != then.get(name)]
    if differ:
        told = [f"{name} was {then.get(name)!r} and is {now.get(name)!r}" for name in differ[:3]]
        more = f" and {len(differ) - 3} more" if len(differ) > 3 else ""
        raise InputError(
            f"{path} comes from another configuration: {', '.join(told)}{more}; {hint}"
        )
