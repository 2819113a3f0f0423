"""Where the curves of a run go: CSV files, and Weights & Biases where a project is named."""

import logging
import netrc
import os
import secrets
from pathlib import Path
from urllib.parse import urlparse

from lightning.pytorch.loggers import CSVLogger, Logger, WandbLogger

from ltr.data.files import write_whole

log = logging.getLogger(__name__)


def loggers(folder: Path, wandb_project: str | None, fits: bool) -> list[Logger]:
    """The loggers of a run.

    Args:
        folder: the run folder.
        wandb_project: of Weights & Biases; None for none. A resumed run continues the same run there.
        fits: whether the command is ``fit``.
    """
    made: list[Logger] = [CSVLogger(folder, name="logs")]  # a version for every start: a resumed run erases nothing
    if wandb_project:
        offline = "WANDB_MODE" not in os.environ and not has_wandb_key()
        if offline:
            log.info("Weights & Biases: no key found, logging offline into %s", folder / "wandb")
        file = folder / "wandb" / "run-id"
        if fits and not file.is_file():
            write_whole(file, [secrets.token_hex(4)])
        known = file.read_text().strip() if file.is_file() else None
        options = {"project": wandb_project, "name": "/".join(folder.parts[-3:]), "resume": "allow"}
        made.append(WandbLogger(save_dir=folder, offline=offline, id=known, **options))  # type: ignore[arg-type]  # as wandb.init
    return made


def has_wandb_key() -> bool:
    """Whether ``wandb login`` was run here, or the environment holds a key."""
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return "WANDB_API_KEY" in os.environ or netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
