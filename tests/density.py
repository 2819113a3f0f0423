"""How dense the code of each room is, and which files are longest: a hint for readers, no test.

    python tests/density.py [folder]

Statements are those of the syntax tree, without docstrings. Comprehensions and conditional
expressions are counted per 1,000 statements, parallel assignments (``a, b = c, d``) per 100
assignments, and comments per 100 lines of code. Well-kept libraries of the field have 5 to 30
comprehensions, 5 to 21 conditional expressions, 0 to 2.8 parallel assignments and 5.6 to 27
comments.
"""

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
LONGEST = 5


def is_docstring(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def is_parallel(node: ast.Assign) -> bool:
    """Whether a tuple of values is assigned to a tuple of names."""
    return isinstance(node.value, ast.Tuple) and isinstance(node.targets[0], ast.Tuple)


def counts_of(source: str) -> Counter[str]:
    """What is counted of one file."""
    counts: Counter[str] = Counter(files=1, lines=len(source.splitlines()))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt) and not is_docstring(node):
            counts["statements"] += 1
        if isinstance(node, COMPREHENSIONS):
            counts["comprehensions"] += 1
        if isinstance(node, ast.IfExp):
            counts["conditionals"] += 1
        if isinstance(node, ast.Assign):
            counts["assignments"] += 1
            counts["parallel"] += is_parallel(node)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            counts["comments"] += 1
        elif token.type == tokenize.NEWLINE:
            counts["code"] += 1
    return counts


def row(name: str, counts: Counter[str]) -> str:
    thousands = max(counts["statements"], 1) / 1000
    return (
        f"{name:20} {counts['files']:5} {counts['lines']:6} {counts['statements']:10}"
        f" {counts['comprehensions'] / thousands:14.0f} {counts['conditionals'] / thousands:12.0f}"
        f" {100 * counts['parallel'] / max(counts['assignments'], 1):9.1f}"
        f" {100 * counts['comments'] / max(counts['code'], 1):9.1f}"
    )


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]) / "ltr"
    by_file = {
        path.relative_to(root): counts_of(path.read_text()) for path in sorted(root.rglob("*.py"))
    }
    by_room: dict[str, Counter[str]] = {}
    for path, counts in by_file.items():
        room = path.parts[0].removesuffix(".py")
        by_room.setdefault(room, Counter()).update(counts)
    print(
        f"{'room':20} {'files':>5} {'lines':>6} {'statements':>10} {'comprehensions':>14}"
        f" {'conditionals':>12} {'parallel':>9} {'comments':>9}"
    )
    for room, counts in by_room.items():
        print(row(room, counts))
    print(row("all", sum(by_room.values(), Counter())))
    longest = sorted(by_file, key=lambda path: -by_file[path]["lines"])[:LONGEST]
    names = [f"{path} ({by_file[path]['lines']})" for path in longest]
    print("longest files:", ", ".join(names))


if __name__ == "__main__":
    main()
