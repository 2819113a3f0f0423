"""Faster forms of what an encoder computes: :func:`use_fast` takes them, :func:`use_plain` none.

=================  ====================================================================
``linear``         layers that read the same input share its half-precision copy; oneDNN
                   in float32 where MKL is slow; weights laid out once for an encoding
``gelu``           the output of GELU is computed again in the backward pass, not kept
``blocks``         attention of packed texts by explicit matmuls, in bfloat16 on a CPU
``first_tokens``   the last layer computes first tokens only, where no other is read
=================  ====================================================================

The first two take the place of modules. The last two belong to packed texts:
:mod:`ltr.models.encoder.attention` chooses blocks chunk by chunk, and
:func:`ltr.models.encoder.packed.enable_packing` tries whether the other tokens can be left out.
"""

from torch import nn

from ltr.models.encoder.kernels.first_tokens import compute_all_tokens
from ltr.models.encoder.kernels.gelu import use_light_gelu, use_plain_gelu
from ltr.models.encoder.kernels.linear import use_fast_linear, use_plain_linear


def use_fast(model: nn.Module) -> None:
    """Take the faster linear layers and GELUs.

    Parameters and their names stay as they are.
    """
    use_fast_linear(model)
    use_light_gelu(model)


def use_plain(model: nn.Module) -> None:
    """Undo :func:`use_fast` and what leaves tokens out: every module is torch's or transformers'
    own again.

    The attention of packed texts is no module. Its name is in the model's configuration, see
    :data:`ltr.models.encoder.attention.PACKED_ATTENTION`.
    """
    use_plain_linear(model)
    use_plain_gelu(model)
    compute_all_tokens(model)
