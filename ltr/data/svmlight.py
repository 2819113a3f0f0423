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
from ltr.data.trec import LARGEST_GRADE
from ltr.errors import InputError

BLOCK_BYTES = 1 << 22
LARGEST_FEATURE = 100_000
LARGEST_QID = 2**53 - 1  # the whole numbers up to here are exact as float64
LARGEST_VALUE = float(np.finfo(np.float32).max)

QID = b"qid"

_COMMENT = re.compile(rb"#[^\n]*")
_DOC_ID = re.compile(rb"#.*?\bdocid\s*=\s*(\S+)")
_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_ALPHABET = b"0123456789+-.eE:qid \t\r\n"  # all bytes of a sound row without its comment
_EACH_ON_A_LINE = bytes.maketrans(b" \t\r:", b"\n\n\n\n")  # what separates two numbers


class SvmlightRows(NamedTuple):
    """Some rows of a file, in its order."""

    labels: np.ndarray  # [R] float32; what is below 0 counts as 0, as in qrels
    qids: np.ndarray  # [R] int64
    counts: np.ndarray  # [R] int64; how many features a row names
    columns: np.ndarray  # [sum of counts] int32; feature number minus the first one
    values: np.ndarray  # [sum of counts] float32
    doc_ids: list[bytes]  # [R]; what the comment says after "docid =", empty where it says nothing


def read_rows(
    file: Path, first_feature: int, qids: Iterator[int] | None = None
) -> Iterator[SvmlightRows]:
    """Rows of a file (plain or packed), a few megabytes of it at a time; blank lines and lines that
    hold only a comment are left out.

    Args:
        file: its lines may have white space at their ends; the features of a line may stand in any
            order.
        first_feature: the number of column 0.
        qids: of the rows of a file that does not name them; 0 for rows behind the last one. None:
            each row has its own.

    Raises:
        InputError: with ``file:line`` for the first line that is no row, names a feature twice, or
            holds a number out of range, and for a document id that is not UTF-8; for a broken packed
            file or a missing one.
    """
    for line_number, block in blocks(file, BLOCK_BYTES):
        if qids is not None:
            block = _with_qids(block, qids)
        rows = _read_at_once(block, first_feature)
        if rows is None:
            rows = _read_line_by_line(block, first_feature, file, line_number)
        # Both readers skip the comments, so the ids are looked up afterwards.
        doc_ids = [b""] * len(rows.labels)
        if b"docid" in block:
            doc_ids = []
            for number, line in _numbered_rows(block, line_number):
                doc_ids.append(_doc_id_in(line, f"{file}:{number}"))
        yield rows._replace(doc_ids=doc_ids)


def names_its_queries(file: Path) -> bool:
    """Whether the first row of a file has a qid; True for a file without rows."""
    row = _first_row(file)
    return not row or (len(row) > 1 and row[1].startswith(b"qid:"))


def holds_rows(file: Path) -> bool:
    """Whether the first row of a file looks like one of features, with or without a qid."""
    row = _first_row(file)
    return len(row) > 1 and b":" in row[1]


def _first_row(file: Path) -> list[bytes]:
    """The words of the first row; none for a file without rows."""
    for _, block in blocks(file, BLOCK_BYTES):
        for _, line in _numbered_rows(block, 1):
            return line.split()
    return []


def place_of(files: Sequence[Path], row: int) -> str:
    """``file:line`` of a row, where rows are counted from 0 through all files.

    The files are read again: only errors and warnings need to know.
    """
    for file in files:
        for line_number, block in blocks(file, BLOCK_BYTES):
            for number, _ in _numbered_rows(block, line_number):
                if row == 0:
                    return f"{file}:{number}"
                row -= 1
    raise IndexError("there are fewer rows")


def _numbered_rows(block: bytes, line_number: int) -> Iterator[tuple[int, bytes]]:
    """The lines of a block that are neither blank nor a comment, with their numbers;
    ``line_number`` is that of the block's first line.
    """
    for number, line in enumerate(block.split(b"\n"), start=line_number):
        if line.lstrip()[:1] not in (b"", b"#"):
            yield number, line


def _with_qids(block: bytes, qids: Iterator[int]) -> bytes:
    """The lines of a block with the number of its query behind the label of each row."""
    lines = block.split(b"\n")
    for place, line in _numbered_rows(block, 0):
        label, *others = line.split(None, 1)
        lines[place] = b" ".join([label, b"qid:%d" % next(qids, 0), *others])
    return b"\n".join(lines)


def _doc_id_in(line: bytes, where: str) -> bytes:
    """The document id in the comment of a line, empty if there is none."""
    match = _DOC_ID.search(line)
    if match is None:
        return b""
    try:
        match[1].decode()
    except UnicodeDecodeError:
        raise InputError(f"{where}: a document id must be UTF-8, got {_shown(match[1])}") from None
    return match[1]


def _read_at_once(block: bytes, first_feature: int) -> SvmlightRows | None:
    """The rows of a block whose features ascend within each line, without a loop over lines; None
    if anything is amiss.

    pandas reads all numbers of the block as one column. That is fast, but a column has no lines. So
    the places of tokens and colons are checked first: a line must be a token without a colon,
    ``qid:`` and a number, then tokens with one colon inside. If no number is missing either, each
    row is a label, a qid, and then a feature and its value in turn. pandas may err in the last
    place of a float64, which float32 does not show.
    """
    # With a line end in front, every token of the block has white space before it.
    body = b"\n" + block
    if b"#" in body:
        body = _COMMENT.sub(b"", body)
    if body.translate(None, delete=_ALPHABET):
        return None
    chars = np.frombuffer(body, dtype=np.uint8)
    is_space = chars <= ord(" ")
    starts = np.flatnonzero(is_space[:-1] & ~is_space[1:]) + 1  # of all tokens, in chars

    # For each line the index in `starts` of its first token, the label; a blank line has none.
    first_of_line = np.searchsorted(starts, np.flatnonzero(chars == ord("\n")))
    n_tokens_of_line = np.diff(first_of_line, append=len(starts))
    firsts = first_of_line[n_tokens_of_line > 0]
    n_rows = len(firsts)
    if n_rows == 0:
        return _typed_rows(*[np.empty(0)] * 5)
    n_after_label = np.diff(firsts, append=len(starts)) - 1  # tokens of each row after its label
    if n_after_label.min() < 1:
        return None

    # All tokens but the labels are pairs: each must have one colon, and something in front of it.
    # (If nothing follows it, a number is missing below.)
    colons = np.flatnonzero(chars == ord(":"))
    pair_starts = np.delete(starts, firsts)
    next_starts = np.append(starts[1:], len(chars))
    pair_stops = np.delete(next_starts, firsts)
    if len(colons) != len(pair_starts):
        return None
    if (colons <= pair_starts).any() or (colons >= pair_stops).any():
        return None

    # The first pair of each row must be its qid, and no other may hold one of these letters.
    first_pair_of_row = np.cumsum(n_after_label) - n_after_label
    qid_starts = pair_starts[first_pair_of_row]
    if (colons[first_pair_of_row] - qid_starts != len(QID)).any():
        return None
    for place, letter in enumerate(QID):
        if body.count(letter) != n_rows or (chars[qid_starts + place] != letter).any():
            return None

    numbers = _numbers_of(body)
    if numbers is None or len(numbers) != 2 * len(colons):
        return None
    # The letters "qid" are gone. So row after row the numbers are pairs, and of each pair the left
    # and the right one:
    #     (label, qid) (feature, value) (feature, value) …
    # They are as many as the colons, in one order: where the i-th colon is a qid's, the i-th pair is
    # (label, qid).
    lefts = numbers[0::2]
    rights = numbers[1::2]
    labels = lefts[first_pair_of_row]
    qids = rights[first_pair_of_row]
    features = np.delete(lefts, first_pair_of_row)
    values = np.delete(rights, first_pair_of_row)

    # The features of row r begin at first_pair_of_row[r] - r, as np.delete has taken the first pair of each
    # of the r rows before. A last row without features begins behind the end: one entry more.
    begins_row = np.zeros(len(features) + 1, dtype=bool)
    begins_row[first_pair_of_row - np.arange(n_rows)] = True
    ascends = begins_row[1:-1] | (np.diff(features) > 0)
    if not ascends.all() or not _are_in_range(labels, qids, features, values, first_feature):
        return None
    return _typed_rows(labels, qids, n_after_label - 1, features - first_feature, values)


def _are_in_range(
    labels: np.ndarray,
    qids: np.ndarray,
    features: np.ndarray,
    values: np.ndarray,
    first_feature: int,
) -> bool:
    """Whether all numbers are such that :func:`_read_line` takes them."""
    is_grade = (labels == np.floor(labels)) | (labels > 0)
    if not (is_grade & (np.abs(labels) < LARGEST_GRADE)).all():
        return False
    for numbers, least, largest in (
        (qids, 0, LARGEST_QID),
        (features, first_feature, LARGEST_FEATURE),
    ):
        is_whole = numbers == np.floor(numbers)
        if not (is_whole & (numbers >= least) & (numbers <= largest)).all():
            return False
    return bool((np.abs(values) <= LARGEST_VALUE).all())


def _numbers_of(body: bytes) -> np.ndarray | None:
    """All numbers of some rows without comments, float64; None if pandas refuses one."""
    import pandas as pd  # here: it takes 27 MB, which training on texts needs no part of

    column = BytesIO(body.translate(_EACH_ON_A_LINE, delete=QID))
    try:
        table = pd.read_csv(column, header=None, dtype=np.float64, na_filter=False)
    except ValueError:
        return None
    return table.to_numpy().ravel()


def _read_line_by_line(
    block: bytes, first_feature: int, file: Path, line_number: int
) -> SvmlightRows:
    """What :func:`_read_at_once` reads, at a twentieth of its speed: for features in another order,
    and to name the line that is no row.
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
    return _typed_rows(
        np.asarray(labels),
        np.asarray(qids),
        np.asarray(counts),
        np.asarray(columns),
        np.asarray(values),
    )


def _typed_rows(
    labels: np.ndarray,
    qids: np.ndarray,
    counts: np.ndarray,
    columns: np.ndarray,
    values: np.ndarray,
) -> SvmlightRows:
    """The rows in the types of :class:`SvmlightRows`, with labels of at least 0, still without ids."""
    return SvmlightRows(
        labels=np.maximum(labels, 0).astype(np.float32),
        qids=qids.astype(np.int64),
        counts=counts.astype(np.int64),
        columns=columns.astype(np.int32),
        values=values.astype(np.float32),
        doc_ids=[],
    )


def _read_line(line: bytes, first_feature: int) -> tuple[float, int, dict[int, float]]:
    """The label, the qid, and the values by feature of a line without its comment."""
    label, *tokens = line.split()
    if not tokens or not tokens[0].startswith(b"qid:"):
        hint = ""
        if tokens:
            hint = "; for rows without qid put the sizes of the queries beside the file, as train.txt.query or train.txt.group"
        raise InputError(f"a line must be 'label qid:N feature:value …', got {_shown(line)}{hint}")
    grade = _number(label, "a label")
    if not abs(grade) < LARGEST_GRADE:
        raise InputError(f"a label must be a number below 10^7, got {_shown(label)}")
    if grade < 0 and not grade.is_integer():
        raise InputError(
            f"a label with a fraction must not be negative, got {_shown(label)}; add one number to all labels, so that 0 is not relevant"
        )
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
            hint = "; for a file numbered from 0 set first_feature to 0" if feature == 0 else ""
            raise InputError(
                f"features are numbered from {first_feature}, got {_shown(token)}{hint}"
            )
        if feature > LARGEST_FEATURE:
            raise InputError(
                f"the number of a feature must be at most {LARGEST_FEATURE:,}, as rows are stored dense, got {_shown(token)}; number the features without gaps"
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
    """The beginning of some bytes of a file, for errors."""
    return repr(text.decode(errors="replace").strip()[:60])
