"""From the numbers of a server to the layer where it departs.

A server shows scores or embeddings, nothing inside. Each fault that servers are known to have is
imitated: the one whose numbers are those of the server names the layer.

Letters of shapes: U units, each answered by a score or an embedding.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ltr.errors import InputError
from ltr.use.proof.contract import Proof
from ltr.use.proof.network import Kind
from ltr.use.verify.faults import Fault, input_faults, padding_faults
from ltr.use.verify.finding import Finding
from ltr.use.verify.imitation import Imitation, Unit

NONE = Fault("order", "none")
LOOSE = 0.03  # of the spread: what half precision may move a number by
MOST_DEPARTING = 8  # of the units, on which every fault is imitated
MOST_AGREEING = 4
MOST = 0.8  # of the departing answers a fault explains; texts that are cut may be cut elsewhere
FINALISTS = 3  # faults that are imitated on all units
PROBABILITIES = "the probabilities of calibration.json stand in the place of the scores"
LEAST_STEPS = 3  # values by which an order shows
DIGITS = 1e-6  # that a server may leave out of a probability
ALIKE = 0.5  # correlation below which a server has another model

Batches = Sequence[Sequence[int]]


class Answers(NamedTuple):
    """What a server gives for units.

    Attributes:
        alone: ``[U]`` or ``[U, dim]``, each asked for by itself.
        together: the same, asked for in batches.
        batches: the units of each.
    """

    alone: np.ndarray
    together: np.ndarray
    batches: Batches


class Diagnosis:
    """Finds the layer where the answers of a server depart.

    Args:
        imitation: of the exported ranker.
        units: what was asked.
        expected: ``[U]`` or ``[U, dim]``, the numbers of the proof.
        tolerance: by which a score may differ; of embeddings relative to their length.
        more: answers to other texts, for :meth:`_head_finding`: hidden states ``[M, H]`` and the
            server's answers ``[M]`` or ``[M, dim]``.
    """

    def __init__(
        self,
        imitation: Imitation,
        units: Sequence[Unit],
        expected: np.ndarray,
        tolerance: float,
        more: Callable[[], tuple[np.ndarray, np.ndarray] | None],
    ) -> None:
        self.imitation = imitation
        self.units = units
        self.expected = expected
        self.tolerance = tolerance
        self.more = more
        self.are_scores = expected.ndim == 1
        self.spread = float(self._sizes(expected - expected.mean(axis=0)).mean())
        self.longest = max(imitation.proof.contract["max_tokens"].values())

    def finding(self, answers: Answers) -> Finding | None:
        """Where the server departs; None where it does not.

        Raises:
            InputError: if the numbers are those of another model.
        """
        alone = self._errors(answers.alone, self.expected)
        together = self._errors(answers.together, self.expected)
        if self._are_close(alone) and self._are_close(together):
            return None
        if self._are_close(alone):
            return self._order_finding(answers, together) or self._padding_finding(
                answers, together
            )
        return (
            self._output_finding(answers.alone)
            or self._known_fault(answers.alone, alone)
            or self._rounding_finding(answers.alone, alone)
            or self._head_finding(answers.alone)
            or self._unknown_finding(answers.alone, alone)
        )

    def _order_finding(self, answers: Answers, errors: np.ndarray) -> Finding | None:
        """Whether the numbers of a batch are the right ones in other places."""
        n_permuted = 0
        for batch in answers.batches:
            places = list(batch)
            if self._are_close(errors[places]):
                continue
            for place in places:
                others = self._errors(
                    np.repeat(answers.together[[place]], len(places), axis=0), self.expected[places]
                )
                if not (others <= self.tolerance).any():
                    return None
            n_permuted += 1
        return Finding(
            "order",
            "the numbers of a request are right, but belong to other texts of it",
            f"in {n_permuted} of {len(answers.batches)} requests",
        )

    def _padding_finding(self, answers: Answers, errors: np.ndarray) -> Finding:
        """A text alone is right, and beside others it is not."""
        n_wrong = int((errors > self.tolerance).sum())
        evidence = (
            f"texts alone are right; in requests with others {n_wrong} of {len(errors)} are not"
        )
        for fault in padding_faults(self.longest):
            imitated = self._imitated(fault, self.units, answers.batches)
            if imitated is not None and self._are_close(self._errors(answers.together, imitated)):
                return Finding("place", fault.words, f"{evidence}, and are those of this fault")
        return Finding("place", "a text's numbers depend on the texts beside it", evidence)

    def _output_finding(self, alone: np.ndarray) -> Finding | None:
        """Whether the answers are a simple function of the right ones."""
        if not self.are_scores:
            return self._length_finding(alone)
        return output_fault(alone, self.expected, self.imitation.proof)

    def _length_finding(self, alone: np.ndarray) -> Finding | None:
        """Embeddings of the right direction and another length."""
        lengths = self._sizes(alone)
        own = self._sizes(self.expected)
        errors = self._errors(
            alone / np.maximum(lengths, 1e-12)[:, None],
            self.expected / np.maximum(own, 1e-12)[:, None],
        )
        if not self._are_close(errors):
            return None
        fault = "embeddings are not scaled to length 1"
        if np.abs(lengths - 1).max() < 1e-3:
            fault = "embeddings are scaled to length 1, and should not be"
        elif np.abs(own - 1).max() > 1e-3:
            fault = "embeddings have another length"
        return Finding("activation", fault, f"all {len(alone)} directions are right")

    def _known_fault(self, alone: np.ndarray, errors: np.ndarray) -> Finding | None:
        """The fault whose numbers are those of the server, on all units."""
        places = self._shown(errors)
        units = [self.units[place] for place in places]
        candidates: list[tuple[float, int, Fault, str]] = []
        for number, fault in enumerate(input_faults(self.longest, self.imitation.positions)):
            imitated = self._imitated(fault, units, [[place] for place in range(len(units))])
            if imitated is None:
                continue
            for words, outputs in self._outputs(imitated):
                share = self._share(alone[places], outputs, errors[places])
                if share == 1:
                    finding = self._confirmed(fault, words, alone, errors)
                    if finding is not None:
                        return finding
                elif share > 0.7:
                    candidates.append((-share, number, fault, words))
        for _, _, fault, words in sorted(candidates, key=lambda one: one[:2])[:FINALISTS]:
            finding = self._confirmed(fault, words, alone, errors)
            if finding is not None:
                return finding
        return None

    def _confirmed(
        self, fault: Fault, words: str, alone: np.ndarray, errors: np.ndarray
    ) -> Finding | None:
        """The finding of a fault that explains a few answers, if it explains all."""
        imitated = self._imitated(fault, self.units, [[one] for one in range(len(self.units))])
        if imitated is None:
            return None
        outputs = dict(self._outputs(imitated))[words]
        if not self._share(alone, outputs, errors) > MOST:
            return None
        own = self._errors(alone, outputs)
        n_close = int((own <= 2 * self.tolerance).sum())
        also = f", and {words}" if words else ""
        return Finding(
            fault.layer,
            f"{fault.words}{also}",
            f"{n_close} of {len(own)} answers are those of this fault; without it "
            f"{int((errors <= self.tolerance).sum())} are right",
        )

    def _outputs(self, imitated: np.ndarray) -> list[tuple[str, np.ndarray]]:
        """What may stand behind a fault of the input, beside nothing."""
        if not self.are_scores:
            return [("", imitated)]
        return [("", imitated), ("a sigmoid stands behind the score", sigmoid(imitated))]

    def _share(self, answers: np.ndarray, imitated: np.ndarray, errors: np.ndarray) -> float:
        """How many of the departing answers a fault explains; 0 where it moves others."""
        own = self._errors(answers, imitated) <= 2 * self.tolerance
        departs = errors > self.tolerance
        if (~departs).any() and own[~departs].mean() < 0.95:
            return 0.0
        return float(own[departs].mean()) if departs.any() else 0.0

    def _rounding_finding(self, alone: np.ndarray, errors: np.ndarray) -> Finding | None:
        """Whether most answers lie near the right ones, as those of half precision do."""
        size = self.spread if self.are_scores else self.spread / self._sizes(self.expected).mean()
        return rounding_fault(errors, size, self.tolerance)

    def _head_finding(self, alone: np.ndarray) -> Finding | None:
        """Whether the answers are another linear function of the right hidden states."""
        asked = self.more()
        if asked is None:
            return None
        states, answers = asked
        # Two towers have a head each: the one of the documents was asked.
        kind: Kind = "pair" if self.are_scores else "document"
        own = [place for place, unit in enumerate(self.units) if kind in unit.readings]
        numbers = [self.units[place].readings[kind] for place in own]
        own_states = self.imitation.proof.arrays[f"{kind}_pooled"][numbers]
        return head_fault(states, answers, own_states, alone[own])

    def _unknown_finding(self, alone: np.ndarray, errors: np.ndarray) -> Finding:
        """Nothing that is known: another model, or several faults."""
        url_model = "no known fault explains the numbers"
        agreement = self._agreement(alone)
        n_close = int((errors <= self.tolerance).sum())
        if not agreement >= ALIKE and n_close < len(errors) / 4:
            raise InputError(
                "the server must serve the model of this folder, and its answers are of another "
                f"one: their correlation with the proof is {agreement:.2f}, and {url_model}; "
                "or it has several faults at once"
            )
        return Finding(
            "hidden state",
            url_model,
            f"{n_close} of {len(errors)} answers are right; the correlation of all with the "
            f"proof is {agreement:.3f}",
        )

    def _agreement(self, alone: np.ndarray) -> float:
        """Correlation of the answers with the right ones."""
        given = (alone - alone.mean(axis=0)).ravel()
        right = (self.expected - self.expected.mean(axis=0)).ravel()
        size = np.linalg.norm(given) * np.linalg.norm(right)
        return float(given @ right / size) if size > 0 else 0.0

    def _imitated(
        self, fault: Fault, units: Sequence[Unit], batches: Batches | None
    ) -> np.ndarray | None:
        alone = batches is None or all(len(batch) == 1 for batch in batches)
        # Alone, padding is seen only where all texts get one length.
        if fault.run.padding == "right" and fault.run.pooling != "last slot" and alone:
            batches = None
        if self.are_scores:
            return self.imitation.scores(fault, units, batches)
        return self.imitation.embeddings(fault, units, batches)

    def _shown(self, errors: np.ndarray) -> list[int]:
        """Units on which faults are told apart: some that depart, and some that do not."""
        proof = self.imitation.proof
        n_tokens = [
            sum(len(proof.rows[kind][number].ids) for kind, number in unit.readings.items())
            for unit in self.units
        ]
        by_length = np.argsort(n_tokens, kind="stable")
        departs = errors > self.tolerance
        departing = by_length[departs[by_length]].tolist()
        agreeing = by_length[~departs[by_length]][:MOST_AGREEING].tolist()
        # Mostly short ones, which cost less; long ones show where texts are cut.
        n_long = min(2, max(0, len(departing) - MOST_DEPARTING))
        return (
            departing[: MOST_DEPARTING - n_long] + departing[len(departing) - n_long :] + agreeing
        )

    def _errors(self, answers: np.ndarray, expected: np.ndarray) -> np.ndarray:
        """``[U]``: by how much each answer is wrong."""
        if self.are_scores:
            return np.abs(answers - expected)
        sizes = np.maximum(self._sizes(expected), 1e-12)
        errors: np.ndarray = self._sizes(answers - expected) / sizes
        return errors

    def _sizes(self, values: np.ndarray) -> np.ndarray:
        sizes: np.ndarray = np.abs(values) if self.are_scores else np.linalg.norm(values, axis=1)
        return sizes

    def _are_close(self, errors: np.ndarray) -> bool:
        return bool((errors <= self.tolerance).all())


def output_fault(given: np.ndarray, expected: np.ndarray, proof: Proof) -> Finding | None:
    """Whether scores are a simple function of the right ones.

    Args:
        given: ``[P]``.
        expected: ``[P]``, the right ones.
        proof: says by how much a score may differ, the list of each, and its calibration.
    """
    n = len(given)
    tolerance = proof.tolerance
    lists = proof.lists
    by_list = np.empty(n)
    for number in np.unique(lists):
        is_in_list = lists == number
        powers = np.exp(expected[is_in_list] - expected[is_in_list].max())
        by_list[is_in_list] = powers / powers.sum()
    functions = {
        "a sigmoid stands behind the score": sigmoid(expected),
        "two sigmoids stand behind the score": sigmoid(sigmoid(expected)),
        "a tanh stands behind the score": np.tanh(expected),
        "a softmax over the documents of a request stands behind the score": by_list,
        "the score is brought from -1 … 1 to 0 … 1": (1 + expected) / 2,
    }
    for words, values in functions.items():
        if (np.abs(given - values) <= tolerance).all():
            return Finding("activation", words, f"all {n} scores are those of this fault")
    if proof.calibration is not None:
        lowest = proof.calibration.probabilities(expected - tolerance)
        highest = proof.calibration.probabilities(expected + tolerance)
        if (given >= lowest - DIGITS).all() and (given <= highest + DIGITS).all():
            return Finding("activation", PROBABILITIES, f"all {n} scores are those of this fault")
    design = np.stack([expected, np.ones(n)], axis=1).astype(np.float64)
    (factor, constant), *_ = np.linalg.lstsq(design, given.astype(np.float64), rcond=None)
    if np.abs(design @ [factor, constant] - given).max() <= 2 * tolerance * abs(factor):
        near_one = abs(abs(factor) - 1) < 1e-3
        if near_one and factor > 0:
            words = f"{constant:+.4g} is added to every score, as by another bias"
        elif near_one and abs(constant) <= tolerance:
            words = "the sign of the score is turned, as by the other word or label"
        else:
            words = f"the score is {factor:.4g} times the right one, and {constant:+.4g}"
        return Finding("head", words, f"all {n} scores are those of this fault")
    order = np.argsort(expected, kind="stable")
    gaps = np.diff(expected[order]) > 2 * tolerance
    steps = np.diff(given[order])
    keeps_order = bool(gaps.any() and ((steps >= 0) | ~gaps).all() and np.isfinite(given).all())
    if keeps_order and len(np.unique(given)) >= LEAST_STEPS:
        but = " but for ties" if ((steps == 0) & gaps).any() else ""
        return Finding(
            "activation",
            f"another function stands behind the score, which keeps every order{but}",
            f"all {n} scores are in the right order{but}",
        )
    return None


def rounding_fault(errors: np.ndarray, spread: float, tolerance: float) -> Finding | None:
    """Whether answers are wrong as those of half precision are: most of them, and by little.

    Args:
        errors: ``[U]``, by how much each is wrong.
        spread: of the right ones.
        tolerance: by which they may be wrong in float32.
    """
    typical = float(np.quantile(errors, MOST))
    if not typical <= LOOSE * spread or np.median(errors) <= tolerance:
        return None
    return Finding(
        "dtype",
        "numbers are rounded, as by a server in half precision (bfloat16, float16)",
        f"answers are near the right ones: {MOST:.0%} of {len(errors)} by at most "
        f"{typical:.2g}, {typical / spread:.1%} of their spread",
    )


def head_fault(
    states: np.ndarray, answers: np.ndarray, own_states: np.ndarray, own_answers: np.ndarray
) -> Finding | None:
    """Whether answers are a linear function of hidden states, fitted on some texts and tried on
    others.

    Args:
        states: ``[M, H]`` of the texts for the fit; M above H.
        answers: ``[M]`` or ``[M, dim]`` of the server.
        own_states: ``[U, H]`` of the texts that it is tried on.
        own_answers: ``[U]`` or ``[U, dim]``.
    """
    mean = states.mean(axis=0)
    design = np.hstack([states - mean, np.ones((len(states), 1))]).astype(np.float64)
    weights, *_ = np.linalg.lstsq(design, answers.astype(np.float64), rcond=1e-7)
    tried = np.hstack([own_states - mean, np.ones((len(own_states), 1))]) @ weights
    spread = float(np.std(own_answers - own_answers.mean(axis=0)))
    # Texts that a server cuts elsewhere, too, shall not hide it.
    error = float(np.quantile(np.abs(tried - own_answers), MOST))
    if spread == 0:
        return Finding(
            "head", "all answers are equal, as by a head of zeros", "they have no spread"
        )
    if not error < 0.05 * spread:
        return None
    return Finding(
        "head",
        "the head has other weights, as one that was made up or is of another model",
        f"the answers are a linear function of the right hidden states, fitted on {len(states)} "
        f"other texts: it misses the {len(own_states)} of the proof by {error / spread:.1%} of "
        "their spread",
    )


def sigmoid(scores: np.ndarray) -> np.ndarray:
    """The logistic function, in float64."""
    values: np.ndarray = 1 / (1 + np.exp(-scores.astype(np.float64)))
    return values
