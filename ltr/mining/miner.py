"""Mines hard negatives: what a dual encoder finds for a query and nobody judged relevant.

That dual encoder is called the searcher here. It is the ranker that is trained, the one that the
option ``model.miner`` trains beside a cross-encoder, or one that stays as it is.

Letters of shapes: Q training queries, D candidates of each, n negatives of each, P pairs of a query
and a document. ``query_rows`` and ``doc_rows`` number the texts of the collection; ``places``
number the Q queries.
"""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from ltr.data.collection import Collection
from ltr.data.layouts import ApartTexts, JoinedPairs, SingleTexts
from ltr.data.progress import track
from ltr.data.query_lists import QueryLists
from ltr.data.template import PLAIN_TEMPLATE
from ltr.data.tokens import TokenStore
from ltr.errors import InputError
from ltr.mining.filters import Recipe, apply_filters, sample_negatives
from ltr.mining.judge import TextScorer
from ltr.mining.mined_negatives import MinedNegatives
from ltr.mining.same_texts import SameTextFilter, TextKeys, known_documents
from ltr.models.dual_encoder import DualEncoder
from ltr.models.ranker import Ranker, digest_of_weights
from ltr.search.embedder import Precision, embedder_of
from ltr.search.encoding_places import Encodings, smallest_share, texts_of_store
from ltr.search.faiss_index import empty_index
from ltr.search.numbers import Numbers
from ltr.search.shards import Shards, encode_everywhere, query_spans, share_of
from ltr.spans import spans

TEXTS_AT_ONCE = 65536  # whose keys are computed
RECALL_QUERIES = 200  # on which the recall of an approximate index is measured

# What is drawn at random comes from generators of their own, seeded by the miner's seed and one of
# these.
SAMPLING = 1
FILLING = 2


def check_index(recipe: Recipe, collection: Collection, searcher: DualEncoder) -> None:
    """Raise an InputError where faiss can't build the index of a recipe for a corpus: told before any
    text is tokenised.
    """
    if recipe.index != "Flat":
        shape = (smallest_share(len(collection.corpus)), searcher.dim)
        try:
            # Whether it can be built does not depend on the metric: any will do.
            empty_index(recipe.index, shape, squared=True)
        except InputError as error:
            raise InputError(f"recipe.index: {error.message}", option=error.option) from None


@dataclass
class Miner:
    """Finds the hardest documents of a corpus for its training queries.

    Every process must call it: each encodes and searches its share of the corpus, and all get the
    same negatives.

    Args:
        searcher: the dual encoder that searches, with its weights as they stand.
        collection: its corpus is searched for its queries.
        judged: the queries to mine for, with their relevant documents.
        recipe: how negatives are chosen.
        min_negatives: a query with fewer negatives gets random documents up to this number.
        judge: a second model, which leaves out likely false negatives.
        rescorer: a scorer, which leaves nothing out: it scores what the filters leave of all that was found, and negatives are sampled by
            its scores.
        seed: of all random numbers: the seed of the run, and then for a refresh its step.
    """

    searcher: DualEncoder
    collection: Collection
    judged: QueryLists
    recipe: Recipe = field(default_factory=Recipe)
    min_negatives: int = 1
    judge: TextScorer | None = None
    rescorer: TextScorer | None = None
    seed: tuple[int, ...] = (0,)

    @property
    def key(self) -> str:
        """A digest of all that decides what is found: model, texts, judgements, recipe, seed."""
        searcher = self.searcher
        reads = searcher.reads
        digests_of_scorers = []
        for scorer in (self.judge, self.rescorer):
            digest = None if scorer is None else _digest_of_scorer(scorer.ranker)
            digests_of_scorers.append(digest)
        towers = []
        for tower in (searcher.query_tower, searcher.doc_tower):
            towers.append((tower.encoder.pooling, str(tower.head)))
        # A list, not a dict by field names: a renamed field would change the keys of existing folders.
        parts = [
            digest_of_weights(searcher),
            searcher.similarity.name,
            towers,
            [reads.queries.key, reads.docs.key],
            digests_of_scorers,
            asdict(self.recipe),
            self.min_negatives,
            self.seed,
            self.collection.corpus.key,
            self.collection.queries.read_key,
            self.judged.digest(),
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

    def mine(
        self,
        encodings: Encodings,
        precision: Precision = nullcontext,
        precision_name: str = "32-true",
        numbers: Numbers = "float32",
    ) -> MinedNegatives:
        """Encode, search, filter and sample.

        Args:
            encodings: where the embeddings of the documents lie. What was encoded there under these
                weights is not encoded again.
            precision: makes the context in which models run, such as ``torch.autocast``. It is
                called several times. By default models run as they stand.
            precision_name: what ``trainer.precision`` calls it.
            numbers: in which embeddings of documents are stored, where they are encoded now.

        Returns:
            The negatives; their manifest says how they were chosen, how many fell to which filter,
            and how long it took.

        Raises:
            InputError: if the embeddings are not finite, or faiss can't build the index.
        """
        seconds: dict[str, float] = {}
        reads = self.searcher.reads
        similarity = self.searcher.similarity
        queries, docs = self._stores()
        embedder = embedder_of(self.searcher, "document", precision, precision_name)
        texts = replace(texts_of_store(docs), texts_between=self.collection.corpus.texts.between)
        with ExitStack() as stack:
            with _timed(seconds, "encode"):
                # The documents of this process, and the queries of all.
                encoding = stack.enter_context(encodings.encoding_of(embedder, texts, numbers))
                with precision():
                    embedded_queries = encode_everywhere(
                        self.searcher.query_tower, queries, reads.queries, self.judged.query_rows
                    )
            with _timed(seconds, "search"):
                shards = Shards(
                    *share_of(encoding),
                    similarity,
                    self.recipe.index,
                    device=self.searcher.device,
                    seed=self.seed[0],
                )
                depth = min(self.recipe.depth, shards.count)
                shuffled = np.random.default_rng(self.seed).permutation(len(embedded_queries))
                recall = shards.recall(embedded_queries[shuffled[:RECALL_QUERIES]], depth)
            with _timed(seconds, "filter"):
                lowest_relevant, relevant_distances = self._compare_relevant(
                    shards, embedded_queries
                )
                text_keys = keys_as_read(docs, reads.docs)
                same_texts = SameTextFilter(
                    known_documents(self.collection, self.judged), text_keys
                )
            # Span by span, so that memory does not grow with the queries.
            query_blocks = list(query_spans(len(embedded_queries), depth))
            rng = np.random.default_rng([*self.seed, SAMPLING])
            counts: Counter[str] = Counter()
            shape = (len(embedded_queries), max(min(self.recipe.n, depth), self.min_negatives))
            negatives = np.full(shape, -1, np.int64)
            suspects = None if self.judge is None else np.full_like(negatives, -1)
            for span in query_blocks:
                with _timed(seconds, "search"):
                    scores, doc_rows = shards.search(embedded_queries[span], depth)
                with _timed(seconds, "filter"), precision():
                    places = np.arange(span.start, span.stop)
                    is_excluded = self._are_excluded(same_texts, doc_rows, places)
                    candidates, counts_of_filters = apply_filters(
                        doc_rows, scores, is_excluded, lowest_relevant[span], self.recipe
                    )
                    counts["found"] += int((doc_rows >= 0).sum())
                    counts.update(counts_of_filters)
                    chosen, suspected = self._choose(
                        candidates, scores, self.judged.lists_at(places), rng
                    )
                    if suspects is not None:
                        suspects[span, : chosen.shape[1]] = suspected
                        counts["judge"] += int((suspected >= 0).sum())
                    negatives[span, : chosen.shape[1]] = chosen
                    counts["chosen"] += int((chosen >= 0).sum())
            with _timed(seconds, "filter"):
                counts["short"] = int((_counts(negatives) < self.min_negatives).sum())
                counts["random"] = self._fill_up(negatives, suspects, same_texts)
                # min_negatives=0 allows an empty result; otherwise it is an error.
                if self.min_negatives and not (negatives >= 0).any():
                    raise InputError(
                        f"{self.collection.source}: no query has a document to rank below its relevant ones; nothing can be mined"
                    )
                distances = _distances_of(negatives, shards, embedded_queries, query_blocks)
        mean_distances = {
            "relevant": _mean(relevant_distances),
            "negatives": _mean(distances[negatives >= 0]),
        }
        manifest = self._manifest(dict(counts), recall, mean_distances, seconds)
        return MinedNegatives.from_matrix(self.judged.query_rows, negatives, distances, manifest)

    def _compare_relevant(
        self, shards: Shards, embedded_queries: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The lowest score of each query's relevant documents, ``[Q]``; and all distances."""
        n_queries = len(self.judged.query_rows)
        places = np.repeat(np.arange(n_queries), np.diff(self.judged.offsets))
        is_relevant = self.judged.values > 0
        places = places[is_relevant]
        scores, distances = shards.scores_of_pairs(
            embedded_queries, places, self.judged.doc_rows[is_relevant]
        )
        lowest_relevant = np.full(n_queries, np.inf, np.float32)
        np.minimum.at(lowest_relevant, places, scores)
        return lowest_relevant, distances

    def _choose(
        self,
        doc_rows: np.ndarray,
        scores: np.ndarray,
        judged: QueryLists,
        rng: np.random.Generator,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Negatives for some of the queries among candidates ``[Q, D]``, −1 for what is left out:
        rows ``[Q, n]`` int64, hardest first and filled up with −1; and the same of what the judge
        has left out.
        """
        if self.rescorer is not None:
            doc_rows, scores = _rescore(doc_rows, self.rescorer, judged)
        negatives = sample_negatives(doc_rows, scores, self.recipe, rng)
        if self.judge is None:
            return negatives, np.full_like(negatives, -1)
        judge_scores, lowest_relevant = self.judge.scores(judged, negatives)
        bounds = lowest_relevant[:, None] - self.recipe.judge_margin
        is_suspected = (judge_scores > bounds) & (negatives >= 0)
        suspects = np.where(is_suspected, negatives, -1)
        negatives = np.where(is_suspected, -1, negatives)
        order = np.argsort(negatives < 0, axis=1, kind="stable")  # −1 behind all others
        return np.take_along_axis(negatives, order, axis=1), suspects

    def _fill_up(
        self, negatives: np.ndarray, suspects: np.ndarray | None, same_texts: SameTextFilter
    ) -> int:
        """Give queries with fewer than ``min_negatives`` random documents, in place, but none that
        the judge has left out (``suspects``). Returns how many documents they got.
        """
        n_docs = len(self.collection.corpus)
        n_before = int((negatives >= 0).sum())
        rng = np.random.default_rng([*self.seed, FILLING])

        def fill(places: np.ndarray, drawn_rows: np.ndarray) -> None:
            """Give the queries at these places what they may have of the drawn documents."""
            may_be_negative = ~self._are_excluded(same_texts, drawn_rows, places)
            for place, doc_rows, is_allowed in zip(
                places.tolist(), drawn_rows, may_be_negative, strict=True
            ):
                taken = negatives[place]
                if suspects is not None:
                    taken = np.concatenate([taken, suspects[place]])
                is_new = ~np.isin(doc_rows, taken)
                distinct = list(dict.fromkeys(doc_rows[is_allowed & is_new].tolist()))
                begin = (negatives[place] >= 0).sum()
                fillers = distinct[: self.min_negatives - begin]
                negatives[place, begin : begin + len(fillers)] = fillers

        def short_places() -> np.ndarray:
            return np.flatnonzero(_counts(negatives) < self.min_negatives)

        # Four times as many as are needed: some are relevant, or drawn twice.
        places = short_places()
        fill(places, rng.integers(n_docs, size=(len(places), 4 * self.min_negatives)))
        # These were not enough where most of a small corpus is relevant: all documents, shuffled in
        # blocks that are shuffled.
        doc_spans = list(spans(n_docs, TEXTS_AT_ONCE))
        for place in short_places():
            for number in rng.permutation(len(doc_spans)).tolist():
                span = doc_spans[number]
                shuffled_rows = span.start + rng.permutation(span.stop - span.start)
                fill(np.array([place]), shuffled_rows[None])
                if (negatives[place] >= 0).sum() >= self.min_negatives:
                    break
        return int((negatives >= 0).sum()) - n_before

    def _are_excluded(
        self, same_texts: SameTextFilter, doc_rows: np.ndarray, places: np.ndarray
    ) -> np.ndarray:
        """Whether documents ``[Q, D]`` may never be negatives of their query; False for −1.
        ``places`` ``[Q]`` say which of the judged queries these are.
        """
        query_rows = np.broadcast_to(self.judged.query_rows[places][:, None], doc_rows.shape)
        is_document = doc_rows >= 0
        are_excluded = np.zeros(doc_rows.shape, dtype=bool)
        are_excluded[is_document] = same_texts(query_rows[is_document], doc_rows[is_document])
        return are_excluded

    def _stores(self) -> tuple[TokenStore, TokenStore]:
        """The tokens of all queries and of all documents, as the searcher reads them."""
        reads = self.searcher.reads
        reads.docs.check_one_embedding("mining")
        queries = reads.queries.store(self.collection.queries)
        docs = reads.docs.store(self.collection.corpus)
        return queries, docs

    def _manifest(
        self,
        counts: dict[str, int],
        recall: float,
        mean_distances: dict[str, float],
        seconds: dict[str, float],
    ) -> dict:
        return {
            "key": self.key,
            "weights": digest_of_weights(self.searcher),
            "similarity": self.searcher.similarity.name,
            "distance": self.searcher.similarity.unit,
            "recipe": asdict(self.recipe),
            "judge": None if self.judge is None else self.judge.name,
            "rescorer": None if self.rescorer is None else self.rescorer.name,
            "seed": list(self.seed),
            "relevant_from": self.collection.relevant_from,
            "mined_queries": len(self.judged.query_rows),
            "counts": counts,
            "recall": recall,
            "mean_distance": mean_distances,
            "seconds": {name: round(value, 3) for name, value in seconds.items()},
        }


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Add the seconds that the context takes to those of this name."""
    start = time.perf_counter()
    yield
    passed = time.perf_counter() - start
    seconds[name] = seconds.get(name, 0.0) + passed


def _distances_of(
    negatives: np.ndarray,
    shards: Shards,
    embedded_queries: np.ndarray,
    query_blocks: Sequence[slice],
) -> np.ndarray:
    """``[Q, n]`` float32, the distance of each negative to its query; 0 where there is none."""
    distances = np.zeros(negatives.shape, np.float32)
    for span in query_blocks:
        places, columns = np.nonzero(negatives[span] >= 0)
        doc_rows = negatives[span][places, columns]
        _, distances_of_pairs = shards.scores_of_pairs(embedded_queries[span], places, doc_rows)
        distances[span][places, columns] = distances_of_pairs
    return distances


def _digest_of_scorer(ranker: Ranker) -> object:
    """Of the weights of a scorer; and its template and windows, which decide its scores too."""
    digest = digest_of_weights(ranker)
    reads = ranker.reads
    if not isinstance(reads, JoinedPairs | ApartTexts):
        return digest
    parts: list[object] = [digest]
    if reads.template is not None and reads.template != PLAIN_TEMPLATE:
        parts.append(asdict(reads.template))
    if reads.windows is not None:
        parts.append(asdict(reads.windows))
    return parts if len(parts) > 1 else digest


def keys_as_read(store: TokenStore, form: SingleTexts) -> TextKeys:
    """Number documents by what the searcher reads of them, for :class:`SameTextFilter`.

    Two documents whose tokens agree up to the searcher's ``max_length`` count as the same text; in
    windows, where all agree. Keys are hashes of 64 bits: they are hardly ever equal where the tokens
    are not.
    """

    def text_keys(doc_rows: np.ndarray) -> np.ndarray:
        keys = np.empty(len(doc_rows), dtype=np.int64)
        doc_spans = list(spans(len(doc_rows), TEXTS_AT_ONCE))
        for span in track(doc_spans, "comparing", f"spans of {TEXTS_AT_ONCE} texts"):
            texts = form.lay_out(store, doc_rows[span])
            keys[span] = texts.hashes().numpy()
        return keys

    return TextKeys(text_keys, lambda doc_rows: form.lengths(store.lengths(doc_rows)))


def _rescore(
    doc_rows: np.ndarray, rescorer: TextScorer, judged: QueryLists
) -> tuple[np.ndarray, np.ndarray]:
    """Candidates ``[Q, D]`` by the rescorer's scores, and these; those left out come last."""
    scores, _ = rescorer.scores(judged, doc_rows)
    scores = np.where(doc_rows >= 0, scores, -np.inf)
    order = np.argsort(-scores, axis=1, kind="stable")
    return np.take_along_axis(doc_rows, order, axis=1), np.take_along_axis(scores, order, axis=1)


def _counts(negatives: np.ndarray) -> np.ndarray:
    """``[Q]``: how many negatives each query has."""
    return np.count_nonzero(negatives >= 0, axis=1)


def _mean(values: np.ndarray) -> float:
    return round(float(values.mean()), 6) if len(values) else 0.0
