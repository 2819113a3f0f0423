"""``ltr negatives import`` and ``diff`` as they are typed; the arithmetic is tested in
tests/mining.
"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from ltr.data.collection import open_collection
from ltr.mining.mined_negatives import MinedNegatives
from tests.world.collections import write_t2ranking
from tests.world.commands import refusal, run_ltr
from tests.world.configurations import write_config


def pool(folder, file, queries, docs):
    """A run file: of each training query the documents of its pool, in this order."""
    lines = [
        f"train-q{q} Q0 train-q{q}-d{d} 1 {9 - place} pool\n"
        for q in queries
        for place, d in enumerate(docs)
    ]
    (folder / file).write_text("".join(lines))
    return str(folder / file)


def imported(folder, name, collection, queries, docs):
    """The folder of negatives that are imported from such a run file."""
    source = pool(folder, f"{name}.trec", queries, docs)
    assert run_ltr(f"negatives import {source} {folder / name} --data {collection}") == 0
    return folder / name


def test_import_a_run_and_train_on_it(tmp_path, collection_folder, backbone, capsys):
    out = imported(tmp_path, "bm25", collection_folder, range(20), [0, 3, 2])
    told = capsys.readouterr().out.splitlines()
    assert told[-4:] == [
        f"{out}: 40 negatives of 20 queries, without distances",
        "  20 documents are left out: they, or others of the same text, are judged relevant",
        "  10 training queries have none",
        f"  to train on them: --data.negatives {out}",
    ]
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["source"], manifest["distance"]) == ("bm25.trec", None)
    assert len(manifest["key"]) == 16
    collection = open_collection(str(collection_folder))
    ids = MinedNegatives.open(out, collection).lists.of(collection.queries.row("train-q7"))[0]
    assert [collection.corpus.ids[doc] for doc in ids] == ["train-q7-d3", "train-q7-d2"]
    changes = {"data.init_args.negatives": str(out), "trainer.max_steps": 1}
    fit = f"fit --config {write_config(tmp_path, backbone, collection_folder, **changes)}"
    assert run_ltr(fit) == 0
    margin = "--model.loss AdaptiveRankNetLoss --model.margin FromDistance"
    assert run_ltr(f"{fit} {margin} --trainer.default_root_dir {tmp_path / 'other'}") == 2
    expected = "the margin needs the distances of mined negatives, and the lists here have none"
    assert expected in capsys.readouterr().err


def test_documents_below_the_level_of_relevance_are_imported(tmp_path, capsys):
    """Of each of five queries three of eight documents have grade 2 or 3 and two grade 1; of the
    last one five have grade 1. So from 2 on 5 · 5 + 8 remain, else 6 · 3.
    """
    folder = write_t2ranking(tmp_path / "t2")
    source = folder / "candidates/train.trec"
    for options, level, n_negatives in (("--relevant_from 2", 2.0, 33), ("", None, 18)):
        out = tmp_path / f"out{n_negatives}"
        assert run_ltr(f"negatives import {source} {out} --data {folder} {options}") == 0
        assert f"{out}: {n_negatives} negatives of 6 queries" in capsys.readouterr().out
        assert MinedNegatives.open(out, open_collection(folder)).relevant_from == level
    line = refusal(capsys, f"negatives import {source} out --data {folder} --relevant_from 0")
    assert "relevant_from must be finite and above 0, got 0" in line


def folder_with_distances(folder, collection, distances):
    """Negatives of train-q0: d2, then d3, at these distances; relevant documents are at 0.5."""
    row = collection.queries.row("train-q0")
    docs = [collection.corpus.row(f"train-q0-d{d}") for d in (2, 3)]
    manifest = {"key": "x", "distance": "euclidean", "mean_distance": {"relevant": 0.5}}
    one = MinedNegatives.from_matrix(
        np.array([row]), np.array([docs]), np.array([distances]), manifest
    )
    one.save(folder, collection)
    return str(folder)


def test_diff_tells_what_changed(tmp_path, collection_folder, capsys):
    table = tmp_path / "all.tsv"
    a = imported(tmp_path, "a", collection_folder, range(3), [2, 3])
    b = imported(tmp_path, "b", collection_folder, range(1, 4), [3, 4])
    capsys.readouterr()
    assert run_ltr(f"negatives diff {a} {b} --data {collection_folder} --tsv {table}") == 0
    told = capsys.readouterr().out.splitlines()
    assert told[:6] == [
        "6 and 6 negatives, 2 in both; 2 queries in both",
        "  first 1     0.0% of the first folder's are in the second; Jaccard 0.000",
        "  first 5    50.0% of the first folder's are in the second; Jaccard 0.333",
        "  first 10   50.0% of the first folder's are in the second; Jaccard 0.333",
        "  all        50.0% of the first folder's are in the second; Jaccard 0.333",
        "  a negative of both moves by 1.0 places on average",
    ]
    assert told[6] == "changed most:" and told[7].startswith("  0.333 train-q1: w1 ")
    assert "would tell likely" in told[9]
    assert told[10] == f"all 10 pairs are in {table}"
    rows = [line.split("\t") for line in table.read_text().splitlines()]
    assert len(rows) == 11 and {len(row) for row in rows} == {9}
    assert ["train-q1", "train-q1-d3", "2", "1", "", "", "0", "", ""] in rows
    assert ["train-q1", "train-q1-d4", "", "2", "", "", "0", "", ""] in rows


def test_diff_shows_likely_false_negatives_with_their_texts(tmp_path, collection_folder, capsys):
    collection = open_collection(str(collection_folder))
    table = tmp_path / "all.tsv"
    a = folder_with_distances(tmp_path / "a", collection, [0.1, 0.9])
    b = folder_with_distances(tmp_path / "b", collection, [0.2, 0.4])
    assert run_ltr(f"negatives diff {a} {b} --data {collection_folder} --tsv {table}") == 0
    told = capsys.readouterr().out
    assert "nearer than relevant documents are on average): 1 pairs\n  train-q0: w0 " in told
    text = collection.corpus.texts[collection.corpus.row("train-q0-d2")]
    assert f"    rank 1 and 1, at 40% of that distance: train-q0-d2: {text}\n" in told
    suspect, other = (line.split("\t") for line in table.read_text().splitlines()[1:])
    assert suspect[:7] == ["train-q0", "train-q0-d2", "1", "1", "0.1", "0.2", "1"]
    assert suspect[8] == text
    assert other[4:] == ["0.9", "0.4", "0", "", ""]


ONE_OF = "ltr: the word after ltr negatives must be one of import, diff, audit"
REFUSED = {
    "import a.trec out": "required: data",
    "import a.trec out --data nowhere": "nowhere: there is no such data folder or file",
    "import no.trec out --data DATA": "no.trec: there is no such file",
    "import a.trec . --data DATA": ". must be a new folder, and is there already",
    "diff x y --data DATA": "x: negatives must be 'auto', 'candidates', 'bm25', 'random' or a folder with",
    "diff empty empty --data DATA": "empty: there must be a negative to compare, and there is none",
    "merge": f"{ONE_OF}, got 'merge'; see ltr --help",
    "--data DATA": f"{ONE_OF}; see ltr --help",
    "import a.trec out --data.path DATA": (
        "there is no option --data.path; did you mean --data? "
        "(all options: ltr negatives import --help)"
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_can_be_mended_is_one_line(here, collection_folder, capsys, words):
    collection = open_collection(str(collection_folder))
    nothing = np.full((len(collection.queries), 1), -1)
    MinedNegatives.from_matrix(
        np.arange(len(nothing)), nothing, np.zeros(nothing.shape), {"key": "x"}
    ).save(here / "empty", collection)
    line = refusal(capsys, f"negatives {words.replace('DATA', str(collection_folder))}")
    assert REFUSED[words] in line
    assert not (here / "out").exists()


@pytest.mark.usefixtures("programs_begin_warm")
def test_a_reader_that_leaves_early_is_no_error(tmp_path, collection_folder):
    """As in ``ltr negatives diff … | head -1``; the table of ``--tsv`` is written all the same."""
    out = imported(tmp_path, "bm25", collection_folder, range(20), [0, 3, 2])
    table = tmp_path / "pairs.tsv"
    diff = f"negatives diff {out} {out} --data {collection_folder} --tsv {table}"
    command = [sys.executable, "-u", "-m", "ltr", *diff.split()]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "") and table.stat().st_size
