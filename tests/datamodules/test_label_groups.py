"""Labelled texts: trained on by label, evaluated by search."""

import logging
from types import SimpleNamespace

import pytest

from ltr.datamodules import LabelDataModule
from ltr.errors import InputError
from tests.datamodules.grouped import (
    apart,
    opened,
)
from tests.world.collections import write_collection
from tests.world.data_modules import data_module


def test_labelled_texts_are_queries_against_the_others_of_their_split(labelled, caplog):
    data = opened(labelled, kind=LabelDataModule, candidates="corpus", depth=4)
    assert (
        data.collection.queries.key == data.collection.corpus.key
        and len(data.collection.corpus) == 15
    )
    assert (
        data.corpora[0].own_docs.tolist() == list(range(15))
        and len(data.corpora[0].queries) == len(data.corpora[0].docs) == 15
        and data.corpora[0].depth == 4
    )
    lists = [one for batch in data.eval_batches("dev").batches for one in batch]
    assert sorted(one.query_row for one in lists) == list(range(15))
    assert all(len(one.known_rows) == 4 and one.query_row not in one.known_rows for one in lists)
    assert all(batch.queries is not None for batch in data.val_dataloader())
    data.setup("test")
    assert {text.split()[1] for text in data.collection.corpus.texts} == {"test"} and len(
        data.eval_batches("test").batches
    ) == 3
    with caplog.at_level(logging.INFO, "ltr"):
        assert opened(labelled, kind=LabelDataModule).eval_batches("dev") is None
        (labelled / "dev.tsv").unlink()
        assert (
            opened(labelled, kind=LabelDataModule, candidates="corpus", depth=4).val_dataloader()
            == []
        )
    assert "evaluation.candidates is null: training goes without validation" in caplog.text
    assert "has no judgements for 'dev': training goes without validation" in caplog.text
    with pytest.raises(
        InputError,
        match="nothing to evaluate without candidates; set evaluation.candidates to corpus, and",
    ):
        opened(labelled, "test", kind=LabelDataModule)


def test_a_split_that_is_not_measured_is_not_looked_at(labelled):
    """No two dev texts share a label, so nothing could be found there; ``test`` does not ask for
    it.
    """
    (labelled / "dev.tsv").write_text("one\ta\ntwo\tb\n")
    data = data_module(
        LabelDataModule, str(labelled), 2, 2, candidates="corpus", depth=4, seed=0, reads=apart()
    )
    data.trainer = SimpleNamespace(
        lightning_module=None, state=SimpleNamespace(fn="test"), global_rank=0, world_size=1
    )
    data.prepare_data()
    data.setup("test")
    assert len(data.eval_batches("test").batches) == 1
    data.trainer.state.fn = "validate"
    with pytest.raises(InputError, match="no two texts have the same label"):
        data.prepare_data()


def test_a_split_that_is_not_there_is_not_replaced_without_a_trainer_either(labelled):
    (labelled / "test.tsv").unlink()
    with pytest.raises(InputError, match=r"there is no test\.tsv\[\.gz\] to evaluate"):
        opened(labelled, "predict", kind=LabelDataModule, candidates="corpus", depth=4)


def test_the_log_says_what_an_epoch_does_not_see(tmp_path, caplog):
    """In threes: 10 texts of a (one left over), 5 of b (3 and 2), one of c; of 3 + 2 groups in
    pairs, one of a is alone.
    """
    lines = [
        f"{label} {i}\t{label}\n" for label, n in (("a", 10), ("b", 5), ("c", 1)) for i in range(n)
    ]
    (tmp_path / "train.tsv").write_text("".join(lines))
    with caplog.at_level(logging.INFO, "ltr"):
        data = opened(tmp_path / "train.tsv", kind=LabelDataModule, groups=2, docs_per_group=3)
    assert len(data.train) == 2
    for message in (
        "1 of 3 labels have one text only and are left out",
        "1 of 16 texts are left over alone",
        # fmt: skip
        "1 of 5 groups have fewer than 3 documents",
        "1 of 5 groups find none to share a batch with",
    ):
        assert message in caplog.text
    with caplog.at_level(logging.INFO, "ltr"):
        opened(write_collection(tmp_path / "c", n_queries=5), docs_per_group=2)
    assert "5 of 5 groups have fewer than 2 documents" in caplog.text


def test_labelled_texts_have_no_splits_of_other_names(labelled):
    data = LabelDataModule(labelled)
    data.test_on("test")
    with pytest.raises(InputError, match="LabelDataModule tests 'test' alone, got 'dev'"):
        data.test_on("dev")
