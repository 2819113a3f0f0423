"""The table of commands: what follows from it."""

import re
from pathlib import Path

import pytest

from ltr.__main__ import main
from ltr.cli.commands import BY_NAME, COMMANDS, GROUPS, Group, command_of, near_command, usage
from ltr.errors import InputError

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_each_command_is_called_by_its_words_and_has_its_help(command, capsys):
    assert command_of([*command.name.split(), "RUN"]) is command
    if command.parses_itself:  # its options are a configuration's, for the most part
        assert callable(command.load())
        return
    with pytest.raises(SystemExit) as end:
        main([*command.name.split(), "--help"])
    told = capsys.readouterr().out
    assert end.value.code == 0 and told.startswith(f"usage: ltr {command.name}")
    assert command.load().__doc__.partition("\n")[0] in " ".join(told.split())


def test_the_help_has_a_line_for_each_command():
    for group in Group:
        commands = [each for each in COMMANDS if each.group is group]
        (part,) = re.findall(rf"^{group.value}\n((?:  .*\n)+)", usage(), flags=re.MULTILINE)
        shown = re.findall(r"^  (\S+ {2,}|  +)(\S.*)$", part, flags=re.MULTILINE)
        assert [line for _, line in shown] == [line for each in commands for line in each.help]
        names = [word.strip() for word, _ in shown if word.strip()]
        assert names == list(dict.fromkeys(each.name.partition(" ")[0] for each in commands))


@pytest.mark.parametrize("words", [[], ["help"], ["-h"], ["negatives", "--help"]])
def test_help_is_a_command_too(words, capsys):
    assert main(words) == 0
    assert capsys.readouterr().out == usage()


@pytest.mark.parametrize(
    ("word", "near"),
    [("tets", ["test"]), ("train", ["fit"]), ("audit", ["negatives audit"]), ("xyzzy", [])],
)
def test_what_was_probably_meant(word, near):
    assert near_command(word, list(BY_NAME)) == near


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_letter_too_many_is_told(command):
    with pytest.raises(InputError, match=f"did you mean ltr {command.name}"):
        command_of(f"{command.name}x".split())


def test_the_pages_name_commands_that_there_are():
    for page in PAGES:
        parts = page.read_text(encoding="utf-8").split("```")
        blocks = "\n".join(parts[1::2])
        words = re.findall(r"^(?:\S*/)?ltr ([a-z][\w-]*)", blocks, flags=re.MULTILINE)
        words += re.findall(r"`ltr ([a-z][\w-]*)", "".join(parts[::2]))
        assert set(words) <= BY_NAME.keys() | GROUPS, page.name
