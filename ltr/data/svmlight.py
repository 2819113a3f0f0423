"""Rows of feature vectors as text, the format of SVMlight and LETOR:
``label qid:N feature:value … # comment``.
"""

import re
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ltr.data.files import blocks
from ltr.errors import InputError

BLOCK_BYTES = 1 << 22
LARGEST_FEATURE = 100_000
LARGEST_QID = 2**53 - 1  # the whole numbers up to here are exact as float64
LARGEST_VALUE = float(np.finfo(np.float32).max)

_COMMENT = re.compile(rb"#[^\n]*")
_DOC_ID = re.compile(rb"#.*?\bdocid\s*=\s*(\S+)")
_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_ALPHABET = b"0123456789+-.eE:qid \t\r\n"
_ONE_A_LINE = bytes.maketrans(b" \t\r:", b"\n\n\n\n")


class Rows(NamedTuple):
    """Some rows of a file, in its order."""

    labels: np.ndarray  # [R] float32; what is below 0 counts as 0, as in qrels
    qids: np.ndarray  # [R] int64
    counts: np.ndarray  # [R] int64; how many features a row names
    columns: np.ndarray  # [sum of counts] int32; feature number minus the first one
    values: np.ndarray  # [sum of counts] float32
    doc_ids: list[bytes]  # [R]; what the comment says after "docid =", empty where it says nothing


def read_rows(file: Path, first_feature: int) -> Iterator[Rows]:
    """Rows of a file (plain or ``.gz``), a few megabytes of it at a time; blank lines and lines of
    comment are left out.

    Args:
        file: lines may end in any white space, the last one in none; features may stand in any
            order.
        first_feature: the number of column 0.

    Raises:
        InputError: ``file:line`` of the first line that is no row, names a feature twice, or holds
            a number out of range; a document id that is not UTF-8; a broken gzip stream; a missing
            file.
    """
    for line_number, block in blocks(file, BLOCK_BYTES):
        found = _read_at_once(block, first_feature) or _read_line_by_line(
            block, first_feature, file, line_number
        )
        doc_ids = [b""] * len(found.labels)
        if b"docid" in block:
            doc_ids = [
                _doc_id(line, file, number) for number, line in _numbered_rows(block, line_number)
            ]
        yield found._replace(doc_ids=doc_ids)


def place_of(files: Sequence[Path], row: int) -> str:
    """``file:line`` of a row, counted through all files; they are read again, as only errors and
    warnings ask.
    """
    for file in files:
        for line_number, block in blocks(file, BLOCK_BYTES):
            for number, _ in _numbered_rows(block, line_number):
                if row == 0:
                    return f"{file}:{number}"
                row -= 1
    raise IndexError("there are fewer rows")


def _numbered_rows(block: bytes, line_number: int) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(block.split(b"\n"), start=line_number):
        if line.lstrip()[:1] not in (b"", b"#"):
            yield number, line


def _doc_id(line: bytes, file: Path, number: int) -> bytes:
    match = _DOC_ID.search(line)
    if match is None:
        return b""
    try:
        match[1].decode()
    except UnicodeDecodeError:
        raise InputError(
            f"{file}:{number}: a document id must be UTF-8, got {_shown(match[1])}"
        ) from None
    return match[1]


def _read_at_once(block: bytes, first_feature: int) -> Rows | None:
    """The rows of a block whose features ascend within each line, without a loop over lines; None
    if anything is amiss.

    pandas reads all numbers as one column, fast but blind to lines. So the places of tokens and
    colons are checked first: a line is a token without a colon, ``qid:`` and a number, then tokens
    with one colon inside. Where no number is missing either, the column is a label, a qid, and a
    feature and its value in turn. pandas may err in the last place of a float64, which float32 does
    not show.
    """
    body = b"\n" + (_COMMENT.sub(b"", block) if b"#" in block else block)
    if body.translate(None, delete=_ALPHABET):
        return None
    chars = np.frombuffer(body, dtype=np.uint8)
    space = chars <= ord(" ")
    starts = np.flatnonzero(space[:-1] & ~space[1:]) + 1
    first_of_line = np.searchsorted(starts, np.flatnonzero(chars == ord("\n")))
    firsts = first_of_line[
        np.diff(first_of_line, append=len(starts)) > 0
    ]  # the other lines are blank
    counts = np.diff(firsts, append=len(starts)) - 1  # of the tokens with a colon
    n_rows = len(firsts)
    if n_rows == 0:
        return _rows(*[np.empty(0)] * 5)
    if counts.min() < 1:
        return None
    colons = np.flatnonzero(chars == ord(":"))
    begins = np.delete(starts, firsts)
    ends = np.delete(np.append(starts[1:], len(chars)), firsts)
    if len(colons) != len(begins) or (colons <= begins).any() or (colons >= ends).any():
        return None
    heads = np.cumsum(counts) - counts  # the qids among the tokens with a colon
    if (colons[heads] - begins[heads] != 3).any():
        return None
    for place, letter in enumerate(b"qid"):
        if body.count(letter) != n_rows or (chars[begins[heads] + place] != letter).any():
            return None
    import pandas as pd  # here: it takes 27 MB, which training on texts needs no part of

    column = BytesIO(body.translate(_ONE_A_LINE, delete=b"qid"))
    try:
        numbers = (
            pd.read_csv(column, header=None, dtype=np.float64, na_filter=False).to_numpy().ravel()
        )
    except ValueError:
        return None
    if len(numbers) != 2 * len(colons):
        return None
    labels = numbers[0::2][heads]
    qids = numbers[1::2][heads]
    features = np.delete(numbers[0::2], heads)
    values = np.delete(numbers[1::2], heads)
    begins_row = np.zeros(len(features) + 1, dtype=bool)
    begins_row[heads - np.arange(n_rows)] = True
    sound = (
        (begins_row[1:-1] | (np.diff(features) > 0)).all()
        and (np.abs(labels) <= LARGEST_VALUE).all()
        and ((qids >= 0) & (qids <= LARGEST_QID) & (qids == np.floor(qids))).all()
        and (
            (features >= first_feature)
            & (features <= LARGEST_FEATURE)
            & (features == np.floor(features))
        ).all()
        and (np.abs(values) <= LARGEST_VALUE).all()
    )
    return _rows(labels, qids, counts - 1, features - first_feature, values) if sound else None


def _read_line_by_line(block: bytes, first_feature: int, file: Path, line_number: int) -> Rows:
    """The same rows at a twentieth of the speed, for files with features in another order, and to
    find what is wrong.
    """
    labels = []
    qids = []
    counts = []
    columns = []
    values = []
    for number, line in _numbered_rows(block, line_number):
        try:
            label, qid, pairs = _read_line(line.partition(b"#")[0], first_feature)
        except InputError as error:
            raise InputError(f"{file}:{number}: {error.message}") from None
        labels.append(label)
        qids.append(qid)
        counts.append(len(pairs))
        columns.extend([feature - first_feature for feature in pairs])
        values.extend(list(pairs.values()))
    return _rows(*map(np.asarray, (labels, qids, counts, columns, values)))


def _rows(
    labels: np.ndarray,
    qids: np.ndarray,
    counts: np.ndarray,
    columns: np.ndarray,
    values: np.ndarray,
) -> Rows:
    labels = np.maximum(labels, 0).astype(np.float32)
    values = values.astype(np.float32)
    return Rows(
        labels,
        qids.astype(np.int64),
        counts.astype(np.int64),
        columns.astype(np.int32),
        values,
        doc_ids=[],
    )


def _read_line(line: bytes, first_feature: int) -> tuple[float, int, dict[int, float]]:
    label, *tokens = line.split()
    if not tokens or not tokens[0].startswith(b"qid:"):
        raise InputError(f"a line must be 'label qid:N feature:value …', got {_shown(line)}")
    grade = _number(label, "a label")
    qid = _number(tokens[0][4:], "the number of a query")
    if not (0 <= qid <= LARGEST_QID and qid.is_integer()):
        raise InputError(
            f"the number of a query must be whole, from 0 to 2^53 - 1, got {_shown(tokens[0])}"
        )
    pairs: dict[int, float] = {}
    for token in tokens[1:]:
        name, colon, value = token.partition(b":")
        if not colon:
            raise InputError(f"after the qid each entry must be feature:value, got {_shown(token)}")
        feature = _number(name, "the number of a feature")
        if not feature.is_integer():
            raise InputError(f"the number of a feature must be whole, got {_shown(token)}")
        if feature < first_feature:
            hint = "; for a file numbered from 0 set first_feature to 0" * (feature == 0)
            raise InputError(
                f"features are numbered from {first_feature}, got {_shown(token)}{hint}"
            )
        if feature > LARGEST_FEATURE:
            most = f"at most {LARGEST_FEATURE:,}, as rows are stored dense"
            raise InputError(
                f"the number of a feature must be {most}, got {_shown(token)}; number the features without gaps"
            )
        if feature in pairs:
            raise InputError(f"feature {int(feature)} stands twice; keep one value of it")
        pairs[int(feature)] = _number(value, f"the value of feature {int(feature)}")
    return grade, int(qid), pairs


def _number(text: bytes, what: str) -> float:
    if not _NUMBER.fullmatch(text) or abs(float(text)) > LARGEST_VALUE:
        raise InputError(f"{what} must be a finite number (float32), got {_shown(text)}")
    return float(text)


def _shown(text: bytes) -> str:
    return repr(text.decode(errors="replace").strip()[:60])
