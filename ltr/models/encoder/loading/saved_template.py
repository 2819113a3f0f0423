"""What a ranker reads, beside its weights in a folder: ``ltr.json``."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ltr.data.template import Template
from ltr.data.windows import Windows
from ltr.errors import InputError
from ltr.models.encoder.loading.cross_modules import SETTINGS, json_of


def save_template(
    folder: Path, ranker: str, template: Template | None, windows: Windows | None = None
) -> None:
    """Write the template of a ranker, and its windows, beside its model.

    Args:
        folder: of the model.
        ranker: name of the class that reads it again.
        template: what is read; None: the model's prompts say it.
        windows: in which a document is read; None: it is cut.
    """
    settings: dict[str, object] = {"ranker": ranker}
    if template is not None:
        settings["template"] = asdict(template)
    if windows is not None:
        settings["windows"] = asdict(windows)
    (folder / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def saved_template(source: str, ranker: str) -> Template | None:
    """The template that a ranker of this class has written; None where it has written none.

    Args:
        source: a folder, or an id of the hub.
        ranker: name of the class.

    Raises:
        InputError: if it can't be read.
    """
    settings = _settings_of(source, ranker)
    if settings is None or ("windows" in settings and "template" not in settings):
        return None
    try:
        return Template(**settings["template"])
    except (TypeError, KeyError) as error:
        raise InputError(
            f"backbone {source!r}: its {SETTINGS} must hold a template, and does not ({error}); export it again",
            option="backbone",
        ) from None


def saved_windows(source: str, ranker: str) -> Windows | None:
    """The windows that a ranker of this class has written, as :func:`saved_template`."""
    settings = _settings_of(source, ranker)
    if settings is None or settings.get("windows") is None:
        return None
    try:
        return Windows(**settings["windows"])
    except TypeError as error:
        raise InputError(
            f"backbone {source!r}: its {SETTINGS} must hold windows with size, stride and score, and does not ({error}); export it again",
            option="backbone",
        ) from None


def _settings_of(source: str, ranker: str) -> dict[str, Any] | None:
    settings = json_of(source, SETTINGS)
    if not isinstance(settings, dict) or settings.get("ranker") != ranker:
        return None
    return settings
