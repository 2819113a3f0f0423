"""Policies for what each row of a training batch is ranked against."""

import math
from collections.abc import Callable
from dataclasses import asdict

import torch
from torch import Tensor, nn

from ltr.batch import RankingBatch, ScoredLists, on_device
from ltr.errors import InputError
from ltr.in_batch.best_windows import best_embeddings, windows_in_rows
from ltr.in_batch.gather import gather_lists, gather_scored
from ltr.in_batch.guide import mask_likely_relevant
from ltr.in_batch.longer_lists import all_against_all, queries_against_all
from ltr.margins import Margin
from ltr.models import DualEncoder, Ranker
from ltr.models.named import ranker_named
from ltr.processes import world_size

# Numbers of longer lists up to which the host lays them out for a GPU, while that encodes: in some
# 5 milliseconds on a core. More are laid out on the GPU, for which the host then waits.
HOST_CELLS = 1 << 20

NO_QUERIES = "groups of labelled texts have no queries; set in_batch to ltr.in_batch.AllTexts"


class InBatch(nn.Module):
    """What each row of a training batch is ranked against:
    ``forward(ranker, batch, margin) -> ScoredLists``.

    Attributes:
        ranks_other_lists: whether rows are ranked against other lists too. Groups of relevant
            documents need that (``needs_in_batch`` of a data module).
        joins_lists: whether the documents of all lists are one list, with the labels that they have
            for their own queries.
    """

    ranks_other_lists = False
    joins_lists = False

    def __init__(self) -> None:
        super().__init__()
        # Frozen encoders by name, each loaded once: the guide, and those of margins (a schedule of
        # losses may bring several). In a plain dict, so they are no submodules, and are neither
        # trained nor saved.
        self._encoders_beside: dict[str, DualEncoder] = {}

    def attach(self, ranker: Ranker) -> None:
        """Called once, before training; an InputError if the ranker does not fit."""

    def load_frozen(self, encoder: str, ranker: DualEncoder, option: str) -> None:
        """Load a second dual encoder that reads the ranker's tokens, a guide or that of a margin,
        and freeze it. Nothing happens if it is loaded already.

        Args:
            encoder: run folder, checkpoint, folder, ``package:NAME`` or hub id.
            ranker: whose tokens it reads.
            option: the one that named it, for errors.

        Raises:
            InputError: if it can't be loaded, has another tokenizer, or has no positions for the
                ranker's texts.
        """
        if encoder in self._encoders_beside:
            return
        # It reads the ranker's token ids. These begin with the ranker's prompts and are cut already,
        # so it adds no prompts of its own and cuts nothing.
        reads = ranker.reads
        changes = {
            "query_prompt": "",
            "doc_prompt": "",
            "template": None,
            "max_length": max(reads.queries.max_length, reads.docs.max_length),
            "encoder": {
                "dropout": "none",
                "max_tokens": ranker.query_tower.encoder.options.max_tokens,
            },
            "windows": None if reads.docs.windows is None else asdict(reads.docs.windows),
        }
        try:
            frozen = ranker_named(encoder, option, "embeddings", changes=changes)
        except InputError as error:
            raise InputError(error.message, option=option) from None
        assert isinstance(frozen, DualEncoder), "ranker_named gives one of the form asked for"
        for frozen_form, ranker_form in zip(frozen.reads, ranker.reads, strict=True):
            if frozen_form.tokenizer.get_vocab() != ranker_form.tokenizer.get_vocab():
                raise InputError(
                    f"an encoder beside the ranker reads its token ids and must have its tokenizer, but {encoder!r} has another",
                    option=option,
                )
        device = next(ranker.parameters()).device
        self._encoders_beside[encoder] = frozen.eval().requires_grad_(False).to(device)

    def forward(
        self, ranker: Ranker, batch: RankingBatch, margin: Margin | None = None
    ) -> ScoredLists:
        """The lists that the loss and the margin policy see, with what the margin policy wants."""
        raise NotImplementedError

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        # Of nn.Module, behind .to(device): the frozen encoders move with their policy.
        for encoder in self._encoders_beside.values():
            encoder._apply(fn)
        return super()._apply(fn, recurse)


class OwnLists(InBatch):
    """Each query is ranked against the documents of its own list. For all rankers.

    With several processes the scored lists of all are gathered with their gradient, so a step
    equals that of one process with the whole batch, whatever the loss.

    Example:
        >>> from ltr.models import FeatureRanker
        >>> batch = RankingBatch(
        ...     labels=torch.tensor([[1.0, 0.0], [0.0, 2.0]]),
        ...     mask=torch.ones(2, 2, dtype=torch.bool),
        ...     query_rows=torch.tensor([0, 1]),
        ...     doc_rows=torch.tensor([[0, 1], [2, 3]]),
        ...     features=torch.randn(2, 2, 3),
        ... )
        >>> OwnLists()(FeatureRanker(n_features=3), batch).labels
        tensor([[1., 0.],
                [0., 2.]])
    """

    def forward(
        self, ranker: Ranker, batch: RankingBatch, margin: Margin | None = None
    ) -> ScoredLists:
        if isinstance(ranker, DualEncoder):
            return self._lists_of_dual_encoder(ranker, batch, margin)
        embeddings = None
        if ranker.gives_embeddings:
            scores, embeddings = ranker.represent(batch)
        else:
            scores = ranker(batch)
        distances = batch.distances
        if margin is not None and margin.wants_distances and distances is not None:
            distances = _mined_or_zero(distances, batch)
        lists = ScoredLists(
            scores=scores,
            labels=batch.labels,
            mask=batch.mask,
            distances=distances,
            embeddings=embeddings,
        )
        return gather_scored(lists)

    def _lists_of_dual_encoder(
        self, ranker: DualEncoder, batch: RankingBatch, margin: Margin | None
    ) -> ScoredLists:
        scores, queries, docs = ranker.score_lists(batch)
        frozen = None
        distances = batch.distances
        if margin is not None:
            with torch.no_grad():
                if margin.encoder is not None:
                    encoder = self._encoders_beside[margin.encoder]
                    _, frozen_queries, frozen_docs = encoder.score_lists(batch)
                    frozen = (frozen_queries, frozen_docs)
                if margin.wants_distances:
                    # [B, 1, H] to [B, N, H] is [B, 1, N].
                    current = ranker.similarity.distance(queries.unsqueeze(1), docs).squeeze(1)
                    distances = _mined_or_current(batch.distances, current)
        lists = ScoredLists(
            scores=scores,
            labels=batch.labels,
            mask=batch.mask,
            distances=distances,
            embeddings=docs,
            queries=queries,
            frozen=frozen,
        )
        return gather_scored(lists)


class OneList(InBatch):
    """All lists of the batch are one: a document that is more relevant for its query should outscore
    any that is less relevant for its own. For all rankers.

    It is for labels that mean the same for every query, as people's ratings of pairs of texts do. A
    list of one document teaches then, too. With several processes the list is that of all.

    Example:
        >>> from ltr.models import FeatureRanker
        >>> batch = RankingBatch(
        ...     labels=torch.tensor([[1.0, 0.0], [0.0, 2.0]]),
        ...     mask=torch.ones(2, 2, dtype=torch.bool),
        ...     query_rows=torch.tensor([0, 1]),
        ...     doc_rows=torch.tensor([[0, 1], [2, 3]]),
        ...     features=torch.randn(2, 2, 3),
        ... )
        >>> OneList()(FeatureRanker(n_features=3), batch).labels
        tensor([[1., 0., 0., 2.]])
    """

    joins_lists = True

    def __init__(self) -> None:
        super().__init__()
        self.own_lists = OwnLists()

    def forward(
        self, ranker: Ranker, batch: RankingBatch, margin: Margin | None = None
    ) -> ScoredLists:
        lists = self.own_lists(ranker, batch, margin)
        docs = lists.embeddings
        return ScoredLists(
            scores=lists.scores.reshape(1, -1),
            labels=lists.labels.reshape(1, -1),
            mask=lists.mask.reshape(1, -1),
            embeddings=None if docs is None else docs.reshape(1, -1, docs.shape[-1]),
        )


def _mined_or_current(mined: Tensor | None, current: Tensor) -> Tensor:
    """Distances ``[R, C]``: the mined one where one is known, else that of the current embeddings.
    Labels do not matter: a mined document may have a soft label above 0.
    """
    if mined is None:
        return current
    return torch.where(mined.isnan(), current, mined)


def _mined_or_zero(mined: Tensor, batch: RankingBatch) -> Tensor:
    """Distances ``[B, N]``: 0 for a relevant document that was not mined, so that no gap is asked
    between relevant ones; NaN stays for any other.

    A relevant document has a label above 0. Where the labels are the scores of a teacher, it is the
    one without a distance in a list that has some: all others have one, as ``ltr.compatibility``
    checks.
    """
    has_distances_b1 = (batch.mask & ~mined.isnan()).any(dim=1, keepdim=True)
    not_asked = mined.isnan() & (has_distances_b1 | (batch.labels > 0))
    return mined.masked_fill(not_asked, 0.0)


class _LongerListsPolicy(InBatch):
    """What the policies of longer lists share. For dual encoders.

    With several processes the embeddings of all are gathered with their gradient
    (:mod:`ltr.in_batch.gather`), so a step equals that of one process with the batches of all,
    whatever the loss.
    """

    ranks_other_lists = True

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
            raise InputError(
                f"{type(self).__name__} ranks embeddings and needs a DualEncoder, got {type(ranker).__name__}; remove in_batch",
                option="in_batch",
            )
        if self.guide is not None:
            self.load_frozen(self.guide, ranker, "guide")

    def forward(
        self, ranker: Ranker, batch: RankingBatch, margin: Margin | None = None
    ) -> ScoredLists:
        assert isinstance(ranker, DualEncoder), "attach has checked it"
        wants_distances = margin is not None and margin.wants_distances
        if not wants_distances:
            batch = batch._replace(distances=None)
        encoder_name = None if margin is None else margin.encoder
        lists = self._embed_longer_lists(ranker, batch)
        lists = lists._replace(scores=_compared(ranker.score, lists))
        with torch.no_grad():
            # By name: one that is both guide and encoder of the margin embeds once.
            frozen_lists: dict[str, ScoredLists] = {}
            for name, encoder in self._encoders_beside.items():
                if name in (self.guide, encoder_name):
                    frozen_lists[name] = self._embed_longer_lists(encoder, batch)
            if self.guide is not None:
                by_guide = frozen_lists[self.guide]
                # The similarity, without the guide's temperature: guide_margin is in units of it.
                guide = self._encoders_beside[self.guide]
                similarities = _compared(guide.similarity.score, by_guide)
                mask = mask_likely_relevant(
                    lists.mask, lists.labels, similarities, self.guide_margin
                )
                lists = lists._replace(mask=mask)
            if encoder_name is not None:
                queries, docs = _embeddings(frozen_lists[encoder_name])
                lists = lists._replace(frozen=(queries, docs))
            if wants_distances:
                current = _compared(ranker.similarity.distance, lists)
                distances = _mined_or_current(lists.distances, current)
                lists = lists._replace(distances=distances)
        return lists

    def _embed_longer_lists(self, encoder: DualEncoder, batch: RankingBatch) -> ScoredLists:
        """Embed the batch, gather those of all processes, and make longer lists of them, not scored
        yet. Of a document in windows each row has the best one.
        """
        if encoder.reads.docs.has_many_embeddings:
            queries, docs = encoder.embed_windows(batch)
            assert batch.docs is not None and batch.docs.windows is not None, "it holds windows"
            docs = batch.in_lists(windows_in_rows(docs, batch.docs.windows))
        else:
            queries, docs = encoder.embed(batch)
        if queries is None:
            check_one_prompt(encoder)
        assert batch.docs is not None, "embed has read them"
        # Of the lists of all processes, which have about as many each.
        n_lists, n_docs = batch.mask.shape
        n_cells = self.n_cells(n_lists * world_size(), n_docs)
        lists = _lists_of(batch, n_cells)
        longer = self.longer_lists(*gather_lists(lists, queries, docs))
        longer = _on_device_of(docs, longer)
        if encoder.reads.docs.has_many_embeddings:
            rows, columns = _embeddings(longer)
            longer = longer._replace(embeddings=best_embeddings(encoder, rows, columns[0]))
        return longer

    def longer_lists(
        self, lists: RankingBatch, queries: Tensor | None, docs: Tensor
    ) -> ScoredLists:
        """The longer lists of lists with embeddings, not scored yet."""
        raise NotImplementedError

    def n_cells(self, n_lists: int, n_docs: int) -> int:
        """How many numbers the longer lists of lists ``[B, N]`` have: B · B·N."""
        return n_lists * n_lists * n_docs


def _lists_of(batch: RankingBatch, n_cells: int) -> RankingBatch:
    """The lists of a batch without its texts, which are known by hashes: on the host, where longer
    lists of so many numbers can be laid out there; else on the device.
    """
    fits = batch.mask.device.type == "cpu" or n_cells <= HOST_CELLS
    lists = batch.lists_on_host()
    if lists is not None and fits:
        return lists
    assert batch.docs is not None, "the data lays out what the ranker reads"
    return RankingBatch(
        labels=batch.labels,
        mask=batch.mask,
        query_rows=batch.query_rows if batch.queries is None else batch.queries.hashes(),
        doc_rows=batch.doc_rows,
        distances=batch.distances,
        judged_rows=batch.judged_rows,
        judged_grades=batch.judged_grades,
        judged_hashes=batch.judged_hashes,
        doc_hashes=batch.in_lists(batch.docs.hashes()),
        sources=batch.sources,
    )


def _on_device_of(docs: Tensor, longer: ScoredLists) -> ScoredLists:
    """Longer lists beside the embeddings, which may lie on another device."""
    if longer.mask.device == docs.device:
        return longer
    arrays = [longer.labels.numpy(), longer.mask.numpy()]
    if longer.distances is not None:
        arrays.append(longer.distances.numpy())
    labels, mask, *distances = on_device(arrays, docs.device)
    return longer._replace(
        scores=docs.new_empty(0),
        labels=labels,
        mask=mask,
        distances=distances[0] if distances else None,
    )


def _embeddings(lists: ScoredLists) -> tuple[Tensor, Tensor]:
    """Of rows ``[R, H]`` and columns: ``[1, C, H]`` that all rows share, or ``[R, C, H]``."""
    assert lists.queries is not None and lists.embeddings is not None, "longer lists have both"
    return lists.queries, lists.embeddings


def _compared(compare: Callable[[Tensor, Tensor], Tensor], lists: ScoredLists) -> Tensor:
    """``[R, C]``: the rows with the columns."""
    rows, columns = _embeddings(lists)
    if len(columns) == 1:
        return compare(rows, columns[0])
    return compare(rows.unsqueeze(1), columns).squeeze(1)


class OtherQueries(_LongerListsPolicy):
    """Each query is ranked against its own documents and those of all other queries of the batch.

    Documents that are judged for the query, and repeated ones, are left out of the others', see
    :func:`ltr.in_batch.longer_lists.queries_against_all`.

    Args:
        guide: a second dual encoder, by run folder, checkpoint, folder, ``package:NAME`` or hub
            id. In-batch negatives that it scores above the relevant document are likely false and
            are left out. It reads the ranker's tokens, so it must have the same tokenizer.
        guide_margin: a negative is left out if the guide scores it this much above the relevant
            document, in units of the guide's similarity (mostly cosine), whatever its temperature.

    References:
        Karpukhin et al. (2020), Dense passage retrieval for open-domain question answering
        (in-batch negatives). Solatorio (2024), GISTEmbed: guided in-sample selection of training
        negatives for text embedding fine-tuning.

    Example:
        >>> lists = RankingBatch(
        ...     labels=torch.ones(2, 1),
        ...     mask=torch.ones(2, 1, dtype=torch.bool),
        ...     query_rows=torch.tensor([0, 1]),
        ...     doc_rows=torch.tensor([[0], [1]]),
        ... )
        >>> queries, docs = torch.randn(2, 8), torch.randn(2, 1, 8)  # embeddings
        >>> OtherQueries().longer_lists(lists, queries, docs).labels  # the other document is a negative
        tensor([[1., 0.],
                [0., 1.]])
    """

    def longer_lists(
        self, lists: RankingBatch, queries: Tensor | None, docs: Tensor
    ) -> ScoredLists:
        if queries is None:
            raise InputError(NO_QUERIES, option="in_batch")
        return queries_against_all(lists, queries, docs)


def check_one_prompt(encoder: DualEncoder) -> None:
    """Raise an InputError for a ranker that reads queries and documents in two ways, where texts have
    no queries.
    """
    forms = encoder.reads
    if forms.queries.rendering.key == forms.docs.rendering.key:
        return
    raise InputError(
        f"texts without queries are read with one prompt, but the ranker has two, {forms.queries.prompt!r} and {forms.docs.prompt!r}; set query_prompt and doc_prompt to the same"
    )


class AllTexts(_LongerListsPolicy):
    """Every text of the batch, query or document, is an anchor that is ranked against all texts.
    Texts of one list are a group.

    See :func:`ltr.in_batch.longer_lists.all_against_all`.

    Args:
        guide: a second dual encoder, by run folder, checkpoint, folder, ``package:NAME`` or hub
            id. In-batch negatives that it scores above the relevant document are likely false and
            are left out. It reads the ranker's tokens, so it must have the same tokenizer.
        guide_margin: a negative is left out if the guide scores it this much above the relevant
            document, in units of the guide's similarity (mostly cosine), whatever its temperature.

    References:
        Hermans, Beyer & Leibe (2017), In defense of the triplet loss for person re-identification
        (P×K batches). Solatorio (2024), GISTEmbed: guided in-sample selection of training negatives
        for text embedding fine-tuning.

    Example:
        >>> lists = RankingBatch(
        ...     labels=torch.ones(2, 1),
        ...     mask=torch.ones(2, 1, dtype=torch.bool),
        ...     query_rows=torch.tensor([0, 1]),
        ...     doc_rows=torch.tensor([[0], [1]]),
        ... )
        >>> queries, docs = torch.randn(2, 8), torch.randn(2, 1, 8)  # embeddings
        >>> AllTexts().longer_lists(lists, queries, docs).labels  # queries, then documents
        tensor([[1., 0., 1., 0.],
                [0., 1., 0., 1.],
                [1., 0., 1., 0.],
                [0., 1., 0., 1.]])
    """

    def attach(self, ranker: Ranker) -> None:
        """See :meth:`InBatch.attach`; also loads the guide."""
        if isinstance(ranker, DualEncoder):
            ranker.reads.docs.check_one_embedding(
                "AllTexts (in_batch), where documents are anchors too,"
            )
        super().attach(ranker)

    def longer_lists(
        self, lists: RankingBatch, queries: Tensor | None, docs: Tensor
    ) -> ScoredLists:
        return all_against_all(lists, queries, docs)

    def n_cells(self, n_lists: int, n_docs: int) -> int:
        """All texts against all: (B · (N + 1))²."""
        return (n_lists * (n_docs + 1)) ** 2
