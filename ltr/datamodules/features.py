"""Lists of feature vectors: LETOR and SVMlight files, or the synthetic set."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch

from ltr.data.collate import FeatureCollator
from ltr.data.files import digest_of_arrays
from ltr.data.layouts import FeatureVectors
from ltr.data.letor import FeatureSplit, hold_out, read_letor
from ltr.data.letor_splits import find_splits
from ltr.data.normalise import Normalisation, Step, check_width
from ltr.data.query_lists import largest_fraction
from ltr.data.sampling.list_rows import (
    Keep,
    ListRows,
    n_with_relevant_and_not,
    with_documents,
    with_two_grades,
)
from ltr.data.sampling.plan import EvalBatches, Plan
from ltr.data.synthetic import synthetic_splits
from ltr.datamodules.loading import Loading
from ltr.datamodules.ranking import RankingDataModule
from ltr.errors import InputError, at_least, one_of, positive

log = logging.getLogger(__name__)

# By stage the split that it can't do without, and all that it reads. ``fit`` looks at ``test`` to
# refuse too many features before training, not after it.
REQUIRED_SPLIT = {"fit": "train", "validate": "dev", "test": "test", "predict": "test"}
SPLITS_TO_READ = {
    "fit": ("train", "dev", "test"),
    "validate": ("dev",),
    "test": ("test",),
    "predict": ("test",),
}


class FeatureDataModule(RankingDataModule):
    """One row is one query with the feature vectors of its documents.

    Lists of similar length share a batch. An epoch visits every training query once. Measured lists
    are whole.

    Args:
        path: a folder of LETOR or SVMlight files, see :func:`ltr.data.letor_splits.find_splits`; or
            ``synthetic``: three splits of a single query each, with 1,000, 500 and 500 documents of
            100 features, drawn from ``seed``, see :func:`ltr.data.synthetic.synthetic_splits`.
        fold: which one, where the folder has folds.
        dev_share: share of the training queries that are held out as dev split, where the folder has
            no dev split; the same queries under every seed.
        normalise: steps one after the other, fitted on the training split: ``z-score``, ``log1p``,
            ``quantile``, ``min-max`` (per query), see :class:`ltr.data.normalise.Normalisation`.
            What was fitted is kept in the checkpoint.
        first_feature: the number of the first feature, 1 in SVMlight, 0 in files of some other
            writers.
        batch_size: lists per step, over all processes.
        list_size, keep: see :class:`ltr.datamodules.ListDataModule`.
        eval_batch_size: queries per evaluation step and process.
        loading: how batches are drawn and collated, see :class:`ltr.datamodules.Loading`.
        relevant_from: the grade from which on a training document is relevant; lower ones count as
            0. What is measured keeps all grades. None: any above 0.

    Attributes:
        n_features: after ``setup``: those that the ranker reads; without a ranker the most that a
            split has.

    Raises:
        InputError: for a broken file, one with more features than the model, or training queries
            without anything to rank.

    Example:
        >>> data = FeatureDataModule("synthetic", batch_size=1)
        >>> data.setup("fit")
        >>> batch = next(iter(data.train_dataloader()))
        >>> batch.features.shape  # a query, its documents, their features
        torch.Size([1, 1000, 100])
    """

    def __init__(
        self,
        path: str | Path,
        fold: int | None = None,
        dev_share: float | None = None,
        normalise: list[Step] | None = None,
        first_feature: Literal[0, 1] = 1,
        batch_size: int = 16,
        list_size: int | None = None,
        keep: Keep = "relevant",
        eval_batch_size: int = 64,
        loading: Loading = Loading(),
        relevant_from: float | None = None,
    ) -> None:
        super().__init__(path, loading)
        at_least(1, batch_size=batch_size, eval_batch_size=eval_batch_size)
        at_least(2, list_size=list_size)  # one document has no order
        one_of(get_args(Keep), keep=keep)
        one_of((0, 1), first_feature=first_feature)
        self.fold = fold
        self.dev_share = dev_share
        if relevant_from is not None:
            positive("relevant_from", relevant_from)
        self.relevant_from = relevant_from
        self.first_feature = first_feature
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.list_size = list_size
        self.keep = keep
        self.normalisation = Normalisation(normalise or [])
        self._splits: dict[str, FeatureSplit | None] = {}
        # By split, as long as the normalisation stays the same.
        self._eval_batches: dict[str, EvalBatches] = {}
        self.n_features: int  # from setup on

    @property
    def measurable_splits(self) -> set[str]:
        return {name for name in ("dev", "test") if self.split(name) is not None}

    def prepare_data(self) -> None:
        """Read the files once, in one process: the others find them on disk."""
        self._check_reads()
        self.check_options()
        for name in SPLITS_TO_READ[self.stage]:
            self.split(name)

    def open(self, stage: str) -> None:
        self._eval_batches.clear()  # of an earlier setup
        required = self.split(REQUIRED_SPLIT[stage])
        if required is None:
            # Lightning passes an enum; ``lower`` makes it the plain word, as 'fit'.
            raise InputError(
                f"{self.path} has no {REQUIRED_SPLIT[stage]!r} split; 'ltr {stage.lower()}' needs it"
            )
        opened: list[FeatureSplit] = []
        for name in SPLITS_TO_READ[stage]:
            split = self.split(name)
            if split is not None:
                opened.append(split)
        reads = self._check_reads()
        if reads is None:
            self.n_features = max(split.n_features for split in opened)
        else:
            self.n_features = reads.n_features
        for split in opened:
            check_width(split, self.n_features)
        if stage == "fit":
            self._open_training(required)

    def _check_reads(self) -> FeatureVectors | None:
        """What the ranker reads, or None without one; an InputError for a ranker of texts."""
        if isinstance(self.reads, FeatureVectors | None):
            return self.reads
        raise InputError(
            "FeatureDataModule serves feature vectors, got a ranker that reads texts; choose a FeatureRanker"
        )

    def _open_training(self, train: FeatureSplit) -> None:
        n_zero = self.n_features - train.n_features
        if n_zero > 0:
            log.info(
                "%s has %d features; the %d others of the model are 0",
                self.path,
                train.n_features,
                n_zero,
            )
        if self.split("dev") is None:
            log.info(
                "%s has no dev split: training goes without validation (dev_share holds one out)",
                self.path,
            )
        # train.key is of the whole file; train.queries are those that dev_share left for training.
        self.digests = {"data": train.key, "queries": digest_of_arrays(train.queries)}
        normalised = self.normalisation.fit(train, self.n_features).apply(train)
        self.collator = FeatureCollator(normalised)

    def plan(self) -> Plan:
        train = self.split("train")
        assert train is not None, "open() checks it"
        train = replace(train, relevant_from=self.relevant_from)
        queries = np.arange(len(train))
        # Queries with two grades are only counted: the others stay in the epoch. It is an error if
        # there is none, unless a document alone teaches.
        where = f"{self.path}: split 'train'"
        if self.relevant_from is not None:
            where += f", where grades below {self.relevant_from:.9g} count as 0"
        if self.learns_from_one_document:
            with_documents(train, queries, where)
        else:
            n_rankable = len(with_two_grades(train, queries, where))
            log.info(
                "%s: %d of %d training queries have documents of different grades",
                self.path,
                n_rankable,
                len(train),
            )
        # Where any label has a fraction all are of one scale, so the largest counts, whole or not.
        # Where a level says which are relevant, none are soft.
        self.largest_soft_label = 0.0
        if self.relevant_from is None and largest_fraction(train.labels):
            self.largest_soft_label = float(train.labels.max())
        rows = ListRows(train, queries, self.list_size, self.keep, self.seed)
        if not self.learns_from_one_document:
            self.lists_with_both = (n_with_relevant_and_not(rows), len(rows))
        return self.buckets(rows, self.collator)

    def split(self, name: str) -> FeatureSplit | None:
        """The split ``train``, ``dev`` or ``test``, read at the first call and kept; None where the
        data has none.
        """
        if name not in self._splits:
            splits = self._read(name)
            self._splits |= {name: splits.get(name), **splits}
        return self._splits[name]

    def _read(self, name: str) -> dict[str, FeatureSplit]:
        """This split, and those that are made with it."""
        if self.path == "synthetic":
            if self.fold is not None or self.dev_share is not None:
                raise InputError(
                    "path 'synthetic' has no folds and brings its dev split; leave out fold and dev_share, or where a configuration has them: --data.fold null --data.dev_share null"
                )
            return synthetic_splits(self.seed)
        files = find_splits(Path(self.path), self.fold)
        if self.dev_share is not None and "train" in files and name in ("train", "dev"):
            if "dev" in files:
                raise InputError(
                    f"{self.path} has a dev split, so no queries are held out for one, and dev_share must be left out; where a configuration has it: --data.dev_share null",
                    option="dev_share",
                )
            train, dev = hold_out(read_letor(files["train"], self.first_feature), self.dev_share)
            return {"train": train, "dev": dev}
        if name not in files:
            return {}
        return {name: read_letor(files[name], self.first_feature)}

    def eval_batches(self, split: str) -> EvalBatches | None:
        """Made when they are asked for, not in ``open``: a checkpoint may bring the normalisation
        after ``setup``, and then the training split need not be read.
        """
        features = self.split(split)
        if features is None:
            return None
        if split in self._eval_batches:
            return self._eval_batches[split]
        if self.normalisation.n_features != self.n_features:
            # Not fitted yet, or for another number of features. Steps that learn nothing are fitted
            # to the number of features alone, so any split will do.
            fitted_on = self.split("train") if self.normalisation.learns else features
            if fitted_on is None:
                raise InputError(
                    f"{self.path} has no train split to fit the normalisation on; name a checkpoint (--ckpt_path)"
                )
            self.normalisation.fit(fitted_on, self.n_features)
        lists = [features.whole(query) for query in range(len(features))]
        collator = FeatureCollator(self.normalisation.apply(features))
        batches = EvalBatches(lists, self.eval_batch_size, collator, self.world_size)
        self._eval_batches[split] = batches
        return batches

    def evaluation_digests(self, split: str) -> dict[str, str]:
        digests = super().evaluation_digests(split)
        features = self.split(split)
        if features is not None:
            digests["data"] = features.key
        return digests

    def names(self, split: str) -> tuple[Sequence[str], Sequence[str]]:
        features = self.split(split)
        assert features is not None, "only a split with lists has names"
        return features.query_ids, features.doc_ids

    def state_dict(self, unfinished: int = 0) -> dict:
        return super().state_dict(unfinished) | {"normalisation": self.normalisation.state_dict()}

    def load_state_dict(self, state_dict: dict) -> None:
        """Normalise measured features as in training. A run that is resumed has fitted its
        normalisation in ``setup``: check that it is the same.
        """
        super().load_state_dict(state_dict)
        normalisation = state_dict.get("normalisation")
        if normalisation is None:
            return
        if not self.is_fitting:
            self.normalisation.load_state_dict(normalisation)
            self._eval_batches.clear()
        elif not _equal_but_for_rounding(normalisation, self.normalisation.state_dict()):
            raise InputError(
                "the checkpoint normalised its features differently; resume with the same training data and the same normalise",
                option="normalise",
            )


def _equal_but_for_rounding(state: dict, other: dict) -> bool:
    """Whether two states of a normalisation are the same. Their last bits differ between machines."""
    if state.keys() != other.keys():
        return False
    for name, value in state.items():
        other_value = other[name]
        if isinstance(value, torch.Tensor) and isinstance(other_value, torch.Tensor):
            if value.shape != other_value.shape or not torch.allclose(value, other_value):
                return False
        elif value != other_value:
            return False
    return True
