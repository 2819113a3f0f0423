"""Folders that hold no whole model: a file is lost, without which it would be read as another one,
or it is an adapter.
"""

import re
from pathlib import Path
from typing import Any

from transformers.utils.peft_utils import find_adapter_config_file

from ltr.errors import InputError
from ltr.models.encoder.loading.model_folder import (
    LOAD_ERRORS,
    MODULES,
    SETTINGS,
    SETTINGS_THERE,
    ModelFolder,
    is_classifier,
)

CONTRACT = "proof/contract.json"  # of what ltr export writes: it lists all files of the folder
CARD = "README.md"
# In the head of a card that ltr export has written, one file a line.
FILES_OF_CARD = re.compile(r"^ltr_files:\n((?:- .+\n)+)", re.MULTILINE)


def check_is_model(folder: ModelFolder) -> None:
    """Refuse a folder that has lost a file, and an adapter, such as LoRA's, which would be loaded
    frozen, or left out.

    A folder of sentence-transformers may hold its encoder in a folder of its own.
    """
    check_is_whole(folder)
    inner = [str(file.parent) for file in Path(folder.source).glob("*/adapter_config.json")]
    for place in (folder.source, *inner):
        try:
            file = find_adapter_config_file(place)
        except LOAD_ERRORS:  # not to be fetched: then the model can't be either
            file = None
        if file is not None:
            raise InputError(
                f"backbone {folder.name!r} holds an adapter (adapter_config.json), not a model; to train adapters, name the model below them as backbone and set encoder.lora; to take these, merge them (merge_and_unload of peft), save the model, and name that; adapters of a run are read by the name of the run",
                option=folder.option,
            )


def check_is_whole(folder: ModelFolder) -> None:
    """Refuse a folder that lacks a file which its proof lists, or one without which a model of
    sentence-transformers is read otherwise: its list of modules, or its prompts and similarity.

    Nothing is known of a model of the hub, of which files are fetched as they are needed.
    """
    if not folder.is_local:
        return
    path = Path(folder.source)
    if (path / CONTRACT).is_file():
        contract = _json(folder, CONTRACT)
        files = contract.get("files") if isinstance(contract, dict) else None
        if not isinstance(files, dict):
            raise InputError(
                f"backbone {folder.name!r}: its {CONTRACT} must list the files of the folder, and does not; export the ranker again",
                option=folder.option,
            )
        lost = [name for name in files if not (path / name).is_file()]
        said_by = CONTRACT
    else:
        needed, said_by = _needed_without_a_proof(folder)
        lost = [name for name in needed if not (path / name).is_file()]
    if lost:
        raise InputError(
            f"backbone {folder.name!r} has lost {', '.join(lost[:3])}{', …' if len(lost) > 3 else ''}, as its {said_by} tells; copy the whole folder, or export the ranker again",
            option=folder.option,
        )


def _needed_without_a_proof(folder: ModelFolder) -> tuple[list[str], str]:
    """The files that a folder must hold by what its others say, and the name of the one that says it."""
    path = Path(folder.source)
    if (path / "proof").is_dir() and any((path / "proof").glob("probes.json")):
        return [CONTRACT], "proof"
    listed = files_of_card(path / CARD)
    if listed is not None:
        return listed, CARD
    settings = _json(folder, SETTINGS)
    ranker = settings.get("ranker") if isinstance(settings, dict) else None
    # The head of a sequence classifier lies with its encoder: no module must say it.
    has_modules = ranker == "DualEncoder" or (ranker is not None and not _is_classifier(folder))
    if has_modules:
        return [MODULES, SETTINGS_THERE], SETTINGS
    theirs = _json(folder, SETTINGS_THERE)
    kind = theirs.get("model_type", "SentenceTransformer") if isinstance(theirs, dict) else None
    if kind == "SentenceTransformer" and "activation_fn" not in theirs:
        return [MODULES], SETTINGS_THERE
    return [], ""


def files_of_card(card: Path) -> list[str] | None:
    """The files that the card of an exported folder lists; None where there is no card, or one that
    ``ltr export`` has not written.
    """
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    listed = FILES_OF_CARD.search(text)
    if listed is None:
        return None
    return [line.removeprefix("- ") for line in listed[1].splitlines()]


def _is_classifier(folder: ModelFolder) -> bool:
    config = _json(folder, "config.json")
    return is_classifier(config.get("architectures") if isinstance(config, dict) else None)


def _json(folder: ModelFolder, file: str) -> Any:
    """What a file holds; None where there is none, or it is damaged: who reads it next says so."""
    try:
        return folder.json(file)
    except InputError:
        return None
