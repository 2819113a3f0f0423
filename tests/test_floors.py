"""Imports point downwards only, as the plan of the rooms says."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLOORS = [
    {"errors", "trec"},
    {"batch", "similarity", "gains"},
    {"losses", "margins", "in_batch", "gather", "metrics"},
    {"models", "data", "encoding", "exact_search", "index"},
    {"modules", "datamodules", "callbacks", "compare", "export"},
    {"__main__", "cli"},
]
# Packages of others that a floor, and those above it, may use.
ALLOWED = [
    {"numpy"},
    {"torch"},
    {"torchmetrics"},
    {"transformers", "tokenizers", "safetensors", "sentence_transformers"}
    | {"faiss", "bm25s", "filelock", "pandas", "rich", "ir_datasets"},
    {"lightning", "wandb"},
    {"jsonargparse"},
]
FILES = sorted((ROOT / "ltr").rglob("*.py"))


def floor_of(room: str) -> int:
    return next(i for i, rooms in enumerate(FLOORS) if room in rooms)


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", [p for p in FILES if p != ROOT / "ltr/__init__.py"], ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_downwards(path):
    room = path.relative_to(ROOT / "ltr").parts[0].removesuffix(".py")
    floor = floor_of(room)
    allowed = set().union(*ALLOWED[: floor + 1]) | set(sys.stdlib_module_names)
    for name in imports(path):
        top, *rest = name.split(".")
        if top == "ltr":
            other = rest[0]
            assert other in {"__version__", room} or floor_of(other) <= floor, f"{path} imports {name} from a floor above"
        else:
            assert top in allowed, f"floor {floor} may not use {top}"


def test_importing_the_package_and_asking_for_help_import_nothing_heavy():
    program = (
        "import sys, ltr, ltr.__main__\n"
        "assert ltr.__main__.main(['--help']) == 0\n"
        "print(sorted({'torch', 'lightning', 'numpy', 'transformers'} & set(sys.modules)))"
    )
    output = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=ROOT).stdout
    assert output.startswith("ltr: train") and output.splitlines()[-1] == "[]"
