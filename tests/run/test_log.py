"""Messages go to the terminal or to the file of the run alone, and times are said in words."""

import logging

import pytest

from ltr.run.log import duration, route_messages
from tests.cli.test_program import FULL


def test_what_is_ours_is_on_the_terminal_and_everything_is_in_the_file(tmp_path, capsys):
    """Also what was said before the file had a name; warnings go to the other stream."""
    file = tmp_path / "run/train.log"
    ours = logging.getLogger("ltr.x")
    others = logging.getLogger("lightning.pytorch")
    with route_messages(is_rank_0=True) as log_into:
        ours.info("early")
        log_into(file)
        ours.warning("careful")
        others.warning("theirs")
    said = capsys.readouterr()
    assert said.out == "early\n" and said.err == "careful\n"
    words = [line.split(": ", 1)[1] for line in file.read_text().splitlines()]
    assert words == ["early", "careful", "theirs"]


def test_other_processes_say_and_write_nothing(tmp_path, capsys):
    with route_messages(is_rank_0=False) as log_into:
        log_into(tmp_path / "run/train.log")
        logging.getLogger("ltr.x").info("said by all")
    assert capsys.readouterr() == ("", "") and not (tmp_path / "run").exists()


def test_the_handlers_from_before_are_there_again(tmp_path):
    loggers = [logging.getLogger(name) for name in ("ltr", "lightning.pytorch")]
    before = [logger.handlers[:] for logger in loggers]
    with route_messages(is_rank_0=True):
        assert [logger.handlers for logger in loggers] != before
    assert [logger.handlers for logger in loggers] == before


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.4, "0 s"),
        (41, "41 s"),
        (59.6, "1 min 00 s"),
        (200, "3 min 20 s"),
        (3600 * 2 + 60 * 5 + 7, "2 h 05 min"),
    ],
)
def test_a_duration_in_words(seconds, words):
    assert duration(seconds) == words


@pytest.mark.skipif(not FULL.exists(), reason="a device of Linux")
def test_a_log_that_finds_no_room_is_said_once(capsys):
    with route_messages(is_rank_0=True) as into:
        into(FULL)
        for text in ("one", "two"):
            logging.getLogger("ltr.run").info(text)
    said = capsys.readouterr()
    assert (
        said.out == "one\ntwo\n"
        and said.err == "ltr: /dev/full is not written any more: No space left on device\n"
    )
