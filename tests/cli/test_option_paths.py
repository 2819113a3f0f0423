"""The paths of options."""

from ltr.cli.option_paths import beginnings, is_at_or_below, value_at, without_init_args


def test_the_command_line_leaves_init_args_out():
    assert without_init_args("model.ranker.init_args.max_length") == "model.ranker.max_length"
    assert without_init_args("init_args.path") == "path"
    assert without_init_args("data.init_args_of_mine") == "data.init_args_of_mine"


def test_a_value_is_found_behind_init_args_and_without():
    config = {"data": {"class_path": "Lists", "init_args": {"path": "x", "labels": {"scores": 1}}}}
    assert value_at(config, "data.path") == "x"
    assert value_at(config, "data.init_args.path") == "x"
    assert value_at(config, "data.labels.scores") == 1
    assert value_at(config, "data.class_path") == "Lists"
    assert value_at(config, "data.path.deeper") is None
    assert value_at(config, "model.lr") is None
    assert value_at(None, "model.lr") is None


def test_an_option_stands_in_all_that_its_path_begins_with():
    assert list(beginnings("a.b.c")) == ["a", "a.b", "a.b.c"]
    assert is_at_or_below("data.path", "data") and is_at_or_below("data.path", "data.path")
    assert not is_at_or_below("data.path", "data.pa") and not is_at_or_below("data", "data.path")
