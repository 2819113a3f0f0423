"""Rankers as models of mteb, the benchmark of text embeddings: ``mteb.evaluate(ltr.load(RUN), tasks)``."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ltr.data.layouts import Side
from ltr.errors import InputError
from ltr.models import DualEncoder, Ranker

TEXT = "text"  # the column of mteb's batches: of a document it holds the title, too


def texts_of_batches(batches: Iterable[Mapping[str, Any]]) -> list[str]:
    """The texts of mteb's batches, in their order.

    Raises:
        InputError: for a batch without texts, such as one of images.
    """
    texts: list[str] = []
    for batch in batches:
        if TEXT not in batch:
            raise InputError(f"a task of mteb must be one of texts, got {', '.join(sorted(batch))}")
        texts += batch[TEXT]
    return texts


def side_of(prompt_type: str | None) -> Side:
    """The side of a dual encoder that mteb asks for. Tasks that know no queries get that of
    documents.
    """
    return "query" if prompt_type == "query" else "document"


def model_meta(model: Ranker, precision: str, name: str | Path) -> Any:
    """What mteb knows a model by: an ``mteb.ModelMeta``.

    mteb keeps results under the name and the revision of a model, and does not measure it again. So
    the revision tells the weights, how they read texts, and the precision.

    Args:
        model: the ranker.
        precision: in which it runs.
        name: of the model: a path or an id of the hub.

    Raises:
        InputError: where mteb is not installed.
    """
    try:
        from mteb.models import ModelMeta
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "mteb":
            raise
        raise InputError("models of mteb need the package mteb: pip install mteb") from None
    key = json.dumps([model.key, precision], default=str)
    parts = Path(name).parts[-3:]  # runs, experiment, seed
    name_in_mteb = re.sub(r"[^\w.+=-]+", "-", "-".join(parts)).strip("-")
    is_dual = isinstance(model, DualEncoder)
    return ModelMeta.create_empty(
        {
            "name": f"ltr/{name_in_mteb or 'model'}",
            "revision": hashlib.sha256(key.encode()).hexdigest()[:16],
            "framework": ["PyTorch"],
            "n_parameters": sum(weight.numel() for weight in model.parameters()),
            "embed_dim": model.dim if isinstance(model, DualEncoder) else None,
            "model_type": ["dense" if is_dual else "cross-encoder"],
        }
    )
