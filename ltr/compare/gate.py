"""A gate: may a system take the place of a baseline? For a pull request or a nightly run."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from ltr.compare.comparison import MetricResult
from ltr.compare.group_result import Comparison
from ltr.compare.statistics import Estimate
from ltr.errors import InputError

_GATE = re.compile(r"\s*(\S+)\s*(>=|<=)\s*(\S+)\s+of\s+(\S.*?)\s*")


class Answer(IntEnum):
    """What a gate says; its exit code."""

    PASSES = 0
    FAILS = 1
    UNKNOWN = 3


@dataclass(frozen=True)
class Gate:
    """The difference from a baseline that is still accepted.

    Attributes:
        metric: of the difference.
        bound: on the experiment minus the baseline.
        is_lower: whether the difference must not be below the bound; else not above.
        baseline: an experiment.
    """

    metric: str
    bound: float
    is_lower: bool
    baseline: str

    @classmethod
    def of(cls, text: str) -> "Gate":
        """The gate that a text says.

        >>> Gate.of("nDCG@10 >= -0.01 of bm25")
        Gate(metric='nDCG@10', bound=-0.01, is_lower=True, baseline='bm25')
        """
        match = _GATE.fullmatch(text)
        try:
            metric, sign, bound, baseline = match.groups()  # type: ignore[union-attr]
            if not math.isfinite(float(bound)):
                raise ValueError(bound)
            return cls(metric, float(bound), sign == ">=", baseline)
        except (AttributeError, ValueError):
            raise InputError(
                f"--gate must be as 'nDCG@10 >= -0.01 of BASELINE', or with <= for a metric that counts what is wrong, got {text!r}"
            ) from None

    def check_direction(self, lower_is_better: bool) -> None:
        """Raise an InputError where the gate would pass what is worse."""
        if self.is_lower == lower_is_better:
            raise InputError(
                f"--gate: {self.metric} must be bounded {'above (<=)' if lower_is_better else 'below (>=)'}, as {'lower' if lower_is_better else 'higher'} is better"
            )

    def answer(self, difference: Estimate, confidence: float) -> Answer:
        """Whether a difference is shown to be within the bound, or beyond it, or neither: so few queries
        that they can show nothing tell neither.
        """
        if difference.least_p > 1 - confidence:
            return Answer.UNKNOWN
        low, high = difference.interval(confidence)
        if not self.is_lower:
            low, high = -high, -low
        bound = self.bound if self.is_lower else -self.bound
        if low >= bound:
            return Answer.PASSES
        return Answer.FAILS if high < bound else Answer.UNKNOWN

    def __str__(self) -> str:
        return f"{self.metric} {'>=' if self.is_lower else '<='} {self.bound:g} of {self.baseline}"


def gate_answers(
    gates: Sequence[Gate], results: Sequence[MetricResult], alpha: float
) -> tuple[Answer, list[str]]:
    """What all gates say together, and a line for each experiment that one looks at: it fails where
    any fails, and passes where all pass.

    The differences are held against intervals of ``1 - alpha / n``, of n answers (at a look, of its part of ``alpha / n``): the chance that even
    one of them is wrong is at most ``alpha``.

    Args:
        gates: whose metrics and baselines are compared.
        results: of the comparison.
        alpha: the level of all answers together.
    """
    asked: list[tuple[Gate, str, Comparison]] = []
    for gate in gates:
        result = next(each.main for each in results if each.main.metric == gate.metric)
        gate.check_direction(result.lower_is_better)
        of_gate = []
        for comparison in result.comparisons:
            if comparison.baseline == gate.baseline:
                of_gate.append((gate, comparison.name, comparison))
            elif comparison.name == gate.baseline:  # two baselines are compared once
                turned = replace(comparison.difference, mean=-comparison.difference.mean)
                of_gate.append((gate, comparison.baseline, replace(comparison, difference=turned)))
        if not of_gate:
            raise InputError("--gate needs an experiment beside its baseline; name one")
        asked += of_gate
    answers = []
    lines = []
    level = alpha / len(asked)
    words = {Answer.PASSES: "passes", Answer.FAILS: "fails", Answer.UNKNOWN: "can't be told"}
    for gate, name, comparison in asked:
        confidence = 1 - comparison.level(level)
        answer = gate.answer(comparison.difference, confidence)
        answers.append(answer)
        of_models = "" if comparison.has_several_seeds else ", of these models alone"
        low, high = comparison.difference.interval(confidence)
        lines.append(
            f"gate {gate}: {name} {words[answer]}{of_models} ({comparison.difference.mean:+.4f}; {100 * confidence:.3g} % interval {low:+.4f} to {high:+.4f})"
        )
    if Answer.FAILS in answers:
        return Answer.FAILS, lines
    return (Answer.UNKNOWN if Answer.UNKNOWN in answers else Answer.PASSES), lines
