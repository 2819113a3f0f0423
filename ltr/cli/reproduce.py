"""``ltr reproduce``: train and test a run again, and say whether the numbers are the same."""

import math
import statistics
from contextlib import suppress
from pathlib import Path

import jsonargparse
from scipy import stats

from ltr.cli.arguments import data_elsewhere
from ltr.cli.process import call
from ltr.compare.runs import Run, check_alike, experiments, is_tested, read_run
from ltr.errors import InputError
from ltr.run.folder import RunFolder

SAME = 1e-6  # what float32 sums may differ by on the same machine


def run(args: list[str]) -> None:
    """Parse the arguments after ``ltr reproduce``, and do what they say."""
    parser = jsonargparse.ArgumentParser(
        prog="ltr reproduce", description=__doc__, exit_on_error=False, allow_abbrev=False
    )
    parser.add_argument("run", help="A run folder, or its metrics.json.")
    help = "Where it is trained again; RUN/reproduced. What is there is resumed."
    parser.add_argument("--output", type=str | None, default=None, help=help)
    asked = parser.parse_args(args)
    given = Path(asked.run)
    folder = given
    if given.name == RunFolder(given.parent).results.name:
        folder = given.parent
    then = read_run(folder)
    if not then.config:
        raise InputError(
            f"{folder} has no config.yaml, so nobody knows how it was trained; restore it"
        )
    again = Path(asked.output or folder / "reproduced")
    if again.resolve() == folder.resolve():
        raise InputError(f"--output must be a folder of its own, got that of the run, {folder}")
    where = ["--trainer.default_root_dir", str(again), *data_elsewhere(RunFolder(folder))]
    if not RunFolder(again).config.is_file() or not is_tested(again):
        call(["fit", "--config", str(RunFolder(folder).config), *where, "--ckpt_path", "last"])
        measured = Path(then.test.get("checkpoint") or "").name
        tested = "last" if measured == RunFolder(folder).last.name else "best"
        call(["test", str(again), "--ckpt_path", tested])
    now = read_run(again)
    if (now.seed, now.identity) != (then.seed, then.identity):
        raise InputError(
            f"{again} holds a run of other options than {folder}; remove it, or name another folder (--output)"
        )
    made = now.test.get("made", {})
    print(
        f"{again} was tested on {made.get('date')}, by ltr {made.get('ltr')} {made.get('commit', '')}; remove it to train again"
    )
    for line in told(then, now, _siblings(folder)):
        print(line)


def _siblings(folder: Path) -> list[Run]:
    """The other seeds of the experiment, as far as they can be compared."""
    found = []
    own = folder.absolute()
    for other in sorted(own.parent.glob("seed=*")):
        if other != own:
            with suppress(InputError):
                (both,) = experiments([str(own), str(other)])
                for metric in both.runs[0].test["conventions"]:
                    check_alike([both], metric)
                found.append(read_run(other))
    return found


def told(then: Run, now: Run, others: list[Run]) -> list[str]:
    """A line for each metric: *same*, *within seeds* (a further seed may be as far away), or *not*.

    Within seeds is what lies in the 95 % prediction interval of one further seed, by the seeds that
    are there.

    Raises:
        InputError: if they were tested on other data.
    """
    if then.test["evaluated"] != now.test["evaluated"]:
        raise InputError(
            f"{now.folder} was tested on other data than {then.folder}; restore the data"
        )
    lines = []
    for metric in then.test["conventions"]:
        old, new = (
            float("nan") if one.test[metric] is None else one.test[metric] for one in (then, now)
        )
        values = [old, *(one.test[metric] for one in others if one.test.get(metric) is not None)]
        if abs(old - new) <= SAME * max(1.0, abs(old)) or (math.isnan(old) and math.isnan(new)):
            verdict = "same"
        elif len(values) < 3:
            verdict = "not the same; there are no three seeds to say what a seed is worth"
        else:
            mean = statistics.mean(values)
            deviation = statistics.stdev(values)
            reach = (
                float(stats.t.ppf(0.975, len(values) - 1))
                * deviation
                * math.sqrt(1 + 1 / len(values))
            )
            verdict = f"{'within seeds' if abs(new - mean) <= reach else 'not within seeds'} ({mean:.4f} ± {reach:.4f})"
        lines.append(f"{metric}: {old:.4f} then, {new:.4f} now: {verdict}")
    return lines
