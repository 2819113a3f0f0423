"""Which precision a command computes in where its options say ``auto``, and what is said of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal, NamedTuple

import torch

from ltr.checkpoint import read_checkpoint
from ltr.run.config_file import full_precision_name, read_config
from ltr.run.run_folder import run_of_checkpoint

Precision = Literal["32-true", "bf16-mixed", "16-mixed"]
# What trainer.precision may be: these, auto, and short names that Lightning has for them.
Text = Literal["auto", "32-true", "bf16-mixed", "16-mixed", "32", "bf16", "16"]
TrainerPrecision = Text | Literal[32, 16]

NATIVE_FROM = (8, 0)  # the compute capability of the first GPUs that multiply bfloat16
# As torch.cpu.get_capabilities calls it; the last is of ARM.
NATIVE_ON_CPU = ("amx_bf16", "avx512_bf16", "bf16")


class Gpu(NamedTuple):
    """A CUDA device.

    Attributes:
        device: such as ``cuda:0``.
        name: of the card.
        capability: of its computing, as ``(8, 0)``.
    """

    device: str
    name: str
    capability: tuple[int, int]

    @property
    def is_native(self) -> bool:
        """Whether it is known to multiply bfloat16. An older one emulates it, and ROCm counts
        capabilities in another way.
        """
        return torch.version.hip is None and self.capability >= NATIVE_FROM

    @property
    def emulates(self) -> bool:
        """Whether it is known to emulate bfloat16."""
        return torch.version.hip is None and not self.is_native


def gpu_of(device: torch.device) -> Gpu:
    """What a CUDA device is."""
    # Not torch.cuda.is_bf16_supported, for which an emulation counts, and which asks the current
    # device alone.
    capability = torch.cuda.get_device_capability(device)
    return Gpu(str(device), torch.cuda.get_device_name(device), capability)


def gpus_of(trainer_options: Mapping[str, Any]) -> list[Gpu]:
    """The CUDA devices that a trainer with these options takes; none where it computes elsewhere, and
    where it will refuse them.

    Args:
        trainer_options: with ``accelerator``, ``devices`` and ``num_nodes``.

    Raises:
        InputError: see :func:`ltr.run.launchers.use_launched_processes`.
    """
    # Lightning takes seconds to import, and who loads a ranker needs none.
    from lightning.fabric.utilities.exceptions import MisconfigurationException
    from lightning.pytorch.accelerators import CUDAAccelerator

    from ltr.run.launchers import use_launched_processes

    if trainer_options["accelerator"] not in ("auto", "gpu", "cuda"):
        return []
    if not CUDAAccelerator.is_available():
        return []
    processes = {name: trainer_options[name] for name in ("num_nodes", "devices")}
    use_launched_processes(processes)
    devices = processes["devices"]
    if devices == "auto":
        devices = CUDAAccelerator.auto_device_count()
    try:
        numbers = CUDAAccelerator.parse_devices(devices)
    except (MisconfigurationException, TypeError, ValueError):
        return []
    return [gpu_of(torch.device("cuda", number)) for number in numbers or ()]


def is_emulated(device: torch.device) -> bool:
    """Whether a GPU or a CPU is known to emulate bfloat16."""
    if device.type == "cuda":
        return gpu_of(device).emulates
    capabilities = torch.cpu.get_capabilities()
    return device.type == "cpu" and not any(capabilities.get(name) for name in NATIVE_ON_CPU)


class ChosenPrecision(NamedTuple):
    """The precision that a command computes in.

    Attributes:
        name: as ``trainer.precision`` has it; None where a plugin of the trainer says it.
        gpus: that the trainer takes.
        line: why, where a GPU leaves a choice; None where nothing is to be said.
        trains: whether the command trains. Where one measures, another precision would make other
            numbers, so none is advised.
    """

    name: str | None
    gpus: list[Gpu]
    line: str | None = None
    trains: bool = True

    def warning(self, device: torch.device) -> str | None:
        """What is said where bfloat16 was asked for, and is emulated; None where it is not."""
        if self.name != "bf16-mixed":
            return None
        others = [gpu for gpu in self.gpus if gpu.emulates]
        emulates_here = device.type == "cpu" and is_emulated(device)
        if not others and not emulates_here:
            return None
        where = _named(others) if others else "this CPU"
        advice = _advice("32-true computes in float32", self.trains)
        return f"precision bf16-mixed is only emulated on {where}, slowly{advice}"


def stored_precision(file: Path) -> str | None:
    """The precision of the run that a checkpoint is of; None for one of no run of ltr.

    Raises:
        InputError: if the run's configuration or the checkpoint is damaged.
    """
    run = run_of_checkpoint(file)
    if run is not None and file.parent.name == run.checkpoints.name and run.config.is_file():
        trainer = read_config(run.config)["trainer"]
        if not trainer.get("plugins"):  # one may have said the precision, and the checkpoint has it
            precision: str = trainer["precision"]
            return precision
    return read_checkpoint(file, checksums=False).get("run", {}).get("precision")


def chosen_precision(
    trainer_options: Mapping[str, Any],
    reads_features: bool,
    checkpoint: Path | None,
    trains: bool = True,
) -> ChosenPrecision:
    """The precision that a trainer with these options computes in. For ``auto`` it is that of the run
    that the command goes on with or measures. Without one the devices decide, for texts.

    Args:
        trainer_options: with ``accelerator``, ``devices``, ``num_nodes``, ``plugins`` and
            ``precision``.
        reads_features: the ranker reads feature vectors, which bfloat16 would round to three digits.
        checkpoint: that the command goes on from or measures; None for none.
        trains: whether the command trains.

    Raises:
        InputError: see :func:`gpus_of` and :func:`stored_precision`.
    """
    gpus = gpus_of(trainer_options)
    name = trainer_options["precision"]
    if _plugin_says_precision(trainer_options["plugins"]):
        return ChosenPrecision(None if name == "auto" else name, gpus, None, trains)
    if name == "auto" and checkpoint is not None and checkpoint.is_file():
        name = stored_precision(checkpoint) or name
    if name != "auto":
        name = full_precision_name(name)
        line = _line_of_float32(name, gpus, reads_features) if trains else None
        return ChosenPrecision(name, gpus, line, trains)
    if not gpus:
        return ChosenPrecision("32-true", gpus, None, trains)
    if reads_features:
        line = "precision 32-true, as bfloat16 would round the feature vectors"
        return ChosenPrecision("32-true", gpus, line, trains)
    others = [gpu for gpu in gpus if not gpu.is_native]
    if others:
        known = "not" if torch.version.hip is None else "not known to be"
        advice = _advice("16-mixed computes in float16", trains)
        line = f"precision 32-true, as bfloat16 is {known} native to {_named(others)}{advice}"
        return ChosenPrecision("32-true", gpus, line, trains)
    advice = _advice("32-true computes in float32", trains)
    line = f"precision bf16-mixed, as bfloat16 is native to {_named(gpus)}{advice}"
    return ChosenPrecision("bf16-mixed", gpus, line, trains)


def _advice(words: str, trains: bool) -> str:
    """The end of a line: what another precision does."""
    return f"; --trainer.precision {words}" if trains else ""


def _line_of_float32(name: str, gpus: Sequence[Gpu], reads_features: bool) -> str | None:
    """What is said of float32 that an option or the run has where bfloat16 is native."""
    has_tf32 = torch.get_float32_matmul_precision() != "highest"
    all_native = bool(gpus) and all(gpu.is_native for gpu in gpus)
    if name != "32-true" or reads_features or has_tf32 or not all_native:
        return None
    return f"precision 32-true, without TF32, though bfloat16 is native to {_named(gpus)}; --trainer.precision bf16-mixed computes in it"


def _plugin_says_precision(plugins: Any) -> bool:
    """Whether a trainer's plugin is a precision: Lightning refuses another one beside it."""
    from lightning.pytorch.plugins import Precision as PrecisionPlugin

    for plugin in plugins if isinstance(plugins, list) else [plugins]:
        if plugin is None or isinstance(plugin, str):
            continue
        if issubclass(resolve_name(plugin["class_path"]), PrecisionPlugin):
            return True
    return False


def _named(gpus: Sequence[Gpu]) -> str:
    """Devices in words: those of one kind together."""
    by_card: dict[str, list[str]] = {}
    for gpu in gpus:
        major, minor = gpu.capability
        card = f"{gpu.name}, compute capability {major}.{minor}"
        by_card.setdefault(card, []).append(gpu.device)
    return ", ".join(f"{', '.join(devices)} ({card})" for card, devices in by_card.items())
