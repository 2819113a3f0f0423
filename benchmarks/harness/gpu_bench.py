"""What the sections of gpu.py share: rows, time, models, and sides that compete for a model."""

import gc
import json
import signal
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch

from harness.looks import steps_and_counts
from harness.pretended_gpu import Counts
from harness.shapes import flops_of_forward, save_model, save_tokenizer
from harness.sides import Setting, Side, matmul_peak
from harness.tables import row
from ltr.data.collection import open_collection
from ltr.run.provenance import made_by

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Bench:
    """What all sections share.

    Args:
        data: a collection.
        folder: for models and runs.
        output: where the rows are kept.
        seconds: that all sections may take.
        tiny: whether everything is small.
    """

    def __init__(self, data: str, folder: Path, output: Path, seconds: float, tiny: bool) -> None:
        self.data = data
        self.folder = folder
        self.output = output
        self.tiny = tiny
        self._end = time.monotonic() + seconds
        made = made_by()
        self._measured_with = {
            "tiny": tiny,
            "device": torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU",
            "torch": torch.__version__,
            "ltr": made.get("commit", made["ltr"]),
            "date": made["date"],
        }
        # What takes longer than it should must not take the rows of the others with it.
        signal.signal(signal.SIGALRM, _no_time_is_left)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        output.mkdir(parents=True, exist_ok=True)

    def seconds_left(self) -> float:
        """Of the time for all sections."""
        return self._end - time.monotonic()

    def say(self, section: str, case: str, predicted: str = "", **measured: Any) -> None:
        """Print a row, and keep it with what it was measured with."""
        words = []
        for name, value in measured.items():
            number = f"{value:,.4g}" if isinstance(value, float) else value
            words.append(f"{name.replace('_', ' ')}: {number}")
        print(row([section, case, "; ".join(words), predicted]), flush=True)
        kept = {"section": section, "case": case, "predicted": predicted}
        kept |= measured | self._measured_with
        with open(self.output / "gpu.jsonl", "a") as file:
            file.write(json.dumps(kept, default=str) + "\n")

    def model(self, name: str) -> str:
        """The folder of a model, made when it is first asked for."""
        folder = self.folder / name
        if not (folder / "config.json").is_file():
            save_tokenizer(open_collection(self.data), folder)
            save_model(name, folder, self.tiny)
        return str(folder)

    def setting(
        self, name: str, batch: int, max_length: int, steps: int = 20, warm_up: int = 6
    ) -> Setting:
        """Of sides that share a model."""
        return Setting(
            device=DEVICE.type,
            data=self.data,
            backbone=self.model(name),
            max_length=32 if self.tiny else max_length,
            batch=2 if self.tiny else batch,
            steps=1 if self.tiny else steps,
            turns=1,
            folder=Path(tempfile.mkdtemp(dir=self.folder)),
            warm_up=3 if self.tiny else warm_up,
            precision="bf16",
        )


def _no_time_is_left(*_: Any) -> None:
    raise TimeoutError("no time is left")


@cache
def peak(precision: str) -> float:
    """Floating-point operations per second of large products."""
    return matmul_peak(DEVICE.type, precision)


def seconds_of(function: Callable[[], Any], calls: int = 10) -> float:
    """Of a call: the median of five means over calls that do not wait for each other."""
    means = []
    for _ in range(6):
        synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            function()
        synchronize()
        means.append((time.perf_counter() - begin) / calls)
    return statistics.median(means[1:])  # without the first one, which loads kernels


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


class Contest(NamedTuple):
    """Trainings of one model beside each other.

    Attributes:
        model: by its name in ``SHAPES``.
        batch: queries of a step, with two documents each, or one for a dual encoder; or a
            sixteenth of the documents that a step encodes.
        max_length: tokens of a text.
        passes: forward passes that a step costs.
        sides: the contestants, with what was predicted of each.
        prepare: of the sides of sentence-transformers; None where they need nothing.
        needs: modules that these sides need.
        steps: that are measured.
        warm_up: steps before them.
    """

    model: str
    batch: int
    max_length: int
    passes: int
    sides: dict[Side, str]
    prepare: Callable[[Setting], Any] | None = None
    needs: tuple[str, ...] = ()
    steps: int = 20
    warm_up: int = 6


def compete(bench: Bench, section: str, name: str, contest: Contest) -> None:
    """Let the sides take their steps, one after the other; one that fails is named."""
    setting = bench.setting(
        contest.model, contest.batch, contest.max_length, contest.steps, contest.warm_up
    )
    needs = ("sentence_transformers", *contest.needs)
    absent = [module for module in needs if find_spec(module) is None]
    if contest.prepare and not absent:
        contest.prepare(setting)
    for side, predicted in contest.sides.items():
        case = f"{name}: {side.name}"
        if absent and side.name.startswith("sentence-transformers"):
            bench.say(section, case, left_out=f"{', '.join(absent)} absent")
        elif bench.seconds_left() < 40:
            bench.say(section, case, left_out="no time")
        else:
            bench.say(section, case, predicted, **step_words(side, setting, contest.passes))


def step_words(side: Side, setting: Setting, passes: int) -> dict[str, Any]:
    """What the steps of a side took."""
    gc.collect()  # the side before
    if DEVICE.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        steps, counts = steps_and_counts(side, setting)
    except Exception as error:  # whatever a side may raise is a row of the table
        traceback.print_exc()
        return {"cannot_run": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    seconds = statistics.median(step.seconds for step in steps)
    tokens = statistics.mean(step.tokens for step in steps)
    squares = statistics.mean(step.squares for step in steps)
    rate = passes * flops_of_forward(setting.backbone, tokens, squares) / seconds
    words = {
        "ms": 1e3 * seconds,
        "tokens": round(tokens),
        "million_tokens_per_s": tokens / seconds / 1e6,
        "of_the_matmul_peak": f"{rate / peak(side.precision):.1%}",
    }
    return words | count_words(counts, seconds)


def count_words(counts: Counts, seconds: float) -> dict[str, Any]:
    """What was counted in one step of so many seconds; nothing on a CPU."""
    if DEVICE.type == "cpu":
        return {}
    lines = [line for _, line in counts.waits]
    return {
        "launches": counts.launches.total(),
        "busy": f"{min(1.0, counts.busy / seconds):.0%}",
        "waits": counts.waits.total(),
        "lines_that_wait": ", ".join(lines) or "none",
        "GB": torch.cuda.max_memory_allocated() / 1e9,
    }
