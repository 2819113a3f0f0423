"""What all data modules share: processes, lists to evaluate, batches to train on, and resuming."""

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader

from ltr.batch import RankingBatch
from ltr.data.collate import Collator
from ltr.data.files import digest_of_arrays
from ltr.data.layouts import Reads
from ltr.data.query_lists import LabelledList
from ltr.data.sampling.buckets import Buckets
from ltr.data.sampling.plan import (
    EvalBatches,
    Frozen,
    Plan,
    PlanSampler,
    ShareOfRank,
    TrainBatches,
)
from ltr.data.sampling.rows import Rows
from ltr.datamodules.loading import Loading
from ltr.datamodules.training_labels import Labels
from ltr.entries import check_entries
from ltr.errors import InputError, local_path
from ltr.processes import differences_from_rank_0, world_size
from ltr.search.corpus_search import SearchedCorpus

log = logging.getLogger(__name__)


class TrainingState(TypedDict):
    """Where a training stands, as a checkpoint keeps it.

    Attributes:
        consumed: batches that the trainer has consumed.
        steps: of an epoch.
        per_step: lists of a step, over all processes.
        processes: how many shared the lists.
        content: digests of what the run learns from.
        kept: batches that were planned before new negatives came, which don't follow from seed and
            position, see :meth:`ltr.data.sampling.plan.Plan.frozen_batches`.
    """

    consumed: int
    steps: int
    per_step: int
    processes: int
    content: dict[str, str]
    kept: Frozen | None


class RankingDataModule(LightningDataModule):
    """Serves lists to ``validate`` (dev), ``test`` and ``predict`` (test), and ``train`` to
    ``fit``.

    A child says what a stage opens (:meth:`open`), which lists of a split are evaluated
    (:meth:`eval_batches`), and how training rows form batches (:meth:`plan`).

    A training batch is a pure function of (seed, epoch, step): the same with any number of
    processes and workers, and after a resume. The processes deal out its lists.

    Args:
        path: where the data lies.
        loading: how batches are drawn and collated, see :class:`ltr.datamodules.Loading`.

    Attributes:
        train: the training batches, after ``setup("fit")``.
        collator: makes batches of lists, after ``setup``. After ``setup("fit")`` it is that of the
            training lists; the evaluated ones keep a collator of their own.
        seed: of all sampling.
        needs_in_batch: whether training lists hold relevant documents alone, so that the module's
            ``in_batch`` must rank them against those of other lists.
        has_queries: whether training lists have queries; groups of labelled texts have none.
        largest_soft_label: the largest label of training lists where some of the data have
            fractions, or the largest fraction of an audit, after ``setup("fit")``; 0 where all are
            whole, or the data's are said to be relevant from one on (``relevant_from``).
        lists_with_both: how many training lists have a relevant and an irrelevant document, and how
            many there are, after ``setup("fit")``; None where all have both, or hold relevant
            documents alone (``needs_in_batch``), or the scores of a teacher, or where a list of one
            document teaches (``learns_from_one_document``).
        labels: the option that says where the labels of training lists come from: grades, or the
            scores of a teacher. It holds no labels itself.
        batch_size: training lists per step, over all processes; None where a batch is counted in
            groups.
        before_batch: called in the main process before each training batch is fetched, after
            everything that belongs to the previous batch.
        has_refreshes: whether a callback renews what training draws from, before some batches.
        is_refreshing: whether the callback does so now. An interruption may throw this work away,
            as a resume does it again.
        refresh_seconds: how long all refreshes have taken.
        source_names: of the sources: metrics are told of each. One that stands alone has none.
        first_queries: where the queries of each source begin, after ``setup``.
        takes_other_splits: whether the data may have splits of other names.
        tested_split: what ``test`` and ``predict`` measure; :meth:`test_on` names another split.
        digests: of each thing that the run learns from, by name, after ``setup("fit")``. They go
            into checkpoints: a resume needs the same data.
    """

    needs_in_batch: bool = False
    has_queries: bool = True
    largest_soft_label: float = 0.0
    lists_with_both: tuple[int, int] | None = None
    labels: Labels = Labels()
    batch_size: int | None = None
    source_names: tuple[str, ...] = ("",)
    first_queries: Sequence[int] = (0,)
    before_batch: Callable[[], None] | None = None
    has_refreshes: bool = False
    is_refreshing: bool = False
    refresh_seconds: float = 0.0
    takes_other_splits: bool = False
    tested_split: str = "test"
    collator: Collator  # from setup on

    def __init__(self, path: str | Path, loading: Loading = Loading()) -> None:
        super().__init__()
        local_path("path", path)
        self.path = str(path)
        self.loading = loading
        self.seed = loading.sampling_seed
        self.train: TrainBatches | None = None
        self.digests: dict[str, str] = {}
        self._reads: Reads | None = None  # set by hand, for use without a trainer
        self._n_consumed_at_resume = 0  # batches that the run had consumed at its checkpoint
        self._content_to_resume: dict[str, str] = {}  # digests of its checkpoint, if it has one

    @property
    def reads(self) -> Reads | None:
        """What the ranker reads, and so how a batch is laid out: that of the trainer's module.

        Without a trainer, or for a module that does not say it, set it: ``data.reads =
        ranker.reads``.
        """
        module = None if self.trainer is None else self.trainer.lightning_module
        module_reads: Reads | None = getattr(module, "reads", None)
        return self._reads if module_reads is None else module_reads

    @reads.setter
    def reads(self, reads: Reads | None) -> None:
        self._reads = reads

    @property
    def learns_from_one_document(self) -> bool:
        """Whether a list of one document teaches the trainer's module; False without a trainer."""
        module = None if self.trainer is None else self.trainer.lightning_module
        return bool(getattr(module, "learns_from_one_document", False))

    def check_options(self) -> None:
        """Let the trainer's module and callbacks refuse what options tell, before any text is
        tokenised: each by its own ``check_options``, if it has one.
        """
        for part, arguments in self._parts_of_trainer():
            if check := getattr(part, "check_options", None):
                check(*arguments)

    def check_data(self) -> None:
        """Let them refuse what the data tells, too, and the lists of a fit: by ``check_data``."""
        for part, arguments in self._parts_of_trainer():
            if check := getattr(part, "check_data", None):
                check(*arguments)

    def _parts_of_trainer(self) -> Iterator[tuple[object, tuple[object, ...]]]:
        """The module and the callbacks of the trainer, and what their checks are given."""
        if self.trainer is None:
            return
        module = self.trainer.lightning_module
        yield module, (self,)
        for callback in getattr(self.trainer, "callbacks", ()):  # Lightning does not declare it
            yield callback, (module, self)

    def check_search(self, dim: int, cutoffs: Mapping[str, int | None]) -> None:
        """Check what a search of the corpus would fail at, where evaluation searches one; see
        ``ltr.search.corpus_search.check_search``.

        Args:
            dim: H, the size of an embedding.
            cutoffs: for each metric, by name, how many documents it looks at; None: all.
        """

    def test_on(self, split: str) -> None:
        """Have ``test`` and ``predict`` measure another split in the place of ``test``, from the next
        ``setup`` on.

        Args:
            split: its name.

        Raises:
            InputError: where the data has no splits of other names.
        """
        if split != "test" and not self.takes_other_splits:
            raise InputError(
                f"{self.path}: only a collection has splits of other names than train, dev and test, and {type(self).__name__} tests 'test' alone, got {split!r}; leave out --split",
            )
        self.tested_split = split

    def setup(self, stage: str) -> None:
        if stage == "fit":
            # Of an earlier run with this data module.
            self._n_consumed_at_resume = 0
            self.before_batch = None
        self.open(stage)
        if stage == "fit":
            self.train = TrainBatches(self.plan(), self.collator)
            self._check_same_everywhere(self.digests)

    @abstractmethod
    def open(self, stage: str) -> None:
        """Open what ``fit``, ``validate``, ``test`` or ``predict`` needs."""

    @abstractmethod
    def plan(self) -> Plan:
        """Which training lists form a batch: the result of :meth:`buckets` for rows, or a
        :class:`ltr.data.sampling.group_plan.GroupPlan`. A child also puts the digests of what it
        learns from into ``digests``.
        """

    def buckets(self, rows: Rows, collator: Collator) -> Buckets:
        """Batches of ``batch_size`` rows of similar length, as a collator tells it."""
        assert self.batch_size is not None, (
            "only batches of groups have no batch_size, and they have no buckets"
        )
        return Buckets(
            rows,
            collator.sort_length,
            self.batch_size,
            window=self.loading.bucket_window,
            seed=self.seed,
            rank=self.rank,
            world_size=self.world_size,
        )

    def _check_same_everywhere(self, digests: Mapping[str, str]) -> None:
        """Raise an InputError on every process unless all have opened the same data."""
        if world_size() == 1:
            return
        differences = differences_from_rank_0(digests)
        if differences:
            raise InputError(
                f"{self.path}: all processes of a run must read the same data, and the digest of {differences}; copy the data anew to each node, or put it on a common disk"
            )

    @property
    def corpora(self) -> Sequence[SearchedCorpus]:
        """The corpora to search for the documents of evaluated lists, after ``setup``: that of each
        source; none where lists bring them.
        """
        return ()

    @property
    @abstractmethod
    def measurable_splits(self) -> Collection[str]:
        """The splits that can be measured, ``dev`` and ``test`` or one of them, after
        ``setup("fit")``.
        """

    @property
    def options_to_measure(self) -> str:
        """The options, as words, by which a command measures what this configuration does not; empty
        where it measures.
        """
        return ""

    @property
    def taken(self) -> dict[str, str]:
        """What options that say ``auto`` have taken, by option and split, after ``setup``."""
        return {}

    @property
    def has_distances(self) -> bool:
        """Whether each negative of a training list has the distance at which it was mined, after
        ``setup("fit")``.
        """
        return False

    @property
    def mixes_sources(self) -> bool:
        """Whether a training batch may have lists of several sources."""
        return False

    @property
    def has_teacher_scores(self) -> bool:
        """Whether the labels of training lists are the scores of a teacher."""
        return self.labels.scores is not None

    @property
    def rank(self) -> int:
        """Number of this process; 0 without a trainer."""
        return 0 if self.trainer is None else self.trainer.global_rank

    @property
    def world_size(self) -> int:
        """Number of processes; 1 without a trainer."""
        return 1 if self.trainer is None else self.trainer.world_size

    @property
    def stage(self) -> str:
        """What the trainer runs: ``fit``, ``validate``, ``test`` or ``predict``; ``fit`` without a
        trainer.
        """
        if self.trainer is None:
            return "fit"
        return self.trainer.state.fn or "fit"

    @property
    def is_fitting(self) -> bool:
        """Whether a trainer fits with this data."""
        return self.trainer is not None and self.trainer.state.fn == "fit"

    @abstractmethod
    def eval_batches(self, split: str) -> EvalBatches | None:
        """The lists of a split to evaluate, in batches; None where there are none."""

    @abstractmethod
    def names(self, split: str) -> tuple[Sequence[str], Sequence[str]]:
        """The ids of queries and of documents by row, as run files name them."""

    def query_rows_of_rank(self, split: str) -> np.ndarray:
        """``[Q]`` int64: the queries of a split that this process evaluates."""
        query_rows: list[int] = []
        batches = self.eval_batches(split)
        if batches is not None:
            for number in ShareOfRank(len(batches), self.rank, self.world_size):
                query_rows += [labelled.query_row for labelled in batches.batches[number]]
        return np.asarray(query_rows, dtype=np.int64)

    def evaluation_digests(self, split: str) -> dict[str, str]:
        """A digest of each thing that the metrics of a split depend on, beside the ranker:
        judgements, candidates and texts.
        """
        lists: list[LabelledList] = []
        batches = self.eval_batches(split)
        if batches is not None:
            for batch in batches.batches:
                lists += batch
        lists.sort(key=lambda labelled: labelled.query_row)
        query_rows: list[int] = []
        candidates: list[np.ndarray] = []
        judgements: list[np.ndarray] = []
        # Where every list brings all judgements of its query, the digest of judgements is of these
        # alone, and so the same for any candidates. Otherwise it is of the candidates' labels too.
        all_bring_judgements = all(labelled.known_rows is not None for labelled in lists)
        for labelled in lists:
            query_rows.append(labelled.query_row)
            candidates.append(labelled.doc_rows)
            if not all_bring_judgements:
                judgements += [labelled.doc_rows, labelled.labels]
            if labelled.known_rows is not None:
                judgements.append(labelled.known_rows)
            if labelled.known_grades is not None:
                judgements.append(labelled.known_grades)
        queries = np.array(query_rows)
        return {
            "judgements": _digest(queries, judgements),
            "candidates": _digest(queries, candidates),
        }

    def conventions(self, split: str) -> dict[str, object]:
        """What a report of the metrics of a split must name of how it was evaluated."""
        return {}

    def train_dataloader(self) -> DataLoader:
        assert self.train is not None, "setup('fit') comes first"
        planned = self.train.plan.per_step
        # Lightning's search for a batch size changes the attribute after setup, and would try every
        # size with the batches that are planned already.
        if self.batch_size is not None and self.batch_size != planned:
            raise InputError(
                f"batch_size is fixed by setup('fit'), there {planned}, and now {self.batch_size}; call setup('fit') again",
                option="batch_size",
            )
        if len(self.train) == 0:
            raise InputError(f"{self.path}: split 'train' must have a row to learn from, got none")
        if self.world_size > 1:
            log.info(
                "%d processes share the %d %s of a step: %s counts those of all",
                self.world_size,
                planned,
                "groups" if self.batch_size is None else "lists",
                self._step_option,
            )
        # The sampler asks for the next step at the start of each epoch. Without a trainer there is
        # none to ask: the sampler then gives a whole epoch, the one set by its set_epoch, or 0.
        ask_position = None if self.trainer is None else self._position
        sampler = PlanSampler(self.train.plan, ask_position)
        return self.loading.train_loader(
            self.train, sampler, self._call_before_batch, pinned=self._on_gpu
        )

    @property
    def _step_option(self) -> str:
        """The option that counts the lists of a step."""
        return "groups" if self.batch_size is None else "batch_size"

    def state_dict(self, unfinished: int = 0) -> dict:
        """What a checkpoint keeps, a :class:`TrainingState`.

        Args:
            unfinished: how many of the last consumed batches are in no step of the optimiser yet, as
                their gradients still accumulate: a resume starts before them.
        """
        if self.train is None:
            return {}
        n_consumed = self._n_consumed() - unfinished
        epoch, step = divmod(n_consumed, self._n_steps())
        return {
            "consumed": n_consumed,
            "steps": self._n_steps(),
            "per_step": self.train.plan.per_step,
            "processes": self.world_size,
            "content": self.digests,
            "kept": self.train.plan.frozen_batches(epoch, step),
        }

    def load_state_dict(self, state_dict: dict) -> None:
        """Resume from a checkpoint, while a trainer is fitting. The position in the checkpoint would
        mean nothing with other data, or where epochs or steps have another size: these are refused.
        """
        if not self.is_fitting or "steps" not in state_dict:
            return
        check_entries(state_dict, TrainingState, type(self).__qualname__, "take another checkpoint")
        assert self.train is not None, "setup('fit') comes first"
        self._check_content(state_dict["content"])
        per_step = self.train.plan.per_step
        recorded_per_step = state_dict["per_step"]
        if recorded_per_step != per_step:
            raise InputError(
                f"the checkpoint comes from steps of {recorded_per_step} lists, here they have {per_step}; {self._step_option} counts the lists of all processes: set it to {recorded_per_step}",
                option=self._step_option,
            )
        if state_dict["steps"] != self._n_steps():
            raise InputError(
                f"the checkpoint comes from epochs of {state_dict['steps']} steps, here they have {self._n_steps()}; resume with the same data, batch_size and limit_train_batches"
            )
        n_before = state_dict["processes"]
        if n_before != self.world_size:
            log.info(
                "the run went on so far with %d processes, and goes on with %d: the same lists in each step, and the same numbers but for rounding",
                n_before,
                self.world_size,
            )
        self._n_consumed_at_resume = state_dict["consumed"]
        if state_dict["kept"] is not None:
            epoch, step = self._position()
            self.train.plan.restore_frozen(epoch, step, state_dict["kept"])

    def will_resume(self, state_dict: Mapping[str, Any]) -> None:
        """Have a fit refuse other data before any text is tokenised. Lightning restores no state until
        then.

        Args:
            state_dict: what :meth:`load_state_dict` will be given.
        """
        content = state_dict.get("content")
        self._content_to_resume = content if isinstance(content, dict) else {}

    def _check_content(self, recorded: Mapping[str, str]) -> None:
        """Refuse data with other digests than those of a checkpoint."""
        names = sorted({*recorded, *self.digests})
        changed = [name for name in names if recorded.get(name) != self.digests.get(name)]
        if changed:
            raise InputError(
                f"{self.path}: the checkpoint was trained on other {' and other '.join(changed)}; resume with the data of the run, or start a new run from its weights (--init_from)"
            )

    def _n_consumed(self) -> int:
        """Batches since the start of the run that the trainer has consumed, not those that workers
        have fetched.

        Lightning makes the loader's iterator before it restores its own progress; until then the
        checkpoint's count holds.
        """
        if self.trainer is None:
            return 0
        total = self.trainer.fit_loop.epoch_loop.batch_progress.total
        # Lightning declares the class of ``total`` as a parent that has no ``processed``.
        processed: int = total.processed  # type: ignore[attr-defined]
        return max(self._n_consumed_at_resume, processed)

    def _n_steps(self) -> int:
        """Steps of an epoch in every process, as the trainer limits them."""
        assert self.train is not None, "setup('fit') comes first"
        limit = 1.0 if self.trainer is None else self.trainer.limit_train_batches
        if isinstance(limit, int):
            return min(len(self.train), limit)
        return max(1, int(len(self.train) * limit))

    def _position(self) -> tuple[int, int]:
        """Epoch and number in it of the first step that the trainer has not consumed."""
        return divmod(self._n_consumed(), self._n_steps())

    def transfer_batch_to_device(
        self, batch: RankingBatch, device: torch.device, dataloader_idx: int
    ) -> RankingBatch:
        # Where a RankerModule has this hook too, Lightning takes this one.
        move = super().transfer_batch_to_device
        return batch.moved(lambda batch: move(batch, device, dataloader_idx))

    def val_dataloader(self) -> DataLoader | list:
        return self._eval_loader("dev")

    def test_dataloader(self) -> DataLoader | list:
        return self._eval_loader("test")

    predict_dataloader = test_dataloader

    def _eval_loader(self, split: str) -> DataLoader | list:
        self._check_same_everywhere(self.evaluation_digests(split))
        batches = self.eval_batches(split)
        if batches is None:
            return []
        share = ShareOfRank(len(batches), self.rank, self.world_size)
        return self.loading.loader(batches, share, pinned=self._on_gpu)

    @property
    def _on_gpu(self) -> bool:
        return self.trainer is not None and self.trainer.strategy.root_device.type == "cuda"

    def _call_before_batch(self) -> None:
        if self.before_batch is not None:
            start = time.monotonic()
            self.before_batch()
            self.refresh_seconds += time.monotonic() - start


def _digest(queries: np.ndarray, arrays: list[np.ndarray]) -> str:
    """The digest of queries and arrays of them, and of how long each array is."""
    lengths = np.array([len(array) for array in arrays])
    return digest_of_arrays(queries, lengths, *arrays)
