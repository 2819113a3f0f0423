"""From a name to a ranker, for every option that takes one: ``load``, judges, miners, guides.

A name is a run folder (its best weights), a checkpoint of a run, or a model that no run holds: a
folder that ``ltr export`` or sentence-transformers has written, ``package:NAME``, or a model of the
hub, ``USER/NAME`` or ``USER/NAME@REVISION``. The page ``docs/names.md`` has the table of what each option takes; its test tries every cell.
"""

import logging
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

from jsonargparse import ArgumentError, ArgumentParser

from ltr.checkpoint import (
    CONFIG,
    best_or_last_checkpoint,
    directory_of_start,
    holds_checkpoints,
    read_checkpoint,
)
from ltr.data.layouts import FeatureVectors, PairsAndTexts
from ltr.data.windows import Windows
from ltr.entries import check_entries
from ltr.errors import InputError, local_path
from ltr.models.cross_encoder import PairWiseBertRanker
from ltr.models.decoder_ranker import DecoderRanker
from ltr.models.dual_encoder import DualEncoder
from ltr.models.encoder.loading.model_folder import ModelFolder, open_folder
from ltr.models.encoder.loading.modules import PLAIN, many_scores
from ltr.models.encoder.loading.pooling import Pooling
from ltr.models.encoder.loading.saved_settings import saved_similarity
from ltr.models.encoder.lora import BASE
from ltr.models.encoder.text_encoder import TextEncoder, encoders_of
from ltr.models.pair_ranker import PairRanker
from ltr.models.ranker import Ranker, all_finite
from ltr.models.ranker_class import cannot_build, ranker_class

log = logging.getLogger(__name__)

# What an option needs of its ranker: "any" takes every ranker, "texts" one that scores texts,
# "embeddings" a dual encoder, and "features" one that scores feature vectors.
Needs = Literal["any", "texts", "embeddings", "features"]


class RankerSettings(TypedDict):
    """How a checkpoint says that its ranker is built."""

    class_path: str
    init_args: NotRequired[dict[str, Any]]


class WithEncoder(TypedDict):
    """The options of a ranker of texts that are read before it is built."""

    encoder: NotRequired[dict[str, Any]]


class NamedRanker(NamedTuple):
    """A ranker and where it came from."""

    ranker: Ranker
    file: Path | None = None  # the checkpoint; None for a model that no run holds
    checkpoint: dict[str, Any] | None = None  # the content of that file


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
    cross-encoder. A causal language model that sentence-transformers has not saved is a decoder
    ranker, but where embeddings are needed; so is what a decoder ranker has written. Any other
    model that no run holds is a dual encoder.

    Args:
        name: a run folder, a checkpoint, or a model, see the head of this file.
        option: the option that has this name as its value, for errors.
        needs: ``texts`` refuses rankers of feature vectors, ``embeddings`` all but dual encoders,
            ``features`` all but rankers of feature vectors.
        max_length: tokens that a model reads which no run holds; None: as in the model. The ranker
            of a run has a length of its own.
        changes: options of the ranker that replace its own, a run's too; those of ``encoder`` are
            replaced one by one.

    Raises:
        InputError: if nothing is found there, it can't be built, its weights do not fit or are no
            numbers, or it is not what the option needs.
    """
    if not str(name).strip():
        raise InputError(f"{option} must name a run, a checkpoint or a model, got an empty name")
    local_path(option, name)
    path = Path(name)
    if path.is_file() or (path / CONFIG).is_file() or holds_checkpoints(path):
        file = best_or_last_checkpoint(path, option) if path.is_dir() else path
        where = f"{option} {file}"
        checkpoint = read_checkpoint(file, option)
        ranker = _ranker_of_checkpoint(checkpoint, file, where, needs, changes or {})
        opened = NamedRanker(ranker, file, checkpoint)
    else:
        _check_path(name, option)
        where = f"{option} {name}"
        options = dict(changes or {})
        if max_length is not None:
            options["max_length"] = max_length
        opened = NamedRanker(_model_of_no_run(str(name), where, needs, options))
    # PairsAndTexts: a cross-encoder that trains beside a dual encoder. No ranker by itself reads it.
    scores_texts_alone = not isinstance(opened.ranker.reads, FeatureVectors | PairsAndTexts)
    if needs == "texts" and not scores_texts_alone:
        raise InputError(
            f"{where}: a ranker of texts is needed, and this is a {type(opened.ranker).__name__}"
        )
    if needs == "features" and not isinstance(opened.ranker.reads, FeatureVectors):
        raise InputError(
            f"{where}: a ranker of feature vectors is needed, and this is a {type(opened.ranker).__name__}"
        )
    return opened


def _check_path(name: str | Path, option: str) -> None:
    """An InputError for what can only be a path, where no model lies."""
    path = Path(name)
    seeds = sorted(path.glob("seed=*")) if path.is_dir() else []
    if seeds:
        raise InputError(f"{option} {path} holds several runs; name one: {seeds[0]}")
    names = ("config.json", "modules.json", "adapter_config.json")
    if any((path / file).is_file() for file in names):
        return
    hub_id, _, revision = str(name).partition("@")
    before_revision = Path(hub_id)
    can_be_hub_id = not (
        path.is_absolute()
        or str(name).startswith(".")
        or path.parts[:1] == ("runs",)
        or len(before_revision.parts) > 2  # a hub id is NAME or OWNER/NAME
        # A revision may have a slash, too; a path with an @ in it begins with a folder that is here.
        or ("/" in revision and not revision.startswith("refs/") and Path(path.parts[0]).is_dir())
    )
    if not can_be_hub_id:
        raise InputError(
            f"{option} {path}: there is no run, checkpoint or model; "
            "a run is named by its folder, runs/NAME/seed=0"
        )


def _model_of_no_run(name: str, where: str, needs: Needs, options: dict[str, Any]) -> Ranker:
    """A model that no run holds: of a folder, a package or the hub."""
    try:
        if "encoder" in options:
            options = options | {"encoder": TextEncoder.Options(**options["encoder"])}
        if options.get("windows") is not None:
            options = options | {"windows": Windows(**options["windows"])}
        folder = open_folder(name)
        pair_class = _pair_ranker_class(folder, needs)
        if pair_class is None:
            return _dual_encoder(folder, options)
        if needs == "embeddings":
            _check_is_dual_encoder(pair_class, where)
        # None: as in the model. The default of the class is a length to train with.
        options = {"max_length": None} | options
        return pair_class(folder, **options)
    except InputError as error:
        if error.message.startswith(where):  # _check_is_dual_encoder has put it there
            raise
        raise InputError(f"{where}: {error.message}") from None


def _dual_encoder(folder: ModelFolder, options: dict[str, Any]) -> DualEncoder:
    """A dual encoder as a model of no run has it, but for the options. Refuses a model that was
    trained for something else than embeddings: without its head it would rank by chance.
    """
    similarity = saved_similarity(folder, DualEncoder.__name__) or "cosine"
    options = {"similarity": similarity} | options
    if folder.has_modules:
        return DualEncoder(folder, **options)
    if folder.n_labels is not None:
        raise many_scores(folder, folder.n_labels)
    head = folder.left_out_head
    if head is not None:
        raise InputError(
            f"a cross-encoder gives a pair one score, a dual encoder a text one embedding, and {folder.name!r} neither: {head} would not be read; take another model, or train a ranker with it as the backbone"
        )
    encoder = options.get("encoder", TextEncoder.Options())
    if encoder.pooling is not None:
        return DualEncoder(folder, **options)
    # As in sentence-transformers.
    pooling: Pooling = "last" if folder.is_language_model else "mean"
    ranker = DualEncoder(folder, **options | {"encoder": replace(encoder, pooling=pooling)})
    log.warning(PLAIN, folder.name, pooling)
    return ranker


def _pair_ranker_class(
    folder: ModelFolder, needs: Needs
) -> type[PairWiseBertRanker] | type[DecoderRanker] | None:
    """The class that reads a model of no run, where it scores pairs. None for a dual encoder."""
    if folder.is_decoder_ranker:
        return DecoderRanker
    if folder.is_cross_encoder:
        return PairWiseBertRanker
    if needs != "embeddings" and folder.is_language_model:
        return DecoderRanker
    return None


def _ranker_of_checkpoint(
    checkpoint: dict[str, Any], file: Path, where: str, needs: Needs, changes: dict[str, Any]
) -> Ranker:
    """The ranker of the checkpoint of this file, as its run has built it but for the changes."""
    settings = checkpoint.get("hyper_parameters", {}).get("ranker")
    if not isinstance(settings, dict) or "class_path" not in settings:
        raise InputError(
            f"{where}: the checkpoint must say how its ranker is built, and does not; "
            "one of a run that began on the command line says it"
        )
    check_entries(
        settings, RankerSettings, where, "take another one", path="hyper_parameters.ranker"
    )
    class_path = settings["class_path"]
    options = settings.get("init_args", {})
    built_class = ranker_class(class_path, options, where)
    if needs == "embeddings":
        # Before it is built: only a dual encoder has all the options that the changes set.
        _check_is_dual_encoder(built_class, where)
    if issubclass(built_class, PairRanker | DualEncoder):
        check_entries(
            options,
            WithEncoder,
            where,
            "take another one",
            path="hyper_parameters.ranker.init_args",
        )
    options = _changed_options(_seen_from_start(options, file), changes)
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(Ranker, "ranker", fail_untyped=False)
    # As dict_kwargs and not init_args, so that a ranker of the user's own may take options by
    # **kwargs: the parser refuses init_args that are not in the signature.
    ranker_config = {"ranker": {"class_path": class_path, "dict_kwargs": options}}
    try:
        config = parser.parse_object(ranker_config)
    except ArgumentError as error:
        # The first of the parser's reasons: the others say that there must be a ranker, or none.
        reason = re.search(
            r"Problem with given class_path '.*?':(.*?)\n    - ", str(error), re.DOTALL
        )
        raise cannot_build(class_path, where, reason[1] if reason else str(error)) from None
    try:
        with _silent_start():
            ranker: Ranker = parser.instantiate(config).ranker
    except ValueError as error:
        # The parser wraps what the constructor raises.
        refusal = error if isinstance(error, InputError) else error.__cause__
        if not isinstance(refusal, InputError):
            raise cannot_build(class_path, where, str(refusal or error)) from error
        raise InputError(f"{where}: {refusal.message}") from None
    load_weights(ranker, checkpoint, where)
    return ranker


@contextmanager
def _silent_start() -> Iterator[None]:
    """Inside the block nothing is said of what a ranker begins with: a checkpoint replaces it."""
    encoders = logging.getLogger("ltr.models.encoder")
    level_before = encoders.level
    encoders.setLevel(logging.ERROR)
    try:
        yield
    finally:
        encoders.setLevel(level_before)


def _seen_from_start(options: dict[str, Any], checkpoint: Path) -> dict[str, Any]:
    """The options of a ranker with the backbones as seen from where its run was started."""
    directory = directory_of_start(checkpoint)
    if directory is None or directory == Path.cwd():
        return options
    backbones = {}
    for option in ("backbone", "doc_backbone"):
        name = options.get(option)
        if isinstance(name, str) and name and (directory / name).is_dir():
            backbones[option] = str(directory / name)
    return options | backbones


def _changed_options(options: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A ranker's options with the changes; options of ``encoder`` change one by one."""
    changed = options | changes
    if "encoder" in changes:
        changed["encoder"] = options.get("encoder", {}) | changes["encoder"]
    return changed


def load_weights(
    ranker: Ranker, checkpoint: dict[str, Any], where: str, prefix: str = "ranker."
) -> None:
    """Load the weights of a checkpoint into a ranker.

    Args:
        ranker: gets the weights.
        checkpoint: the content of a run's checkpoint.
        where: the option and the file that it comes from, for errors.
        prefix: what the names of the weights begin with in the checkpoint: ``ranker.``, or
            ``miner.`` for the dual encoder that was trained beside it.

    Raises:
        InputError: if they do not fit, or are no numbers.
    """
    weights = {}
    for weight_name, weight in checkpoint["state_dict"].items():
        if weight_name.startswith(prefix):
            weights[weight_name.removeprefix(prefix)] = weight
    _check_adapters(ranker, weights, where)
    try:
        ranker.load_state_dict(weights)
    except InputError as error:  # another base of adapters
        raise InputError(f"{where}: {error.message}", option=error.option) from None
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


def _check_adapters(ranker: Ranker, weights: Collection[str], where: str) -> None:
    """An InputError where one of the two has adapters and the other has none."""
    given = any(name.rpartition(".")[2] == BASE for name in weights)
    wanted = any(encoder.frozen_base is not None for encoder in encoders_of(ranker))
    if given and not wanted:
        raise InputError(
            f"{where}: its weights are those of adapters (encoder.lora), and this ranker has none; set encoder.lora as there, or export it, and name the folder as backbone: adapters are part of the weights there"
        )
    if wanted and not given:
        raise InputError(
            f"{where}: its weights are whole, and this ranker has adapters (encoder.lora); export it, and name the folder as backbone"
        )


def _check_is_dual_encoder(ranker_class: type, where: str) -> None:
    if not issubclass(ranker_class, DualEncoder):
        raise InputError(
            f"{where}: only a dual encoder has embeddings of queries and documents to compare, "
            f"and {ranker_class.__name__} is none"
        )
