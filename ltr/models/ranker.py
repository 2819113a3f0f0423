"""The base of every ranker."""

import hashlib

import torch
from torch import Tensor, nn

from ltr.batch import RankingBatch
from ltr.data.formats import Reads
from ltr.errors import InputError


class Ranker(nn.Module):
    """Scores the documents of each list: ``ranker(batch) -> [B, N]``.

    A ranker of your own is a subclass that sets the attributes below and defines ``represent``, or
    ``forward`` alone where it gives no embeddings.

    Attributes:
        reads: how the data must lay out a batch for this ranker.
        gives_embeddings: whether ``represent`` works: some losses, margins and diagnostics need
            embeddings.
        usual_lr: the learning rate where the configuration names none.
        new_parts: the names of parts that were made up of random numbers, such as a head, and have
            learnt nothing yet.
    """

    reads: Reads
    gives_embeddings: bool = True
    usual_lr: float = 2e-5
    new_parts: tuple[str, ...] = ()

    @property
    def key(self) -> list[object]:
        """All that decides its scores, for keys of what is made of them. A subclass adds what it
        has beside its weights.
        """
        return [type(self).__name__, digest_of_weights(self)]

    def forward(self, batch: RankingBatch) -> Tensor:
        """Scores ``[B, N]`` float32, 0 at the padding."""
        return self.represent(batch)[0]

    def represent(self, batch: RankingBatch) -> tuple[Tensor, Tensor]:
        """Scores ``[B, N]`` and the documents' embeddings ``[B, N, H]`` of one pass, both float32
        and 0 at the padding.
        """
        raise NotImplementedError(f"{type(self).__name__} gives no embeddings")

    def padding_share(self, batch: RankingBatch) -> float | None:
        """Share of padding among the tokens that the encoder reads of a batch. None where the
        ranker does not measure it.
        """
        return None


def in_lists(values: Tensor, mask: Tensor) -> Tensor:
    """Put one value or vector of each document into its place in the lists; padding gets 0.

    Args:
        values: ``[S]`` or ``[S, H]``, list by list, without padding.
        mask: ``[B, N]``, True at the S documents.

    Returns:
        ``[B, N]`` or ``[B, N, H]``.
    """
    lists = values.new_zeros(*mask.shape, *values.shape[1:])
    if values.ndim == 2:
        mask = mask.unsqueeze(2)
    return lists.masked_scatter(mask, values)


def all_finite(module: nn.Module) -> bool:
    """Whether no weight is NaN, and none that is trained is infinite.

    A weight that is not trained may be infinite: some models keep a mask of -inf as a parameter.
    """
    for weight in module.parameters():
        wrong = ~weight.isfinite() if weight.requires_grad else weight.isnan()
        if wrong.any():
            return False
    return True


def check_finite(module: nn.Module) -> None:
    """An InputError where training has made weights that are no numbers."""
    if not all_finite(module):
        raise InputError(
            "training has made weights NaN or infinite: the model has diverged; "
            "lower its learning rate",
            option="lr",
        )


def digest_of_weights(module: nn.Module) -> str:
    """A hash of the names and values of all weights, in 32 hexadecimal digits."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        # As bytes, since numpy has no bfloat16.
        as_bytes = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        digest.update(as_bytes.numpy().tobytes())
    return digest.hexdigest()[:32]
