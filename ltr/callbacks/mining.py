"""Refreshes hard negatives while a ranker trains."""

import logging
from pathlib import Path
from typing import Any

import lightning
from lightning.pytorch import Callback, LightningModule, Trainer

from ltr.callbacks.refresh_log import RefreshLog
from ltr.checkpoint import CONFIG, NEGATIVES_FOLDER
from ltr.data.collection import Collection
from ltr.datamodules import RankingDataModule, TripletDataModule
from ltr.datamodules.text_source import TextSource
from ltr.errors import InputError
from ltr.mining.filters import Recipe
from ltr.mining.judge import TextScorer
from ltr.mining.mined_negatives import MinedNegatives
from ltr.mining.miner import Miner, check_index
from ltr.mining.refresh import NegativesInForce, RefreshFolders, RefreshMoment, RefreshSchedule
from ltr.mining.side_process import SideProcess
from ltr.models import DualEncoder, Ranker
from ltr.models.named import Needs, ranker_named
from ltr.module import RankerModule
from ltr.processes import by_rank_0
from ltr.search.encoding_places import EncodingsInCache, EncodingsOfRun
from ltr.search.numbers import Numbers
from ltr.trainer_state import data_of, is_trial, place_of_encodings

log = logging.getLogger(__name__)


class SourceRefreshes:
    """The refreshes of the negatives of one source, in one run.

    Args:
        source: is searched.
        folders: of its refreshes.

    Attributes:
        in_force, negatives: those that are drawn from: what a checkpoint says of them, and they
            themselves; None before the first refresh.
        saved_step: of the refresh that the last checkpoint names: its folder is needed to resume.
    """

    def __init__(self, source: TextSource, folders: RefreshFolders) -> None:
        self.source = source
        self.folders = folders
        self.log = RefreshLog(source.name)
        self.in_force: NegativesInForce | None = None
        self.negatives: MinedNegatives | None = None
        self.saved_step: int | None = None

    def take(self, negatives: MinedNegatives, moment: RefreshMoment) -> None:
        """Put the negatives of a refresh in force."""
        self.negatives = negatives
        self.in_force = NegativesInForce(moment.epoch, moment.step, key=negatives.manifest["key"])

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {} if self.in_force is None else self.in_force.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what a checkpoint has kept."""
        if state:
            self.in_force = NegativesInForce.from_state_dict(state)
            self.saved_step = self.in_force.step


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

    Example:
        >>> from ltr.mining.filters import Recipe
        >>> recipe = Recipe(depth=100, n=30, skip_top=5)
        >>> mining = HardNegativeMining(every_n_epochs=1, recipe=recipe)
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
        self._side_process = SideProcess()
        # When the process beside the training was started; None again once its negatives are taken.
        self._side_process_began: RefreshMoment | None = None
        self._refreshes: list[SourceRefreshes] = []  # from setup on

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        data = data_of(trainer)
        self._check(pl_module, data)
        assert isinstance(data, TripletDataModule), "checked above"
        self._begin_sources(trainer, data)

    def check_options(self, pl_module: LightningModule, data: RankingDataModule) -> None:
        """See :meth:`ltr.datamodules.RankingDataModule.check_options`."""
        if data.is_fitting:
            self._check(pl_module, data)

    def check_data(self, pl_module: LightningModule, data: RankingDataModule) -> None:
        """See :meth:`ltr.datamodules.RankingDataModule.check_data`."""
        if not data.is_fitting:
            return
        assert isinstance(pl_module, RankerModule) and isinstance(data, TripletDataModule), (
            "check_options has refused others"
        )
        searcher = self.searcher(pl_module)
        assert isinstance(searcher, DualEncoder), "check_options has refused others"
        for source in data.mined_sources():
            try:
                check_index(self.recipe, source.collection, searcher)
            except InputError as error:
                raise _error(error.message) from None

    def _check(self, pl_module: LightningModule, data: RankingDataModule | None) -> None:
        """Refuse data whose negatives it can't mine, and a ranker that can't search."""
        assert isinstance(pl_module, RankerModule)
        if not isinstance(data, TripletDataModule):
            raise _error(
                f"needs a TripletDataModule, got {type(data).__name__}; set data to ltr.datamodules.TripletDataModule"
            )
        self._check_sources(data)
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

    def _check_sources(self, data: TripletDataModule) -> None:
        """Raise an InputError for sources whose negatives it can't mine."""
        sources = data.mined_sources()
        if not sources:
            raise _error(
                "needs a source whose negatives are 'mined', and path names none; write it there"
            )
        if self.asynchronous and len(data.sources) > 1:
            raise _error(
                "refreshes several sources one after the other, and not beside the training; leave out asynchronous"
            )
        for source in sources:
            # Negatives of one kind are replaced whole by the first refresh; of several, 'mined' are.
            if len(source.negatives_per_row) > 1 and "mined" not in source.negatives_per_row:
                raise _error(
                    f"needs negatives with the source 'mined', got {', '.join(source.negatives_per_row)}; name it, with a number"
                )

    def _begin_sources(self, trainer: Trainer, data: TripletDataModule) -> None:
        """Begin anew with each source whose negatives are mined: another run may have been before."""
        self._side_process_began = None
        self._refreshes = []
        for source in data.mined_sources():
            root = Path(trainer.default_root_dir, NEGATIVES_FOLDER, source.name)
            self._refreshes.append(SourceRefreshes(source, RefreshFolders(root, self.keep)))

    def searcher(self, module: RankerModule) -> Ranker | None:
        """What searches for the negatives: the dual encoder of the option ``miner``, or the one that
        is trained; None without either.
        """
        return module.searcher if self.fixed_searcher is None else self.fixed_searcher

    def state_dict(self) -> dict[str, Any]:
        states = {refreshes.source.name: refreshes.state_dict() for refreshes in self._refreshes}
        return states.get("", states)  # of a source without a name: as it stands alone

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if not self._refreshes:  # a run that is measured mines nothing
            return
        names = [refreshes.source.name for refreshes in self._refreshes]
        states = {"": state_dict} if names == [""] else state_dict
        if states.keys() != set(names):
            raise _error(
                f"got a checkpoint with the negatives of other sources, {', '.join(states)}; take another one"
            )
        for refreshes in self._refreshes:
            refreshes.load_state_dict(states[refreshes.source.name])

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        for refreshes in self._refreshes:
            refreshes.saved_step = None if refreshes.in_force is None else refreshes.in_force.step

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        data = data_of(trainer)
        assert isinstance(data, TripletDataModule), "setup has checked it"
        assert isinstance(pl_module, RankerModule), "setup has checked it"
        for model in (self.fixed_searcher, self.judging_ranker):
            if model is not None:
                model.to(pl_module.device)
        # A run that goes on draws from the negatives of its checkpoint, if that has some.
        for refreshes in self._refreshes:
            if refreshes.in_force is not None:
                refreshes.negatives = refreshes.folders.open_for_checkpoint(
                    refreshes.in_force, refreshes.source.collection
                )
                data.take_negatives(refreshes.source, refreshes.negatives, resumed=True)
        data.has_refreshes = True
        data.before_batch = lambda: self._refresh_if_due(trainer, pl_module, data)

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

    def _refresh_if_due(
        self, trainer: Trainer, module: RankerModule, data: TripletDataModule
    ) -> None:
        if self._side_process_began is not None:
            self._take_from_side_process(trainer, module, data, self._side_process_began)
            return
        now = RefreshMoment(trainer.current_epoch, trainer.global_step)
        due: list[SourceRefreshes] = []
        for refreshes in self._refreshes:
            is_due = self.schedule.is_due(now, refreshes.in_force)
            if refreshes.source.awaits_negatives or is_due:
                due.append(refreshes)
        if not due:
            return
        data.is_refreshing = True
        try:
            for refreshes in due:
                self._refresh(trainer, module, data, refreshes, now)
        finally:
            data.is_refreshing = False

    def _refresh(
        self,
        trainer: Trainer,
        module: RankerModule,
        data: TripletDataModule,
        refreshes: SourceRefreshes,
        now: RefreshMoment,
    ) -> None:
        """Mine the negatives of a source anew, here or beside the training."""
        # A trial run leaves no folder, so it mines here.
        is_beside = self.asynchronous and not is_trial(trainer)
        if is_beside and not refreshes.source.awaits_negatives:
            by_rank_0(lambda: self._start_side_process(trainer, module, refreshes))
            self._side_process_began = now
            return
        miner = self._make_miner(trainer, module, data, refreshes.source)
        negatives = refreshes.folders.mine_or_open(
            miner,
            now,
            refreshes.negatives,
            lambda: self._mine(miner, trainer, refreshes.source),
            write=not is_trial(trainer),
        )
        if not is_trial(trainer):
            refreshes.folders.remove_older(now.step, refreshes.saved_step)
        self._take(trainer, module, data, refreshes, negatives, now)

    def _start_side_process(
        self, trainer: Trainer, module: RankerModule, refreshes: SourceRefreshes
    ) -> None:
        weights = {}
        for name, value in module.state_dict().items():
            # The two that may search or score; a loss or a margin with parameters does not.
            if name.startswith(("ranker.", "miner.")):
                weights[name] = value
        config = Path(trainer.default_root_dir, CONFIG)
        step = trainer.global_step
        folder = refreshes.folders.path(step)
        device = trainer.strategy.root_device
        self._side_process.start(config, weights, step, lightning.__version__, folder, device)

    def _take_from_side_process(
        self, trainer: Trainer, module: RankerModule, data: TripletDataModule, began: RefreshMoment
    ) -> None:
        """Take the negatives that were mined beside the training, if they are there."""
        if not by_rank_0(self._side_process.is_done):
            return
        (refreshes,) = self._refreshes  # setup has refused several
        negatives = refreshes.folders.open(began.step, refreshes.source.collection)
        staleness = trainer.global_step - began.step
        negatives.manifest.update(step=began.step, staleness=staleness)
        negatives.note_overlap(refreshes.negatives)
        self._end_side_process()
        self._take(trainer, module, data, refreshes, negatives, began)
        refreshes.folders.remove_older(began.step, refreshes.saved_step)

    def _take(
        self,
        trainer: Trainer,
        module: RankerModule,
        data: TripletDataModule,
        refreshes: SourceRefreshes,
        negatives: MinedNegatives,
        moment: RefreshMoment,
    ) -> None:
        """Let training draw from the negatives that a refresh of this moment has made."""
        data.take_negatives(refreshes.source, negatives)
        refreshes.take(negatives, moment)
        collection = refreshes.source.collection
        judged = collection.learnable("train")
        refreshes.log.report_refresh(trainer, module, collection, judged, negatives)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        assert isinstance(pl_module, RankerModule)
        for refreshes in self._refreshes:
            refreshes.log.report_next_step(trainer, pl_module)

    def _make_miner(
        self,
        trainer: Trainer,
        module: RankerModule,
        data: TripletDataModule,
        source: TextSource,
    ) -> Miner:
        searcher = self.searcher(module)
        assert isinstance(searcher, DualEncoder), "setup has checked it"
        judge, rescorer = self.judge_and_rescorer(module, source.collection)
        return Miner(
            searcher,
            source.collection,
            source.collection.learnable("train"),
            self.recipe,
            min_negatives=source.mined_per_row,
            judge=judge,
            rescorer=rescorer,
            seed=(data.seed, trainer.global_step),
        )

    def _mine(self, miner: Miner, trainer: Trainer, source: TextSource) -> MinedNegatives:
        corpus = source.collection.corpus.folder
        encodings = place_of_encodings(trainer, "mining", corpus)
        # Float32 where a validation by search reads the same shards.
        numbers: Numbers = "float16" if source.corpus is None else "float32"
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
    ) -> tuple[TextScorer | None, TextScorer | None]:
        """The model of the option ``judge``; and the ranker that is trained, where ``rescore`` asks
        for its scores.
        """
        rescoring_ranker = module.ranker if self.rescore else None
        judge = _scorer_of(self.judging_ranker, collection)
        return judge, _scorer_of(rescoring_ranker, collection)


def _frozen(model: Ranker | str | None, option: str, needs: Needs) -> Ranker | None:
    """The model of an option, which is not trained; where the option names it, it is built."""
    if isinstance(model, str):
        try:
            model = ranker_named(model, f"HardNegativeMining: {option}", needs)
        except InputError as error:
            error.option = error.option or "trainer.callbacks"
            raise
    return None if model is None else model.eval().requires_grad_(False)


def _scorer_of(model: Ranker | None, collection: Collection) -> TextScorer | None:
    return None if model is None else TextScorer(type(model).__name__, model, collection)


def _error(text: str) -> InputError:
    return InputError(f"HardNegativeMining {text}", option="trainer.callbacks")
