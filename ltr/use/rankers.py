"""What a loaded ranker does: scores of texts or of feature vectors, and rankings.

Letters of shapes: P pairs, N documents of a list, F features.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike

from ltr.batch import RankingBatch
from ltr.data.formats import ApartTexts, FeatureVectors, JoinedPairs
from ltr.data.normalise import Normalisation
from ltr.data.texts import TextTable
from ltr.data.tokens import Tokens, TokenStore
from ltr.errors import InputError, one_of
from ltr.models import Ranker
from ltr.models.encoder.packed import in_eval_mode
from ltr.search.scores import pair_scores, to_device

Precision = Literal["32-true", "bf16-mixed", "16-mixed"]  # as trainer.precision names them
HALF = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
Side = Literal["query", "document"]


class RankedDocument(NamedTuple):
    """A document of a ranking.

    Attributes:
        place: of the document among those that were given, from 0.
        score: higher is better.
        text: the document.
        id: its id, where documents have ids, else its place.
    """

    place: int
    score: float
    text: str
    id: str


class TextRanker:
    """A ranker that reads texts, ready for use.

    Args:
        model: the ranker with its weights. It stays on the device where it is.
        precision: ``bf16-mixed`` and ``16-mixed`` run the encoder in half precision; scores are
            float32 always.
    """

    def __init__(self, model: Ranker, precision: Precision = "32-true") -> None:
        one_of(get_args(Precision), precision=precision)
        self.model = model.eval()
        self.precision = precision
        reads = model.reads
        assert isinstance(reads, JoinedPairs | ApartTexts), (
            "load makes it of a ranker that reads texts"
        )
        self.reads = reads

    @property
    def device(self) -> torch.device:
        """Where the ranker runs; move it by ``ranker.model.to(device)``."""
        return next(self.model.parameters()).device

    def score(self, pairs: Iterable[tuple[str, str]]) -> np.ndarray:
        """Score pairs of a query and a document, in the order given.

        Returns:
            ``[P]`` float32, higher is better. A cross-encoder gives logits; a dual encoder the
            similarity over its temperature.

        Raises:
            InputError: for what is no pair of strings, or a query that leaves a cross-encoder no
                room for a document.
        """
        # each text is tokenised once
        queries = dict[str, int]()
        documents = dict[str, int]()
        rows: list[tuple[int, int]] = []
        for number, pair in enumerate(pairs):
            match pair:
                case (str(query), str(document)):
                    rows.append(
                        (
                            queries.setdefault(query, len(queries)),
                            documents.setdefault(document, len(documents)),
                        )
                    )
                case _:
                    raise InputError(
                        f"each pair must be a query and a document, two strings, got {pair!r:.80} at {number}"
                    )
        query_rows, doc_rows = np.array(rows, np.int64).reshape(-1, 2).T
        texts = self.tokens(list(queries), "query"), self.tokens(list(documents), "document")
        return self.score_rows(*texts, query_rows, doc_rows)

    def rank(
        self, query: str, documents: Sequence[str], k: int | None = None
    ) -> list[RankedDocument]:
        """Order documents by their scores for a query, best first; of equal scores the first given
        comes first.

        Args:
            query: what is asked.
            documents: the texts to be ranked.
            k: how many to return; None: all.

        Raises:
            InputError: as :meth:`score`; and if k is below 1, or the documents are one string.
        """
        if isinstance(documents, str):
            raise InputError(
                "documents must be a list of strings, got one string; put it into a list"
            )
        check_count(k)
        scores = self.score((query, document) for document in documents)
        order = np.argsort(-scores, kind="stable")[:k].tolist()
        return [RankedDocument(at, float(scores[at]), documents[at], str(at)) for at in order]

    def tokens(self, texts: Sequence[str], side: Side) -> Tokens:
        """The tokens of texts as the ranker reads them on one side; an InputError for a query that
        is too long.
        """
        tokens = Tokens.of(texts, self.reads.tokenizers[side == "document"])
        if side == "query" and len(texts):
            self.reads.check_queries([str(number) for number in range(len(texts))], texts, tokens)
        return tokens

    def stored(self, documents: TextTable) -> Tokens:
        """The tokens of documents as the ranker reads them, kept on disk."""
        return TokenStore.open(documents, self.reads.tokenizers[1])

    def score_rows(
        self, queries: Tokens, docs: Tokens, query_rows: np.ndarray, doc_rows: np.ndarray
    ) -> np.ndarray:
        """Score tokenised texts by row: see :func:`ltr.search.scores.pair_scores`."""
        with self.context():
            return pair_scores(self.model, queries, docs, query_rows, doc_rows)

    @contextmanager
    def context(self) -> Iterator[None]:
        """Inside the block the model runs in the ranker's precision."""
        half = HALF.get(self.precision)
        with torch.autocast(self.device.type, dtype=half, enabled=half is not None):
            yield


class FeatureScorer:
    """A ranker of feature vectors, ready for use.

    Args:
        model: the ranker with its weights.
        normalisation: with which it was trained.
    """

    def __init__(self, model: Ranker, normalisation: Normalisation) -> None:
        self.model = model.eval()
        self.normalisation = normalisation

    def score(self, features: ArrayLike) -> np.ndarray:
        """Score the documents of one query.

        Args:
            features: ``[N, F]``, as the training data had them; features of the model beyond F are
                0.

        Returns:
            ``[N]`` float32, higher is better.

        Raises:
            InputError: for another shape, more features than the model reads, or a number that is
                not finite.
        """
        reads = self.model.reads
        given = np.asarray(features, np.float32)
        assert isinstance(reads, FeatureVectors), "load makes it of a ranker that reads features"
        if given.ndim != 2 or given.shape[1] > reads.n_features:
            shape = f"[documents, features] with at most {reads.n_features} features"
            raise InputError(f"features must be {shape}, got the shape {list(given.shape)}")
        if not np.isfinite(given).all():
            raise InputError(
                "features must be finite, got NaN or infinity; a feature that is missing is 0"
            )
        if not len(given):
            return np.empty(0, np.float32)
        whole = np.zeros((len(given), reads.n_features), np.float32)
        whole[:, : given.shape[1]] = given
        device = next(self.model.parameters()).device
        ones = torch.ones(1, len(given))
        batch = RankingBatch(ones, ones.bool(), torch.zeros(1, dtype=torch.int64), ones.long())
        batch = batch._replace(
            features=torch.from_numpy(self.normalisation.of_list(whole)).unsqueeze(0)
        )
        with torch.inference_mode(), in_eval_mode(self.model):
            batch = to_device(batch, device)
            scores: np.ndarray = self.model(batch).squeeze(0).float().cpu().numpy()
        return scores


def check_count(k: int | None) -> None:
    """Raise an InputError for a number of documents below 1."""
    if k is not None and k < 1:
        raise InputError(f"k must be at least 1, got {k}; None returns all")
