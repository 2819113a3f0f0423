"""The layers of a library, compared with the proof one after the other: the first that departs is
the finding.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ltr.use.proof.contract import Proof
from ltr.use.proof.network import Kind, TokenRow
from ltr.use.proof.reading import SpecialTokens, Text
from ltr.use.proof.write import similarity_scores
from ltr.use.verify.diagnosis import LOOSE, MOST, output_fault
from ltr.use.verify.finding import Finding
from ltr.use.verify.libraries import Library, Shown

STATES = 1e-3  # by which hidden states may differ, relative to their length
NOISE = 2e-5  # by which they do where nothing is wrong
HALF = 0.02  # below which they differ as half precision does
HALVES = ("bfloat16", "float16")


OTHER_STATES = "other hidden states: other weights of the encoder, or another option of it"


class Compared(NamedTuple):
    """A comparison: the finding, or None, and the largest difference of a score."""

    finding: Finding | None
    largest: float


def compare_layers(proof: Proof, library: Library) -> Compared:
    """The first layer of a library that departs from the proof."""
    finals: dict[Kind, np.ndarray] = {}
    together: dict[Kind, np.ndarray] = {}
    for kind, shown in library.shown.items():
        finals[kind] = shown.final
        together[kind] = shown.final_together
        finding = (
            _texts_finding(proof, kind, shown)
            or tokens_fault(
                proof.texts[kind],
                proof.rows[kind],
                shown.rows,
                SpecialTokens(**proof.contract["special_tokens"][kind]),
                proof.contract["max_tokens"][kind],
            )
            or _dtype_finding(proof, kind, shown)
            or _states_finding(proof, kind, shown)
            or _head_finding(proof, kind, shown)
        )
        if finding is not None:
            return Compared(finding, float("inf"))
    scores = _scores(proof, finals)
    beside = _scores(proof, together)
    largest = float(max(np.abs(scores - proof.scores).max(), np.abs(beside - proof.scores).max()))
    return Compared(_scores_finding(proof, library, scores, beside), largest)


def _texts_finding(proof: Proof, kind: Kind, shown: Shown) -> Finding | None:
    """Whether the texts are put into the template of the contract."""
    if shown.texts is None:
        return None
    texts = proof.texts[kind]
    wrong = [n for n, given in enumerate(shown.texts) if given != texts[n].rendered]
    if not wrong:
        return None
    first = wrong[0]
    is_raw = all(shown.texts[n] == texts[n].fields for n in wrong)
    fault = "another template" if not is_raw else "no template: texts are read as they come"
    return Finding(
        "template",
        fault,
        f"{len(wrong)} of {len(texts)} texts ({kind}): {_short(shown.texts[first])}, not "
        f"{_short(texts[first].rendered)}",
    )


def tokens_fault(
    texts: Sequence[Text],
    expected: Sequence[TokenRow],
    given: Sequence[TokenRow],
    special: SpecialTokens,
    max_tokens: int,
) -> Finding | None:
    """Where token ids depart: in their words, their special tokens, or where they are cut.

    Args:
        texts: that were read.
        expected: their token ids.
        given: those of a server.
        special: around a text of the contract.
        max_tokens: of the contract.
    """
    wrong = [n for n in range(len(given)) if given[n].ids != expected[n].ids]
    if not wrong:
        types = [n for n, row in enumerate(given) if row.types != expected[n].types]
        types = [n for n in types if expected[n].types is not None]
        # Without types a model takes 0 for all.
        types = [n for n in types if given[n].types is not None or any(expected[n].types or [])]
        if not types:
            return None
        return Finding("tokens", "other token types", f"of {len(types)} of {len(given)} texts")
    marks = {*special.before, *special.between, *special.after}
    # Texts that are not cut show what is read; only the others show where they are cut.
    whole = [n for n in wrong if len(expected[n].ids) < max_tokens]
    changes = {_change(expected[n].ids, given[n].ids) for n in whole}
    for n in whole:
        words = [token for token in expected[n].ids if token not in marks]
        got = [token for token in given[n].ids if token not in marks]
        if words == got:
            return _special_tokens_finding(expected[n].ids, given[n].ids, len(whole), len(given))
        if len(changes) == 1 and len(whole) > 1:
            ((lost, new),) = changes
            return Finding(
                "template",
                "another template",
                f"{len(wrong)} of {len(given)} texts: the tokens {list(new)[:12]} in the place of {list(lost)[:12]} in each",
            )
        if not _change(words, got)[1]:  # some are missing, and none is new
            continue
        evidence = f"{len(wrong)} of {len(given)} texts; {_short(texts[n].rendered)}: {got[:12]}, not {words[:12]}"
        if len(texts[n].fields) == 2 and sorted(words) == sorted(got):
            return Finding("template", "query and document have changed places", evidence)
        fault = "other tokens for the same text: another tokenizer, or its options (lower-casing)"
        return Finding("tokens", fault, evidence)
    for n in wrong:
        # Of a query and a document that are too long, the query is read whole.
        query = _until(expected[n].ids, special.between)
        got = _until(given[n].ids, special.between)
        if not whole and query and got and _change(query, got)[1]:
            fault = (
                "other tokens for the same text: another tokenizer, or its options (lower-casing)"
            )
            evidence = f"{len(wrong)} of {len(given)} texts, all of them cut; the query is {got[:12]}, not {query[:12]}"
            return Finding("tokens", fault, evidence)
    lengths = [len(given[n].ids) for n in wrong]
    fault = f"texts are cut at {max(lengths)} tokens, not at {max_tokens}"
    if max(lengths) == max_tokens and not whole:
        fault = "texts are cut at another place, or on the other side"
    return Finding("truncation", fault, f"{len(wrong)} of {len(given)} texts")


def _change(
    expected: Sequence[int], given: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens between a common beginning and a common end: the expected ones, and those given."""
    shorter = min(len(expected), len(given))
    begin = 0
    while begin < shorter and expected[begin] == given[begin]:
        begin += 1
    end = 0
    while end < shorter - begin and expected[-1 - end] == given[-1 - end]:
        end += 1
    return tuple(expected[begin : len(expected) - end]), tuple(given[begin : len(given) - end])


def _until(ids: Sequence[int], mark: Sequence[int]) -> list[int]:
    """The ids before the first one of a mark; none where it is not there."""
    places = [place for place, token in enumerate(ids) if token in mark]
    return list(ids[: places[0]]) if places else []


def _special_tokens_finding(expected: list[int], given: list[int], n_wrong: int, n: int) -> Finding:
    """Other special tokens around the same words."""
    fault = "other special tokens"
    if given == expected[1:]:
        fault = "no first special token (BOS, [CLS])"
    elif given == expected[:-1]:
        fault = "no last special token (EOS, [SEP])"
    elif given == [*expected, expected[-1]]:
        fault = "the last special token twice"
    elif given == [expected[0], *expected]:
        fault = "the first special token twice"
    return Finding(
        "special tokens",
        fault,
        f"{n_wrong} of {n} texts: {_ends(given)}, not {_ends(expected)}",
    )


def _dtype_finding(proof: Proof, kind: Kind, shown: Shown) -> Finding | None:
    """Whether a library computes in half precision, and departs by no more than that."""
    if shown.pooled is None or shown.together is None:
        return None
    right = proof.arrays[f"{kind}_pooled"]
    states = np.maximum(_relative(shown.pooled, right), _relative(shown.together, right))
    if kind != "pair":
        errors = _relative(shown.final, proof.arrays[kind])
        return dtype_fault(shown.dtype, states, errors, STATES)
    scores = _probe_scores(proof)
    spread = max(float(np.abs(scores - scores.mean()).mean()), 1e-12)
    errors = np.abs(shown.final.reshape(-1) - scores) / spread
    return dtype_fault(shown.dtype, states, errors, proof.tolerance / spread)


def dtype_fault(
    dtype: str, states: np.ndarray, errors: np.ndarray, tolerance: float
) -> Finding | None:
    """Whether half precision is all by which a library departs. A fault beside it moves numbers by
    more, and is found in its own layer.

    Args:
        dtype: of its weights.
        states: ``[S]``, by how much hidden states are wrong, relative to their length.
        errors: ``[S]``, the same of scores, relative to their spread, or of embeddings, relative to
            their length.
        tolerance: by which these may be wrong in float32.
    """
    if dtype not in HALVES or not (states <= HALF).all() or (errors <= tolerance).all():
        return None
    typical = float(np.quantile(errors, MOST))
    if not typical <= LOOSE:
        return None
    return Finding(
        "dtype",
        f"the library computes in {dtype}, and the proof is of float32",
        f"that explains all: hidden states are wrong by {states.max():.2g} of their length at "
        f"most, and {MOST:.0%} of the outputs by at most {typical:.2g} of their spread",
    )


def _states_finding(proof: Proof, kind: Kind, shown: Shown) -> Finding | None:
    """Which tokens are pooled, and what their hidden states are."""
    if shown.pooled is None or shown.hidden is None or shown.together is None:
        return None
    right = proof.arrays[f"{kind}_pooled"]
    pooled = _relative(shown.pooled, right)
    hidden = _relative(shown.hidden, right)
    together = _relative(shown.together, right)
    n = len(right)
    if (pooled <= STATES).all() and (together <= STATES).all():
        return None
    if (pooled <= STATES).all():
        n_wrong = int((together > STATES).sum())
        return Finding(
            "place",
            "what is pooled depends on the texts beside it: padding on the other side, or read as text",
            f"texts alone are right; beside others {n_wrong} of {n} are not",
        )
    if (hidden <= STATES).all():
        own = proof.contract["pooling"][kind]
        return Finding(
            "place",
            f"other tokens are pooled than by the {own} of the contract",
            f"of {int((pooled > STATES).sum())} of {n} texts; the hidden states of all tokens are right",
        )
    largest = float(hidden.max())
    fault = OTHER_STATES
    if largest <= HALF and shown.is_rounded:
        fault = "rounded hidden states: weights that were in half precision"
    return Finding(
        "hidden state",
        f"{fault} ({shown.dtype})",
        f"{int((hidden > STATES).sum())} of {n} texts, by up to {largest:.2g} of their length",
    )


def _head_finding(proof: Proof, kind: Kind, shown: Shown) -> Finding | None:
    """What the head makes of pooled states that are right."""
    if shown.output is None:
        return None
    if kind == "pair":
        right = _probe_scores(proof)
        wrong = np.abs(shown.output.reshape(-1) - right) > proof.tolerance
        if not wrong.any():
            return None
    else:
        right = proof.arrays[kind]
        # Behind the head stands what scales to length 1: here directions alone count.
        errors = _relative(_directions(shown.output), _directions(right))
        if (errors <= STATES).all():
            return None
        wrong = errors > STATES
    if shown.pooled is not None and not shown.is_rounded:
        states = _relative(shown.pooled, proof.arrays[f"{kind}_pooled"])
        if (states > NOISE).any():
            return Finding(
                "hidden state",
                f"{OTHER_STATES} ({shown.dtype})",
                f"{wrong.sum()} of {len(right)} outputs are wrong, and hidden states by up to {states.max():.2g} of their length",
            )
    if kind == "pair":
        simple = output_fault(shown.output.reshape(-1), right, proof)
        if simple is not None and simple.layer == "head":
            return simple
    return Finding(
        "head",
        "other weights of the head: made up, or of another model",
        f"{wrong.sum()} of {len(right)} outputs of right hidden states",
    )


def _scores_finding(
    proof: Proof, library: Library, scores: np.ndarray, beside: np.ndarray
) -> Finding | None:
    """What users get of outputs that are right: activation, length, similarity, order."""
    right = proof.scores
    for kind, shown in library.shown.items():
        if kind == "pair":
            continue
        embeddings = proof.arrays[kind]
        errors = _relative(shown.final, embeddings)
        if (errors > STATES).any():
            directions = _relative(_directions(shown.final), _directions(embeddings))
            if (directions <= STATES).all():
                return Finding(
                    "activation",
                    "embeddings of another length: scaled to 1, or not",
                    f"{int((errors > STATES).sum())} of {len(errors)} texts",
                )
            return _output_finding(errors, len(errors), kind, shown.is_rounded)
    if library.similarity != proof.contract["similarity"]:
        return Finding(
            "activation",
            f"embeddings are compared by {library.similarity}, not by {proof.contract['similarity']}",
            "all embeddings are right",
        )
    errors = np.abs(scores - right)
    errors_beside = np.abs(beside - right)
    if (errors <= proof.tolerance).all() and (errors_beside <= proof.tolerance).all():
        return None
    if (errors <= proof.tolerance).all():
        sorted_alike = np.allclose(np.sort(beside), np.sort(right), rtol=0, atol=proof.tolerance)
        if sorted_alike:
            return Finding("order", "scores belong to other texts", "all scores are right")
        n_wrong = int((errors_beside > proof.tolerance).sum())
        return Finding(
            "place",
            "a text's numbers depend on the texts beside it",
            f"texts alone are right; beside others {n_wrong} of {len(right)} are not",
        )
    simple = output_fault(scores, right, proof)
    names = {shown.activation for shown in library.shown.values()}
    if simple is not None:
        return simple._replace(evidence=f"{simple.evidence} ({', '.join(sorted(names))})")
    size = float(errors.max() / max(float(right.std()), 1e-12))
    is_rounded = next(iter(library.shown.values())).is_rounded
    return _output_finding(np.array([size]), len(right), "pair", is_rounded)


def _output_finding(relative: np.ndarray, n: int, kind: Kind, is_rounded: bool | None) -> Finding:
    """Wrong outputs of right tokens, where nothing between is seen, or differs by little."""
    largest = float(relative.max())
    evidence = f"{n} texts ({kind}), by up to {largest:.2g}"
    if largest <= HALF and is_rounded is None:
        fault = (
            "numbers differ by little: half precision, weights in 8 bits, or slightly other ones"
        )
        return Finding("dtype", fault, evidence)
    if largest <= HALF and is_rounded:
        return Finding("dtype", "rounded numbers: half precision", evidence)
    if is_rounded is not None:
        return Finding("hidden state", OTHER_STATES, evidence)
    fault = "other weights; place, hidden state and head are not seen apart here"
    return Finding("hidden state", fault, evidence)


def _probe_scores(proof: Proof) -> np.ndarray:
    """The right score of each reading of a pair."""
    scores = np.empty(len(proof.rows["pair"]), np.float32)
    scores[proof.readings["pair"]] = proof.scores
    return scores


def _scores(proof: Proof, finals: dict[Kind, np.ndarray]) -> np.ndarray:
    """``[P]``, the scores of the probes."""
    if "pair" in finals:
        return finals["pair"].reshape(-1)[proof.readings["pair"]]
    name = proof.contract["similarity"]
    return similarity_scores(
        name,
        finals["query"][proof.readings["query"]],
        finals["document"][proof.readings["document"]],
    )


def _relative(given: np.ndarray, right: np.ndarray) -> np.ndarray:
    """``[S]``, the distance of rows, relative to the length of the right ones."""
    if given.shape != right.shape:
        return np.full(len(right), np.inf)
    sizes = np.maximum(np.linalg.norm(right, axis=1), 1e-12)
    distances: np.ndarray = np.linalg.norm(given - right, axis=1) / sizes
    return np.nan_to_num(distances, nan=np.inf)


def _directions(rows: np.ndarray) -> np.ndarray:
    directions: np.ndarray = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return directions


def _short(texts: Sequence[str]) -> str:
    text = " | ".join(texts)
    return repr(text if len(text) <= 60 else f"{text[:60]}…")


def _ends(ids: Sequence[int]) -> str:
    shown = [str(one) for one in ids]
    if len(shown) > 6:
        shown = [*shown[:2], "…", *shown[-3:]]
    return f"[{', '.join(shown)}]"
