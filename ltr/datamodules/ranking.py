"""What all data modules share: processes and workers, lists to evaluate, batches to train on, and resuming."""

import os
import signal
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, Sampler

from ltr.batch import RankingBatch
from ltr.data.collate import Collator
from ltr.data.files import digest_of_arrays
from ltr.data.formats import Reads
from ltr.data.plans import Buckets, EvalBatches, PlanSampler, ShareOfRank, TrainBatches
from ltr.data.rows import Rows
from ltr.errors import InputError, at_least
from ltr.search.corpus import SearchedCorpus


class RankingDataModule(LightningDataModule):
    """Serves lists to ``validate`` (dev), ``test`` and ``predict`` (test), and ``train`` to ``fit``; its children make them.

    A training batch is a pure function of (seed, epoch, step, rank): the same with any number of workers, and after a resume.

    Args:
        path: where the data lies.
        eval_batch_size: queries per evaluation step.
        num_workers: processes that collate batches; 0: the trainer's own does.
        persistent_workers: keep those processes from epoch to epoch.
        seed: of all sampling; None takes that of ``seed_everything``.
        reads: how a batch is laid out: what the ranker reads, its ``reads``. The command line sets it.

    Attributes:
        train: the training batches, after ``setup("fit")``.
        needs_in_batch: whether lists hold relevant documents alone, so that they must be ranked against those of other lists.
        has_distances: whether training lists bring the distances of mined negatives, for margins that read them.
        has_soft_labels: whether training lists have labels between irrelevant and relevant, after ``setup("fit")``.
        teaches: whether the labels of training lists are the scores of a teacher.
        batch_size: training lists per step and process; None where a batch is counted in groups.
        before_batch: called in the main process before each training batch is fetched, when all is done that belongs to the last.
        corpus: the corpus to search for the documents of evaluated lists, after ``setup``; None where lists bring them.
        content: a digest of each thing that the run learns from, after ``setup("fit")``; a resume needs the same.

    Raises:
        InputError: for a size below 1, or a number of workers or a seed below 0.
    """

    needs_in_batch: bool = False
    has_distances: bool = False
    has_soft_labels: bool = False
    teaches: bool = False
    batch_size: int | None = None
    corpus: SearchedCorpus | None = None
    before_batch: Callable[[], None] | None = None

    def __init__(
        self,
        path: str,
        eval_batch_size: int = 16,
        num_workers: int = 0,
        persistent_workers: bool = False,
        seed: int | None = None,
        reads: Reads | None = None,
    ) -> None:
        super().__init__()
        self.path, self.eval_batch_size, self.reads = path, eval_batch_size, reads
        self.num_workers, self.persistent_workers = num_workers, persistent_workers and num_workers > 0
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", 0)) if seed is None else seed
        at_least(1, eval_batch_size=eval_batch_size)
        at_least(0, num_workers=num_workers, seed=self.seed)
        self.train: TrainBatches | None = None
        self.content: dict[str, str] = {}
        self._restored = 0

    def setup(self, stage: str) -> None:
        if stage == "fit":
            self._restored, self.before_batch = 0, None

    @property
    def rank(self) -> int:
        """Of this process; 0 without a trainer."""
        return 0 if self.trainer is None else self.trainer.global_rank

    @property
    def world_size(self) -> int:
        """Number of processes; 1 without a trainer."""
        return 1 if self.trainer is None else self.trainer.world_size

    @abstractmethod
    def pools(self, split: str) -> EvalBatches | None:
        """The lists of a split to evaluate, or None where there are none."""

    @abstractmethod
    def names(self, split: str) -> tuple[Sequence[str], Sequence[str]]:
        """The ids of queries and of documents by row, as run files name them."""

    def query_rows_of_rank(self, split: str) -> np.ndarray:
        """``[Q]`` int64: the queries of a split that this process evaluates."""
        pools = self.pools(split)
        share = [] if pools is None else [pools.batches[i] for i in ShareOfRank(len(pools), self.rank, self.world_size)]
        return np.asarray([one.query_row for batch in share for one in batch], dtype=np.int64)

    def evaluated(self, split: str) -> dict[str, str]:
        """A digest of each thing that the numbers of a split depend on, beside the ranker: judgements, candidates and texts."""
        pools = self.pools(split)
        lists = [] if pools is None else sorted((one for batch in pools.batches for one in batch), key=lambda one: one.query_row)
        judged = [part for one in lists for part in (one.doc_rows, one.labels, one.judged_rows, one.judged_grades)]
        if all(one.judged_rows is not None for one in lists):
            judged = [part for one in lists for part in (one.judged_rows, one.judged_grades)]
        queries = np.array([one.query_row for one in lists])
        parts = {"judgements": judged, "candidates": [one.doc_rows for one in lists]}
        there = {name: [one for one in arrays if one is not None] for name, arrays in parts.items()}
        return {name: digest_of_arrays(queries, np.array([*map(len, arrays)]), *arrays) for name, arrays in there.items()}

    def conventions(self) -> dict[str, object]:
        """What a report must say of the evaluated lists."""
        return {}

    def train_dataloader(self) -> DataLoader:
        assert self.train is not None, "setup('fit') comes first"
        planned = self.train.plan.per_step // self.world_size
        if self.batch_size not in (None, planned):  # Lightning's search for a batch size, say, would measure nothing
            text = f"batch_size is fixed by setup('fit'), there {planned}, and now {self.batch_size}; call setup('fit') again"
            raise InputError(text, option="batch_size")
        if len(self.train) == 0:
            least = f"a row to learn from for each of the {self.world_size} processes"
            raise InputError(f"{self.path}: split 'train' must have {least}, got {self.train.plan.n_rows} in all")
        # Without a trainer nobody knows the position: the sampler then starts the epoch that Lightning's set_epoch says.
        sampler = PlanSampler(self.train.plan, None if self.trainer is None else self._position)
        return TrainLoader(self._before_batch, self.train, **self._loading(sampler))

    def state_dict(self, unfinished: int = 0) -> dict:
        """What a checkpoint keeps: the batches that the trainer has consumed, how many make an epoch, and what is in it.

        Args:
            unfinished: batches of these that a resume repeats.
        """
        if not self.train:
            return {}
        consumed = self._consumed() - unfinished
        place = {"consumed": consumed, "steps": self._steps(), "per_step": self.train.plan.per_step}
        return place | {"content": self.content, "kept": self.train.plan.kept_batches(*divmod(consumed, self._steps()))}

    def load_state_dict(self, state_dict: dict) -> None:
        """Resume from a checkpoint, if the trainer fits; its position means nothing where epochs or steps have another size."""
        if self.trainer is None or self.trainer.state.fn != "fit" or "steps" not in state_dict:
            return
        assert self.train is not None, "setup('fit') comes first"
        then = state_dict.get("content", self.content)
        differ = [name for name in sorted({*then, *self.content}) if then.get(name) != self.content.get(name)]
        if differ:
            hint = "resume with the data of the run, or start a new run from its weights (--init_from)"
            raise InputError(f"{self.path}: the checkpoint was trained on other {' and other '.join(differ)}; {hint}")
        if state_dict["steps"] != self._steps():
            came = f"epochs of {state_dict['steps']} steps, here they have {self._steps()}"
            hint = "resume with the same data, batch_size, devices and limit_train_batches"
            raise InputError(f"the checkpoint comes from {came}; {hint}")
        per_step = self.train.plan.per_step
        if state_dict.get("per_step", per_step) != per_step:
            came = f"steps of {state_dict['per_step']} lists, here they have {per_step}"
            raise InputError(f"the checkpoint comes from {came}; resume with the same batch_size and devices, or the same groups")
        self._restored = state_dict["consumed"]
        if state_dict.get("kept") is not None:
            self.train.plan.keep(*self._position(), state_dict["kept"])

    def _consumed(self) -> int:
        """Batches since the start of the run that the trainer has consumed, not those that workers have fetched.

        Lightning makes the loader's iterator before it restores its own progress; until then the checkpoint's count holds.
        """
        total = None if self.trainer is None else self.trainer.fit_loop.epoch_loop.batch_progress.total
        # Lightning's types are wrong: the tracker is declared as a parent, which does not count what is processed.
        return 0 if total is None else max(self._restored, total.processed)  # type: ignore[attr-defined]

    def _steps(self) -> int:
        """Steps of an epoch in every process, as the trainer limits them."""
        assert self.train is not None, "setup('fit') comes first"
        limit = self.trainer.limit_train_batches if self.trainer else 1.0
        return min(len(self.train), limit) if isinstance(limit, int) else max(1, int(len(self.train) * limit))

    def _position(self) -> tuple[int, int]:
        """Epoch and step to start or resume from."""
        return divmod(self._consumed(), self._steps())

    def _buckets(self, rows: Rows, bucket_window: int, collator: Collator) -> TrainBatches:
        """Batches of rows of similar length."""
        assert self.batch_size is not None, "only groups are counted otherwise"
        where = {"seed": self.seed, "rank": self.rank, "world_size": self.world_size}
        return TrainBatches(Buckets(rows, collator.row_length, self.batch_size, window=bucket_window, **where), collator)

    def val_dataloader(self) -> DataLoader | list:
        return self._eval_loader("dev")

    def test_dataloader(self) -> DataLoader | list:
        return self._eval_loader("test")

    predict_dataloader = test_dataloader

    def _eval_loader(self, split: str) -> DataLoader | list:
        batches = self.pools(split)
        if batches is None:
            return []
        return DataLoader(batches, **self._loading(ShareOfRank(len(batches), self.rank, self.world_size)))

    def _before_batch(self) -> None:
        if self.before_batch is not None:
            self.before_batch()

    def _loading(self, sampler: Sampler) -> dict[str, Any]:
        return {
            "batch_size": None,  # the data set makes whole batches
            "sampler": sampler,
            "num_workers": self.num_workers,
            "persistent_workers": self.persistent_workers,
            "worker_init_fn": _leave_signals_to_the_trainer,
            "pin_memory": self.trainer is not None and self.trainer.strategy.root_device.type == "cuda",
        }


class TrainLoader(DataLoader):
    """Loads training batches; when the plan has changed, the next batch is drawn anew, whatever the workers have fetched ahead.

    Args:
        before_batch: called before each batch.
        dataset: what is loaded, by a :class:`ltr.data.plans.PlanSampler` that starts at the trainer's position.
        options: see ``DataLoader``.
    """

    def __init__(self, before_batch: Callable[[], None], dataset: TrainBatches, **options: Any) -> None:
        super().__init__(dataset, **options)
        self.plan, self.before_batch = dataset.plan, before_batch
        self._version = self.plan.version

    def __iter__(self) -> Iterator[RankingBatch]:  # type: ignore[override]  # a generator is an iterator of batches too
        fetched: Iterator[RankingBatch] | None = None
        while True:
            self.before_batch()
            if self._version != self.plan.version:
                self._version, fetched = self.plan.version, None
                self._iterator = None  # persistent workers have copies of the old plan
            fetched = super().__iter__() if fetched is None else fetched
            try:
                batch = next(fetched)
            except StopIteration:
                return
            yield batch


def _leave_signals_to_the_trainer(worker: int) -> None:
    for known in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(known, signal.SIG_IGN)
