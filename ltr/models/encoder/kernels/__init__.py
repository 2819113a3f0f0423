"""Faster forms of what an encoder computes: :func:`use_fast` takes them, :func:`use_plain` none.

=================  ====================================================================
``linear``         layers that read the same input share its half-precision copy; oneDNN
                   in float32 where MKL is slow; weights laid out once for an encoding
``half_weights``   on a GPU the weights of a layer are cast together, and norms of an encoding
                   stay in half precision
``rms_norm``       on a GPU RMSNorm in one launch
``rotary``         on a GPU rotary positions in few launches
``gelu``           the output of GELU is computed again in the backward pass, not kept
``blocks``         attention of packed texts by explicit matmuls, in bfloat16 on a CPU
``first_tokens``   the last layer computes first tokens only, where no other is read
=================  ====================================================================

The first five take the place of modules, or of what these call. The last two belong to packed texts:
:mod:`ltr.models.encoder.attention` chooses blocks chunk by chunk, and
:func:`ltr.models.encoder.packed.enable_packing` tries whether the other tokens can be left out.
"""

from functools import partial

from torch import nn
from transformers import PreTrainedModel
from transformers.activations import GELUActivation

from ltr.models.encoder.kernels.first_tokens import compute_all_tokens
from ltr.models.encoder.kernels.gelu import LightGelu, use_light_gelu
from ltr.models.encoder.kernels.half_weights import (
    HalfNorm,
    cast_each_alone,
    cast_each_layer_together,
    use_half_norm,
)
from ltr.models.encoder.kernels.linear import FastLinear, SharedCastLinear, use_fast_linear
from ltr.models.encoder.kernels.rms_norm import normalised, use_fused_rms_norm
from ltr.models.encoder.kernels.rotary import attend, use_light_rotary
from ltr.models.encoder.loading.architecture import layers_of

# What each class takes the place of.
PLAIN: dict[type, type] = {
    SharedCastLinear: nn.Linear,
    FastLinear: nn.Linear,
    HalfNorm: nn.LayerNorm,
    LightGelu: GELUActivation,
}


def use_fast(model: PreTrainedModel, is_compiled: bool = False) -> None:
    """Take the faster linear layers, norms, rotations and GELUs.

    Parameters and their names stay as they are.

    Args:
        model: an encoder, or a ready cross-encoder.
        is_compiled: whether its layers go through ``torch.compile``, which makes few kernels of many
            by itself.
    """
    use_fast_linear(model)
    use_light_gelu(model)
    if not is_compiled:
        cast_each_layer_together(layers_of(model), SharedCastLinear)
        use_half_norm(layers_of(model))
        use_fused_rms_norm(model)
        use_light_rotary(model)


def use_plain(model: PreTrainedModel) -> None:
    """Undo :func:`use_fast` and what leaves tokens out: every module is torch's or transformers'
    own again.

    The attention of packed texts is no module. Its name is in the model's configuration, see
    :data:`ltr.models.encoder.attention.PACKED_ATTENTION`.
    """
    for module in model.modules():
        if type(module) in PLAIN:
            module.__class__ = PLAIN[type(module)]
    cast_each_alone(model)
    use_own_forwards(model)
    compute_all_tokens(model)


def use_own_forwards(model: nn.Module) -> None:
    """Undo :func:`use_fused_rms_norm` and :func:`use_light_rotary`: what they change is computed by its
    class again.
    """
    for module in model.modules():
        forward = vars(module).get("forward")
        if isinstance(forward, partial) and forward.func in (normalised, attend):
            del module.forward
