"""Where encodings lie: in the run that trains, in the cache, for a while, or in a folder that was
named.

Every process must call these functions; each encodes its share of the shards, and reads that share
afterwards. They must reach a folder in common, but none needs the files of others.
"""

import shutil
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ltr.data.cache_folder import SEAL, cached, entry_folder, origin_of
from ltr.data.files import lock_shared
from ltr.data.texts import TextTable
from ltr.data.tokens import Tokens, TokenStore
from ltr.data.whole_files import parts_of, remove, write_whole
from ltr.errors import InputError
from ltr.processes import (
    barrier,
    by_every_rank,
    by_rank_0,
    gather_objects,
    rank,
    shared_folder,
    world_size,
)
from ltr.search.embedder import Embedder
from ltr.search.encoding import (
    MANIFEST,
    PLAN,
    Encoding,
    EncodingPlan,
    TextsToEncode,
    plan_of,
    read_plan,
    rows_of_shard,
)
from ltr.search.encoding_worker import Worker
from ltr.search.known_rows import KEYS, KnownRows, write_keys
from ltr.search.numbers import Numbers
from ltr.spans import spans

KIND = "encodings"  # the folder of the cache, and that of a run
SECONDS_UNTIL_SEEN = 30.0  # that a folder on a network may take to show what another process made


class Encodings(Protocol):
    """A place where encodings lie."""

    def encoding_of(
        self, embedder: Embedder, texts: TextsToEncode, numbers: Numbers
    ) -> AbstractContextManager[Encoding]:
        """The encoding of these texts, with no shard missing for this process: what is not there
        is made. It may be one in float32 where halves are asked for.
        """


def share_of_rank() -> slice:
    """The shards of this process: every W-th."""
    return slice(rank(), None, world_size())


def smallest_share(n_texts: int) -> int:
    """The fewest texts of an encoding that a process has, of those that have any."""
    shards = list(spans(n_texts, rows_of_shard(n_texts)))
    counts = []
    for number in range(min(world_size(), len(shards))):
        shards_of_rank = shards[number :: world_size()]
        counts.append(sum(shard.stop - shard.start for shard in shards_of_rank))
    return min(counts)


def texts_of_store(store: TokenStore, count: int | None = None) -> TextsToEncode:
    """The texts of a token store, or only the first so many."""
    n_texts = len(store) if count is None else count
    key = store.read_key if n_texts == len(store) else f"{store.read_key} :{n_texts}"
    return TextsToEncode(n_texts, key, store.between)


def texts_of_table(table: TextTable, embedder: Embedder) -> TextsToEncode:
    """The texts of a table, which are tokenised shard by shard."""

    def tokens_between(first: int, stop: int) -> Tokens:
        return embedder.form.tokens(table.texts.between(first, stop))

    return TextsToEncode(len(table), table.key, tokens_between, table.texts.between)


@dataclass(frozen=True)
class EncodingsOfRun:
    """In the folder ``encodings`` of a run that trains. The encodings of earlier weights are
    removed when a new one is begun; :meth:`remove_all` removes all of them. :meth:`last` goes into
    the cache before, where its weights are kept.

    Attributes:
        run_folder: every process must reach it.
        user: who encodes: the encoding that was the last of any user stays.
    """

    run_folder: Path
    user: str

    @contextmanager
    def encoding_of(
        self, embedder: Embedder, texts: TextsToEncode, numbers: Numbers
    ) -> Iterator[Encoding]:
        """See :class:`Encodings`."""
        plan = plan_of(embedder, texts, numbers)
        folder = self._root / plan.key
        by_rank_0(lambda: self._begin(plan, folder))
        yield _encoded_by_all(folder, plan, embedder, texts)
        barrier()  # all processes have read it: the next one may remove it

    @property
    def _root(self) -> Path:
        return self.run_folder / KIND

    def _begin(self, plan: EncodingPlan, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # A file for each user names the last encoding of his.
        write_whole(self._root / self.user, [plan.key])
        used = {file.read_text() for file in self._root.iterdir() if file.is_file()}
        for other in self._root.iterdir():
            if other.is_dir() and other.name not in used:
                remove(other)
        _open_or_begin(folder, plan)

    def last(self) -> Encoding | None:
        """The last encoding of the user, finished or not; None where there is none."""
        name = self._root / self.user
        if not name.is_file():
            return None
        folder = self._root / name.read_text()
        plan = read_plan(folder)
        return None if plan is None else Encoding(folder, plan)

    def remove_all(self) -> None:
        """Remove the encodings of the run; to be called by one process, when no other reads."""
        remove(self._root)


@dataclass(frozen=True)
class TemporaryEncodings:
    """In a folder ``encodings-*`` that goes when it was used.

    Attributes:
        root: where the folder lies; every process must reach it.
    """

    root: Path

    @contextmanager
    def encoding_of(
        self, embedder: Embedder, texts: TextsToEncode, numbers: Numbers
    ) -> Iterator[Encoding]:
        """See :class:`Encodings`."""
        plan = plan_of(embedder, texts, numbers)
        with shared_folder(self.root, KIND) as shared:
            folder = shared / plan.key
            by_rank_0(folder.mkdir)
            by_rank_0(lambda: _open_or_begin(folder, plan) and None)
            yield _encoded_by_all(folder, plan, embedder, texts)
            barrier()  # all processes have read the folder, which now goes


@dataclass(frozen=True)
class EncodingsInCache:
    """In the cache, where any command finds them again.

    Attributes:
        source: where the texts lie; for ``ltr cache``.
        model: where the weights lie; for ``ltr cache``.
        run_folder: where several processes encode, before the first puts it into its cache. They
            must all reach it.
    """

    source: str | Path
    model: str | Path
    run_folder: Path | None = None

    @contextmanager
    def encoding_of(
        self, embedder: Embedder, texts: TextsToEncode, numbers: Numbers
    ) -> Iterator[Encoding]:
        """See :class:`Encodings`."""
        plans = [plan_of(embedder, texts, numbers)]
        if numbers != "float32":
            plans.insert(0, plan_of(embedder, texts, "float32"))
        for plan in plans:
            if all(gather_objects(entry_folder(KIND, plan.key).is_dir())):
                yield by_every_rank(lambda plan=plan: self._cached(plan, embedder, texts))  # type: ignore[misc]
                return
        plan = plans[-1]
        if world_size() == 1:
            yield self._cached(plan, embedder, texts)
            return
        assert self.run_folder is not None, "several processes encode in the folder of a run"
        with TemporaryEncodings(self.run_folder).encoding_of(embedder, texts, numbers) as encoding:
            yield encoding
            barrier()
            by_rank_0(lambda: self.put(encoding))

    def _cached(self, plan: EncodingPlan, embedder: Embedder, texts: TextsToEncode) -> Encoding:
        def build(folder: Path) -> None:
            parts = parts_of(folder)
            parts.mkdir(exist_ok=True)
            encoding = _open_or_begin(parts, plan)
            known = self._known_rows(plan) if texts.texts_between is not None else None
            try:
                Worker(encoding, embedder, texts, known).encode_missing()
            except InputError:  # of weights that have diverged, say: it would come again
                remove(parts)
                raise
            encoding.finish()
            if texts.texts_between is not None:
                spans = map(plan.span, range(plan.n_shards))
                write_keys(parts, (texts.texts_between(span.start, span.stop) for span in spans))
            _move_files(parts, folder)

        return self._open(plan, build)

    def put(self, encoding: Encoding) -> None:
        """Move an encoding into the cache; to be called by one process, when no other reads it.

        Raises:
            InputError: if a shard is missing or damaged, or nothing can be written into the cache.
        """

        def build(folder: Path) -> None:
            encoding.finish()
            _move_files(encoding.folder, folder)

        self._open(encoding.plan, build)

    def _open(self, plan: EncodingPlan, build: Callable[[Path], None]) -> Encoding:
        origin = origin_of(self.source, model=self.model)
        return cached(KIND, plan.key, build, _open_in_use, origin)

    def _known_rows(self, plan: EncodingPlan) -> KnownRows | None:
        """The embeddings of the encoding by these weights that was whole and used last."""
        found: list[tuple[float, Encoding]] = []
        for file in entry_folder(KIND, plan.key).parent.glob(f"*/{KEYS}"):
            try:
                encoding = _open_in_use(file.parent)
                last_used = (file.parent / SEAL).stat().st_mtime
            except (InputError, OSError):  # damaged, or another process removes it
                continue
            other = encoding.plan
            is_same = (other.model, other.precision, other.numbers, other.version) == (
                plan.model,
                plan.precision,
                plan.numbers,
                plan.version,
            )
            if is_same:
                found.append((last_used, encoding))
        for _, encoding in sorted(found, key=lambda entry: -entry[0]):
            with suppress(InputError, OSError, ValueError):  # damaged: what it knows is not needed
                return KnownRows(encoding.folder, encoding.embeddings())
        return None


@dataclass(frozen=True)
class EncodingOfFolder:
    """A finished encoding that ``ltr encode`` has written.

    Attributes:
        folder: where it lies; every process must reach it.
        option: which names it, for errors.
    """

    folder: Path
    option: str = "--encoded"

    @contextmanager
    def encoding_of(
        self, embedder: Embedder, texts: TextsToEncode, numbers: Numbers
    ) -> Iterator[Encoding]:
        """The encoding of the folder, in whatever numbers it is stored.

        Raises:
            InputError: if it is not finished, or is of other texts, of other weights or in another
                precision.
        """
        yield by_every_rank(lambda: self._open(plan_of(embedder, texts, numbers)))

    def _open(self, wanted: EncodingPlan) -> Encoding:
        encoding = Encoding.open(self.folder)
        plan = encoding.plan
        parts = {
            "other weights": (plan.model, wanted.model),
            f"the precision {plan.precision}, not {wanted.precision}": (
                plan.precision,
                wanted.precision,
            ),
            "another corpus": ((plan.texts, plan.count), (wanted.texts, wanted.count)),
        }
        for name, (there, here) in parts.items():
            if there != here:
                raise InputError(
                    f"{self.option} must be an encoding of this corpus by this ranker, got one of {name}: {self.folder}; encode the corpus anew: ltr encode"
                )
        return encoding


def _open_or_begin(folder: Path, plan: EncodingPlan) -> Encoding:
    """What is there of a plan; begun anew where something else lies there."""
    try:
        return Encoding(folder, plan)
    except InputError:
        shutil.rmtree(folder)
        folder.mkdir()
        return Encoding(folder, plan)


def _open_in_use(folder: Path) -> Encoding:
    """A finished encoding of the cache, which nobody removes as long as it is open."""
    encoding = Encoding.open(folder)
    in_use = open(folder / MANIFEST, "rb")  # noqa: SIM115  # closed when the encoding is collected
    weakref.finalize(encoding, in_use.close)
    lock_shared(in_use)
    return encoding


def _encoded_by_all(
    folder: Path, plan: EncodingPlan, embedder: Embedder, texts: TextsToEncode
) -> Encoding:
    """An encoding that the first process has begun, once each process has made its share."""

    def encode() -> Encoding:
        _wait_for(folder / PLAN)
        encoding = Encoding(folder, plan)
        Worker(encoding, embedder, texts).encode_missing(share_of_rank())
        return encoding

    return by_every_rank(encode)


def _wait_for(file: Path) -> None:
    """Wait until a file of another process is seen here, too; refuse after half a minute."""
    end = time.monotonic() + SECONDS_UNTIL_SEEN
    while not file.exists():
        if time.monotonic() > end:
            raise InputError(
                f"{file.parent} must be reached by every process, and process {rank()} does not see what the first one has written there; name a folder that all nodes share"
            )
        time.sleep(0.1)


def _move_files(source: Path, folder: Path) -> None:
    """Move all files of a folder into another one, perhaps of another disk."""
    for file in source.iterdir():
        if not file.name.startswith("."):
            shutil.move(file, folder / file.name)
