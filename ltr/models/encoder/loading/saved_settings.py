"""``ltr.json`` beside a model: what a ranker reads of texts, which no other file of the folder says."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ltr.data.template import Template
from ltr.data.windows import Windows
from ltr.errors import InputError
from ltr.models.encoder.loading.model_folder import SETTINGS, SETTINGS_THERE, ModelFolder
from ltr.similarity import SIMILARITIES, Similarity


def save_settings(
    folder: Path,
    ranker: str,
    template: Template | None,
    windows: Windows | None = None,
    similarity: Similarity | None = None,
) -> None:
    """Write the template of a ranker, its windows and its similarity, beside its model; no file
    where the model itself says them all.

    Args:
        folder: of the model.
        ranker: name of the class that reads it again.
        template: what is read; None: the model's prompts say it.
        windows: in which a document is read; None: it is cut.
        similarity: of a dual encoder.
    """
    settings: dict[str, object] = {"ranker": ranker}
    if template is not None:
        settings["template"] = asdict(template)
    if windows is not None:
        settings["windows"] = asdict(windows)
    if similarity is not None and similarity.name != similarity.saved_as:
        settings["similarity"] = similarity.name
    if len(settings) == 1:
        return
    (folder / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def saved_template(folder: ModelFolder, ranker: str) -> Template | None:
    """The template that a ranker of this class has written; None where it has written none.

    Args:
        folder: of the model.
        ranker: name of the class.

    Raises:
        InputError: if it can't be read.
    """
    settings = _settings_of(folder, ranker)
    if settings is None or ("template" not in settings and len(settings) > 1):
        return None
    try:
        return Template(**settings["template"])
    except (TypeError, KeyError) as error:
        raise InputError(
            f"backbone {folder.source!r}: its {SETTINGS} must hold a template, and does not ({error}); export it again",
            option=folder.option,
        ) from None


def saved_windows(folder: ModelFolder, ranker: str) -> Windows | None:
    """The windows that a ranker of this class has written, as :func:`saved_template`."""
    settings = _settings_of(folder, ranker)
    if settings is None or settings.get("windows") is None:
        return None
    try:
        return Windows(**settings["windows"])
    except TypeError as error:
        raise InputError(
            f"backbone {folder.source!r}: its {SETTINGS} must hold windows with size, stride and score, and does not ({error}); export it again",
            option=folder.option,
        ) from None


def saved_similarity(folder: ModelFolder, ranker: str) -> str | None:
    """The name of the similarity that a folder of a dual encoder holds: that of a ranker of this
    class, or else of sentence-transformers. None where it says none.

    Raises:
        InputError: if it is none of those known here.
    """
    settings = _settings_of(folder, ranker) or {}
    theirs = folder.json_object(SETTINGS_THERE)
    name = settings.get("similarity")
    if name is None:
        name = theirs.get("similarity_fn_name")
    if name is not None and name not in SIMILARITIES:
        raise InputError(
            f"backbone {folder.source!r}: its similarity must be one of {', '.join(SIMILARITIES)}, got {name!r}; name one: similarity: cosine",
            option="similarity",
        )
    return name


def _settings_of(folder: ModelFolder, ranker: str) -> dict[str, Any] | None:
    settings = folder.json_object(SETTINGS)
    return settings if settings.get("ranker") == ranker else None
