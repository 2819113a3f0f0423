"""Folders of rankers that have lost a file: read as they are, they would be other rankers."""

import re
from pathlib import Path
from typing import Any

from ltr.entries import parse_json
from ltr.errors import InputError

CONTRACT = "proof/contract.json"  # of what ltr export writes: it lists all files of the folder
MODULES = "modules.json"
SETTINGS_THERE = "config_sentence_transformers.json"
CARD = "README.md"
# In the head of a card that ltr export has written.
FILES_OF_CARD = re.compile(r"^ltr_files: \[(.+)\]$", re.MULTILINE)


def check_is_whole(source: str, backbone: str, option: str) -> None:
    """Refuse a folder that lacks a file which its proof lists, or one without which a model of
    sentence-transformers is read otherwise: its list of modules, or its prompts and similarity.

    Nothing is known of a model of the hub, of which files are fetched as they are needed.

    Args:
        source: the folder of the backbone.
        backbone: its name, for errors.
        option: that names it.
    """
    folder = Path(source)
    if not folder.is_dir():
        return
    if (folder / CONTRACT).is_file():
        contract = _json(folder / CONTRACT)
        files = contract.get("files") if isinstance(contract, dict) else None
        if not isinstance(files, dict):
            raise InputError(
                f"backbone {backbone!r}: its {CONTRACT} must list the files of the folder, and does not; export the ranker again",
                option=option,
            )
        lost = [name for name in files if not (folder / name).is_file()]
        said_by = CONTRACT
    else:
        needed, said_by = _needed_without_a_proof(folder)
        lost = [name for name in needed if not (folder / name).is_file()]
    if lost:
        raise InputError(
            f"backbone {backbone!r} has lost {', '.join(lost[:3])}{', …' if len(lost) > 3 else ''}, as its {said_by} tells; copy the whole folder, or export the ranker again",
            option=option,
        )


def _needed_without_a_proof(folder: Path) -> tuple[list[str], str]:
    """The files that a folder must hold by what its others say, and the name of the one that says it."""
    if (folder / "proof").is_dir() and any((folder / "proof").glob("probes.json")):
        return [CONTRACT], "proof"
    card = folder / CARD
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    listed = FILES_OF_CARD.search(text)
    if listed is not None:
        return listed[1].split(", "), CARD
    settings = _json(folder / "ltr.json")
    ranker = settings.get("ranker") if isinstance(settings, dict) else None
    # The head of a sequence classifier lies with its encoder: no module must say it.
    has_modules = ranker == "DualEncoder" or (ranker is not None and not _is_classifier(folder))
    if has_modules:
        return [MODULES, SETTINGS_THERE], "ltr.json"
    theirs = _json(folder / SETTINGS_THERE)
    kind = theirs.get("model_type", "SentenceTransformer") if isinstance(theirs, dict) else None
    if kind == "SentenceTransformer" and "activation_fn" not in theirs:
        return [MODULES], SETTINGS_THERE
    return [], ""


def _is_classifier(folder: Path) -> bool:
    config = _json(folder / "config.json")
    architectures = config.get("architectures") if isinstance(config, dict) else None
    return any(str(name).endswith("ForSequenceClassification") for name in architectures or [])


def _json(file: Path) -> Any:
    """What a file holds; None where there is none, or it is damaged: who reads it next says so."""
    try:
        return parse_json(file.read_bytes())
    except (OSError, ValueError):
        return None
