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
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/architecture.md").read_text()
FILES = sorted((ROOT / "ltr").rglob("*.py"))

# Files that may ask whether an object has an attribute, because the object is not ours.
FOREIGN = {
    "ltr/draws.py": "ops of torch, by their name",
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


GUESSES = ("getattr", "hasattr")


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
            handlers = [statement for handler in node.handlers for statement in handler.body]
            yield from running(node.body + node.orelse + node.finalbody + handlers)
        elif isinstance(node, ast.With | ast.For | ast.ClassDef):
            yield from running(node.body)


@cache
def imports_of(source: str, at_once: bool = False) -> list[str]:
    """Dotted names that a file imports: all of them, or those that it needs at once."""
    tree = ast.parse(source)
    names = []
    for node in running(tree.body) if at_once else ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import: {ast.unparse(node)}"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def file_of(name: str, root: Path) -> Path | None:
    """The file of ours that an imported name comes from."""
    parts = name.split(".")
    while parts and parts[0] == "ltr":
        place = root.joinpath(*parts)
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.is_file():
                return file
        parts.pop()
    return None


def circle(root: Path) -> list[str]:
    """Files that import each other in a circle, or nothing."""
    graph = {}
    for file in (root / "ltr").rglob("*.py"):
        others = {file_of(name, root) for name in imports_of(file.read_text(), at_once=True)}
        graph[file] = others - {None, file}
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
        for name in imports_of(file.read_text()):
            top, *rest = name.split(".")
            if top == "ltr":
                fine = rest[0] == "__version__" or plan[rest[0]][0] <= floor
            else:
                fine = top in allowed
            if not fine:
                found.append(f"{file.relative_to(root)} (floor {floor}) imports {name}")
    return found


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


def mutual(root: Path) -> list[str]:
    """Rooms that import each other. A room is a folder without those below it, or a file of
    ``ltr/`` itself; imports within functions count.
    """
    arrows = set()
    front = root / "ltr/__init__.py"  # only hands on what the rooms have
    for file in (root / "ltr").rglob("*.py"):
        for name in imports_of(file.read_text()):
            other = file_of(name, root)
            if other is not None and front not in (file, other):
                arrows.add((_room(file, root), _room(other, root)))
    return sorted(f"{a} and {b}" for a, b in arrows if a < b and (b, a) in arrows)


def _room(file: Path, root: Path) -> str:
    inner = file.relative_to(root / "ltr")
    return str(inner if inner.parent == Path() else inner.parent)


@pytest.mark.parametrize("check", [above, circle, mutual])
def test_imports_point_downwards_and_make_no_circle(check):
    """No circle of files, and no two rooms that import each other."""
    assert check(ROOT) == []


# A check finds a line that is added to a file.
PLANTED = [
    (above, "errors", "from ltr.batch import Texts", "errors.py (floor 0) imports ltr.batch.Texts"),
    (above, "search/index", "def f():\n    import ltr.cli", "index.py (floor 5) imports ltr.cli"),
    (
        above,
        "run/results",
        "from ltr.compare.tested_run import Run",
        "results.py (floor 7) imports ltr.compare.tested_run.Run",
    ),
    (above, "batch", "import transformers", "batch.py (floor 1) imports transformers"),
    (circle, "search/embeddings", "from ltr.search.index import DenseIndex", "search/index.py"),
    (
        circle,
        "search/embeddings",
        "try:\n    from ltr.search import index\nexcept ImportError:\n    pass",
        "search/index.py",
    ),
    (circle, "search/exact", "import ltr.search.corpus_search", "search/corpus_search.py"),
    (
        mutual,
        "run/trainer_checks",
        "def f():\n    from ltr.compare.tested_run import Run",
        "compare and run",
    ),
]


@pytest.mark.parametrize(("check", "file", "line", "sign"), PLANTED)
def test_a_planted_import_is_found(tmp_path, check, file, line, sign):
    shutil.copytree(ROOT / "ltr", tmp_path / "ltr", ignore=shutil.ignore_patterns("__pycache__"))
    with open(tmp_path / f"ltr/{file}.py", "a") as opened:
        opened.write(f"\n{line}\n")
    found = check(tmp_path)
    if check is circle:
        assert f"ltr/{sign}" in found
    else:
        assert found == [sign if check is mutual else f"ltr/{Path(file).parent / sign}"]


def test_an_import_in_a_function_or_for_type_checkers_makes_no_circle(tmp_path):
    (tmp_path / "ltr").mkdir()
    (tmp_path / "ltr/a.py").write_text("from ltr import b\n")
    lazy = "def f():\n    import ltr.a\nif TYPE_CHECKING:\n    import ltr.a\n"
    (tmp_path / "ltr/b.py").write_text(lazy)
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
    guesses = []
    for file in FILES:
        name = str(file.relative_to(ROOT))
        source = file.read_text()
        if name in FOREIGN or "attr(" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            is_guess = isinstance(node, ast.Call) and ast.unparse(node.func) in GUESSES
            if is_guess and isinstance(node.args[1], ast.Constant):
                guesses.append(f"{name}:{node.lineno} {ast.unparse(node)}")
    assert guesses == []


@pytest.mark.parametrize("name", FOREIGN)
def test_every_exception_is_still_needed(name):
    assert "attr(" in (ROOT / name).read_text()


def test_importing_the_package_and_asking_for_help_import_nothing_heavy():
    program = (
        "import sys, ltr, ltr.__main__\n"
        "assert ltr.__main__.main(['--help']) == 0\n"
        "print(sorted({'torch', 'lightning', 'numpy', 'transformers'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.startswith("ltr: train") and done.stdout.splitlines()[-1] == "[]"


def test_a_collection_is_opened_without_torch(tmp_path):
    """Reading takes the memory of the texts, and not that of torch. It says how far it is."""
    (tmp_path / "qrels").mkdir()
    text = "x" * 2_100_000  # two MB or more are tracked
    (tmp_path / "corpus.jsonl").write_text(f'{{"_id": "d", "text": "{text}"}}\n')
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "which"}\n')
    (tmp_path / "qrels/test.tsv").write_text("q\td\t1\n")
    program = (
        "import sys; from ltr.data.collection import open_collection\n"
        "open_collection(sys.argv[1]).judgements('test')\n"
        "print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "False\n"
