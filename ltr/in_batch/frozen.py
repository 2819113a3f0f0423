"""A second encoder beside the ranker, which does not learn: for a guide, or for a margin."""

from ltr.errors import InputError
from ltr.models import DualEncoder
from ltr.models.encoder.text_encoder import TextEncoder


def load_frozen(backbone: str, ranker: DualEncoder, option: str) -> DualEncoder:
    """Load a dual encoder that reads the ranker's tokens.

    Args:
        backbone: hub id, folder or ``package:NAME``.
        ranker: whose tokens it reads.
        option: that named it, for errors.

    Raises:
        InputError: if it can't be loaded, has another tokenizer, or has no positions for the ranker's texts.
    """
    longest = max(form.max_length for form in ranker.reads)
    reading = TextEncoder.Options(dropout="none", max_tokens=ranker.query_tower.encoder.options.max_tokens)
    try:
        frozen = DualEncoder(backbone, query_prompt="", doc_prompt="", max_length=longest, encoder=reading)
    except InputError as error:
        raise InputError(error.message, option=option) from None
    for own, other in zip(frozen.reads.tokenizers, ranker.reads.tokenizers, strict=True):
        if own.get_vocab() != other.get_vocab():
            raise InputError(
                f"an encoder beside the ranker reads its token ids and must have its tokenizer, but {backbone!r} has another",
                option=option,
            )
    return frozen.eval().requires_grad_(False)
