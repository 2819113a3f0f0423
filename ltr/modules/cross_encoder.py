"""Training of the cross-encoder."""

from typing import Literal

from torch import Tensor, nn

from ltr.batch import RankingBatch
from ltr.data.formats import JoinedPairs
from ltr.errors import InputError
from ltr.models.backbone import Dropouts
from ltr.models.cross_encoder import PairWiseBertRanker
from ltr.modules.ranker import RankerModule


class CrossEncoderModule(RankerModule):
    """Trains a :class:`ltr.models.PairWiseBertRanker`.

    Args:
        backbone: hub id, folder, or ``package:NAME`` (weights inside an installed package).
        loss: a loss of :mod:`ltr.losses`.
        max_length: tokens of a joined query and document, special ones counted; the document is cut.
        pooling: ``mean`` or ``cls``; a ready cross-encoder keeps its own head.
        dropout: probability in front of the head.
        encoder_dropout: ``hidden``: the encoder's own, but none on the attention weights; ``own``: all of it; ``none``.
        max_tokens: tokens that go through the encoder at once; None chooses by the device.
        keep_tokens: tokens whose activations are kept, the others' are computed again: memory then grows with this and
            ``max_tokens``, not with the batch, for up to a third more time; None: all.
        compile: run the encoder's layers through ``torch.compile``.
        margin, lr, weight_decay, warmup, metrics, empty, max_grade: see :class:`ltr.modules.RankerModule`.

    Raises:
        InputError: if the backbone can't be loaded, or has no positions for ``max_length`` tokens.
    """

    def __init__(
        self,
        backbone: str,
        loss: nn.Module,
        max_length: int = 256,
        pooling: Literal["mean", "cls"] = "mean",
        dropout: float = 0.1,
        encoder_dropout: Dropouts = "hidden",
        max_tokens: int | None = None,
        keep_tokens: int | None = None,
        compile: bool = False,
        margin: nn.Module | None = None,
        lr: float = 2e-5,
        weight_decay: float = 0.01,
        warmup: float = 0.1,
        metrics: list[str] | None = None,
        empty: Literal["skip", "zero", "one"] = "skip",
        max_grade: float = 4.0,
    ) -> None:
        model = PairWiseBertRanker(backbone, pooling, dropout, encoder_dropout, max_tokens, keep_tokens, compile)
        if model.max_positions is not None and max_length > model.max_positions:
            raise InputError(
                f"max_length must be at most {model.max_positions}, the positions of {backbone!r}, got {max_length} "
                "(option model.init_args.max_length)"
            )
        super().__init__(model, loss, margin, lr, weight_decay, warmup, metrics, empty, max_grade)
        self.text_format = JoinedPairs(model.tokenizer, max_length)
        self.save_settings()

    def training_step(self, batch: RankingBatch, batch_idx: int) -> Tensor:
        self.log("train/padding", self.model.encoder.padding_share(batch.pairs), batch_size=len(batch.labels))
        return super().training_step(batch, batch_idx)
