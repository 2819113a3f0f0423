"""Training of the dual encoder."""

from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from ltr.batch import RankingBatch
from ltr.datamodules.pools import PoolDataModule
from ltr.errors import InputError
from ltr.gather import gathered
from ltr.in_batch import Embedded, LongerLists, all_against_all, mask_likely_relevant, queries_against_all
from ltr.models.backbone import Dropouts
from ltr.models.dual_encoder import DualEncoder
from ltr.modules.ranker import RankerModule, Scored
from ltr.search.corpus import FoundLists, SearchedCorpus, search_corpus

FORMS = {"queries": queries_against_all, "all": all_against_all}


class DualEncoderModule(RankerModule):
    """Trains a :class:`ltr.models.DualEncoder`.

    A step under several ranks is the step of one process with the batches of all: embeddings are gathered with their gradient
    (:mod:`ltr.gather`), whatever the loss.

    Args:
        backbone: hub id, folder, or ``package:NAME``: a sentence-transformers model, or a plain encoder.
        loss: a loss of :mod:`ltr.losses`.
        in_batch: what a query is ranked against. ``queries``: its documents and those of all other queries of the batch, judged
            and repeated ones left out; ``all``: queries and documents alike are ranked against all texts of the batch, those
            of one list together (triplets of any two texts); None: the documents of its list alone.
        guide: a second model whose scores tell likely false negatives, which are left out. It reads the model's own tokens,
            prompts included, so it must share the tokenizer and have positions for as many. None: no guide.
        guide_margin: how far, in the guide's cosine, a document must come above the relevant one to be left out.
        doc_backbone, pooling, projection, normalise, similarity, temperature, learn_temperature, query_prompt, doc_prompt,
            max_length, encoder_dropout, max_tokens, keep_tokens, compile: see :class:`ltr.models.DualEncoder`.
        index: a faiss factory string, by which a corpus is searched in ``validate`` and ``test``; ``Flat`` is exact.
        margin, lr, weight_decay, warmup, metrics, empty, max_grade: see :class:`ltr.modules.RankerModule`.

    Raises:
        InputError: if a model can't be loaded, a guide has another tokenizer, or options contradict each other.

    References:
        Karpukhin et al. (2020), Dense passage retrieval for open-domain question answering (in-batch negatives).
        Hermans, Beyer & Leibe (2017), In defense of the triplet loss for person re-identification (P×K batches).
        Solatorio (2024), GISTEmbed: guided in-sample selection of training negatives for text embedding fine-tuning.
    """

    def __init__(
        self,
        backbone: str,
        loss: nn.Module,
        in_batch: Literal["queries", "all"] | None = "queries",
        guide: str | None = None,
        guide_margin: float = 0.0,
        doc_backbone: str | None = None,
        pooling: Literal["mean", "cls", "max"] | None = None,
        projection: int | None = None,
        normalise: bool | None = None,
        similarity: Literal["dot", "cosine", "euclidean", "squared_euclidean"] = "cosine",
        temperature: float = 1.0,
        learn_temperature: bool = False,
        query_prompt: str | None = None,
        doc_prompt: str | None = None,
        max_length: int | None = None,
        encoder_dropout: Dropouts = "hidden",
        max_tokens: int | None = None,
        keep_tokens: int | None = None,
        compile: bool = False,
        index: str = "Flat",
        margin: nn.Module | None = None,
        lr: float = 2e-5,
        weight_decay: float = 0.01,
        warmup: float = 0.1,
        metrics: list[str] | None = None,
        empty: Literal["skip", "zero", "one"] = "skip",
        max_grade: float = 4.0,
    ) -> None:
        if in_batch not in (None, *FORMS):
            raise InputError(f"in_batch must be queries, all or null, got {in_batch!r} (option model.init_args.in_batch)")
        if guide is not None and in_batch is None:
            raise InputError("a guide looks at other queries' documents: set model.init_args.in_batch, or remove the guide")
        model = DualEncoder(
            backbone,
            doc_backbone,
            pooling,
            projection,
            normalise,
            similarity,
            temperature,
            learn_temperature,
            query_prompt,
            doc_prompt,
            max_length,
            encoder_dropout,
            max_tokens,
            keep_tokens,
            compile,
        )
        super().__init__(model, loss, margin, lr, weight_decay, warmup, metrics, empty, max_grade)
        self.in_batch, self.guide_margin, self.index = in_batch, guide_margin, index
        self.check_margin(loss, margin)
        self.text_format = model.text_format
        # In a tuple, and so no part of the module: neither trained, nor in checkpoints.
        self._guide = () if guide is None else (_guide(guide, model, max_tokens),)
        self._found: FoundLists | None = None
        self.save_settings()

    def check_margin(self, loss: nn.Module, margin: nn.Module | None) -> None:
        """See :class:`ltr.modules.RankerModule`.

        Raises:
            InputError: also for a margin that reads distances of mined negatives, which other queries' documents have not.
        """
        super().check_margin(loss, margin)
        if getattr(self, "in_batch", None) is not None and getattr(margin, "wants_distances", False):
            raise InputError(
                f"{type(margin).__name__} needs the distances of mined negatives, and other queries' documents have none; set "
                "model.init_args.in_batch to null, or take another margin"
            )

    def setup(self, stage: str) -> None:
        super().setup(stage)
        data = getattr(self.trainer, "datamodule", None)
        if stage == "fit" and self.in_batch is None and getattr(data, "needs_in_batch", False):
            raise InputError(
                f"the groups of {type(data).__name__} hold relevant documents alone, so they must be ranked against each other; "
                "set model.init_args.in_batch to queries or all"
            )
        if getattr(data, "searches_corpus", False):
            self._check_search(data)

    def _check_search(self, data: PoolDataModule) -> None:
        """Before an epoch of training, not after it."""
        self._corpus(data).check(self.model.dim, {metric.measure: metric.k for metric in self.metrics})

    def _corpus(self, data: PoolDataModule) -> SearchedCorpus:
        alone = data.collection.queries.key == data.collection.corpus.key
        return SearchedCorpus(data.collator.queries, data.collator.docs, data.text_format, data.depth, self.index, alone)

    def on_fit_start(self) -> None:
        for guide in self._guide:  # no part of the module, so nobody else moves it
            guide.to(self.device)

    # Training

    def scored(self, batch: RankingBatch) -> Scored:
        """Every query's own list, or longer lists of all that the batches of all ranks hold."""
        if self.in_batch is None:
            scores, docs = self.model.represent(batch)
            return Scored(scores, batch.labels, batch.mask, batch.distances, docs, docs[batch.mask])
        queries, docs = self.model.embed(batch)
        forms = self.text_format
        if queries is None and forms.queries.prompt != forms.docs.prompt:
            raise InputError(
                "texts without queries are read with one prompt, and the model has two: "
                f"{forms.queries.prompt!r} and {forms.docs.prompt!r}; set model.init_args.query_prompt and doc_prompt alike"
            )
        if queries is None and self.in_batch != "all":
            raise InputError("groups of labelled texts have no queries; set model.init_args.in_batch to all")
        lists = self._longer_lists(batch, queries, docs)
        mask = lists.mask
        for guide in self._guide:
            with torch.no_grad():
                seen = self._longer_lists(batch, *guide.embed(batch))
                mask = mask_likely_relevant(mask, lists.labels, guide.score(seen.rows, seen.columns), self.guide_margin)
        scores = self.model.score(lists.rows, lists.columns)
        columns = lists.columns.unsqueeze(0) if self.wants_embeddings else None
        return Scored(scores, lists.labels, mask, None, columns, docs[batch.mask], gathered=True)

    def _longer_lists(self, batch: RankingBatch, queries: Tensor | None, docs: Tensor) -> LongerLists:
        keys = torch.zeros_like(batch.doc_rows).masked_scatter(batch.mask, batch.docs.keys())
        own = (batch.labels, batch.mask, batch.query_rows, batch.doc_rows, batch.judged_rows, keys)
        return FORMS[self.in_batch](gathered(Embedded(queries, docs, *own)))

    # Measuring

    def on_validation_start(self) -> None:
        self._find("dev")

    def on_test_start(self) -> None:
        self._find("test")

    def on_predict_start(self) -> None:
        self._find("test")

    def _find(self, split: str) -> None:
        """Search the corpus for the queries of this rank, where the data asks for it."""
        data = getattr(self.trainer, "datamodule", None)
        self._found = None
        if getattr(data, "searches_corpus", False) and not self.trainer.sanity_checking:
            self._found = search_corpus(
                self.model,
                self._corpus(data),
                data.query_rows_of_rank(split),
                Path(self.trainer.default_root_dir),
                trial=bool(self.trainer.fast_dev_run),
                precision=self.trainer.precision_plugin.forward_context(),
            )

    def ranked(self, batch: RankingBatch) -> tuple[Tensor, RankingBatch]:
        """The lists of the batch with their scores, or those that the search of the corpus has found."""
        return super().ranked(batch) if self._found is None else self._found.of(batch)


def _guide(backbone: str, model: DualEncoder, max_tokens: int | None) -> DualEncoder:
    longest = max(form.max_length for form in model.text_format)
    plain = {"encoder_dropout": "none", "query_prompt": "", "doc_prompt": "", "max_tokens": max_tokens}
    try:
        guide = DualEncoder(backbone, max_length=longest, **plain)
    except InputError as error:  # it speaks of a backbone, which this is to the guide
        raise InputError(str(error).replace("init_args.backbone", "init_args.guide")) from None
    for its, ours in zip(guide.text_format.tokenizers, model.text_format.tokenizers, strict=True):
        if its.get_vocab() != ours.get_vocab():
            raise InputError(
                f"a guide must share the model's tokenizer, since it reads the same token ids; {backbone!r} has another (option "
                "model.init_args.guide)"
            )
    return guide.eval().requires_grad_(False)
