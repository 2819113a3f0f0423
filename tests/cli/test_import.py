"""``ltr import`` as it is typed: data in another form becomes a data folder that says the same."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest

from ltr.data import data_folder
from ltr.data.collection import open_collection, with_split
from ltr.data.layouts import JoinedPairs
from ltr.data.letor import read_letor
from ltr.data.teacher_scores import TeacherScores
from ltr.datamodules import TripletDataModule
from tests.world.backbones import wordpiece_tokenizer
from tests.world.collections import by_ids, same_collections, small_collection, write_collection
from tests.world.commands import refusal, run_ltr
from tests.world.data_modules import data_module

TRIPLES = "how many\tmany\tfew\tnone\nhow many\tlots\tfew\nwhere\there\tthere\n"
BGE = """\
{"query": "how many", "pos": ["many", "lots"], "neg": ["few", "none"]}
{"query": "where", "pos": ["here"], "neg": ["there"]}
"""
LABELLED = "query\tdocument\tlabel\nhow many\tmany\t2\nhow many\tfew\t0\nwhere\there\t1\n"


def write_triples(folder: Path) -> Path:
    folder.mkdir()
    (folder / "train.tsv").write_text(TRIPLES)
    (folder / "test.tsv").write_text("who\tme\n")
    return folder


def write_labelled(folder: Path) -> Path:
    folder.mkdir()
    (folder / "train.tsv").write_text(LABELLED)
    return folder / "train.tsv"


def write_beir(folder: Path) -> Path:
    """Titles, an instruction, a split of another name, pools of one split, scores of all digits."""
    small_collection(
        folder,
        {"d1": "one “two”\u2028\u0001", "d2": "two", "d3": "three"},
        {"q1": "asks", "q2": "wants"},
        train=[("q1", "d2", 2), ("q1", "d1", 0), ("q2", "d3", 1)],
        instructions={"q2": "Find it"},
        **{"test": [("q2", "d3", 1)], "test.hard": [("q2", "d2", 3)]},
    )
    (folder / "candidates").mkdir()
    lines = ["q2 Q0 d2 1 0.100000001 x\n", "q2 Q0 d3 2 -1.17549435e-38 x\n"]
    (folder / "candidates" / "test.trec").write_text("".join(lines))
    return folder


SOURCES = {
    "triples": write_triples,
    "labelled pairs": write_labelled,
    "a data folder": write_beir,
    "one that can be learnt": write_collection,
}


@pytest.mark.parametrize("name", SOURCES)
def test_the_folder_says_what_the_source_says(tmp_path, name):
    source = SOURCES[name](tmp_path / "source")
    assert run_ltr(f"import {source} {tmp_path / 'new'}") == 0
    expected = open_collection(source)
    came = open_collection(tmp_path / "new")
    if name == "a data folder":
        expected = with_split(expected, "test.hard")
        came = with_split(came, "test.hard")
    assert same_collections(came, expected)


def training_batches(path: Path) -> list:
    options = {"batch_size": 2, "negatives_per_query": 2, "negatives": "candidates"}
    reads = JoinedPairs(wordpiece_tokenizer(), 24)
    data = data_module(TripletDataModule, str(path), **options, reads=reads)
    data.setup("fit")
    return list(data.train_dataloader())


def test_three_ways_in_give_equal_batches(tmp_path):
    """Triples, the rows of BGE that say the same, and the folder that is made of them."""
    source = write_triples(tmp_path / "source")
    assert run_ltr(f"import {source} {tmp_path / 'new'}") == 0
    (tmp_path / "bge").mkdir()
    (tmp_path / "bge" / "train.jsonl").write_text(BGE)
    (tmp_path / "bge" / "test.jsonl").write_text('{"query": "who", "pos": ["me"]}\n')
    expected = training_batches(source)
    assert len(expected) == 1
    for way in ("new", "bge"):
        for one, other in zip(training_batches(tmp_path / way), expected, strict=True):
            for field in ("labels", "mask", "query_rows", "doc_rows"):
                assert getattr(one, field).equal(getattr(other, field))
            assert one.pairs.ids.equal(other.pairs.ids)


def test_the_page_says_what_was_read_left_out_and_written(tmp_path, capsys):
    folder = write_beir(tmp_path / "a source")
    for split in ("train", "test.hard"):
        with open(folder / "qrels" / f"{split}.tsv", "a") as file:
            file.write("q1\tgone\t1\n")
    new = tmp_path / "a folder"
    assert run_ltr("import", str(folder), str(new)) == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert told.out.splitlines() == [
        f"read from {folder}",
        f"  {folder}/corpus.jsonl: columns are read as _id, text",
        f"  {folder}/corpus.jsonl: documents read: 3; all kept",
        f"  {folder}/queries.jsonl: columns are read as _id, text",
        f"  {folder}/queries.jsonl: queries read: 2; all kept",
        f"  {folder}/qrels/train.tsv: columns are read as query id, document id, grade",
        f"  {folder}/qrels/train.tsv: judgements read: 4; 3 kept",
        f"  {folder}/qrels/train.tsv: 1 of 4 judgements are of absent documents and left out, first in line 4",
        f"  {folder}/qrels/test.tsv: columns are read as query id, document id, grade",
        f"  {folder}/qrels/test.tsv: judgements read: 1; all kept",
        f"  {folder}/candidates/test.trec: columns are read as query id, Q0, document id, rank, score, tag",
        f"  {folder}/candidates/test.trec: candidates read: 2; all kept",
        f"  {folder}/qrels/test.hard.tsv: columns are read as query id, document id, grade",
        f"  {folder}/qrels/test.hard.tsv: judgements read: 2; 1 kept",
        f"  {folder}/qrels/test.hard.tsv: 1 of 2 judgements are of absent documents and left out, first in line 2",
        f"written to {new}",
        "  3 documents, 2 queries",
        "  train: 2 queries with 3 judgements, 2 of them above 0; no candidates",
        "  test: 1 query with 1 judgement, 1 of them above 0; 2 candidates of 1 query",
        "  test.hard: 1 query with 1 judgement, 1 of them above 0; 2 candidates of 1 query",
        f"to train on it: ltr fit --config recipe:cross_encoder --data.path '{new}'",
    ]
    lines = (new / "queries.jsonl").read_text().splitlines()
    assert json.loads(lines[1]) == {"_id": "q2", "text": "wants", "instruction": "Find it"}
    judged = "query-id\tcorpus-id\tscore\nq1\td2\t2\nq1\td1\t0\nq2\td3\t1\n"
    assert (new / "qrels" / "train.tsv").read_text() == judged
    pool = "q2 Q0 d2 1 0.100000001 ltr-import\nq2 Q0 d3 2 -1.17549435e-38 ltr-import\n"
    assert (new / "candidates" / "test.trec").read_text() == pool


def test_the_page_says_what_data_without_a_training_split_is_for(tmp_path, capsys):
    small_collection(tmp_path / "c", {"d1": "one"}, {"q1": "asks"}, test=[("q1", "d1", 1)])
    assert run_ltr(f"import {tmp_path / 'c'} {tmp_path / 'new'}") == 0
    use = (
        f"to measure a run on it, as it has no split train: ltr test RUN --data.path {tmp_path}/new"
    )
    assert capsys.readouterr().out.splitlines()[-1] == use


@pytest.mark.parametrize("again", [False, True])
def test_the_page_counts_rows_and_says_what_columns_and_splits_are(tmp_path, capsys, again):
    """At each import, also of what lies in the cache."""
    rows = [
        '{"anchor": "how many", "positive": "many", "type": 1}\n',
        '{"anchor": "where", "positive": "", "type": 1}\n',
        '{"anchor": "when", "positive": null, "type": 1}\n',
    ]
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.jsonl").write_text("".join(rows))
    (source / "validation.tsv").write_text("query\tdocument\tlabel\nhow\tso\t1\n")
    if again:
        run_ltr(f"import {source} {tmp_path / 'first'}")
        capsys.readouterr()
    new = tmp_path / "new"
    assert run_ltr(f"import {source} {new}") == 0
    train, dev = source / "train.jsonl", source / "validation.tsv"
    told = capsys.readouterr().out.splitlines()
    assert told[: told.index(f"written to {new}")] == [
        f"read from {source}",
        f"  {source}: the split train is read from train.jsonl",
        f"  {train}: columns are read as query: anchor; positive: positive; not read: type",
        f"  {source}: the split dev is read from validation.tsv",
        f"  {dev}: columns are read as query, document, label; line 1 has their names",
        f"  {train}: rows read: 3; 1 kept",
        f"  {train}: of 3 rows, 1 positives without a text are left out, first train.jsonl:2",
        f"  {train}: of 3 rows, 2 rows without a positive are left out, first train.jsonl:2",
        f"  {dev}: rows read: 1; all kept",
    ]


def test_white_space_at_the_ends_of_texts_is_counted(tmp_path, capsys):
    (tmp_path / "train.tsv").write_text("how many \t many\tfew\n")
    assert run_ltr(f"import {tmp_path / 'train.tsv'} {tmp_path / 'new'}") == 0
    assert "  white space at the ends of 2 texts is left out\n" in capsys.readouterr().out
    assert sorted(open_collection(tmp_path / "new").corpus.texts) == ["few", "many"]


REFUSED = {
    "nowhere": "nowhere: there is no such data folder or file",
    "broken": "broken/qrels/train.tsv:2: a grade must be a number below 10^7",
}


@pytest.mark.parametrize("source", REFUSED)
def test_what_is_refused_is_one_line_and_leaves_nothing(here, capsys, source):
    small_collection(here / "broken", {"d1": "one"}, {"q1": "asks"}, train=[("q1", "d1", 1)])
    with open(here / "broken" / "qrels" / "train.tsv", "a") as file:
        file.write("q1\td1\tmany\n")
    before = sorted(here.iterdir())
    assert REFUSED[source] in refusal(capsys, f"import {source} new")
    assert sorted(here.iterdir()) == before


def test_a_folder_that_is_there_is_refused_before_anything_is_read(tmp_path, capsys):
    told = refusal(capsys, f"import nowhere {tmp_path}")
    assert told == f"ltr: {tmp_path} must be a new folder, and is there already; name another one"


def test_an_import_that_is_interrupted_leaves_nothing(tmp_path, monkeypatch):
    source = write_collection(tmp_path / "source")
    before = sorted(tmp_path.iterdir())

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(data_folder, "_pool_lines", interrupted)
    assert run_ltr(f"import {source} {tmp_path / 'new'}") == 130
    assert sorted(tmp_path.iterdir()) == before


def test_what_lies_beside_a_data_folder_stops_no_import(tmp_path, capsys):
    source = write_beir(tmp_path / "beir")
    for name in ("train.txt", "qrels/README.txt", "qrels/notes.tsv"):
        (source / name).write_text("notes of the data\n")
    run_ltr("import", str(source), str(tmp_path / "data"))
    assert open_collection(tmp_path / "data").qrels.keys() == open_collection(source).qrels.keys()
    assert "the split 'notes' is left out: " in capsys.readouterr().out


def test_how_far_it_is_is_told_at_once(tmp_path, monkeypatch, caplog):
    """What the readers say waits for the page, but not their progress."""
    source = write_collection(tmp_path / "source")
    progress = logging.getLogger("ltr.data.progress")

    def reader(path, _):
        progress.info("reading: 1 of 2 files")
        logging.getLogger("ltr.data.texts").warning("1 text is left out")
        assert caplog.messages == ["reading: 1 of 2 files"]
        return open_collection(path)

    monkeypatch.setattr("ltr.cli.import_data.open_collection", reader)
    with caplog.at_level(logging.INFO, logger="ltr"):
        assert run_ltr(f"import {source} {tmp_path / 'new'}") == 0
    assert "  1 text is left out" in caplog.messages


ROWS_OF_TEXTS = '{"a": "how many", "b": ["many", "some"], "c": "few", "d": "no"}\n'


def test_columns_are_named_where_their_names_say_nothing(tmp_path, capsys):
    (tmp_path / "rows.jsonl").write_text(ROWS_OF_TEXTS)
    command = f"import {tmp_path / 'rows.jsonl'} {tmp_path / 'new'}"
    assert "columns must say which is the query" in refusal(capsys, command)
    told = refusal(capsys, f"{command} --columns query")
    assert told == (
        "ltr: --columns must be words as query=question, a role and the name of a column, got 'query'"
    )
    assert run_ltr(f"{command} --columns query=a positive=b negative=c negative=d") == 0
    line = "rows.jsonl: columns are read as query: a; positive: b; negative: c, d\n"
    assert line in capsys.readouterr().out
    collection = open_collection(tmp_path / "new")
    (judged,) = by_ids(collection, collection.judgements("train")).values()
    graded = {collection.corpus.texts[collection.corpus.row(doc)]: judged[doc] for doc in judged}
    assert graded == {"many": 1, "some": 1, "few": 0, "no": 0}
    told = refusal(capsys, f"import {tmp_path / 'new'} {tmp_path / 'other'} --columns query=a")
    assert told.startswith("ltr: columns are chosen for rows of texts, and ")


def test_scores_beside_texts_become_a_file_that_labels_take(tmp_path, capsys):
    row = '{"query": "asks", "pos": ["a"], "neg": ["b", "c"], "pos_scores": [3], "neg_scores": [2, 0.1]}'
    plain = '{"query": "wants", "pos": ["a"], "neg": ["b", "c"]}'
    (tmp_path / "train.jsonl").write_text(f"{row}\n{plain}\n")
    (tmp_path / "test.jsonl").write_text(f"{plain}\n")
    new = tmp_path / "new"
    assert run_ltr("import", str(tmp_path), str(new)) == 0
    told = capsys.readouterr().out
    assert told.count("columns are read as") == 2
    assert "  scores/train.tsv: 3 scores\n" in told
    hint = f"to learn the scores of train: --data.labels.scores {new}/scores/train.tsv\n"
    assert told.endswith(hint)
    assert [file.name for file in (new / "scores").iterdir()] == ["train.tsv"]
    collection = open_collection(new)
    scores = by_ids(collection, TeacherScores.open(new / "scores" / "train.tsv", collection).lists)
    ((_, by_doc),) = scores.items()
    texts = {collection.corpus.texts[collection.corpus.row(doc)]: by_doc[doc] for doc in by_doc}
    assert texts == {"a": 3, "b": 2, "c": float(np.float32(0.1))}


def test_an_imported_folder_keeps_its_scores_when_it_is_imported(tmp_path, capsys):
    row = '{"query": "asks", "pos": ["a"], "neg": ["b"], "pos_scores": [3], "neg_scores": [0.1]}'
    (tmp_path / "rows.jsonl").write_text(row)
    assert run_ltr("import", str(tmp_path / "rows.jsonl"), str(tmp_path / "once")) == 0
    once, twice = (tmp_path / name / "scores/train.tsv" for name in ("once", "twice"))
    before = once.read_text()
    once.write_text(before + "gone\tgone\t1\n")
    capsys.readouterr()
    assert run_ltr("import", str(tmp_path / "once"), str(tmp_path / "twice")) == 0
    told = capsys.readouterr().out
    assert "  scores/train.tsv: 2 scores\n" in told
    assert "1 of 3 scores of train are of absent queries or documents and left out\n" in told
    assert twice.read_text() == before


def test_a_source_that_is_not_there_is_no_option(tmp_path, capsys):
    line = refusal(capsys, f"import {tmp_path / 'x.csv'} {tmp_path / 'new'}")
    assert line == f"ltr: {tmp_path / 'x.csv'}: there is no such data folder or file"


def test_of_a_pair_with_several_scores_the_first_is_written(tmp_path, capsys):
    """The first scores may stand behind many rows without."""
    rows = ['{"query": "asks", "pos": ["a"], "neg": ["b"], "pos_scores": null}\n'] * 100
    for score in (0.25, 0.25, 0.5):
        rows.append(f'{{"query": "asks", "pos": ["a"], "neg": ["b"], "pos_scores": [{score}]}}\n')
    (tmp_path / "train.jsonl").write_text("".join(rows))
    (tmp_path / "test.jsonl").write_text(rows[0])
    assert run_ltr(f"import {tmp_path} {tmp_path / 'new'}") == 0
    told = "scores/train.tsv: 1 score; 2 more of the same pairs are left out, the first of each is kept"
    assert told in capsys.readouterr().out
    assert [file.name for file in (tmp_path / "new" / "scores").iterdir()] == ["train.tsv"]
    written = (tmp_path / "new" / "scores" / "train.tsv").read_text()
    assert written.splitlines()[1].split("\t")[2] == "0.25"
    collection = open_collection(tmp_path / "new")
    TeacherScores.open(tmp_path / "new" / "scores" / "train.tsv", collection)


def test_scores_that_come_late_in_objects_are_written(tmp_path, capsys):
    """Behind the rows that say what the columns are for."""
    row = '{"query": "asks", "positives": [{"text": "a"}], "negatives": ["b"]}\n'
    late = '{"query": "wants", "positives": [{"text": "a"}], "negatives": [{"text": "c", "score": 0.5}]}\n'
    (tmp_path / "train.jsonl").write_text(row * 150 + late)
    assert run_ltr(f"import {tmp_path} {tmp_path / 'new'}") == 0
    assert "  scores/train.tsv: 1 score\n" in capsys.readouterr().out
    (line,) = (tmp_path / "new" / "scores" / "train.tsv").read_text().splitlines()[1:]
    assert line.endswith("\t0.5")


def test_the_page_says_what_learns_labels_with_fractions(tmp_path, capsys):
    rows = "sentence1,sentence2,score\na,b,4.75\na,c,0.2\n"
    (tmp_path / "train.csv").write_text(rows)
    assert run_ltr(f"import {tmp_path} {tmp_path / 'new'}") == 0
    told = capsys.readouterr().out
    assert told.endswith(
        "labels of train have fractions; what learns them: --data ltr.datamodules.ListDataModule --model.loss ltr.losses.RankNetLoss\n"
    )


# As LightGBM's example has them: numbered from 0, sizes beside, the split as the ending. The last
# feature is 0 in all rows.
ROWS = "2 0:1.5 3:1e-9\n0 1:-0.1\n1 4:0\n0 2:3\n"


def write_features(folder: Path) -> Path:
    folder.mkdir()
    for split in ("train", "test"):
        (folder / f"rank.{split}").write_text(ROWS)
        (folder / f"rank.{split}.query").write_text("2\n2\n")
    return folder


def same_splits(one, other):
    assert list(one.query_ids) == list(other.query_ids)
    assert list(one.doc_ids) == list(other.doc_ids)
    for name in ("features", "labels", "offsets"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_features_become_letor_text(tmp_path, capsys):
    source = write_features(tmp_path / "source")
    new = tmp_path / "new"
    assert run_ltr(f"import {source} {new} --first_feature 0") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"read from {source}",
        f"  {source}/rank.train: rows of train read: 4; all kept",
        f"  {source}/rank.test: rows of test read: 4; all kept",
        f"written to {new}",
        "  train: 2 queries with 4 rows of 5 features",
        "  test: 2 queries with 4 rows of 5 features",
        f"to train on it: ltr fit --config recipe:lambdarank --data.dev_share 0.2 --data.path {new}",
    ]
    assert (new / "train.txt").read_text().splitlines() == [
        "2 qid:1 1:1.5 4:9.99999972e-10 5:0",
        "0 qid:1 2:-0.100000001",
        "1 qid:2",
        "0 qid:2 3:3",
    ]
    same_splits(read_letor([new / "test.txt"]), read_letor([source / "rank.test"], 0))


def test_imported_features_train_as_their_source(tmp_path):
    """The command of the page, and one with the source itself, one step each."""
    source = write_features(tmp_path / "source")
    new = tmp_path / "new"
    run = tmp_path / "run"
    assert run_ltr(f"import {source} {new} --first_feature 0") == 0
    options = f"--data.dev_share 0.2 --data.path {new}"
    fit = f"fit --config recipe:lambdarank {options} --trainer.max_steps 1"
    assert run_ltr(f"{fit} --trainer.default_root_dir {run}") == 0
    assert run_ltr(f"test {run}") == 0
    fit = fit.replace(str(new), f"{source} --data.first_feature 0")
    assert run_ltr(f"{fit} --trainer.default_root_dir {tmp_path / 'other'}") == 0
    assert run_ltr(f"test {tmp_path / 'other'}") == 0
    same = (tmp_path / "other" / "per_query.tsv").read_text()
    assert (run / "per_query.tsv").read_text() == same


def test_sizes_that_do_not_add_up_are_refused_and_leave_nothing(tmp_path, capsys):
    source = write_features(tmp_path / "source")
    (source / "rank.test.query").write_text("2\n1\n")
    before = sorted(tmp_path.iterdir())
    told = refusal(capsys, f"import {source} {tmp_path / 'new'} --first_feature 0")
    assert told.startswith(f"ltr: {source}/rank.test:4: the row is of no query: ")
    assert sorted(tmp_path.iterdir()) == before
    told = refusal(capsys, f"import {source} {tmp_path / 'new'}")
    assert told.startswith(f"ltr: {source}/rank.train:1: features are numbered from 1, got '0:1.5'")


def test_document_ids_and_folds_of_features_stay(tmp_path, letor_folder, capsys):
    folds = tmp_path / "folds"
    (folds / "Fold2").parent.mkdir()
    (folds / "Fold2").symlink_to(letor_folder)
    assert "choose one of the folds 2" in refusal(capsys, f"import {folds} {tmp_path / 'new'}")
    assert run_ltr(f"import {folds} {tmp_path / 'new'} --fold 2") == 0
    assert "dev_share" not in capsys.readouterr().out
    for name in ("train", "test"):
        expected = read_letor([letor_folder / f"{name}.txt"])
        same_splits(read_letor([tmp_path / "new" / f"{name}.txt"]), expected)
    told = refusal(capsys, f"import nowhere {tmp_path / 'other'} --fold 2")
    assert told == "ltr: --fold is for feature vectors, and nowhere has none; leave it out"
