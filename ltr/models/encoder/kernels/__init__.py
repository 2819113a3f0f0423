"""Faster forms of what an encoder computes: :func:`use_fast` takes them, :func:`use_plain` none.

=================  ====================================================================
``linear``         layers that read the same input share its half-precision copy; oneDNN
                   in float32 where MKL is slow; weights laid out once for an encoding
``gelu``           the output of GELU is computed again in the backward pass, not kept
``dropout``        one draw gives the bytes of eight elements of a mask, on a CPU
``blocks``         attention of packed texts by explicit matmuls, in bfloat16 on a CPU
``first_tokens``   the last layer computes first tokens only, where no other is read
=================  ====================================================================

The first three take the place of modules. The last two belong to packed texts:
:mod:`ltr.models.encoder.attention` chooses blocks chunk by chunk, and
:func:`ltr.models.encoder.packed.enable_packing` tries whether the other tokens can be left out.
"""

from torch import nn

from ltr.models.encoder.kernels.dropout import use_fast_dropout, use_torch_dropout
from ltr.models.encoder.kernels.first_tokens import compute_all_tokens
from ltr.models.encoder.kernels.gelu import use_light_gelu, use_plain_gelu
from ltr.models.encoder.kernels.linear import use_fast_linear, use_plain_linear


def use_fast(model: nn.Module, fast_dropout: bool = True) -> None:
    """Take the faster linear layers and GELUs, and cheap masks of dropout if ``fast_dropout``.

    Parameters and their names stay as they are.
    """
    use_fast_linear(model)
    use_light_gelu(model)
    if fast_dropout:
        use_fast_dropout(model)


def use_plain(model: nn.Module) -> None:
    """Undo :func:`use_fast` and what leaves tokens out: every module is torch's or transformers'
    own again.

    The attention of packed texts is no module. Its name is in the model's configuration, see
    :data:`ltr.models.encoder.attention.PACKED_ATTENTION`.
    """
    use_plain_linear(model)
    use_plain_gelu(model)
    use_torch_dropout(model)
    compute_all_tokens(model)
