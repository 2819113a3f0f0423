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
from ltr.in_batch.guide import load_guide, mask_likely_relevant
from ltr.in_batch.longer_lists import LongerLists, all_against_all, queries_against_all
from ltr.models import DualEncoder, Ranker


class InBatch(nn.Module):
    """What each row of a training batch is ranked against: ``forward(ranker, batch) -> ScoredLists``.

    Attributes:
        ranks_groups: whether rows are ranked against other lists. Groups of relevant documents need that.
        keeps_distances: whether every column has the distance of a mined negative, for margins that read distances.
    """

    ranks_groups = False
    keeps_distances = True

    def attach(self, ranker: Ranker) -> None:
        """Called once, before training: check that the ranker fits.

        Raises:
            InputError: if it does not.
        """

    @abstractmethod
    def forward(self, ranker: Ranker, batch: RankingBatch) -> ScoredLists:
        """The lists that the loss sees."""


class OwnLists(InBatch):
    """Each query is ranked against the documents of its own list. For all rankers."""

    def forward(self, ranker: Ranker, batch: RankingBatch) -> ScoredLists:
        scores, embeddings = ranker.represent(batch) if ranker.gives_embeddings else (ranker(batch), None)
        return ScoredLists(scores, batch.labels, batch.mask, batch.distances, embeddings)


class _Longer(InBatch):
    """What the policies of longer lists share. For dual encoders.

    With several processes the embeddings of all are gathered with their gradient (:mod:`ltr.in_batch.gather`), so a step equals
    that of one process with the batches of all, whatever the loss.
    """

    ranks_groups = True
    keeps_distances = False

    def __init__(self, guide: str | None = None, guide_margin: float = 0.0) -> None:
        super().__init__()
        if not math.isfinite(guide_margin):
            raise InputError(f"guide_margin must be finite, got {guide_margin}", option="guide_margin")
        self.guide, self.guide_margin = guide, guide_margin
        # In a tuple, and so no submodule: a guide is neither trained nor saved.
        self._guide: tuple[DualEncoder, ...] = ()

    def attach(self, ranker: Ranker) -> None:
        """See :meth:`InBatch.attach`; also loads the guide."""
        if not isinstance(ranker, DualEncoder):
            name, got = type(self).__name__, type(ranker).__name__
            message = f"{name} ranks embeddings and needs a DualEncoder, got {got}; remove in_batch"
            raise InputError(message, option="in_batch")
        if self.guide is not None and not self._guide:
            self._guide = (load_guide(self.guide, ranker),)

    def forward(self, ranker: Ranker, batch: RankingBatch) -> ScoredLists:
        assert isinstance(ranker, DualEncoder), "attach has checked it"
        lists = self._embedded(ranker, batch)
        scores, mask = ranker.score(lists.rows, lists.columns), lists.mask
        for guide in self._guide:
            with torch.no_grad():
                seen = self._embedded(guide, batch)
                guide_scores = guide.score(seen.rows, seen.columns)
            mask = mask_likely_relevant(mask, lists.labels, guide_scores, self.guide_margin)
        return ScoredLists(scores, lists.labels, mask, None, lists.columns.unsqueeze(0), shared=True)

    def _embedded(self, encoder: DualEncoder, batch: RankingBatch) -> LongerLists:
        queries, docs = encoder.embed(batch)
        prompts = [form.prompt for form in encoder.reads]
        if queries is None and prompts[0] != prompts[1]:
            raise InputError(
                f"texts without queries are read with one prompt, but the ranker has two, {prompts[0]!r} and {prompts[1]!r}; set "
                "query_prompt and doc_prompt to the same"
            )
        assert batch.docs is not None, "embed has read them"
        keys = torch.zeros_like(batch.doc_rows).masked_scatter(batch.mask, batch.docs.keys())
        own = (batch.labels, batch.mask, batch.query_rows, batch.doc_rows, batch.judged_rows, keys, batch.judged_keys)
        return self.longer_lists(gathered(Embedded(queries, docs, *own)))

    @abstractmethod
    def longer_lists(self, lists: Embedded) -> LongerLists:
        """The longer lists of embedded ones."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        for guide in self._guide:  # it moves to the device with its policy
            guide._apply(fn)
        return super()._apply(fn, recurse)


class OtherQueries(_Longer):
    """Each query is ranked against its own documents and those of all other queries of the batch.

    Documents that are judged for the query, and repeated ones, are left out of the others', see
    :func:`ltr.in_batch.longer_lists.queries_against_all`.

    Args:
        guide: a second dual encoder, by hub id, folder or ``package:NAME``. In-batch negatives that it scores above the relevant
            document are likely false and are left out. It reads the ranker's tokens, so it must have the same tokenizer.
        guide_margin: a negative is left out if the guide scores it this much above the relevant document, in cosine.

    References:
        Karpukhin et al. (2020), Dense passage retrieval for open-domain question answering (in-batch negatives).
        Solatorio (2024), GISTEmbed: guided in-sample selection of training negatives for text embedding fine-tuning.
    """

    def longer_lists(self, lists: Embedded) -> LongerLists:
        if lists.queries is None:
            raise InputError("groups of labelled texts have no queries; set in_batch to ltr.in_batch.AllTexts", option="in_batch")
        return queries_against_all(lists)


class AllTexts(_Longer):
    """Every text of the batch, query or document, is an anchor that is ranked against all texts. Texts of one list are a group.

    See :func:`ltr.in_batch.longer_lists.all_against_all`.

    Args:
        guide: a second dual encoder, by hub id, folder or ``package:NAME``. In-batch negatives that it scores above the relevant
            document are likely false and are left out. It reads the ranker's tokens, so it must have the same tokenizer.
        guide_margin: a negative is left out if the guide scores it this much above the relevant document, in cosine.

    References:
        Hermans, Beyer & Leibe (2017), In defense of the triplet loss for person re-identification (P×K batches).
        Solatorio (2024), GISTEmbed: guided in-sample selection of training negatives for text embedding fine-tuning.
    """

    def longer_lists(self, lists: Embedded) -> LongerLists:
        return all_against_all(lists)
