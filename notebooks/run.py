"""Run notebooks from top to bottom and store their outputs: python notebooks/run.py [FILE …]"""

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]


def execute(path: Path) -> nbformat.NotebookNode:
    """The notebook with fresh outputs, run in the root of the repository, without what changes from
    run to run.
    """
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(ROOT)}}
    NotebookClient(notebook, timeout=240, kernel_name="python3", resources=resources).execute()
    notebook.metadata = {"kernelspec": notebook.metadata.kernelspec}
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"  # else a random one
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not _is_progress(output)]
    return notebook


def _is_progress(output: nbformat.NotebookNode) -> bool:
    """Progress and notices are on stderr. A bar, which a slow machine shows, vanishes and leaves an
    empty text.
    """
    return output.get("name") == "stderr" or output.get("data", {}).get("text/plain") == ""


if __name__ == "__main__":
    os.environ |= {"WANDB_MODE": "offline", "HF_HUB_OFFLINE": "1"}
    for file in map(Path, sys.argv[1:] or sorted(Path(__file__).parent.glob("*.ipynb"))):
        nbformat.write(execute(file), file)
        print(f"{file}: {file.stat().st_size / 1024:.0f} kB")
