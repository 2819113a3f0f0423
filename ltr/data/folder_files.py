"""Which files of a data folder hold its texts, judgements and pools: as BEIR, MTEB and MS MARCO call them."""

import re
from collections.abc import Sequence
from pathlib import Path

from ltr.data.files import exists_as_file
from ltr.data.first_bytes import PACKED_ENDINGS
from ltr.data.record_files import find_texts, open_parts, open_record_files
from ltr.data.splits import LONGEST_NAME, PLAIN_NAME, SPLITS, split_named
from ltr.data.texts import TextTable
from ltr.errors import InputError

CORPUS_NAMES = ("corpus", "collection", "msmarco-docs")
PACKED = rf"(?P<packed>{'|'.join(map(re.escape, PACKED_ENDINGS))})?"
NAME = r"(?P<name>\w[\w.+-]*?)"
PART = r"-\d+-of-\d+"  # as Hugging Face names the parts of a file; of one, -00000-of-00001
JUDGED = rf"({PART})?\.(tsv|txt|qrels|trec|run|csv|jsonl|json|parquet){PACKED}"
# What files of judgements (and pools) are called within a folder of them, and beside the corpus.
JUDGEMENT_FOLDERS = ("qrels", "default", "data", ".")  # of the first that has some
JUDGEMENTS_INSIDE = (NAME + JUDGED,)
JUDGEMENTS_BESIDE = (
    rf"qrels[._-]{NAME}{JUDGED}",  # qrels.dev.small.tsv, qrels-test.txt
    rf"{NAME}[._-]?qrels{JUDGED}",
    rf"{NAME}\.qrels{PACKED}",
    rf"{NAME}qrels-(pass|docs)\.txt{PACKED}",  # 2019qrels-pass.txt
)
POOLS_INSIDE = (rf"{NAME}\.trec{PACKED}",)
TOP_RANKED = "top_ranked"  # the folder of MTEB's pools
POOLS_BESIDE = (
    rf"top1000\.{NAME}(\.tsv|\.txt)?{PACKED}",
    rf"{NAME}-top100(0\.tsv)?{PACKED}",  # msmarco-docdev-top100
)
QUERIES_BESIDE = (
    rf"queries[._-]{NAME}\.tsv{PACKED}",  # queries.dev.small.tsv
    rf"{NAME}-queries\.tsv{PACKED}",  # msmarco-docdev-queries.tsv
)
NO_SPLITS = re.compile(r"corpus|queries|.*\.removed")  # the last is what ltr check takes out of one
MS_MARCO = re.compile(r"msmarco-(doc|passage)?(test(?=20))?")  # before the name of a split
SMALL = ".small"  # behind the name of the only judged part of MS MARCO's dev


def find_corpus(folder: Path) -> Path | None:
    """The documents of a data folder, a file or a folder of files; None where it has none.

    Raises:
        InputError: as :func:`ltr.data.record_files.find_texts`.
    """
    found = (find_texts(folder, name) for name in CORPUS_NAMES)
    return next(filter(None, found), None)


def find_queries(folder: Path) -> list[Path]:
    """The queries of a data folder: a file, or a folder of files, or else the files of its splits, as
    MS MARCO has them; none where it has none.

    Raises:
        InputError: as :func:`ltr.data.record_files.find_texts`.
    """
    whole = find_texts(folder, "queries")
    return [whole] if whole else [path for _, path in _named(folder, QUERIES_BESIDE)]


def open_corpus(folder: Path) -> TextTable:
    """The documents of a data folder; an InputError if it has none."""
    path = find_corpus(folder)
    if path is None:
        raise _missing(folder, "corpus")
    return open_record_files(path, "document")


def open_queries(folder: Path) -> TextTable:
    """The queries of a data folder, those of several files as one table; an InputError if it has
    none.
    """
    files = find_queries(folder)
    if not files:
        raise _missing(folder, "queries")
    if len(files) == 1:
        return open_record_files(files[0], "query")
    return open_parts(files, "query", folder)


def _missing(folder: Path, name: str) -> InputError:
    return InputError(
        f"{folder / name}.jsonl[.gz]: there is no such file, nor {name}.parquet, {name}.tsv or a folder {name}; a data folder needs it"
    )


class FolderFiles:
    """The judgements and pools of a data folder, by split. They are found here, and not read.

    Args:
        path: of the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        beside = _by_split(_named(path, JUDGEMENTS_BESIDE))
        # A file test.tsv beside the corpus is looked for where there is no other, as the last folder.
        folders = JUDGEMENT_FOLDERS[: len(JUDGEMENT_FOLDERS) - bool(beside)]
        for split in SPLITS:
            if split not in beside and f"{split}{SMALL}" in beside:
                beside[split] = beside[f"{split}{SMALL}"]
        self._judgements = beside
        inside = [_by_split(_named(path / name, JUDGEMENTS_INSIDE)) for name in folders]
        for split, files in next(filter(None, inside), {}).items():
            self._judgements[split] = [*self._judgements.get(split, []), *files]
        # A run comes before files of other forms, which may lie beside it for other programs.
        self._pools = _by_split(_named(path / "candidates", JUDGEMENTS_INSIDE))
        self._pools |= _by_split(_named(path / "candidates", POOLS_INSIDE))
        elsewhere = [
            *_named(path / TOP_RANKED, JUDGEMENTS_INSIDE),
            *_named(path, POOLS_BESIDE),
        ]
        for split, files in _by_split(elsewhere).items():
            self._pools[split] = [*self._pools.get(split, []), *files]

    @property
    def splits(self) -> list[str]:
        """The splits that have judgements, ``train``, ``dev`` and ``test`` first."""
        others = sorted(set(self._judgements).difference(SPLITS))
        return [split for split in SPLITS if split in self._judgements] + others

    def judgements(self, split: str) -> Path | None:
        """The file of a split's judgements; None where it has none.

        Raises:
            InputError: if it has several, or what is called so is no file.
        """
        return self._one_file(self._judgements, split)

    def pools(self, split: str) -> Path | None:
        """The file of a split's candidates, as :meth:`judgements`."""
        return self._one_file(self._pools, split)

    def _one_file(self, files_by_split: dict[str, list[Path]], split: str) -> Path | None:
        files = files_by_split.get(split, [])
        if len(files) > 1:
            listed = ", ".join(_shown(file, self.path) for file in files)
            are_parts = all(re.search(PART, file.name) for file in files)
            mend = "join the parts" if are_parts else "keep one"
            raise InputError(
                f"{self.path}: there must be one file of {split}, got {listed}; {mend}"
            )
        return files[0] if files and exists_as_file(files[0]) else None

    @property
    def summary(self) -> str:
        """Which file is which split, in one line; empty where their folders say it."""
        kinds = []
        is_plain = True
        for kind, folder, found in (
            ("judgements", "qrels", self._judgements),
            ("candidates", "candidates", self._pools),
        ):
            files: dict[Path, str] = {}  # dev and dev.small may be one
            for split in self.splits:
                if split in found:
                    files.setdefault(found[split][0], split)
            if files:
                listed = [f"{split} in {_shown(file, self.path)}" for file, split in files.items()]
                kinds.append(f"{kind} of {', '.join(listed)}")
            is_plain = is_plain and all(file.parent.name == folder for file in files)
        return "" if is_plain else "; ".join(kinds)


def _named(folder: Path, patterns: Sequence[str]) -> list[tuple[str, Path]]:
    """The names in files of a folder that fit one of some patterns, with the files. Of a plain and a
    packed file of one name, the plain one counts.
    """
    if not folder.is_dir():
        return []
    found = []
    plain = set()
    for path in sorted(folder.iterdir()):
        for pattern in patterns:
            match = re.fullmatch(pattern, path.name)
            if match is None:
                continue
            unpacked = path.name.removesuffix(match["packed"] or "")
            if unpacked not in plain:
                plain.add(unpacked)
                found.append((match["name"], path))
            break
    return found


def _by_split(named: Sequence[tuple[str, Path]]) -> dict[str, list[Path]]:
    files: dict[str, list[Path]] = {}
    for name, path in named:
        name = MS_MARCO.sub("", name, count=1)
        can_be_split = PLAIN_NAME.fullmatch(name) and len(name.encode()) <= LONGEST_NAME
        if can_be_split and not NO_SPLITS.fullmatch(name):
            files.setdefault(split_named(name), []).append(path)
    return files


def _shown(file: Path, folder: Path) -> str:
    return str(file.relative_to(folder))
