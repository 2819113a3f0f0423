"""How a run was trained, but for its seed: what all seeds of an experiment share.

A configuration says most of it. It can't say what is in the files that it names, and folders may
move between machines. So ``metrics.json`` has digests of these as ``trained_with``, and they are
compared instead of the paths.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ltr.run.identity import (
    DATA_SPEED,
    MODEL_MEASURES_AND_SPEED,
    are_same,
    class_path_of,
    flat_options,
    without_parents,
)
from ltr.run.metrics_file import StartDigests, TrainedWith

# Options that may differ between seeds: where a run is trained, how fast, what is measured, and what
# is shown. Any other option must be the same, also one that a later Lightning may add.
DATA_MAY_DIFFER = DATA_SPEED | {"path"}  # the content of the path is compared
TRAINER_MAY_DIFFER = {
    "accelerator",
    "strategy",
    "devices",
    "num_nodes",
    "callbacks",  # those that do more than watch are compared
    "limit_test_batches",  # the tested queries are compared
    "limit_predict_batches",
    "num_sanity_val_steps",
    "logger",
    "log_every_n_steps",
    "enable_checkpointing",
    "enable_progress_bar",
    "enable_model_summary",
    "enable_autolog_hparams",
    "deterministic",
    "benchmark",
    "inference_mode",
    "use_distributed_sampler",  # has no effect: the data modules share batches out themselves
    "profiler",
    "detect_anomaly",
    "default_root_dir",
    "model_registry",
}
# Callbacks of Lightning and of ltr that change nothing of what is learnt.
WATCHING_CALLBACKS = {
    "DeviceStatsMonitor",
    "Health",
    "LearningRateMonitor",
    "ModelCheckpoint",
    "ModelSummary",
    "OnExceptionCheckpoint",
    "RichModelSummary",
    "RichProgressBar",
    "ThroughputMonitor",
    "TQDMProgressBar",
}


@dataclass(frozen=True)
class TrainingRecipe:
    """How a run was trained, but for its seed.

    Attributes:
        options: of the configuration, by path.
        data_path: where the training data lies.
        init_from: the run or checkpoint that it starts from; None for none.
        trained_with: the digests of content.
    """

    options: dict[str, Any]
    data_path: Any
    init_from: Any
    trained_with: TrainedWith

    @classmethod
    def of(cls, config: Mapping[str, Any], trained_with: TrainedWith) -> "TrainingRecipe":
        """The recipe of a run.

        Args:
            config: its whole configuration, see :func:`ltr.run.config_file.read_config`.
            trained_with: of its metrics.
        """
        return cls(
            options=recipe_options(config),
            data_path=config["data"].get("init_args", {}).get("path"),
            init_from=config.get("init_from"),
            trained_with=trained_with,
        )

    def digest(self) -> str:
        """A digest that runs of one recipe share."""
        options = {name: without_parents(value) for name, value in self.options.items()}
        options |= self.trained_with["models"]
        start = None
        if self._start is not None:
            start = self._start["recipe"] or self._start["weights"]
        parts = [options, self.trained_with["data"], start]
        text = json.dumps(parts, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def differences(self, other: "TrainingRecipe") -> list[str]:
        """Each option that differs, with both values."""
        differences = []
        models = self.trained_with["models"]
        other_models = other.trained_with["models"]
        for name in sorted(self.options.keys() | other.options.keys()):
            value = self.options.get(name)
            other_value = other.options.get(name)
            if name in models or name in other_models:
                if models.get(name) != other_models.get(name):
                    differences.append(f"{name} ({value!r}, {other_value!r}: other content)")
            elif not are_same(name, without_parents(value), without_parents(other_value)):
                differences.append(f"{name} ({value!r}, {other_value!r})")
        data = self.trained_with["data"]
        other_data = other.trained_with["data"]
        names = sorted(data.keys() | other_data.keys())
        changed = [name for name in names if data.get(name) != other_data.get(name)]
        if changed:
            differences.append(
                f"data.path ({self.data_path!r}, {other.data_path!r}: other {', '.join(changed)})"
            )
        if not self._starts_as(other):
            differences.append(
                f"init_from ({self.init_from!r}, {other.init_from!r}: other weights)"
            )
        return differences

    def _starts_as(self, other: "TrainingRecipe") -> bool:
        """Whether two runs start alike: both from their backbones, or from the same weights, or
        from the weights of runs of one recipe.
        """
        start = self._start
        other_start = other._start
        if start is None or other_start is None:
            return start == other_start
        if start["weights"] == other_start["weights"]:
            return True
        return start["recipe"] is not None and start["recipe"] == other_start["recipe"]

    @property
    def _start(self) -> StartDigests | None:
        """What tells the weights of another run that it starts from; None where there is none."""
        return self.trained_with.get("init_from")


def recipe_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a configuration that decide what is learnt, but for the seed."""
    options = {}
    for path, value in flat_options(config["model"]):
        if path not in MODEL_MEASURES_AND_SPEED:
            options[f"model.{path}"] = value
    for path, value in flat_options(config["data"]):
        if path not in DATA_MAY_DIFFER:
            options[f"data.{path}"] = value
    trainer = config["trainer"]
    for path, value in flat_options(trainer):
        if path.partition(".")[0] not in TRAINER_MAY_DIFFER:
            options[f"trainer.{path}"] = value
    for number, callback in enumerate(_callbacks_of_recipe(trainer["callbacks"])):
        for path, value in flat_options(callback):
            options[f"trainer.callbacks[{number}].{path}"] = value
    best = config.get("best", {})
    # What is best is tested. Without kept weights it is the last ones, whatever is monitored.
    options["best.monitor"] = None if best.get("save_top_k") == 0 else best.get("monitor")
    return options


def _callbacks_of_recipe(callbacks: Any) -> list[Any]:
    """The callbacks that may change what is learnt, of a list of callbacks, a single one, or None."""
    if not isinstance(callbacks, list):
        callbacks = [] if callbacks is None else [callbacks]
    deciding = []
    for callback in callbacks:
        class_path = class_path_of(callback)
        package = class_path.partition(".")[0]
        name = class_path.rpartition(".")[2]
        if package not in ("lightning", "ltr") or name not in WATCHING_CALLBACKS:
            deciding.append(callback)
    return deciding
