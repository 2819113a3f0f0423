"""One door from a name to a ranker, for all that take one: ``load``, judges, miners, guides.

A name is a run folder (its best weights), a checkpoint of a run, a folder that ``ltr export`` or
sentence-transformers has written, ``package:NAME``, or a model of the hub. The page ``docs/use.md``
has the table of what each door takes; its test tries every cell.
"""

from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jsonargparse import ArgumentParser

from ltr.checkpoint import CONFIG, best_checkpoint, holds_checkpoints, read_checkpoint
from ltr.data.formats import FeatureVectors, PairsAndTexts
from ltr.errors import InputError
from ltr.models.cross_encoder import PairWiseBertRanker
from ltr.models.dual_encoder import DualEncoder
from ltr.models.encoder.loading.cross_modules import is_cross_encoder
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.models.ranker import Ranker, all_finite

# What a door needs of the ranker: nothing more, scores of texts, or embeddings to compare.
Needs = Literal["any", "texts", "embeddings"]


class NamedRanker(NamedTuple):
    """A ranker and where it came from."""

    ranker: Ranker
    file: Path | None = None  # the checkpoint; None for a model that is of no run
    checkpoint: dict[str, Any] | None = None  # its content


def ranker_named(
    name: str | Path,
    option: str,
    needs: Needs = "any",
    *,
    max_length: int | None = None,
    changes: dict[str, Any] | None = None,
) -> Ranker:
    """The ranker of a name; see :func:`open_ranker`."""
    return open_ranker(name, option, needs, max_length=max_length, changes=changes).ranker


def open_ranker(
    name: str | Path,
    option: str,
    needs: Needs = "any",
    *,
    max_length: int | None = None,
    changes: dict[str, Any] | None = None,
) -> NamedRanker:
    """Build the ranker of a name, with its weights.

    A sequence classifier with one score, or a CrossEncoder of sentence-transformers, is a
    cross-encoder; any other model of no run is a dual encoder.

    Args:
        name: see the head of this file.
        option: the one that names it, for errors.
        needs: ``texts`` refuses rankers of feature vectors, ``embeddings`` all but dual encoders.
        max_length: tokens that a model of no run reads; None: as in the model. A run has its own.
        changes: options of the ranker that replace its own, a run's too; those of ``encoder`` are
            replaced one by one.

    Raises:
        InputError: if nothing is found there, it can't be built, its weights do not fit or are no
            numbers, or the door can't take it.
    """
    path = Path(name)
    if _is_of_run(name):
        file = path if "://" in str(name) or not path.is_dir() else best_checkpoint(path, option)
        checkpoint = read_checkpoint(name if "://" in str(name) else file, option)
        where = f"{option} {file}"
        ranker = _ranker_of_checkpoint(checkpoint, where, needs, changes or {})
        named = NamedRanker(ranker, file, checkpoint)
    else:
        _check_path(name, option)
        where = f"{option} {name}"
        options = dict(changes or {})
        if max_length is not None:
            options["max_length"] = max_length
        named = NamedRanker(_ready_model(str(name), where, needs, options))
    reads = named.ranker.reads
    if needs == "texts" and isinstance(reads, FeatureVectors | PairsAndTexts):
        raise InputError(
            f"{where}: a ranker of texts is needed, and this is a {type(named.ranker).__name__}"
        )
    return named


def _is_of_run(name: str | Path) -> bool:
    """Whether a name is a checkpoint, by file or URL, or the folder of a run."""
    path = Path(name)
    is_run = (path / CONFIG).is_file() or holds_checkpoints(path)
    return "://" in str(name) or path.is_file() or is_run


def _check_path(name: str | Path, option: str) -> None:
    """An InputError for what can only be a path, where no model lies."""
    path = Path(name)
    seeds = sorted(path.glob("seed=*")) if path.is_dir() else []
    if seeds:
        raise InputError(f"{option} {path} holds several runs; name one: {seeds[0]}")
    is_path = path.is_absolute() or str(name).startswith(".") or path.parts[:1] == ("runs",)
    is_path = is_path or len(path.parts) > 2  # no hub id has more
    holds_model = any((path / file).is_file() for file in ("config.json", "modules.json"))
    if is_path and not holds_model:
        raise InputError(
            f"{option} {path}: there is no run, checkpoint or model; "
            "a run is named by its folder, runs/NAME/seed=0"
        )


def _ready_model(name: str, where: str, needs: Needs, options: dict[str, Any]) -> Ranker:
    """A model of no run: of a folder, a package or the hub."""
    try:
        if is_cross_encoder(name):
            if needs == "embeddings":
                _check_embeds(PairWiseBertRanker, where)
            return PairWiseBertRanker(name, **({"max_length": None} | options))
        if "encoder" in options:
            options = options | {"encoder": TextEncoder.Options(**options["encoder"])}
        return DualEncoder(name, **options)
    except InputError as error:
        if error.message.startswith(where):
            raise
        raise InputError(f"{where}: {error.message}") from None


def _ranker_of_checkpoint(
    checkpoint: dict[str, Any], where: str, needs: Needs, changes: dict[str, Any]
) -> Ranker:
    """Build the ranker that a checkpoint names, as its run has built it."""
    settings = checkpoint.get("hyper_parameters", {}).get("ranker")
    if not isinstance(settings, dict) or "class_path" not in settings:
        raise InputError(
            f"{where}: the checkpoint must say how its ranker is built, and does not; "
            "one of a run that began on the command line says it"
        )
    class_path = settings["class_path"]
    if needs == "embeddings":
        # Before it is built: the changes are options that others do not have.
        module, _, class_name = class_path.rpartition(".")
        _check_embeds(getattr(import_module(module), class_name), where)
    options = dict(settings.get("init_args", {}))
    encoder = {**(options.get("encoder") or {}), **changes.get("encoder", {})}
    options |= changes
    if encoder:
        options["encoder"] = encoder
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(Ranker, "ranker", fail_untyped=False)
    # As dict_kwargs, options need not be in the signature: a class may hand them on.
    spelt = {"ranker": {"class_path": class_path, "dict_kwargs": options}}
    config = parser.parse_object(spelt)
    ranker: Ranker = parser.instantiate(config).ranker
    load_weights(ranker, checkpoint, where)
    return ranker


def load_weights(
    ranker: Ranker, checkpoint: dict[str, Any], where: str, prefix: str = "ranker."
) -> None:
    """Load the weights of a checkpoint into a ranker.

    Args:
        ranker: gets them.
        checkpoint: of a run.
        where: it comes from, for errors.
        prefix: of the names of the weights: ``ranker.``, or ``miner.`` for the dual encoder that
            was trained beside it.

    Raises:
        InputError: if they do not fit, or are no numbers.
    """
    weights = {}
    for weight_name, weight in checkpoint["state_dict"].items():
        if weight_name.startswith(prefix):
            weights[weight_name.removeprefix(prefix)] = weight
    try:
        ranker.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"{where}: the weights do not fit the ranker of this configuration: {reason}…"
        ) from None
    if not all_finite(ranker):
        raise InputError(
            f"{where}: the weights hold NaN or infinity; the model has diverged: "
            "train it again at a lower model.lr"
        )


def _check_embeds(kind: type, where: str) -> None:
    if not issubclass(kind, DualEncoder):
        raise InputError(
            f"{where}: only a dual encoder has embeddings of queries and documents to compare, "
            f"and {kind.__name__} is none"
        )
