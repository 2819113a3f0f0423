"""One source of a data module of texts: its collection, and what is trained on and measured of it."""

import logging
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from ltr.data.bm25 import DEPTH, Bm25Words, bm25_lists
from ltr.data.collate import Collator, collator_of
from ltr.data.collection import Collection
from ltr.data.joined import Shift
from ltr.data.layouts import ApartTexts, TextReads
from ltr.data.own_documents import own_documents_line
from ltr.data.query_lists import LabelledList, QueryLists
from ltr.data.sampling.plan import SourcePlan
from ltr.data.sampling.rows import Rows, TextGroups
from ltr.data.sampling.taught import TaughtRows
from ltr.datamodules.evaluation import Evaluation
from ltr.datamodules.sources import DataSource
from ltr.datamodules.training_labels import Labels
from ltr.mining.same_texts import known_documents
from ltr.search.corpus_search import SearchedCorpus

log = logging.getLogger(__name__)


class TextSource:
    """A source of a data module of texts. In ``setup`` the module opens it (:meth:`open`,
    :meth:`place`); in that of a fit, a child of :class:`PoolDataModule` also makes its plan.

    Args:
        entry: what ``path`` says of it.
        bm25_words: which words BM25 reads.

    Attributes:
        path, name: of the entry.
        collection: its own.
        collator: makes batches of its lists alone.
        shift: gives its lists the numbers that their texts have among those of all sources.
        corpus: to be searched for the documents of evaluated lists; None where lists bring them.
        rows: of training, or groups, from the opening of a fit until its plan takes them.
        plan: of its training lists, after ``setup("fit")``.
        digests: of what is learnt from it, by name.
        taken: by options that say ``auto``, by option and split.
        negatives_per_row: how many documents of a training list come from each of the negatives, by
            name; empty where none are drawn.
        has_mined_negatives: whether rows draw from what was mined while training.
        has_distances, largest_soft_label, lists_with_both: see
            :class:`ltr.datamodules.RankingDataModule`, of its training lists.
    """

    collection: Collection
    collator: Collator
    shift: Shift
    plan: SourcePlan

    def __init__(self, entry: DataSource, bm25_words: Bm25Words) -> None:
        self.entry = entry
        self.bm25_words = bm25_words
        self.path = entry.path
        self.name = entry.name
        self.corpus: SearchedCorpus | None = None
        self.rows: Rows | TextGroups | None = None
        self.digests: dict[str, str] = {}
        self.taken: dict[str, str] = {}
        self.negatives_per_row: dict[str, int] = {}
        self.has_mined_negatives = False
        self.has_distances = False
        self.largest_soft_label = 0.0
        self.lists_with_both: tuple[int, int] | None = None

    @property
    def trained_split(self) -> str:
        """What messages call its training data."""
        return f"{self.path}: split 'train'"

    def open(self, collection: Collection, reads: TextReads, evaluation: Evaluation) -> None:
        """Tokenise the texts of its collection, and get ready what evaluation searches."""
        self.collection = collection
        self.collator = collator_of([collection.queries], [collection.corpus], reads)
        if evaluation.candidates == "corpus":
            assert isinstance(reads, ApartTexts), "the data module refuses others"
            self.corpus = SearchedCorpus(
                reads.queries.store(collection.queries),
                reads.docs.store(collection.corpus),
                reads,
                evaluation.needed_depth,
                evaluation.index,
                own_docs=collection.documents_left_out(),
            )

    def place(self, shift: Shift) -> None:
        """Tell it which numbers its texts have among those of all sources."""
        self.shift = shift
        if self.corpus is not None:
            self.corpus = replace(
                self.corpus, first_query=shift.first_query, first_doc=shift.first_doc
            )

    def text_digests(self) -> dict[str, str]:
        """Digests of what is read of queries and of documents."""
        return {
            "queries": self.collection.queries.read_key,
            "documents": self.collection.corpus.key,
        }

    def named(self, values: dict[str, str]) -> dict[str, str]:
        """Its digests, or what else it has by name, under names that no other source's have."""
        if not self.name:
            return values
        return {f"{self.name} {what}": value for what, value in values.items()}

    def note_soft_labels(self, judged: QueryLists, audit_labels: QueryLists | None = None) -> None:
        """Keep the largest soft label of its training lists.

        Args:
            judged: the grades that are labels. Where any has a fraction all are of one scale, so the
                largest counts, whole or not. Where ``relevant_from`` says which are relevant,
                none are soft labels.
            audit_labels: by which an audit overrules them, if there was one.
        """
        self.largest_soft_label = 0.0
        if self.collection.relevant_from is None and judged.largest_fraction():
            self.largest_soft_label = float(judged.values.max())
        if audit_labels is not None:
            of_audit = audit_labels.largest_fraction()
            self.largest_soft_label = max(self.largest_soft_label, of_audit)

    @property
    def awaits_negatives(self) -> bool:
        """Whether mined negatives are still to come. No batch may be drawn until then."""
        return "mined" in self.negatives_per_row and not self.has_mined_negatives

    @property
    def mined_name(self) -> str:
        """The name of the negatives that are mined while training: ``mined``. Without it,
        :class:`ltr.callbacks.HardNegativeMining` may run beside one other: rows draw from that one
        until the first mining, which replaces it.
        """
        return "mined" if "mined" in self.negatives_per_row else next(iter(self.negatives_per_row))

    @property
    def mined_per_row(self) -> int:
        """How many documents of a row are mined negatives, once there are some."""
        return self.negatives_per_row[self.mined_name]

    def note_what_auto_takes(
        self, option: str, split: str, depth: int | None, taken: str | None = None
    ) -> None:
        """Say in one line what an option that says ``auto`` takes for a split, and keep it in
        ``taken``.

        Args:
            option: its name.
            split: of the collection.
            depth: what another option says of the documents of a query; None where it says nothing.
            taken: what it takes, ``candidates`` or ``bm25``; None: what it takes for any lists.
        """
        if taken is None:
            taken = self.collection.taken_by_auto(split)
        if taken == "candidates":
            depth = self.collection.depth_of_pools(split, depth)
        best = "" if depth is None else f" (the best {depth})"
        what = f"the pools of the split{best}"
        if taken == "bm25":
            depth = depth or DEPTH
            what = f"the best {depth} of BM25, as {self.collection.lack_of_pools(split)}"
        self.taken[f"{option} of {split}"] = taken if depth is None else f"{taken}, {depth} deep"
        log.info("%s: split %r: %s: auto takes %s", self.path, split, option, what)

    def best_of_bm25(self, query_rows: np.ndarray, depth: int) -> QueryLists:
        """The best documents of its corpus for some queries, see :func:`ltr.data.bm25.bm25_lists`."""
        return bm25_lists(self.collection, query_rows, depth, self.bm25_words)

    def known_documents(self, judged: QueryLists) -> QueryLists:
        """The judgements of training queries, and with them what must not be a negative either, see
        :func:`ltr.mining.same_texts.known_documents`. Says how much that is.
        """
        known = known_documents(self.collection, judged)
        n_new = len(known.doc_rows) - len(judged.doc_rows)
        if n_new:
            log.info(
                "%s: %d pairs of a query and a document that nobody judged are never negatives: the document has the text of the query, or of a document that is relevant for it or for an equal query",
                self.trained_split,
                n_new,
            )
        return known

    def with_labels(
        self, labels: Labels, rows: Rows, drawable: Iterable[tuple[int, np.ndarray]]
    ) -> Rows:
        """Training rows with the labels that the option ``labels`` asks for.

        Args:
            labels: the option.
            rows: with grades.
            drawable: the documents that the rows may draw, by query.
        """
        scores = labels.open(self.collection)
        if scores is None:
            return rows
        self.digests["labels"] = scores.digest()
        names = (self.collection.queries.ids, self.collection.corpus.ids)
        taught = TaughtRows(rows, scores, labels.unscored, names, self.trained_split)
        if taught.unscored == "refuse":
            taught.check(drawable)
        taught.log_left_out()
        return taught

    def lists_to_evaluate(
        self, evaluation: Evaluation, split: str, *, judged_only: bool
    ) -> list[LabelledList]:
        """One list for each query of a split, with the numbers among those of all sources.

        Args:
            evaluation: what is ranked.
            split: of the collection.
            judged_only: True, to measure: the judged queries, and an InputError without
                judgements. False, to predict: with ``candidates`` the queries that have a pool;
                with ``bm25`` and ``corpus`` the judged queries, or all if none is judged.
        """
        if evaluation.candidates == "auto":
            self.note_what_auto_takes("evaluation.candidates", split, evaluation.depth)
        evaluation = evaluation.of_split(self.collection, split)
        if judged_only:
            judged = self.collection.judgements(split)
        else:
            judged = self.collection.qrels.get(split, QueryLists.from_rows([], [], []))
        # bm25 and corpus find documents for any query: all of them, where none is judged.
        query_rows = judged.query_rows
        if len(query_rows) == 0:
            query_rows = np.arange(len(self.collection.queries))
        self._log_own_documents(split, query_rows)

        if evaluation.candidates == "corpus":
            assert self.corpus is not None, "open() makes it"
            # Pools and BM25 leave out a query's own document. So does the search, but for those
            # that are judged relevant, which are all known now.
            self.corpus = replace(self.corpus, own_docs=self.collection.documents_left_out())
            # The module searches the documents, with the weights of the moment.
            no_docs = np.empty(0, dtype=np.int64)
            found_later = [judged.labelled(row, no_docs) for row in query_rows.tolist()]
            return [self.shift(labelled) for labelled in found_later]

        if evaluation.candidates == "bm25":
            candidates = self.best_of_bm25(query_rows, evaluation.needed_depth)
        else:
            candidates = self.collection.best_of_pools(
                split, evaluation.depth, option="evaluation.candidates"
            )
            query_rows = judged.query_rows if judged_only else candidates.query_rows
        lists: list[LabelledList] = []
        n_empty = 0
        n_of_best = 0  # lists of relevant documents of one grade
        for query_row in query_rows:
            docs, _ = candidates.of(query_row)
            lists.append(self.shift(judged.labelled(query_row, docs)))
            if len(docs) == 0:
                n_empty += 1
            elif (labels := lists[-1].labels).min() == labels.max() > 0:
                n_of_best += 1
        longest = max((len(labelled.doc_rows) for labelled in lists), default=0)
        if longest == 1 and evaluation.depth != 1:
            log.warning(
                "%s: all %d %s lists have one document, so whatever ranks them, every measure of a list has the same value; give queries more documents, or set evaluation.candidates to another kind, or to null",
                self.path,
                len(lists),
                split,
            )
        elif n_of_best > 0:
            log.warning(
                "%d of %d %s queries have relevant documents of one grade alone among their candidates; whatever ranks them, they count as ranked perfectly",
                n_of_best,
                len(lists),
                split,
            )
        if n_empty > 0:
            log.warning(
                "%d of %d %s queries have no candidates; they count as nothing found",
                n_empty,
                len(lists),
                split,
            )
        return lists

    def _log_own_documents(self, split: str, query_rows: np.ndarray) -> None:
        """Say how many queries are documents themselves, if any."""
        collection = self.collection
        line = own_documents_line(
            collection.queries, collection.corpus, query_rows, collection.documents_left_out()
        )
        if line:
            log.info("%s: split %r: %s", self.path, split, line)
