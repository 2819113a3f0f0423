"""How often the processes of a run exchange something in a step. Two real ones, by gloo."""

import json
from collections import Counter
from pathlib import Path

import pytest
from lightning.pytorch import Callback
from torch.utils._python_dispatch import TorchDispatchMode

from tests.run.nodes import TWO
from tests.world.configurations import write_config

STEP = 3  # behind the first one DistributedDataParallel lays out its buckets anew
# Sums of gradients: one for a bucket of 25 MiB, and so one of this tiny model. Gathered are sizes,
# floats and integers.
EXPECTED = {
    "OwnLists": {"allgather_": 3, "allreduce_": 1},
    "OtherQueries": {"allgather_": 3, "allreduce_": 1},
}


class CollectivesOfStep(Callback):
    """Writes how often each collective operation was called in a step, by rank."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.calls = Collectives()

    def on_train_batch_start(self, trainer, *_) -> None:
        if trainer.global_step == STEP:
            self.calls.__enter__()

    def on_train_batch_end(self, trainer, *_) -> None:
        if trainer.global_step == STEP + 1:
            self.calls.__exit__(None, None, None)
            Path(self.folder, f"{trainer.global_rank}.json").write_text(json.dumps(self.calls.n))


class Collectives(TorchDispatchMode):
    """Counts them, also those that DistributedDataParallel calls in C++."""

    def __init__(self) -> None:
        super().__init__()
        self.n: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        namespace, name = func._schema.name.split("::")
        if namespace == "c10d":
            self.n[name] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("in_batch", EXPECTED)
def test_a_step_has_few_collective_operations(
    in_batch, tmp_path, backbone, collection_folder, nodes
):
    """Nothing is sent for logs, signals, or buffers, which are constants."""
    ranker = {"backbone": backbone, "max_length": 24}
    place = f"{__name__}.{CollectivesOfStep.__name__}"
    changes = {
        "model.ranker": {"class_path": "ltr.models.DualEncoder", "init_args": ranker},
        "model.in_batch": f"ltr.in_batch.{in_batch}",
        "trainer.max_epochs": 1,
        "trainer.limit_val_batches": 0,
        "trainer.callbacks": [{"class_path": place, "init_args": {"folder": str(tmp_path)}}],
    }
    config = write_config(tmp_path, backbone, collection_folder, **TWO, **changes)
    run = tmp_path / "run"
    for node in nodes(config, run, run):
        code, said = node.end()
        assert code == 0, said
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == EXPECTED[in_batch]
