"""Where a result comes from: versions, machine, commit, and the same as the metadata of a run file."""

import datetime
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from ltr import __version__
from ltr.data.files import write_whole
from ltr.run.folder import RunFolder

PACKAGES = (
    "torch",
    "lightning",
    "transformers",
    "sentence-transformers",
    "tokenizers",
    "numpy",
    "faiss-cpu",
    "bm25s",
)


def provenance() -> dict[str, Any]:
    """Version and commit of ltr, those of the packages that numbers depend on, the machine, and the
    date.
    """
    commit = _commit()
    today = datetime.datetime.now(datetime.UTC).date()
    own = {"ltr": __version__} | ({} if commit is None else {"commit": commit})
    return own | {
        "python": platform.python_version(),
        "packages": _versions(),
        "machine": _machine(),
        "date": str(today),
    }


def write_ir_metadata(run: RunFolder, test: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Write ``ir-metadata.yml`` beside ``test.run``: what made the run file, in the schema of
    ir_metadata.

    Args:
        run: its folder.
        test: the test part of its metrics.
        config: its configuration; empty where it has none.

    References:
        Breuer, Keller & Schaer (2022), ir_metadata: an extensible metadata schema for IR
        experiments.
    """
    made = test["made"]
    model = config.get("model", {})
    data = config.get("data", {}).get("init_args", {})
    found = {
        "platform": {
            "hardware": {"cpu": made["machine"]},
            "operating system": {"kernel": platform.release(), "distribution": platform.system()},
            "software": {
                "libraries": {
                    "python": [f"{name}=={own}" for name, own in made["packages"].items()]
                }
            },
        },
        "implementation": {
            "executable": {"cmd": f"ltr test {run.path}"},
            "source": {"lang": ["python"], "version": made["ltr"]}
            | ({"commit": made["commit"]} if "commit" in made else {}),
        },
        "resources": {"runtime": f"{test['seconds']} s"},
        "research goal": {"evaluation": {"reported measures": list(test["conventions"])}},
        "method": {
            "automatic": True,
            "score ties": "the document with the later id comes first, as in trec_eval",
            "model": _class_of(model.get("ranker")),
            "loss": _class_of(model.get("loss")),
            "seed": config.get("seed_everything"),
            "candidates": f"{test.get('candidates', 'own')}, {test.get('depth') or 'all'}",
        },
        "data": {
            "test collection": {
                "path": data.get("path"),
                "content": dict(test["evaluated"]),
                "queries": test["queries"],
            }
        },
    }
    write_whole(run.metadata, [yaml.safe_dump(found, sort_keys=False, allow_unicode=True)])


def _class_of(part: Any) -> str | None:
    return part.get("class_path") if isinstance(part, dict) else part


@cache
def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


@cache
def _commit() -> str | None:
    """Of the checkout that this code lies in, with a plus sign if something was changed since; None
    for an installed package.
    """
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + (
            "+" if git("status", "--porcelain", "--untracked-files=no") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return None


@cache
def _machine() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    name = next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )
    amx = (
        " with AMX" if any("amx_bf16" in line for line in lines if line.startswith("flags")) else ""
    )
    gpu = ""
    if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_available():
        gpu = f", {torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return f"{name or platform.machine()}{amx}, {os.cpu_count()} cores{gpu}"
