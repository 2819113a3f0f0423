"""YAML files are read strictly: a key given twice, another encoding or no options is an error."""

import re

import pytest

from ltr.errors import InputError
from ltr.run.yaml_files import read_yaml


def test_options_are_read_and_an_empty_file_has_none(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("model: {lr: 0.1}\n")
    assert read_yaml(file) == {"model": {"lr": 0.1}}
    file.write_text("# nothing\n")
    assert read_yaml(file) is None


def test_two_anchors_may_be_merged_and_one_key_may_not_stand_twice(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("a: &a {x: 1}\nb: &b {y: 2}\nc:\n  <<: *a\n  <<: *b\n  z: 3\n")
    assert read_yaml(file)["c"]["z"] == 3
    file.write_text("c:\n  z: 3\n  y: 2\n  z: 3\n")
    message = f"{file}:4: a key must be given once, got 'z' again"
    with pytest.raises(InputError, match=re.escape(message)):
        read_yaml(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [1\n", ":2: a grid must be YAML: "),
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
