"""Train by Ray Train: its workers are the processes of ``ltr fit``.

python examples/cluster/ray_fit.py WORKERS --config FILE …     (RAY_ADDRESS: a cluster that runs)

The words behind the number of workers are options of ``ltr fit``. Each start begins the run or goes on
with it, and the exit code is that of ``ltr fit``.
"""

import os
import sys
from typing import Any

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from ltr.__main__ import main


def fit(job: dict[str, Any]) -> int:
    """Train in a worker: its exit code. Ray sets the variables of torchrun, but for two."""
    os.environ["GROUP_RANK"] = os.environ["NODE_RANK"]
    os.environ["TORCHELASTIC_RUN_ID"] = "ray"
    os.chdir(job["folder"])
    return main(["fit", *job["options"], "--ckpt_path", "last"])


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(f"usage: python {sys.argv[0]} WORKERS --config FILE …")
    workers, *options = sys.argv[1:]
    # A worker would otherwise work in a folder of Ray, where paths of the options are others.
    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
    ray.init(include_dashboard=False)
    trainer = TorchTrainer(
        fit,
        train_loop_config={"folder": os.getcwd(), "options": options},
        scaling_config=ScalingConfig(
            num_workers=int(workers), use_gpu="GPU" in ray.cluster_resources()
        ),
        run_config=RunConfig(
            storage_path=os.path.abspath("runs/ray"),  # of Ray's own notes
            failure_config=FailureConfig(max_failures=3),
        ),
    )
    # A worker that dies is an error, after which all start again; one that returns 2 is not.
    sys.exit(trainer.fit().return_value)
