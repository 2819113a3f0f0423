"""What travels from the data to the model: the keys of texts, and what stays on the host."""

import numpy as np
import pytest
import torch
from torch.utils.data import default_convert

from ltr.batch import RankingBatch, Texts, _in_one_copy, on_device
from ltr.models.encoder.chunks import packed_chunks


def test_texts_of_equal_ids_have_equal_keys_wherever_they_stand():
    """The texts 5 6, 6 5, nothing, 5 6, 5 6 0 and 5: the first and the fourth are equal."""
    ids = torch.tensor([5, 6, 6, 5, 5, 6, 5, 6, 0, 5])
    keys = Texts(ids, torch.tensor([2, 2, 0, 2, 3, 1])).hashes()
    assert keys.dtype == torch.int64
    assert keys[0] == keys[3]
    assert len(set(keys.tolist())) == 5
    alone = Texts(torch.tensor([6, 5]), torch.tensor([2])).hashes()
    assert alone.item() == keys[1]


def test_the_tokens_of_all_texts_of_a_batch_are_counted():
    """Three of queries and two of documents; of pairs two; of vectors of features none."""
    queries = Texts(torch.tensor([5, 6, 7]), torch.tensor([2, 1]))
    docs = Texts(torch.tensor([5, 6]), torch.tensor([1, 1]))
    plain = RankingBatch(*[torch.zeros(2, 1)] * 4)
    assert plain._replace(queries=queries, docs=docs).n_tokens == 5
    assert plain._replace(pairs=docs).n_tokens == 2
    assert plain._replace(features=torch.zeros(2, 1, 9)).n_tokens == 0


def test_no_texts_have_no_keys():
    empty = torch.zeros(0, dtype=torch.int64)
    assert Texts(empty, empty).hashes().shape == (0,)


def test_lengths_stay_on_the_host_where_texts_go_to_a_device():
    """Meta is a device that nothing can be read from: it fails where a GPU would be waited for."""
    lengths = torch.tensor([2, 1])
    texts = Texts(torch.tensor([5, 6, 7]), lengths, host_lengths=lengths.numpy())
    assert texts.lengths_on_host().tolist() == [2, 1]
    assert texts._replace(host_lengths=None).lengths_on_host().tolist() == [2, 1]
    there = texts._replace(ids=texts.ids.to("meta"), lengths=lengths.to("meta"))
    (chunk,) = packed_chunks(there, max_tokens=9, padding_index=1)
    assert chunk.inputs["packed_layout"].groups == ((1, 1), (1, 2))
    with pytest.raises(NotImplementedError, match="meta"):
        list(packed_chunks(there._replace(host_lengths=None), max_tokens=9, padding_index=1))


def test_lengths_that_a_loader_of_torch_has_made_a_tensor_are_read_from_the_device():
    lengths = torch.tensor([2, 1])
    texts = default_convert(Texts(torch.tensor([5, 6, 7]), lengths, host_lengths=lengths.numpy()))
    assert isinstance(texts.host_lengths, torch.Tensor)
    assert texts.lengths_on_host().tolist() == [2, 1]


@pytest.mark.parametrize(
    "send",
    [
        on_device,
        lambda arrays, device: _in_one_copy([torch.from_numpy(array) for array in arrays], device),
    ],
)
def test_arrays_are_the_same_on_a_device(send):
    """Of lengths that are no multiples of eight bytes, and of none."""
    arrays = [
        np.array([3, -1, 2**40]),
        np.array([True, False, True]),
        np.arange(3, dtype=np.int32).reshape(1, 3),
        np.array([], dtype=np.int64),
        np.array([0.5, np.nan], dtype=np.float32),
        np.array([[7], [8]]),
    ]
    for array, tensor in zip(arrays, send(arrays, torch.device("cpu")), strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)
        assert tensor.numpy().dtype == array.dtype


@pytest.mark.parametrize(
    ("places", "placed_in"), [(None, None), (torch.tensor([0, 2, 4]), 3), (torch.arange(3), 2)]
)
def test_values_go_to_their_places_and_back_and_padding_is_0(places, placed_in):
    """Places that count by other columns are those of lists that were padded since."""
    mask = torch.tensor([[True, False, True], [False, True, False]])
    rows = torch.zeros(2, 3, dtype=torch.int64)
    batch = RankingBatch(mask.float(), mask, rows[:, 0], rows)
    batch = batch._replace(places=places, placed_in=placed_in)
    values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    lists = batch.in_lists(values)
    assert lists.tolist() == [[1, 0, 2], [0, 3, 0]]
    vectors = batch.in_lists(torch.tensor([[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]))
    assert vectors.tolist() == [[[1, 4], [0, 0], [2, 5]], [[0, 0], [3, 6], [0, 0]]]
    assert batch.of_docs(vectors).tolist() == [[1, 4], [2, 5], [3, 6]]
    (lists * torch.tensor([[2.0, 3.0, 5.0], [7.0, 11.0, 13.0]])).sum().backward()
    assert values.grad.tolist() == [2, 5, 11]
