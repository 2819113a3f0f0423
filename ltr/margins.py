"""Margin policies: how far apart two scores should be, in units of score.

Letters of shapes: b row (one query), i the more relevant document of a pair, j the less relevant one.
"""

import math

import numpy as np
import torch
from torch import Tensor, nn

from ltr.batch import ScoredLists
from ltr.errors import InputError
from ltr.similarity import cosine, euclidean


class Margin(nn.Module):
    """A margin policy: from the lists of a batch to margins in units of score.

    What it says of padding, and of pairs that are none, is not used. Raises ``InputError`` for an option out of its bounds.
    """

    wants_queries: bool = False  # whether it reads the rows' representations
    wants_embeddings: bool = False  # whether it reads those of the documents
    wants_distances: bool = False  # whether it cannot do without them
    encoder: str | None = None  # a frozen encoder whose representations it reads

    def forward(self, lists: ScoredLists) -> Tensor:
        """Margins ``[B, N]`` (per less relevant document) or ``[B, N, N]`` (per pair, more relevant document first)."""
        raise NotImplementedError

    def want_as(self, other: "Margin | None") -> None:
        """Want what another policy wants; nothing for None."""
        for name in ("wants_queries", "wants_embeddings", "wants_distances", "encoder"):
            setattr(self, name, getattr(Margin if other is None else other, name))


class Constant(Margin):
    r"""The same margin for every pair: :math:`m_{ij} = v`.

    Args:
        value: at least 0, in units of score.
    """

    def __init__(self, value: float = 1.0) -> None:
        super().__init__()
        _require(0 <= value < math.inf, "Constant: value must be finite and at least 0", value=value)
        self.value = value

    def forward(self, lists: ScoredLists) -> Tensor:
        return torch.full_like(lists.labels, self.value)


class LabelGap(Margin):
    r"""A margin per pair that grows with the gap of the grades: :math:`m_{ij} = s \cdot \max(0,\; y_i - y_j)`.

    It is ``[B, N, N]``: with in-batch lists rows × columns² numbers.

    Args:
        scale: above 0, units of score per grade.

    References:
        Ha & Blanz (2021), Deep ranking with adaptive margin triplet loss, arXiv:2107.06187 (margins from ratings).
    """

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        _require(0 < scale < math.inf, "LabelGap: scale must be finite and above 0", scale=scale)
        self.scale = scale

    def forward(self, lists: ScoredLists) -> Tensor:
        return self.scale * (lists.labels.unsqueeze(2) - lists.labels.unsqueeze(1)).clamp(min=0)


class FromDistance(Margin):
    r"""A margin per negative, from its distance to the query: :math:`m_j = \min(k\, d_j^{\,p}, \text{cap})`.

    A far (easy) negative is asked to stay further away. The distance of a mined negative is that in its index, as of the last
    mining. Any other document, such as those of other queries, has the distance of the two embeddings as they are now: Euclidean,
    of embeddings of length 1 under cosine, the unit of mined negatives. The margin carries no gradient. A ranker that is no dual
    encoder needs mined negatives.

    Args:
        k: factor above 0; in units of score for a distance of 1.
        power: above 0: 1 for ``k·d``, 0.5 for ``k·√d``, 2 for ``k·d²``.
        cap: upper bound above 0, in units of score; None for no bound.

    Raises:
        InputError: for a batch without distances, or with a negative that has none.
    """

    wants_distances = True

    def __init__(self, k: float = 1.0, power: float = 1.0, cap: float | None = None) -> None:
        super().__init__()
        possible = 0 < k < math.inf and 0 < power < math.inf
        _require(possible, "FromDistance: k and power must be finite and above 0", k=k, power=power)
        _require(cap is None or cap > 0, "FromDistance: cap must be above 0, or none", cap=cap)
        self.k, self.power, self.cap = k, power, cap

    def forward(self, lists: ScoredLists) -> Tensor:
        distances, came = lists.distances, "none"
        if distances is not None and lists.queries is None and distances[lists.mask & (lists.labels == 0)].isnan().any():
            distances, came = None, "negatives without one"
        if distances is None:
            hint = "set negatives of the data to a folder of mined negatives, or take another margin"
            raise InputError(f"FromDistance needs a batch with distances, got {came}; {hint}", option="margin")
        return self.of(distances.detach())

    def of(self, distances: Tensor) -> Tensor:
        """The margins of negatives at these distances, of any shape."""
        margin = self.k * distances.clamp(min=0) ** self.power
        return margin if self.cap is None else margin.clamp(max=self.cap)


class _FromSimilarity(Margin):
    """What margins from cosines share: their options, and whose embeddings they read."""

    def __init__(self, scale: float = 1.0, encoder: str | None = None, gradient: bool = False) -> None:
        super().__init__()
        name = type(self).__name__
        _require(0 < scale < math.inf, f"{name}: scale must be finite and above 0", scale=scale)
        if gradient and encoder is not None:
            message = f"{name}: gradient must be false with a frozen encoder, got true; leave out one of the two"
            raise InputError(message, option="gradient")
        self.scale, self.encoder, self.gradient = scale, encoder, gradient

    def _seen(self, lists: ScoredLists) -> tuple[Tensor, Tensor]:
        """Representations of the rows ``[R, H]`` (of the documents, where they are not read) and the documents ``[R, C, H]``."""
        queries, docs = (lists.queries, lists.embeddings) if self.encoder is None else (lists.frozen or (None, None))
        queries = queries if self.wants_queries else docs
        if queries is None or docs is None:
            message = f"{type(self).__name__} needs the embeddings of queries and documents, got none; take a DualEncoder"
            raise InputError(message, option="margin")
        return (queries, docs) if self.gradient else (queries.detach(), docs.detach())


class FromDocuments(_FromSimilarity):
    r"""A margin per pair, from the similarity of its two documents.

    .. math::
        m_{ij} = s \cdot \frac{1 + \cos(d_i, d_j)}{2}

    A negative that is like the relevant document is asked to stay further behind: s where the two are equal, s/2 where they are
    orthogonal, 0 where they are opposite. So the hardest negatives weigh most, and false ones too. The paper takes this
    margin (s = 1) as the target of the gap under a squared, absolute or logistic error; the logistic one is
    :class:`ltr.losses.AdaptiveRankNetLoss`. The authors' code has the gradient of the margin too.

    It is ``[B, N, N]``: with in-batch lists rows × columns² numbers in the loss.

    Args:
        scale: s, above 0, in units of score: 1 for cosines, 1/τ for cosines over a temperature τ.
        encoder: a frozen dual encoder whose embeddings are compared, by hub id, folder or ``package:NAME``; it must have the
            ranker's tokenizer. None: those of the ranker as it stands.
        gradient: whether the margin has a gradient, into the ranker.

    Raises:
        InputError: for an option out of its bounds, or for a batch without embeddings.

    References:
        Gienapp, Deckers, Potthast & Scells (2025), Learning effective representations for retrieval using self-distillation with
        adaptive relevance margins.
        Li et al. (2020), Boosting few-shot learning with adaptive margin loss, arXiv:2005.13826 (margins between classes, from
        their similarity).
    """

    wants_embeddings = True

    def forward(self, lists: ScoredLists) -> Tensor:
        _, docs = self._seen(lists)
        return (self.scale * (1 + cosine(docs, docs)) / 2).expand(len(lists.mask), -1, -1)


class FromQuery(_FromSimilarity):
    r"""A margin per negative, from its similarity to the query.

    .. math::
        m_j = s \cdot \frac{1 - \cos(q, d_j)}{2}

    An easy negative is asked to stay further away, and one that is too hard, or false, to stay only a little behind: so negatives
    of middling hardness teach most. This is the idea of the paper; the formula is the simplest that has it, and may differ from
    the paper's. With embeddings of length 1 it is :class:`FromDistance` with k = s/4 and power 2, of the distances of now.

    Args:
        scale: s, above 0, in units of score: 1 for cosines, 1/τ for cosines over a temperature τ.
        encoder: a frozen dual encoder whose embeddings are compared, by hub id, folder or ``package:NAME``; it must have the
            ranker's tokenizer. None: those of the ranker as it stands.
        gradient: whether the margin has a gradient, into the ranker. A loss falls when its margin falls, so that gradient draws
            negatives to the query.

    Raises:
        InputError: for an option out of its bounds, or for a batch without embeddings of the queries.

    References:
        Chen, Wang & Tsai (2025), Dynamic margin-based contrastive learning for robust negative sampling in information retrieval.
    """

    wants_queries = True

    def forward(self, lists: ScoredLists) -> Tensor:
        queries, docs = self._seen(lists)
        own = len(docs) == len(queries)  # else all rows share their documents
        similarity = cosine(queries.unsqueeze(1), docs).squeeze(1) if own else cosine(queries, docs[0])
        return self.scale * (1 - similarity) / 2


class NormalSample(Margin):
    r"""Margins drawn anew for every batch, the larger ones for the easier negatives of a list.

    .. math::
        m_j = \mathrm{clamp}\bigl(z_{(r_j)},\; \text{low},\; \text{high}\bigr), \qquad z \sim \mathcal{N}(\mu, \sigma^2)

    The list's n less relevant documents get n draws :math:`z_{(1)} \le \dots \le z_{(n)}`, and :math:`r_j` is the rank of
    document j from the hardest to the easiest: by distance in the index, or by score where a negative of the batch has none. The
    margins of padding and of the most relevant documents are not used.

    The draws are a function of the seed, the batches counted so far and, unless all processes share their lists, the process's
    rank. The count is in the checkpoint, so a resumed run draws the same margins. They have no gradient.

    Args:
        mean: in units of score.
        std: at least 0, in units of score.
        low: lower bound, at least 0, in units of score.
        high: upper bound, at least ``low``, in units of score.
        seed: of the draws, at least 0.
    """

    batches: Tensor

    def __init__(self, mean: float = 0.3, std: float = 0.1, low: float = 1e-4, high: float = 0.5, seed: int = 0) -> None:
        super().__init__()
        bounds = "NormalSample: low and high must be finite, with 0 <= low <= high"
        _require(0 <= low <= high < math.inf, bounds, low=low, high=high)
        _require(math.isfinite(mean), "NormalSample: mean must be finite", mean=mean)
        _require(0 <= std < math.inf, "NormalSample: std must be finite and at least 0", std=std)
        _require(seed >= 0, "NormalSample: seed must be at least 0", seed=seed)
        self.mean, self.std, self.low, self.high, self.seed = mean, std, low, high, seed
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def forward(self, lists: ScoredLists) -> Tensor:
        labels, mask = lists.labels, lists.mask
        best_b = labels.masked_fill(~mask, -torch.inf).amax(dim=1, keepdim=True)
        negative = mask & (labels < best_b)
        ease = lists.distances
        if ease is None or ease[negative].isnan().any():
            ease = -lists.scores.detach()
        # Pad draws and distances with +inf beyond the row's n negatives, so padding sorts last in both.
        unused = torch.arange(labels.shape[1], device=labels.device) >= negative.sum(dim=1, keepdim=True)
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        process = torch.distributed.get_rank() if distributed and not lists.shared else 0
        generator = np.random.default_rng([self.seed, int(self.batches), process])
        self.batches += 1
        draws = torch.from_numpy(generator.normal(self.mean, self.std, labels.shape)).to(labels)
        draws = draws.masked_fill(unused, torch.inf).sort(dim=1).values
        rank = ease.masked_fill(~negative, torch.inf).argsort(dim=1).argsort(dim=1)
        return draws.gather(1, rank).clamp(self.low, self.high)


class Learnable(Margin):
    r"""A margin per pair, learnt with the ranker, from the distance of the two representations.

    .. math::
        m_{ij} = \mathrm{clamp}\bigl(k\, \lVert h_i - h_j \rVert,\; \text{floor},\; \text{cap}\bigr),
        \qquad k = k_0 \cdot 2^{\tanh \theta}

    The gradient flows into the representations and into k, and a loss falls when its margin falls. Left alone, k and the
    distances would shrink to 0 to please the loss, and nothing would be ranked. Hence two bounds: k stays within
    :math:`[k_0 / 2,\; 2 k_0]`, and a margin never falls below the floor, where its gradient is cut (as it is above the cap).

    It is ``[B, N, N]``, float32 or better, and its gradient takes as much memory: with in-batch lists rows × columns² numbers.

    Args:
        k: where the factor starts, above 0, in units of score per unit of distance.
        cap: upper bound of the margin, in units of score.
        floor: lower bound of the margin, above 0 and below ``cap``, in units of score.

    Raises:
        InputError: for a batch without embeddings.

    References:
        Nayyeri et al. (2019), Adaptive margin ranking loss for knowledge graph embeddings via a correntropy objective function,
        arXiv:1907.05336 (another margin that training adjusts; the form here is ours).
    """

    wants_embeddings = True

    def __init__(self, k: float = 0.1, cap: float = 1.0, floor: float = 0.1) -> None:
        super().__init__()
        _require(0 < k < math.inf, "Learnable: k must be finite and above 0", k=k)
        _require(0 < floor < cap, "Learnable: floor and cap must be 0 < floor < cap", floor=floor, cap=cap)
        self.k_start, self.cap, self.floor = k, cap, floor
        self.theta = nn.Parameter(torch.zeros(()))

    @property
    def k(self) -> Tensor:
        """The factor as it stands."""
        return self.k_start * torch.exp2(self.theta.tanh())

    def forward(self, lists: ScoredLists) -> Tensor:
        h = lists.embeddings
        if h is None:
            hint = "take a model that gives them"
            raise InputError(f"Learnable needs the documents' embeddings [B, N, H], got none; {hint}", option="margin")
        if len(h) == len(lists.mask):
            h = h.masked_fill(~lists.mask.unsqueeze(2), 0.0)
        # Else all rows share their documents, and their distances: H numbers a document for each row would fill the memory.
        margin = (self.k * -euclidean(h, h)).clamp(self.floor, self.cap)
        return margin.expand(len(lists.mask), -1, -1)


class Annealed(Margin):
    r"""Another policy's margin, grown linearly: :math:`m_{ij} \cdot \min(1,\; t / T)`, t the batches counted so far.

    Early on, when every pair is wrong, a small margin asks for the order alone. The count is in the checkpoint.

    Args:
        margin: the policy.
        steps: T, batches until the margin is whole, at least 1; the first one has 0.
    """

    batches: Tensor

    def __init__(self, margin: Margin, steps: int) -> None:
        super().__init__()
        _require(steps >= 1, "Annealed: steps must be at least 1", steps=steps)
        self.margin, self.steps = margin, steps
        self.want_as(margin)
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def forward(self, lists: ScoredLists) -> Tensor:
        share = (self.batches / self.steps).clamp(max=1.0)
        self.batches += 1
        return share * self.margin(lists)


def _require(holds: bool, rule: str, **came: float | None) -> None:
    if not holds:
        raise InputError(f"{rule}, got {', '.join(map(str, came.values()))}", option=next(iter(came)))
