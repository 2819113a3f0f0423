"""Lists of feature vectors: LETOR and SVMlight files, or the synthetic set."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch

from ltr.data.collate import FeatureCollator
from ltr.data.files import digest_of_arrays
from ltr.data.formats import FeatureVectors
from ltr.data.letor import FeatureSplit, find_splits, hold_out, read_letor
from ltr.data.normalise import Normalisation, Step, check_width
from ltr.data.sampling.lists import Keep, ListRows, with_two_grades
from ltr.data.sampling.plan import EvalBatches, Plan
from ltr.data.synthetic import synthetic_splits
from ltr.datamodules.loading import Loading
from ltr.datamodules.ranking import RankingDataModule
from ltr.errors import InputError, at_least, one_of

log = logging.getLogger(__name__)


class FeatureDataModule(RankingDataModule):
    """One row is one query with the feature vectors of its documents.

    Lists of similar length share a batch. An epoch visits every training query once. Measured lists
    are whole.

    Args:
        path: a folder of LETOR or SVMlight files, see :func:`ltr.data.letor.find_splits`; or
            ``synthetic``: 1,000, 500 and 500 documents with 100 features of one query each, drawn
            from ``seed``, see :func:`ltr.data.synthetic.synthetic_splits`.
        fold: which one, where the folder has folds.
        dev_share: share of the training queries that measure during training, where the folder has
            no dev split; the same queries under every seed.
        normalise: steps one after the other, fitted on the training split: ``z-score``, ``log1p``,
            ``quantile``, ``min-max`` (per query), see :class:`ltr.data.normalise.Normalisation`.
            What was fitted is kept in the checkpoint.
        first_feature: the number of the first feature, 1 in SVMlight, 0 in files of some other
            writers.
        batch_size: lists per step and process.
        list_size, keep: see :class:`ltr.datamodules.ListDataModule`.
        eval_batch_size: queries per evaluation step and process.
        loading: how batches are drawn and collated, see :class:`ltr.datamodules.Loading`.

    Attributes:
        n_features: after ``setup``: those that the ranker reads; without a ranker the most that a
            split has.

    Raises:
        InputError: for a broken file, one with more features than the model, or training queries
            without anything to rank.
    """

    def __init__(
        self,
        path: str,
        fold: int | None = None,
        dev_share: float | None = None,
        normalise: list[Step] | None = None,
        first_feature: Literal[0, 1] = 1,
        batch_size: int = 16,
        list_size: int | None = None,
        keep: Keep = "relevant",
        eval_batch_size: int = 64,
        loading: Loading = Loading(),
    ) -> None:
        super().__init__(path, loading)
        at_least(1, batch_size=batch_size, eval_batch_size=eval_batch_size)
        at_least(2, list_size=list_size)  # one document has no order
        one_of(get_args(Keep), keep=keep)
        one_of((0, 1), first_feature=first_feature)
        self.fold = fold
        self.dev_share = dev_share
        self.first_feature = first_feature
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.list_size = list_size
        self.keep = keep
        self.normalisation = Normalisation(normalise or [])
        self._splits: dict[str, FeatureSplit] = {}
        self.n_features: int  # from setup on

    def prepare_data(self) -> None:
        for name in self._needed("fit" if self.trainer is None else self.trainer.state.fn or "fit"):
            self.split(name)

    def open(self, stage: str) -> None:
        needed = self._needed(stage)
        if self.split(needed[0]) is None:
            raise InputError(
                f"{self.path} has no {needed[0]!r} split; 'ltr {stage.lower()}' needs it"
            )
        opened = [split for name in needed if (split := self.split(name)) is not None]
        if self.reads is None:
            self.n_features = max(split.n_features for split in opened)
        elif isinstance(self.reads, FeatureVectors):
            self.n_features = self.reads.n_features
        else:
            raise InputError(
                "FeatureDataModule serves feature vectors, got a ranker that reads texts; choose a FeatureRanker"
            )
        for split in opened:  # before training, not after it
            check_width(split, self.n_features)
        if stage == "fit":
            self._open_training(opened[0])

    def _needed(self, stage: str) -> tuple[str, ...]:
        """The splits of a stage, the one it can't do without first."""
        return {
            "fit": ("train", "dev", "test"),
            "validate": ("dev",),
            "test": ("test",),
            "predict": ("test",),
        }[stage]

    def _open_training(self, train: FeatureSplit) -> None:
        if train.n_features < self.n_features:
            others = self.n_features - train.n_features
            log.info(
                "%s has %d features; the %d others of the model are 0",
                self.path,
                train.n_features,
                others,
            )
        if self.split("dev") is None:
            log.info(
                "%s has no dev split: training goes without validation (dev_share holds one out)",
                self.path,
            )
        self.content = {"data": train.key, "queries": digest_of_arrays(train.queries)}
        normalised = self.normalisation.fit(train, self.n_features).apply(train)
        self.collator = FeatureCollator(normalised)

    def plan(self) -> Plan:
        train = self.split("train")
        assert train is not None, "open() checks it"
        queries = np.arange(len(train))
        # Only counted, and an error if there is none: lists of one grade stay in the epoch.
        n_rankable = len(with_two_grades(train, queries, f"{self.path}: split 'train'"))
        log.info(
            "%s: %d of %d training queries have documents of different grades",
            self.path,
            n_rankable,
            len(train),
        )
        return self.buckets(ListRows(train, queries, self.list_size, self.keep, self.seed))

    def split(self, name: str) -> FeatureSplit | None:
        """``train``, ``dev`` or ``test``, read when it is first asked for; None where the data has
        none.
        """
        if name not in self._splits:
            self._splits |= self._read(name)
        return self._splits.get(name)

    def _read(self, name: str) -> dict[str, FeatureSplit]:
        if self.path == "synthetic":
            if self.fold is not None or self.dev_share is not None:
                raise InputError(
                    "path 'synthetic' has no folds and brings its dev split; leave out fold and dev_share"
                )
            return synthetic_splits(self.seed)
        files = find_splits(Path(self.path), self.fold)
        if self.dev_share is not None and "train" in files and name in ("train", "dev"):
            if "dev" in files:
                raise InputError(
                    f"{self.path} has a dev split; leave out dev_share", option="dev_share"
                )
            train, dev = hold_out(read_letor(files["train"], self.first_feature), self.dev_share)
            return {"train": train, "dev": dev}
        return {name: read_letor(files[name], self.first_feature)} if name in files else {}

    def pools(self, split: str) -> EvalBatches | None:
        """Made when they are asked for, not in :meth:`open`: a checkpoint may bring the normalisation
        after ``setup``, and then train need not be read.
        """
        one = self.split(split)
        if one is None:
            return None
        if self.normalisation.n_features != self.n_features:
            # Steps that learn nothing want the number of features alone: any split tells it.
            fitted_on = self.split("train") if self.normalisation.learns else one
            if fitted_on is None:
                raise InputError(
                    f"{self.path} has no train split to fit the normalisation on; name a checkpoint (--ckpt_path)"
                )
            self.normalisation.fit(fitted_on, self.n_features)
        lists = [one.whole(query) for query in range(len(one))]
        collator = FeatureCollator(self.normalisation.apply(one))
        return EvalBatches(lists, self.eval_batch_size, collator, self.world_size)

    def evaluated(self, split: str) -> dict[str, str]:
        one = self.split(split)
        return super().evaluated(split) | ({} if one is None else {"data": one.key})

    def names(self, split: str) -> tuple[Sequence[str], Sequence[str]]:
        one = self.split(split)
        assert one is not None, "names are asked of a split with lists"
        return one.query_ids, one.doc_ids

    def state_dict(self, unfinished: int = 0) -> dict:
        return super().state_dict(unfinished) | {"normalisation": self.normalisation.state_dict()}

    def load_state_dict(self, state_dict: dict) -> None:
        """Resume with the same normalisation, or normalise measured features as in training."""
        super().load_state_dict(state_dict)
        kept = state_dict.get("normalisation")
        if kept is None:
            return
        if self.trainer is None or self.trainer.state.fn != "fit":
            self.normalisation.load_state_dict(kept)
        elif not _close(kept, self.normalisation.state_dict()):
            text = "the checkpoint normalised its features differently; resume with the same training data and the same normalise"
            raise InputError(text, option="normalise")


def _close(one: dict, other: dict) -> bool:
    """Whether two states of a normalisation are one but for rounding, which differs between
    machines.
    """

    def same(a: object, b: object) -> bool:
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            return a.shape == b.shape and torch.allclose(a, b)
        return a == b

    return one.keys() == other.keys() and all(
        same(value, other[name]) for name, value in one.items()
    )
