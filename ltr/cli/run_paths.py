"""The paths in the configuration of a run, seen from the working directory: the run may have been
started in another one.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from ltr.cli.option_paths import is_at_or_below, value_at, without_init_args
from ltr.cli.words import option_names
from ltr.datamodules.triplets import NO_FOLDERS
from ltr.errors import InputError
from ltr.run.metrics_file import read_metrics
from ltr.run.run_folder import RunFolder
from ltr.run.same_options import MODEL_OPTIONS, flat_options
from ltr.run.yaml_files import read_yaml


def data_path_option(folder: RunFolder) -> list[str]:
    """``--data.path`` with the data's path as seen from here, where the run was started in another
    working directory; else nothing.
    """
    path = _data_options(folder.config).get("path")
    path_from_here = data_of_run(folder)
    if path_from_here == path:
        return []
    if isinstance(path_from_here, list):
        return ["--data.path", json.dumps(path_from_here)]
    return ["--data.path", path_from_here]


def data_of_run(folder: RunFolder) -> Any:
    """Where the data of a run lies, seen from here: ``data.path`` of its configuration, one path or
    the entries of several sources; None where there is none. A relative path counts from where the
    run was started.
    """
    path = _data_options(folder.config).get("path")
    started_in = _started_elsewhere(folder)
    if started_in is None:
        return path
    if isinstance(path, list):
        return [_source_from_here(source, started_in) for source in path]
    return _source_from_here(path, started_in)


def _source_from_here(source: Any, started_in: Path) -> Any:
    """A source with its path, and those of its negatives, as seen from here."""
    if not isinstance(source, dict):
        return _from_here(source, started_in)
    seen = source | {"path": _from_here(source.get("path"), started_in)}
    negatives = source.get("negatives")
    if isinstance(negatives, dict):
        counts = {_negatives_from_here(name, started_in): n for name, n in negatives.items()}
        return seen | {"negatives": counts}
    if negatives is not None:
        return seen | {"negatives": _negatives_from_here(negatives, started_in)}
    return seen


def _negatives_from_here(name: Any, started_in: Path) -> Any:
    return name if name in NO_FOLDERS else _from_here(name, started_in)


def _from_here(path: Any, started_in: Path) -> Any:
    """A path as seen from here, if something is there."""
    is_there = isinstance(path, str) and (started_in / path).exists()
    return str(started_in / path) if is_there else path


def refuse_paths_from_elsewhere(folder: RunFolder, command: str, words: Sequence[str]) -> None:
    """Refuse a configuration whose run was started in another working directory, where the command
    would read a path of it that counts from there. (``data.path`` is found from there.)

    Args:
        folder: of the run.
        command: what is done.
        words: the options that are given beside the configuration.
    """
    started_in = _started_elsewhere(folder)
    if started_in is None:
        return
    given = [without_init_args(name.removeprefix("--")) for name in option_names(words)]
    for option, value in _paths_read(folder, command):
        is_given = any(is_at_or_below(option, name) for name in given)
        path_then = started_in / value
        is_same = path_then.exists() and Path(value).exists() and path_then.samefile(value)
        if path_then.exists() and not is_given and not is_same:
            raise InputError(
                f"{folder.path}: {option} is {value!r}, a path from where the run was started; run the command there: cd {quote(str(started_in))}"
            )


def _started_elsewhere(folder: RunFolder) -> Path | None:
    """The working directory in which a run was started, if it is another one than this."""
    started_in = read_metrics(folder.metrics).get("directory")
    if started_in is None or Path(started_in) == Path.cwd():
        return None
    return Path(started_in)


def _paths_read(folder: RunFolder, command: str) -> Iterator[tuple[str, str]]:
    """The options beside ``data.path`` that name a file or a folder in the configuration of a run,
    with their values, as far as the command reads them. Other texts may be among them, such as the
    name of a model or of a source of negatives.
    """
    config = read_yaml(folder.config)
    yield from _model_names(value_at(config, "model"), "model")
    if command != "fit":
        return
    callbacks = value_at(config, "trainer.callbacks")
    for callback in callbacks if isinstance(callbacks, list) else [callbacks]:
        yield from _model_names(callback, "trainer.callbacks")
    names = ["data.negatives", "data.labels.scores"]
    if folder.file_to_resume() is None:
        names.append("init_from")
    for name in names:
        value = value_at(config, name)
        for text in value if isinstance(value, dict) else [value]:
            if isinstance(text, str) and text and text not in NO_FOLDERS:
                yield name, text


def _model_names(options: Any, path: str) -> Iterator[tuple[str, str]]:
    """The options of this part of a configuration that name a model, with their values."""
    for option, value in flat_options(options, f"{path}."):
        if option.rpartition(".")[2] in MODEL_OPTIONS and isinstance(value, str) and value:
            yield option, value


def _data_options(file: Path) -> dict[str, Any]:
    """The options of the data module in a configuration; none where they are no mapping."""
    data = (read_yaml(file) or {}).get("data")
    init_args = data.get("init_args") if isinstance(data, dict) else None
    return init_args if isinstance(init_args, dict) else {}
