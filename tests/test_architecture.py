"""docs/architecture.md holds: rooms, floors, no circles; and nothing grows too large or guesses
attributes.
"""

import ast
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/architecture.md").read_text()
FILES = sorted((ROOT / "ltr").rglob("*.py"))

# Files that may ask whether an object has an attribute, because the object is not ours.
FOREIGN = {
    "ltr/datamodules/ranking.py": "modules of a user, which need not say what they read",
    "ltr/data/disk.py": "posix_fallocate is there on Linux alone",
    "ltr/data/letor_splits.py": "errors of the JSON reader, some with a line number",
    "ltr/data/tokens.py": "tokenizers with and without a fast backend",
    "ltr/models/decoder_ranker.py": "models of transformers, with and without a head",
    "ltr/models/encoder/attention.py": "layers of transformers",
    "ltr/models/encoder/loading/architecture.py": "configurations of transformers",
    "ltr/models/encoder/loading/modules.py": "models of transformers, with and without a pooler",
    "ltr/models/encoder/kernels/first_tokens.py": "layers of transformers",
    "ltr/models/encoder/packed.py": "configurations of transformers",
    "ltr/models/encoder/loading/model_folder.py": "configurations of transformers",
    "ltr/models/encoder/loading/pretrained.py": "configurations and models of transformers",
    "ltr/models/encoder/text_encoder.py": "malloc_trim of the C library",
    "ltr/models/encoder/tower.py": "modules of sentence-transformers",
    "ltr/search/faiss_index.py": "classes and builds of faiss",
}


def floors() -> dict[str, tuple[int, set[str]]]:
    """Floor and allowed packages of each room, by the table of the page."""
    rooms = {}
    allowed = set(sys.stdlib_module_names)
    for floor, names, packages in re.findall(
        r"^\| (\d) \| ([^|]+) \|([^|]*)\|$", PAGE, flags=re.MULTILINE
    ):
        allowed = allowed | {package.strip() for package in packages.split(",")}
        rooms |= {name.strip(" `"): (int(floor), allowed) for name in names.split(",")}
    return rooms


def room_of(file: Path, root: Path = ROOT) -> str:
    return file.relative_to(root / "ltr").parts[0].removesuffix(".py")


def running(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a file is imported: not those of functions, nor those for type
    checkers.
    """
    for node in body:
        yield node
        if isinstance(node, ast.If) and ast.unparse(node.test) != "TYPE_CHECKING":
            yield from running(node.body + node.orelse)
        elif isinstance(node, ast.Try):
            yield from running(
                node.body
                + node.orelse
                + node.finalbody
                + [n for h in node.handlers for n in h.body]
            )
        elif isinstance(node, ast.With | ast.For | ast.ClassDef):
            yield from running(node.body)


def imports(nodes: Iterator[ast.AST], file: Path) -> Iterator[str]:
    """Dotted names that these statements import."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def file_of(name: str, root: Path) -> Path | None:
    """The file of ours that an imported name comes from."""
    parts = name.split(".")
    while parts and parts[0] == "ltr":
        for file in (
            root.joinpath(*parts).with_suffix(".py"),
            root.joinpath(*parts, "__init__.py"),
        ):
            if file.is_file():
                return file
        parts.pop()
    return None


def circle(root: Path) -> list[str]:
    """Files that import each other in a circle, or nothing."""
    graph = {}
    for file in (root / "ltr").rglob("*.py"):
        found = imports(running(ast.parse(file.read_text()).body), file)
        graph[file] = {
            other for name in found if (other := file_of(name, root)) not in (None, file)
        }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [str(file.relative_to(root)) for file in error.args[1]]
    return []


def above(root: Path) -> list[str]:
    """Imports from a floor above, and of packages that a floor may not use."""
    plan = floors()
    found = []
    for file in (root / "ltr").rglob("*.py"):
        if file == root / "ltr/__init__.py":
            continue
        floor, allowed = plan[room_of(file, root)]
        for name in imports(ast.walk(ast.parse(file.read_text())), file):
            top, *rest = name.split(".")
            fine = (
                top in allowed
                if top != "ltr"
                else rest[0] == "__version__" or plan[rest[0]][0] <= floor
            )
            if not fine:
                found.append(f"{file.relative_to(root)} (floor {floor}) imports {name}")
    return found


def test_imports_point_downwards():
    assert above(ROOT) == []


def names_that_stand_twice(root: Path) -> list[str]:
    """Files, and classes that are no part of a function or a class, of one name."""
    names = []
    for file in sorted((root / "ltr").rglob("*.py")):
        if file.name != "__init__.py":
            names.append(file.name)
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef):
                names.append(node.name)
    return sorted(name for name, count in Counter(names).items() if count > 1)


def test_each_file_and_each_class_has_a_name_of_its_own(tmp_path):
    assert names_that_stand_twice(ROOT) == []
    for room in ("data", "search"):
        folder = tmp_path / "ltr" / room
        folder.mkdir(parents=True)
        (folder / "plan.py").write_text("class Plan:\n    pass\n")
    assert names_that_stand_twice(tmp_path) == ["Plan", "plan.py"]


def test_no_files_import_each_other_in_a_circle():
    assert circle(ROOT) == []


def mutual(root: Path) -> list[tuple[str, str]]:
    """Rooms that import each other. A room is a folder without those below it, or a file of
    ``ltr/`` itself; imports within functions count.
    """
    arrows = set()
    front = root / "ltr/__init__.py"  # only hands on what the rooms have
    for file in (root / "ltr").rglob("*.py"):
        for name in imports(ast.walk(ast.parse(file.read_text())), file):
            other = file_of(name, root)
            if other is not None and front not in (file, other):
                arrows.add((_room(file, root), _room(other, root)))
    return sorted((a, b) for a, b in arrows if a < b and (b, a) in arrows)


def _room(file: Path, root: Path) -> str:
    inner = file.relative_to(root / "ltr")
    return str(inner if inner.parent == Path() else inner.parent)


def test_no_two_rooms_import_each_other():
    assert mutual(ROOT) == []


GUARDED = "try:\n    from ltr.search import index\nexcept ImportError:\n    pass"
PLANTED = [
    (
        "ltr/errors.py",
        "from ltr.batch import Texts",
        above,
        "ltr/errors.py (floor 0) imports ltr.batch.Texts",
    ),
    (
        "ltr/search/index.py",
        "def f():\n    import ltr.cli",
        above,
        "ltr/search/index.py (floor 5) imports ltr.cli",
    ),
    (
        "ltr/run/results.py",
        "from ltr.compare.tested_run import Run",
        above,
        "ltr/run/results.py (floor 7) imports ltr.compare.tested_run.Run",
    ),
    ("ltr/batch.py", "import transformers", above, "ltr/batch.py (floor 1) imports transformers"),
    (
        "ltr/search/embeddings.py",
        "from ltr.search.index import DenseIndex",
        circle,
        "ltr/search/index.py",
    ),
    ("ltr/search/embeddings.py", GUARDED, circle, "ltr/search/index.py"),
    (
        "ltr/search/exact.py",
        "import ltr.search.corpus_search",
        circle,
        "ltr/search/corpus_search.py",
    ),
]


def test_two_rooms_that_import_each_other_are_found(tmp_path):
    shutil.copytree(ROOT / "ltr", tmp_path / "ltr", ignore=shutil.ignore_patterns("__pycache__"))
    with open(tmp_path / "ltr/run/trainer_checks.py", "a") as opened:
        opened.write("\ndef f():\n    from ltr.compare.tested_run import Run\n")
    assert mutual(tmp_path) == [("compare", "run")]


@pytest.mark.parametrize(("file", "line", "check", "sign"), PLANTED)
def test_a_planted_import_is_found(tmp_path, file, line, check, sign):
    shutil.copytree(ROOT / "ltr", tmp_path / "ltr", ignore=shutil.ignore_patterns("__pycache__"))
    with open(tmp_path / file, "a") as opened:
        opened.write(f"\n{line}\n")
    assert sign in check(tmp_path)


def test_an_import_in_a_function_or_for_type_checkers_makes_no_circle(tmp_path):
    for name, line in (
        ("a", "from ltr import b"),
        ("b", "def f():\n    import ltr.a\nif TYPE_CHECKING:\n    import ltr.a"),
    ):
        (tmp_path / "ltr").mkdir(exist_ok=True)
        (tmp_path / f"ltr/{name}.py").write_text(line + "\n")
    assert circle(tmp_path) == []


def test_the_page_shows_the_tree():
    """Every file and folder of ltr/, and the folders inside those."""
    block = re.search(r"```\nltr/\n(.*?)```", PAGE, flags=re.DOTALL).group(1)
    shown = set()
    room = ""
    for indent, name in re.findall(r"^( +)(\S+) ", block, flags=re.MULTILINE):
        room = name if len(indent) == 2 else room
        shown.add(name if len(indent) == 2 else room + name)
    package = ROOT / "ltr"
    folders = {f"{file.parent.relative_to(package)}/" for file in FILES if file.parent != package}
    assert shown == {file.name for file in package.glob("*.py")} - {"__init__.py"} | folders


def test_the_page_names_files_that_exist():
    named = set(re.findall(r"`((?:ltr|tests)/[\w/.]+)`", PAGE))
    assert named and [name for name in named if not (ROOT / name).exists()] == []


def test_attributes_are_declared_and_not_guessed():
    """No ``getattr`` or ``hasattr`` with a name in quotes, but for objects of others."""
    guesses = [
        f"{file.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)}"
        for file in FILES
        if str(file.relative_to(ROOT)) not in FOREIGN
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("getattr", "hasattr")
        and isinstance(node.args[1], ast.Constant)
    ]
    assert guesses == []


def test_every_exception_is_still_needed():
    assert [
        name
        for name in FOREIGN
        if not (ROOT / name).exists() or "attr(" not in (ROOT / name).read_text()
    ] == []


def test_importing_the_package_and_asking_for_help_import_nothing_heavy():
    program = (
        "import sys, ltr, ltr.__main__\n"
        "assert ltr.__main__.main(['--help']) == 0\n"
        "print(sorted({'torch', 'lightning', 'numpy', 'transformers'} & set(sys.modules)))"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=ROOT
    ).stdout
    assert output.startswith("ltr: train") and output.splitlines()[-1] == "[]"
