"""A second ranker scores what was found: above the relevant document, it is likely relevant too."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ltr.data.collection import Collection
from ltr.data.layouts import FeatureVectors, PairsAndTexts
from ltr.data.query_lists import LabelledList, QueryLists
from ltr.errors import InputError
from ltr.models.decoder_ranker import DecoderRanker
from ltr.models.named import open_ranker
from ltr.models.pair_ranker import PairRanker
from ltr.models.ranker import Ranker
from ltr.processes import by_every_rank, rank, sum_over_ranks, world_size
from ltr.search.scores import pair_scores

# Tokens of a pair, where the judge is a pretrained model and not a run of ours: as many as a
# PairWiseBertRanker or a DecoderRanker reads in training.
PAIR_TOKENS = 256
DECODER_TOKENS = 512

# A query with relevant documents and negatives of it, by row.
RelevantAndNegatives = tuple[int, np.ndarray, np.ndarray]


@dataclass
class TextScorer:
    """Scores documents of queries with a ranker of texts, a cross-encoder or a dual encoder.

    Args:
        name: the ranker's, for the manifest.
        ranker: reads the texts of the collection by its own tokenizer.
        collection: holds the texts.
    """

    name: str
    ranker: Ranker
    collection: Collection

    def scores(self, judgements: QueryLists, doc_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scores of documents, and of the relevant document of each query that scores lowest.

        Args:
            judgements: of people: Q queries with their relevant documents.
            doc_rows: ``[Q, n]`` int64, the documents to score; −1 for none.

        Returns:
            ``[Q, n]`` and ``[Q]`` float32, the same on every process: each scores its share of the
            queries. 0 for no document.
        """
        places = range(rank(), len(doc_rows), world_size())  # the queries of this process
        lists: list[RelevantAndNegatives] = []
        for place in places:
            query_row = int(judgements.query_rows[place])
            judged_rows, grades = judgements.of(query_row)
            negatives = doc_rows[place][doc_rows[place] >= 0]
            lists.append((query_row, judged_rows[grades > 0], negatives))
        own_scores = by_every_rank(lambda: self.score_apart(lists) if lists else [])
        # [Q, n + 1]: the last column has the score of the relevant document. Rows of other
        # processes stay 0 here, so that the sum over the processes has all.
        matrix = np.zeros((len(doc_rows), doc_rows.shape[1] + 1), dtype=np.float32)
        for place, (of_relevant, of_negatives) in zip(places, own_scores, strict=True):
            matrix[place, :-1][doc_rows[place] >= 0] = of_negatives
            matrix[place, -1] = of_relevant.min()
        matrix = sum_over_ranks(matrix)
        return matrix[:, :-1], matrix[:, -1]

    def score_apart(
        self, lists: Sequence[RelevantAndNegatives]
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each list the scores of its relevant documents and those of its negatives, float32."""
        end_to_end = []
        for query_row, relevant_rows, negative_rows in lists:
            doc_rows = np.concatenate([relevant_rows, negative_rows])
            no_labels = np.zeros(len(doc_rows), dtype=np.float32)
            end_to_end.append(LabelledList(query_row, doc_rows, no_labels))
        scores_apart = []
        for (_, relevant_rows, _), scores in zip(lists, self.score_lists(end_to_end), strict=True):
            n_relevant = len(relevant_rows)
            scores_apart.append((scores[:n_relevant], scores[n_relevant:]))
        return scores_apart

    def score_lists(self, lists: list[LabelledList]) -> list[np.ndarray]:
        """Scores of each list's documents, ``[N]`` float32 for each list."""
        reads = self.ranker.reads
        if isinstance(reads, FeatureVectors | PairsAndTexts):
            raise InputError(
                f"a judge must read texts, got {type(self.ranker).__name__}", option="judge"
            )
        queries = reads.store(self.collection.queries, "query")
        docs = reads.store(self.collection.corpus, "document")

        query_rows = [np.empty(0, np.int64)]  # so that no list is no pair, too
        doc_rows = [np.empty(0, np.int64)]
        for documents in lists:
            query_rows.append(np.full(len(documents.doc_rows), documents.query_row, np.int64))
            doc_rows.append(documents.doc_rows)
        scores = pair_scores(
            self.ranker, queries, docs, np.concatenate(query_rows), np.concatenate(doc_rows)
        )
        scores_of_lists = []
        begin = 0
        for documents in lists:
            end = begin + len(documents.doc_rows)
            scores_of_lists.append(scores[begin:end])
            begin = end
        return scores_of_lists


def open_judge(name: str, max_length: int | None = None) -> Ranker:
    """A ranker of texts by name, to score with; see :func:`ltr.models.named.open_ranker`.

    Args:
        name: run folder, checkpoint, folder, ``package:NAME`` or hub id.
        max_length: tokens that it reads; None: those of the model, but 256 of a pair at most, or 512
            of a decoder's text. A run has its own.

    Raises:
        InputError: if it can't be loaded.
    """
    named = open_ranker(name, "--judge", "texts", max_length=max_length)
    ranker = named.ranker
    is_from_run = named.file is not None
    has_length = is_from_run or max_length is not None
    if not has_length and isinstance(ranker, PairRanker):
        in_training = DECODER_TOKENS if isinstance(ranker, DecoderRanker) else PAIR_TOKENS
        ranker.read_up_to(min(ranker.reads.max_length, in_training))
    return ranker.eval().requires_grad_(False).to("cuda" if torch.cuda.is_available() else "cpu")
