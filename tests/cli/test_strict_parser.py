"""``null`` as a word means what it means in a file, wherever the option stands."""

import pytest

from ltr.cli.parsed import ParsedCommand
from ltr.errors import InputError
from tests.world.configurations import write_config

# Options that may have no value, of a class and of a group of a class, with one that is there before.
OPTIONS = {
    "data.evaluation.candidates": "bm25",
    "data.evaluation.depth": "7",
    "data.evaluation.fold": "{number: 0, of: 3}",
    "data.labels.scores": "scores",
    "data.labels.divide_by": "3",
    "data.bm25.stopwords": "en",
    "data.negatives_depth": "5",
    "model.ranker.template": "{query: '{query}'}",
    "model.lr": "0.1",
    "best.monitor": "val/AP",
}


def value_of(options, path: str):
    for name in path.split("."):
        options = options[name] if name in options else options.init_args[name]
    return options


@pytest.fixture(scope="module")
def config(tmp_path_factory, backbone):
    folder = tmp_path_factory.mktemp("null")
    return write_config(folder, backbone, folder / "nowhere")


def parsed(config, words: list[str]):
    return ParsedCommand(["fit", "--config", str(config), *words]).options


def test_null_takes_a_value_away(config):
    given: list[str] = []
    for option, value in OPTIONS.items():
        given += [f"--{option}", value]
    options = parsed(config, given)
    assert all(value_of(options, option) is not None for option in OPTIONS)
    apart: list[str] = []
    for option in OPTIONS:
        apart += [f"--{option}", "null"]
    for nulls in (apart, [f"--{option}=null" for option in OPTIONS]):
        options = parsed(config, [*given, *nulls])
        assert all(value_of(options, option) is None for option in OPTIONS)


def test_null_is_refused_where_there_must_be_a_value(config):
    for option in ("data.evaluation.batch_size", "data.labels.unscored", "data.batch_size"):
        with pytest.raises(InputError, match=option):
            parsed(config, [f"--{option}", "null"])


def test_a_word_that_ends_so_is_a_word(config):
    options = parsed(config, ["--data.labels.scores", "of=None"])
    assert value_of(options, "data.labels.scores") == "of=None"
