"""Feature ranker: a network over the feature vectors of a list's documents."""

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ltr.batch import RankingBatch
from ltr.data.formats import FeatureVectors
from ltr.errors import InputError, at_least, one_of
from ltr.models.ranker import Ranker, in_lists

Activation = Literal["relu", "gelu", "tanh", "sigmoid"]
ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}


class Network(NamedTuple):
    """The sizes of a feature ranker, as :class:`FeatureRanker` documents them."""

    hidden: list[int] | tuple[int, ...] = (10,)
    activation: Activation = "relu"
    layer_norm: bool = False
    dropout: float = 0.0
    residual_blocks: int = 0
    attention_blocks: int = 0
    heads: int = 2


Preset = Literal["linear", "two_layer", "mlp", "deep", "list_attention"]
PRESETS: dict[Preset, Network] = {
    "linear": Network(hidden=()),
    "two_layer": Network(hidden=(10,)),
    "mlp": Network(hidden=(128, 64), dropout=0.4),
    "deep": Network(hidden=(128,), residual_blocks=2, layer_norm=True, dropout=0.2),
    "list_attention": Network(hidden=(64,), layer_norm=True, dropout=0.2, attention_blocks=1),
}


class FeatureRanker(Ranker):
    r"""A multi-layer perceptron, the same for every document, with optional attention between the
    documents of a list.

    .. math::
        s = w^\top h_L + b, \qquad h_0 = x, \qquad
        h_{l+1} = \mathrm{dropout}(\phi(\mathrm{norm}(W_l h_l + b_l)))

    Without attention a document's score depends on its features only. With attention the documents
    of a list see each other after the last layer: a score then depends on the whole list, but not
    on the order of its documents.

    Args:
        n_features: Numbers that describe a document (F). Features that a file leaves out are 0.
        preset: The network: ``linear``; ``two_layer``, RankNet's and ListNet's with 10 hidden
            units; ``mlp``, wider, with dropout; ``deep``, with residual blocks and layer norm;
            ``list_attention``, with attention over the list.
        hidden: Width of each layer; an empty list makes the ranker linear. None: as in the preset,
            like all options below.
        activation: The activation φ: ``relu``, ``gelu``, ``tanh`` or ``sigmoid``.
        layer_norm: Normalise each layer before its activation.
        dropout: Dropout probability after each activation, and inside the attention blocks.
        residual_blocks: Number of further layers :math:`h + W_2\,\mathrm{dropout}(\phi(W_1
            \mathrm{norm}(h)))` of the last width.
        attention_blocks: Number of pre-norm transformer blocks over the list, of the last width.
            They always use ReLU.
        heads: Heads of each attention block. They must divide the last width.

    Raises:
        InputError: for an unknown preset, or sizes that do not fit.

    References:
        Burges et al. (2005), Learning to rank using gradient descent (RankNet: one hidden layer of
        10). Pobrotyn et al. (2020), Context-aware learning to rank with self-attention.
        Qin et al. (2021), Are neural rankers still outperformed by gradient boosted decision trees?
    """

    usual_lr = 1e-3

    def __init__(
        self,
        n_features: int,
        preset: Preset = "two_layer",
        hidden: list[int] | None = None,
        activation: Activation | None = None,
        layer_norm: bool | None = None,
        dropout: float | None = None,
        residual_blocks: int | None = None,
        attention_blocks: int | None = None,
        heads: int | None = None,
    ) -> None:
        super().__init__()
        one_of(PRESETS, preset=preset)
        asked = (hidden, activation, layer_norm, dropout, residual_blocks, attention_blocks, heads)
        sizes: list[Any] = [
            own if new is None else new for own, new in zip(PRESETS[preset], asked, strict=True)
        ]
        network = Network(*sizes)
        _check(n_features, network)
        self.reads = FeatureVectors(n_features)
        act = ACTIVATIONS[network.activation]
        p = network.dropout
        width = n_features
        layers: list[nn.Module] = []
        for size in network.hidden:
            norm = [nn.LayerNorm(size)] if network.layer_norm else []
            layers += [nn.Linear(width, size), *norm, act(), nn.Dropout(p)]
            width = size
        layers += [_Residual(width, act(), p) for _ in range(network.residual_blocks)]
        self.layers = nn.Sequential(*layers)
        self.attention = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, network.heads, 2 * width, p, batch_first=True, norm_first=True
            )
            for _ in range(network.attention_blocks)
        )
        self.head = nn.Linear(width, 1)

    def represent(self, batch: RankingBatch) -> tuple[Tensor, Tensor]:
        """Scores ``[B, N]``, and what the head reads, ``[B, N, H]``: both float32, and 0 at the
        padding.
        """
        mask = batch.mask
        features = batch.features
        assert features is not None, "the data lays out what the ranker reads"
        hidden = self.layers(
            features[mask]
        )  # real documents only: padding costs no time and draws no dropout
        if self.attention and len(
            hidden
        ):  # torch's attention refuses a batch without a document, which a rank may get
            lists = in_lists(hidden, mask)
            for block in self.attention:
                lists = block(lists, src_key_padding_mask=~mask)
            hidden = lists[mask]
        # Not under autocast: scores rounded to bfloat16 would tie, and document ids would then
        # decide the order.
        with torch.autocast(hidden.device.type, enabled=False):
            hidden = hidden.float()
            scores = self.head(hidden).squeeze(1)
        return in_lists(scores, mask), in_lists(hidden, mask)


class _Residual(nn.Module):
    def __init__(self, width: int, activation: nn.Module, dropout: float) -> None:
        super().__init__()
        self.change = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, width),
            activation,
            nn.Dropout(dropout),
            nn.Linear(width, width),
        )

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.change(hidden)


def _check(n_features: int, network: Network) -> None:
    def must(holds: bool, option: str, what: str, got: object) -> None:
        if not holds:
            raise InputError(f"{option} must be {what}, got {got}", option=option)

    hidden, activation, _, dropout, residual_blocks, attention_blocks, heads = network
    at_least(1, n_features=n_features)
    must(all(size >= 1 for size in hidden), "hidden", "widths of at least 1", list(hidden))
    one_of(ACTIVATIONS, activation=activation)
    must(0 <= dropout < 1, "dropout", "at least 0 and below 1", dropout)
    at_least(0, residual_blocks=residual_blocks, attention_blocks=attention_blocks)
    width = hidden[-1] if hidden else n_features
    fits = heads >= 1 and (attention_blocks == 0 or width % heads == 0)
    must(fits, "heads", f"a number that divides the last width, {width}", heads)
