"""Mines hard negatives: what a dual encoder finds for a query and nobody judged relevant.

Letters of shapes: Q training queries, D candidates of each, n negatives of each, P pairs of a query
and a document. ``query_rows`` and ``doc_rows`` number the texts of the collection; ``places``
number the Q queries.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from ltr.data.collection import Collection
from ltr.data.formats import SingleTexts
from ltr.data.query_lists import QueryLists
from ltr.data.tokens import TokenStore
from ltr.errors import InputError
from ltr.mining.filters import Candidates, Recipe, apply_filters, sample_negatives
from ltr.mining.judge import Judge
from ltr.mining.negatives import MinedNegatives
from ltr.mining.same_texts import Keys, SameTexts
from ltr.models.dual_encoder import DualEncoder
from ltr.models.ranker import digest_of_weights
from ltr.processes import barrier, rank, shared_folder
from ltr.search.index import DenseIndex
from ltr.search.shards import Shards, encode_everywhere, encode_shard
from ltr.spans import spans

BLOCK = 65536  # texts whose keys are computed at once
SAMPLE = 200  # queries on which the recall of an approximate index is measured


@dataclass
class Miner:
    """Finds the hardest documents of a corpus for its training queries.

    Every process must call it: each encodes and searches its share of the corpus, and all get the
    same negatives.

    Args:
        model: the dual encoder that searches, as it stands.
        collection: its corpus is searched for its queries.
        judged: the queries to mine for, with their relevant documents.
        recipe: how negatives are chosen.
        least: a query with fewer negatives gets random documents up to this number.
        judge: a second model, which leaves out likely false negatives.
        rescorer: scores what the filters leave of all that was found, and negatives are sampled by
            its scores.
        seed: of all that is drawn: that of the run, and for a refresh its step.
    """

    model: DualEncoder
    collection: Collection
    judged: QueryLists
    recipe: Recipe = field(default_factory=Recipe)
    least: int = 1
    judge: Judge | None = None
    rescorer: Judge | None = None
    seed: tuple[int, ...] = (0,)

    @property
    def key(self) -> str:
        """A digest of all that decides what is found: model, texts, judgements, recipe, seed."""
        model = self.model
        scorers = []
        for scorer in (self.judge, self.rescorer):
            scorers.append(None if scorer is None else digest_of_weights(scorer.ranker))
        towers = []
        for tower in (model.query_tower, model.doc_tower):
            towers.append((tower.encoder.pooling, str(tower.head)))
        parts = [
            digest_of_weights(model),
            model.similarity.name,
            towers,
            [(form.max_length, form.prompt) for form in model.reads],
            scorers,
            asdict(self.recipe),
            self.least,
            self.seed,
            self.collection.corpus.key,
            self.collection.queries.key,
            self.judged.digest(),
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

    def mine(
        self, folder: Path, precision: Callable[[], AbstractContextManager] = nullcontext
    ) -> MinedNegatives:
        """Encode, search, filter and sample.

        Args:
            folder: where embeddings lie for as long as it takes; every process must reach it.
            precision: makes the context in which models run, such as ``torch.autocast``; else they
                run as they stand.

        Returns:
            The negatives; their manifest says how they were chosen, how many fell to which filter,
            and how long it took.

        Raises:
            InputError: if the embeddings are not finite, or faiss can't build the index.
        """
        self._seconds: dict[str, float] = {}
        reads = self.model.reads
        queries, docs = self._stores()
        with shared_folder(folder, "mining") as shared:
            with self._timed("encode"), precision():
                # The documents of this process, and the queries of all.
                file = shared / f"{rank()}.npy"
                share = encode_shard(self.model.doc_tower, docs, reads.docs, file)
                embedded_queries = encode_everywhere(
                    self.model.query_tower, queries, reads.queries, self.judged.query_rows
                )
            with self._timed("search"):
                seed = self.seed[0]
                shards = Shards(*share, self.model.similarity, self.recipe.index, seed=seed)
                depth = min(self.recipe.depth, shards.count)
                scores, doc_rows = shards.search(embedded_queries, depth)
                shuffled = np.random.default_rng(self.seed).permutation(len(embedded_queries))
                recall = shards.recall(embedded_queries[shuffled[:SAMPLE]], depth)
            with self._timed("filter"):
                relevant = self.judged.values > 0
                counts_of_queries = np.diff(self.judged.offsets)
                places = np.repeat(np.arange(len(self.judged.query_rows)), counts_of_queries)
                relevant_places = places[relevant]
                relevant_scores, relevant_distances = shards.of_pairs(
                    embedded_queries, relevant_places, self.judged.doc_rows[relevant]
                )
                lowest = np.full(len(embedded_queries), np.inf, np.float32)
                np.minimum.at(lowest, relevant_places, relevant_scores)

                same_texts = SameTexts(
                    self.collection, [self.judged], keys_as_read(docs, reads.docs)
                )
                is_relevant = self._are_relevant(same_texts, doc_rows)
                candidates = Candidates(doc_rows, scores, is_relevant, lowest)
                with precision():
                    ids, counts = self._choose(candidates, same_texts)
                if self.least and not (ids >= 0).any():
                    raise InputError(
                        f"{self.collection.source}: no query has a document to rank below its "
                        "relevant ones; nothing can be mined"
                    )
                chosen_places, columns = np.nonzero(ids >= 0)
                _, chosen_distances = shards.of_pairs(
                    embedded_queries, chosen_places, ids[chosen_places, columns]
                )
            barrier()  # all processes have read the folder, which now goes
        distances = np.zeros(ids.shape, np.float32)
        distances[chosen_places, columns] = chosen_distances
        means = {"relevant": _mean(relevant_distances), "negatives": _mean(chosen_distances)}
        manifest = self._manifest(counts, recall, means)
        return MinedNegatives.of_queries(
            self.judged.query_rows, len(self.collection.queries), ids, distances, manifest
        )

    def overlap_now(self, negatives: MinedNegatives, n_queries: int = 100) -> float:
        """How many of the negatives would still be found, by a sample: far cheaper than a refresh.

        Of some queries, the documents that are negatives of any of them are ranked anew. The share
        of a query's negatives that is still among as many of the best, averaged over the queries;
        relevant documents are left out.
        """
        has_negatives = (negatives.ids[self.judged.query_rows] >= 0).any(axis=1)
        query_rows = self.judged.query_rows[has_negatives]
        shuffled = np.random.default_rng([*self.seed, 3]).permutation(query_rows)
        query_rows = np.sort(shuffled[:n_queries])
        ids = negatives.ids[query_rows]
        pool = np.unique(ids[ids >= 0])
        queries, docs = self._stores()
        reads = self.model.reads
        embedded_queries = encode_everywhere(
            self.model.query_tower, queries, reads.queries, query_rows
        )
        embedded_pool = encode_everywhere(self.model.doc_tower, docs, reads.docs, pool)
        index = DenseIndex.build(embedded_pool, self.model.similarity)
        _, places_in_pool = index.search(embedded_queries, len(pool))
        shares = []
        for query_row, row, ranking in zip(query_rows, ids, pool[places_in_pool], strict=True):
            judged_rows, grades = self.judged.of(int(query_row))
            ranking = ranking[~np.isin(ranking, judged_rows[grades > 0])]
            before = row[row >= 0]
            shares.append(np.isin(before, ranking[: len(before)]).mean())
        return float(np.mean(shares))

    def _choose(
        self, candidates: Candidates, same_texts: SameTexts
    ) -> tuple[np.ndarray, dict[str, int]]:
        """Choose negatives ``[Q, n]`` int64, hardest first and filled up with −1.

        Returns:
            The negatives; and how many fell to what.
        """
        counts = {"found": int((candidates.doc_rows >= 0).sum())}
        left, fell = apply_filters(candidates, self.recipe)
        if self.rescorer is not None:
            candidates, left = self._rescore(candidates, left, self.rescorer)
        rng = np.random.default_rng([*self.seed, 1])
        ids, _ = sample_negatives(candidates, left, self.recipe, rng)
        if self.judge is not None:
            scores, lowest = self.judge.scores(self.judged, ids)
            suspected = (scores > lowest[:, None] - self.recipe.judge_margin) & (ids >= 0)
            fell["judge"] = int(suspected.sum())
            ids = np.where(suspected, -1, ids)
            order = np.argsort(ids < 0, axis=1, kind="stable")  # −1 behind all others
            ids = np.take_along_axis(ids, order, axis=1)
        counts |= fell
        counts["chosen"] = int((ids >= 0).sum())
        if ids.shape[1] < self.least:
            ids = np.pad(ids, ((0, 0), (0, self.least - ids.shape[1])), constant_values=-1)
        counts["short"] = int(((ids >= 0).sum(axis=1) < self.least).sum())
        counts["random"] = self._fill(ids, same_texts)
        return ids, counts

    def _rescore(
        self, candidates: Candidates, left: np.ndarray, rescorer: Judge
    ) -> tuple[Candidates, np.ndarray]:
        """The candidates that are left, with the scores of another ranker, best first by these."""
        doc_rows = np.where(left, candidates.doc_rows, -1)
        scores = np.where(left, rescorer.scores(self.judged, doc_rows)[0], -np.inf)
        order = np.argsort(-scores, axis=1, kind="stable")
        doc_rows = np.take_along_axis(doc_rows, order, axis=1)
        scores = np.take_along_axis(scores, order, axis=1)
        left = np.take_along_axis(left, order, axis=1)
        return candidates._replace(doc_rows=doc_rows, scores=scores), left

    def _fill(self, ids: np.ndarray, same_texts: SameTexts) -> int:
        """Give queries with fewer than ``least`` negatives random documents, in place.

        Returns:
            How many documents they got.
        """
        counts = (ids >= 0).sum(axis=1)
        short = np.flatnonzero(counts < self.least)
        # Four times as many as are needed: some are relevant, or drawn twice.
        drawn = np.random.default_rng([*self.seed, 2]).integers(
            len(self.collection.corpus), size=(len(short), 4 * self.least)
        )
        allowed = ~self._are_relevant(same_texts, drawn, short)
        n_filled = 0
        for place, docs, is_allowed in zip(short.tolist(), drawn, allowed, strict=True):
            fresh = docs[is_allowed & ~np.isin(docs, ids[place])]
            begin = counts[place]
            new = list(dict.fromkeys(fresh.tolist()))[: self.least - begin]
            ids[place, begin : begin + len(new)] = new
            n_filled += len(new)
        return n_filled

    def _are_relevant(
        self, same_texts: SameTexts, doc_rows: np.ndarray, places: np.ndarray | None = None
    ) -> np.ndarray:
        """Whether documents ``[Q, D]`` have the text of a relevant one of their query; −1 is none.

        ``places`` ``[Q]``: the queries of the rows, where they are not all the queries.
        """
        query_rows = self.judged.query_rows if places is None else self.judged.query_rows[places]
        query_rows = np.broadcast_to(query_rows[:, None], doc_rows.shape)
        real = doc_rows >= 0
        relevant = np.zeros(doc_rows.shape, dtype=bool)
        relevant[real] = same_texts(query_rows[real], doc_rows[real])
        return relevant

    def _stores(self) -> list[TokenStore]:
        """The tokens of all queries and of all documents, as the model reads them."""
        tables = self.collection.queries, self.collection.corpus
        sides = zip(tables, self.model.reads.tokenizers, strict=True)
        return [TokenStore.open(table, tokenizer) for table, tokenizer in sides]

    def _manifest(self, counts: dict[str, int], recall: float, distance: dict[str, float]) -> dict:
        return {
            "key": self.key,
            "weights": digest_of_weights(self.model),
            "similarity": self.model.similarity.name,
            "distance": self.model.similarity.unit,
            "recipe": asdict(self.recipe),
            "judge": None if self.judge is None else self.judge.name,
            "rescorer": None if self.rescorer is None else self.rescorer.name,
            "seed": list(self.seed),
            "mined_queries": len(self.judged.query_rows),
            "counts": counts,
            "recall": recall,
            "mean_distance": distance,
            "seconds": {name: round(value, 3) for name, value in self._seconds.items()},
        }

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._seconds[name] = time.perf_counter() - start


def keys_as_read(store: TokenStore, form: SingleTexts) -> Keys:
    """Number documents by what the model reads of them, for :class:`SameTexts`.

    Texts that are cut to the same tokens are equal to the model. Keys are hashes of 64 bits: they
    are hardly ever equal where the tokens are not.
    """

    def keys(doc_rows: np.ndarray) -> np.ndarray:
        keys = np.empty(len(doc_rows), dtype=np.int64)
        for span in spans(len(doc_rows), BLOCK):
            keys[span] = form.texts(store, doc_rows[span]).keys().numpy()
        return keys

    return keys


def _mean(values: np.ndarray) -> float:
    return round(float(values.mean()), 6) if len(values) else 0.0
