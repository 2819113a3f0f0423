"""Batches of feature vectors: what they hold, what long lists become, and that a batch is a pure
function.
"""

import logging
import pickle
import shutil

import numpy as np
import pytest
import torch

from ltr.data.layouts import FeatureVectors
from ltr.datamodules import FeatureDataModule
from ltr.datamodules.features import _equal_but_for_rounding
from ltr.errors import InputError
from tests.world.data_modules import data_module
from tests.world.features import write_letor


def opened(path, stage="fit", **options) -> FeatureDataModule:
    data = data_module(FeatureDataModule, str(path), **{"seed": 0} | options)
    data.prepare_data()
    data.setup(stage)
    return data


def test_a_batch_holds_the_file(letor_folder):
    """Each row of a batch against the lines of its query, read by hand and sorted by document id."""
    data = opened(letor_folder, batch_size=5)
    queries, docs = data.names("train")
    lines: dict[str, list] = {}
    for line in (letor_folder / "train.txt").read_text().splitlines():
        row, _, comment = line.partition(" #docid = ")
        label, qid, *values = row.split()
        lines.setdefault(qid[4:], []).append(
            (comment, float(label), [float(v.split(":")[1]) for v in values])
        )
    seen = []
    for step in range(len(data.train)):
        batch = data.train[0, step]
        assert (
            batch.features.shape == (*batch.mask.shape, 5) and batch.features.dtype == torch.float32
        )
        assert (batch.features[~batch.mask] == 0).all()
        for row, query in enumerate(batch.query_rows.tolist()):
            n = int(batch.mask[row].sum())
            expected = sorted(lines[queries[query]])
            assert [docs[d] for d in batch.doc_rows[row, :n].tolist()] == [
                doc for doc, _, _ in expected
            ]
            assert batch.labels[row, :n].tolist() == [label for _, label, _ in expected]
            torch.testing.assert_close(
                batch.features[row, :n], torch.tensor([values for _, _, values in expected])
            )
            seen.append(queries[query])
    assert sorted(seen) == sorted(lines)  # every query once an epoch


def test_batches_are_a_pure_function_of_seed_epoch_and_step(letor_folder):
    one, two = (opened(letor_folder, batch_size=4, list_size=4) for _ in range(2))
    other_seed = opened(letor_folder, batch_size=4, list_size=4, seed=1)
    keys = [(epoch, step) for epoch in range(2) for step in range(len(one.train))]
    forwards = {key: one.train[key] for key in keys}
    for key in reversed(keys):
        assert torch.equal(two.train[key].doc_rows, forwards[key].doc_rows)
    assert not all(
        torch.equal(other_seed.train[key].doc_rows, forwards[key].doc_rows) for key in keys
    )
    epochs = [
        torch.cat([forwards[e, s].doc_rows.flatten() for s in range(len(one.train))])
        for e in range(2)
    ]
    assert not torch.equal(*epochs)


def test_batches_do_not_depend_on_the_number_of_workers(letor_folder):
    alone, helped = (opened(letor_folder, batch_size=4, list_size=4, num_workers=n) for n in (0, 2))
    for a, b in zip(alone.train_dataloader(), helped.train_dataloader(), strict=True):
        assert torch.equal(a.doc_rows, b.doc_rows) and torch.equal(a.features, b.features)


def test_lists_of_one_length_share_a_batch(letor_folder):
    def padding(window):
        data = opened(letor_folder, batch_size=4, bucket_window=window)
        return np.mean(
            [(~data.train[0, step].mask).float().mean() for step in range(len(data.train))]
        )

    assert padding(64) < padding(1) / 2


def test_measured_lists_are_whole_and_only_once_each(letor_folder):
    data = opened(letor_folder, list_size=3, eval_batch_size=5)
    lists = [one for batch in data.eval_batches("dev").batches for one in batch]
    assert sorted(one.query_row for one in lists) == list(range(24))
    assert sorted(np.concatenate([one.doc_rows for one in lists])) == list(
        range(len(data.split("dev").labels))
    )


def test_normalisation_is_fitted_on_train_alone(letor_folder):
    data = opened(letor_folder, normalise=["z-score"])
    train = data.split("train").features
    for split in ("train", "dev"):
        expected = (data.split(split).features - train.mean(axis=0)) / train.std(axis=0)
        batches = (
            data.train.collator.features
            if split == "train"
            else data.eval_batches(split).collator.features
        )
        np.testing.assert_allclose(batches, expected, rtol=1e-4, atol=1e-5)


def test_measured_lists_are_made_once_for_each_normalisation(letor_folder):
    data = opened(letor_folder, normalise=["z-score"])
    batches = data.eval_batches("dev")
    assert data.eval_batches("dev") is batches
    data.load_state_dict(data.state_dict())
    assert data.eval_batches("dev") is not batches


def test_a_checkpoint_brings_the_normalisation_without_a_trainer_too(letor_folder):
    """As ``FeatureDataModule.load_from_checkpoint`` has it."""
    kept = opened(letor_folder, normalise=["z-score"]).state_dict()
    data = data_module(FeatureDataModule, str(letor_folder), seed=0, normalise=["z-score"])
    data.load_state_dict(kept)
    assert torch.equal(
        data.state_dict()["normalisation"]["0.mean"], kept["normalisation"]["0.mean"]
    )


def test_states_of_a_normalisation_are_compared_but_for_rounding(tmp_path, letor_folder):
    """Other data has other statistics, and with fewer rows fewer knots: shapes that can't be
    compared number by number.
    """
    state = opened(letor_folder, normalise=["quantile"]).normalisation.state_dict()
    rounded = {
        name: value * (1 + 1e-7) if isinstance(value, torch.Tensor) else value
        for name, value in state.items()
    }
    fewer = opened(
        write_letor(tmp_path, n_queries=3), normalise=["quantile"]
    ).normalisation.state_dict()
    assert _equal_but_for_rounding(state, rounded)
    assert not _equal_but_for_rounding(state, fewer)


def test_the_synthetic_set_needs_no_files():
    """1,000 documents of one query in lists of at most 16: 63 of them, so 55 lists of 16 and 8 of
    15.
    """
    data = opened("synthetic", list_size=16, keep="all", batch_size=1)
    sizes = sorted(int(data.train[0, step].mask.sum()) for step in range(len(data.train)))
    assert sizes == [15] * 8 + [16] * 55 and data.n_features == 100
    assert [len(one.doc_rows) for batch in data.eval_batches("dev").batches for one in batch] == [
        500
    ]
    assert not np.array_equal(
        opened("synthetic", seed=1).split("train").features, data.split("train").features
    )


def test_a_dev_split_is_held_out_where_there_is_none(tmp_path, letor_folder, caplog):
    folder = write_letor(tmp_path / "two", "train", "test")
    opens = [opened(folder, dev_share=0.25, seed=seed) for seed in (0, 1)]
    held = [{name: data.split(name) for name in ("train", "dev")} for data in opens]
    assert len(held[0]["train"]) == 18 and len(held[0]["dev"]) == 6
    assert held[0]["dev"].query_ids == held[1]["dev"].query_ids
    assert not set(held[0]["dev"].query_ids) & set(held[0]["train"].query_ids)
    with pytest.raises(InputError, match="has a dev split, .* dev_share must be left out"):
        opened(letor_folder, dev_share=0.25)
    with caplog.at_level(logging.INFO, "ltr"):
        data = data_module(FeatureDataModule, str(folder), seed=0, reads=FeatureVectors(7))
        data.setup("fit")
        assert data.val_dataloader() == []
    assert "training goes without validation" in caplog.text
    assert "has 5 features; the 2 others of the model are 0" in caplog.text


def test_what_is_missing_is_said(tmp_path, letor_folder):
    shutil.copy(letor_folder / "test.txt", tmp_path / "test.txt")
    with pytest.raises(InputError, match="has no 'train' split; 'ltr fit' needs it"):
        opened(tmp_path)
    with pytest.raises(
        InputError, match="has no train split to fit the normalisation on; name a checkpoint"
    ):
        opened(tmp_path, "test", normalise=["z-score"]).test_dataloader()
    assert (
        len(opened(tmp_path, "test", normalise=["min-max"]).test_dataloader()) == 1
    )  # nothing to fit


def test_a_fold_and_the_first_feature_reach_the_reader(tmp_path):
    for fold in (1, 2):
        write_letor(tmp_path / f"Fold{fold}", seed=fold)
    first, second = (opened(tmp_path, fold=fold).split("train").features for fold in (1, 2))
    assert not np.array_equal(first[:5], second[:5])
    (tmp_path / "zero").mkdir()
    (tmp_path / "zero" / "train.txt").write_text("1 qid:1 0:5 1:6\n0 qid:1 1:7\n")
    assert opened(tmp_path / "zero", first_feature=0).split("train").features.tolist() == [
        [5, 6],
        [0, 7],
    ]


def test_several_processes_say_how_many_lists_they_share(letor_folder, monkeypatch, caplog):
    """Where somebody has written the number of each, they read it at the start."""
    monkeypatch.setattr(FeatureDataModule, "rank", 0)
    for world_size, said in (
        (1, []),
        (2, ["2 processes share the 6 lists of a step: batch_size counts those of all"]),
    ):
        monkeypatch.setattr(FeatureDataModule, "world_size", world_size)
        data = opened(letor_folder, batch_size=6)
        caplog.clear()
        with caplog.at_level(logging.INFO, "ltr"):
            data.train_dataloader()
        assert caplog.messages == said


def test_a_worker_gets_the_path_of_the_features_and_not_the_features(tmp_path):
    """As is true of texts: what is sent to a spawned process does not grow with the table."""
    lines = [
        f"{i % 2} qid:{i // 500} " + " ".join(f"{f}:{i * f}" for f in range(1, 21)) + "\n"
        for i in range(5000)
    ]
    (tmp_path / "train.txt").write_text("".join(lines))
    for normalise in ([], ["z-score"]):
        data = opened(tmp_path, normalise=normalise)
        stored = pickle.dumps(data.train)
        assert len(stored) < 10_000 < data.split("train").features.nbytes
        assert torch.equal(pickle.loads(stored)[0, 0].features, data.train[0, 0].features)


def test_there_must_be_something_to_rank(tmp_path):
    (tmp_path / "train.txt").write_text("0 qid:1 1:1\n0 qid:1 1:2\n1 qid:2 1:1\n")
    with pytest.raises(
        InputError, match="no query has two documents of different grades; there is nothing to rank"
    ):
        opened(tmp_path)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"list_size": 1}, "list_size must be at least 2, got 1"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"eval_batch_size": 0}, "eval_batch_size must be at least 1, got 0"),
        ({"normalise": ["zscore"]}, "a step of normalise must be one of z-score"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"num_workers": -1}, "num_workers must be at least 0, got -1"),
        ({"keep": "drop"}, "keep must be one of relevant, any, all, got 'drop'"),
        ({"first_feature": 2}, "first_feature must be one of 0, 1, got 2"),
        ({"fold": 3}, "path 'synthetic' has no folds"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(InputError, match=message):
        data_module(FeatureDataModule, "synthetic", **options).prepare_data()
