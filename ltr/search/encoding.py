"""An encoding: the embeddings of a corpus, as a folder of shards.

A shard is a function of the texts of some rows, of the weights, of how they read, and of the
precision: whoever computes it, on one kind of machine, writes the same bytes. So any number of
workers, on any number of machines that reach the folder, encode a corpus together; each takes
shards that are missing. A killed worker costs the shard it was at, and the one it was writing.

Letters of shapes: D texts, n texts of a shard, H dimensions.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from ltr.data.files import digest_of_json, exists_as_file
from ltr.data.progress import track
from ltr.data.tokens import Tokens
from ltr.data.whole_files import write_whole
from ltr.entries import check_entries, read_json
from ltr.errors import InputError
from ltr.search.embedder import Embedder
from ltr.search.embeddings import StoredEmbeddings
from ltr.search.numbers import Numbers
from ltr.search.shard_file import Shard, read_shard

log = logging.getLogger(__name__)

PLAN = "plan.json"
MANIFEST = "manifest.json"
IDS = "ids"  # of the texts, where the encoding has them: files of ltr.data.strings.Strings
VERSION = "encoding-1"  # counts up when shards hold something else
# Of what a GPU of CUDA encodes in bfloat16: with norms in it, see ltr.models.encoder.kernels.linear.
VERSION_WITH_HALF_NORMS = "encoding-2"
AGAIN = "start its ltr encode again, which makes it anew"  # what to do where a file is damaged

FEWEST_ROWS = 256
MOST_ROWS = 4096  # of a shard, as long as there are no more than MOST_SHARDS
USUAL_SHARDS = 64
MOST_SHARDS = 65_536


def rows_of_shard(n_texts: int) -> int:
    """How many rows a shard has: a power of two, so that there are some 64 shards, of at least 256
    and, up to 268 million texts, of at most 4,096 rows.

    >>> [rows_of_shard(n) for n in (1, 20_000, 10**6, 10**8, 10**9)]
    [256, 512, 4096, 4096, 16384]
    """
    usual = _power_of_two(n_texts / USUAL_SHARDS)
    fewest = _power_of_two(n_texts / MOST_SHARDS)
    return max(FEWEST_ROWS, min(MOST_ROWS, usual), fewest)


def _power_of_two(number: float) -> int:
    """The smallest power of two that is not below a number."""
    power = 1
    while power < number:
        power *= 2
    return power


@dataclass(frozen=True)
class TextsToEncode:
    """The texts of an encoding.

    Attributes:
        count: D.
        key: of their content.
        tokens_between: the tokens of the texts from one row up to another one.
        texts_between: the texts themselves, for :class:`ltr.search.known_rows.KnownRows`; None
            where they are not at hand.
    """

    count: int
    key: str
    tokens_between: Callable[[int, int], Tokens]
    texts_between: Callable[[int, int], Sequence[str]] | None = None


@dataclass(frozen=True)
class EncodingPlan:
    """What an encoding is made of, and how it is cut.

    Attributes:
        model: digest of ``ltr.search.embedder.Embedder.key``.
        precision: in which texts are encoded, as ``trainer.precision`` names it.
        texts: the key of their content.
        count: D.
        rows: of a shard; the last one may have fewer.
        numbers: in which embeddings are stored.
        version: of what shards hold.
    """

    model: str
    precision: str
    texts: str
    count: int
    rows: int
    numbers: Numbers
    version: str = VERSION

    @property
    def key(self) -> str:
        """A digest of all that decides what the shards hold."""
        return digest_of_json(asdict(self))[:32]

    @property
    def n_shards(self) -> int:
        """How many there are."""
        return -(-self.count // self.rows)

    def span(self, number: int) -> slice:
        """The rows of a shard."""
        first = number * self.rows
        return slice(first, min(first + self.rows, self.count))


def plan_of(embedder: Embedder, texts: TextsToEncode, numbers: Numbers) -> EncodingPlan:
    """The plan by which these texts are encoded."""
    halves_norms = embedder.device.type == "cuda" and embedder.precision_name == "bf16-mixed"
    return EncodingPlan(
        digest_of_json(embedder.key)[:32],
        embedder.precision_name,
        texts.key,
        texts.count,
        rows_of_shard(texts.count),
        numbers,
        VERSION_WITH_HALF_NORMS if halves_norms else VERSION,
    )


class Manifest(TypedDict):
    """What is known of a finished encoding, beside the entries of its plan."""

    dim: int
    devices: list[str]
    digest: str  # of the embeddings, the ids, and the similarity
    similarity: NotRequired[str]  # by which the ranker compares
    ranker: NotRequired[str]


class Encoding:
    """A folder of shards that belongs to a plan.

    Args:
        folder: where the shards lie; it must be there, empty or with what is done of this plan.
        plan: what they hold.

    Raises:
        InputError: if something else lies there.
    """

    def __init__(self, folder: Path, plan: EncodingPlan) -> None:
        self.folder = folder
        self.plan = plan
        self._damaged: set[int] = set()  # numbers of shards that were named
        known = read_plan(folder)
        if known is None:
            write_whole(folder / PLAN, [json.dumps(asdict(plan), indent=2) + "\n"])
        elif known != plan:
            there = asdict(known)
            differing = [name for name, value in asdict(plan).items() if there[name] != value]
            raise InputError(
                f"{folder} holds another encoding (what differs: {', '.join(differing)}); name a new folder, or remove it"
            )

    @classmethod
    def open(cls, folder: Path) -> "Encoding":
        """A finished encoding.

        Raises:
            InputError: if none is there, it is not finished, or it is damaged.
        """
        plan = read_plan(folder)
        if plan is None:
            raise InputError(
                f"{folder}: expected an encoding, as ltr encode writes it, found no {PLAN} there"
            )
        encoding = cls(folder, plan)
        if encoding.manifest() is None:
            raise InputError(
                f"{folder}: the encoding is not finished, there is no {MANIFEST}; start its ltr encode again, which goes on where it was"
            )
        return encoding

    def file(self, number: int) -> Path:
        """The file of a shard."""
        return self.folder / f"{number:06d}.npy"

    def shard(self, number: int) -> Shard | None:
        """A shard; None where it is missing. A damaged one, or one of another encoding, is named
        in a warning, once, and counts as missing.
        """
        file = self.file(number)
        span = self.plan.span(number)
        exists_as_file(file)  # a folder of this name is refused
        try:
            shard = read_shard(file)
            if (shard.seal.encoding, shard.seal.number) != (self.plan.key, number):
                raise ValueError("it belongs to another encoding")
            if shard.count != span.stop - span.start:
                raise ValueError(f"it has {shard.count} rows of {span.stop - span.start}")
        except FileNotFoundError:
            return None
        except ValueError as error:
            if number not in self._damaged:
                log.warning("%s is no shard of this encoding: %s; it is made again", file, error)
            self._damaged.add(number)
            return None
        self._damaged.discard(number)
        return shard

    def missing(self) -> list[int]:
        """The numbers of the shards that are not there."""
        return [number for number in range(self.plan.n_shards) if self.shard(number) is None]

    def open_shards(self, numbers: Sequence[int]) -> StoredEmbeddings:
        """Some shards, one after the other, as one array.

        Raises:
            InputError: if one is missing or damaged.
        """
        shards = []
        for number in numbers:
            shard = self.shard(number)
            if shard is None:
                raise InputError(f"{self.file(number)} is missing or damaged; {AGAIN}")
            shards.append(shard)
        return StoredEmbeddings(shards, shards[0].dim if shards else 0)

    def embeddings(self) -> StoredEmbeddings:
        """All of them; an InputError if a shard is missing or damaged."""
        return self.open_shards(range(self.plan.n_shards))

    def manifest(self) -> dict[str, Any] | None:
        """What is known of the finished whole, see :class:`Manifest`; None where it is not finished.

        Raises:
            InputError: if the file is damaged.
        """
        file = self.folder / MANIFEST
        if not exists_as_file(file):
            return None
        manifest = read_json(file, AGAIN)
        check_entries(manifest, Manifest, file, AGAIN)
        return manifest

    def checked_manifest(self) -> dict[str, Any]:
        """The manifest, which must be that of these shards and of the ids beside them. Their bytes
        are not read, for which see :meth:`remove_damaged`.

        Raises:
            InputError: if it is not, or a shard is missing.
        """
        manifest = self.manifest() or {}
        expected = self._finished(self.embeddings().shards, manifest.get("similarity"))
        if not expected.items() <= manifest.items():
            raise InputError(
                f"{self.folder}: the shards, the ids and {MANIFEST} must be those that were written together, and have changed since; {AGAIN}"
            )
        return manifest

    def remove_damaged(self) -> None:
        """Remove each shard whose bytes are not those that were written, and name it in a warning:
        it is made again.
        """
        for number in track(range(self.plan.n_shards), "checking", "shards"):
            shard = self.shard(number)
            if shard is not None and shard.digest() != shard.seal.digest:
                log.warning(
                    "%s: the bytes of this shard are not those that were written; it is made again",
                    shard.file,
                )
                shard.file.unlink(missing_ok=True)

    def finish(self, about: dict[str, Any] | None = None) -> dict[str, Any]:
        """Check all shards, and write the manifest, with a digest of the whole.

        Returns:
            The manifest: the entries of the plan, ``dim``, ``devices``, ``digest``, and ``about``.

        Raises:
            InputError: if a shard is missing, or was damaged and is removed.
        """
        self.remove_damaged()
        about = about or {}
        manifest = {
            **self._finished(self.embeddings().shards, about.get("similarity")),
            **about,
        }
        write_whole(self.folder / MANIFEST, [json.dumps(manifest, indent=2) + "\n"])
        return manifest

    def _finished(self, shards: Sequence[Shard], similarity: str | None) -> dict[str, Any]:
        """What the manifest says of shards. Its digest is of their embeddings, and of what others
        read beside them: the ids of the texts and the similarity, where these are told.
        """
        digests = [shard.seal.digest for shard in shards]
        for file in (self.folder / f"{IDS}.npy", self.folder / f"{IDS}.offsets.npy"):
            if exists_as_file(file):
                with open(file, "rb") as opened:
                    digests.append(hashlib.file_digest(opened, "sha256").hexdigest())
        if similarity is not None:
            digests.append(similarity)
        return {
            **asdict(self.plan),
            "dim": shards[0].dim,
            "devices": sorted({shard.seal.device for shard in shards}),
            "digest": hashlib.sha256("\n".join(digests).encode()).hexdigest(),
        }


def read_plan(folder: Path) -> EncodingPlan | None:
    """The plan of the encoding in a folder; None where there is none.

    Raises:
        InputError: if the folder is a file, or the plan is damaged.
    """
    if os.path.isfile(folder):
        raise InputError(
            f"{folder}: expected the folder of an encoding, as ltr encode writes it, got a file"
        )
    file = folder / PLAN
    if not exists_as_file(file):
        return None
    mend = "remove the folder, and encode the corpus again: ltr encode"
    entries = read_json(file, mend)
    check_entries(entries, EncodingPlan, file, mend)
    own = [field.name for field in fields(EncodingPlan)]
    if entries.keys() != set(own) or entries["rows"] < 1 or entries["count"] < 1:
        raise InputError(
            f"{file}: the file is damaged, it must hold {', '.join(own)}, with rows and count of at least 1; {mend}"
        )
    return EncodingPlan(**entries)
