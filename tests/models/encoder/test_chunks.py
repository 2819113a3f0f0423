"""Chunks: their sizes, their padding, and that they hold every token once."""

from itertools import pairwise

import pytest
import torch

from ltr.batch import Texts
from ltr.models.encoder.chunks import (
    chunk_spans,
    packed_chunks,
    padded_chunks,
    padded_size,
    share_of_padding,
)


@pytest.mark.parametrize("padded", [False, True])
def test_chunks_hold_every_text_once_and_none_has_room_for_the_next(padded):
    torch.manual_seed(0)
    lengths = torch.randint(1, 60, (200,)).sort().values.tolist()

    def tokens(begin, end):
        return (end - begin) * lengths[end - 1] if padded else sum(lengths[begin:end])

    chunks = list(chunk_spans(lengths, 128, padded))
    assert [row for begin, end in chunks for row in range(begin, end)] == list(range(200))
    assert all(tokens(begin, end) <= 128 for begin, end in chunks)
    assert all(tokens(begin, end + 1) > 128 for begin, end in chunks[:-1])


@pytest.mark.parametrize("padded", [False, True])
def test_a_text_longer_than_a_chunk_is_alone(padded):
    assert list(chunk_spans([2, 9, 9], 5, padded)) == [(0, 1), (1, 2), (2, 3)]
    assert list(chunk_spans([], 5, padded)) == []


def test_the_share_of_padding():
    """Two texts of 4 and 2 tokens are a chunk of 2 * 4 tokens, 2 of them padding."""
    torch.manual_seed(0)
    lengths = torch.randint(1, 60, (200,)).tolist()
    assert share_of_padding(lengths, 128) < 0.05 < share_of_padding(lengths, 10**9)
    assert share_of_padding([4, 2], 100) == pytest.approx(2 / 8)


def test_packed_chunks_hold_every_token_once_in_place():
    torch.manual_seed(0)
    lengths = torch.randint(1, 60, (200,))
    number = torch.arange(2, 2 + int(lengths.sum()))  # 1 is the padding's
    of = Texts(number, lengths, number % 2)
    chunks = list(packed_chunks(of, max_tokens=128, padding_index=1))
    assert sorted(torch.cat([chunk.rows for chunk in chunks]).tolist()) == list(range(200))
    rows = of.ids.split(lengths.tolist())
    n_read = 0
    for chunk in chunks:
        names = ("input_ids", "token_type_ids", "position_ids", "packed_layout")
        ids, types, positions, layout = (chunk.inputs[name] for name in names)
        n_tokens = int(chunk.lengths.sum())
        n_read += ids.numel()
        assert ids.shape[1] == padded_size(n_tokens, 128) == n_tokens + layout.padding <= 128
        assert torch.equal(ids[0, :n_tokens], torch.cat([rows[row] for row in chunk.rows]))
        assert (ids[0, n_tokens:] == of.ids[0]).all()  # the first token once more
        assert (positions[0, n_tokens:] == 0).all()  # which every encoder has
        assert torch.equal(types, ids % 2)
        expected = torch.cat([torch.arange(2, 2 + n) for n in chunk.lengths])
        assert torch.equal(positions[0, :n_tokens], expected)
        assert torch.equal(layout.offsets.diff(), chunk.lengths)
        assert [n for n_texts, n in layout.groups for _ in range(n_texts)] == chunk.lengths.tolist()
        assert len({n for _, n in layout.groups}) == len(layout.groups)
    for chunk, following in pairwise(chunks):
        assert chunk.lengths.sum() + following.lengths[0] > 128
    padding = 1 - lengths.sum().item() / n_read
    assert share_of_padding(lengths.tolist(), 128, packed=True) == pytest.approx(padding) != 0


def test_sizes_of_packed_chunks_recur():
    """16 sizes up to twice as many tokens, none a sixteenth larger than what it holds."""
    sizes = {n: padded_size(n, max_tokens=10**9) for n in range(1, 4097)}
    assert all(n <= size < n * 17 / 16 for n, size in sizes.items())
    assert len({size for n, size in sizes.items() if 1024 < n <= 2048}) == 16


def test_padded_chunks_hold_every_token_once_in_place():
    """Texts of 3, 1 and 2 tokens: the shorter two share a chunk, with one padding."""
    of = Texts(
        torch.tensor([10, 11, 12, 20, 30, 31]),
        torch.tensor([3, 1, 2]),
        torch.tensor([0, 1, 1, 1, 0, 1]),
    )
    first, second = padded_chunks(of, max_tokens=4, pad_id=7)
    assert first.rows.tolist() == [1, 2] and first.lengths.tolist() == [1, 2]
    assert first.inputs["input_ids"].tolist() == [[20, 7], [30, 31]]
    assert first.inputs["attention_mask"].tolist() == [[1, 0], [1, 1]]
    assert first.inputs["token_type_ids"].tolist() == [[1, 0], [0, 1]]
    assert second.rows.tolist() == [0] and second.inputs["input_ids"].tolist() == [[10, 11, 12]]
    assert "token_type_ids" not in next(padded_chunks(of._replace(type_ids=None), 4, 7)).inputs
