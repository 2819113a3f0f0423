"""A new run starts from the weights of another one."""

from contextlib import suppress
from pathlib import Path

from ltr.checkpoint import best_or_last_checkpoint, holds_checkpoints, read_checkpoint
from ltr.data.files import seen_from
from ltr.errors import InputError, local_path
from ltr.models.named import load_weights
from ltr.module import RankerModule
from ltr.run.config_file import read_config
from ltr.run.content_digests import InitWeights, digest_of_weights
from ltr.run.metrics_file import InitDigests, read_metrics
from ltr.run.run_folder import run_of_checkpoint
from ltr.run.training_recipe import TrainingRecipe


def take_weights(module: RankerModule, path: str | Path, option: str) -> InitWeights:
    """Load the weights of another run's ranker into this one.

    A miner that is trained beside the ranker takes its weights too, if the other run has one.

    Args:
        module: gets them; its ranker is built already.
        path: a run folder (its best weights), or a checkpoint.
        option: the one that names it, for errors.

    Returns:
        The checkpoint, and what tells its weights from others.

    Raises:
        InputError: if there is no checkpoint, or its weights do not fit.
    """
    local_path(option, path)
    found = Path(path)
    # The files by which transformers and sentence-transformers know a model.
    is_model = (found / "config.json").is_file() or (found / "modules.json").is_file()
    if is_model and not holds_checkpoints(found):
        raise InputError(
            f"{option} {path}: this is a model, and weights are taken from a run folder or a "
            "checkpoint; name the model as model.ranker.backbone"
        )
    if not found.exists():
        raise InputError(
            f"{option} {path}: there is no such file or run folder{seen_from(path)}; "
            "a package or a model of the hub is named as model.ranker.backbone"
        )
    file = best_or_last_checkpoint(found, option) if found.is_dir() else found
    checkpoint = read_checkpoint(file, option)
    where = f"{option} {file}"
    load_weights(module.ranker, checkpoint, where)
    module.ranker.new_parts = ()  # none is untrained any more, of which Health would warn
    has_miner = any(name.startswith("miner.") for name in checkpoint["state_dict"])
    if module.miner is not None and has_miner:
        load_weights(module.miner, checkpoint, where, "miner.")
    weights = {}
    for name, weight in checkpoint["state_dict"].items():
        if name.startswith(("ranker.", "miner.")):
            weights[name] = weight
    digests: InitDigests = {
        "weights": digest_of_weights(weights),
        "recipe": _recipe_of_run(file),
    }
    return InitWeights(file, checkpoint.get("global_step", 0), digests)


def _recipe_of_run(file: Path) -> str | None:
    """A digest of the recipe of the run that a checkpoint lies in, and of the checkpoint's name: the
    best weights of one seed are not the last ones of another. None where nobody knows it.
    """
    folder = run_of_checkpoint(file)
    if folder is None or not folder.config.is_file():
        return None
    with suppress(InputError):  # damaged files of a run whose weights are whole
        config = read_config(folder.config)
        metrics = read_metrics(folder.metrics)
        if "trained_with" in metrics:
            return f"{TrainingRecipe.of(config, metrics['trained_with']).digest()} {file.name}"
    return None
