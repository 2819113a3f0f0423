"""What the user is told of an error: one line, with the path of the option at fault."""

import re
import tempfile
import traceback

import jsonargparse
from lightning.fabric.utilities.exceptions import MisconfigurationException

from ltr.data.files import DISK_FULL, cache_root
from ltr.errors import InputError
from ltr.module import RankerModule

LONGEST = 400  # letters of what the parser says
# What the parser says, and what is better said.
PARSER = [
    (r"Does not validate against any of the Union subtypes Subtypes: \[.*?\] Errors: - ", ""),
    (r" - Expected a <class .*| Given value type:.*| - Not a valid subclass of .*", ""),
    (r"- Expected a path but \S+ either not accessible or invalid - ", ""),
    (r'^Parser key "([^"]+)": ', r"\1: "),
    (
        r"Import path (\S+) does not correspond to a subclass of (\w+)",
        r"\1 is no \2; name a class that derives from it",
    ),
    (r"Expected a dot import path string: (\w+)", r"there is no \1"),
    (r"Problem with given class_path '([^']+)': ", r"\1: "),
    (r"(?:typing\.Literal|<class) ?['\[]([^\]>]*)['\]]>?", r"\1"),
]


def one_line(error: BaseException) -> str | None:
    """What to tell the user of an error that is theirs to mend; None for a mistake of ours, which
    deserves its traceback.
    """
    if isinstance(error, RuntimeError) and "loading state_dict" in str(error):
        first = " ".join(str(error).split())[:200]
        return f"--ckpt_path: the checkpoint does not fit the model of this configuration: {first}…"
    if not isinstance(
        error,
        (ValueError, OSError, ImportError, MisconfigurationException, jsonargparse.ArgumentError),
    ):
        return None
    ours = input_error(error)
    if ours is not None:
        return str(ours)
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        file = error.filename2 or error.filename
        others = (
            f"of the output, of {cache_root()} (LTR_CACHE) or of {tempfile.gettempdir()} (TMPDIR)"
        )
        return f"the disk {f'of {file}' if file else others} is full ({error.strerror}); make room and run the command again"
    text = " ".join(str(error).split()) or type(error).__name__
    if "Interval.step" in text:  # its default, which the parser can't write
        return "trainer.callbacks: Lightning's Timer can't be named in a configuration; set trainer.max_time"
    parsed = isinstance(error, jsonargparse.ArgumentError)
    hint = (
        "all options: ltr COMMAND --help, and with --config FILE --print_config"
        if parsed
        else "LTR_DEBUG=1 shows where"
    )
    return f"{_reason(text)} ({hint})"


def _reason(text: str) -> str:
    """What the parser has against a value, without the other types that it has tried, and without
    the value again.
    """
    for pattern, better in PARSER:
        text = re.sub(pattern, better, text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def input_error(error: BaseException | None) -> InputError | None:
    """The InputError behind an error: the parser wraps what a constructor raised."""
    while error is not None and not isinstance(error, InputError):
        error = error.__cause__ or error.__context__
    return error


def path_of(error: InputError, config: jsonargparse.Namespace) -> str | None:
    """The path of the error's option as the command line takes it, or the option itself where its
    place is not certain.
    """
    keys = {key.replace(".init_args", ""): value for key, value in vars(config.as_flat()).items()}
    paths = {
        ".".join(parts[:end])
        for parts in (key.split(".") for key in keys)
        for end in range(1, len(parts) + 1)
    }
    found = [path for path in paths if path == error.option or path.endswith(f".{error.option}")]
    if len(found) > 1:  # the one whose class has raised the error
        raisers = {
            type(frame.f_locals.get("self")).__name__
            for frame, _ in traceback.walk_tb(error.__traceback__)
        }
        classes = keys | {"model.class_path": RankerModule.__name__}
        owners = [str(classes.get(f"{path.rpartition('.')[0]}.class_path")) for path in found]
        found = [
            path
            for path, owner in zip(found, owners, strict=True)
            if owner.rpartition(".")[2] in raisers
        ]
    return found[0] if len(found) == 1 else error.option
