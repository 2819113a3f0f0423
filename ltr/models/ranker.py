"""The base of every ranker."""

import hashlib
import math

import torch
from torch import Tensor, nn

from ltr.batch import RankingBatch
from ltr.data.layouts import Reads
from ltr.errors import InputError, positive

LOWEST_TEMPERATURE = 0.01  # of a learnt one: as in CLIP, where larger logits make training unstable


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
        log_temperature: the logarithm of a temperature that is learnt; None of one that is fixed.
    """

    reads: Reads
    gives_embeddings: bool = True
    usual_lr: float = 2e-5
    new_parts: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self._temperature = 1.0
        self.log_temperature: nn.Parameter | None = None

    def set_temperature(self, temperature: float, learn: bool) -> None:
        r"""Divide scores by a temperature :math:`\tau`, fixed or learnt: :math:`\sigma = 1 / \tau` is
        the steepness of a logistic loss of their gaps.

        Raises:
            InputError: if it is not finite and above 0, or below 0.01 where it is learnt.
        """
        if learn and temperature < LOWEST_TEMPERATURE:
            raise InputError(
                f"temperature must be at least {LOWEST_TEMPERATURE} where it is learnt, "
                f"got {temperature}",
                option="temperature",
            )
        self._temperature = positive("temperature", temperature)
        if learn:
            self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))

    @property
    def temperature(self) -> float | Tensor:
        """What scores are divided by."""
        if self.log_temperature is None:
            return self._temperature
        log = self.log_temperature
        # The value is that of the clamped logarithm, the gradient that of the logarithm itself, so
        # that a step can lead away from the bound. (The gradient of a clamp at its bound is 0 since
        # torch 2.15.)
        correction = (log.clamp(min=math.log(LOWEST_TEMPERATURE)) - log).detach()
        return (log + correction).exp()

    @property
    def temperature_value(self) -> float:
        """The temperature as a number, without a gradient."""
        return float(torch.as_tensor(self.temperature).detach())

    def bound_temperature(self) -> None:
        """Bring a learnt temperature that is trained back to its bound. The property clamps the value
        that it returns; steps could move the parameter ever further below the bound, and it would
        take as long to come back. CLIP does so between steps.
        """
        if self.training and self.log_temperature is not None:
            self.log_temperature.data.clamp_(min=math.log(LOWEST_TEMPERATURE))

    def over_temperature(self, scores: Tensor) -> Tensor:
        """Scores divided by the temperature; the same tensor where that is fixed at 1."""
        if self.log_temperature is None and self._temperature == 1.0:
            return scores
        self.bound_temperature()
        return scores / self.temperature

    @property
    def key(self) -> list[object]:
        """All that decides its scores, for keys of what is made of them. A subclass adds what it
        has beside its weights.
        """
        key: list[object] = [type(self).__name__, digest_of_weights(self)]
        if self.log_temperature is None and self._temperature != 1.0:
            key.append(self._temperature)
        return key

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
        ranker does not measure it, or never has any: an encoder that packs all texts on a GPU.
        """
        return None


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
