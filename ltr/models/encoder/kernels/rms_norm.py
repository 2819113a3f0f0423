"""RMSNorm by torch's own kernel on a GPU, where transformers launches six.

.. math:: y = w \\, x / \\sqrt{\\mathrm{mean}(x^2) + \\varepsilon}

Decoders have two in each layer, and Qwen3 two more, of queries and keys. Half-precision inputs are
normalised in float32, and the result is multiplied by w without being rounded before.
"""

from functools import partial
from inspect import signature

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from ltr.models.encoder.kernels import half_weights

TOLERANCE = 1e-5  # of the numbers of a trial, which have size 1


def use_fused_rms_norm(model: nn.Module) -> None:
    """Let torch compute every RMSNorm of transformers inside. A trial finds them: a module with a
    weight and an epsilon that computes the same of one input. One that takes a gate, too, is none.
    """
    for module in model.modules():
        is_alike = isinstance(vars(module).get("variance_epsilon"), float)
        is_alike = is_alike and set(module._parameters) == {"weight"}
        is_alike = is_alike and len(signature(module.forward).parameters) == 1
        if is_alike and _computes_the_same(module):
            module.forward = partial(normalised, module)


@torch.no_grad()
def _computes_the_same(module: nn.Module) -> bool:
    generator = torch.Generator().manual_seed(0)
    own_weight = _weight_of(module)
    weight, *rows = torch.randn(4, own_weight.numel(), generator=generator).to(own_weight.device)
    x = torch.stack(rows)
    try:
        theirs = functional_call(module, {"weight": weight}, x)
        ours = F.rms_norm(x, weight.shape, weight, vars(module)["variance_epsilon"])
    except Exception:  # an architecture may raise anything for inputs that it does not know
        return False
    return torch.allclose(theirs, ours, rtol=TOLERANCE, atol=TOLERANCE)


def _weight_of(module: nn.Module) -> Tensor:
    weight = module._parameters["weight"]
    assert weight is not None
    return weight


def normalised(module: nn.Module, x: Tensor) -> Tensor:
    """What the module makes of ``x``, ``[…, H]``."""
    if torch.compiler.is_compiling() or not half_weights.launches_cost(x.device.type):
        return type(module).forward(module, x)
    weight = _weight_of(module)
    # Torch's kernel takes one type, and autocast casts to float32 what it normalises.
    in_float32 = x.dtype == weight.dtype == torch.float32
    if not in_float32 and not torch.is_autocast_enabled(x.device.type):
        return type(module).forward(module, x)
    eps = vars(module)["variance_epsilon"]
    return F.rms_norm(x.float(), weight.shape, weight.float(), eps)
