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


def test_an_option_may_stand_beside_the_anchor_that_has_it_too(tmp_path):
    """``r`` is built before ``q``, and the anchor that it merges has merged another one."""
    file = tmp_path / "a.yaml"
    file.write_text("base: &base {x: 1}\np: {q: &a {<<: *base, x: 2}}\nr: {<<: *a}\n")
    assert read_yaml(file) == {"base": {"x": 1}, "p": {"q": {"x": 2}}, "r": {"x": 2}}


def test_of_several_anchors_the_first_that_has_an_option_gives_it(tmp_path):
    """As YAML has it; PyYAML 6.0.4 takes the last."""
    file = tmp_path / "a.yaml"
    file.write_text("a: &a {lr: 1}\nb: &b {lr: 2}\nc: {<<: [*a, *b]}\n")
    assert read_yaml(file)["c"] == {"lr": 1}


def test_a_number_and_its_text_are_two_keys(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("1: x\n'1': y\n")
    assert read_yaml(file) == {1: "x", "1": "y"}


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
