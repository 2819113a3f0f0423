"""Lists of feature vectors: LETOR and SVMlight files, or the synthetic set."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from ltr.data.collate import FeatureCollator, LabelledList
from ltr.data.letor import FeatureSplit, find_splits, hold_out, read_letor
from ltr.data.normalise import Normalisation, Step
from ltr.data.synthetic import synthetic_splits
from ltr.datamodules.ranking import PoolBatches, RankingDataModule, TrainBatches, at_least_one
from ltr.errors import InputError

log = logging.getLogger(__name__)

LongLists = Literal["sample", "cut"]


class FeatureDataModule(RankingDataModule):
    """One row is one query with the feature vectors of its documents.

    Lists of similar length share a batch, and are padded to its longest. An epoch visits every training query once. A batch is a
    pure function of (seed, epoch, step, rank): the same with any number of workers, and after a resume. Measured lists are whole.

    Args:
        path: a folder of LETOR or SVMlight files, see :func:`ltr.data.letor.find_splits`; or ``synthetic``: 1,000, 500 and 500
            documents with 100 features of one query each, drawn from ``seed``, see :func:`ltr.data.synthetic.synthetic_splits`.
        fold: which one, where the folder has folds.
        dev_share: share of the training queries that measure during training, where the folder has no dev split; the same
            queries under every seed.
        normalise: steps one after the other, fitted on the training split: ``z-score``, ``log1p``, ``quantile``, ``min-max`` (per
            query), see :class:`ltr.data.normalise.Normalisation`. What was fitted is kept in the checkpoint.
        first_feature: the number of the first feature, 1 in SVMlight, 0 in files of some other writers.
        batch_size: lists per step and process.
        max_list_size: documents of a training list at most; None takes all.
        long_lists: of a longer one, ``sample`` draws that many anew in each epoch: the relevant ones, and others as far as there
            is room, at least one; ``cut`` deals out all its documents in each epoch anew, as several lists.
        bucket_window: batches among which lists are sorted by length to save padding; 1 turns that off.
        eval_batch_size, num_workers, persistent_workers, seed: see :class:`ltr.datamodules.RankingDataModule`.

    Attributes:
        splits: ``train``, ``dev``, ``test``, as far as they are there, after ``setup``.
        n_features: taken from the module; without a trainer the most that a split has, or what was set before ``setup``.

    Raises:
        InputError: for a broken file, or one with more features than the model.
    """

    def __init__(
        self,
        path: str,
        fold: int | None = None,
        dev_share: float | None = None,
        normalise: list[Step] | None = None,
        first_feature: Literal[0, 1] = 1,
        batch_size: int = 16,
        max_list_size: int | None = None,
        long_lists: LongLists = "sample",
        bucket_window: int = 64,
        eval_batch_size: int = 64,
        num_workers: int = 0,
        persistent_workers: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__(path, eval_batch_size, num_workers, persistent_workers, seed)
        at_least_one(batch_size=batch_size, bucket_window=bucket_window)
        if max_list_size is not None and max_list_size < 2:
            raise InputError(
                f"max_list_size must be at least 2, got {max_list_size}: one document has no order "
                "(option data.init_args.max_list_size)"
            )
        self.fold, self.dev_share, self.first_feature = fold, dev_share, first_feature
        self.batch_size, self.bucket_window = batch_size, bucket_window
        self.max_list_size, self.long_lists = max_list_size, long_lists
        self.normalisation = Normalisation(normalise or [])
        self.splits: dict[str, FeatureSplit] = {}
        self.n_features: int | None = None

    def prepare_data(self) -> None:
        """Read and check every file once, in one process: the others find it all on disk."""
        self._open_splits()

    def setup(self, stage: str) -> None:
        """Open the splits; ``fit`` also fits the normalisation and draws up the training rows."""
        super().setup(stage)
        if not self.splits:
            self._open_splits()
        needed = "train" if stage == "fit" else "dev" if stage == "validate" else "test"
        if needed not in self.splits:
            raise InputError(f"{self.path} has no {needed!r} split, only {', '.join(self.splits)}; 'ltr {stage}' needs it")
        if self.trainer is not None:
            self.n_features = getattr(self.trainer.lightning_module.model, "n_features", None)
            if self.n_features is None:
                module = type(self.trainer.lightning_module).__name__
                raise InputError(f"{type(self).__name__} serves features and needs a module that reads them, got {module}")
        elif self.n_features is None:
            self.n_features = max(split.n_features for split in self.splits.values())
        if "train" in self.splits or not self.normalisation.learns:
            self.normalisation.fit(self.splits.get("train", self.splits[needed]), self.n_features)
        if stage == "fit":
            if "dev" not in self.splits:
                log.info("%s has no dev split: training goes without validation (option data.init_args.dev_share)", self.path)
            rows = FeatureRows(self.splits["train"], self.max_list_size, self.long_lists, self.seed)
            collator = FeatureCollator(self.normalisation.apply(self.splits["train"]))
            where = self.rank, self.world_size
            self.train = TrainBatches(rows, collator, self.batch_size, self.seed, *where, self.bucket_window)

    def _open_splits(self) -> None:
        if self.path == "synthetic":
            self.splits = synthetic_splits(self.seed)
        else:
            files = find_splits(Path(self.path), self.fold)
            self.splits = {name: read_letor(of_split, self.first_feature) for name, of_split in files.items()}
        if self.dev_share is not None:
            if "dev" in self.splits or "train" not in self.splits:
                present = ", ".join(self.splits)
                raise InputError(
                    f"dev_share is for data with train and without dev, got {present} (option data.init_args.dev_share)"
                )
            self.splits["train"], self.splits["dev"] = hold_out(self.splits["train"], self.dev_share)

    def pools(self, split: str) -> PoolBatches | None:
        """Made when asked for: only then a checkpoint's normalisation is there."""
        if split not in self.splits:
            return None
        if not self.normalisation.fitted:
            raise InputError(f"{self.path} has no train split to fit the normalisation on; name a checkpoint (--ckpt_path)")
        lists = [whole_list(self.splits[split], query) for query in range(len(self.splits[split]))]
        collator = FeatureCollator(self.normalisation.apply(self.splits[split]))
        return PoolBatches(lists, self.eval_batch_size, collator, self.world_size)

    def names(self, split: str) -> tuple[Sequence[str], Sequence[str]]:
        return self.splits[split].query_ids, self.splits[split].doc_ids

    def state_dict(self) -> dict:
        """See :meth:`RankingDataModule.state_dict`, and what normalises the features."""
        return super().state_dict() | {"normalisation": self.normalisation.state_dict()}

    def load_state_dict(self, state_dict: dict) -> None:
        """See :meth:`RankingDataModule.load_state_dict`; features are then normalised as when it was trained.

        Raises:
            InputError: also if training went on with other steps of normalisation, or other training data.
        """
        super().load_state_dict(state_dict)
        kept = state_dict.get("normalisation")
        if kept is None:
            return
        if self.trainer.state.fn == "fit" and not _equal(kept, self.normalisation.state_dict()):
            raise InputError(
                "the checkpoint normalised its features otherwise; go on with the same training data and data.init_args.normalise"
            )
        self.normalisation.load_state_dict(kept)


def _equal(one: dict, other: dict) -> bool:
    same = (torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in ((one[k], other.get(k)) for k in one))
    return one.keys() == other.keys() and all(same)


class FeatureRows:
    """The training lists of an epoch.

    Args:
        split: the training split.
        max_list_size, long_lists: see :class:`FeatureDataModule`.
        seed: of the drawing.
    """

    def __init__(self, split: FeatureSplit, max_list_size: int | None, long_lists: LongLists, seed: int) -> None:
        self.split, self.max_list_size, self.long_lists, self.seed = split, max_list_size, long_lists, seed
        sizes = [len(split.rows(query)) for query in range(len(split))]
        parts = [-(-size // max_list_size) if max_list_size and long_lists == "cut" else 1 for size in sizes]
        self.queries = np.repeat(np.arange(len(split)), parts)
        self.parts = np.concatenate([np.arange(n) for n in parts])

    def __len__(self) -> int:
        return len(self.queries)

    def draw(self, epoch: int, row: int) -> LabelledList:
        """The list of a row in an epoch: a pure function of (seed, epoch, row)."""
        query, limit = int(self.queries[row]), self.max_list_size
        one = whole_list(self.split, query)
        if limit is None or len(one.doc_rows) <= limit:
            return one
        order = np.random.default_rng([self.seed, epoch, query]).permutation(len(one.doc_rows))
        if self.long_lists == "cut":
            kept = order[self.parts[row] * limit : (self.parts[row] + 1) * limit]
        else:
            relevant = one.labels[order] > 0
            others = order[~relevant]
            first = order[relevant][: limit - min(1, len(others))]
            kept = np.concatenate([first, others[: limit - len(first)]])
        return one._replace(doc_rows=one.doc_rows[kept], labels=one.labels[kept])


def whole_list(split: FeatureSplit, query: int) -> LabelledList:
    """A query with all its documents."""
    rows = split.rows(query)
    return LabelledList(query, rows, split.labels[rows])
