"""Texts that others wrote do not steer the terminal, wherever they are printed."""

import ast
import io
import logging
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from rich.progress import Progress
from rich.table import Table

import ltr
from ltr.__main__ import main
from ltr.data.console import Console, printable_warnings, say, without_controls
from tests.world.tested_runs import write_run

RED = "\x1b[31mred"
# A title of the window, the beginning of a sequence in one character, an order turned round, a
# carriage return over what was said, and a byte of a path that is no text.
STEERING = ("\x1b]0;title\x07", "\x9b31m", "\u202eevil", "said\rmore", "\udcff")


@pytest.mark.parametrize("text", [RED, *STEERING])
def test_what_steers_is_shown_as_a_mark(text):
    shown = without_controls(f"a\tb\n{text} é 中 \u200d")
    assert shown.startswith("a\tb\n") and shown.endswith(" é 中 \u200d") and "�" in shown
    assert without_controls(shown) == shown
    shown.encode()


@pytest.mark.parametrize("text", [RED, *STEERING])
def test_a_line_and_a_table_show_it_so(text, capsys):
    say("folder", text, sep="\t")
    say(text, to=sys.stderr)
    printed = capsys.readouterr()
    assert printed.out == f"folder\t{without_controls(text)}\n"
    assert printed.err == f"{without_controls(text)}\n"
    file = io.StringIO()
    console = Console(file=file, width=60, force_terminal=True, color_system="standard")
    table = Table("name", title=text)
    table.add_row(text.replace("[", r"\["), style="bold")
    console.print(table)
    console.print(text, markup=False, highlight=False, style="bold")
    of_rich = file.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "").replace("\x1b[3m", "")
    assert without_controls(of_rich) == of_rich and "\x1b[1m" in file.getvalue()


def test_a_bar_still_moves():
    file = io.StringIO()
    console = Console(file=file, width=60, force_terminal=True)
    with Progress(console=console, transient=True) as progress:
        progress.add_task("encoding", total=2)
    assert "\x1b[" in file.getvalue() and "encoding" in file.getvalue()


def test_what_a_library_warns_of_is_shown_so():
    before = warnings.formatwarning
    with printable_warnings():
        told = warnings.formatwarning(UserWarning(RED), UserWarning, "file.py", 1)
    assert "UserWarning: �[31mred" in told and "\x1b" not in told
    assert warnings.formatwarning is before


@pytest.mark.parametrize(
    "words",
    [
        ["rank", "runs/none", "--query", "w1", "--documents", f"/no/{RED}"],
        ["rank", f"/no/{RED}", "--query", "w1", "--documents", "-"],
        ["compare", f"no {RED}", "two\nlines"],
        [RED],
        ["rank", "runs/none", f"--{RED}"],
        ["check", "--config", f"/no/{RED}.yaml"],
        ["export", f"/no/{RED}", "out"],
        ["negatives", "import", f"{RED}.npy", "out", "--data", "none"],
        ["cache", RED],
        ["encode", "runs/none", "--corpus", "none", "--output", f"/no/{RED}/out"],
        ["grid", f"{RED}.yaml"],
        ["fit", "--model.loss", RED],
        ["fit", "--config", f"{RED}.yaml"],
        ["fit", f"--model.{RED}", "1"],
        ["test", RED],
        ["mine", RED],
    ],
    ids=lambda words: " ".join(words[:2]).replace(RED, "RED"),
)
def test_an_error_is_one_line_that_steers_nothing(words, here, capsys):
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("ltr: ") and printed.err.count("\n") == 1
    assert without_controls(printed.err) == printed.err and "\x1b" not in printed.out


def test_an_experiment_whose_name_steers_is_compared(tmp_path, capsys):
    """On the terminal, as Markdown, LaTeX and HTML; the CSV keeps the name for programs."""
    rng = np.random.default_rng(0)
    write_run(tmp_path / "a", rng.uniform(size=40))
    write_run(tmp_path / RED, rng.uniform(size=40))
    files = []
    for form in ("markdown", "latex", "html", "csv"):
        files += [f"--{form}", str(tmp_path / f"{RED}.{form}")]
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / RED), *files]) == 0
    printed = capsys.readouterr()
    assert "\x1b" not in printed.out + printed.err and "�[31mred" in printed.out
    for form in ("markdown", "latex", "html"):
        assert "\x1b" not in (tmp_path / f"{RED}.{form}").read_text()
    assert RED in (tmp_path / f"{RED}.csv").read_text()


def test_all_is_printed_at_one_place():
    """Beside it only the usage, rankings for other programs, a question, and the script of a proof,
    which stands alone.
    """
    allowed = {"data/console.py", "use/proof/exported_check.py"}
    prints = {"cli/program.py": 2, "cli/rank_and_search.py": 1, "cli/search.py": 1}
    root = Path(ltr.__file__).parent
    for file in sorted(root.rglob("*.py")):
        name = str(file.relative_to(root))
        if name in allowed:
            continue
        text = file.read_text()
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
        n_prints = sum(ast.unparse(call.func) == "print" for call in calls)
        assert n_prints == prints.get(name, 0), f"{name}: take ltr.data.console.say"
        assert "rich.console" not in text, f"{name}: take ltr.data.console.Console"


def test_the_log_of_a_run_steers_nothing(tmp_path):
    """It is read on a terminal, too."""
    from ltr.run.log import route_messages

    with route_messages(is_rank_0=True) as log_into:
        log_into(tmp_path / "train.log")
        logging.getLogger("ltr.here").info("the source %s", RED)
    assert "the source �[31mred" in (tmp_path / "train.log").read_text()
