"""What all data modules share: processes, lists to evaluate, batches to train on, and resuming."""

from abc import abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader

from ltr.data.collate import Collator
from ltr.data.files import digest_of_arrays
from ltr.data.formats import Reads
from ltr.data.query_lists import LabelledList
from ltr.data.sampling.buckets import Buckets
from ltr.data.sampling.plan import EvalBatches, Plan, PlanSampler, ShareOfRank, TrainBatches
from ltr.data.sampling.rows import Rows
from ltr.datamodules.loading import Loading
from ltr.errors import InputError
from ltr.search.evaluation import SearchedCorpus


class RankingDataModule(LightningDataModule):
    """Serves lists to ``validate`` (dev), ``test`` and ``predict`` (test), and ``train`` to
    ``fit``.

    A child says what a stage opens (:meth:`open`), which lists a split has (:meth:`pools`), and how
    training rows form batches (:meth:`plan`).

    A training batch is a pure function of (seed, epoch, step, rank): the same with any number of
    workers, and after a resume.

    Args:
        path: where the data lies.
        loading: how batches are drawn and collated, see :class:`ltr.datamodules.Loading`.

    Attributes:
        train: the training batches, after ``setup("fit")``.
        collator: makes batches of lists, after ``setup``; of training lists after ``setup("fit")``.
        seed: of all sampling.
        needs_in_batch: whether lists hold relevant documents alone, so that they must be ranked
            against those of other lists.
        has_distances: whether training lists bring the distances of mined negatives, for margins
            that read them.
        has_soft_labels: whether training lists have labels between irrelevant and relevant, after
            ``setup("fit")``.
        teaches: whether the labels of training lists are the scores of a teacher.
        batch_size: training lists per step and process; None where a batch is counted in groups.
        before_batch: called in the main process before each training batch is fetched, when all is
            done that belongs to the last.
        is_refreshed: whether a callback renews what training draws from, before some batches.
        is_refreshing: whether it does so now: an interruption may throw that work away, as a resume
            does it again.
        corpus: the corpus to search for the documents of evaluated lists, after ``setup``; None
            where lists bring them.
        content: a digest of each thing that the run learns from, after ``setup("fit")``; a resume
            needs the same.
    """

    needs_in_batch: bool = False
    has_distances: bool = False
    has_soft_labels: bool = False
    teaches: bool = False
    batch_size: int | None = None
    corpus: SearchedCorpus | None = None
    before_batch: Callable[[], None] | None = None
    is_refreshed: bool = False
    is_refreshing: bool = False
    collator: Collator  # from setup on

    def __init__(self, path: str, loading: Loading = Loading()) -> None:
        super().__init__()
        self.path = path
        self.loading = loading
        self.seed = loading.sampling_seed
        self.train: TrainBatches | None = None
        self.content: dict[str, str] = {}
        self._reads: Reads | None = None  # set by hand, for use without a trainer
        self._restored = 0  # batches that the resumed checkpoint has consumed

    @property
    def reads(self) -> Reads | None:
        """What the ranker reads, and so how a batch is laid out: that of the trainer's module.

        Without a trainer, or for a module that does not say it, set it: ``data.reads =
        ranker.reads``.
        """
        module = None if self.trainer is None else self.trainer.lightning_module
        of_module: Reads | None = getattr(module, "reads", None)
        return self._reads if of_module is None else of_module

    @reads.setter
    def reads(self, reads: Reads | None) -> None:
        self._reads = reads

    def setup(self, stage: str) -> None:
        if stage == "fit":
            self._restored = 0
            self.before_batch = None
        self.open(stage)
        if stage == "fit":
            self.train = TrainBatches(self.plan(), self.collator)

    @abstractmethod
    def open(self, stage: str) -> None:
        """Open what ``fit``, ``validate``, ``test`` or ``predict`` needs."""

    @abstractmethod
    def plan(self) -> Plan:
        """Which training lists form a batch. What is opened and learnt from goes into ``content``;
        :meth:`buckets` makes the plan of rows, :class:`ltr.data.sampling.group_plan.GroupPlan` that
        of groups.
        """

    def buckets(self, rows: Rows) -> Buckets:
        """Batches of ``batch_size`` rows of similar length."""
        assert self.batch_size is not None, "only groups are counted otherwise"
        return Buckets(
            rows,
            self.collator.row_length,
            self.batch_size,
            window=self.loading.bucket_window,
            seed=self.seed,
            rank=self.rank,
            world_size=self.world_size,
        )

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
        query_rows: list[int] = []
        pools = self.pools(split)
        if pools is not None:
            for number in ShareOfRank(len(pools), self.rank, self.world_size):
                query_rows += [row.query_row for row in pools.batches[number]]
        return np.asarray(query_rows, dtype=np.int64)

    def evaluated(self, split: str) -> dict[str, str]:
        """A digest of each thing that the numbers of a split depend on, beside the ranker:
        judgements, candidates and texts.
        """
        lists: list[LabelledList] = []
        pools = self.pools(split)
        if pools is not None:
            for batch in pools.batches:
                lists += batch
        lists.sort(key=lambda row: row.query_row)
        queries = np.array([row.query_row for row in lists])
        judged: list[np.ndarray | None] = []
        # Where all judgements are known, the order and the labels of the candidates can't change the
        # numbers, and are no part of this digest.
        whole = all(row.judged_rows is not None for row in lists)
        for row in lists:
            if not whole:
                judged += [row.doc_rows, row.labels]
            judged += [row.judged_rows, row.judged_grades]
        return {
            "judgements": _digest(queries, judged),
            "candidates": _digest(queries, [row.doc_rows for row in lists]),
        }

    def conventions(self) -> dict[str, object]:
        """What a report must say of the evaluated lists."""
        return {}

    def train_dataloader(self) -> DataLoader:
        assert self.train is not None, "setup('fit') comes first"
        planned = self.train.plan.per_step // self.world_size
        # Lightning's search for a batch size, say, would measure nothing.
        if self.batch_size is not None and self.batch_size != planned:
            text = f"batch_size is fixed by setup('fit'), there {planned}, and now {self.batch_size}; call setup('fit') again"
            raise InputError(text, option="batch_size")
        if len(self.train) == 0:
            least = f"a row to learn from for each of the {self.world_size} processes"
            raise InputError(
                f"{self.path}: split 'train' must have {least}, got {self.train.plan.n_rows} in all"
            )
        # Without a trainer nobody knows the position: the sampler then starts the epoch that
        # Lightning's set_epoch says.
        sampler = PlanSampler(self.train.plan, None if self.trainer is None else self._position)
        return self.loading.train_loader(
            self.train, sampler, self._before_batch, pinned=self._on_gpu
        )

    def state_dict(self, unfinished: int = 0) -> dict:
        """What a checkpoint keeps: the batches that the trainer has consumed, how many make an
        epoch, and what is in it.

        Args:
            unfinished: batches of these that a resume repeats.
        """
        if not self.train:
            return {}
        consumed = self._consumed() - unfinished
        place = {"consumed": consumed, "steps": self._steps(), "per_step": self.train.plan.per_step}
        return place | {
            "content": self.content,
            "kept": self.train.plan.frozen_batches(*divmod(consumed, self._steps())),
        }

    def load_state_dict(self, state_dict: dict) -> None:
        """Resume from a checkpoint, if the trainer fits; its position means nothing where epochs or
        steps have another size.
        """
        if self.trainer is None or self.trainer.state.fn != "fit" or "steps" not in state_dict:
            return
        assert self.train is not None, "setup('fit') comes first"
        then = state_dict.get("content", self.content)
        differ = [
            name
            for name in sorted({*then, *self.content})
            if then.get(name) != self.content.get(name)
        ]
        if differ:
            hint = (
                "resume with the data of the run, or start a new run from its weights (--init_from)"
            )
            raise InputError(
                f"{self.path}: the checkpoint was trained on other {' and other '.join(differ)}; {hint}"
            )
        if state_dict["steps"] != self._steps():
            came = f"epochs of {state_dict['steps']} steps, here they have {self._steps()}"
            hint = "resume with the same data, batch_size, devices and limit_train_batches"
            raise InputError(f"the checkpoint comes from {came}; {hint}")
        per_step = self.train.plan.per_step
        if state_dict.get("per_step", per_step) != per_step:
            came = f"steps of {state_dict['per_step']} lists, here they have {per_step}"
            raise InputError(
                f"the checkpoint comes from {came}; resume with the same batch_size and devices, or the same groups"
            )
        self._restored = state_dict["consumed"]
        if state_dict.get("kept") is not None:
            self.train.plan.freeze(*self._position(), state_dict["kept"])

    def _consumed(self) -> int:
        """Batches since the start of the run that the trainer has consumed, not those that workers
        have fetched.

        Lightning makes the loader's iterator before it restores its own progress; until then the
        checkpoint's count holds.
        """
        total = (
            None if self.trainer is None else self.trainer.fit_loop.epoch_loop.batch_progress.total
        )
        # Lightning's types are wrong: the tracker is declared as a parent, which does not count
        # what is processed.
        return 0 if total is None else max(self._restored, total.processed)  # type: ignore[attr-defined]

    def _steps(self) -> int:
        """Steps of an epoch in every process, as the trainer limits them."""
        assert self.train is not None, "setup('fit') comes first"
        limit = 1.0 if self.trainer is None else self.trainer.limit_train_batches
        if isinstance(limit, int):
            return min(len(self.train), limit)
        return max(1, int(len(self.train) * limit))

    def _position(self) -> tuple[int, int]:
        """Epoch and step to start or resume from."""
        return divmod(self._consumed(), self._steps())

    def val_dataloader(self) -> DataLoader | list:
        return self._eval_loader("dev")

    def test_dataloader(self) -> DataLoader | list:
        return self._eval_loader("test")

    predict_dataloader = test_dataloader

    def _eval_loader(self, split: str) -> DataLoader | list:
        batches = self.pools(split)
        if batches is None:
            return []
        share = ShareOfRank(len(batches), self.rank, self.world_size)
        return self.loading.loader(batches, share, pinned=self._on_gpu)

    @property
    def _on_gpu(self) -> bool:
        return self.trainer is not None and self.trainer.strategy.root_device.type == "cuda"

    def _before_batch(self) -> None:
        if self.before_batch is not None:
            self.before_batch()


def _digest(queries: np.ndarray, arrays: list[np.ndarray | None]) -> str:
    """Of arrays of queries, and of how long each is; those that are not there are left out."""
    there = [array for array in arrays if array is not None]
    lengths = np.array([len(array) for array in there])
    return digest_of_arrays(queries, lengths, *there)
