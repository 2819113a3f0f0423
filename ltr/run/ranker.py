"""The ranker of another run, with the weights that it was trained to."""

from pathlib import Path
from typing import Any

from lightning.pytorch.cli import instantiate_module

from ltr.errors import InputError
from ltr.models import Ranker
from ltr.models.ranker import all_finite
from ltr.module import RankerModule
from ltr.run.folder import RunFolder, read_checkpoint


def ranker_of(path: str | Path, option: str) -> Ranker:
    """Build the ranker of a run anew.

    Args:
        path: a run folder (its best weights), or a checkpoint.
        option: the one that names it, for errors.

    Raises:
        InputError: if there is no checkpoint, or it doesn't say which ranker it is of.
    """
    file, checkpoint = trained(path, option)
    return built(checkpoint, file, option)


def take_weights(module: RankerModule, path: str | Path, option: str) -> Path:
    """Load the weights of another run's ranker into this one, and return their file; for the rest see :func:`ranker_of`.

    A miner that is trained beside the ranker takes its weights too, if the other run has one.

    Raises:
        InputError: if there is no checkpoint, or its weights do not fit.
    """
    file, checkpoint = trained(path, option)
    _load(module.ranker, checkpoint, f"{option} {file}")
    if module.miner is not None and any(name.startswith("miner.") for name in checkpoint["state_dict"]):
        _load(module.miner, checkpoint, f"{option} {file}", "miner.")
    return file


def trained(path: str | Path, option: str) -> tuple[Path, dict[str, Any]]:
    """The file and the content of the best checkpoint of a run folder, or of a checkpoint; an InputError if there is none."""
    file = RunFolder(path).to_measure("best", option) if Path(path).is_dir() else path
    return Path(file), read_checkpoint(file, option)


def built(checkpoint: dict[str, Any], file: Path, option: str = "source") -> Ranker:
    """Build the ranker of a checkpoint, with its weights; an InputError if it doesn't say which ranker it is of."""
    settings = checkpoint.get("hyper_parameters", {}).get("ranker")
    if not isinstance(settings, dict) or "class_path" not in settings:
        hint = "one of a run that began on the command line says it"
        raise InputError(f"{option} {file}: the checkpoint must say how its ranker is built, and does not; {hint}")
    ranker: Ranker = instantiate_module(Ranker, {"_class_path": settings["class_path"], **settings.get("init_args", {})})
    _load(ranker, checkpoint, f"{option} {file}")
    return ranker


def _load(ranker: Ranker, checkpoint: dict[str, Any], where: str, part: str = "ranker.") -> None:
    weights = checkpoint["state_dict"]
    try:
        ranker.load_state_dict({k.removeprefix(part): v for k, v in weights.items() if k.startswith(part)})
    except RuntimeError as error:
        text = " ".join(str(error).split())[:200]
        raise InputError(f"{where}: the weights do not fit the ranker of this configuration: {text}…") from None
    if not all_finite(ranker):
        raise InputError(f"{where}: the weights hold NaN or infinity; the model has diverged: train it again at a lower model.lr")
