"""Feature ranker: a network over the feature vectors of a list's documents."""

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ltr.batch import RankingBatch
from ltr.data.layouts import FeatureVectors
from ltr.draws import keys_at_site, keys_inside
from ltr.dropout import KeyedDropout, keyed_dropout, use_keyed_dropout
from ltr.errors import InputError, at_least, one_of
from ltr.models.ranker import Ranker

Activation = Literal["relu", "gelu", "tanh", "sigmoid"]
ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}


class Sizes(NamedTuple):
    """The sizes of a feature ranker, as :class:`FeatureRanker` documents them."""

    hidden: list[int] | tuple[int, ...] = (10,)
    activation: Activation = "relu"
    layer_norm: bool = False
    dropout: float = 0.0
    residual_blocks: int = 0
    attention_blocks: int = 0
    heads: int = 2


Preset = Literal["linear", "two_layer", "mlp", "deep", "list_attention"]
PRESETS: dict[Preset, Sizes] = {
    "linear": Sizes(hidden=()),
    "two_layer": Sizes(hidden=(10,)),
    "mlp": Sizes(hidden=(128, 64), dropout=0.4),
    "deep": Sizes(hidden=(128,), residual_blocks=2, layer_norm=True, dropout=0.2),
    "list_attention": Sizes(hidden=(64,), layer_norm=True, dropout=0.2, attention_blocks=1),
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
        n_features: Numbers that describe a document (F). Features that a file leaves out are 0. In a
            configuration null stands for as many as the data has; whoever makes a ranker names them.
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
        temperature: Divides the scores; above 0. Its inverse is the steepness σ of a logistic loss.
        learn_temperature: Train the logarithm of the temperature, which then stays at or above
            0.01, with a peak rate of at least 1e-3.

    Raises:
        InputError: for an unknown preset, or sizes that do not fit.

    References:
        Burges et al. (2005), Learning to rank using gradient descent (RankNet: one hidden layer of
        10). Pobrotyn et al. (2020), Context-aware learning to rank with self-attention.
        Qin et al. (2021), Are neural rankers still outperformed by gradient boosted decision trees?

    Example:
        >>> from ltr.batch import RankingBatch
        >>> batch = RankingBatch(
        ...     labels=torch.tensor([[1.0, 0.0]]),
        ...     mask=torch.ones(1, 2, dtype=torch.bool),
        ...     query_rows=torch.tensor([0]),
        ...     doc_rows=torch.tensor([[0, 1]]),
        ...     features=torch.randn(1, 2, 46),
        ... )
        >>> FeatureRanker(n_features=46, preset="mlp")(batch).shape
        torch.Size([1, 2])
    """

    usual_lr = 1e-3

    reads: FeatureVectors

    def __init__(
        self,
        n_features: int | None,
        preset: Preset = "two_layer",
        hidden: list[int] | None = None,
        activation: Activation | None = None,
        layer_norm: bool | None = None,
        dropout: float | None = None,
        residual_blocks: int | None = None,
        attention_blocks: int | None = None,
        heads: int | None = None,
        temperature: float = 1.0,
        learn_temperature: bool = False,
    ) -> None:
        super().__init__()
        self.set_temperature(temperature, learn_temperature)
        one_of(PRESETS, preset=preset)
        options = {
            "hidden": hidden,
            "activation": activation,
            "layer_norm": layer_norm,
            "dropout": dropout,
            "residual_blocks": residual_blocks,
            "attention_blocks": attention_blocks,
            "heads": heads,
        }
        changes: dict[str, Any] = {
            name: value for name, value in options.items() if value is not None
        }
        sizes = PRESETS[preset]._replace(**changes)
        if n_features is None:
            raise InputError(
                "n_features must be the number of features of a document, got None",
                option="n_features",
            )
        _check_sizes(n_features, sizes)
        self.reads = FeatureVectors(n_features)
        new_activation = ACTIVATIONS[sizes.activation]
        layers: list[nn.Module] = []
        width = n_features
        for next_width in sizes.hidden:
            layers.append(nn.Linear(width, next_width))
            if sizes.layer_norm:
                layers.append(nn.LayerNorm(next_width))
            layers.append(new_activation())
            layers.append(nn.Dropout(sizes.dropout))
            width = next_width
        for _ in range(sizes.residual_blocks):
            layers.append(_Residual(width, new_activation(), sizes.dropout))
        self.layers = nn.Sequential(*layers)
        self.attention = nn.ModuleList()
        for _ in range(sizes.attention_blocks):
            block = _ListAttention(
                width,
                sizes.heads,
                dim_feedforward=2 * width,
                dropout=sizes.dropout,
                batch_first=True,
                norm_first=True,
            )
            self.attention.append(block)
        self.head = nn.Linear(width, 1)
        self._not_in_weights = [sizes.activation, sizes.heads]
        self._draws = use_keyed_dropout(self)

    @property
    def key(self) -> list[object]:
        """See :attr:`ltr.models.Ranker.key`."""
        return [*super().key, *self._not_in_weights]

    def represent(self, batch: RankingBatch) -> tuple[Tensor, Tensor]:
        """Scores ``[B, N]``, and what the head reads, ``[B, N, H]``: both float32, and 0 at the
        padding.
        """
        features = batch.features
        assert features is not None, "the data lays out what the ranker reads"
        n_features = features.shape[-1]
        if n_features != self.reads.n_features:
            raise InputError(
                f"the ranker reads {self.reads.n_features} features, got a batch with {n_features}; set n_features to {n_features}, or lay the data out for the ranker (data.reads = ranker.reads)",
                option="n_features",
            )
        doc_keys = batch.doc_keys()
        # Real documents only: padding costs no time and draws no dropout.
        with self._draws.drawing_for(None if doc_keys is None else batch.of_docs(doc_keys)):
            hidden = self.layers(batch.of_docs(features))
        if self.attention and not len(hidden):
            # One process of several may get a batch without documents, which torch's attention
            # refuses. The others wait until it has a gradient of each weight: here of 0.
            hidden = hidden + sum(weight.sum() for weight in self.attention.parameters())
        elif self.attention:
            lists = batch.in_lists(hidden)
            with self._draws.drawing_for(None if doc_keys is None else doc_keys.flatten()):
                for block in self.attention:
                    lists = block(lists, src_key_padding_mask=~batch.mask)
            hidden = batch.of_docs(lists)
        # Not under autocast: scores rounded to bfloat16 would tie, and document ids would then
        # decide the order.
        with torch.autocast(hidden.device.type, enabled=False):
            hidden = hidden.float()
            scores = self.over_temperature(self.head(hidden).squeeze(1))
        return batch.in_lists(scores), batch.in_lists(hidden)


class _Residual(nn.Module):
    r"""A further layer, :math:`h + W_2\,\mathrm{dropout}(\phi(W_1 \mathrm{norm}(h)))`."""

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


class _ListAttention(nn.TransformerEncoderLayer):
    """Torch's block, whose attention weights are dropped by the keys of the documents."""

    draw_site: Tensor  # set by use_keyed_dropout

    def _sa_block(
        self,
        x: Tensor,
        attn_mask: Tensor | None,
        key_padding_mask: Tensor | None,
        is_causal: bool = False,
    ) -> Tensor:
        # Takes and returns [B, N, H]; the mask [B, N] holds -inf at the padding, and 0.
        attention = self.self_attn
        if not self.training or attention.dropout == 0:
            return super()._sa_block(x, attn_mask, key_padding_mask, is_causal)
        joined = F.linear(x, attention.in_proj_weight, attention.in_proj_bias)
        # [B, N, 3 H] to three of [B, h, N, d].
        sizes = (attention.num_heads, attention.head_dim)
        query, key, value = (
            part.unflatten(-1, sizes).transpose(1, 2) for part in joined.chunk(3, dim=-1)
        )
        scores = query @ key.transpose(-1, -2) * attention.head_dim**-0.5
        if key_padding_mask is not None:
            # Not -inf: a list that is padding alone would be NaN, and make every gradient NaN.
            least = torch.finfo(scores.dtype).min
            scores = scores + key_padding_mask.clamp(min=least)[:, None, None]
        dropout = self.dropout1
        assert isinstance(dropout, KeyedDropout), "the ranker has made it one"
        doc_keys = keys_at_site(dropout.draws.keys_for(x), self.draw_site)  # [B, N]
        head = torch.arange(attention.num_heads, device=x.device).unsqueeze(1)
        keys = keys_inside(doc_keys.unsqueeze(1), head)  # [B, h, N]
        weights = keyed_dropout(scores.softmax(dim=-1), attention.dropout, keys)
        return dropout(attention.out_proj((weights @ value).transpose(1, 2).flatten(2)))


def _check_sizes(n_features: int, sizes: Sizes) -> None:
    """Refuse sizes that are out of bounds, or do not fit each other."""
    hidden = sizes.hidden
    dropout = sizes.dropout
    heads = sizes.heads
    at_least(1, n_features=n_features)
    if any(width < 1 for width in hidden):
        raise InputError(
            f"hidden must be widths of at least 1, got {list(hidden)}", option="hidden"
        )
    one_of(ACTIVATIONS, activation=sizes.activation)
    if not 0 <= dropout < 1:
        raise InputError(f"dropout must be at least 0 and below 1, got {dropout}", option="dropout")
    at_least(0, residual_blocks=sizes.residual_blocks, attention_blocks=sizes.attention_blocks)
    last_width = hidden[-1] if hidden else n_features
    # Without attention there are no heads, and their number need not divide the width.
    if heads < 1 or (sizes.attention_blocks > 0 and last_width % heads != 0):
        raise InputError(
            f"heads must be a number that divides the last width, {last_width}, got {heads}",
            option="heads",
        )
