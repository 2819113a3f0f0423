"""A command is a function: what its signature makes of the words of a command line."""

import pytest

from ltr.cli.arguments import call_with
from ltr.errors import InputError


def calls_of(args: str, **given) -> list[tuple]:
    calls = []

    def command(
        runs: list[str],
        *,
        data: str,
        k: int | None = None,
        metric: list[str] | None = None,
        seeds: list[int] | None = None,
        table: bool = False,
        note: str = "",
    ) -> None:
        """Do something with runs.

        Args:
            runs: Where they lie.
            data: A data folder.
            k: How many.
            metric: Their names.
            seeds: Their numbers.
            table: Only print.
            note: Not of the command line.
        """
        calls.append((runs, data, k, metric, seeds, table, note))

    call_with(command, args.split(), "ltr command", **given)
    return calls


def test_positional_parameters_are_words_and_the_others_options():
    assert calls_of("a b --data d") == [(["a", "b"], "d", None, None, None, False, "")]
    assert calls_of("--k=3 --data d a") == [(["a"], "d", 3, None, None, False, "")]


def test_lists_take_several_words_and_a_switch_none():
    words = "a --metric AP RR --table --seeds 1 2 --data d"
    assert calls_of(words) == [(["a"], "d", None, ["AP", "RR"], [1, 2], True, "")]


def test_what_is_given_is_no_option():
    assert calls_of("a --data d", note="hidden")[0][-1] == "hidden"
    expected = r"there is no option --note \(all options: ltr command --help\)"
    with pytest.raises(InputError, match=expected):
        calls_of("a --data d --note x", note="hidden")


REQUIRED = "the following arguments are required"
LIKE_DATA = "did you mean --data? (all options: ltr command --help)"
REFUSED = {
    "a": f"{REQUIRED}: data; see ltr command --help",
    "--data d": f"{REQUIRED}: runs; see ltr command --help",
    "a --data d --k two": "k: must be int, got two; see ltr command --help",
    "a --data d --dat e": f"there is no option --dat; {LIKE_DATA}",
    "a --data.path d": f"there is no option --data.path; {LIKE_DATA}",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_does_not_fit_is_one_line(words):
    with pytest.raises(InputError) as error:
        calls_of(words)
    assert str(error.value) == REFUSED[words]


def test_the_help_is_the_docstring(capsys):
    with pytest.raises(SystemExit) as end:
        calls_of("--help")
    page = capsys.readouterr().out
    assert end.value.code == 0
    for text in ("usage: ltr command", "Do something with runs.", "Their names", "A data folder"):
        assert text in page
