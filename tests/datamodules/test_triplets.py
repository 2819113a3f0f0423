import numpy as np
import pytest
import torch

from ltr.data.collection import open_collection
from ltr.data.layouts import JoinedPairs
from ltr.datamodules import TripletDataModule
from ltr.datamodules.triplets import NO_FOLDERS, check_name_of_negatives
from ltr.errors import InputError
from ltr.mining.mined_negatives import MinedNegatives
from tests.world.backbones import wordpiece_tokenizer
from tests.world.collections import write_collection
from tests.world.data_modules import batches, data_module


def module(folder, **options):
    options = {"batch_size": 4, "negatives_per_query": 3, "eval_batch_size": 7} | options
    data = data_module(
        TripletDataModule, str(folder), **options, reads=JoinedPairs(wordpiece_tokenizer(), 24)
    )
    data.setup("fit")
    return data


def flat(batch):
    fields = (batch.labels, batch.mask, batch.query_rows, batch.doc_rows, *batch.pairs)
    return [tensor for tensor in fields if isinstance(tensor, torch.Tensor)]


@pytest.mark.parametrize("negatives", ["candidates", "bm25", "random"])
def test_a_row_is_a_query_with_its_relevant_document_and_others(collection_folder, negatives):
    data = module(collection_folder, negatives=negatives)
    judged = data.collection.judgements("train")
    seen = []
    for batch in batches(data, 0):
        assert batch.mask.all() and batch.labels.tolist() == [[1.0, 0.0, 0.0, 0.0]] * len(
            batch.labels
        )
        for query, docs in zip(batch.query_rows.tolist(), batch.doc_rows.tolist(), strict=True):
            rows, grades = judged.of(query)
            relevant = set(rows[grades > 0].tolist())
            assert docs[0] in relevant and not relevant & set(docs[1:]) and len(set(docs)) == 4
            if negatives == "candidates":
                assert set(docs) <= set(
                    data.collection.pools("train", option="x").of(query)[0].tolist()
                )
            seen.append(query)
    assert sorted(seen) == judged.query_rows.tolist()


def test_the_tokens_of_a_batch_are_those_of_its_rows(collection_folder):
    data = module(collection_folder)
    tokenizer = data.reads.tokenizer
    collection = data.collection
    batch = batches(data, 1)[2]
    ids = batch.pairs.ids.split(batch.pairs.lengths.tolist())
    pairs = [
        (q, d)
        for q, docs in zip(batch.query_rows.tolist(), batch.doc_rows.tolist(), strict=True)
        for d in docs
    ]
    for (q, d), pair in zip(pairs, ids, strict=True):
        expected = tokenizer(
            collection.queries.texts[q],
            collection.corpus.texts[d],
            truncation="only_second",
            max_length=24,
        )
        assert pair.tolist() == expected["input_ids"]


@pytest.mark.parametrize(
    "options", [{"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}]
)
def test_workers_change_nothing(collection_folder, options):
    expected = module(collection_folder)
    other = module(collection_folder, **options)
    for epoch in (0, 1):
        for a, b in zip(batches(expected, epoch), batches(other, epoch), strict=True):
            assert all(torch.equal(x, y) for x, y in zip(flat(a), flat(b), strict=True))


def test_epochs_and_seeds_differ_and_repeat(collection_folder):
    first = [b.doc_rows.tolist() for b in batches(module(collection_folder), 0)]
    assert first == [b.doc_rows.tolist() for b in batches(module(collection_folder), 0)]
    assert first != [b.doc_rows.tolist() for b in batches(module(collection_folder), 1)]
    assert first != [b.doc_rows.tolist() for b in batches(module(collection_folder, seed=1), 0)]


def test_fewer_documents_than_asked_make_a_shorter_row(tmp_path):
    folder = write_collection(tmp_path / "c", n_queries=6, n_docs=3)
    data = module(folder, positives=2, negatives_per_query=5)
    for batch in batches(data, 0):
        assert batch.labels.tolist() == [[1.0, 0.0, 0.0]] * len(batch.labels)


def test_queries_without_positives_or_negatives_are_left_out(tmp_path, caplog):
    folder = write_collection(tmp_path / "c", n_queries=6, n_docs=3)
    qrels = folder / "qrels/train.tsv"
    everything = "".join(f"train-q0\ttrain-q0-d{d}\t1\n" for d in range(3))
    kept = "".join(
        line + "\n" for line in qrels.read_text().splitlines() if not line.startswith("train-q0")
    )
    qrels.write_text(kept + everything)
    with caplog.at_level("INFO"):
        data = module(folder)
    assert data.train.plan.n_rows == 5 and "1 of 6 queries have no negatives" in caplog.text
    qrels.write_text(kept + "train-q0\ttrain-q0-d1\t0\n")
    caplog.clear()
    data = module(folder)
    line = "1 of 6 queries have no document with a grade above 0 and are left out, first 'train-q0'"
    assert data.train.plan.n_rows == 5 and caplog.text.count(line) == 1
    without = [line.rsplit("\t", 1)[0] + "\t0" for line in kept.splitlines()[1:]]
    qrels.write_text("\n".join([*kept.splitlines()[:1], *without]) + "\n")
    with pytest.raises(InputError, match="none of 5 queries has a document with a grade above 0"):
        module(folder)


def test_labelled_pairs_train_on_the_queries_that_have_a_relevant_document(tmp_path, caplog):
    """Of w1, w2 and w3 the second has labels 0 alone, as many queries of WikiQA have."""
    lines = ["query\tdocument\tlabel"]
    for query, labels in [("w1", (1, 0)), ("w2", (0, 0)), ("w3", (0, 1))]:
        lines += [f"{query}\t{query} w{9 + place}\t{label}" for place, label in enumerate(labels)]
    (tmp_path / "train.tsv").write_text("\n".join(lines) + "\n")
    data = module(tmp_path)
    texts = data.collection.queries.texts
    rows = [row for batch in batches(data, 0) for row in batch.query_rows.tolist()]
    assert sorted(texts[row] for row in rows) == ["w1", "w3"]
    learnable = data.collection.learnable("train")
    assert sorted(texts[row] for row in learnable.query_rows.tolist()) == ["w1", "w3"]
    assert learnable.n_relevant().tolist() == [1, 1] and len(learnable.doc_rows) == 4
    assert caplog.text.count("1 of 3 queries have no document with a grade above 0") == 1


def test_mined_negatives_bring_their_distances(tmp_path, collection_folder):
    collection = open_collection(str(collection_folder))
    judged = collection.judgements("train")
    ids = np.full((len(collection.queries), 4), -1)
    distances = np.zeros(ids.shape, dtype=np.float32)
    for query in judged.query_rows:
        ids[query, :3] = np.random.default_rng(query).choice(
            len(collection.corpus), 3, replace=False
        )
        ids[query, 3] = judged.of(query)[0][
            0
        ]  # its relevant document, which must not come back as a negative
        distances[query] = ids[query] / 7
    MinedNegatives.from_matrix(np.arange(len(ids)), ids, distances, {"seed": 0}).save(
        tmp_path / "0000", collection
    )
    data = module(collection_folder, negatives=str(tmp_path / "0000"))
    for batch in batches(data, 0):
        wanted = (
            (batch.doc_rows / 7)
            .masked_fill(batch.labels > 0, torch.nan)
            .masked_fill(~batch.mask, 0.0)
        )
        torch.testing.assert_close(batch.distances, wanted.float(), equal_nan=True)
        for query, docs in zip(
            batch.query_rows.tolist(), batch.doc_rows[:, 1:].tolist(), strict=True
        ):
            assert set(docs) <= {*ids[query, :3].tolist(), 0}
    with pytest.raises(InputError, match="another collection"):
        module(write_collection(tmp_path / "other", seed=9), negatives=str(tmp_path / "0000"))
    with pytest.raises(
        InputError, match="must be 'auto', 'candidates', 'bm25', 'random' or a folder"
    ):
        module(collection_folder, negatives="bm26")


def test_pools_hold_every_judged_query_with_all_its_grades(collection_folder):
    data = module(collection_folder)
    dev = [batch for batch in data.val_dataloader()]
    assert (
        sorted(q for b in dev for q in b.query_rows.tolist())
        == data.collection.judgements("dev").query_rows.tolist()
    )
    assert all(b.labels.sum(dim=1).eq(1).all() and b.ideal[:, 0].eq(1).all() for b in dev)
    cut = module(collection_folder, candidates="bm25", depth=2)
    for batch in cut.val_dataloader():
        assert batch.mask.sum(dim=1).max() <= 2
        assert (
            batch.ideal[:, 0].eq(1).all()
        )  # whether or not the relevant document is among the two


@pytest.mark.parametrize(
    "option", ["positives", "negatives_per_query", "negatives_depth", "batch_size", "bucket_window"]
)
def test_an_option_below_one_is_refused(option):
    with pytest.raises(InputError, match=f"{option} must be at least 1, got 0"):
        data_module(TripletDataModule, "x", **{option: 0})


def test_an_epoch_is_over_queries_or_pairs():
    with pytest.raises(
        InputError, match=r"epoch must be one of queries, pairs, got 'docs' \(option epoch\)"
    ):
        TripletDataModule("x", epoch="docs")


def test_predict_ranks_queries_that_nobody_judged(tmp_path):
    folder = write_collection(tmp_path / "c", n_queries=5)
    (folder / "qrels/test.tsv").unlink()
    data = module(folder)
    data.setup("predict")
    assert sum(len(b.query_rows) for b in data.predict_dataloader()) == 5
    with pytest.raises(InputError, match="no judgements for the split 'test'"):
        data.setup("test")


def test_pools_that_are_missing_name_the_option(tmp_path):
    folder = write_collection(tmp_path / "c", n_queries=5)
    (folder / "candidates/train.trec").unlink()
    with pytest.raises(InputError, match=r"set negatives to auto.* \(option negatives\)"):
        module(folder, negatives="candidates")
    (folder / "candidates/dev.trec").unlink()
    with pytest.raises(
        InputError, match="set evaluation.candidates to auto.*option evaluation.candidates"
    ):
        module(folder, negatives="bm25", candidates="candidates")


def test_without_a_training_split_the_judgements_are_missed_and_not_the_pools(tmp_path):
    folder = write_collection(tmp_path / "c", n_queries=5)
    for name in ("qrels/train.tsv", "qrels/dev.tsv", "candidates/train.trec"):
        (folder / name).unlink()
    with pytest.raises(
        InputError,
        match=r"for the split 'train', only for \['test'\]; add them to train on, or measure a r",
    ):
        module(folder)


@pytest.mark.parametrize("depth", [10**6, 2**63 - 1])
def test_a_depth_beyond_all_lists_is_all_of_them(collection_folder, depth):
    whole, deep = (module(collection_folder, negatives_depth=d, depth=d) for d in (None, depth))
    assert all(
        torch.equal(a, b)
        for a, b in zip(flat(whole.train[0, 1]), flat(deep.train[0, 1]), strict=True)
    )
    bm25 = module(
        collection_folder, negatives="bm25", negatives_depth=depth, candidates="bm25", depth=depth
    )
    assert bm25.train[0, 1].labels.shape[1] == 4  # a relevant document and three others


def test_workers_started_by_spawn_map_the_files_again(collection_folder):
    """What they are sent holds no tokens, and gives the same batches."""
    import pickle

    data = module(collection_folder)
    sent = pickle.dumps(data.train)
    assert all(
        torch.equal(a, b)
        for a, b in zip(flat(pickle.loads(sent)[0, 1]), flat(data.train[0, 1]), strict=True)
    )
    assert data.collator.doc_tokens.folder.name.encode() in sent


def test_folders_of_negatives_are_known_by_their_last_names(collection_folder):
    with pytest.raises(InputError, match="last name of each folder .*, got /a/neg, /b/neg; rename"):
        TripletDataModule(str(collection_folder), {"/a/neg": 2, "/b/neg": 3})


@pytest.mark.parametrize("name", NO_FOLDERS)
def test_a_new_folder_of_negatives_has_no_name_of_a_kind(name):
    """--data.negatives mined would not read it."""
    with pytest.raises(InputError, match=f"^--output must be a folder .* '{name}' says"):
        check_name_of_negatives(name, "--output")
    check_name_of_negatives(f"{name}-1", "--output")
    check_name_of_negatives(None, "--output")
