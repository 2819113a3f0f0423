r"""Low-rank adapters: the encoder's own weights stay as they are, and small matrices beside its linear
layers learn.

.. math:: y = W x + b + \frac{\alpha}{r} \, B A x

W, of a linear layer ``[N, K]``, is frozen. A is ``[r, K]`` and B ``[N, r]``; B begins as zeros, so that
a fresh adapter changes nothing. Layers are those of PEFT, put into the model that is there: its
class and its attributes keep their names.

References:
    Hu et al. (2022), LoRA: low-rank adaptation of large language models.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from ltr.errors import InputError, at_least
from ltr.models.encoder.loading.architecture import layers_of
from ltr.models.encoder.loading.model_folder import hub_id_and_commit

# Importing peft takes seconds, and it is an extra: it is imported inside functions.

BaseDtype = Literal["float32", "bfloat16"]

ADAPTER = "default"  # its name, as PEFT has it where there is one
# What an entry of a checkpoint is called that says which base the adapters beside it belong to.
BASE = "base_digest"
# The peak learning rate where the configuration names none, ten times that of all weights: B begins
# as zeros, and the product of A and B moves slowly.
USUAL_LR = 2e-4
# PEFT's own names.
PEFT_PREFIX = "base_model.model."
PEFT_WEIGHTS = "adapter_model.safetensors"


@dataclass(frozen=True)
class Lora:
    """Adapters of low rank beside the linear layers of an encoder, which stay as they are.

    Args:
        r: Their rank: the rows of A and the columns of B.
        alpha: What an adapter makes is multiplied by ``alpha / r``.
        dropout: Probability that an element of what an adapter reads is set to 0 in training, at
            least 0 and below 1.
        targets: The linear layers that get one, by the ends of their names: ``[query, value]``.
            None: all in the layers of the transformer.

    Raises:
        InputError: for a value out of bounds.

    Example:
        >>> Lora(r=8, alpha=16).targets is None  # all linear layers of the transformer
        True
    """

    r: int = 16
    alpha: int = 32
    dropout: float = 0.0
    targets: list[str] | None = None

    def __post_init__(self) -> None:
        at_least(1, r=self.r, alpha=self.alpha)
        if not 0 <= self.dropout < 1:
            raise InputError(
                f"dropout must be at least 0 and below 1, got {self.dropout}", option="dropout"
            )
        if self.targets is not None and not self.targets:
            raise InputError(
                "targets must name linear layers, got an empty list; leave it out for all of them",
                option="targets",
            )


@dataclass(frozen=True)
class FrozenBase:
    """The weights of an encoder that stay as they are. Checkpoints leave them out.

    Attributes:
        digest: of their values, in 32 hexadecimal digits.
        names: theirs, as in the state dict of the model.
    """

    digest: str
    names: tuple[str, ...]

    @classmethod
    def from_model(cls, model: PreTrainedModel) -> "FrozenBase":
        """The base of a model that has its adapters."""
        trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
        frozen = {}
        for name, tensor in model.state_dict().items():
            if name not in trained:
                frozen[name] = tensor
        digest = hashlib.sha256()
        for name, tensor in sorted(frozen.items()):
            own_name = name.replace(".base_layer.", ".")  # without adapters
            digest.update(f"{own_name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
            # As bytes, since numpy has no bfloat16.
            as_bytes = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
            digest.update(as_bytes.numpy().data)
        return cls(digest.hexdigest()[:32], tuple(frozen))

    def as_tensor(self) -> Tensor:
        """``[16]`` uint8, the digest as an entry of a state dict."""
        return torch.tensor(list(bytes.fromhex(self.digest)), dtype=torch.uint8)


def add_adapters(model: PreTrainedModel, lora: Lora) -> None:
    """Freeze a model, and put fresh adapters into it. A head behind the encoder goes on to learn.

    Raises:
        InputError: if peft is not installed, or the model has no such layers.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise InputError(
            f"adapters need PEFT, which can't be imported ({error}): pip install 'ltr-lab[lora]'",
            option="lora",
        ) from None

    targets, others = _targets(model, lora.targets)
    base, commit = hub_id_and_commit(model.name_or_path) or (model.name_or_path, None)
    config = LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=targets,
        exclude_modules=others or None,
        base_model_name_or_path=base,
        revision=commit,
    )
    inject_adapter_in_model(config, model, ADAPTER)
    encoder_weights = {id(weight) for weight in model.base_model.parameters()}
    for weight in model.parameters():
        if id(weight) not in encoder_weights:
            weight.requires_grad_(True)


def _targets(model: PreTrainedModel, wanted: list[str] | None) -> tuple[list[str], list[str]]:
    """The ends of the names of the linear layers that get an adapter, and the names of other layers
    that end so too: those outside the transformer's layers, as a pooler, which may get no gradient.
    """
    inside = set()
    ends = set()
    for layer in layers_of(model):
        for name, module in layer.named_modules():
            if isinstance(module, nn.Linear):
                inside.add(id(module))
                ends.add(name)
    if wanted is not None:
        unknown = [end for end in wanted if not any(_ends_with(name, end) for name in ends)]
        if unknown or not ends:
            known = ", ".join(sorted(ends)) or "none"
            raise InputError(
                f"targets must be linear layers of {type(model).__name__} ({known}), got {', '.join(unknown)}",
                option="targets",
            )
        ends = set(wanted)
    if not ends:
        raise InputError(
            f"adapters stand beside linear layers, and the layers of {type(model).__name__} have none; take another backbone",
            option="lora",
        )
    others = []
    for name, module in model.named_modules():
        is_meant = any(_ends_with(name, end) for end in ends)
        if is_meant and isinstance(module, nn.Linear) and id(module) not in inside:
            others.append(name)
    return sorted(ends), others


def _ends_with(name: str, end: str) -> bool:
    """Whether the last parts of a module's name are these, as PEFT has it."""
    return name == end or name.endswith(f".{end}")


def cast_base(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Cast the frozen weights; adapters, heads and buffers, such as the frequencies of rotary
    positions, keep their precision.

    A head behind the encoder reads hidden states in float32.
    """
    for weight in model.parameters():
        if not weight.requires_grad and weight.is_floating_point():
            weight.data = weight.data.to(dtype)
    if model.base_model is not model:
        # Behind the hook of packed texts, which has been registered before.
        model.base_model.register_forward_hook(_in_float32)


def _in_float32(_: nn.Module, args: tuple, output: Any) -> Any:
    """A forward hook of the encoder below a head: what the head reads, in float32."""
    for name in ("last_hidden_state", "pooler_output"):
        value = output.get(name)
        if value is not None:
            output[name] = value.float()
    return output


def leave_base_out_of_checkpoints(encoder: nn.Module) -> None:
    """Let the state dict of a :class:`ltr.models.encoder.text_encoder.TextEncoder` have its trained
    weights only, and the digest of its ``frozen_base``; where that is None, all weights.

    Such a state dict is loaded beside the base that is there. Another base is an InputError.
    """
    encoder.register_state_dict_post_hook(_without_base)
    encoder.register_load_state_dict_pre_hook(_with_own_base)


def _without_base(encoder: Any, state: dict[str, Tensor], prefix: str, _: Any) -> None:
    base: FrozenBase | None = encoder.frozen_base
    if base is None:
        return
    for name in base.names:
        del state[f"{prefix}model.{name}"]
    state[prefix + BASE] = base.as_tensor()


def _with_own_base(
    encoder: Any,
    state: dict[str, Tensor],
    prefix: str,
    _: Any,
    strict: bool,
    missing: list,
    *__: Any,
) -> None:
    base: FrozenBase | None = encoder.frozen_base
    if base is None:
        return
    stored = state.pop(prefix + BASE, None)
    if stored is None:
        missing.append(prefix + BASE)
    elif not torch.equal(stored.cpu(), base.as_tensor()):
        digest = bytes(stored.tolist()).hex()
        raise InputError(
            f"adapters must be read with the weights they were trained beside ({digest[:8]}…), and those of {encoder.model.name_or_path!r} are others ({base.digest[:8]}…); name the same model as backbone, with the same layers and dtype",
            option="backbone",
        )
    # Of the same tensors nothing is copied.
    own = encoder.model.state_dict(keep_vars=True)
    for name in base.names:
        state[f"{prefix}model.{name}"] = own[name]


@contextmanager
def merged_adapters(model: PreTrainedModel) -> Iterator[None]:
    """Inside the block a model has no adapters: they are added to its weights, in float32. The sums
    are rounded to the type that the weights had. All are float32 tensors there, so that what is
    computed of them is not rounded.
    """
    from peft.tuners.lora import LoraLayer

    layers: list[tuple[nn.Module, str, Any]] = []
    for name, module in list(model.named_modules()):
        if isinstance(module, LoraLayer):
            parent_name, _, attribute = name.rpartition(".")
            layers.append((model.get_submodule(parent_name), attribute, module))
    own_values = {weight: weight.data for weight in model.parameters()}
    for weight in own_values:
        if not weight.is_floating_point():
            raise InputError(
                f"adapters are merged into weights that are numbers, and those of {model.name_or_path!r} are quantised; export the adapters alone (--to adapter)"
            )
    configs = model.peft_config
    del model.peft_config
    try:
        for weight, values in own_values.items():
            weight.data = values.float()
        for parent, attribute, layer in layers:
            weight = layer.base_layer.weight
            with torch.no_grad():
                total = weight.data + layer.get_delta_weight(ADAPTER).float()
                weight.data = total.to(own_values[weight].dtype).float()
            setattr(parent, attribute, layer.base_layer)
        yield
    finally:
        for weight, values in own_values.items():
            weight.data = values
        for parent, attribute, layer in layers:
            setattr(parent, attribute, layer)
        model.peft_config = configs


def save_adapter(folder: Path, model: PreTrainedModel) -> None:
    """Write a folder that ``peft.PeftModel.from_pretrained(base, folder)`` loads: the adapters, and
    a head behind the encoder.
    """
    from peft import get_peft_model_state_dict

    weights = get_peft_model_state_dict(model, adapter_name=ADAPTER, save_embedding_layers=False)
    heads = set()
    encoder_weights = {id(weight) for weight in model.base_model.parameters()}
    for name, weight in model.named_parameters():
        if id(weight) not in encoder_weights:
            weights[name] = weight
            heads.add(name.partition(".")[0])
    saved = {}
    for name, weight in weights.items():
        saved[PEFT_PREFIX + name] = weight.detach().cpu().contiguous()
    expected = set()
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            expected.add(PEFT_PREFIX + name.replace(f".{ADAPTER}.", "."))
    folder.mkdir(parents=True, exist_ok=True)
    save_file(saved, folder / PEFT_WEIGHTS, metadata={"format": "pt"})
    _check_names(folder / PEFT_WEIGHTS, expected)
    config = model.peft_config[ADAPTER]
    own_heads = config.modules_to_save
    own_mode = config.inference_mode
    config.modules_to_save = sorted(heads) or None
    config.inference_mode = True
    try:
        config.save_pretrained(str(folder))
    finally:
        config.modules_to_save = own_heads
        config.inference_mode = own_mode


def _check_names(file: Path, expected: set[str]) -> None:
    """Refuse a file of weights that lacks a trained one, or has another."""
    with safe_open(file, "pt") as weights:
        names = set(weights.keys())
    missing = sorted(expected - names)
    unexpected = sorted(names - expected)
    if missing or unexpected:
        raise InputError(
            f"{file.name} must hold the trained weights, and of {len(expected)} it lacks {len(missing)} ({', '.join(missing[:3])}) and has {len(unexpected)} others ({', '.join(unexpected[:3])}); is this PEFT another than the one that was tried (pip install 'ltr-lab[lora]')?"
        )
