"""What ``ltr fit --help`` offers."""

import inspect
import re

import pytest
from lightning.pytorch import Trainer

import ltr.models
from ltr.__main__ import main
from ltr.cli.commands import COMMANDS
from ltr.cli.option_help import LINES, NOT_OFFERED, OF_TRAINING
from ltr.losses import LOSSES
from ltr.run.trainer_checks import REFUSED


@pytest.fixture(scope="module")
def help_of():
    """``help_of(words)``: what the words print, on a terminal of 80 letters."""
    kept: dict[str, str] = {}

    def printed(words: str, capsys, monkeypatch) -> str:
        monkeypatch.setenv("COLUMNS", "80")
        if words not in kept:
            with pytest.raises(SystemExit) as end:
                main(words.split())
            assert end.value.code == 0
            kept[words] = capsys.readouterr().out
        return kept[words]

    return printed


def test_it_is_short_and_begins_with_our_options(help_of, capsys, monkeypatch):
    text = help_of("fit --help", capsys, monkeypatch)
    lines = text.splitlines()
    assert len(lines) <= 200 and max(map(len, lines[:6])) < 80
    assert text.startswith("usage: ltr fit --config FILE [options]\n       ltr fit RUN [options]\n")
    heads = [
        line.partition(":")[0].partition(";")[0] for line in lines if re.match(r"\w.*:$", line)
    ]
    assert heads == [
        "options",
        "model",
        "data",
        "best weights",
        "last weights",
        "ltr fit",
        "trainer",
    ]


@pytest.mark.parametrize("command", [each.name for each in COMMANDS])
def test_no_help_is_longer_than_200_lines(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    try:
        code = main([*command.split(), "--help"])
    except SystemExit as end:
        code = end.code
    lines = capsys.readouterr().out.splitlines()
    assert code == 0 and 0 < len(lines) <= 200


def test_options_of_training_are_offered_by_fit_alone(help_of, capsys, monkeypatch):
    """What is measured or mined is the same whatever they say."""
    offered = re.compile(r"^  --(trainer\.\w+)", flags=re.MULTILINE)
    of_fit = set(offered.findall(help_of("fit --help", capsys, monkeypatch)))
    for command in ("mine", "validate"):
        shown = set(offered.findall(help_of(f"{command} --help", capsys, monkeypatch)))
        assert of_fit - shown == OF_TRAINING and shown < of_fit


def test_each_option_of_the_trainer_has_one_line(help_of, capsys, monkeypatch):
    """But those that are refused, or have no effect here."""
    text = help_of("fit --help", capsys, monkeypatch)
    shown = re.findall(r"^  --trainer\.(\w+) +(\S.*)$", text, flags=re.MULTILINE)
    hidden = {name.removeprefix("trainer.") for name in NOT_OFFERED}
    of_lightning = inspect.signature(Trainer).parameters.keys()
    assert len(shown) == len(dict(shown)) and dict(shown).keys() == of_lightning - hidden
    assert LINES.keys() == dict(shown).keys()
    assert not re.search(r"--(trainer\.)?(barebones|weights_only|enable_checkpointing)", text)


def test_classes_are_offered_by_name_and_none_that_is_internal_or_refused(
    help_of, capsys, monkeypatch
):
    text = help_of("fit --help", capsys, monkeypatch)
    everything = f"{text}{help_of('fit --help.trainer', capsys, monkeypatch)}"
    words = set(re.findall(r"\w+", everything))
    assert LOSSES.keys() <= words and set(ltr.models.__all__) - {"Ranker"} <= words
    assert {"Health", "EarlyStopping", "WandbLogger", "TripletDataModule"} <= words
    internal = {"ResultsWriter", "Checkpoints", "RunBar", "ProgressLines", "WriteConfig"}
    internal |= {"EndWatchCallback", "KeptForecast", "PoolDataModule", "PairRanker", "Timer"}
    assert not words & (internal | {kind.__name__ for kind in REFUSED})
    for words_of_lightning in ("paramref", ":class:", "``"):
        assert words_of_lightning not in text


@pytest.mark.parametrize("option", ["barebones true", "enable_checkpointing false"])
def test_what_is_not_offered_is_refused(option, config):
    assert main(f"fit --config {config} --trainer.{option}".split()) == 2
