"""A whole corpus, searched with a dual encoder's weights as they stand: what ``validate`` and ``test`` measure of it."""

import logging
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from lightning.pytorch import Trainer
from torch import Tensor

from ltr.batch import RankingBatch
from ltr.data.cache import take_room
from ltr.datamodules.pools import PoolDataModule
from ltr.encoding import encoded
from ltr.index import DenseIndex
from ltr.models.dual_encoder import DualEncoder

log = logging.getLogger(__name__)

TRIAL_DOCS = 1000  # that a trial run searches


class CorpusSearch:
    """The best documents of the corpus for the queries that this rank measures.

    Each rank encodes its share of the corpus into one memory map in the run folder, which all must be able to reach (as the
    checkpoints), and searches the whole of it for its own queries: ``Flat`` in the map itself, any other index in a copy that
    each rank builds and holds. The map is removed afterwards; one that a killed process has left (``corpus-*``) may be deleted.
    With ``trainer.fast_dev_run``, which is there to be quick, only the first documents are searched, and ``Flat``.

    Args:
        model: whose embeddings are searched, under the trainer's precision.
        data: opens the corpus; says the queries of this rank, and how many documents to find (its ``depth``).
        split: whose queries.
        factory: of the index, see :class:`ltr.index.DenseIndex`.
        trainer: says rank, folder and precision.
    """

    def __init__(self, model: DualEncoder, data: PoolDataModule, split: str, factory: str, trainer: Trainer) -> None:
        self.query_rows = data.query_rows_of_rank(split)
        n_docs = len(data.collection.corpus)
        if trainer.fast_dev_run and n_docs > TRIAL_DOCS:
            log.info("a trial run searches %d of %d documents: its measures mean nothing", TRIAL_DOCS, n_docs)
            n_docs, factory = TRIAL_DOCS, "Flat"
        strategy, folder = trainer.strategy, None
        if trainer.is_global_zero:
            Path(trainer.default_root_dir).mkdir(parents=True, exist_ok=True)
            folder = tempfile.mkdtemp(dir=trainer.default_root_dir, prefix="corpus-")
        file = Path(strategy.broadcast(folder)) / "embeddings.npy"
        try:
            with trainer.precision_plugin.forward_context():
                docs = _encoded_corpus(model, data, n_docs, file, trainer)
                queries = np.empty((len(self.query_rows), model.dim), np.float32)
                if len(self.query_rows):
                    store, form = data.collator.queries, data.text_format.queries
                    for places, found in encoded(model.query_tower, store, form, self.query_rows):
                        queries[places] = found
            index = DenseIndex.build(docs, model.similarity, factory)
            # A text among its own neighbours would always come first, and say nothing.
            alone = data.collection.queries.key == data.collection.corpus.key
            scores, rows = index.search(queries, min(data.depth + alone, len(docs)))
            if alone:
                scores, rows = _without(self.query_rows, scores, rows)
            self.scores, self.doc_rows = torch.from_numpy(scores), torch.from_numpy(rows)
            strategy.barrier()  # the others may still read
        finally:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def of(self, batch: RankingBatch) -> tuple[Tensor, RankingBatch]:
        """What was found for the queries of a batch: scores ``[B, K]``, and the lists with their grades."""
        order = np.argsort(self.query_rows)
        at = torch.from_numpy(order[np.searchsorted(self.query_rows, batch.query_rows.cpu().numpy(), sorter=order)])
        device = batch.query_rows.device
        scores, doc_rows = self.scores[at].to(device), self.doc_rows[at].to(device)
        mask = doc_rows >= 0
        labels = _grades(doc_rows, batch.judged_rows, batch.judged_grades)
        return scores.masked_fill(~mask, 0.0), batch._replace(doc_rows=doc_rows.clamp(min=0), mask=mask, labels=labels)


def _encoded_corpus(model: DualEncoder, data: PoolDataModule, n_docs: int, file: Path, trainer: Trainer) -> np.ndarray:
    """``[D, H]`` float32, mapped from the file; every rank writes its share of the rows."""
    store, form = data.collator.docs, data.text_format.docs
    if trainer.is_global_zero:
        np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=(n_docs, model.dim)).flush()
        take_room(file)
    trainer.strategy.barrier()
    own = np.arange(trainer.global_rank, n_docs, trainer.world_size)
    embeddings = np.load(file, mmap_mode="r+")
    if len(own):
        for places, found in encoded(model.doc_tower, store, form, own):
            embeddings[own[places]] = found
    embeddings.flush()
    trainer.strategy.barrier()
    return np.load(file, mmap_mode="r")


def _without(query_rows: np.ndarray, scores: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Leave a query's own text out: one column less."""
    own = rows == query_rows[:, None]
    own[~own.any(axis=1), -1] = True  # it was not among the best: then the last one goes
    kept = (len(rows), rows.shape[1] - 1)
    return scores[~own].reshape(kept), rows[~own].reshape(kept)


def _grades(doc_rows: Tensor, judged_rows: Tensor, judged_grades: Tensor) -> Tensor:
    """``[B, K]``: the grade of each document among the judgements of its query, 0 where nobody judged it."""
    if not judged_rows.shape[1]:
        return torch.zeros(doc_rows.shape, device=doc_rows.device)
    judged_rows, order = judged_rows.sort(dim=1)
    at = torch.searchsorted(judged_rows, doc_rows).clamp(max=judged_rows.shape[1] - 1)
    found = (judged_rows.gather(1, at) == doc_rows) & (doc_rows >= 0)
    return judged_grades.gather(1, order).gather(1, at).masked_fill(~found, 0.0)
