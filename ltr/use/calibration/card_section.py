"""What the card of an exported ranker says of its calibration."""

from ltr.errors import InputError
from ltr.run.run_folder import CALIBRATION
from ltr.use.calibration.calibration import Calibration
from ltr.use.calibration.conformal import KINDS, PROMISES, SHOWN, Kept, rounded_down
from ltr.use.calibration.score_maps import Logistic

CODE = """\
import json
import numpy as np
FETCH
calibration = json.load(open(PLACE))
scores = np.asarray(scores, dtype=np.float32).ravel()  # as above
probabilities = MAP
is_kept = scores >= np.float32(THRESHOLD)  # all relevant documents of 90 % of queries; none: nothing fits
"""
LOGISTIC = (
    '1 / (1 + np.exp(-calibration["score_map"]["slope"] * scores.astype(float)'
    ' - calibration["score_map"]["intercept"]))'
)
ISOTONIC = (
    'np.interp(scores, calibration["score_map"]["scores"],'
    ' calibration["score_map"]["probabilities"])'
)


def calibration_section(calibration: Calibration, at_hub: str | None = None) -> str:
    """The section of the card: thresholds, and code that needs NumPy alone.

    Args:
        calibration: of the scores that the code above the section gives.
        at_hub: the arguments by which libraries load the model from the hub; None: it is a folder.
    """
    n = len(calibration.lowest_relevant)
    lines = [
        "## Thresholds",
        "",
        f"Of {n:,} dev queries, by split conformal prediction over queries. A document is kept if its score is at least the threshold. A list of which nothing is kept is the answer that nothing fits: wrongly so, for a share of the queries with a relevant document among their candidates.",
        "",
        "| share of queries | that keep all their relevant documents | that keep one at least |",
        "| --- | --- | --- |",
    ]
    for promise in PROMISES:
        try:
            cells = [_cell(calibration, promise, kept) for kept in KINDS]
        except InputError:  # dev is too small
            continue
        lines.append(f"| {promise:g} | {' | '.join(cells)} |")
    errors = calibration.errors
    lines += [
        "",
        f"Probabilities of relevance are {calibration.score_map.kind}, with a calibration error of {errors['calibration_error']:.4f} on queries held out. Both hold for queries and candidates like those of dev.",
        "",
        f"```python\n{_code(calibration, at_hub)}```",
    ]
    return "\n".join(lines)


def _cell(calibration: Calibration, promise: float, kept: Kept) -> str:
    """A threshold, with the rates of its empty answers."""
    falsely_empty, falsely_filled = calibration.error_rates(promise, kept)
    cell = f"{rounded_down(calibration.threshold(promise, kept), 6)} (nothing fits, wrongly: {falsely_empty:.1%}"
    if falsely_filled is not None:
        cell += f"; something fits, wrongly: {falsely_filled:.1%}"
    return f"{cell})"


def _code(calibration: Calibration, at_hub: str | None) -> str:
    is_logistic = isinstance(calibration.score_map, Logistic)
    code = CODE.replace("MAP", LOGISTIC if is_logistic else ISOTONIC)
    fetch = ""
    place = f'"FOLDER/{CALIBRATION}"'
    if at_hub is not None:
        fetch = "from huggingface_hub import hf_hub_download\n"
        place = f'hf_hub_download({at_hub}, filename="{CALIBRATION}")'
    code = code.replace("FETCH\n", f"{fetch}\n").replace("PLACE", place)
    try:
        lowest = calibration.threshold(SHOWN)
    except InputError:
        return code[: code.index("is_kept")]
    return code.replace("THRESHOLD", repr(lowest))
