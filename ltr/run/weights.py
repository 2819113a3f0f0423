"""A new run starts from the weights of another one."""

from pathlib import Path

from ltr.checkpoint import best_checkpoint, holds_checkpoints, read_checkpoint
from ltr.errors import InputError
from ltr.models.named import load_weights
from ltr.module import RankerModule


def take_weights(module: RankerModule, path: str | Path, option: str) -> str | Path:
    """Load the weights of another run's ranker into this one.

    A miner that is trained beside the ranker takes its weights too, if the other run has one.

    Args:
        module: gets them; its ranker is built already.
        path: a run folder (its best weights), or a checkpoint.
        option: the one that names it, for errors.

    Returns:
        The checkpoint; a URL as it stands.

    Raises:
        InputError: if there is no checkpoint, or its weights do not fit.
    """
    local = Path(path)
    # The files by which transformers and sentence-transformers know a model.
    is_model = (local / "config.json").is_file() or (local / "modules.json").is_file()
    if is_model and not holds_checkpoints(local):
        raise InputError(
            f"{option} {path}: this is a model, and weights are taken from a run folder or a "
            "checkpoint; name the model as model.ranker.backbone"
        )
    is_url = "://" in str(path)
    if not is_url and not local.exists():
        raise InputError(
            f"{option} {path}: there is no such file or run folder; "
            "a package or a model of the hub is named as model.ranker.backbone"
        )
    file = best_checkpoint(local, option) if local.is_dir() else path
    checkpoint = read_checkpoint(file, option)
    where = f"{option} {file}"
    load_weights(module.ranker, checkpoint, where)
    has_miner = any(name.startswith("miner.") for name in checkpoint["state_dict"])
    if module.miner is not None and has_miner:
        load_weights(module.miner, checkpoint, where, "miner.")
    return file
