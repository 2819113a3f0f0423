"""The notebooks run from top to bottom, and are stored with their outputs, so that they can be read
where they lie.
"""

import importlib.util
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
PATHS = sorted((ROOT / "notebooks").glob("*.ipynb"))
spec = importlib.util.spec_from_file_location("run", ROOT / "notebooks/run.py")
run = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run)


def outputs(notebook: nbformat.NotebookNode) -> list:
    return [one for cell in notebook.cells if cell.cell_type == "code" for one in cell.outputs]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_a_notebook_is_stored_with_its_outputs_and_small(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    were_run = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert all(were_run), "run notebooks/run.py"
    assert not any(one.output_type == "error" for one in outputs(notebook))
    assert any("image/png" in one.get("data", {}) for one in outputs(notebook))
    assert path.stat().st_size < 1_000_000


@pytest.mark.long
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_a_notebook_runs_and_prints_what_is_stored(path, monkeypatch):
    for name, value in {"WANDB_MODE": "offline", "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)
    stored, fresh = (kinds(book) for book in (nbformat.read(path, as_version=4), run.execute(path)))
    assert stored == fresh


def kinds(notebook: nbformat.NotebookNode) -> list[set[tuple]]:
    """The kinds of outputs of each cell: printed text comes in any number of parts, some of them
    empty.
    """
    found = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            outputs = [one for one in cell.outputs if one.get("text") != ""]
            found.append(
                {(o.output_type, o.get("name"), *sorted(o.get("data", {}))) for o in outputs}
            )
    return found
