"""Compare ltr with sentence-transformers on the same work, in one run: train_cross.py,
train_dual.py, encode.py.

Each side runs its own trainer, in turn with the others (processes.py). Real tokens are counted at
the input of the encoder, where both sides have the same ones. Steps that other processes slowed
down are dropped.
"""

import argparse
import ctypes.util
import multiprocessing
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from glob import glob
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoConfig, BertConfig, BertModel, PretrainedConfig

from harness.machine import described
from harness.meter import Step
from harness.options import LIVEQA, MEDQUAD, add_backbone, add_data, parser
from harness.processes import JEMALLOC, apart, environment, take_turns
from harness.sides import Result, Run, Setting, Side, matmul_peak
from ltr.models.encoder.loading.pretrained import load_tokenizer, resolve

ST = "sentence-transformers"
LIBRARIES = ("/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")


def compare(
    description: str,
    prepare: Callable[[Setting], tuple[float, str]],
    theirs: Run,
    ours: Run,
    *,
    unit: str,
    batch: int,
    passes: int,
    needs: Sequence[str] = (),
) -> None:
    """Read the options, measure, print a table.

    Args:
        description: of the script.
        prepare: runs first, in a process of its own: checks that both sides do the same work,
            leaves their inputs in ``setting.folder``, and returns the mean number of real tokens of
            a unit, and a line for the reader.
        theirs: takes the steps of sentence-transformers.
        ours: takes those of ltr.
        unit: what is counted beside tokens, in the plural.
        batch: the default of its option.
        passes: forward passes that a step costs: 1, or 3 for training.
        needs: modules that ``theirs`` needs; without them it is reported as absent, and ltr runs
            alone.
    """
    options = _options(description, batch)
    # A malloc needs processes that start anew; forked ones have everything imported.
    multiprocessing.set_start_method("fork" if options.tiny else "spawn", force=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    precision, why = _precision(options.precision, device)
    malloc, which = _malloc(options.malloc, device)
    with (
        tempfile.TemporaryDirectory() as folder,
        environment(
            LTR_CACHE=f"{folder}/cache",
            CUDA_VISIBLE_DEVICES=_first_gpu(),
            HF_DATASETS_DISABLE_PROGRESS_BARS="1",
        ),
    ):
        backbone = (
            _bert_base(Path(folder), options.backbone)
            if options.bert_base
            else resolve(options.backbone)
        )
        steps = options.steps or (50 if device == "cuda" else 5)
        sizes = options.max_length, options.batch, steps, options.turns
        absent = [name for name in needs if find_spec(name) is None]
        reading = options.cached, options.keep_tokens, options.pooling
        setting = Setting(
            device,
            options.data,
            backbone,
            *sizes,
            Path(folder),
            options.warm_up,
            *reading,
            not absent,
            precision,
        )
        config = AutoConfig.from_pretrained(backbone)
        peak = apart(matmul_peak, device, precision)
        tokens_per_unit, line = apart(prepare, setting)
        print(
            f"{'BERT-base, untrained' if options.bert_base else options.backbone}; batch {setting.batch}, {setting.max_length} "
            f"tokens at most, {setting.turns} turns of {setting.steps} steps after {setting.warm_up}; {_reading(options)}{why}; "
            f"{which}.\nLarge matmuls reach {peak / 1e12:.3g} TFLOP/s in {precision}. {line}; one of the {unit} has "
            f"{tokens_per_unit:.1f} real tokens.\n",
            flush=True,
        )
        sides = _sides(theirs, ours, precision, malloc, device)
        reason = f"{', '.join(absent)} absent (pip install -e '.[bench]')"
        failures = {side: reason for side in sides if side.run is theirs} if absent else {}
        found = take_turns([side for side in sides if side not in failures], setting)
        results = {side: failures.get(side) or found[side] for side in sides}
    _print_table(
        results, unit, tokens_per_unit, lambda step: passes * forward_flops(config, step) / peak
    )
    gpu = f"{torch.cuda.get_device_name()}; " if device == "cuda" else ""
    packages = ", ".join(f"{package} {version(package)}" for package in (ST, "lightning"))
    print(f"\n{gpu}{described()}; {packages}")


def _sides(theirs: Run, ours: Run, precision: str, malloc: str | None, device: str) -> list[Side]:
    # Nobody gets half precision on a GPU without asking for it.
    sides = [
        Side(f"{ST}, default", theirs, "float32" if device == "cuda" else precision),
        Side(f"{ST}, tuned", theirs, precision, tuned=True, malloc=malloc),
        Side("ltr", ours, precision, malloc=malloc),
        Side("ltr, plain kernels", ours, precision, malloc=malloc, kernels="plain"),
    ]
    return sides + ([Side("ltr, system's malloc", ours, precision)] if malloc else [])


def _print_table(
    results: dict[Side, Result | str],
    unit: str,
    tokens_per_unit: float,
    share: Callable[[Step], float],
) -> None:
    columns = [
        "side",
        "precision",
        "malloc",
        "real tokens/s",
        f"{unit}/s",
        "vs default",
        "vs tuned",
        "padding",
    ]
    columns += ["peak MB", "of the matmul peak", "steps kept"]
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    speeds: list[float | None] = []  # of the two of sentence-transformers, then of ours
    for side, result in results.items():
        if isinstance(result, str):
            speeds.append(None)
            print(
                f"| {side.name} | {side.precision} | cannot run: {result} |{' |' * (len(columns) - 3)}"
            )
            continue
        kept, note = result.kept()
        speeds.append(statistics.median(step.tokens / step.seconds for step in kept))
        ratios = [
            "" if base is None else f"{speeds[-1] / base:.2f}"
            for base in (*speeds[:-1], None, None)[:2]
        ]
        padding = 1 - sum(step.tokens for step in kept) / sum(step.seen for step in kept)
        peak = statistics.median(share(step) / step.seconds for step in kept)
        cells = [
            side.name,
            side.precision,
            result.malloc,
            f"{speeds[-1]:,.0f}",
            f"{speeds[-1] / tokens_per_unit:,.1f}",
            *ratios,
        ]
        cells += [f"{padding:.1%}", f"{result.peak / 1e6:,.0f}", f"{peak:.1%}", note]
        print(f"| {' | '.join(cells)} |")


def forward_flops(config: PretrainedConfig, step: Step) -> float:
    """Floating-point operations of the matmuls of a forward pass over real tokens.

    Args:
        config: of the encoder.
        step: says the tokens, and the squared lengths.
    """
    hidden = config.hidden_size
    inner = config.intermediate_size
    linear = 2 * step.tokens * (4 * hidden * hidden + 2 * hidden * inner)
    return config.num_hidden_layers * (linear + 4 * step.squares * hidden)


def _options(description: str, batch: int) -> argparse.Namespace:
    made = parser(description)
    made.add_argument(
        "--precision",
        choices=["float32", "bf16"],
        help="default: bf16 where the machine multiplies it",
    )
    made.add_argument(
        "--max-length", type=int, default=256, help="tokens of a text, special ones counted"
    )
    made.add_argument("--batch", type=int, default=batch)
    made.add_argument("--steps", type=int, help="measured steps of a turn: 5, or 50 on a GPU")
    made.add_argument("--turns", type=int, default=6, help="of each side")
    made.add_argument(
        "--warm-up",
        type=int,
        default=3,
        help="steps at the start of each side that do not count, 1 or more",
    )
    add_backbone(made)
    made.add_argument(
        "--bert-base",
        action="store_true",
        help="an untrained BERT of base size with the backbone's tokenizer",
    )
    made.add_argument(
        "--cached",
        action="store_true",
        help="memory that does not grow with the batch (train_dual.py)",
    )
    made.add_argument(
        "--keep-tokens",
        type=int,
        help="ltr keeps the activations of so many (train_dual.py); all by default",
    )
    made.add_argument(
        "--pooling",
        choices=["mean", "cls", "max"],
        help="of ltr's tokens (train_cross.py); cls is sentence-transformers'",
    )
    add_data(made, LIVEQA, MEDQUAD)
    made.add_argument(
        "--malloc", help="the jemalloc library to preload, or none; searched for by default"
    )
    options = made.parse_args()
    if options.tiny:
        options.batch = 2
        options.max_length = 64
        options.steps = 1
        options.turns = 1
        options.warm_up = 1
        options.malloc = "none"
    return options


def _precision(asked: str | None, device: str) -> tuple[str, str]:
    """float32 or bf16, and why."""
    if asked:
        return asked, f"{asked} as asked for"
    if device == "cuda":
        multiplies = torch.cuda.is_bf16_supported(including_emulation=False)
        name = "GPU"
    else:
        able = torch.cpu.get_capabilities()
        multiplies = able.get("amx_bf16", False) or able.get("avx512_bf16", False)
        name = "CPU"
    if multiplies:
        return "bf16", f"bf16, as this {name} multiplies it"
    lacks = "" if device == "cuda" else "has neither AMX nor AVX512-BF16 and "
    return "float32", f"float32, as this {name} {lacks}would emulate bf16"


def _malloc(asked: str | None, device: str) -> tuple[str | None, str]:
    """The library to be preloaded or None, and a line that says so."""
    if device == "cuda":
        return None, "the system's malloc on every side, as memory is the GPU's"
    if asked == "none":
        return None, "the system's malloc on every side, as asked for"
    folders = [folder for pattern in LIBRARIES for folder in glob(pattern)]
    found = asked or next(
        (file for folder in folders for file in sorted(glob(f"{folder}/libjemalloc.so*"))), None
    )
    found = found or ctypes.util.find_library("jemalloc")
    if found and sys.platform == "linux":
        return found, f"jemalloc with {JEMALLOC} where the table says jemalloc"
    return None, "the system's malloc on every side, as there is no jemalloc here (option --malloc)"


def _reading(options: argparse.Namespace) -> str:
    if options.cached:
        return "memory does not grow with the batch; "
    kept = (
        ""
        if options.keep_tokens is None
        else f"ltr keeps the activations of {options.keep_tokens:,} tokens; "
    )
    return kept + ("" if options.pooling is None else f"ltr pools tokens by {options.pooling}; ")


def _first_gpu() -> str:
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]


def _bert_base(folder: Path, backbone: str) -> str:
    torch.manual_seed(0)
    BertModel(BertConfig()).save_pretrained(folder / "bert-base")
    load_tokenizer(backbone).save_pretrained(folder / "bert-base")
    return str(folder / "bert-base")
