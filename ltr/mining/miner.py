"""Mines hard negatives: documents that a dual encoder finds for a training query, and that nobody judged relevant.

Letters of shapes: Q training queries, D candidates of each, n negatives of each, P pairs of a query and a document.
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
from ltr.mining.filters import Candidates, Recipe, filtered, sampled
from ltr.mining.judge import Judge
from ltr.mining.negatives import MinedNegatives
from ltr.models.dual_encoder import DualEncoder
from ltr.models.ranker import digest_of_weights
from ltr.search.index import DenseIndex
from ltr.search.ranks import barrier, rank, shared_folder
from ltr.search.shards import Shards, encode_everywhere, encode_shard

BLOCK = 65536  # texts whose keys are computed at once
SAMPLE = 200  # queries on which the recall of an approximate index is measured


@dataclass
class Miner:
    """Finds the hardest documents of a corpus for its training queries.

    Every process must call it: each encodes and searches its share of the corpus, and all get the same negatives.

    Args:
        model: the dual encoder that searches, as it stands.
        collection: its corpus is searched for its queries.
        judged: the queries to mine for, with their relevant documents.
        recipe: how negatives are chosen.
        least: a query with fewer negatives gets random documents up to this number.
        judge: a second model, which leaves out likely false negatives.
        rescorer: scores what the filters leave of all that was found, and negatives are sampled by its scores.
        seed: of all that is drawn; a refresh has numbers of its own.
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
        """All that decides what is found: the model and how it reads, the texts, the judgements, the recipe, the seed."""
        model = self.model
        others = [one and digest_of_weights(one.ranker) for one in (self.judge, self.rescorer)]
        towers = [(tower.encoder.pooling, str(tower.head)) for tower in (model.query_tower, model.doc_tower)]
        forms = [(form.max_length, form.prompt) for form in model.reads]
        parts = [digest_of_weights(model), model.similarity, towers, forms, others, asdict(self.recipe), self.least, self.seed]
        content = [self.collection.corpus.key, self.collection.queries.key, self.judged.digest()]
        return hashlib.sha256(json.dumps(parts + content).encode()).hexdigest()[:32]

    def mine(self, folder: Path, precision: Callable[[], AbstractContextManager] = nullcontext) -> MinedNegatives:
        """Encode, search, filter and sample.

        Args:
            folder: where embeddings lie for as long as it takes; every process must reach it.
            precision: makes the context in which models run, such as ``torch.autocast``; else they run as they stand.

        Returns:
            The negatives; their manifest says how they were chosen, how many fell to which filter, and how long it took.

        Raises:
            InputError: if the embeddings are not finite, or faiss can't build the index.
        """
        self._seconds: dict[str, float] = {}
        reads, (queries, docs) = self.model.reads, self._stores()
        with shared_folder(folder, "mining") as shared:
            with self._timed("encode"), precision():
                own = encode_shard(self.model.doc_tower, docs, reads.docs, shared / f"{rank()}.npy")
                asked = encode_everywhere(self.model.query_tower, queries, reads.queries, self.judged.query_rows)
            with self._timed("search"):
                shards = Shards(*own, self.model.similarity, self.recipe.index, seed=self.seed[0])
                scores, doc_rows = shards.search(asked, min(self.recipe.depth, shards.count))
                few = np.random.default_rng(self.seed).permutation(len(asked))[:SAMPLE]
                recall = shards.recall(asked[few], min(self.recipe.depth, shards.count))
            with self._timed("filter"):
                same = _SameTexts(self.judged, docs, reads.docs, self.collection)
                at, relevant_rows = same.pairs
                relevant_scores, relevant_distances = shards.pairs(asked, at, relevant_rows)
                lowest = np.full(len(asked), np.inf, np.float32)
                np.minimum.at(lowest, at, relevant_scores)
                found = Candidates(doc_rows, scores, same.relevant(doc_rows), lowest)
                with precision():
                    ids, counts = self._chosen(found, same)
                if self.least and not (ids >= 0).any():
                    text = f"{self.collection.source}: no query has a document to rank below its relevant ones"
                    raise InputError(f"{text}; nothing can be mined")
                places, columns = np.nonzero(ids >= 0)
                chosen = shards.pairs(asked, places, ids[places, columns])
            barrier()  # the folder goes
        distances = np.zeros(ids.shape, np.float32)
        distances[places, columns] = chosen[1]
        means = {"relevant": _mean(relevant_distances), "negatives": _mean(chosen[1])}
        manifest = self._manifest(counts, recall, means)
        return MinedNegatives.of_queries(self.judged.query_rows, len(self.collection.queries), ids, distances, manifest)

    def overlap_now(self, negatives: MinedNegatives, n_queries: int = 100) -> float:
        """How many of the negatives would still be found, by a sample: far cheaper than a refresh.

        Of some queries, the documents that are negatives of any of them are ranked anew. The share of a query's negatives that
        is still among as many of the best, averaged over the queries; relevant documents are left out.
        """
        rows = self.judged.query_rows[(negatives.ids[self.judged.query_rows] >= 0).any(axis=1)]
        rows = np.sort(np.random.default_rng([*self.seed, 3]).permutation(rows)[:n_queries])
        ids = negatives.ids[rows]
        pool = np.unique(ids[ids >= 0])
        queries, docs = self._stores()
        asked = encode_everywhere(self.model.query_tower, queries, self.model.reads.queries, rows)
        embedded = encode_everywhere(self.model.doc_tower, docs, self.model.reads.docs, pool)
        shares = []
        _, ranked = DenseIndex.build(embedded, self.model.similarity).search(asked, len(pool))
        for row, own, found in zip(rows, ids, pool[ranked], strict=True):
            judged_rows, grades = self.judged.of(int(row))
            found, own = found[~np.isin(found, judged_rows[grades > 0])], own[own >= 0]
            shares.append(np.isin(own, found[: len(own)]).mean())
        return float(np.mean(shares))

    def _chosen(self, found: Candidates, same: "_SameTexts") -> tuple[np.ndarray, dict[str, int]]:
        """Negatives ``[Q, n]`` int64, hardest first and filled up with −1; and how many fell to what."""
        left, counts = filtered(found, self.recipe)
        if self.rescorer is not None:
            found, left = self._rescored(found, left, self.rescorer)
        ids, _ = sampled(found, left, self.recipe, np.random.default_rng([*self.seed, 1]))
        if self.judge is not None:
            scores, lowest = self.judge.scores(self.judged, ids)
            out = (scores > lowest[:, None] - self.recipe.judge_margin) & (ids >= 0)
            counts["judge"] = int(out.sum())
            ids = np.where(out, -1, ids)
            ids = np.take_along_axis(ids, np.argsort(ids < 0, axis=1, kind="stable"), axis=1)  # −1 behind all others
        counts = {"found": int((found.doc_rows >= 0).sum())} | counts | {"chosen": int((ids >= 0).sum())}
        if ids.shape[1] < self.least:
            ids = np.pad(ids, ((0, 0), (0, self.least - ids.shape[1])), constant_values=-1)
        counts["short"] = int(((ids >= 0).sum(axis=1) < self.least).sum())
        counts["random"] = self._fill(ids, same)
        return ids, counts

    def _rescored(self, found: Candidates, left: np.ndarray, rescorer: Judge) -> tuple[Candidates, np.ndarray]:
        """The candidates that are left, with the scores of another ranker, best first by these."""
        doc_rows = np.where(left, found.doc_rows, -1)
        scores = np.where(left, rescorer.scores(self.judged, doc_rows)[0], -np.inf)
        order = np.argsort(-scores, axis=1, kind="stable")
        doc_rows, scores, left = (np.take_along_axis(one, order, axis=1) for one in (doc_rows, scores, left))
        return found._replace(doc_rows=doc_rows, scores=scores), left

    def _fill(self, ids: np.ndarray, same: "_SameTexts") -> int:
        """Give queries with fewer than ``least`` negatives random documents; how many."""
        have = (ids >= 0).sum(axis=1)
        short = np.flatnonzero(have < self.least)
        drawn = np.random.default_rng([*self.seed, 2]).integers(len(self.collection.corpus), size=(len(short), 4 * self.least))
        good = ~same.relevant(drawn, short)
        for row, docs, allowed in zip(short.tolist(), drawn, good, strict=True):
            fresh = dict.fromkeys(docs[allowed & ~np.isin(docs, ids[row])].tolist())
            new = list(fresh)[: self.least - have[row]]
            ids[row, have[row] : have[row] + len(new)] = new
        return int((ids[short] >= 0).sum() - have[short].sum())

    def _stores(self) -> list[TokenStore]:
        """The tokens of all queries and of all documents, as the model reads them."""
        tables = self.collection.queries, self.collection.corpus
        return [TokenStore.open(*side) for side in zip(tables, self.model.reads.tokenizers, strict=True)]

    def _manifest(self, counts: dict[str, int], recall: float, distance: dict[str, float]) -> dict:
        return {
            "key": self.key,
            "weights": digest_of_weights(self.model),
            "similarity": self.model.similarity,
            "distance": "euclidean, of embeddings of length 1" if self.model.similarity == "cosine" else "euclidean",
            "recipe": asdict(self.recipe),
            "judge": self.judge and self.judge.name,
            "rescorer": self.rescorer and self.rescorer.name,
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


class _SameTexts:
    """Which documents have the text of a relevant one, as the model reads it: equal tokens, under whatever ids.

    Attributes:
        pairs: the relevant documents of all queries, ``[P]`` int64 each: the places of the queries, and the documents.
    """

    def __init__(self, judged: QueryLists, store: TokenStore, form: SingleTexts, collection: Collection) -> None:
        self._store, self._form = store, form
        at, relevant = np.repeat(np.arange(len(judged.query_rows)), np.diff(judged.offsets)), judged.values > 0
        self.pairs = at[relevant], judged.doc_rows[relevant]
        self._query_rows = judged.query_rows if collection.queries.key == collection.corpus.key else None
        self._relevant = self._named(*self.pairs)

    def relevant(self, doc_rows: np.ndarray, places: np.ndarray | None = None) -> np.ndarray:
        """``[Q, D]`` bool for the documents ``[Q, D]`` of all queries, or of those at some places; −1 is none."""
        places = np.arange(len(doc_rows)) if places is None else places
        at = np.broadcast_to(places[:, None], doc_rows.shape)
        real = doc_rows >= 0
        out = np.zeros(doc_rows.shape, dtype=bool)
        out[real] = np.isin(self._named(at[real], doc_rows[real]), self._relevant)
        if self._query_rows is not None:  # a text is not its own negative
            out |= doc_rows == self._query_rows[places][:, None]
        return out

    def _named(self, at: np.ndarray, doc_rows: np.ndarray) -> np.ndarray:
        """A number for each pair of a query and a text, ``[P]`` uint64: equal for equal pairs, and else hardly ever."""
        rows, inverse = np.unique(doc_rows, return_inverse=True)
        keys = np.empty(len(rows), dtype=np.int64)
        for begin in range(0, len(rows), BLOCK):
            keys[begin : begin + BLOCK] = self._form.texts(self._store, rows[begin : begin + BLOCK]).keys().numpy()
        return keys[inverse].astype(np.uint64) ^ (at.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))


def _mean(values: np.ndarray) -> float:
    return round(float(values.mean()), 6) if len(values) else 0.0
