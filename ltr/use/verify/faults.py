"""The faults that servers are known to have. Each can be imitated: its answers are computed, and
compared with those of a server.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch

from ltr.use.proof.network import ForwardOptions
from ltr.use.proof.reading import Reading
from ltr.use.verify.finding import Layer

LENGTHS = (64, 128, 256, 384, 512, 1024, 2048, 4096)  # at which servers cut by default


class Fault(NamedTuple):
    """A way to read and run a text that is not the ranker's own."""

    layer: Layer
    words: str
    reading: Reading = Reading()
    run: ForwardOptions = ForwardOptions()


def input_faults(longest: int, positions: int | None) -> Iterator[Fault]:
    """All faults before the head, in the order of the layers.

    Args:
        longest: tokens of the longest text in the contract.
        positions: the longest text that the model has positions for; None: any.
    """
    yield Fault("template", "no template: texts are read as they come", Reading("lost"))
    yield Fault("template", "the template is put around the texts twice", Reading("twice"))
    yield Fault("template", "query and document have changed places", Reading("swapped"))
    yield Fault("template", "query and document are read as one text", Reading("one text"))
    yield Fault("tokens", "texts are lower-cased", Reading(change="lower-cased"))
    yield Fault(
        "tokens",
        "texts are lower-cased, and lose their accents",
        Reading(change="lower-cased, without accents"),
    )
    yield Fault("tokens", "spaces are collapsed", Reading(change="spaces collapsed"))
    yield Fault("tokens", "token types are not given: all are 0", Reading(types=False))
    yield Fault(
        "special tokens", "no first special token (BOS, [CLS])", Reading(special="no first")
    )
    yield Fault("special tokens", "the first special token twice", Reading(special="first twice"))
    yield Fault("special tokens", "no last special token (EOS, [SEP])", Reading(special="no last"))
    yield Fault("special tokens", "the last special token twice", Reading(special="last twice"))
    yield Fault("special tokens", "no special tokens", Reading(special="none"))
    for length in sorted({*LENGTHS, positions or 512}):
        if length != longest and length <= (positions or length):
            cut = Reading(max_length=length)
            yield Fault("truncation", f"texts are cut at {length} tokens, not at {longest}", cut)
    yield Fault("truncation", "texts are not cut", Reading(max_length=0))
    yield Fault(
        "truncation", "the longer of query and document is cut", Reading(cut="longest first")
    )
    yield Fault("truncation", "texts are cut on the other side", Reading(cut="left"))
    for pooling, words in (
        ("cls", "the first token is pooled"),
        ("mean", "the mean of the tokens is pooled"),
        ("max", "the maximum of the tokens is pooled"),
        ("last", "the last token is pooled"),
    ):
        yield Fault("place", words, run=ForwardOptions(pooling=pooling))
    yield from padding_faults(longest)
    for dtype, name in ((torch.bfloat16, "bfloat16"), (torch.float16, "float16")):
        words = f"weights are rounded to {name}"
        yield Fault("hidden state", words, run=ForwardOptions(rounded=dtype))
        yield Fault("hidden state", words, run=ForwardOptions(rounded=dtype, rounds_head=False))


def padding_faults(longest: int) -> Iterator[Fault]:
    """Faults that show where texts are padded: beside longer ones, or all to one length."""
    left = ForwardOptions(padding="left")
    unmasked = ForwardOptions(padding="unmasked")
    last = ForwardOptions(pooling="last slot")
    counted = ForwardOptions(padding="left", pooling="counted")
    for run, words in (
        (left, "texts are padded on the left"),
        (unmasked, "padding is read as text"),
        (last, "the last slot is pooled, which may be padding"),
        (
            counted,
            "texts are padded on the left, and the last token is counted from the first slot",
        ),
    ):
        yield Fault("place", words, run=run)
        yield Fault("place", f"{words} (to {longest} tokens)", run=replace(run, to_length=longest))
