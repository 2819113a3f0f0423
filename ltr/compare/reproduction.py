"""A run that was made again: are its numbers those of the first time?"""

import math
import statistics
from contextlib import suppress
from pathlib import Path

from scipy import stats

from ltr.compare.experiment import check_alike, read_experiments
from ltr.compare.tested_run import Run, read_run
from ltr.errors import InputError

SAME = 1e-6  # what float32 sums may differ by on the same machine
LEAST_SEEDS = 3  # for an interval of one more seed


def other_seeds(folder: Path) -> list[Run]:
    """The other seeds of the experiment of a run, as far as they can be compared with it."""
    others = []
    own = folder.absolute()
    for other in sorted(own.parent.glob("seed=*")):
        if other == own:
            continue
        with suppress(InputError):
            read = read_experiments([str(own), str(other)])
            if len(read) > 1:  # the folders say that they are no seeds of one experiment
                continue
            for metric in read[0].runs[0].report["conventions"]:
                check_alike(read, metric)
            others.append(read_run(other))
    return others


def reproduction_lines(then: Run, now: Run, others: list[Run]) -> list[str]:
    """A line for each metric. It ends in *same*, *within seeds* (a further seed may be as far away),
    *not within seeds*, or *not the same* where there are too few seeds to say.

    Within seeds is what lies in the 95 % prediction interval of one further seed, by the seeds that
    are there: mean ± t · s · √(1 + 1/n), with the deviation s of n seeds and the quantile t of
    Student's distribution with n − 1 degrees of freedom.

    Raises:
        InputError: if the two were tested on other data.
    """
    if then.report["evaluated"] != now.report["evaluated"]:
        raise InputError(
            f"{now.folder} was tested on other data than {then.folder}; restore the data"
        )
    lines = []
    for metric in then.report["conventions"]:
        old = then.mean(metric)
        new = now.mean(metric)
        seeds = [old, *(other.mean(metric) for other in others if metric in other.report)]
        verdict = _verdict(old, new, [value for value in seeds if not math.isnan(value)])
        lines.append(f"{metric}: {old:.4f} then, {new:.4f} now: {verdict}")
    return lines


def _verdict(old: float, new: float, seeds: list[float]) -> str:
    if math.isnan(old) and math.isnan(new):
        return "same"
    if abs(old - new) <= SAME * max(1.0, abs(old)):
        return "same"
    if len(seeds) < LEAST_SEEDS:
        return "not the same; there are no three seeds to say what a seed is worth"
    mean = statistics.mean(seeds)
    deviation = statistics.stdev(seeds)
    quantile = float(stats.t.ppf(0.975, len(seeds) - 1))
    reach = quantile * deviation * math.sqrt(1 + 1 / len(seeds))
    is_within = abs(new - mean) <= reach
    return f"{'within seeds' if is_within else 'not within seeds'} ({mean:.4f} ± {reach:.4f})"
