"""The words of a command line, before a parser knows which options there are."""

from collections.abc import Iterator, Sequence
from itertools import pairwise


def values_of_option(words: Sequence[str], spellings: Sequence[str]) -> Iterator[str]:
    """The value of an option, once for each time that it is there: what stands behind ``=``, or the
    next word; empty where there is none.

    Args:
        words: of a command line.
        spellings: of the option, each with its dashes.
    """
    for word, next_word in pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        if name in spellings:
            yield value if equals else next_word


def split_off_option(words: Sequence[str], spellings: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words without an option that takes several of them, and these; of an option that is there
    twice the last ones.

    Args:
        words: of a command line.
        spellings: of the option, each with its dashes.
    """
    others: list[str] = []
    values: list[str] = []
    is_of_option = False
    for word in words:
        name, equals, value = word.partition("=")
        if word.startswith("-"):
            is_of_option = name in spellings
            if is_of_option:
                values = [value] if equals else []
                continue
        (values if is_of_option else others).append(word)
    return others, values


def split_off_paths(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words without the options that have a dot in their names, as those of a configuration
    (``--data.path PATH``), and these, each with its value.

    >>> split_off_paths(["run", "--data.path", "a", "--json", "b.c", "--model.lr=0.1"])
    (['run', '--json', 'b.c'], ['--data.path', 'a', '--model.lr=0.1'])
    """
    others: list[str] = []
    options: list[str] = []
    remaining = iter(words)
    for word in remaining:
        name, equals, _ = word.partition("=")
        if not name.startswith("--") or "." not in name:
            others.append(word)
            continue
        options.append(word)
        if not equals:
            options += [value for value in (next(remaining, None),) if value is not None]
    return others, options


def option_names(words: Sequence[str]) -> list[str]:
    """The options that words name, with their dashes."""
    return [word.partition("=")[0] for word in words if word.startswith("-")]
