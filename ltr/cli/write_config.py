"""``config.yaml`` of a run: the whole configuration of ``fit``, written when training begins."""

import yaml
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback

from ltr.data.whole_files import write_whole
from ltr.run.run_folder import RunFolder
from ltr.trainer_state import is_trial


class WriteConfig(SaveConfigCallback):
    """Writes the whole configuration of a ``fit`` into its run folder, and tells it to the loggers."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Nothing yet: the run may still be refused."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero and not is_trial(trainer):
            self.save_config(trainer, pl_module, "fit")

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        config = self.config.clone()
        # What belongs to this run and not to its configuration: a copy of the file elsewhere must
        # not write here.
        config.ckpt_path = None
        config.trainer.default_root_dir = None
        text = self.parser.dump(config, skip_unset=False)
        write_whole(RunFolder(trainer.default_root_dir).config, [text])
        for logger in trainer.loggers:
            logger.log_hyperparams(yaml.safe_load(text))
