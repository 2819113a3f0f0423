"""Data modules of groups."""

import pytest

from ltr.data.layouts import ApartTexts, SingleTexts
from ltr.datamodules import GroupDataModule, LabelDataModule
from tests.world.backbones import wordpiece_tokenizer
from tests.world.collections import WORDS
from tests.world.data_modules import data_module


def apart() -> ApartTexts:
    tokenizer = wordpiece_tokenizer()
    return ApartTexts(SingleTexts(tokenizer, 12, "w1 "), SingleTexts(tokenizer, 16))


def opened(path, stage="fit", kind=GroupDataModule, **options) -> GroupDataModule | LabelDataModule:
    usual = {"groups": 4, "docs_per_group": 2, "seed": 0, "eval_batch_size": 7, "reads": apart()}
    if kind is LabelDataModule:
        usual["candidates"] = None
    data = data_module(kind, str(path), **usual | options)
    data.prepare_data()
    data.setup(stage)
    return data


@pytest.fixture
def labelled(tmp_path):
    """Six labels of 3 to 13 texts in ``train``, three labels of 5 in ``dev`` and ``test``; every
    text once.
    """
    for split, sizes in (("train", [3, 5, 7, 9, 11, 13]), ("dev", [5, 5, 5]), ("test", [5, 5, 5])):
        lines = [
            f"{WORDS[label]} {split} {WORDS[i]}\tlabel {label}\n"
            for label, n in enumerate(sizes)
            for i in range(n)
        ]
        (tmp_path / f"{split}.tsv").write_text("".join(lines))
    return tmp_path
