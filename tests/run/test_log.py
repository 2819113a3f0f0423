"""Messages go to the terminal or to the file of the run alone."""

import logging

import pytest

from ltr.run.log import route_messages
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


def test_a_text_in_a_message_does_not_steer_the_terminal(capsys):
    """``ltr negatives diff`` and ``audit`` say texts. Line ends and tabs are no control."""
    with route_messages(is_rank_0=True):
        logging.getLogger("ltr.x").info("q1:\n\tred \x1b]0;title\x07 \u202eback \x9b5m\r")
        logging.getLogger("ltr.x").warning("d1: \x1b[31mred")
    assert capsys.readouterr() == ("q1:\n\tred �]0;title� �back �5m�\n", "d1: �[31mred\n")


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


@pytest.mark.skipif(not FULL.exists(), reason="a device of Linux")
def test_an_output_that_finds_no_room_is_said_once_where_a_run_has_its_log(
    tmp_path, capsys, monkeypatch
):
    """As in ``ltr fit … > FILE`` on a full disk: hours of training do not end by it."""
    file = tmp_path / "train.log"
    with FULL.open("w") as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        with route_messages(is_rank_0=True) as log_into:
            log_into(file)
            for text in ("one", "two"):
                logging.getLogger("ltr.x").info(text)
        stdout.flush()  # holds nothing that it could not write
    assert capsys.readouterr().err == (
        "ltr: the output is not written any more: No space left on device; "
        f"what is said is in {file}\n"
    )
    assert [line.split(": ")[1] for line in file.read_text().splitlines()] == ["one", "two"]


@pytest.mark.skipif(not FULL.exists(), reason="a device of Linux")
def test_an_output_that_finds_no_room_ends_a_command_that_says_its_results(capsys, monkeypatch):
    """As ``ltr negatives diff``, which writes them nowhere else."""
    with FULL.open("w") as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        with route_messages(is_rank_0=True), pytest.raises(OSError, match="No space left"):
            logging.getLogger("ltr.x").info("one")
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(not FULL.exists(), reason="a device of Linux")
def test_warnings_that_find_no_room_end_nothing(monkeypatch):
    with FULL.open("w") as stderr:
        monkeypatch.setattr("sys.stderr", stderr)
        with route_messages(is_rank_0=True):
            logging.getLogger("ltr.x").warning("one")
        stderr.flush()
