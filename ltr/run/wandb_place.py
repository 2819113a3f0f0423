"""Where records of Weights & Biases go: the project that a user names, and whether there is a key."""

import netrc
import os
from urllib.parse import urlparse

from ltr.errors import InputError

LONGEST = 128  # letters of a project
REFUSED = "/\\#?%:"  # letters that no project may have


def entity_and_project(name: str) -> tuple[str | None, str]:
    """What ``--wandb`` names; of ``PROJECT`` alone the entity is None, the user's usual one.

    Raises:
        InputError: for a name that Weights & Biases refuses.
    """
    entity, slash, project = name.rpartition("/")
    has_names = project.strip() and (entity.strip() or not slash)
    if not has_names or len(project) > LONGEST or any(each in entity + project for each in REFUSED):
        raise InputError(
            f"--wandb must be PROJECT or ENTITY/PROJECT, a project of up to {LONGEST} letters and none of {' '.join(REFUSED)}, got {name!r}"
        )
    return entity or None, project


def is_offline_by_default() -> bool:
    """Whether records stay here: there is no key, and ``WANDB_MODE`` says nothing else."""
    return "WANDB_MODE" not in os.environ and not has_wandb_key()


def has_wandb_key() -> bool:
    """Whether ``wandb login`` was run here, or the environment holds a key."""
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return (
            "WANDB_API_KEY" in os.environ
            or netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
        )
    except (OSError, netrc.NetrcParseError):
        return False
