"""Entries of files: each has the type that is declared, or one line says which has not."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import pytest

import ltr
from ltr.entries import check_entries, read_json
from ltr.errors import InputError


class Inner(TypedDict):
    """Has one entry that must be there."""

    n: int


class Outer(TypedDict):
    """One of each kind."""

    name: str
    share: NotRequired[float]
    depth: NotRequired[int | None]
    switch: NotRequired[bool]
    policy: NotRequired[Literal["drop", "soft"]]
    means: NotRequired[dict[str, float | None]]
    steps: NotRequired[dict[int, float]]
    rows: NotRequired[list[Inner]]
    part: NotRequired[Inner | str]
    anything: NotRequired[Any]


FITS: list[dict] = [
    {"name": ""},
    {"name": "a", "share": 1, "depth": None, "switch": True, "policy": "drop"},
    {"name": "a", "share": -1e300, "depth": 2**63 - 1, "means": {"x": None, "y": 0.5}},
    {"name": "a", "rows": [{"n": 1, "more": []}], "part": {"n": 3}, "anything": [{}], "other": 5},
    {"name": "a", "rows": [], "part": "text", "means": {}, "steps": {3: 0.5}},
]
MISFITS: list[tuple[object, str]] = [
    ({}, "name must be there, and is not"),
    ([], r"the content must be an object, got \[\]"),
    ({"name": 5}, "name must be a text, got 5"),
    ({"name": None}, "name must be a text, got null"),
    ({"name": "a", "share": True}, "share must be a finite number, got true"),
    ({"name": "a", "share": float("nan")}, "share must be a finite number, got NaN"),
    ({"name": "a", "share": 10**400}, "share must be a finite number, got 1000"),
    ({"name": "a", "depth": 1.0}, "depth must be a whole number or null, got 1.0"),
    (
        {"name": "a", "depth": 2**63},
        "depth must be a whole number or null, got 9223372036854775808",
    ),
    ({"name": "a", "switch": 1}, "switch must be true or false, got 1"),
    ({"name": "a", "policy": "keep"}, "policy must be 'drop' or 'soft', got \"keep\""),
    ({"name": "a", "policy": ["drop"]}, "policy must be 'drop' or 'soft', got"),
    ({"name": "a", "means": {"x": "1"}}, 'means.x must be a finite number or null, got "1"'),
    ({"name": "a", "means": [1]}, r"means must be an object, got \[1\]"),
    ({"name": "a", "steps": {"3": 1.0}}, 'steps must have keys that are a whole number, got "3"'),
    ({"name": "a", "rows": [{"n": 1}, {}]}, "rows.1.n must be there, and is not"),
    ({"name": "a", "rows": {"n": 1}}, 'rows must be a list, got {"n": 1}'),
    ({"name": "a", "part": {"n": "3"}}, 'part.n must be a whole number, got "3"'),
    ({"name": "a", "part": 3}, "part must be an object or a text, got 3"),
]


@pytest.mark.parametrize("entries", FITS)
def test_what_is_declared_passes_and_other_entries_are_free(entries):
    check_entries(entries, Outer, "file", "mend it")


@pytest.mark.parametrize(("entries", "text"), MISFITS)
def test_what_is_not_is_named_by_its_path(entries, text):
    with pytest.raises(InputError, match=f"file: the file is damaged, {text}.*; mend it"):
        check_entries(entries, Outer, "file", "mend it")


def test_the_path_of_a_part_is_that_in_the_file():
    with pytest.raises(InputError, match=r"damaged, test\.n must be a whole number, got \{\};"):
        check_entries({"n": {}}, Inner, "file", "mend it", path="test")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"{", "the file is damaged .Expecting property name"),
        (b"", "the file is damaged .Expecting value"),
        (b'{"a": "\xe9"}', "the file is damaged .'utf-8' codec can't decode byte 0xe9"),
        (b"[" * 100_000 + b"]" * 100_000, "the file is damaged .*recursion"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "the file is damaged .*recursion"),
        (b"[1]", r"the file is damaged, it must hold an object, got \[1\]"),
        (b"null", "the file is damaged, it must hold an object, got null"),
        (None, "the file can't be read .No such file"),
    ],
)
def test_what_is_no_json_object_is_one_line_with_the_file(tmp_path, content, text):
    file = tmp_path / "a.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match=f"a.json: {text}.*; mend it") as refused:
        read_json(file, "mend it", "labels.scores")
    assert refused.value.option == "labels.scores"
    assert "\n" not in refused.value.message


def test_all_json_of_others_is_read_here():
    """Elsewhere a file that is nested deep would be a RecursionError."""
    folder = Path(ltr.__file__).parent
    readers = []
    for file in folder.rglob("*.py"):
        if re.search(r"json\.loads?\(", file.read_text(encoding="utf-8")):
            readers.append(str(file.relative_to(folder)))
    # What a process of the same run has said; and code for others, that knows nothing of ltr.
    assert sorted(readers) == [
        "entries.py",
        "run/together.py",
        "use/calibration/card_section.py",
        "use/proof/exported_check.py",
    ]


@dataclass
class Recipe:
    """As a plan is: a dataclass declares entries, too."""

    rows: int
    numbers: Literal["float32", "int8"] = "int8"


@dataclass
class Menu:
    """One that has another one."""

    first: Recipe | Inner


def test_in_the_place_of_entries_a_dataclass_may_stand_that_was_read_before():
    check_entries({"first": Recipe(3)}, Menu, "a.json", "mend it")
    with pytest.raises(InputError, match="first.n must be there, and is not"):
        check_entries({"first": {}}, Menu, "a.json", "mend it")
    with pytest.raises(InputError, match="first must be"):
        check_entries({"first": Menu(Recipe(3))}, Menu, "a.json", "mend it")


def test_a_dataclass_declares_entries_too():
    for fits in ({"rows": 3}, {"rows": 3, "numbers": "float32", "more": 1}):
        check_entries(fits, Recipe, "a.json", "mend it")
    for entries, said in (
        ({}, "rows must be there, and is not"),
        ({"rows": None}, "rows must be a whole number, got null"),
        ({"rows": 3, "numbers": "x"}, "numbers must be 'float32' or 'int8', got \"x\""),
    ):
        with pytest.raises(InputError, match=f"a.json: the file is damaged, {said}; mend it"):
            check_entries(entries, Recipe, "a.json", "mend it")
