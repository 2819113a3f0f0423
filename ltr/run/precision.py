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
        """Whether it multiplies bfloat16. An older one emulates it."""
        return self.capability >= NATIVE_FROM


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
    """Whether a GPU or a CPU only emulates bfloat16."""
    if device.type == "cuda":
        return not gpu_of(device).is_native
    capabilities = torch.cpu.get_capabilities()
    return device.type == "cpu" and not any(capabilities.get(name) for name in NATIVE_ON_CPU)


class ChosenPrecision(NamedTuple):
    """The precision that a command computes in.

    Attributes:
        name: as ``trainer.precision`` has it; None where a plugin of the trainer says it.
        gpus: that the trainer takes.
        line: why, where a GPU leaves a choice; None where nothing is to be said.
    """

    name: str | None
    gpus: list[Gpu]
    line: str | None = None

    def warning(self, device: torch.device) -> str | None:
        """What is said where bfloat16 was asked for, and is emulated; None where it is not.

        Args:
            device: of the process.
        """
        if self.name != "bf16-mixed":
            return None
        others = [gpu for gpu in self.gpus if not gpu.is_native]
        emulates_here = device.type == "cpu" and is_emulated(device)
        if not others and not emulates_here:
            return None
        where = _named(others) if others else "this CPU"
        return f"precision bf16-mixed, as configured, is only emulated on {where}, slowly; --trainer.precision 32-true computes in float32"


def stored_precision(file: Path) -> str | None:
    """The precision of the run that a checkpoint is of; None for one of no run of ltr.

    Raises:
        InputError: if the run's configuration or the checkpoint is damaged.
    """
    run = run_of_checkpoint(file)
    if run is not None and file.parent.name == run.checkpoints.name and run.config.is_file():
        precision: str = read_config(run.config)["trainer"]["precision"]
        return precision
    return read_checkpoint(file, checksums=False).get("run", {}).get("precision")


def chosen_precision(
    trainer_options: Mapping[str, Any], reads_features: bool, checkpoint: Path | None
) -> ChosenPrecision:
    """The precision that a trainer with these options computes in. For ``auto`` it is that of the run
    that the command goes on with or measures. Without one the devices decide, for texts.

    Args:
        trainer_options: with ``accelerator``, ``devices``, ``num_nodes``, ``plugins`` and
            ``precision``.
        reads_features: the ranker reads feature vectors, which bfloat16 would round to three digits.
        checkpoint: that the command goes on from or measures; None for none.

    Raises:
        InputError: see :func:`gpus_of` and :func:`stored_precision`.
    """
    gpus = gpus_of(trainer_options)
    name = trainer_options["precision"]
    if _plugin_says_precision(trainer_options["plugins"]):
        return ChosenPrecision(None if name == "auto" else name, gpus)
    if name == "auto" and checkpoint is not None and checkpoint.is_file():
        name = stored_precision(checkpoint) or name
    if name != "auto":
        name = full_precision_name(name)
        return ChosenPrecision(name, gpus, _line_of_configured(name, gpus, reads_features))
    if not gpus:
        return ChosenPrecision("32-true", gpus)
    if reads_features:
        line = "precision 32-true, as bfloat16 would round the feature vectors"
        return ChosenPrecision("32-true", gpus, line)
    others = [gpu for gpu in gpus if not gpu.is_native]
    if others:
        line = f"precision 32-true, as bfloat16 is not native to {_named(others)}; --trainer.precision 16-mixed computes in float16"
        return ChosenPrecision("32-true", gpus, line)
    line = f"precision bf16-mixed, as bfloat16 is native to {_named(gpus)}; --trainer.precision 32-true computes in float32"
    return ChosenPrecision("bf16-mixed", gpus, line)


def _line_of_configured(name: str, gpus: Sequence[Gpu], reads_features: bool) -> str | None:
    """What is said of float32 that was asked for where bfloat16 is native."""
    has_tf32 = torch.get_float32_matmul_precision() != "highest"
    all_native = bool(gpus) and all(gpu.is_native for gpu in gpus)
    if name != "32-true" or reads_features or has_tf32 or not all_native:
        return None
    return f"precision 32-true, as configured, and without TF32, though bfloat16 is native to {_named(gpus)}; --trainer.precision bf16-mixed computes in it"


def _plugin_says_precision(plugins: Any) -> bool:
    """Whether one of a trainer's plugins is a precision. Lightning refuses another one beside it.

    Args:
        plugins: a list of them, one, or None; each a name, or a group with its class path.
    """
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
