"""What a run is trained with, by digests: ``trained_with`` of its metrics.json."""

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from ltr.checkpoint import best_or_last_checkpoint, holds_checkpoints
from ltr.data.files import digest_of
from ltr.models.encoder.loading.model_folder import resolve
from ltr.run.metrics_file import InitDigests, TrainedWith
from ltr.run.same_options import MODEL_OPTIONS
from ltr.run.training_recipe import recipe_options
from ltr.trainer_state import data_of

# The files of a model: its configuration, tokenizer and weights, and not its card.
MODEL_SUFFIXES = {".json", ".txt", ".model", ".safetensors", ".bin"}
SUFFIXES_WITHOUT_WEIGHTS = {".json", ".txt", ".model"}


class InitWeights(NamedTuple):
    """The weights of another run that a run starts from.

    Attributes:
        file: the checkpoint that they come from.
        step: how many steps had been trained; 0 where it does not say.
        digests: what tells them from others.
    """

    file: Path
    step: int
    digests: InitDigests


def digests_of_training(config: Mapping[str, Any], trainer: Trainer) -> TrainedWith:
    """The digests of a run whose data is set up, but for those of the weights that it starts from;
    and what options that say ``auto`` have taken.

    Args:
        config: its configuration, as plain dicts, lists and values.
        trainer: of the run.
    """
    data = data_of(trainer)
    data_digests: dict[str, str] = {}
    if data is not None:
        data_digests |= data.digests
        if data.eval_batches("dev") is not None:
            for name, digest in data.evaluation_digests("dev").items():
                data_digests[f"dev {name}"] = digest
    digests: TrainedWith = {"data": data_digests, "models": digests_of_models(config)}
    if data is not None and data.taken:
        digests["taken"] = data.taken
    return digests


def digests_of_models(config: Mapping[str, Any]) -> dict[str, str]:
    """The digests of the local models that a configuration names, by option."""
    models = {}
    for path, value in recipe_options(config).items():
        if path.rpartition(".")[2] in MODEL_OPTIONS and isinstance(value, str):
            model_digest = _digest_of_model(value, path)
            if model_digest is not None:
                models[path] = model_digest
    return models


def _digest_of_model(name: str, option: str) -> str | None:
    """A digest of the files of a model, or of the checkpoint of a run; None for one of the hub, which
    its name tells. The option names it, for errors.
    """
    path = Path(resolve(name))
    if path.is_file():
        return digest_of(path)[:16]
    if not path.is_dir():
        return None
    if holds_checkpoints(path):
        return digest_of(best_or_last_checkpoint(path, option))[:16]
    return _digest_of_files(path, MODEL_SUFFIXES)


def digest_without_weights(name: str) -> str | None:
    """A digest of the configuration and the tokenizer of a model; None where it is no folder."""
    path = Path(resolve(name))
    return _digest_of_files(path, SUFFIXES_WITHOUT_WEIGHTS) if path.is_dir() else None


def _digest_of_files(folder: Path, suffixes: Collection[str]) -> str:
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        if file.suffix in suffixes and file.is_file():
            digest.update(f"{file.relative_to(folder).as_posix()} {digest_of(file)}\n".encode())
    return digest.hexdigest()[:16]


def digest_of_weights(weights: Mapping[str, Tensor]) -> str:
    """A digest of the names, types, shapes and values of weights."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        weight = weights[name].detach().cpu().contiguous()
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}\n".encode())
        digest.update(weight.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]
