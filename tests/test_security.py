"""SECURITY.md says what can run code, and nothing in the package reads a file in a way that could."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Modules whose readers run what a file says.
PICKLES = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}


def dangers(source: str) -> list[str]:
    """The calls and imports of a module by which a file could run code."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name in PICKLES]
        elif isinstance(node, ast.ImportFrom) and node.module in PICKLES:
            # Errors alone may be had of them.
            found += [each.name for each in node.names if not each.name.endswith("Error")]
        elif isinstance(node, ast.Call):
            found += dangers_of_call(node)
    return found


def dangers_of_call(call: ast.Call) -> list[str]:
    name = ast.unparse(call.func)
    options = {each.arg: ast.unparse(each.value) for each in call.keywords}
    found = []
    if name in ("eval", "exec"):
        found.append(name)
    reads_tensors = name.endswith(("torch.load", "load_state_dict_from_url"))
    if reads_tensors and options.get("weights_only") != "True":
        found.append(f"{name} without weights_only")
    if name == "yaml.load" and ast.unparse(call.args[1]) != "_StrictLoader":  # a SafeLoader
        found.append(name)
    if options.get("allow_pickle", "False") != "False":
        found.append("allow_pickle")
    if options.get("trust_remote_code", "False") != "False":
        found.append("trust_remote_code")
    is_loader = name in ("SentenceTransformer", "CrossEncoder") or name.endswith(".from_pretrained")
    # Built of modules, or of None with weights and a configuration, a model is loaded from nowhere.
    is_of_a_name = bool(call.args) and ast.unparse(call.args[0]) != "None"
    if is_loader and is_of_a_name and "trust_remote_code" not in options:
        found.append(f"{name} without trust_remote_code")
    return found


def test_no_file_is_read_in_a_way_that_runs_it():
    found = {}
    for file in (ROOT / "ltr").rglob("*.py"):
        dangerous = dangers(file.read_text(encoding="utf-8"))
        if dangerous:
            found[str(file.relative_to(ROOT))] = dangerous
    assert found == {}


@pytest.mark.parametrize(
    ("source", "is_dangerous"),
    [
        ("import pickle", True),
        ("from pickle import load", True),
        ("from pickle import UnpicklingError", False),
        ("torch.load(file)", True),
        ("torch.load(file, weights_only=False)", True),
        ("torch.load(file, weights_only=True)", False),
        ("np.load(file, allow_pickle=True)", True),
        ("np.load(file)", False),
        ("yaml.load(file, yaml.Loader)", True),
        ("AutoModel.from_pretrained(name)", True),
        ("AutoModel.from_pretrained(name, trust_remote_code=flag)", True),
        ("AutoModel.from_pretrained(name, trust_remote_code=False)", False),
    ],
)
def test_such_ways_are_known(source, is_dangerous):
    assert bool(dangers(source)) == is_dangerous


def test_every_test_that_the_page_names_exists():
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", page)
    assert len(named) >= 9
    for file, name in named:
        assert f"\ndef {name}(" in (ROOT / file).read_text(encoding="utf-8"), (file, name)
