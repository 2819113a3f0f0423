"""Policies for what each row of a training batch is ranked against."""

import math
from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ltr.batch import RankingBatch, ScoredLists
from ltr.errors import InputError
from ltr.in_batch.embedded import Embedded
from ltr.in_batch.gather import gathered
from ltr.in_batch.guide import mask_likely_relevant
from ltr.in_batch.longer_lists import LongerLists, all_against_all, queries_against_all
from ltr.margins import Margin
from ltr.models import DualEncoder, Ranker
from ltr.models.named import ranker_named


class InBatch(nn.Module):
    """What each row of a training batch is ranked against:
    ``forward(ranker, batch, margin) -> ScoredLists``.

    Attributes:
        ranks_groups: whether rows are ranked against other lists. Groups of relevant documents need
            that.
    """

    ranks_groups = False

    def __init__(self) -> None:
        super().__init__()
        # Frozen encoders by name: the guide, and those of the margins that a schedule brings, each
        # loaded once. In a plain dict, and so no submodules: they are neither trained nor saved.
        self._frozen: dict[str, DualEncoder] = {}

    def attach(self, ranker: Ranker) -> None:
        """Called once, before training; an InputError if the ranker does not fit."""

    def load(self, encoder: str, ranker: DualEncoder, option: str) -> None:
        """Load a frozen dual encoder that reads the ranker's tokens, a guide or that of a margin,
        unless it is there.

        Args:
            encoder: run folder, checkpoint, folder, ``package:NAME`` or hub id.
            ranker: whose tokens it reads.
            option: that named it, for errors.

        Raises:
            InputError: if it can't be loaded, has another tokenizer, or has no positions for the
                ranker's texts.
        """
        if encoder in self._frozen:
            return
        # It reads what is laid out for the ranker: prompts and cuts are those of the ranker.
        changes = {
            "query_prompt": "",
            "doc_prompt": "",
            "max_length": max(form.max_length for form in ranker.reads),
            "encoder": {
                "dropout": "none",
                "max_tokens": ranker.query_tower.encoder.options.max_tokens,
            },
        }
        try:
            frozen = ranker_named(encoder, option, "embeddings", changes=changes)
        except InputError as error:
            raise InputError(error.message, option=option) from None
        assert isinstance(frozen, DualEncoder), "it was asked for by what it needs"
        for own, other in zip(frozen.reads.tokenizers, ranker.reads.tokenizers, strict=True):
            if own.get_vocab() != other.get_vocab():
                rule = f"must have its tokenizer, but {encoder!r} has another"
                raise InputError(
                    f"an encoder beside the ranker reads its token ids and {rule}", option=option
                )
        self._frozen[encoder] = (
            frozen.eval().requires_grad_(False).to(next(ranker.parameters()).device)
        )

    @abstractmethod
    def forward(
        self, ranker: Ranker, batch: RankingBatch, margin: Margin | None = None
    ) -> ScoredLists:
        """The lists that the loss and the margin policy see, with what this policy wants."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        for encoder in self._frozen.values():  # they move to the device with their policy
            encoder._apply(fn)
        return super()._apply(fn, recurse)


class OwnLists(InBatch):
    """Each query is ranked against the documents of its own list. For all rankers."""

    def forward(
        self, ranker: Ranker, batch: RankingBatch, margin: Margin | None = None
    ) -> ScoredLists:
        own = ScoredLists(batch.labels, batch.labels, batch.mask, batch.distances)
        if not isinstance(ranker, DualEncoder):
            scores, embeddings = (
                ranker.represent(batch) if ranker.gives_embeddings else (ranker(batch), None)
            )
            return own._replace(scores=scores, embeddings=embeddings)
        scores, queries, docs = ranker.score_lists(batch)
        own = own._replace(scores=scores, embeddings=docs, queries=queries)
        if margin is None:
            return own
        with torch.no_grad():
            if margin.encoder is not None:
                own = own._replace(frozen=self._frozen[margin.encoder].score_lists(batch)[1:])
            if margin.wants_distances:
                now = ranker.distance(queries.unsqueeze(1), docs).squeeze(1)
                own = own._replace(distances=_mined_or_current(batch.distances, now, batch.labels))
        return own


def _mined_or_current(mined: Tensor | None, now: Tensor, labels: Tensor) -> Tensor:
    """Distances ``[R, C]``: mined ones where a document has label 0 and one is known, else those of
    now.
    """
    return now if mined is None else torch.where(mined.isnan() | (labels != 0), now, mined)


class _Longer(InBatch):
    """What the policies of longer lists share. For dual encoders.

    With several processes the embeddings of all are gathered with their gradient
    (:mod:`ltr.in_batch.gather`), so a step equals that of one process with the batches of all,
    whatever the loss.
    """

    ranks_groups = True

    def __init__(self, guide: str | None = None, guide_margin: float = 0.0) -> None:
        super().__init__()
        if not math.isfinite(guide_margin):
            raise InputError(
                f"guide_margin must be finite, got {guide_margin}", option="guide_margin"
            )
        self.guide = guide
        self.guide_margin = guide_margin

    def attach(self, ranker: Ranker) -> None:
        """See :meth:`InBatch.attach`; also loads the guide."""
        if not isinstance(ranker, DualEncoder):
            name = type(self).__name__
            got = type(ranker).__name__
            message = f"{name} ranks embeddings and needs a DualEncoder, got {got}; remove in_batch"
            raise InputError(message, option="in_batch")
        if self.guide is not None:
            self.load(self.guide, ranker, "guide")

    def forward(
        self, ranker: Ranker, batch: RankingBatch, margin: Margin | None = None
    ) -> ScoredLists:
        assert isinstance(ranker, DualEncoder), "attach has checked it"
        wants_distances = margin is not None and margin.wants_distances
        encoder = None if margin is None else margin.encoder
        lists = self._embedded(ranker, batch, wants_distances)
        scores = ranker.score(lists.rows, lists.columns)
        mask = lists.mask
        distances = None
        frozen = None
        with torch.no_grad():
            seen = {
                name: self._embedded(one, batch)
                for name, one in self._frozen.items()
                if name in (self.guide, encoder)
            }
            if self.guide is not None:
                rows, columns, *_ = seen[self.guide]
                guide_scores = self._frozen[self.guide].score(rows, columns)
                mask = mask_likely_relevant(mask, lists.labels, guide_scores, self.guide_margin)
            if encoder is not None:
                rows, columns, *_ = seen[encoder]
                frozen = rows, columns.unsqueeze(0)
            if wants_distances:
                distances = _mined_or_current(
                    lists.distances, ranker.distance(lists.rows, lists.columns), lists.labels
                )
        return ScoredLists(
            scores,
            lists.labels,
            mask,
            distances,
            lists.columns.unsqueeze(0),
            lists.rows,
            frozen,
            shared=True,
        )

    def _embedded(
        self, encoder: DualEncoder, batch: RankingBatch, with_distances: bool = False
    ) -> LongerLists:
        queries, docs = encoder.embed(batch)
        prompts = [form.prompt for form in encoder.reads]
        if queries is None and prompts[0] != prompts[1]:
            came = f"the ranker has two, {prompts[0]!r} and {prompts[1]!r}; set query_prompt and doc_prompt to the same"
            raise InputError(f"texts without queries are read with one prompt, but {came}")
        assert batch.docs is not None, "embed has read them"
        keys = torch.zeros_like(batch.doc_rows).masked_scatter(batch.mask, batch.docs.keys())
        own = (
            batch.labels,
            batch.mask,
            batch.query_rows,
            batch.doc_rows,
            batch.judged_rows,
            keys,
            batch.judged_keys,
        )
        distances = None
        if with_distances:  # on all ranks, also where one of them has none
            distances = (
                torch.full_like(batch.labels, torch.nan)
                if batch.distances is None
                else batch.distances
            )
        return self.longer_lists(gathered(Embedded(queries, docs, *own, distances)))

    @abstractmethod
    def longer_lists(self, lists: Embedded) -> LongerLists:
        """The longer lists of embedded ones."""


class OtherQueries(_Longer):
    """Each query is ranked against its own documents and those of all other queries of the batch.

    Documents that are judged for the query, and repeated ones, are left out of the others', see
    :func:`ltr.in_batch.longer_lists.queries_against_all`.

    Args:
        guide: a second dual encoder, by run folder, checkpoint, folder, ``package:NAME`` or hub
            id. In-batch negatives that it scores above the relevant document are likely false and
            are left out. It reads the ranker's tokens, so it must have the same tokenizer.
        guide_margin: a negative is left out if the guide scores it this much above the relevant
            document, in cosine.

    References:
        Karpukhin et al. (2020), Dense passage retrieval for open-domain question answering
        (in-batch negatives). Solatorio (2024), GISTEmbed: guided in-sample selection of training
        negatives for text embedding fine-tuning.
    """

    def longer_lists(self, lists: Embedded) -> LongerLists:
        if lists.queries is None:
            raise InputError(
                "groups of labelled texts have no queries; set in_batch to ltr.in_batch.AllTexts",
                option="in_batch",
            )
        return queries_against_all(lists)


class AllTexts(_Longer):
    """Every text of the batch, query or document, is an anchor that is ranked against all texts.
    Texts of one list are a group.

    See :func:`ltr.in_batch.longer_lists.all_against_all`.

    Args:
        guide: a second dual encoder, by run folder, checkpoint, folder, ``package:NAME`` or hub
            id. In-batch negatives that it scores above the relevant document are likely false and
            are left out. It reads the ranker's tokens, so it must have the same tokenizer.
        guide_margin: a negative is left out if the guide scores it this much above the relevant
            document, in cosine.

    References:
        Hermans, Beyer & Leibe (2017), In defense of the triplet loss for person re-identification
        (P×K batches). Solatorio (2024), GISTEmbed: guided in-sample selection of training negatives
        for text embedding fine-tuning.
    """

    def longer_lists(self, lists: Embedded) -> LongerLists:
        return all_against_all(lists)
