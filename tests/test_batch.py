"""What travels from the data to the model: the keys of texts."""

import torch

from ltr.batch import Texts


def test_texts_of_equal_ids_have_equal_keys_wherever_they_stand():
    """The texts 5 6, 6 5, nothing, 5 6, 5 6 0 and 5: the first and the fourth are equal."""
    ids = torch.tensor([5, 6, 6, 5, 5, 6, 5, 6, 0, 5])
    keys = Texts(ids, torch.tensor([2, 2, 0, 2, 3, 1])).hashes()
    assert keys.dtype == torch.int64
    assert keys[0] == keys[3]
    assert len(set(keys.tolist())) == 5
    alone = Texts(torch.tensor([6, 5]), torch.tensor([2])).hashes()
    assert alone.item() == keys[1]


def test_no_texts_have_no_keys():
    empty = torch.zeros(0, dtype=torch.int64)
    assert Texts(empty, empty).hashes().shape == (0,)
