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

from ltr.run.metrics_file import InitDigests, TrainedWith
from ltr.run.same_options import (
    are_same,
    as_taken,
    deciding_callbacks,
    deciding_options,
    last_name_of_path,
)


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
        """The recipe of a run."""
        return cls(
            options=as_taken(recipe_options(config), trained_with.get("taken", {})),
            data_path=config["data"].get("init_args", {}).get("path"),
            init_from=config.get("init_from"),
            trained_with=trained_with,
        )

    def digest(self) -> str:
        """A digest that runs of one recipe share."""
        options = {name: last_name_of_path(value) for name, value in self.options.items()}
        options |= self.trained_with["models"]
        init = None
        if self._init_digests is not None:
            init = self._init_digests["recipe"] or self._init_digests["weights"]
        parts = [options, self.trained_with["data"], init]
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
            elif not are_same(name, last_name_of_path(value), last_name_of_path(other_value)):
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
        """Whether two runs start alike: by no weights, the same ones, or those of one recipe."""
        digests = self._init_digests
        others = other._init_digests
        if digests is None or others is None:
            return digests == others
        if digests["weights"] == others["weights"]:
            return True
        return digests["recipe"] is not None and digests["recipe"] == others["recipe"]

    @property
    def _init_digests(self) -> InitDigests | None:
        """What tells the weights of another run that it starts from; None where there is none."""
        return self.trained_with.get("init_from")


def recipe_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a configuration that decide what is learnt, but for the seed."""
    options = deciding_options(config, "seeds") | deciding_callbacks(config, "seeds")
    best = config.get("best", {})
    # The best weights are tested. Without any it is the last ones, whatever is monitored.
    options["best.monitor"] = None if best.get("save_top_k") == 0 else best.get("monitor")
    return options
