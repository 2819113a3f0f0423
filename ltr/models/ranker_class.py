"""The class that a checkpoint names as its ranker. A checkpoint is data: nothing is imported for it
but the modules of ltr.
"""

import inspect
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torch import nn

from ltr.errors import InputError
from ltr.models.ranker import Ranker


def ranker_class(class_path: str, options: dict[str, Any], where: str) -> type[Ranker]:
    """The class of a checkpoint's ranker, which can be built with these options.

    It is one of ltr, or one of the user's own whose module is imported already: by the program, or
    because the configuration of a command names it.

    Args:
        class_path: module and class, as the checkpoint names them.
        options: of its constructor. Those of a class of one's own may name classes too.
        where: the option and the file that they come from, for errors.

    Raises:
        InputError: if the class is not here, is no ranker or has no such option, or if something
            would have to be imported.
    """
    module, _, class_name = class_path.rpartition(".")
    is_of_ltr = class_path.startswith("ltr.")
    if module and not is_of_ltr and module not in sys.modules:
        raise _not_imported(class_path, class_path, where)
    try:
        found = getattr(import_module(module), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise cannot_build(class_path, where, str(error)) from None
    if not (inspect.isclass(found) and issubclass(found, Ranker)) or found is Ranker:
        raise cannot_build(class_path, where, "it must be a subclass of ltr.models.Ranker")
    if not is_of_ltr:  # the options of ltr's rankers take no classes
        for named in _class_paths(options):
            _check_part(named, class_path, where)
    parameters = inspect.signature(found).parameters
    takes_others = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    unknown = sorted(options.keys() - parameters.keys())
    if unknown and not takes_others:
        raise InputError(
            f"{where}: its ranker {class_path} has no option {', '.join(unknown)} here; "
            "was the checkpoint written by a newer version?"
        )
    return found


def cannot_build(class_path: str, where: str, reason: str) -> InputError:
    """The error for a checkpoint whose ranker's class or options are of no use here."""
    short = " ".join(reason.split())[:200]
    return InputError(f"{where}: its ranker {class_path} can't be built here: {short}")


def _not_imported(named: str, class_path: str, where: str) -> InputError:
    module = named.rpartition(".")[0]
    return InputError(
        f"{where}: its ranker {class_path} can't be built here: a checkpoint runs no code, and "
        f"{module} is not imported; import it first, if you trust it (docs/use.md)"
    )


def _class_paths(value: Any) -> Iterator[str]:
    """All that the parser could take for a class, at any depth."""
    if isinstance(value, str):
        if "." in value and all(part.isidentifier() for part in value.split(".")):
            yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _class_paths(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _class_paths(each)


def _check_part(named: str, class_path: str, where: str) -> None:
    """Refuse a class among a ranker's options that is not imported, or is no module of torch.

    A class of another kind may do anything when it is built: ``subprocess.Popen`` is one.
    """
    module, _, name = named.rpartition(".")
    if module not in sys.modules:
        # A text with a dot that names nothing here is no class.
        if find_spec(module.partition(".")[0]) is not None:
            raise _not_imported(named, class_path, where)
        return
    found = getattr(sys.modules[module], name, None)
    if inspect.isclass(found) and not issubclass(found, nn.Module):
        raise cannot_build(class_path, where, f"{named}, of its options, is no torch.nn.Module")
