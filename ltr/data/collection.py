"""A collection: documents, queries, judgements and candidate pools, read from files and checked
once.
"""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from shlex import quote
from typing import Literal, NamedTuple

import numpy as np

from ltr.data.cache_folder import details
from ltr.data.files import names_in, seen_from
from ltr.data.folder_files import FolderFiles, find_corpus, open_corpus, open_queries
from ltr.data.from_ir_datasets import read_ir_datasets
from ltr.data.hugging_face import open_data_set, saved_files_by_split
from ltr.data.judged_lists import cached_lists, open_pools, read_judgements
from ltr.data.own_documents import own_documents, without_own
from ltr.data.pair_files import scored_lines
from ltr.data.query_lists import QueryLists
from ltr.data.splits import (
    SPLITS,
    file_of_split,
    parent_split,
    row_files_of_split,
    text_files_in,
)
from ltr.data.texts import TextTable
from ltr.data.triples import (
    TextFiles,
    may_have_scores,
    open_text_files,
    open_text_rows,
    read_scores,
    read_triples,
)
from ltr.errors import InputError, local_path

log = logging.getLogger(__name__)


class Collection(NamedTuple):
    """What a ranker is trained and measured on. Documents and queries are numbered by row; their
    strings stay on disk.
    """

    source: str  # what it was opened as, for errors
    corpus: TextTable  # a title is part of the text
    queries: TextTable
    qrels: dict[str, QueryLists]  # judgements by split; grade 0 is a judgement too
    # Fixed pools by split, best first; a split without pools is not in it.
    candidates: dict[str, QueryLists]
    # How to give a split its pools, for errors; {split} stands for its name. Empty where the source
    # can have none.
    how_to_add_pools: str = ""
    files: FolderFiles | None = None  # of a data folder, which may hold more splits
    # How the rows of texts of each split are read, of which it was made; none of other sources.
    texts: Mapping[str, TextFiles] = {}
    # Grades below it count as 0 where something is learnt; what is measured keeps all. None: any
    # grade above 0 is relevant.
    relevant_from: float | None = None

    def judgements(self, split: str) -> QueryLists:
        """Judgements of a split; an InputError if there are none."""
        if split not in self.qrels:
            hint = "add them, or take another split"
            if split == "train":
                hint = f"add them to train on, or measure a run on these data: ltr test RUN --data.path {quote(self.source)}"
            raise InputError(
                f"{self.source}: there are no judgements for the split {split!r}, only for {sorted(self.qrels)}; {hint}"
            )
        return self.qrels[split]

    def learnt(self, split: str) -> QueryLists:
        """Judgements of a split as training, mining and audits count them: 0 for each grade below
        ``relevant_from``; an InputError if there are none.
        """
        return self.judgements(split).zero_below(self.relevant_from)

    @property
    def relevant_grade(self) -> str:
        """Which grades are relevant where something is learnt, in words."""
        if self.relevant_from is None:
            return "a grade above 0"
        return f"a grade of {self.relevant_from:.9g} or above"

    def learnable(self, split: str) -> QueryLists:
        """What is learnt (:meth:`learnt`) of the queries of a split that have a relevant document.

        Raises:
            InputError: if there are no judgements, or no query has a relevant document.
        """
        judged = self.learnt(split)
        is_learnable = judged.n_relevant() > 0
        if is_learnable.all():
            return judged
        if not is_learnable.any():
            raise InputError(
                f"{self.source}: split {split!r}: none of {len(judged.query_rows)} queries has a document with {self.relevant_grade}; there is nothing to learn from",
                option=None if self.relevant_from is None else "relevant_from",
            )
        return judged.lists_at(np.flatnonzero(is_learnable))

    def warn_of_unlearnable(self, split: str) -> None:
        """Count the queries that :meth:`learnable` leaves out in a warning."""
        judged = self.learnt(split)
        without = judged.query_rows[judged.n_relevant() == 0]
        if len(without):
            log.warning(
                "%s: split %r: %d of %d queries have no document with %s and are left out, first %r",
                self.source,
                split,
                len(without),
                len(judged.query_rows),
                self.relevant_grade,
                self.queries.ids[without[0]],
            )

    def documents_left_out(self) -> np.ndarray:
        """``[Q]`` int64: for each query the document that its rankings leave out; −1 for none.

        That is the one that it is itself (``ltr.data.own_documents.own_documents``), unless
        people judged it relevant for the query. BEIR's rankings leave it out, too: a text that
        finds itself says nothing.
        """
        own_docs = own_documents(self.queries, self.corpus).copy()
        for judged in self.qrels.values():
            query_rows = judged.query_of_doc
            is_relevant = (own_docs[query_rows] == judged.doc_rows) & (judged.values > 0)
            own_docs[query_rows[is_relevant]] = -1
        return own_docs

    def taken_by_auto(self, split: str) -> Literal["candidates", "bm25"]:
        """What an option that says ``auto`` takes for the queries of a split: its own pools where
        they do (:meth:`lack_of_pools`), else the best documents of BM25.
        """
        return "bm25" if self.lack_of_pools(split) else "candidates"

    def lack_of_pools(self, split: str) -> str:
        """Why ``auto`` does not take the pools of a split, in words; empty where it does.

        The split has none; or most of its queries with a relevant document and a pool have nothing
        in the pool but their best: whatever ranks such pools, they are ranked perfectly. Such are
        those that are made of the positives and the few negatives of files of texts.
        """
        if split not in self.candidates:
            return "the split has no pools"
        judged = self.qrels.get(split)
        if judged is None:
            return ""
        relevant = judged.lists_at(np.flatnonzero(judged.n_relevant() > 0))
        pools = self.candidates[split].of_queries(relevant.query_rows)
        n_with_order = int(_have_others(pools, relevant).sum())
        n_pools = len(pools.query_rows)
        if 2 * n_with_order >= n_pools:
            return ""
        return f"the pools of {n_pools - n_with_order} of {n_pools} queries hold nothing below their best documents"

    def pools(self, split: str, *, option: str) -> QueryLists:
        """Candidate pools of a split, without what rankings leave out
        (:meth:`documents_left_out`).

        Args:
            split: its name.
            option: the option that asks for the pools, for errors.

        Raises:
            InputError: if the split has none.
        """
        self.check_pools(split, option=option)
        return without_own(self.candidates[split], self.documents_left_out())

    def best_of_pools(self, split: str, depth: int | None, *, option: str) -> QueryLists:
        """The best documents of each pool of a split. A pool whose documents have one score, or none,
        has no best ones: it stays whole, which is said.

        Args:
            split: its name.
            depth: how many documents of a query; None: all.
            option: see :meth:`pools`.
        """
        pools = self.pools(split, option=option).cut_ordered(depth)
        n_whole = 0 if depth is None else int((np.diff(pools.offsets) > depth).sum())
        if n_whole:
            log.warning(
                "%s: the pools of %d of %d queries of %s have no order, as all their documents have one score or none; they are longer than the depth %d and stay whole",
                self.source,
                n_whole,
                len(pools.query_rows),
                split,
                depth,
            )
        return pools

    def depth_of_pools(self, split: str, depth: int | None) -> int | None:
        """The depth that no pool of a split exceeds by :meth:`best_of_pools`; None where some stay
        whole.
        """
        if depth is None or split not in self.candidates:
            return depth
        pools = self.pools(split, option="depth").cut_ordered(depth)
        return depth if (np.diff(pools.offsets) <= depth).all() else None

    def check_pools(self, split: str, *, option: str) -> None:
        """Raise an InputError where a split has no pools; arguments as of :meth:`pools`."""
        if split in self.candidates:
            return
        hint = f"set {option} to auto, which takes BM25's where there are none"
        if self.how_to_add_pools:
            hint = f"{self.how_to_add_pools.format(split=split)}, or {hint}"
        raise InputError(
            f"{self.source}: there are no candidates for the split {split!r}; {hint}",
            option=option,
        )


def open_collection(path: str | Path, columns: Mapping[str, str] | None = None) -> Collection:
    """Open a collection, and check all of it at the first opening.

    Args:
        path: one of

            * a data folder in the BEIR layout: ``corpus.jsonl[.gz]``, ``queries.jsonl[.gz]``,
              ``qrels/{train,dev,test}.tsv``, and ``candidates/{train,dev,test}.trec[.gz]`` where
              there are fixed pools. Corpus and queries may also be ``.parquet``, or folders of
              files.
            * a folder as MS MARCO or MTEB ship it: ``collection.tsv``, ``queries.train.tsv``,
              ``qrels.train.tsv``, ``top1000.dev``; ``corpus/`` and ``queries/`` with judgements in
              ``qrels/``, ``default/`` or ``data/`` as ``test-00000-of-00001.parquet`` or ``.jsonl``
            * a file of text triples or pairs, one ``query<TAB>positive[<TAB>negative…]`` a line
            * a file of rows with named columns, ``.jsonl``, ``.json``, ``.csv``, ``.parquet`` or
              ``.arrow``, such as those of BGE, Tevatron, DPR and sentence-transformers
            * a folder of such files, ``{train,dev,test}.tsv[.gz]``, ``train.jsonl``,
              ``train-00000-of-00001.parquet``; or with a folder ``data`` of them; or one that
              ``save_to_disk`` of Hugging Face's ``datasets`` has written
            * ``datasets:ORG/NAME`` or ``datasets:ORG/NAME:CONFIG``, such rows of Hugging Face's hub
            * ``ir_datasets:NAME``, where the splits are NAME/train, NAME/dev and NAME/test, or NAME
              itself as test

            In a folder ``dev`` may be called ``val``, ``vali``, ``valid`` or ``validation``.
        columns: of rows of texts: the column of each role, as ``{"query": "question", "positive":
            "answer"}``, see ``ltr.data.column_roles.roles_of``. None: as they are called.

    Raises:
        InputError: with ``file:line`` for unknown or repeated ids, bad grades, empty texts, broken
            gzip or UTF-8, missing columns; for missing files.
    """
    path = str(path)
    local_path("path", path)
    is_of_ids = path.startswith("ir_datasets:") or find_corpus(Path(path)) is not None
    if columns is not None and is_of_ids:
        raise InputError(
            f"columns are chosen for rows of texts, and {path} has ids; leave them out"
        )
    if path.startswith("ir_datasets:"):
        return _from_ir_datasets(path.removeprefix("ir_datasets:"))
    if is_of_ids:
        return _from_data_folder(Path(path))
    return _from_triples(path, _texts_by_split(path, columns))


def _texts_by_split(path: str, columns: Mapping[str, str] | None) -> dict[str, TextFiles]:
    """The texts of a file, a folder or a data set of the hub, and how they are read."""
    splits = {}
    if path.startswith("datasets:"):
        content, rows_by_split = open_data_set(path)
        for split, rows in rows_by_split.items():
            splits[split] = open_text_rows(rows, f"{content} {split}", columns)
        return splits
    for split, files in text_files_by_split(path).items():
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        details.info("%s: the split %s is read from %s%s", path, split, files[0].name, more)
        splits[split] = open_text_files(files, columns)
    return splits


def scores_by_split(collection: Collection) -> dict[str, Iterator[tuple[str, str, float]]]:
    """The scores of a teacher: the ids of a query and a document with a score, as those of the
    collection. Of rows those beside the texts, where the first ones have some; of a data folder those
    of ``scores/SPLIT.tsv``, as an import writes them.
    """
    scores: dict[str, Iterator[tuple[str, str, float]]] = {}
    if collection.files is not None:
        for file in sorted((collection.files.path / "scores").glob("*.tsv")):
            scores[file.stem] = (line for _, line in scored_lines(file))
    for split, texts in collection.texts.items():
        if may_have_scores(texts):
            scores[split] = (line for _, line in read_scores(texts))
    return scores


def text_files_by_split(path: str) -> dict[str, list[Path]]:
    """Files of texts by split: a file itself as ``train``, or those that a folder holds.

    Raises:
        InputError: if there are none, or a split has files of two kinds.
    """
    if not Path(path).is_dir():
        return {split: [file] for split, file in files_by_split(path, "").items()}
    if saved := saved_files_by_split(Path(path)):
        return saved
    for folder in (Path(path), Path(path) / "data"):
        if not folder.is_dir():
            continue
        by_split = {}
        for split in SPLITS:
            files = row_files_of_split(folder, split)
            tab_separated = file_of_split(folder, split, ".tsv")
            if tab_separated is not None:
                files = [tab_separated, *files]
                if len(files) > 1:
                    raise InputError(
                        f"{folder}: there must be one file of {split}, got {files[0].name} and {files[1].name}; keep one"
                    )
            if files:
                by_split[split] = files
        if by_split:
            _tell_unread(Path(path), by_split)
            return by_split
    raise InputError(
        f"{path}: a data folder must hold corpus.jsonl[.gz] (or .tsv, .parquet, or a folder), queries.jsonl[.gz] and qrels/, MS MARCO's collection.tsv, queries.*.tsv and qrels.*.tsv, or texts as {{train,dev,test}}.tsv[.gz] or rows with named columns as .jsonl, .json, .csv, .parquet or .arrow (docs/data.md); found {names_in(Path(path))}"
    )


def _tell_unread(folder: Path, by_split: dict[str, list[Path]]) -> None:
    """Say which files of texts in a folder, or in its folder ``data``, are of no split."""
    read = {file for files in by_split.values() for file in files}
    unread = []
    for file in [*text_files_in(folder), *text_files_in(folder / "data")]:
        # What comes with data sets, and has no rows.
        if file not in read and file.suffix != ".json":
            unread.append(str(file.relative_to(folder)))
    if unread:
        log.warning(
            "%s: not read are %s, as they are called neither train, dev nor test, or lie in data/ beside such files",
            folder,
            ", ".join(unread)[:200],
        )


def files_by_split(path: str, must_hold: str) -> dict[str, Path]:
    """Files by split: a file itself as ``train``, or those ``{train,dev,test}.tsv[.gz]`` that a
    folder holds.

    Args:
        path: the file or the folder.
        must_hold: what the folder must hold, for the error of one without such files.
    """
    if Path(path).is_file():
        return {"train": Path(path)}
    if not Path(path).is_dir():
        raise InputError(
            f"{path}: there is no such data folder or file{seen_from(path)}", option="path"
        )
    files = {}
    for split in SPLITS:
        file = file_of_split(Path(path), split, ".tsv")
        if file is not None:
            files[split] = file
    if not files:
        raise InputError(f"{path}: {must_hold}; found {names_in(Path(path))}")
    return files


def _from_data_folder(folder: Path) -> Collection:
    corpus = open_corpus(folder)
    queries = open_queries(folder)
    files = FolderFiles(folder)
    qrels = {}
    candidates = {}
    for split in SPLITS:
        if judged := files.judgements(split):
            qrels[split] = cached_lists(judged, queries, corpus, read_judgements)
        if pools := files.pools(split):
            candidates[split] = open_pools(pools, queries, corpus)
    if not qrels:
        raise files.missing_judgements()
    if files.summary:
        log.info("%s: %s", folder, files.summary)
    how_to_add_pools = "add candidates/{split}.trec"
    return Collection(str(folder), corpus, queries, qrels, candidates, how_to_add_pools, files)


def with_split(collection: Collection, split: str) -> Collection:
    """The collection and one split more, of any name. It is read and checked here; without being
    asked for, such splits are not looked at.

    Its judgements are those of the data folder, as ``qrels/SPLIT.tsv[.gz]``, and its pools
    ``candidates/SPLIT.trec[.gz]`` (:class:`ltr.data.folder_files.FolderFiles`). Where there are no such pools, it has those of the split that it is
    a part of by its name (:func:`ltr.data.splits.parent_split`): test.clean those of test. They are
    restricted to its judged queries.

    Raises:
        InputError: if there is no such split, or a file of it is broken.
    """
    if split in collection.qrels:
        return collection
    files = collection.files
    if files is None:
        raise InputError(
            f"{collection.source}: a split must be one of {', '.join(collection.qrels)}, got {split!r}; only a data folder with qrels/ can have others"
        )
    judgements = files.judgements(split)
    if not judgements:
        raise InputError(
            f"{collection.source}: a split must be one of {', '.join(files.splits)}, got {split!r}; there is no {files.path / 'qrels' / split}.tsv"
        )
    judged = cached_lists(judgements, collection.queries, collection.corpus, read_judgements)
    candidates = dict(collection.candidates)
    pools = _pools_of(collection, files, split)
    if pools is not None:
        candidates[split] = pools.of_queries(judged.query_rows)
    return collection._replace(qrels=collection.qrels | {split: judged}, candidates=candidates)


def _pools_of(collection: Collection, files: FolderFiles, split: str) -> QueryLists | None:
    """The pools of a split, or else of the one that it is a part of; None where there are none."""
    if split in collection.candidates:
        return collection.candidates[split]
    pools = files.pools(split)
    if pools:
        return open_pools(pools, collection.queries, collection.corpus)
    whole = parent_split(split)
    return None if whole is None else _pools_of(collection, files, whole)


def _from_triples(path: str, splits: dict[str, TextFiles]) -> Collection:
    corpus, queries, qrels = read_triples(path, splits)
    candidates = {}
    for split, judged in qrels.items():
        # Documents of the largest grade alone, as those of pairs, make no pool.
        has_others = bool((judged.values < judged.values.max(initial=1.0)).any())
        if has_others:
            # The texts of the split as candidates: without their grades, so that the order of a
            # pool does not tell them.
            without_grades = judged._replace(values=np.zeros_like(judged.values))
            candidates[split] = without_grades.best_first()
    how_to_add_pools = "give every line of the split a negative (a third column)"
    return Collection(path, corpus, queries, qrels, candidates, how_to_add_pools, texts=splits)


def _have_others(pools: QueryLists, relevant: QueryLists) -> np.ndarray:
    """``[P]`` bool: which pools hold a document that is not among those of the best grade of its
    query.
    """
    best = np.maximum.reduceat(relevant.values, relevant.offsets[:-1])
    is_best = relevant.values == np.repeat(best, np.diff(relevant.offsets))
    shift = 1 + max(int(pools.doc_rows.max(initial=0)), int(relevant.doc_rows.max(initial=0)))
    best_pairs = relevant.query_of_doc[is_best] * shift + relevant.doc_rows[is_best]
    pairs = pools.query_of_doc * shift + pools.doc_rows
    is_other = ~np.isin(pairs, best_pairs)
    n_before = np.concatenate([[0], np.cumsum(is_other)])
    return n_before[pools.offsets[1:]] > n_before[pools.offsets[:-1]]


def _from_ir_datasets(name: str) -> Collection:
    corpus, queries, qrels = read_ir_datasets(name)
    return Collection(f"ir_datasets:{name}", corpus, queries, qrels, {})
