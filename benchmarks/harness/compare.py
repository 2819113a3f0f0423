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

from harness.machine import machine_line
from harness.meter import Step
from harness.options import LIVEQA, MEDQUAD, add_backbone, add_data, parser
from harness.processes import JEMALLOC, environment, run_apart, take_turns
from harness.sides import Result, Run, Setting, Side, matmul_peak
from harness.tables import head, row
from ltr.models.encoder.loading.model_folder import resolve
from ltr.models.encoder.loading.pretrained import load_tokenizer

ST = "sentence-transformers"
DEFAULT = f"{ST}, default"
TUNED = f"{ST}, tuned"
# Where Linux keeps its libraries.
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
    precision, precision_words = _precision(options.precision, device)
    malloc, malloc_words = _malloc(options.malloc, device)
    with (
        tempfile.TemporaryDirectory() as folder,
        environment(
            LTR_CACHE=f"{folder}/cache",
            CUDA_VISIBLE_DEVICES=_first_gpu(),
            HF_DATASETS_DISABLE_PROGRESS_BARS="1",
        ),
    ):
        absent = [name for name in needs if find_spec(name) is None]
        setting = _setting(options, Path(folder), device, precision, has_peers=not absent)
        config = AutoConfig.from_pretrained(setting.backbone)
        peak = run_apart(matmul_peak, device, precision)
        tokens_per_unit, line = run_apart(prepare, setting)
        model = "BERT-base, untrained" if options.bert_base else options.backbone
        print(
            f"{model}; batch {setting.batch}, {setting.max_length} tokens at most, "
            f"{setting.turns} turns of {setting.steps} steps after {setting.warm_up}; "
            f"{_options_of_ltr(options)}{precision_words}; {malloc_words}.\n"
            f"Large matmuls reach {peak / 1e12:.3g} TFLOP/s in {precision}. {line}; "
            f"one of the {unit} has {tokens_per_unit:.1f} real tokens.\n",
            flush=True,
        )
        sides = _sides(theirs, ours, precision, malloc, device)
        runnable = [side for side in sides if not (absent and side.run is theirs)]
        results = take_turns(runnable, setting)

    reason = f"{', '.join(absent)} absent (pip install -e '.[bench]')"
    results = {side: results.get(side, reason) for side in sides}

    def share_of_peak(step: Step) -> float:
        return passes * forward_flops(config, step) / peak / step.seconds

    _print_table(results, unit, tokens_per_unit, share_of_peak)
    gpu = f"{torch.cuda.get_device_name()}; " if device == "cuda" else ""
    packages = ", ".join(f"{package} {version(package)}" for package in (ST, "lightning"))
    print(f"\n{gpu}{machine_line()}; {packages}")


def _setting(
    options: argparse.Namespace, folder: Path, device: str, precision: str, has_peers: bool
) -> Setting:
    if options.bert_base:
        backbone = _bert_base(folder, options.backbone)
    else:
        backbone = resolve(options.backbone)
    return Setting(
        device=device,
        data=options.data,
        backbone=backbone,
        max_length=options.max_length,
        batch=options.batch,
        steps=options.steps or (50 if device == "cuda" else 5),
        turns=options.turns,
        folder=folder,
        warm_up=options.warm_up,
        cached=options.cached,
        keep_tokens=options.keep_tokens,
        pooling=options.pooling,
        peers=has_peers,
        precision=precision,
    )


def _sides(theirs: Run, ours: Run, precision: str, malloc: str | None, device: str) -> list[Side]:
    # Nobody gets half precision on a GPU without asking for it.
    sides = [
        Side(DEFAULT, theirs, "float32" if device == "cuda" else precision),
        Side(TUNED, theirs, precision, tuned=True, malloc=malloc),
        Side("ltr", ours, precision, malloc=malloc),
        Side("ltr, plain kernels", ours, precision, malloc=malloc, kernels="plain"),
    ]
    if malloc:
        sides.append(Side("ltr, system's malloc", ours, precision))
    return sides


def _print_table(
    results: dict[Side, Result | str],
    unit: str,
    tokens_per_unit: float,
    share_of_peak: Callable[[Step], float],
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
        "peak MB",
        "of the matmul peak",
        "steps kept",
    ]
    print(head(columns))
    speeds: dict[str, float] = {}  # tokens/s of the sides so far

    def ratio(speed: float, base: str) -> str:
        return f"{speed / speeds[base]:.2f}" if base in speeds else ""

    for side, result in results.items():
        if isinstance(result, str):
            empty = " |" * (len(columns) - 3)
            print(f"| {side.name} | {side.precision} | cannot run: {result} |{empty}")
            continue
        kept, note = result.kept()
        speed = statistics.median(step.tokens / step.seconds for step in kept)
        padding = 1 - sum(step.tokens for step in kept) / sum(step.with_padding for step in kept)
        share = statistics.median(share_of_peak(step) for step in kept)
        cells = [
            side.name,
            side.precision,
            result.malloc,
            f"{speed:,.0f}",
            f"{speed / tokens_per_unit:,.1f}",
            ratio(speed, DEFAULT),
            ratio(speed, TUNED),
            f"{padding:.1%}",
            f"{result.peak / 1e6:,.0f}",
            f"{share:.1%}",
            note,
        ]
        speeds[side.name] = speed
        print(row(cells))


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
    arguments = parser(description)
    arguments.add_argument(
        "--precision",
        choices=["float32", "bf16"],
        help="default: bf16 where the machine multiplies it",
    )
    arguments.add_argument(
        "--max-length", type=int, default=256, help="tokens of a text, special ones counted"
    )
    arguments.add_argument("--batch", type=int, default=batch)
    arguments.add_argument("--steps", type=int, help="measured steps of a turn: 5, or 50 on a GPU")
    arguments.add_argument("--turns", type=int, default=6, help="of each side")
    arguments.add_argument(
        "--warm-up",
        type=int,
        default=3,
        help="steps at the start of each side that do not count, 1 or more",
    )
    add_backbone(arguments)
    arguments.add_argument(
        "--bert-base",
        action="store_true",
        help="an untrained BERT of base size with the backbone's tokenizer",
    )
    arguments.add_argument(
        "--cached",
        action="store_true",
        help="memory that does not grow with the batch (train_dual.py)",
    )
    arguments.add_argument(
        "--keep-tokens",
        type=int,
        help="ltr keeps the activations of so many (train_dual.py); all by default",
    )
    arguments.add_argument(
        "--pooling",
        choices=["mean", "cls", "max"],
        help="of ltr's tokens (train_cross.py); cls is sentence-transformers'",
    )
    add_data(arguments, LIVEQA, MEDQUAD)
    arguments.add_argument(
        "--malloc", help="the jemalloc library to preload, or none; searched for by default"
    )
    options = arguments.parse_args()
    if options.tiny:
        options.batch = 2
        options.max_length = 64
        options.steps = 1
        options.turns = 1
        options.warm_up = 1
        options.malloc = "none"
    return options


def _precision(wanted: str | None, device: str) -> tuple[str, str]:
    """float32 or bf16, and why."""
    if wanted:
        return wanted, f"{wanted} as asked for"
    if device == "cuda":
        multiplies = torch.cuda.is_bf16_supported(including_emulation=False)
        name = "GPU"
        lacks = ""
    else:
        features = torch.cpu.get_capabilities()
        multiplies = features.get("amx_bf16", False) or features.get("avx512_bf16", False)
        name = "CPU"
        lacks = "has neither AMX nor AVX512-BF16 and "
    if multiplies:
        return "bf16", f"bf16, as this {name} multiplies it"
    return "float32", f"float32, as this {name} {lacks}would emulate bf16"


def _malloc(wanted: str | None, device: str) -> tuple[str | None, str]:
    """The library to be preloaded or None, and a line that says so."""
    if device == "cuda":
        return None, "the system's malloc on every side, as memory is the GPU's"
    if wanted == "none":
        return None, "the system's malloc on every side, as asked for"
    library = wanted or _jemalloc()
    if library and sys.platform == "linux":
        return library, f"jemalloc with {JEMALLOC} where the table says jemalloc"
    return None, "the system's malloc on every side, as there is no jemalloc here (option --malloc)"


def _jemalloc() -> str | None:
    for pattern in LIBRARIES:
        for folder in glob(pattern):
            for file in sorted(glob(f"{folder}/libjemalloc.so*")):
                return file
    return ctypes.util.find_library("jemalloc")


def _options_of_ltr(options: argparse.Namespace) -> str:
    """What ltr does otherwise than by default, in words."""
    if options.cached:
        return "memory does not grow with the batch; "
    words = ""
    if options.keep_tokens is not None:
        words += f"ltr keeps the activations of {options.keep_tokens:,} tokens; "
    if options.pooling is not None:
        words += f"ltr pools tokens by {options.pooling}; "
    return words


def _first_gpu() -> str:
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]


def _bert_base(folder: Path, backbone: str) -> str:
    """Save an untrained BERT of base size with the tokenizer of a backbone; returns its folder."""
    torch.manual_seed(0)
    saved = folder / "bert-base"
    BertModel(BertConfig()).save_pretrained(saved)
    load_tokenizer(backbone).save_pretrained(saved)
    return str(saved)
