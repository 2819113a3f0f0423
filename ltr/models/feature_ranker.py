"""Feature ranker: a network over the feature vectors of a list's documents."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from ltr.batch import RankingBatch
from ltr.errors import InputError

Activation = Literal["relu", "gelu", "tanh", "sigmoid"]
ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}

Preset = Literal["linear", "two_layer", "mlp", "deep", "list_attention"]
PRESETS: dict[str, dict[str, Any]] = {
    "linear": {"hidden": ()},
    "two_layer": {"hidden": (10,)},
    "mlp": {"hidden": (128, 64), "dropout": 0.4},
    "deep": {"hidden": (128,), "residual_blocks": 2, "layer_norm": True, "dropout": 0.2},
    "list_attention": {"hidden": (64,), "layer_norm": True, "dropout": 0.2, "attention_blocks": 1},
}


class FeatureRanker(nn.Module):
    r"""A multi-layer perceptron, the same for every document, and on request attention between the documents of a list.

    .. math::
        s = w^\top h_L + b, \qquad h_0 = x, \qquad
        h_{l+1} = \mathrm{dropout}(\phi(\mathrm{norm}(W_l h_l + b_l)))

    Without attention a document's score depends on nothing but its features. With it the documents of a list see each other after
    the last layer: scores are still the same whatever the order of the documents, but belong to this list.

    Args:
        n_features: F, the numbers that describe a document.
        hidden: width of each layer; none makes the ranker linear.
        activation: φ.
        layer_norm: normalise each layer before its activation.
        dropout: probability after each activation, and inside the attention blocks.
        residual_blocks: further layers of the last width, :math:`h + W_2\,\mathrm{dropout}(\phi(W_1 \mathrm{norm}(h)))` each.
        attention_blocks: pre-norm transformer blocks over the list, of the last width; inside they keep ReLU, whatever φ is.
        heads: of each attention block; they divide the last width.

    Raises:
        InputError: for sizes that do not fit.

    References:
        Burges et al. (2005), Learning to rank using gradient descent (RankNet: one hidden layer of 10).
        Pobrotyn et al. (2020), Context-aware learning to rank with self-attention.
        Qin et al. (2021), Are neural rankers still outperformed by gradient boosted decision trees?
    """

    gives_embeddings = True

    def __init__(
        self,
        n_features: int,
        hidden: list[int] | tuple[int, ...] = (10,),
        activation: Activation = "relu",
        layer_norm: bool = False,
        dropout: float = 0.0,
        residual_blocks: int = 0,
        attention_blocks: int = 0,
        heads: int = 2,
    ) -> None:
        super().__init__()
        _check_sizes(n_features, hidden, activation, dropout, residual_blocks, attention_blocks, heads)
        self.n_features = n_features
        width, layers = n_features, []
        for size in hidden:
            layers += [nn.Linear(width, size)] + ([nn.LayerNorm(size)] if layer_norm else [])
            layers += [ACTIVATIONS[activation](), nn.Dropout(dropout)]
            width = size
        layers += [_Residual(width, ACTIVATIONS[activation](), dropout) for _ in range(residual_blocks)]
        self.layers = nn.Sequential(*layers)
        self.attention = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 2 * width, dropout, batch_first=True, norm_first=True)
            for _ in range(attention_blocks)
        )
        self.head = nn.Linear(width, 1)

    def forward(self, batch: RankingBatch) -> Tensor:
        """Scores ``[B, N]`` float32, 0 at the padding."""
        return self.represent(batch)[0]

    def represent(self, batch: RankingBatch) -> tuple[Tensor, Tensor]:
        """Scores ``[B, N]``, and what the head reads, ``[B, N, H]``: both float32, and 0 at the padding."""
        mask = batch.mask
        hidden = self.layers(batch.features[mask])  # real documents only: padding costs nothing, and no dropout is drawn for it
        if self.attention and len(hidden):  # torch's attention refuses a batch without a document, which a rank may get
            hidden = self._attended(hidden, mask)
        # Not under autocast: scores rounded to bfloat16 would tie, and ties are broken by the documents' ids.
        with torch.autocast(hidden.device.type, enabled=False):
            hidden = hidden.float()
            scores = self.head(hidden).squeeze(1)
        lists = hidden.new_zeros(*mask.shape, hidden.shape[1])
        return scores.new_zeros(mask.shape).masked_scatter(mask, scores), lists.masked_scatter(mask.unsqueeze(2), hidden)

    def _attended(self, hidden: Tensor, mask: Tensor) -> Tensor:
        lists = hidden.new_zeros(*mask.shape, hidden.shape[1]).masked_scatter(mask.unsqueeze(2), hidden)
        for block in self.attention:
            lists = block(lists, src_key_padding_mask=~mask)
        return lists[mask]


class _Residual(nn.Module):
    def __init__(self, width: int, activation: nn.Module, dropout: float) -> None:
        super().__init__()
        self.change = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, width), activation, nn.Dropout(dropout), nn.Linear(width, width)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.change(hidden)


def _check_sizes(
    n_features: int,
    hidden: list[int] | tuple[int, ...],
    activation: str,
    dropout: float,
    residual_blocks: int,
    attention_blocks: int,
    heads: int,
) -> None:
    def must(holds: bool, option: str, what: str, got: object) -> None:
        if not holds:
            raise InputError(f"{option} must be {what}, got {got} (option model.init_args.{option})")

    must(n_features >= 1, "n_features", "at least 1", n_features)
    must(all(size >= 1 for size in hidden), "hidden", "widths of at least 1", list(hidden))
    must(activation in ACTIVATIONS, "activation", f"one of {', '.join(ACTIVATIONS)}", repr(activation))
    must(0 <= dropout < 1, "dropout", "at least 0 and below 1", dropout)
    must(residual_blocks >= 0, "residual_blocks", "at least 0", residual_blocks)
    must(attention_blocks >= 0, "attention_blocks", "at least 0", attention_blocks)
    width = hidden[-1] if hidden else n_features
    fits = heads >= 1 and (attention_blocks == 0 or width % heads == 0)
    must(fits, "heads", f"a number that divides the last width, {width}", heads)
