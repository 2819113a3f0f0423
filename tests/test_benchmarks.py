"""benchmarks/ are run by hand: at least what their files import from each other must be there."""

import ast
from pathlib import Path

import pytest

FILES = {
    file.stem: ast.parse(file.read_text(encoding="utf-8")) for file in (Path(__file__).parents[1] / "benchmarks").glob("*.py")
}


def defined(tree: ast.Module) -> set[str]:
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return names | {
        name.id
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for name in ast.walk(node)
        if isinstance(name, ast.Name)
    }


@pytest.mark.parametrize("file", sorted(FILES))
def test_what_a_benchmark_takes_from_another_is_there(file):
    for node in ast.walk(FILES[file]):
        if isinstance(node, ast.ImportFrom) and node.module in FILES:
            missing = {name.name for name in node.names} - defined(FILES[node.module])
            assert not missing, f"benchmarks/{file}.py takes {missing} from {node.module}.py, which has none"
