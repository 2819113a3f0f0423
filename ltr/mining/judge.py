"""A second ranker that scores what was found: above the relevant document, it is likely a false negative."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ltr.data.collate import Collator, text_collator
from ltr.data.collection import Collection
from ltr.data.formats import FeatureVectors
from ltr.data.query_lists import LabelledList, QueryLists
from ltr.errors import InputError
from ltr.models.encoder.packed import in_eval_mode
from ltr.models.ranker import Ranker
from ltr.search.ranks import rank, summed, world_size

PAIRS = 512  # of a query and a document that are scored at once


@dataclass
class Judge:
    """Scores documents of queries with a ranker of texts, a cross-encoder or a dual encoder.

    Args:
        name: the ranker's, for the manifest.
        ranker: reads the texts of the collection by its own tokenizer.
        collection: holds the texts.
    """

    name: str
    ranker: Ranker
    collection: Collection

    def above_relevant(self, judged: QueryLists, doc_rows: np.ndarray, margin: float = 0.0) -> np.ndarray:
        """Which documents score above a relevant one of their query minus a margin.

        Args:
            judged: Q queries with their relevant documents.
            doc_rows: ``[Q, n]`` int64, −1 for none.
            margin: in units of the ranker's score.

        Returns:
            ``[Q, n]`` bool, the same on every process: each scores its share of the queries.
        """
        scores, lowest = self.scores(judged, doc_rows)
        return (scores > lowest[:, None] - margin) & (doc_rows >= 0)

    def scores(self, judged: QueryLists, doc_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scores ``[Q, n]`` float32 of documents, 0 for none; and the lowest score of a relevant document ``[Q]``."""
        own = range(rank(), len(doc_rows), world_size())
        lists = []
        for at in own:
            judged_rows, grades = judged.of(int(judged.query_rows[at]))
            rows = np.concatenate([judged_rows[grades > 0], doc_rows[at][doc_rows[at] >= 0]])
            lists.append(LabelledList(int(judged.query_rows[at]), rows, np.zeros(len(rows), dtype=np.float32)))
        whole = np.zeros((len(doc_rows), doc_rows.shape[1] + 1), dtype=np.float32)
        for at, scores in zip(own, self.scored(lists), strict=True):
            negative = doc_rows[at] >= 0
            n_relevant = len(scores) - negative.sum()
            whole[at, :-1][negative], whole[at, -1] = scores[n_relevant:], scores[:n_relevant].min()
        whole = summed(whole)
        return whole[:, :-1], whole[:, -1]

    @torch.inference_mode()
    def scored(self, lists: list[LabelledList]) -> list[np.ndarray]:
        """Scores of each list's documents; lists of one length are read together."""
        collator, device = self._collator(), next(self.ranker.parameters()).device
        order = sorted(range(len(lists)), key=lambda at: collator.lengths(lists[at]).sum())
        found: dict[int, np.ndarray] = {}
        with in_eval_mode(self.ranker):
            while order:
                batch = [order.pop()]
                while order and sum(len(lists[at].doc_rows) for at in [*batch, order[-1]]) <= PAIRS:
                    batch.append(order.pop())
                whole = collator([lists[at] for at in batch])
                scores = self.ranker(_moved(whole, device)).float().cpu().numpy()
                found |= {at: row[: len(lists[at].doc_rows)] for at, row in zip(batch, scores, strict=True)}
        return [found[at] for at in range(len(lists))]

    def _collator(self) -> Collator:
        reads = self.ranker.reads
        if isinstance(reads, FeatureVectors):
            raise InputError(f"a judge must read texts, got {type(self.ranker).__name__}", option="judge")
        return text_collator(self.collection.queries, self.collection.corpus, reads)


def _moved(batch: Any, device: torch.device) -> Any:
    """The batch on a device, with all its parts."""
    return type(batch)(*(part.to(device) if isinstance(part, Tensor) else part and _moved(part, device) for part in batch))
