"""Which files of a data folder hold its texts, judgements and pools: as BEIR, MTEB and MS MARCO call them."""

import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from ltr.data.files import exists_as_file, names_in
from ltr.data.first_bytes import PACKED_ENDINGS, unpacked_name
from ltr.data.record_files import find_texts, open_parts, open_record_files, texts_left_out
from ltr.data.splits import LONGEST_NAME, PLAIN_NAME, SPLITS, lacking_parts, split_named
from ltr.data.texts import TextTable
from ltr.errors import InputError

OTHER_CORPUS_NAMES = ("collection", "msmarco-docs")
PACKED = rf"(?P<packed>{'|'.join(map(re.escape, PACKED_ENDINGS))})?"
NAME = r"(?P<name>\w[\w.+-]*?)"
PART = r"-\d+-of-(?P<of>\d+)"  # as Hugging Face names the parts of a file; of one, -00000-of-00001
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
JUDGEMENTS_OF_NO_SPLIT = (rf"(?P<name>qrels){JUDGED}",)
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
    """The documents of a data folder, a file or a folder of files; None where it has none. Those of
    MS MARCO's names need queries or judgements beside them.

    Raises:
        InputError: as :func:`ltr.data.record_files.find_texts`.
    """
    if found := find_texts(folder, "corpus"):
        return found
    # Names of MS MARCO that may be those of other things, too.
    if not (find_queries(folder) or _named(folder, JUDGEMENTS_BESIDE)):
        return None
    found_others = (find_texts(folder, name) for name in OTHER_CORPUS_NAMES)
    return next(filter(None, found_others), None)


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
        # A file test.tsv beside the corpus is looked for where there is no other, as the last folder.
        beside = _by_split(_named(path, JUDGEMENTS_BESIDE))
        folders = [path / name for name in JUDGEMENT_FOLDERS if not (beside and name == ".")]
        holding = list(filter(any, map(_judgements_in, folders)))
        # Notes may lie in a folder that has no judgements.
        of_splits = [forms for forms in holding if set(SPLITS).intersection(chain(*forms))]
        inside = next(chain(of_splits, holding), [])
        small = {split: beside.get(f"{split}{SMALL}", []) for split in SPLITS}
        self._judgements, judgements_left = _first_of_each([*inside, beside, small])
        # A run comes before files of other forms, which may lie beside it for other programs.
        found = [
            _by_split(_named(path / "candidates", POOLS_INSIDE)),
            *_judgements_in(path / "candidates"),
            _by_split(_named(path / TOP_RANKED, JUDGEMENTS_INSIDE)),
            _by_split(_named(path, POOLS_BESIDE)),
        ]
        self._pools, pools_left = _first_of_each(found)
        texts_left = [*texts_left_out(path, "corpus"), *texts_left_out(path, "queries")]
        self._of_no_split = [file for _, file in _named(path, JUDGEMENTS_OF_NO_SPLIT)]
        self._left = [*texts_left, *judgements_left, *self._of_no_split, *pools_left]

    def missing_judgements(self) -> InputError:
        """The error of a folder without judgements of a split that is read."""
        for file in self._of_no_split:
            renamed = file.name.replace("qrels", "qrels.test", 1)
            return InputError(
                f"{file}: the name must say which split is judged; call it {renamed}, or the same with train or dev"
            )
        folder = self.path / "qrels"
        return InputError(
            f"{folder}: there must be at least one of train.tsv, dev.tsv, test.tsv (or .tsv.gz, .txt, .jsonl, .csv, .parquet), or MS MARCO's qrels.train.tsv beside the corpus; found {names_in(folder) or names_in(self.path)}"
        )

    @property
    def splits(self) -> list[str]:
        """The splits that have judgements, ``train``, ``dev`` and ``test`` first."""
        others = sorted(set(self._judgements).difference(SPLITS))
        return [split for split in SPLITS if split in self._judgements] + others

    def judgements(self, split: str) -> list[Path]:
        """The file of a split's judgements, or its parts in their order; none where it has none.

        Raises:
            InputError: if it has several, or not all parts, or what is called so is no file.
        """
        return self._whole(self._judgements, split)

    def pools(self, split: str) -> list[Path]:
        """The file of a split's candidates, as :meth:`judgements`."""
        return self._whole(self._pools, split)

    def _whole(self, files_by_split: dict[str, list[Path]], split: str) -> list[Path]:
        files = files_by_split.get(split, [])
        wholes = {re.sub(PART, r"-\g<of>", unpacked_name(file.name)) for file in files}
        if len(wholes) > 1:
            listed = ", ".join(_shown(file, self.path) for file in files)
            raise InputError(
                f"{self.path}: there must be one file of {split}, got {listed}; keep one"
            )
        if lacking := lacking_parts(files):
            raise InputError(f"{self.path}: {split}: {lacking}")
        return [file for file in files if exists_as_file(file)]

    @property
    def summary(self) -> str:
        """Which file is which split, in one line, where their folders do not say it; and files of
        splits that others come before.
        """
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
                listed = []
                for file, split in files.items():
                    n_more = len(found[split]) - 1
                    more = f" and {n_more} more" if n_more else ""
                    listed.append(f"{split} in {_shown(file, self.path)}{more}")
                kinds.append(f"{kind} of {', '.join(listed)}")
            is_plain = is_plain and all(file.parent.name == folder for file in files)
        others = ", ".join(dict.fromkeys(_shown(file, self.path) for file in self._left))
        left = [f"left out: {others}"] if others else []
        return "; ".join([*([] if is_plain else kinds), *left])


def _judgements_in(folder: Path) -> list[dict[str, list[Path]]]:
    """The files of a folder by split, those of one form in each: text with tabs, other whole files,
    and parts.
    """
    forms: list[list[tuple[str, Path]]] = [[], [], []]
    for name, file in _named(folder, JUDGEMENTS_INSIDE):
        place = 0 if unpacked_name(file.name).endswith(".tsv") else 1
        if re.search(PART, file.name):
            place = 2
        forms[place].append((name, file))
    return [_by_split(form) for form in forms]


def _first_of_each(
    found: Sequence[dict[str, list[Path]]],
) -> tuple[dict[str, list[Path]], list[Path]]:
    """The files of each split in the first place that has some, and those of later places."""
    first: dict[str, list[Path]] = {}
    left = []
    for by_split in found:
        for split, files in by_split.items():
            if files and split not in first:
                first[split] = files
            else:
                left += files
    chosen = set(chain(*first.values()))  # dev.small is a split, too
    return first, [file for file in left if file not in chosen]


def _named(folder: Path, patterns: Sequence[str]) -> list[tuple[str, Path]]:
    """The names in files of a folder that fit one of some patterns, with the files. Of a plain and a
    packed file of one name, the plain one counts.
    """
    if not folder.is_dir():
        return []
    found = []
    plain = set()
    for path in sorted(folder.iterdir(), key=_order_of_names):
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


def _order_of_names(path: Path) -> tuple[str, int]:
    unpacked = unpacked_name(path.name)
    packed = path.name[len(unpacked) :].lower()
    return unpacked, ("", *PACKED_ENDINGS).index(packed)


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
