"""YAML files are read strictly: a key given twice, another encoding or no options is an error."""

import pytest

from ltr.errors import InputError
from ltr.run.yaml_files import read_yaml


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("model: {lr: 0.1}\n", {"model": {"lr": 0.1}}),
        ("# nothing\n", None),
        # A number and its text are two keys.
        ("1: x\n'1': y\n", {1: "x", "1": "y"}),
        # Two anchors may be merged.
        (
            "a: &a {x: 1}\nb: &b {y: 2}\nc:\n  <<: *a\n  <<: *b\n  z: 3\n",
            {"a": {"x": 1}, "b": {"y": 2}, "c": {"x": 1, "y": 2, "z": 3}},
        ),
        # Of several that have an option the first gives it; PyYAML 6.0.4 takes the last.
        (
            "a: &a {lr: 1}\nb: &b {lr: 2}\nc: {<<: [*a, *b]}\n",
            {"a": {"lr": 1}, "b": {"lr": 2}, "c": {"lr": 1}},
        ),
        # An option may stand beside the anchor that has it too: ``r`` is built before ``q``, and
        # the anchor that it merges has merged another one.
        (
            "base: &base {x: 1}\np: {q: &a {<<: *base, x: 2}}\nr: {<<: *a}\n",
            {"base": {"x": 1}, "p": {"q": {"x": 2}}, "r": {"x": 2}},
        ),
    ],
)
def test_options_are_read(tmp_path, text, options):
    file = tmp_path / "a.yaml"
    file.write_text(text)
    assert read_yaml(file) == options


def test_the_tags_of_yaml_make_no_objects(tmp_path):
    file = tmp_path / "a.yaml"
    ran = tmp_path / "ran"
    file.write_text(f"a: !!python/object/apply:os.mkdir [{ran}]\n")
    with pytest.raises(InputError, match=r":1: .* could not determine a constructor for the tag"):
        read_yaml(file)
    assert not ran.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [1\n", ":2: a grid must be YAML: "),
        (b"? [a]\n: b\n", ":1: a grid must be YAML: found unhashable key"),
        (b"c:\n  z: 3\n  y: 2\n  z: 3\n", ":4: a key must be given once, got 'z' again"),
        (b"a: \x01\n", ": a grid must be YAML: "),
        (b"a: caf\xe9\n", ": a grid must be UTF-8, got byte 0xe9; save the file as UTF-8"),
        (b"- a\n- b\n", ": a grid must be options with their values, got \"['a', 'b']\""),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path, content, message):
    file = tmp_path / "a.yaml"
    file.write_bytes(content)
    with pytest.raises(InputError) as error:
        read_yaml(file, "a grid")
    assert str(error.value).startswith(f"{file}{message}")
