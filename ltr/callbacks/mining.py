"""Refreshes hard negatives while a ranker trains."""

import logging
import shutil
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from ltr.callbacks.refresh_log import RefreshLog
from ltr.callbacks.side_process import SideProcess
from ltr.data.collection import Collection
from ltr.datamodules import TripletDataModule
from ltr.errors import InputError
from ltr.mining.filters import Recipe
from ltr.mining.judge import Judge
from ltr.mining.miner import Miner
from ltr.mining.negatives import MinedNegatives
from ltr.models import DualEncoder, Ranker
from ltr.module import RankerModule, data_of, is_trial
from ltr.run.ranker import ranker_of
from ltr.search.ranks import by_rank_0, together

log = logging.getLogger(__name__)


class HardNegativeMining(Callback):
    """Mines the negatives of a :class:`ltr.datamodules.TripletDataModule` with the weights as they stand, again and again.

    With ``negatives: mined`` the first refresh comes before the first batch. With another source, training begins with that, and
    the first refresh comes when it is due. A refresh encodes the corpus and the training queries, searches, filters
    (:class:`ltr.mining.filters.Recipe`), writes a folder ``negatives/step=N`` in the run folder, and the next batch draws from
    it, whatever the workers have fetched ahead. Every process encodes and searches its share; all draw from the same folder, so
    all must reach the run folder.

    A run that was interrupted resumes with the negatives of its checkpoint. One that was killed in a refresh does it again.

    Args:
        every_n_epochs: epochs between two refreshes; None: only at the beginning.
        every_n_steps: optimiser steps between two refreshes, instead of epochs.
        min_overlap: refresh only when fewer of the negatives than this share would be found again, by a sample of 100 queries;
            looked at when a refresh is due, see :meth:`ltr.mining.miner.Miner.overlap_now`. None: always.
        recipe: how negatives are chosen among the documents that are found.
        miner: the dual encoder that searches, and stays as it is: a model, or a run folder (its best weights) or checkpoint.
            None: the ranker that is trained, or the miner that is trained beside it (:class:`ltr.module.RankerModule`).
        judge: a second ranker of texts, as a model, run folder or checkpoint: what it scores above the relevant document is a
            likely false negative, and left out.
        rescore: whether the ranker that is trained, a cross-encoder, scores all that the miner found and the filters left, so
            that negatives are those that are hard for itself.
        asynchronous: whether a refresh, but for one before the first batch, runs in a process beside the training. This goes on,
            and takes the new negatives when they are there, so a run can't be repeated bit by bit. For runs of ``ltr fit``.
        keep: folders of negatives that are kept, the newest, beside that of the last checkpoint; None: all. A checkpoint can't be
            resumed without its own.

    Raises:
        InputError: for an option out of its bounds; at the start, for other data, or a ranker that can't search.
    """

    def __init__(
        self,
        every_n_epochs: int | None = 1,
        every_n_steps: int | None = None,
        min_overlap: float | None = None,
        recipe: Recipe = Recipe(),
        miner: DualEncoder | str | None = None,
        judge: Ranker | str | None = None,
        rescore: bool = False,
        asynchronous: bool = False,
        keep: int | None = None,
    ) -> None:
        for name, value in (("every_n_epochs", every_n_epochs), ("every_n_steps", every_n_steps), ("keep", keep)):
            if value is not None and value < 1:
                raise InputError(f"HardNegativeMining: {name} must be at least 1, got {value}", option="trainer.callbacks")
        self.every_n_epochs, self.every_n_steps = every_n_epochs if every_n_steps is None else None, every_n_steps
        if min_overlap is not None and not 0 < min_overlap <= 1:
            text = f"HardNegativeMining: min_overlap must be above 0 and at most 1, got {min_overlap}"
            raise InputError(text, option="trainer.callbacks")
        if min_overlap is not None and rescore:
            raise _error("looks at the miner alone for min_overlap, not at what rescore changes; leave one of them out")
        self.min_overlap, self.recipe, self.keep, self.rescore = min_overlap, recipe, keep, rescore
        self.miner, self.judge = _fixed(miner, "miner"), _fixed(judge, "judge")
        if self.miner is not None and not isinstance(self.miner, DualEncoder):
            raise _error(f"searches with a dual encoder, and {type(self.miner).__name__} is none; name another miner")
        # Epoch and step when a refresh was last due; of the negatives in force, the step of their refresh and their key.
        self._state: dict[str, Any] = {}
        self._saved: int | None = None  # the step of the refresh that the last checkpoint names
        self._last: MinedNegatives | None = None
        self._told = RefreshLog()
        self.asynchronous, self._side = asynchronous, SideProcess()
        self._begun: dict[str, Any] = {}  # epoch and step when the process beside the training was started, while it runs
        self.is_mining = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        self._state, self._saved, self._last = {}, None, None  # another run may have been before
        assert isinstance(pl_module, RankerModule)
        data = data_of(trainer)
        if not isinstance(data, TripletDataModule):
            raise _error(f"needs a TripletDataModule, got {type(data).__name__}; set data to ltr.datamodules.TripletDataModule")
        if len(data.sources) > 1 and "mined" not in data.sources:
            raise _error(f"needs negatives with the source 'mined', got {', '.join(data.sources)}; name it, with a number")
        name = type(pl_module.ranker).__name__
        if self.miner is None and pl_module.searcher is None:
            raise _error(f"searches with a dual encoder, and {name} is none; give one as miner, or train one as model.miner")
        if self.miner is not None and pl_module.miner is not None:
            raise _error("got a miner that stays as it is, and the model trains one; leave one of them out")
        if self.rescore and (self.miner or pl_module.searcher) is pl_module.ranker:
            raise _error(f"got rescore, but {name} has scored what it found by searching; leave rescore out")

    def state_dict(self) -> dict[str, Any]:
        return self._state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._state, self._saved = state_dict, state_dict.get("mined")

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._saved = self._state.get("mined")

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        data = data_of(trainer)
        assert isinstance(data, TripletDataModule) and isinstance(pl_module, RankerModule), "setup has checked it"
        for model in (self.miner, self.judge):
            if model is not None:
                model.to(pl_module.device)
        if self._state:
            self._last = self._of_checkpoint(trainer, data)
            data.take_negatives(self._last, resumed=True)
        data.before_batch = lambda: self._refresh_if_due(trainer, pl_module, data)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        data = data_of(trainer)
        if stage == "fit" and data is not None:
            data.before_batch = None
        self._end_side()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._end_side()

    def _end_side(self) -> None:
        self._side.end()
        self._begun = {}

    def _refresh_if_due(self, trainer: Trainer, module: RankerModule, data: TripletDataModule) -> None:
        epoch, step = trainer.current_epoch, trainer.global_step
        if self._begun:
            self._take_over(trainer, module, data)
            return
        if not data.awaits_negatives and not self._is_due(epoch, step):
            return
        self.is_mining = True
        try:
            miner = self._miner_of(trainer, module, data)
            if self._is_fresh(miner, trainer):
                self._state |= {"epoch": epoch, "step": step}
                return
            if self.asynchronous and not data.awaits_negatives:
                by_rank_0(lambda: self._side.start(trainer, module, _root(trainer) / f"step={step}"))
                self._begun = {"epoch": epoch, "step": step}
                return
            self._last = self._refreshed(trainer, miner)
        finally:
            self.is_mining = False
        data.take_negatives(self._last)
        self._state = {"epoch": epoch, "step": step, "mined": step, "key": self._last.manifest["key"]}
        self._told.refreshed(trainer, module, miner, self._last)

    def _take_over(self, trainer: Trainer, module: RankerModule, data: TripletDataModule) -> None:
        """Take the negatives that were mined beside the training, if they are there."""
        if not by_rank_0(self._side.is_done):
            return
        step, before = self._begun["step"], self._last
        found = together(lambda: MinedNegatives.open(_root(trainer) / f"step={step}", data.collection))
        self._last, state = found, self._begun
        stale = trainer.global_step - step
        found.manifest.update(step=step, overlap=1.0 if before is None else round(found.overlap(before), 4), staleness=stale)
        self._end_side()
        data.take_negatives(found)
        self._state = state | {"mined": step, "key": found.manifest["key"]}
        self._told.refreshed(trainer, module, self._miner_of(trainer, module, data), found)
        by_rank_0(lambda: self._remove_older(_root(trainer), step))

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        assert isinstance(pl_module, RankerModule)
        self._told.after_step(trainer, pl_module)

    def _is_due(self, epoch: int, step: int) -> bool:
        """Whether a refresh of the schedule has become due since the last one."""
        if self.every_n_steps is not None:
            return step // self.every_n_steps > self._state.get("step", 0) // self.every_n_steps
        n = self.every_n_epochs
        return n is not None and epoch // n > self._state.get("epoch", 0) // n

    def _miner_of(self, trainer: Trainer, module: RankerModule, data: TripletDataModule) -> Miner:
        model = module.searcher if self.miner is None else self.miner
        assert isinstance(model, DualEncoder), "setup has checked it"
        judged, seed = data.collection.learnable("train"), (data.seed, trainer.global_step)
        scorers = self.scorers(module, data.collection)
        return Miner(model, data.collection, judged, self.recipe, data.mined_per_row, *scorers, seed)

    def scorers(self, module: RankerModule, collection: Collection) -> tuple[Judge | None, Judge | None]:
        """The judge, and what scores anew."""

        def scorer(model: Ranker | None) -> Judge | None:
            return None if model is None else Judge(type(model).__name__, model, collection)

        return scorer(self.judge), scorer(module.ranker if self.rescore else None)

    def _is_fresh(self, miner: Miner, trainer: Trainer) -> bool:
        """Whether the negatives in force would be found again, as far as ``min_overlap`` asks."""
        if self.min_overlap is None or self._last is None:
            return False
        with trainer.precision_plugin.forward_context():
            overlap = miner.overlap_now(self._last)
        log.info("step %d: %.0f %% of the hard negatives would be found again, by a sample", trainer.global_step, 100 * overlap)
        for logger in trainer.loggers:
            logger.log_metrics({"mining/overlap_sampled": overlap}, trainer.global_step)
        return overlap >= self.min_overlap

    def _refreshed(self, trainer: Trainer, miner: Miner) -> MinedNegatives:
        """The negatives of this moment: mined, or found where this run has left them when it was killed."""
        step, root, collection = trainer.global_step, _root(trainer), miner.collection
        folder = root / f"step={step}"
        if self._last is not None and by_rank_0(lambda: MinedNegatives.key_of(folder) == miner.key):
            found = together(lambda: MinedNegatives.open(folder, collection))
        else:
            found = miner.mine(root.parent, trainer.precision_plugin.forward_context)
            found.manifest.update(epoch=trainer.current_epoch, step=step)
            if self._last is not None:
                found.manifest["overlap"] = round(found.overlap(self._last), 4)
            if not is_trial(trainer):
                by_rank_0(lambda: _write(found, folder, collection))
        by_rank_0(lambda: self._remove_older(root, step))
        return found

    def _remove_older(self, root: Path, step: int) -> None:
        names = (one.name.removeprefix("step=") for one in root.glob("step=*"))
        older = sorted((int(name) for name in names if name.isdecimal() and int(name) < step), reverse=True)
        for one in {*older[self.keep - 1 :]} - {self._saved} if self.keep else ():  # overlays of an audit stay
            shutil.rmtree(root / f"step={one}")

    def _of_checkpoint(self, trainer: Trainer, data: TripletDataModule) -> MinedNegatives:
        folder = _root(trainer) / f"step={self._state['mined']}"

        def opened() -> MinedNegatives:
            if MinedNegatives.key_of(folder) != self._state["key"]:
                text = f"the checkpoint was trained on the negatives in {folder}, which are not there (any more)"
                raise InputError(f"{text}; resume from another checkpoint, or begin again")
            return MinedNegatives.open(folder, data.collection)

        return together(opened)


def _write(found: MinedNegatives, folder: Path, collection: Collection) -> None:
    if folder.exists():  # of other weights: an earlier run in this folder
        shutil.rmtree(folder)
    found.save(folder, collection)


def _fixed(model: Ranker | str | None, name: str) -> Ranker | None:
    """A model that is not trained, built from its run where that is named."""
    if isinstance(model, str):
        try:
            model = ranker_of(model, f"HardNegativeMining: {name}")
        except InputError as error:
            error.option = error.option or "trainer.callbacks"
            raise
    return None if model is None else model.eval().requires_grad_(False)


def _root(trainer: Trainer) -> Path:
    return Path(trainer.default_root_dir) / "negatives"


def _error(text: str) -> InputError:
    return InputError(f"HardNegativeMining {text}", option="trainer.callbacks")
