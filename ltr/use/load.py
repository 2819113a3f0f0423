"""Loading a ranker for use: of a run, from a checkpoint, an exported folder, or a hub."""

from pathlib import Path
from typing import Any

import torch

from ltr.data.formats import FeatureVectors
from ltr.data.normalise import Normalisation
from ltr.errors import InputError
from ltr.models import DualEncoder, PairWiseBertRanker, Ranker
from ltr.models.encoder.cross_modules import is_cross_encoder
from ltr.run.folder import RunFolder
from ltr.run.ranker import built, trained
from ltr.run.yaml_files import read_yaml
from ltr.use.rankers import FeatureScorer, Precision, TextRanker
from ltr.use.retriever import Retriever


def load(source: str | Path, precision: Precision | None = None, device: str | None = None) -> TextRanker | FeatureScorer:
    """Load a trained ranker.

    Args:
        source: a run folder (its best weights), a checkpoint of a run, a folder that ``ltr export`` or sentence-transformers
            has written, or a model of the hub. A sequence classifier with one score is a cross-encoder, any other model a dual
            encoder.
        precision: ``32-true``, ``bf16-mixed`` or ``16-mixed``, for rankers of texts. None: that of the run, so that scores are
            those that ``ltr test`` wrote; for other models ``bf16-mixed`` where a GPU, or a CPU with AMX, multiplies it.
        device: such as ``cpu`` or ``cuda:1``. None: the GPU if there is one.

    Returns:
        A :class:`ltr.use.rankers.TextRanker` for a cross-encoder, a :class:`ltr.use.retriever.Retriever` for a dual encoder, or a
        :class:`ltr.use.rankers.FeatureScorer`.

    Raises:
        InputError: if nothing is found there, or it can't be loaded.
    """
    at = _device(device)
    path = Path(source)
    if path.is_file() or RunFolder(path).config.is_file():
        file, checkpoint = trained(path, "source")
        model = built(checkpoint, file).to(at)
        if isinstance(model.reads, FeatureVectors):
            return FeatureScorer(model, _normalisation(checkpoint))
        return _ready(model, precision or _precision_of(file))
    if path.is_dir() and any(path.glob("seed=*")):
        raise InputError(f"{path} holds several runs; name one: {sorted(path.glob('seed=*'))[0]}")
    named = path.is_absolute() or str(source).startswith(".") or path.parts[:1] == ("runs",)
    is_path = named or len(path.parts) > 2  # no hub id has more
    if is_path and not any((path / name).is_file() for name in ("config.json", "modules.json")):
        raise InputError(f"{path}: there is no run, checkpoint or model; a run is named by its folder, runs/NAME/seed=0")
    if is_cross_encoder(str(source)):
        return _ready(PairWiseBertRanker(str(source), max_length=None).to(at), precision or _usual(at))
    return _ready(DualEncoder(str(source)).to(at), precision or _usual(at))


def _device(name: str | None) -> torch.device:
    try:
        found = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise InputError(f"device {name!r} can't be used here: {reason}", option="device") from None
    return found


def _ready(model: Ranker, precision: Precision) -> TextRanker:
    return Retriever(model, precision) if isinstance(model, DualEncoder) else TextRanker(model, precision)


def _precision_of(checkpoint: Path) -> Precision:
    """The precision of the run that a checkpoint lies in."""
    config = RunFolder(checkpoint.parents[1]).config if len(checkpoint.parents) > 1 else Path()
    asked = (read_yaml(config) or {}).get("trainer", {}).get("precision") if config.is_file() else None
    short: dict[str, Precision] = {"bf16": "bf16-mixed", "16": "16-mixed", "bf16-mixed": "bf16-mixed", "16-mixed": "16-mixed"}
    return short.get(str(asked), "32-true")


def _usual(device: torch.device) -> Precision:
    if device.type == "cuda":
        return "bf16-mixed" if torch.cuda.is_bf16_supported(including_emulation=False) else "32-true"
    return "bf16-mixed" if torch.cpu.get_capabilities().get("amx_bf16", False) else "32-true"


def _normalisation(checkpoint: dict[str, Any]) -> Normalisation:
    """The normalisation that the data module of a run has kept."""
    for state in checkpoint.values():
        if isinstance(state, dict) and "normalisation" in state:
            kept = Normalisation(state["normalisation"]["steps"])
            kept.load_state_dict(state["normalisation"])
            return kept
    return Normalisation()
