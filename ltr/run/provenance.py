"""Where a result comes from: versions, machine and commit, for metrics.json and beside a run file."""

import datetime
import json
import os
import platform
import shlex
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
from ltr.data.whole_files import write_whole
from ltr.run.run_folder import RunFolder

PACKAGES = (
    "torch",
    "lightning",
    "transformers",
    "sentence-transformers",
    "tokenizers",
    "numpy",
    "faiss-cpu",
    "faiss-gpu-cu12",
    "bm25s",
    "PyStemmer",
)


def made_by() -> dict[str, Any]:
    """Version and commit of ltr, those of the packages that numbers depend on, the machine, and the
    date.
    """
    made: dict[str, Any] = {"ltr": __version__}
    commit = _commit()
    if commit is not None:
        made["commit"] = commit
    made["python"] = platform.python_version()
    made["packages"] = versions()
    made["machine"] = _machine()
    made["date"] = str(datetime.datetime.now(datetime.UTC).date())
    return made


def write_ir_metadata(
    folder: RunFolder, test: Mapping[str, Any], config: Mapping[str, Any]
) -> None:
    """Write ``ir-metadata.yml`` beside ``test.run``: what made the run file, in the schema of
    ir_metadata.

    Args:
        folder: of the run.
        test: the test part of its metrics.
        config: its configuration; empty where it has none.

    References:
        Breuer, Keller & Schaer (2022), ir_metadata: an extensible metadata schema for IR
        experiments.
    """
    made = test["made"]  # as made_by() returned it
    model = config.get("model", {})
    data = config.get("data", {}).get("init_args", {})
    source = {"lang": ["python"], "version": made["ltr"]}
    if "commit" in made:
        source["commit"] = made["commit"]
    libraries = [f"{name}=={number}" for name, number in made["packages"].items()]
    metadata = {
        "platform": {
            "hardware": {"cpu": made["machine"]},
            "operating system": {"kernel": platform.release(), "distribution": platform.system()},
            "software": {"libraries": {"python": libraries}},
        },
        "implementation": {
            "executable": {"cmd": _command(folder, data.get("path"))},
            "source": source,
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
    text = yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)
    write_whole(folder.ir_metadata, [text])


def _command(folder: RunFolder, data_path: Any) -> str:
    """The command that makes what lies in the folder of a run, of a data set or of a split."""
    run = folder.run_path()
    words = ["ltr", "test", str(run)]
    below = folder.path.relative_to(run).parts
    if folder.sets.name in below[::2]:
        words += ["--data.path", data_path if isinstance(data_path, str) else json.dumps(data_path)]
    if folder.splits.name in below[::2]:
        words += ["--split", folder.path.name]
    return shlex.join(words)


def _class_of(part: Any) -> str | None:
    """The class of a part of a configuration: a class path, or a dict of it with its options."""
    if isinstance(part, dict):
        return part.get("class_path")
    return part


@cache
def versions() -> dict[str, str]:
    """The versions of those of ``PACKAGES`` that are installed."""
    found = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


@cache
def _commit() -> str | None:
    """The commit of this checkout, with a plus sign if something was changed; None without."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        commit = git("rev-parse", "--short=12", "HEAD")
        changes = git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return None
    if changes:
        return f"{commit}+"
    return commit


@cache
def _machine() -> str:
    """The processor and its cores, whether it multiplies bfloat16 by AMX, and the GPUs."""
    processor = ""
    amx = ""
    info = Path("/proc/cpuinfo")  # Linux alone has it
    lines = info.read_text().splitlines() if info.is_file() else []
    for line in lines:  # each core has its own lines, which say the same
        if line.startswith("model name") and not processor:
            processor = line.split(":")[1].strip()
        if line.startswith("flags") and "amx_bf16" in line:
            amx = " with AMX"
    processor = processor or platform.processor() or platform.machine()
    gpus = ""
    torch = sys.modules.get("torch")  # it takes seconds to import; without it, no GPU was used
    if torch is not None and torch.cuda.is_available():
        gpus = f", {torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return f"{processor}{amx}, {os.cpu_count()} cores{gpus}"
