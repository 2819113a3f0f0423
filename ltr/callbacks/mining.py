"""Refreshes hard negatives while a ranker trains."""

import logging
from copy import copy
from pathlib import Path
from typing import Any

import lightning
from lightning.pytorch import Callback, LightningModule, Trainer

from ltr.callbacks.refresh_log import RefreshLog
from ltr.checkpoint import CONFIG
from ltr.checkpoint import NEGATIVES as FOLDER
from ltr.data.collection import Collection
from ltr.datamodules import TripletDataModule
from ltr.errors import InputError
from ltr.mining.filters import Recipe
from ltr.mining.judge import Judge
from ltr.mining.mined_negatives import MinedNegatives
from ltr.mining.miner import Miner
from ltr.mining.refresh import NegativesInForce, RefreshFolders, RefreshMoment, RefreshSchedule
from ltr.mining.side_process import SideProcess
from ltr.models import DualEncoder, Ranker
from ltr.models.named import Needs, ranker_named
from ltr.module import RankerModule
from ltr.processes import by_rank_0
from ltr.search.encoding_places import EncodingsInCache, EncodingsOfRun
from ltr.search.numbers import Numbers
from ltr.trainer_state import data_of, encodings_of, is_trial

log = logging.getLogger(__name__)


class HardNegativeMining(Callback):
    """Mines the negatives of a :class:`ltr.datamodules.TripletDataModule` with the weights as they
    stand, again and again.

    With ``negatives: mined`` the first refresh comes before the first batch. With another source,
    training begins with that, and the first refresh comes when it is due. A refresh encodes the
    corpus and the training queries, searches, filters (:class:`ltr.mining.filters.Recipe`), writes
    a folder ``negatives/step=N`` in the run folder, and the next batch draws from it, whatever the
    workers have fetched ahead. Every process encodes and searches its share; all draw from the same
    folder, so all must reach the run folder.

    Of several sources, each whose ``negatives`` are ``mined`` is searched for its own, one after the
    other, into ``negatives/SOURCE/step=N``.

    A run that was interrupted resumes with the negatives of its checkpoint. One that was killed in
    a refresh does it again.

    Args:
        every_n_epochs: epochs between two refreshes; None: only at the beginning.
        every_n_steps: optimiser steps between two refreshes, instead of epochs.
        recipe: how negatives are chosen among the documents that are found.
        miner: a dual encoder that searches and stays as it is: a model, or the name of one (a run
            folder for its best weights, a checkpoint, a folder, ``package:NAME`` or a hub id).
            None: what is trained searches, the ranker itself or the dual encoder that the option
            ``model.miner`` trains beside it (:attr:`ltr.module.RankerModule.searcher`).
        judge: a second ranker of texts, a model or the name of one: what it scores above the
            relevant document is a likely false negative, and left out.
        rescore: whether the ranker that is trained, a cross-encoder, scores all that the search
            has found and the filters leave, so that negatives are those that are hard for itself.
        asynchronous: whether a refresh, but for one before the first batch, runs in a process
            beside the training. This goes on, and takes the new negatives when they are there, so a
            run can't be repeated bit by bit. For runs of ``ltr fit``.
        keep: folders of negatives that are kept, the newest, beside that of the last checkpoint;
            None: all. A checkpoint can't be resumed without its own.

    Raises:
        InputError: for an option out of its bounds; at the start, for other data, or a ranker that
            can't search.
    """

    def __init__(
        self,
        every_n_epochs: int | None = 1,
        every_n_steps: int | None = None,
        recipe: Recipe = Recipe(),
        miner: DualEncoder | str | None = None,
        judge: Ranker | str | None = None,
        rescore: bool = False,
        asynchronous: bool = False,
        keep: int | None = None,
    ) -> None:
        counts = {"every_n_epochs": every_n_epochs, "every_n_steps": every_n_steps, "keep": keep}
        for name, value in counts.items():
            if value is not None and value < 1:
                raise InputError(
                    f"HardNegativeMining: {name} must be at least 1, got {value}",
                    option="trainer.callbacks",
                )
        if every_n_steps is not None:
            every_n_epochs = None
        self.schedule = RefreshSchedule(every_n_epochs, every_n_steps)
        self.recipe = recipe
        self.keep = keep
        self.rescore = rescore
        # The model of the option miner: a dual encoder that is not trained, or None.
        self.fixed_searcher = _frozen(miner, "miner", "embeddings")
        self.judging_ranker = _frozen(judge, "judge", "texts")
        if self.fixed_searcher is not None and not isinstance(self.fixed_searcher, DualEncoder):
            raise _error(
                f"searches with a dual encoder, and {type(self.fixed_searcher).__name__} is none; name another miner"
            )
        self.asynchronous = asynchronous
        self._source = ""  # the name of the one that is mined here, where there are several
        self._log = RefreshLog()
        self._side_process = SideProcess()
        self._reset()

    def _reset(self) -> None:
        """The state of a run that begins."""
        # The negatives that are drawn from: what a checkpoint says of them, and they themselves; None
        # before the first refresh. A refresh sets both together.
        self._in_force: NegativesInForce | None = None
        self._negatives: MinedNegatives | None = None
        # The step of the refresh that the last checkpoint names: its folder is needed to resume.
        self._saved_step: int | None = None
        # When the process beside the training was started; None again once its negatives are taken.
        self._side_process_began: RefreshMoment | None = None
        # A copy of this for each of several sources, by name; then nothing of the above is used here.
        self._of_sources: dict[str, HardNegativeMining] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        self._reset()  # another run may have been before
        assert isinstance(pl_module, RankerModule)
        data = data_of(trainer)
        if not isinstance(data, TripletDataModule):
            raise _error(
                f"needs a TripletDataModule, got {type(data).__name__}; set data to ltr.datamodules.TripletDataModule"
            )
        if data.data_sources:
            self._begin_sources(data)
        # A single source is replaced whole by the first refresh; of several, only 'mined' is.
        elif len(data.sources) > 1 and "mined" not in data.sources:
            raise _error(
                f"needs negatives with the source 'mined', got {', '.join(data.sources)}; name it, with a number"
            )
        name = type(pl_module.ranker).__name__
        searcher = self.searcher(pl_module)
        if searcher is None:
            raise _error(
                f"searches with a dual encoder, and {name} is none; give one as miner, or train one as model.miner"
            )
        if isinstance(searcher, DualEncoder):
            searcher.reads.docs.check_one_embedding("HardNegativeMining")
        if self.fixed_searcher is not None and pl_module.miner is not None:
            raise _error(
                "got a miner that stays as it is, and the model trains one; leave one of them out"
            )
        if self.rescore and searcher is pl_module.ranker:
            raise _error(
                f"got rescore, but {name} has scored what it found by searching; leave rescore out"
            )

    def _begin_sources(self, data: TripletDataModule) -> None:
        """Have a copy of this callback for each source whose negatives are mined."""
        names = list(data.mined_parts())
        if not names:
            raise _error(
                "needs a source whose negatives are 'mined', and path names none; write it there"
            )
        if self.asynchronous:
            raise _error(
                "refreshes several sources one after the other, and not beside the training; leave out asynchronous"
            )
        for name in names:
            of_source = copy(self)
            of_source._reset()
            of_source._source = name
            of_source._log = RefreshLog(name)
            self._of_sources[name] = of_source

    def searcher(self, module: RankerModule) -> Ranker | None:
        """What searches for the negatives: the dual encoder of the option ``miner``, or the one that
        is trained; None without either.
        """
        return module.searcher if self.fixed_searcher is None else self.fixed_searcher

    def state_dict(self) -> dict[str, Any]:
        if self._of_sources:
            return {name: each.state_dict() for name, each in self._of_sources.items()}
        return {} if self._in_force is None else self._in_force.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self._of_sources:
            if state_dict.keys() != self._of_sources.keys():
                raise _error(
                    f"got a checkpoint with the negatives of other sources, {', '.join(state_dict)}; take another one"
                )
            for name, each in self._of_sources.items():
                each.load_state_dict(state_dict[name])
        elif state_dict:
            self._in_force = NegativesInForce.of_state_dict(state_dict)
            self._saved_step = self._in_force.step

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._saved_step = None if self._in_force is None else self._in_force.step
        for each in self._of_sources.values():
            each.on_save_checkpoint(trainer, pl_module, checkpoint)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        data = data_of(trainer)
        assert isinstance(data, TripletDataModule), "setup has checked it"
        assert isinstance(pl_module, RankerModule), "setup has checked it"
        for model in (self.fixed_searcher, self.judging_ranker):
            if model is not None:
                model.to(pl_module.device)
        callbacks = self._of_sources or {"": self}
        parts = data.mined_parts()
        for name, each in callbacks.items():
            each._resume(trainer, parts[name])
        data.has_refreshes = True
        data.before_batch = lambda: self._refresh_all_if_due(trainer, pl_module, data)

    def _resume(self, trainer: Trainer, data: TripletDataModule) -> None:
        """Let training draw from the negatives of its checkpoint, if it has some."""
        if self._in_force is not None:
            folders = self._folders(trainer)
            self._negatives = folders.open_for_checkpoint(self._in_force, data.collection)
            data.take_negatives(self._negatives, resumed=True)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        data = data_of(trainer)
        if stage == "fit" and data is not None:
            data.before_batch = None
            data.has_refreshes = False
        self._end_side_process()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._end_side_process()

    def _end_side_process(self) -> None:
        self._side_process.end()
        self._side_process_began = None

    def _refresh_all_if_due(
        self, trainer: Trainer, module: RankerModule, data: TripletDataModule
    ) -> None:
        if not self._of_sources:
            self._refresh_if_due(trainer, module, data)
            return
        parts = data.mined_parts()
        data.is_refreshing = True
        try:
            for name, each in self._of_sources.items():
                each._refresh_if_due(trainer, module, parts[name])
        finally:
            data.is_refreshing = False

    def _refresh_if_due(
        self, trainer: Trainer, module: RankerModule, data: TripletDataModule
    ) -> None:
        if self._side_process_began is not None:
            self._take_from_side_process(trainer, module, data, self._side_process_began)
            return
        now = RefreshMoment(trainer.current_epoch, trainer.global_step)
        is_due = self.schedule.is_due(now.epoch, now.step, self._in_force)
        if not data.awaits_negatives and not is_due:
            return
        data.is_refreshing = True
        try:
            miner = self._make_miner(trainer, module, data)
            # A trial run leaves no folder, so it mines here.
            is_beside = self.asynchronous and not is_trial(trainer)
            if is_beside and not data.awaits_negatives:
                by_rank_0(lambda: self._start_side_process(trainer, module))
                self._side_process_began = now
                return
            negatives = self._folders(trainer).mine_or_open(
                miner,
                now,
                self._negatives,
                lambda miner: self._mine(miner, trainer, data),
                write=not is_trial(trainer),
            )
        finally:
            data.is_refreshing = False
        if not is_trial(trainer):
            self._folders(trainer).remove_older(now.step, self._saved_step)
        self._take(trainer, module, data, negatives, now)

    def _start_side_process(self, trainer: Trainer, module: RankerModule) -> None:
        weights = {}
        for name, value in module.state_dict().items():
            # The two that may search or score; a loss or a margin with parameters does not.
            if name.startswith(("ranker.", "miner.")):
                weights[name] = value
        config = Path(trainer.default_root_dir, CONFIG)
        folder = self._folders(trainer).path(trainer.global_step)
        device = trainer.strategy.root_device
        self._side_process.start(config, weights, lightning.__version__, folder, device)

    def _take_from_side_process(
        self, trainer: Trainer, module: RankerModule, data: TripletDataModule, began: RefreshMoment
    ) -> None:
        """Take the negatives that were mined beside the training since it began, if they are
        there.
        """
        if not by_rank_0(self._side_process.is_done):
            return
        folders = self._folders(trainer)
        negatives = folders.open(began.step, data.collection)
        overlap = 1.0 if self._negatives is None else negatives.overlap(self._negatives)
        negatives.manifest.update(
            step=began.step,
            overlap=round(overlap, 4),
            staleness=trainer.global_step - began.step,
        )
        self._end_side_process()
        self._take(trainer, module, data, negatives, began)
        folders.remove_older(began.step, self._saved_step)

    def _take(
        self,
        trainer: Trainer,
        module: RankerModule,
        data: TripletDataModule,
        negatives: MinedNegatives,
        mined_at: RefreshMoment,
    ) -> None:
        """Let training draw from the negatives that a refresh of this moment has made."""
        whole = data_of(trainer)
        assert isinstance(whole, TripletDataModule), "setup has checked it"
        data.take_negatives(negatives, position=whole.position_of(self._source))
        self._negatives = negatives
        epoch, step = mined_at
        self._in_force = NegativesInForce(epoch, step, key=negatives.manifest["key"])
        judged = data.collection.learnable("train")
        self._log.report_refresh(trainer, module, data.collection, judged, negatives)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        assert isinstance(pl_module, RankerModule)
        self._log.report_next_step(trainer, pl_module)

    def _folders(self, trainer: Trainer) -> RefreshFolders:
        return RefreshFolders(Path(trainer.default_root_dir, FOLDER, self._source), self.keep)

    def _make_miner(self, trainer: Trainer, module: RankerModule, data: TripletDataModule) -> Miner:
        searcher = self.searcher(module)
        assert isinstance(searcher, DualEncoder), "setup has checked it"
        judge, rescorer = self.judge_and_rescorer(module, data.collection)
        return Miner(
            searcher,
            data.collection,
            data.collection.learnable("train"),
            self.recipe,
            min_negatives=data.mined_per_row,
            judge=judge,
            rescorer=rescorer,
            seed=(data.seed, trainer.global_step),
        )

    def _mine(self, miner: Miner, trainer: Trainer, data: TripletDataModule) -> MinedNegatives:
        corpus = data.collection.corpus.folder
        encodings = encodings_of(trainer, "mining", corpus)
        # Float32 where a validation by search reads the same shards.
        numbers: Numbers = "float16" if data.corpus is None else "float32"
        if self.fixed_searcher is not None:
            numbers = "float16"
            if isinstance(encodings, EncodingsOfRun):  # weights that stay may lie in the cache
                run_folder = encodings.run_folder
                encodings = EncodingsInCache(corpus, run_folder, run_folder)
        return miner.mine(
            encodings, trainer.precision_plugin.forward_context, str(trainer.precision), numbers
        )

    def judge_and_rescorer(
        self, module: RankerModule, collection: Collection
    ) -> tuple[Judge | None, Judge | None]:
        """The model of the option ``judge``; and the ranker that is trained, where ``rescore`` asks
        for its scores.
        """
        rescoring_ranker = module.ranker if self.rescore else None
        judge = _judge_of(self.judging_ranker, collection)
        return judge, _judge_of(rescoring_ranker, collection)


def _frozen(model: Ranker | str | None, option: str, needs: Needs) -> Ranker | None:
    """The model of an option, which is not trained; where the option names it, it is built."""
    if isinstance(model, str):
        try:
            model = ranker_named(model, f"HardNegativeMining: {option}", needs)
        except InputError as error:
            error.option = error.option or "trainer.callbacks"
            raise
    return None if model is None else model.eval().requires_grad_(False)


def _judge_of(model: Ranker | None, collection: Collection) -> Judge | None:
    return None if model is None else Judge(type(model).__name__, model, collection)


def _error(text: str) -> InputError:
    return InputError(f"HardNegativeMining {text}", option="trainer.callbacks")
