"""The folder ``proof/`` of an exported ranker: probes.json, hidden.npz and contract.json, as they
are read again.
"""

import re
import zipfile
from pathlib import Path
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

import numpy as np

from ltr.data.files import digest_of, digest_of_json
from ltr.entries import check_entries, read_json
from ltr.errors import InputError, local_path
from ltr.run.run_folder import CALIBRATION
from ltr.use.calibration.calibration import Calibration, read_calibration
from ltr.use.proof.network import Kind, TokenRow
from ltr.use.proof.reading import Text

FOLDER = "proof"
CONTRACT = "contract.json"
PROBES = "probes.json"
HIDDEN = "hidden.npz"
CHECK = "check.py"
MEND = "export the ranker again"
CARD = "README.md"
VERSION = 2
SHIPPED = "texts that ship with ltr"  # what probes are of, at least

# By which a score may differ elsewhere in float32, relative to the largest score and to their
# spread. Half precision differs by more than ten times that.
RELATIVE_TO_SIZE = 1e-5
RELATIVE_TO_SPREAD = 2e-4
LARGEST_TOLERANCE = 2.0  # relative to that of the scores: sums may be rounded otherwise
# The line of the card that names the contract.
IN_CARD = "`proof/contract.json` has the digest `{}`."

Form = Literal["sentence-transformers", "transformers", "onnx"]


class Templates(TypedDict):
    """What is put around the fields of a query and a document, and around both."""

    query: str
    document: str
    pair: str | None


class Special(TypedDict):
    """The ids of the special tokens around one text or two."""

    before: list[int]
    between: list[int]
    after: list[int]


class Head(TypedDict):
    """What stands behind the pooling."""

    layers: str
    weights: str  # a digest


class Contract(TypedDict):
    """What a server must do with a query and a document."""

    version: int
    form: Form
    kind: Literal["cross-encoder", "dual encoder"]
    template: Templates
    rendered_by_caller: NotRequired[bool]  # texts are put into the template before they are sent
    budgets: NotRequired[dict[str, int | None]]  # tokens at which fields are cut before
    special_tokens: dict[str, Special]
    adds_special_tokens: bool
    max_tokens: dict[str, int]
    cut: str
    place: dict[str, str]
    pooling: dict[str, str]
    head: dict[str, Head]
    activation: str
    dtype: str
    similarity: str | None
    tolerance: float
    probes_of: str
    files: dict[str, str]
    proof: dict[str, str]  # digests of the other files of the proof
    digest: str  # of all other entries


class ReadingEntry(TypedDict):
    """A text, or a query joined with a document, as the ranker reads it."""

    fields: list[str]
    texts: list[str]
    ids: list[int]
    types: list[int] | None
    place: list[int]


class ProbeEntry(TypedDict):
    """A query and a document with their score."""

    list: int
    readings: dict[str, int]
    score: float
    rank: int


class ProbesFile(TypedDict):
    """The whole file."""

    readings: dict[str, list[ReadingEntry]]
    probes: list[ProbeEntry]


class Proof(NamedTuple):
    """An opened proof.

    Attributes:
        folder: of the exported ranker.
        contract: see :class:`Contract`.
        texts: what is read, by kind.
        rows: its token ids, by kind.
        readings: for each kind the reading of every probe.
        lists: ``[P]``, the list of each probe.
        scores: ``[P]`` float32.
        arrays: ``{kind}_pooled`` ``[S, H]``; and ``query`` and ``document``, the embeddings of a
            dual encoder.
    """

    folder: Path
    contract: dict[str, Any]
    texts: dict[Kind, list[Text]]
    rows: dict[Kind, list[TokenRow]]
    readings: dict[Kind, np.ndarray]
    lists: np.ndarray
    scores: np.ndarray
    arrays: dict[str, np.ndarray]

    @property
    def is_dual(self) -> bool:
        """Whether texts are read apart."""
        return "pair" not in self.rows

    @property
    def tolerance(self) -> float:
        """By which a score may differ."""
        return float(self.contract["tolerance"])

    @property
    def calibration(self) -> Calibration | None:
        """Of the scores, as it was exported; None where none was, or the file is another one now."""
        file = self.folder / CALIBRATION
        if not file.is_file() or digest_of(file) != self.contract["files"].get(CALIBRATION):
            return None
        return read_calibration(file)


def open_proof(folder: str | Path) -> Proof:
    """The proof of an exported folder.

    Raises:
        InputError: if there is none, or it is damaged.
    """
    local_path("folder", folder)
    path = Path(folder)
    place = path / FOLDER
    if not path.is_dir():
        raise InputError(f"{path}: an exported folder is needed, and there is no such folder")
    if not (place / CONTRACT).is_file():
        raise InputError(
            f"{path}: the folder must hold {FOLDER}/{CONTRACT}, and does not; "
            "export the ranker with ltr export"
        )
    contract = read_json(place / CONTRACT, MEND)
    version = contract.get("version")
    if version != VERSION:
        raise InputError(
            f"{place / CONTRACT}: this ltr reads proofs of version {VERSION}, got {version!r:.40}; {MEND}"
        )
    check_entries(contract, Contract, place / CONTRACT, MEND)
    _check_unchanged(path, contract)
    content = read_json(place / PROBES, MEND)
    check_entries(content, ProbesFile, place / PROBES, MEND)
    arrays = _arrays(place / HIDDEN)
    kinds: list[Kind] = ["pair"] if "pair" in content["readings"] else ["query", "document"]
    texts: dict[Kind, list[Text]] = {}
    rows: dict[Kind, list[TokenRow]] = {}
    readings: dict[Kind, np.ndarray] = {}
    for kind in kinds:
        entries = content["readings"].get(kind, [])
        texts[kind] = [Text(entry["fields"], entry["texts"]) for entry in entries]
        rows[kind] = [TokenRow(entry["ids"], entry["types"]) for entry in entries]
        numbers = [probe["readings"].get(kind, -1) for probe in content["probes"]]
        readings[kind] = np.array(numbers, np.int64)
        names = [f"{kind}_pooled"] if kind == "pair" else [f"{kind}_pooled", kind]
        fits = bool(numbers) and min(numbers) >= 0 and max(numbers) < len(entries)
        for name in names:
            fits = fits and name in arrays and len(arrays[name]) == len(entries)
        if not fits or kind not in contract["max_tokens"]:
            raise InputError(
                f"{place / PROBES}: the file is damaged, its probes, {HIDDEN} and {CONTRACT} do not fit; {MEND}"
            )
    probes = content["probes"]
    scores = np.array([probe["score"] for probe in probes], np.float32)
    largest = LARGEST_TOLERANCE * tolerance_of(scores)
    if not 0 <= contract["tolerance"] <= largest:
        raise InputError(
            f"{place / CONTRACT}: tolerance must be from 0 to {largest:.3g} for scores of this spread, got {contract['tolerance']}; {MEND}"
        )
    return Proof(
        path,
        contract,
        texts,
        rows,
        readings,
        np.array([probe["list"] for probe in probes], np.int64),
        scores,
        arrays,
    )


def tolerance_of(scores: np.ndarray) -> float:
    """By how much right scores ``[P]`` may differ elsewhere."""
    size = float(np.abs(scores).max())
    return RELATIVE_TO_SIZE * size + RELATIVE_TO_SPREAD * float(scores.std())


def signed(place: Path, contract: dict[str, Any]) -> dict[str, Any]:
    """A contract with the digests of the other files of its proof, and of itself.

    Args:
        place: the folder of the proof.
        contract: the entries, perhaps with digests of before.
    """
    entries = {name: value for name, value in contract.items() if name != "digest"}
    entries["proof"] = {name: digest_of(place / name) for name in (PROBES, HIDDEN, CHECK)}
    return entries | {"digest": digest_of_json(entries)}


def _check_unchanged(path: Path, contract: dict[str, Any]) -> None:
    """Raise an InputError where a file of a proof is not the one that was exported, by the digests
    in the contract, or the contract is not, by its own and that of the card.
    """
    place = path / FOLDER
    try:
        right = signed(place, contract)
    except OSError as error:
        raise InputError(
            f"{error.filename}: the file can't be read ({error.strerror}); {MEND}"
        ) from None
    changed = [
        name for name in right["proof"] if right["proof"][name] != contract["proof"].get(name)
    ]
    card = path / CARD
    told = []
    if card.is_file():
        pattern = re.escape(IN_CARD).replace(re.escape("{}"), "([0-9a-f]{64})")
        told = re.findall(pattern, card.read_text(encoding="utf-8", errors="replace"))
    if not changed and (right["digest"] != contract["digest"] or {*told} - {right["digest"]}):
        changed = [CONTRACT]
    if changed:
        raise InputError(
            f"{place / changed[0]}: a proof must be as it was exported, and this file has changed since; {MEND}"
        )


def _arrays(file: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(file, allow_pickle=False) as content:
            arrays = {name: content[name] for name in content.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        reason = str(error).strip().partition("\n")[0]
        raise InputError(f"{file}: the file can't be read ({reason}); {MEND}") from None
    for name, array in arrays.items():
        if array.ndim != 2 or array.dtype.kind != "f" or not np.isfinite(array).all():
            raise InputError(
                f"{file}: {name} must be rows of finite numbers, got {array.dtype} {list(array.shape)}; {MEND}"
            )
    return arrays
