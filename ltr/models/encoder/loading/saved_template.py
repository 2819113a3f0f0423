"""What a ranker reads, beside its weights in a folder: ``ltr.json``."""

import json
from dataclasses import asdict
from pathlib import Path

from ltr.data.template import Template
from ltr.errors import InputError
from ltr.models.encoder.loading.cross_modules import SETTINGS, json_of


def save_template(folder: Path, ranker: str, template: Template) -> None:
    """Write the template of a ranker beside its model.

    Args:
        folder: of the model.
        ranker: name of the class that reads it again.
        template: what is read.
    """
    settings = {"ranker": ranker, "template": asdict(template)}
    (folder / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def saved_template(source: str, ranker: str) -> Template | None:
    """The template that a ranker of this class has written; None where it has written none.

    Args:
        source: a folder, or an id of the hub.
        ranker: name of the class.

    Raises:
        InputError: if it can't be read.
    """
    settings = json_of(source, SETTINGS)
    if not isinstance(settings, dict) or settings.get("ranker") != ranker:
        return None
    try:
        return Template(**settings["template"])
    except (TypeError, KeyError) as error:
        raise InputError(
            f"backbone {source!r}: its {SETTINGS} must hold a template, and does not ({error}); export it again",
            option="backbone",
        ) from None
