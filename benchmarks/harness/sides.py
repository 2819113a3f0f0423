"""The sides of a comparison, and the training loops that they share (processes.py runs them,
compare.py prints the table).
"""

import json
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import AutoConfig

from harness.meter import Meter, Step
from ltr.data.tokens import TokenStore

OTHERS = 0.05  # of all cores: a step during which other processes used more is dropped


class Setting(NamedTuple):
    """What all sides share.

    Attributes:
        device: ``cpu`` or ``cuda``.
        data: a collection.
        backbone: a folder with the model.
        max_length: tokens of a text.
        batch: rows of a step.
        steps: measured steps of a turn.
        turns: of each side.
        folder: for the inputs and the outputs of the sides.
        warm_up: first steps, which do not count.
        cached: memory must not grow with the batch.
        keep_tokens: tokens whose activations ltr keeps; None: all.
        pooling: what ltr's cross-encoder reads of the tokens; None: its default.
        peers: whether the modules that sentence-transformers' trainers need are installed.
        precision: of ltr, float32 or bf16.
    """

    device: str
    data: str
    backbone: str
    max_length: int
    batch: int
    steps: int
    turns: int
    folder: Path
    warm_up: int
    cached: bool = False
    keep_tokens: int | None = None
    pooling: str | None = None
    peers: bool = True
    precision: str = "float32"


class Side(NamedTuple):
    """One contestant: ``run(meter, setting, side)`` takes steps as long as ``meter.step_ended()``
    is true.
    """

    name: str
    run: "Run"
    precision: str  # float32 or bf16
    tuned: bool = False
    malloc: str | None = None
    kernels: str = "auto"  # of ltr, see TextEncoder.Options


class Result(NamedTuple):
    """The steps of a side, its peak memory in bytes, and the malloc of its process."""

    steps: list[Step]
    peak: int
    malloc: str

    def kept(self) -> tuple[list[Step], str]:
        """The steps that other processes did not slow down (all, if these are too few), and
        'kept/taken'.
        """
        kept = [step for step in self.steps if step.others <= OTHERS]
        if len(kept) < len(self.steps) / 3:
            return self.steps, f"all {len(self.steps)}, {len(kept)} undisturbed"
        return kept, f"{len(kept)}/{len(self.steps)}"


Run = Callable[[Meter, Setting, Side], None]


def fit(module: Any, data: Any, meter: Meter, setting: Setting, side: Side) -> None:
    """Train a LightningModule with Lightning's Trainer, without logs and checkpoints.

    Args:
        module: the module to train.
        data: a data module, or a loader.
        meter: is told of every step.
        setting: has the device.
        side: has the precision.
    """
    from lightning import Callback, Trainer

    from harness.trainers import quiet_trainer

    class EndsOfSteps(Callback):
        def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
            trainer.should_stop = not meter.step_ended()

    trainer = quiet_trainer(
        accelerator="gpu" if setting.device == "cuda" else "cpu",
        precision="bf16-mixed" if side.precision == "bf16" else "32-true",
        max_epochs=1000,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        callbacks=[EndsOfSteps()],
    )
    trainer.fit(module, data)


def train(
    *,
    trainer: type,
    arguments: type,
    model: Any,
    loss: nn.Module,
    rows: Path,
    batch: int,
    meter: Meter,
    side: Side,
) -> None:
    """Train with a trainer of sentence-transformers as its documentation shows, without logs and
    checkpoints.

    Args:
        trainer: the class of the trainer.
        arguments: the class of its arguments.
        model: the model to train.
        loss: the loss module.
        rows: the folder of a saved data set.
        batch: rows per step.
        meter: is told of every step.
        side: has the precision.
    """
    from datasets import load_from_disk
    from transformers import PrinterCallback, TrainerCallback

    class EndsOfSteps(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = not meter.step_ended()

    settings = arguments(
        output_dir=str(rows.with_name("output")),
        num_train_epochs=1000,
        per_device_train_batch_size=batch,
        bf16=side.precision == "bf16",
        use_cpu=model.device.type == "cpu",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    peer = trainer(
        model=model,
        args=settings,
        train_dataset=load_from_disk(str(rows)),
        loss=loss,
        callbacks=[EndsOfSteps()],
    )
    peer.remove_callback(PrinterCallback)
    peer.train()


def load_options(setting: Setting, side: Side) -> dict[str, Any]:
    """Options to load a model of sentence-transformers: the defaults, or tuned (no attention
    dropout, fast kernels).
    """
    if not side.tuned:
        return {"device": setting.device}
    no_dropout = {}
    for name in AutoConfig.from_pretrained(setting.backbone).to_dict():
        if "att" in name and "dropout" in name:  # each architecture has its own name for it
            no_dropout[name] = 0.0
    return {
        "device": setting.device,
        "config_kwargs": no_dropout,
        "model_kwargs": {"attn_implementation": fastest_attention(setting, side)},
    }


def fastest_attention(setting: Setting, side: Side) -> str:
    """The name that transformers has for its fastest attention here."""
    flash = (
        setting.device == "cuda"
        and side.precision == "bf16"
        and find_spec("flash_attn") is not None
    )
    return "flash_attention_2" if flash else "sdpa"


def check_lengths(model: Any, texts: list, lengths: Iterable[int]) -> None:
    """Check that a model of sentence-transformers makes as many real tokens of each text (or pair)
    as ltr.
    """
    theirs = model.preprocess(texts)["attention_mask"].sum(dim=1).tolist()
    assert theirs == list(lengths), "the sides read different texts"


def tokenising_line(*stores: TokenStore) -> str:
    """A line with the time that it took to build some stores."""
    tokens = 0
    seconds = 0.0
    for store in stores:
        manifest = json.loads((store.folder / "manifest.json").read_text())
        tokens += manifest["tokens"]
        seconds += manifest["seconds"]
    return f"ltr tokenised the texts once, {tokens:,} tokens in {seconds:.1f} s"


def matmul_peak(device: str, precision: str) -> float:
    """Floating-point operations per second of large matmuls: the best of several runs, with all
    threads.
    """
    n = 512  # a CPU that emulates bf16 is forty times slower than in float32
    repeats = 4
    if device == "cuda":
        n = 8192
        repeats = 10
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = torch.randn(2, n, n, device=device).to(dtype)
    out = a @ b
    best = float("inf")
    for _ in range(8):
        start = _time_when_done(device)
        for _ in range(repeats):
            torch.matmul(a, b, out=out)
        best = min(best, _time_when_done(device) - start)
    return repeats * 2 * n**3 / best


def _time_when_done(device: str) -> float:
    """Seconds on the clock, when the GPU has done all that it was given."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
