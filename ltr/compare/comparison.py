"""Experiments against a baseline: differences, tests, and what they say in words."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from ltr.compare.between_splits import changes_of_means, check_weights
from ltr.compare.group_result import Comparison, GroupResult, group_result
from ltr.compare.over_sets import mean_over_sets
from ltr.compare.query_groups import Groups
from ltr.compare.statistics import Estimate, holm
from ltr.compare.tested_run import Run
from ltr.errors import InputError

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class MetricResult:
    """What a comparison has found by one metric.

    Attributes:
        by: what a group is, see :class:`Groups`.
        groups: of each group by itself, by its name.
        over_sets: of sets, of the means over them; its wins, ties and losses count sets. None of
            splits.
        changes: of each split but the first, by the name of an experiment: its mean there minus its
            mean on the first split. Empty of sets.
    """

    by: Literal["split", "set"]
    groups: dict[str, GroupResult]
    over_sets: GroupResult | None
    changes: dict[str, dict[str, Estimate]]

    @property
    def main(self) -> GroupResult:
        """The mean over the sets, or what was found on the first split."""
        return next(iter(self.groups.values())) if self.over_sets is None else self.over_sets


def compare(
    groups: Groups,
    metrics: Sequence[str] = (),
    pairs: Sequence[tuple[str, str]] | None = None,
    alpha: float = 0.05,
) -> list[MetricResult]:
    """Compare experiments with baselines among them, by one or several metrics.

    On splits, all comparisons are one family of tests. On sets there are two: the means over the sets
    answer whether experiments differ, the sets by themselves answer where.

    Args:
        groups: the experiments, on one or several splits or sets.
        metrics: by default the first one that the first run was measured by.
        pairs: names of an experiment and of its baseline; None: each with the first one
            (:func:`pairs_with_baselines`).
        alpha: the level of each family.

    Raises:
        InputError: if the runs can't be compared, or one was tested by other weights on another
            split.
    """
    if not 0 < alpha < 1:
        raise InputError(f"alpha must be above 0 and below 1, got {alpha}", option="alpha")
    if groups.by == "split":
        check_weights(groups)
    # Each once; where none is named, the first that the first run was measured by.
    metrics = list(dict.fromkeys(metrics)) or [_first_metric(groups.first[0].runs[0])]
    if pairs is None:
        pairs = pairs_with_baselines([experiment.name for experiment in groups.first])
    # Holm holds the smallest p of a family against its level; no test has a stricter one.
    n_comparisons = max(1, len(pairs) * len(metrics))
    n_groups = len(groups.experiments)
    level = alpha / (n_comparisons * n_groups)
    of_groups: dict[tuple[str, str], GroupResult] = {}  # by metric and group
    over_sets: dict[str, GroupResult] = {}  # by metric
    for metric in metrics:
        for name, experiments in groups.experiments.items():
            try:
                of_groups[metric, name] = group_result(metric, experiments, pairs, level)
            except InputError as error:
                where = f"{name}: " if n_groups > 1 else ""
                raise InputError(f"{where}{error.message}", option=error.option) from None
        if groups.by == "set":
            of_sets = [of_groups[metric, name] for name in groups.experiments]
            over_sets[metric] = mean_over_sets(of_sets, groups, pairs, level=alpha / n_comparisons)
    of_groups = _corrected(of_groups, alpha)
    over_sets = _corrected(over_sets, alpha)
    by_metric = []
    for metric in metrics:
        by_metric.append(
            MetricResult(
                by=groups.by,
                groups={name: of_groups[metric, name] for name in groups.experiments},
                over_sets=over_sets.get(metric),
                changes=changes_of_means(groups, metric) if groups.by == "split" else {},
            )
        )
    return by_metric


def _corrected(results: Mapping[K, GroupResult], alpha: float) -> dict[K, GroupResult]:
    """The same with corrected p values and verdicts: all comparisons are one family."""
    p_values = []
    for result in results.values():
        p_values += [comparison.p for comparison in result.comparisons]
    corrected_p_values = iter(holm(p_values))
    corrected = {}
    for key, result in results.items():
        comparisons = []
        for comparison in result.comparisons:
            p = next(corrected_p_values)
            verdict = _verdict(comparison, p <= alpha, result.lower_is_better)
            comparisons.append(replace(comparison, corrected=p, verdict=verdict))
        corrected[key] = replace(result, comparisons=comparisons)
    return corrected


def pairs_with_baselines(
    names: Sequence[str], baselines: Sequence[str] = ()
) -> list[tuple[str, str]]:
    """Pairs of an experiment and a baseline: each experiment with each baseline (by default the
    first experiment). Two baselines are compared once, not in both directions. An InputError if a
    baseline is no experiment.
    """
    bases = [full_name(baseline, names) for baseline in baselines] or [names[0]]
    pairs: list[tuple[str, str]] = []
    for base in dict.fromkeys(bases):
        for name in names:
            if name != base and (base, name) not in pairs:
                pairs.append((name, base))
    return pairs


def _first_metric(run: Run) -> str:
    conventions = run.report["conventions"]
    if not conventions:
        raise InputError(f"{run.folder} was measured by no metric; test it again")
    return next(iter(conventions))


def _verdict(comparison: Comparison, is_shown: bool, lower_is_better: bool) -> str:
    gain = comparison.difference.mean
    if lower_is_better:
        gain = -gain
    if comparison.wins == comparison.losses == 0:
        verdict = "equal"
    elif not is_shown and comparison.look is not None and not comparison.look.is_last:
        verdict = f"not shown with {comparison.look.n_seeds} of {comparison.look.budget} seeds"
    elif not is_shown and math.isinf(comparison.detectable):
        verdict = f"not shown ({comparison.difference.n_queries} queries can't show any)"
    elif not is_shown:
        verdict = f"not shown (this data could show a difference of {comparison.detectable:.3f})"
    elif gain > 0:
        verdict = "better"
    else:
        verdict = "worse"
    if not comparison.has_several_seeds:
        verdict += " (one seed: of these models alone)"
    return verdict


def full_name(name: str, known: Sequence[str]) -> str:
    """The experiment of a name: its own, the end of its own, or a longer path to it."""
    if name in known:
        return name
    path = f"/{name.strip('/')}"
    ends_with_it = [other for other in known if f"/{other}".endswith(path)]  # b names a/b
    if len(ends_with_it) == 1:
        return ends_with_it[0]
    is_its_end = [other for other in known if path.endswith(f"/{other}")]  # runs/a/b names a/b
    if ends_with_it or not is_its_end:
        raise InputError(
            f"the baseline must be one of {', '.join(known)}, got {name!r}", option="baseline"
        )
    return max(is_its_end, key=len)  # runs/a/b names a/b rather than b
