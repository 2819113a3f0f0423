"""``ltr mine``: hard negatives found by the dual encoder of a run or of a configuration, outside
training.
"""

import logging
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import LightningModule, Trainer
from torch import nn

from ltr.callbacks import HardNegativeMining
from ltr.data.artefact import key_of
from ltr.data.outputs import check_file, check_folder
from ltr.datamodules import RankingDataModule, TripletDataModule
from ltr.datamodules.pools import PoolDataModule
from ltr.datamodules.triplets import check_name_of_negatives
from ltr.errors import InputError
from ltr.mining.exported import write_trec
from ltr.mining.filters import Recipe
from ltr.mining.mined_negatives import MinedNegatives
from ltr.mining.miner import Miner, check_index
from ltr.mining.refresh_report import summary_lines
from ltr.mining.side_process import is_beside_training
from ltr.models import DualEncoder
from ltr.module import RankerModule
from ltr.processes import by_rank_0
from ltr.run.init_from import take_weights
from ltr.run.precision import TrainerPrecision
from ltr.run.run_folder import RunFolder
from ltr.search.encoding_places import EncodingOfFolder, Encodings, TemporaryEncodings
from ltr.trainer_state import callbacks_of, place_of_encodings

log = logging.getLogger(__name__)


class MiningTrainer(Trainer):
    """The trainer of the command line. It can also mine.

    Args:
        precision: 32-true, bf16-mixed or 16-mixed. auto: that of the run that goes on, is measured or
            is mined with; of a new run bf16-mixed, where it reads texts and all its GPUs compute
            bfloat16 natively (compute capability 8.0 and above), else 32-true.
    """

    # The command line settles what auto is before it makes a trainer.
    def __init__(
        self, *args: Any, precision: TrainerPrecision | None = "auto", **kwargs: Any
    ) -> None:
        super().__init__(*args, precision=precision, **kwargs)  # type: ignore[arg-type]

    def mine(
        self,
        model: RankerModule,
        datamodule: RankingDataModule,
        recipe: Recipe = Recipe(),
        split: Literal["train", "dev", "test"] = "train",
        output: str | None = None,
        trec: str | None = None,
        encoded: str | None = None,
        ckpt_path: str | None = None,
        weights_only: bool | None = None,
    ) -> None:
        """Mine hard negatives, and write them as a folder that training reads.

        Args:
            model: its ranker searches, where the callback HardNegativeMining names no other miner.
            datamodule: serves a collection.
            recipe: How negatives are chosen. The command line starts from the recipe of the
                callback HardNegativeMining.
            split: The queries to mine for.
            output: The new folder. None: negatives/mined-KEY in the run folder.
            trec: Also write the negatives as a run file in TREC format, hardest first; the score is
                1 / rank.
            encoded: The corpus as ltr encode has encoded it with these weights: a folder.
            ckpt_path: The weights: best, last or a checkpoint; None takes those that the model
                starts from.
            weights_only: Has no effect: a checkpoint is never code.

        Raises:
            InputError: if the data is no collection, no dual encoder searches, or the folder is
                there already.
        """
        check_folder(output, "--output")
        check_name_of_negatives(output, "--output")
        check_file(trec, "--trec")
        if not isinstance(datamodule, PoolDataModule):
            raise InputError(
                f"mining needs a collection of texts, got {type(datamodule).__name__}",
                option="data",
            )
        if len(datamodule.sources) > 1:
            raise InputError(
                f"ltr mine mines of one collection, and path names {len(datamodule.sources)}; name one of them: --data.path PATH",
                option="data.path",
            )
        step = 0
        if ckpt_path is not None:
            step = take_weights(model, ckpt_path, "--ckpt_path").step
        callback = mining_callback(self)
        searcher = model.searcher if callback is None else callback.searcher(model)
        if not isinstance(searcher, DualEncoder):
            raise InputError(
                f"mining searches with a dual encoder, and {type(model.ranker).__name__} is none; give the callback HardNegativeMining a miner, or mine with a run of a DualEncoder"
            )
        datamodule.open_collections()
        collection = datamodule.collection
        judged = collection.learnable(split)
        check_index(recipe, collection, searcher)
        judge = None
        rescorer = None
        if callback is not None:
            judge, rescorer = callback.judge_and_rescorer(model, collection)
        collection.warn_of_unlearnable(split)
        min_negatives = 1  # of each query
        if isinstance(datamodule, TripletDataModule):
            min_negatives = datamodule.sources[0].mined_per_row
        miner = Miner(
            searcher,
            collection,
            judged,
            recipe,
            min_negatives,
            judge,
            rescorer,
            seed=(datamodule.seed, step),  # as a refresh of this step
        )
        if output is not None and Path(output).exists():
            _check_same(Path(output), key_of(Path(output)), miner.key)
        datamodule.tokenise()
        manifest_entries = {"split": split, "checkpoint": ckpt_path}
        one_batch = range(1)  # predict wants data; all is done in on_predict_start
        mining = _Mining(miner, output, trec, encoded, manifest_entries)
        self.predict(mining, one_batch, return_predictions=False)


def mining_callback(trainer: Trainer) -> HardNegativeMining | None:
    """The callback of a trainer that mines while training, if it has one."""
    return next(iter(callbacks_of(trainer, HardNegativeMining)), None)


def _check_same(folder: Path, key: str | None, wanted_key: str) -> None:
    """Raise an InputError unless a folder that is there holds the negatives that are wanted."""
    if key != wanted_key:
        raise InputError(
            f"{folder} must be a new folder, and is there already; name another one",
            option="output",
        )


class _Mining(LightningModule):
    """Mines in ``Trainer.predict``, so Lightning's devices, processes and precision serve it."""

    def __init__(
        self,
        miner: Miner,
        output: str | None,
        trec: str | None,
        encoded: str | None,
        manifest_entries: dict[str, str | None],
    ) -> None:
        super().__init__()
        scorers = [scorer for scorer in (miner.judge, miner.rescorer) if scorer is not None]
        rankers = [scorer.ranker for scorer in scorers]
        self.models = nn.ModuleList([miner.searcher, *rankers])  # so they are moved
        self.miner = miner
        self.output = output
        self.trec = trec
        self.encoded = encoded
        self.manifest_entries = manifest_entries

    def on_predict_start(self) -> None:
        miner = self.miner
        if self.output is None:
            run = RunFolder(self.trainer.default_root_dir)
            folder = run.negatives / f"mined-{miner.key[:8]}"
        else:
            folder = Path(self.output)
        is_there, key = by_rank_0(lambda: (folder.exists(), key_of(folder)))
        if is_there:
            _check_same(folder, key, miner.key)
            log.info("the same negatives are there already, and not mined again")
            negatives = MinedNegatives.open(folder, miner.collection)
        else:
            encodings = self._encodings(miner)
            precision = self.trainer.precision_plugin.forward_context
            negatives = miner.mine(
                encodings, precision, str(self.trainer.precision), numbers="float16"
            )
            negatives.manifest.update(self.manifest_entries)
            for line in summary_lines(negatives.manifest):
                log.info("%s", line)
            by_rank_0(lambda: negatives.save(folder, miner.collection))
        if self.trec is not None:
            file = self.trec
            by_rank_0(lambda: write_trec(file, negatives, miner.collection))
        log.info("the negatives lie in %s; to train on them: --data.negatives %s", folder, folder)

    def _encodings(self, miner: Miner) -> Encodings:
        run_folder = Path(self.trainer.default_root_dir)
        if self.encoded is not None:
            return EncodingOfFolder(Path(self.encoded))
        if is_beside_training(run_folder):  # of weights that pass
            return TemporaryEncodings(run_folder)
        return place_of_encodings(self.trainer, "mining", miner.collection.corpus.folder)

    def predict_step(self, batch: int, batch_idx: int) -> int:
        return batch  # all is done
