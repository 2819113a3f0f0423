"""What a run is: the options that decide what it learns. A resume under others would be another
run.
"""

from collections.abc import Mapping
from typing import Any

from ltr.errors import InputError
from ltr.run.same_options import (
    are_same,
    as_taken,
    deciding_callbacks,
    deciding_options,
    last_name_of_path,
    named_instead_of_auto,
)


def identity_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options that make a run what it is, by their paths. The content of the data and the steps
    of an epoch are none of it: the data module compares them when it takes its state from a
    checkpoint.

    Args:
        config: the whole configuration of ``fit``, as plain dicts, lists and values.
    """
    options = {}
    deciding = deciding_options(config, "resume") | deciding_callbacks(config, "resume")
    for path, value in deciding.items():
        options[path] = last_name_of_path(value)
    return as_taken(options, {})


def ranker_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The part of an identity that decides how texts are scored, and so what a checkpoint's weights
    mean. Dropout is none of it: it acts in training alone.
    """
    part = {}
    for path, value in options.items():
        if path.startswith("model.ranker") and not path.endswith("encoder.dropout"):
            part[path] = value
    return part


def check_identity(
    ours: Mapping[str, Any], of_checkpoint: Mapping[str, Any], file: str, hint: str
) -> None:
    """Check that a checkpoint comes from a run with this identity.

    Args:
        ours: the identity of this configuration.
        of_checkpoint: that of the checkpoint; empty where it says none.
        file: the checkpoint.
        hint: what to do otherwise.

    Raises:
        InputError: if not; it names the options that differ.
    """
    if not of_checkpoint:
        return
    ours, of_checkpoint = (
        as_taken(ours, named_instead_of_auto(of_checkpoint)),
        as_taken(of_checkpoint, named_instead_of_auto(ours)),
    )
    changes = []
    for path in sorted({*ours, *of_checkpoint}):
        value = ours.get(path)
        value_before = of_checkpoint.get(path)
        if not are_same(path, value, value_before):
            changes.append(f"{path} was {value_before!r} and is {value!r}")
    if changes:
        more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
        raise InputError(
            f"{file} comes from another configuration: {', '.join(changes[:3])}{more}; {hint}"
        )
