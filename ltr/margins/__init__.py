# ruff: noqa: F401, F403, F405
"""Margin policies: how far apart two scores should be, in units of score.

Every subclass of :class:`Margin` in a file of this folder is exported here: a new margin needs its
own file only. Type checkers, which run nothing, read the imports below instead; a file that is
missing among them works all the same.
"""

import importlib
import pkgutil
from typing import TYPE_CHECKING

from ltr.margins.margin import Margin

if TYPE_CHECKING:
    from ltr.margins.annealed import *
    from ltr.margins.fixed import *
    from ltr.margins.from_distance import *
    from ltr.margins.from_similarity import *
    from ltr.margins.learnable import *
    from ltr.margins.normal_sample import *

# Every margin by its name.
MARGINS: dict[str, type[Margin]] = {}
for _file in pkgutil.iter_modules(__path__):  # in the order of their names
    for _name, _class in vars(importlib.import_module(f"{__name__}.{_file.name}")).items():
        if _name.startswith("_") or not isinstance(_class, type):
            continue
        if issubclass(_class, Margin) and _class is not Margin:
            MARGINS[_name] = _class
globals().update(MARGINS)

__all__ = ["MARGINS", "Margin", *sorted(MARGINS)]
