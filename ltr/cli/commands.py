"""The commands of ltr: one table, from which follow what a word calls, ``ltr --help``, and what was
meant by a word that is no command. Imports nothing heavy.
"""

import difflib
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ltr.cli.near_names import did_you_mean
from ltr.errors import InputError

HELP = {"-h", "--help", "help"}


class Stdout(Enum):
    """What a command's stdout is for, and what is done for that before it runs."""

    RESULTS = "lines of progress go to stderr"
    MESSAGES = "the log goes to stdout, until nobody reads any more (ltr negatives diff … | head)"
    OWN = "nothing: the command arranges it"


class Group(Enum):
    """What a command is for: a part of ``ltr --help``."""

    TRAIN = "train"
    MEASURE = "measure"
    USE = "use"
    CORPUS = "corpus"
    MACHINE = "machine"


@dataclass(frozen=True)
class Command:
    """A command, and what ``ltr --help`` says of it.

    Args:
        name: one word, or that of a group and its own: ``negatives diff``.
        function: what runs it, as ``module:name``. It is imported when it is called: Lightning takes
            seconds to import. Its signature and docstring are the options and their help, see
            :func:`ltr.cli.arguments.call_with`.
        help: its lines of ``ltr --help``, behind the column of names.
        group: the part of ``ltr --help`` that has these lines.
        other_names: what it is called elsewhere: too differently for a likeness to show.
        stdout: what it is for.
        parses_itself: the function gets the words, with the name of the command before them, and not
            the values of its parameters.
        acts_by_rank_0: whether rank 0 alone hears a signal, saves, and ends the others. Else each
            process that a launcher starts works alone.
    """

    name: str
    function: str
    help: tuple[str, ...]
    group: Group = Group.TRAIN
    other_names: tuple[str, ...] = ()
    stdout: Stdout = Stdout.OWN
    parses_itself: bool = False
    acts_by_rank_0: bool = True

    @property
    def description(self) -> str:
        """What it does: the first line of its help, without the example."""
        first, _, _ = self.help[0].partition("  ")
        return f"{first[0].upper()}{first[1:]}."

    def load(self) -> Callable[..., Any]:
        """The function, imported now."""
        module, _, name = self.function.partition(":")
        function: Callable[..., Any] = vars(importlib.import_module(module))[name]
        return function


# LightningCLI calls the method of the trainer that has the name of the command. All but ``mine`` are
# Lightning's own, that one is ltr.cli.mine:MiningTrainer.mine.
COMMANDS = (
    Command(
        "import",
        "ltr.cli.import_data:import_data",
        ("data in any form, as a data folder   ltr import SOURCE FOLDER",),
        stdout=Stdout.MESSAGES,
    ),
    Command(
        "fit",
        "ltr.cli.training:run_configured",
        (
            "train a ranker               ltr fit --config recipe:cross_encoder --data.path PATH",
            "resume a run                 ltr fit runs/EXPERIMENT/seed=0",
        ),
        other_names=("train", "resume"),
        parses_itself=True,
    ),
    Command(
        "recipes",
        "ltr.cli.recipes:recipes",
        ("configurations that ship     ltr recipes; one of them: ltr recipes NAME > FILE",),
        stdout=Stdout.RESULTS,
    ),
    Command(
        "demo",
        "ltr.cli.demo:demo",
        ("train on the sample that ships, and compare with BM25   ltr demo",),
        other_names=("example", "quickstart"),
    ),
    Command(
        "validate",
        "ltr.cli.training:run_configured",
        ("measure it on the dev split  ltr validate runs/EXPERIMENT/seed=0",),
        Group.MEASURE,
        parses_itself=True,
    ),
    Command(
        "test",
        "ltr.cli.measuring:run_test",
        (
            "measure it on the test split, and write test.run, per_query.tsv, metrics.json",
            "on several data sets         ltr test RUN --data.path A B suite:nanobeir",
            "on other splits              ltr test RUN --split test test.clean",
        ),
        Group.MEASURE,
        other_names=("eval", "evaluate"),
        parses_itself=True,
    ),
    Command(
        "predict",
        "ltr.cli.training:run_configured",
        ("rank the test candidates, and write predict.run",),
        Group.MEASURE,
        parses_itself=True,
    ),
    Command(
        "rank",
        "ltr.cli.rank:rank",
        ('order texts for a query      ltr rank RUN --query "…" --documents FILE',),
        Group.USE,
        other_names=("rerank",),
        stdout=Stdout.RESULTS,
    ),
    Command(
        "calibrate",
        "ltr.cli.calibrate:calibrate",
        ("probabilities, and thresholds with a promise, found on dev   ltr calibrate RUN",),
        Group.USE,
        stdout=Stdout.RESULTS,
    ),
    Command(
        "search",
        "ltr.cli.search:search",
        ("search a corpus              ltr search RUN --corpus PATH",),
        Group.USE,
        other_names=("retrieve",),
        stdout=Stdout.RESULTS,
    ),
    Command(
        "encode",
        "ltr.cli.encode:encode",
        ("a corpus, on any number of machines   ltr encode RUN --corpus PATH --output FOLDER",),
        Group.CORPUS,
        stdout=Stdout.RESULTS,
        acts_by_rank_0=False,
    ),
    Command(
        "export",
        "ltr.cli.export_ranker:export",
        ("for sentence-transformers, transformers or ONNX   ltr export RUN FOLDER",),
        Group.USE,
        stdout=Stdout.RESULTS,
    ),
    Command(
        "push",
        "ltr.cli.push:push",
        ("to the hub, private; --dry_run shows what would go   ltr push RUN USER/NAME",),
        Group.USE,
        other_names=("upload", "publish"),
        stdout=Stdout.RESULTS,
    ),
    Command(
        "verify",
        "ltr.cli.verify:verify",
        (
            "does a library or a server compute what an exported ranker does?   ltr verify FOLDER --with URL",
        ),
        Group.USE,
        stdout=Stdout.RESULTS,
    ),
    Command(
        "export-corpus",
        "ltr.cli.export_corpus:export_corpus",
        ("as Parquet or for faiss   ltr export-corpus ENCODED --format parquet --output FILE",),
        Group.CORPUS,
        stdout=Stdout.RESULTS,
    ),
    Command(
        "score",
        "ltr.cli.score:score",
        ("a teacher's scores, to distil  ltr score RUN --data PATH --output FOLDER",),
        other_names=("distil",),
        stdout=Stdout.RESULTS,
    ),
    Command(
        "check",
        "ltr.cli.check:run_check",
        (
            "before a run: leaks, judgements, cuts, what dev can show, what it takes   ltr check --config FILE",
        ),
        parses_itself=True,
    ),
    Command(
        "compare",
        "ltr.cli.compare:compare",
        (
            "is their difference real?    ltr compare runs/EXPERIMENT runs/OTHER",
            "of rankings of others        ltr compare bm25.trec api=api.*.jsonl --data PATH",
        ),
        Group.MEASURE,
    ),
    Command(
        "measure",
        "ltr.cli.measure:measure",
        ("rankings that lie in files   ltr measure bm25.trec --qrels FILE",),
        Group.MEASURE,
        other_names=("trec_eval",),
        stdout=Stdout.RESULTS,
    ),
    Command(
        "grid",
        "ltr.cli.grid:run_grid",
        ("a family of experiments      ltr grid FILE",),
        parses_itself=True,
    ),
    Command(
        "reproduce",
        "ltr.cli.reproduce:reproduce",
        ("train and test a run again   ltr reproduce runs/EXPERIMENT/seed=0",),
        Group.MEASURE,
    ),
    Command(
        "mine",
        "ltr.cli.training:run_configured",
        ("mine hard negatives          ltr mine runs/EXPERIMENT/seed=0",),
        parses_itself=True,
    ),
    Command(
        "negatives import",
        "ltr.cli.negatives:import_negatives",
        ("import SOURCE OUTPUT         make negatives of a TREC run, .npy or rows of ids",),
        stdout=Stdout.MESSAGES,
    ),
    Command(
        "negatives diff",
        "ltr.cli.negatives:diff",
        ("diff FOLDER FOLDER           compare two folders of negatives",),
        other_names=("diff",),
        stdout=Stdout.MESSAGES,
    ),
    Command(
        "negatives audit",
        "ltr.cli.negatives:audit",
        ("audit FOLDER --judge MODEL   list likely false negatives, and drop or relabel them",),
        other_names=("audit",),
        stdout=Stdout.MESSAGES,
    ),
    Command(
        "labels import",
        "ltr.cli.import_judge:import_judge",
        ("import FILE --by JUDGE --data PATH   keep labels of a machine beside those of people",),
        Group.MEASURE,
        stdout=Stdout.MESSAGES,
    ),
    Command(
        "doctor",
        "ltr.cli.doctor:doctor",
        ("check what this machine computes: kernels, search, processes   ltr doctor",),
        Group.MACHINE,
    ),
    Command(
        "cache",
        "ltr.cli.cache:cache",
        ("what lies in the folder of derived data; --remove what no run uses   ltr cache",),
        Group.MACHINE,
    ),
)
BY_NAME = {command.name: command for command in COMMANDS}
GROUPS = {name.partition(" ")[0] for name in BY_NAME if " " in name}

BEFORE_COMMANDS = """\
ltr: train, compare and understand text rankers.

usage: ltr COMMAND [RUN] [options]      (or python -m ltr COMMAND [RUN] [options])

"""
BEHIND_COMMANDS = """\

Options of a command: ltr COMMAND --help; its whole configuration: ltr COMMAND --config FILE --print_config.
A run lies in runs/EXPERIMENT/seed=N/: its configuration, its best and its last weights, its results.
Exit codes: 0 done, 2 for what you can mend (one line says what), 130 Ctrl-C, 143 SIGTERM, 138 SIGUSR1, 140 SIGUSR2 and 129 SIGHUP (all save first),
141 where nobody reads the output any more, 1 a mistake of ours, or wrong numbers found by ltr doctor or ltr verify.
LTR_DEBUG=1 shows the traceback of an error, LTR_CACHE sets the folder of derived data (else $XDG_CACHE_HOME/ltr or ~/.cache/ltr).
"""


def usage() -> str:
    """What ``ltr --help`` prints. A word before several commands stands in the column of names once,
    and so does a command of several lines.
    """
    lines = []
    last_word = ""
    for group in Group:
        lines.append(f"{group.value}\n")
        for command in COMMANDS:
            if command.group is not group:
                continue
            for line in command.help:
                word = command.name.partition(" ")[0]
                shown = "" if word == last_word else word
                lines.append(f"  {shown:<13}  {line}\n")
                last_word = word
    return BEFORE_COMMANDS + "".join(lines) + BEHIND_COMMANDS


def asks_for_usage(command_line: Sequence[str]) -> bool:
    """Whether the words ask for the help of all commands: none, or that of a group."""
    if not command_line or command_line[0] in HELP:
        return True
    return command_line[0] in GROUPS and command_line[1:2] != [] and command_line[1] in HELP


def command_of(command_line: Sequence[str]) -> Command:
    """The command that the first two words call, or the first one.

    Args:
        command_line: not empty.

    Raises:
        InputError: for words that call none, with the command that was probably meant.
    """
    command = find_command(command_line)
    if command is not None:
        return command
    first, *others = command_line
    if first in GROUPS:
        word = others[0] if others else ""
        raise _no_command(word, f"the word after ltr {first}", f"{first} ")
    raise _no_command(first, "the command", "")


def find_command(command_line: Sequence[str]) -> Command | None:
    """The command that the first two words call, or the first one; None where they call none."""
    for name in (" ".join(command_line[:2]), *command_line[:1]):
        if name in BY_NAME:
            return BY_NAME[name]
    return None


def _no_command(word: str, what: str, group: str) -> InputError:
    """What is said of a word, or of none, in the place of a command, behind that of its group."""
    known = [name.removeprefix(group) for name in BY_NAME if name.startswith(group)]
    choices = f"{what} must be one of {', '.join(known)}"
    if word == "" or word.startswith("-"):
        return InputError(f"{choices}; see ltr --help")
    near = near_command(word, known)
    if not near:
        return InputError(f"{choices}, got {word!r}; see ltr --help")
    meant = did_you_mean(f"ltr {group}{name}" for name in near)
    return InputError(f"there is no command '{group}{word}'{meant} (all commands: ltr --help)")


def near_command(word: str, known: Sequence[str]) -> list[str]:
    """The command that was meant by a word; none if no command is like it.

    Args:
        word: that is no command.
        known: the names that it may stand for: at the top with their group (``negatives diff``),
            and below a group without, so other names lead to a group's commands at the top alone.
    """
    for command in COMMANDS:
        if word in command.other_names and command.name in known:
            return [command.name]
    return difflib.get_close_matches(word, known, n=1)
