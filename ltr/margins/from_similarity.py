"""Margins from the cosine of two embeddings, of the ranker's or of a frozen encoder."""

import math

from torch import Tensor

from ltr.batch import ScoredLists
from ltr.errors import InputError
from ltr.margins.margin import Margin, require
from ltr.similarity import cosine


class _FromSimilarity(Margin):
    """What margins from cosines share: their options, and whose representations they read."""

    def __init__(
        self, scale: float = 1.0, encoder: str | None = None, gradient: bool = False
    ) -> None:
        super().__init__()
        name = type(self).__name__
        require(0 < scale < math.inf, f"{name}: scale must be finite and above 0", scale=scale)
        if gradient and encoder is not None:
            raise InputError(
                f"{name}: gradient must be false with a frozen encoder, got true; leave out one "
                "of the two",
                option="gradient",
            )
        self.scale = scale
        self.encoder = encoder
        self.gradient = gradient

    def _docs(self, lists: ScoredLists) -> Tensor:
        """Representations of the documents, ``[R, C, H]`` or ``[1, C, H]``."""
        if self.encoder is None:
            return self._checked(lists.embeddings)
        _, docs = lists.frozen or (None, None)
        return self._checked(docs)

    def _queries(self, lists: ScoredLists) -> Tensor:
        """Representations of the rows, ``[R, H]``."""
        if self.encoder is None:
            return self._checked(lists.queries)
        queries, _ = lists.frozen or (None, None)
        return self._checked(queries)

    def _checked(self, embeddings: Tensor | None) -> Tensor:
        """The representations, which must be there; without gradient unless the option asks."""
        if embeddings is None:
            raise InputError(
                f"{type(self).__name__} needs the embeddings of queries and documents, got none; "
                "take a DualEncoder",
                option="margin",
            )
        return embeddings if self.gradient else embeddings.detach()


class FromDocuments(_FromSimilarity):
    r"""A margin per pair, from the similarity of its two documents.

    .. math::
        m_{ij} = s \cdot \frac{1 + \cos(d_i, d_j)}{2}

    A negative that is like the relevant document is asked to stay further behind: s where the two
    are equal, s/2 where they are orthogonal, 0 where they are opposite. So the hardest negatives
    weigh most, and false ones too. The paper takes this margin (s = 1) as the target of the gap
    under a squared, absolute or logistic error; the logistic one is
    :class:`ltr.losses.AdaptiveRankNetLoss`. The authors' code has the gradient of the margin too.

    It is ``[B, N, N]``: with in-batch lists rows × columns² numbers in the loss.

    Args:
        scale: s, above 0, in units of score: 1 for cosines, 1/τ for cosines over a temperature τ.
        encoder: a frozen dual encoder whose embeddings are compared, by hub id, folder or
            ``package:NAME``; it must have the ranker's tokenizer. None: those of the ranker as it
            stands.
        gradient: whether the margin has a gradient, into the ranker.

    Raises:
        InputError: for an option out of its bounds, or for a batch without embeddings.

    References:
        Gienapp, Deckers, Potthast & Scells (2025), Learning effective representations for retrieval
        using self-distillation with adaptive relevance margins.
        Li et al. (2020), Boosting few-shot learning with adaptive margin loss, arXiv:2005.13826
        (margins between classes, from their similarity).

    Example:
        >>> import torch
        >>> docs = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]])  # the second is like the first
        >>> labels = torch.tensor([[1.0, 0.0, 0.0]])
        >>> lists = ScoredLists(torch.zeros(1, 3), labels, labels >= 0, embeddings=docs)
        >>> FromDocuments()(lists)[0, 0, 1:]  # of the first against the others
        tensor([1.0000, 0.5000])
    """

    wants_embeddings = True

    def forward(self, lists: ScoredLists) -> Tensor:
        docs = self._docs(lists)
        margin = self.scale * (1 + cosine(docs, docs)) / 2
        return margin.expand(len(lists.mask), -1, -1)


class FromQuery(_FromSimilarity):
    r"""A margin per negative, from its similarity to the query.

    .. math::
        m_j = s \cdot \frac{1 - \cos(q, d_j)}{2}

    An easy negative is asked to stay further away, and one that is too hard, or false, to stay only
    a little behind: so negatives of middling hardness teach most. This is the idea of the paper;
    the formula is the simplest that has it, and may differ from the paper's. With embeddings of
    length 1 it is :class:`FromDistance` with k = s/4 and power 2, of the distances of now.

    Args:
        scale: s, above 0, in units of score: 1 for cosines, 1/τ for cosines over a temperature τ.
        encoder: a frozen dual encoder whose embeddings are compared, by hub id, folder or
            ``package:NAME``; it must have the ranker's tokenizer. None: those of the ranker as it
            stands.
        gradient: whether the margin has a gradient, into the ranker. A loss falls when its margin
            falls, so that gradient draws negatives to the query.

    Raises:
        InputError: for an option out of its bounds, or for a batch without embeddings of the
            queries.

    References:
        Chen, Wang & Tsai (2025), Dynamic margin-based contrastive learning for robust negative
        sampling in information retrieval.

    Example:
        >>> import torch
        >>> docs = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
        >>> labels = torch.tensor([[1.0, 0.0]])
        >>> query = torch.tensor([[1.0, 0.0]])
        >>> lists = ScoredLists(torch.zeros(1, 2), labels, labels >= 0, embeddings=docs, queries=query)
        >>> FromQuery(scale=2.0)(lists)[0, 1]  # the negative is orthogonal to the query: 2 * (1 - 0) / 2
        tensor(1.)
    """

    wants_queries = True

    def forward(self, lists: ScoredLists) -> Tensor:
        queries = self._queries(lists)
        docs = self._docs(lists)
        if len(docs) == len(queries):
            similarity = cosine(queries.unsqueeze(1), docs).squeeze(1)
        else:  # all rows share their documents
            similarity = cosine(queries, docs[0])
        return self.scale * (1 - similarity) / 2
