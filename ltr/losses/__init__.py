# ruff: noqa: F401, F403, F405
"""Ranking losses: functions of one labelled score matrix,
``loss(scores, labels, mask, margin) -> scalar``.

Every subclass of :class:`Loss` in a file of this folder is exported here: a new loss needs its own
file only. The files are found when the package is imported; a list of names would be a second place
to edit, and to forget. Type checkers, which run nothing, read the imports below instead; a file
that is missing among them works all the same.
"""

import importlib
import pkgutil
from typing import TYPE_CHECKING

from ltr.losses.loss import Loss
from ltr.losses.pairwise import chain_probability

if TYPE_CHECKING:
    from ltr.losses.approximate import *
    from ltr.losses.combine import *
    from ltr.losses.distillation import *
    from ltr.losses.lambdarank import *
    from ltr.losses.list_mle import *
    from ltr.losses.listwise import *
    from ltr.losses.pairwise import *
    from ltr.losses.pointwise import *
    from ltr.losses.triplet import *

# Every loss by its name.
LOSSES: dict[str, type[Loss]] = {}
for _file in pkgutil.iter_modules(__path__):  # in the order of their names
    for _name, _class in vars(importlib.import_module(f"{__name__}.{_file.name}")).items():
        if _name.startswith("_") or not isinstance(_class, type):
            continue
        if issubclass(_class, Loss) and _class is not Loss:
            LOSSES[_name] = _class
globals().update(LOSSES)

__all__ = ["LOSSES", "Loss", "chain_probability", *sorted(LOSSES)]
