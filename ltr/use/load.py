"""Loading a ranker for use: of a run, from a checkpoint, an exported folder, or a hub."""

import logging
from pathlib import Path
from typing import Any, Literal, get_args, overload

import torch

from ltr.data.layouts import FeatureVectors
from ltr.data.normalise import Normalisation
from ltr.errors import InputError, one_of
from ltr.models import DualEncoder, Ranker
from ltr.models.encoder.loading.model_folder import PACKAGE
from ltr.models.named import Needs, open_ranker
from ltr.run.precision import Precision, gpu_of, is_emulated, stored_precision
from ltr.run.run_folder import CALIBRATION, run_of_checkpoint
from ltr.use.rankers import FeatureScorer, Reranker, TextRanker
from ltr.use.retriever import Retriever

log = logging.getLogger(__name__)


@overload
def load(
    source: str | Path,
    precision: Precision | None = None,
    device: str | None = None,
    *,
    revision: str | None = None,
    needs: Literal["any"] = "any",
) -> Any: ...


@overload
def load(
    source: str | Path,
    precision: Precision | None = None,
    device: str | None = None,
    *,
    revision: str | None = None,
    needs: Literal["texts"],
) -> TextRanker: ...


@overload
def load(
    source: str | Path,
    precision: Precision | None = None,
    device: str | None = None,
    *,
    revision: str | None = None,
    needs: Literal["embeddings"],
) -> Retriever: ...


@overload
def load(
    source: str | Path,
    precision: Precision | None = None,
    device: str | None = None,
    *,
    revision: str | None = None,
    needs: Literal["features"],
) -> FeatureScorer: ...


def load(
    source: str | Path,
    precision: Precision | None = None,
    device: str | None = None,
    *,
    revision: str | None = None,
    needs: Needs = "any",
) -> TextRanker | FeatureScorer:
    """Load a trained ranker.

    Args:
        source: a run folder (its best weights), a checkpoint of a run, a folder that ``ltr export``
            or sentence-transformers has written, or a model of the hub. A sequence classifier with
            one score is a cross-encoder, a causal language model a decoder ranker, any other model a
            dual encoder.
        precision: ``32-true``, ``bf16-mixed`` or ``16-mixed``, for rankers of texts. None: that of
            the run, so that scores are those that ``ltr test`` wrote; for other models
            ``bf16-mixed`` where a GPU, or a CPU with AMX, multiplies it.
        device: such as ``cpu`` or ``cuda:1``. None: the GPU if there is one.
        revision: of a model of the hub: a branch, a tag or a commit. ``USER/NAME@REVISION`` says the
            same, wherever a ranker is named. None: its ``main``.
        needs: ``texts``, ``embeddings`` or ``features`` refuses other rankers, and tells type
            checkers what is returned, which a name does not.

    Returns:
        A :class:`ltr.use.rankers.Reranker` for a cross-encoder, a
        :class:`ltr.use.retriever.Retriever` for a dual encoder, or a
        :class:`ltr.use.rankers.FeatureScorer`.

    Raises:
        InputError: if nothing is found there, it can't be loaded, or it is not what is needed.
    """
    one_of(get_args(Needs), needs=needs)
    chosen_device = _device(device)
    if revision is not None:
        if str(source).startswith(PACKAGE) or Path(source).exists():
            raise InputError(
                f"revision must be one of a model of the hub, got {revision!r} for {source}, which lies here; leave it out",
                option="revision",
            )
        source = f"{source}@{revision}"
    named = open_ranker(source, "source", needs)
    ranker = named.ranker.to(chosen_device)
    if named.checkpoint is None or named.file is None:  # of the hub or exported, so of no run
        precision = precision or _usual_precision(chosen_device)
        return _text_ranker(ranker, precision, source, Path(source) / CALIBRATION)
    run = run_of_checkpoint(named.file)
    calibration = None if run is None else run.calibration
    if isinstance(ranker.reads, FeatureVectors):
        normalisation = _normalisation(named.checkpoint, named.file)
        return FeatureScorer(ranker, normalisation, source, calibration)
    if precision is None:
        precision = _precision_of_run(named.file)
        if precision == "bf16-mixed" and is_emulated(chosen_device):
            log.warning(
                "the precision of the run, bf16-mixed, is only emulated on %s, slowly; with precision 32-true it would compute in float32, and round scores otherwise",
                chosen_device,
            )
    return _text_ranker(ranker, precision, source, calibration)


def _device(name: str | None) -> torch.device:
    usual = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(usual if name is None else name)
        torch.empty(0, device=device)  # which fails where the device is not there
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise InputError(f"device {name!r} can't be used here: {reason}", option="device") from None
    if device.type == "meta":
        raise InputError(
            "device must be one that computes, got 'meta', which holds no numbers; take cpu or cuda",
            option="device",
        )
    return device


def _text_ranker(
    model: Ranker, precision: Precision, name: str | Path, calibration: Path | None
) -> TextRanker:
    if isinstance(model, DualEncoder):
        return Retriever(model, precision, name, calibration)
    return Reranker(model, precision, name, calibration)


def _precision_of_run(checkpoint: Path) -> Precision:
    """The precision of the run that a checkpoint is of; ``32-true`` where it is of none."""
    stored: Any = stored_precision(checkpoint)
    precision: Precision = stored if stored in get_args(Precision) else "32-true"
    return precision


def _usual_precision(device: torch.device) -> Precision:
    """Half precision where the device multiplies it, not where it would emulate it."""
    if device.type == "cuda":
        is_fast = gpu_of(device).is_native
    else:
        is_fast = torch.cpu.get_capabilities().get("amx_bf16", False)
    return "bf16-mixed" if is_fast else "32-true"


def _normalisation(checkpoint: dict[str, Any], file: Path) -> Normalisation:
    """The normalisation that the data module of a run has kept in the checkpoint of this file."""
    # The state of a data module lies under the name of its class.
    for state in checkpoint.values():
        if isinstance(state, dict) and "normalisation" in state:
            try:
                return Normalisation.from_state_dict(state["normalisation"])
            except InputError as error:
                raise InputError(f"source {file}: {error.message}") from None
    return Normalisation()
