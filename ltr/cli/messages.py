"""What the user is told of an error: one line, with the path of the option at fault."""

import os
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import jsonargparse
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException

from ltr.cli.option_paths import beginnings, without_init_args
from ltr.cli.parser_texts import parser_reason
from ltr.data.disk import DISK_FULL_TEXT, means_full_disk
from ltr.data.files import cache_root
from ltr.errors import InputError
from ltr.module import RankerModule
from ltr.run.launchers import restarts_line

# Parts of a RuntimeError that say so: of torch on a CPU; of a GPU's context, and of its libraries.
NO_MEMORY = ("DefaultCPUAllocator", "CUDA error: out of memory", "STATUS_ALLOC_FAILED")


def line_for_user(error: BaseException) -> str | None:
    """What to tell the user of an error that is theirs to mend; None for a mistake of ours, which
    deserves its traceback.
    """
    if means_no_memory(error):
        text = " ".join(str(error).split())[:200]
        return f"no memory is left ({text}); a step needs less of it with encoder.keep_tokens, a smaller encoder.max_tokens, fewer lists in a step, or more processes"
    if isinstance(error, OverflowError):
        return f"a number is too large: {error} (LTR_DEBUG=1 shows where)"
    # Of what a user can cause; all else is ours, whatever it says.
    if not isinstance(
        error,
        (ValueError, OSError, ImportError, MisconfigurationException, jsonargparse.ArgumentError),
    ):
        return None
    bad_input = input_error_behind(error)
    if bad_input is not None:
        return str(bad_input)
    if isinstance(error, OSError) and means_full_disk(error):
        file = error.filename2 or error.filename
        where = f"of {file}"
        if not file:
            where = f"of the output, of {cache_root()} (LTR_CACHE) or of {tempfile.gettempdir()} (TMPDIR)"
        return f"the disk {where} is full ({error.strerror or DISK_FULL_TEXT}); make room and run the command again"
    # os.getcwd names no file.
    if isinstance(error, FileNotFoundError) and not error.filename and _has_no_working_directory():
        return "the working directory has been removed; change to another one, and run the command again"
    text = " ".join(str(error).split()) or type(error).__name__
    # The default of Timer's argument "interval", which the parser can't write.
    if "Interval.step" in text:
        return "trainer.callbacks: Lightning's Timer can't be named in a configuration; set trainer.max_time"
    return f"{parser_reason(text)} (LTR_DEBUG=1 shows where)"


def means_no_memory(error: BaseException) -> bool:
    """Whether an error says that the memory of the machine or of a GPU is used up."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(part in str(error) for part in NO_MEMORY)


def _has_no_working_directory() -> bool:
    """Whether another program has removed the folder where this one runs."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def input_error_behind(error: BaseException | None) -> InputError | None:
    """The InputError behind an error: the parser wraps what a constructor raised."""
    while error is not None and not isinstance(error, InputError):
        error = error.__cause__ or error.__context__
    return error


def add_restarts(error: BaseException) -> None:
    """Let the InputError behind an error say that torchrun starts the command again, if it does."""
    bad_input = input_error_behind(error)
    if bad_input is not None:
        bad_input.message += restarts_line()


@contextmanager
def errors_with_paths(config: jsonargparse.Namespace) -> Iterator[None]:
    """Inside the block an InputError tells its option by the path in the configuration:
    ``data.batch_size`` for ``batch_size``.
    """
    try:
        yield
    except Exception as error:
        bad_input = input_error_behind(error)
        if bad_input is not None and bad_input.option is not None:
            bad_input.option = path_of(bad_input, config)
        raise


def path_of(error: InputError, config: jsonargparse.Namespace) -> str | None:
    """The path of the error's option as the command line takes it, or the option itself where its
    place is not certain.
    """
    class_of = {"model": RankerModule.__name__}  # by the path of the object
    paths = set[str]()
    for key, value in vars(config.as_flat()).items():
        path = without_init_args(key)
        if path.endswith(".class_path"):
            class_of[path.removesuffix(".class_path")] = str(value).rpartition(".")[2]
        paths.update(beginnings(path))
    ending = f".{error.option}"
    candidates = [path for path in paths if path == error.option or path.endswith(ending)]
    if len(candidates) > 1:
        # Several objects have an option of this name: the one whose class has raised the error.
        raisers = _classes_on_the_way(error)
        candidates = [
            path for path in candidates if class_of.get(path.rpartition(".")[0]) in raisers
        ]
    return candidates[0] if len(candidates) == 1 else error.option


def _classes_on_the_way(error: BaseException) -> set[str]:
    """The names of the classes whose methods the error has passed."""
    frames = traceback.walk_tb(error.__traceback__)
    return {type(frame.f_locals.get("self")).__name__ for frame, _ in frames}
