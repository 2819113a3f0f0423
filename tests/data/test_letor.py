"""Feature vectors: which files make a split, and what is read of them."""

import bz2
import gzip
import json
import pickle

import numpy as np
import pytest

from ltr.data import svmlight
from ltr.data.files import cache_root
from ltr.data.letor import RowNames, hold_out, read_letor
from ltr.data.letor_splits import find_splits, holds_features
from tests.world.refusals import refused

ROWS = """\
2 qid:9 1:1 3:3 # docid = b x = 1
0 qid:4 2:2 # docid = b
1 qid:9 2:-2 # docid = a
0 qid:9 4:4 # docid = c
"""


@pytest.fixture
def file(tmp_path):
    """Query 9 stands in two places, and its documents not in the order of their ids."""
    (tmp_path / "train.txt").write_text(ROWS)
    return tmp_path / "train.txt"


def test_rows_are_joined_by_query_and_sorted_by_document_id(file, caplog):
    split = read_letor([file])
    assert list(split.query_ids) == ["9", "4"] and len(split) == 2
    assert list(split.doc_ids) == ["a", "b", "c", "b"] and split.n_features == 4
    rows = [[0, -2, 0, 0], [1, 0, 3, 0], [0, 0, 0, 4], [0, 2, 0, 0]]
    assert split.features.tolist() == rows and isinstance(split.features, np.memmap)
    assert split.labels.tolist() == [1, 2, 0, 0] and split.offsets.tolist() == [0, 3, 4]
    assert split.rows(0).tolist() == [0, 1, 2] and split.rows(1).tolist() == [3]
    assert split.features.dtype == split.labels.dtype == np.float32
    assert split.offsets.dtype == split.rows(0).dtype == np.int64
    assert caplog.messages == [
        f"{file}:3: query 9 comes again after other queries, as 1 of 2 do; their rows are joined"
    ]
    arrays = [
        "features",
        "labels",
        "offsets",
        "query_ids",
        "query_ids.offsets",
        "doc_ids",
        "doc_ids.offsets",
    ]
    assert {path.name for path in (cache_root() / "letor" / split.key).iterdir()} == {
        *("seal", "made-of"),
        *(f"{name}.npy" for name in arrays),
    }


def test_without_ids_the_order_of_the_files_stays_and_rows_are_named_by_number(tmp_path, caplog):
    rows = [b"0 qid:1 1:%d\n" % i for i in range(11)]
    (tmp_path / "a").write_bytes(b"".join(rows[:6]))
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"".join(rows[6:])))
    split = read_letor([tmp_path / "a", tmp_path / "b.gz"])
    assert split.features[:, 0].tolist() == list(range(11))
    assert len(split) == 1 and not caplog.records
    assert list(split.doc_ids) == ["00", "01", "02", "03", "04", "05", "06", "07", "08", "09", "10"]
    with pytest.raises(IndexError):
        RowNames(3)[3]


def test_small_blocks_packed_files_and_shuffled_features_read_the_same(tmp_path, monkeypatch):
    """Against a table that is filled row by row."""
    generator = np.random.default_rng(0)
    table = generator.normal(size=(60, 5)).round(3).astype(np.float32)
    table *= generator.integers(0, 2, (60, 5))
    qids = generator.integers(0, 7, 60)
    plain = tmp_path / "plain"
    packed = tmp_path / "packed.gz"
    bzip2 = tmp_path / "packed.bz2"
    shuffled = tmp_path / "shuffled"
    for file, order in ((plain, range(5)), (shuffled, range(4, -1, -1))):
        with open(file, "w") as opened:
            for number, (qid, row) in enumerate(zip(qids, table, strict=True)):
                pairs = " ".join(f"{i + 1}:{row[i]:g}" for i in order)
                opened.write(f"{number} qid:{qid} {pairs}\n")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    bzip2.write_bytes(bz2.compress(plain.read_bytes()))
    monkeypatch.setattr(svmlight, "BLOCK_BYTES", 200)
    for file in (plain, packed, bzip2, shuffled):
        split = read_letor([file])
        for query in range(len(split)):
            rows = np.flatnonzero(qids == int(split.query_ids[query]))
            assert split.labels[split.rows(query)].tolist() == rows.tolist()
            np.testing.assert_array_equal(split.features[split.rows(query)], table[rows])


def test_queries_that_come_again_are_counted(tmp_path, caplog):
    """Query 4 is the last new one when it comes again, and query 9 comes again twice."""
    file = tmp_path / "train.txt"
    file.write_text("".join(f"0 qid:{qid} 1:1\n" for qid in (9, 4, 9, 4, 4, 9, 7)))
    split = read_letor([file])
    assert list(split.query_ids) == ["9", "4", "7"] and split.offsets.tolist() == [0, 3, 6, 7]
    assert caplog.messages == [
        f"{file}:3: query 9 comes again after other queries, as 2 of 3 do; their rows are joined"
    ]


def test_what_was_read_is_kept_under_the_content(file, tmp_path, monkeypatch):
    first = read_letor([file])
    (tmp_path / "copy.txt").write_text(ROWS)
    monkeypatch.setattr("ltr.data.letor.read_rows", lambda *_: pytest.fail("read again"))
    assert read_letor([tmp_path / "copy.txt"]).key == first.key
    with pytest.raises(BaseException, match="read again"):
        read_letor([file], first_feature=0)


BROKEN = {
    "one without an id": (
        ROWS + "0 qid:4 1:1\n",
        r"train.txt:5: the row has no '#docid = …' .* have one, first .*train.txt:1;",
    ),
    "ids from the third on": (
        "0 qid:1 1:1\n0 qid:2 1:1\n" + ROWS,
        r"train.txt:1: the row has no .* first .*train.txt:3;",
    ),
    "an id twice": (
        ROWS + "\n1 qid:4 1:9 #docid=b\n",
        r"train.txt:6: document 'b' stands twice in its query, first at .*txt:2",
    ),
    "nothing": ("# only a comment\n\n", r"train.txt: the split is empty; at least one row"),
    "no feature": ("1 qid:1\n", r"train.txt: no row of the split has a feature"),
    "a bad line": (ROWS + "x\n", r"train.txt:5: a line must be 'label qid:N"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_one_line_that_leads_to_the_place(file, case):
    text, words = BROKEN[case]
    file.write_text(text)
    with refused(words):
        read_letor([file])
    file.unlink()
    with refused("train.txt: there is no such file"):
        read_letor([file])


def test_a_split_of_some_queries_shares_the_rows(file):
    split = read_letor([file])
    part = split.only(np.array([1]))
    assert len(part) == 1 and list(part.query_ids) == ["4"] and part.rows(0).tolist() == [3]
    assert part.features is split.features and part.key == split.key
    assert split.only(np.array([1, 0])).only(np.array([1])).rows(0).tolist() == [0, 1, 2]


def test_a_pickle_holds_the_path_and_not_the_rows(tmp_path):
    (tmp_path / "train.txt").write_text("".join(f"0 qid:{i // 10} 1:{i}\n" for i in range(5000)))
    split = read_letor([tmp_path / "train.txt"])
    two = split.only(np.array([7, 3]))
    for ours in (split, two, two.only(np.array([1]))):
        stored = pickle.dumps(ours)
        theirs = pickle.loads(stored)
        assert len(stored) < 1000 and isinstance(theirs.features, np.memmap)
        assert (theirs.key, list(theirs.query_ids)) == (ours.key, list(ours.query_ids))
        assert theirs.rows(0).tolist() == ours.rows(0).tolist()


@pytest.mark.parametrize("share, n_held", [(0.2, 2), (0.01, 1), (0.99, 9)])
def test_held_out_queries_and_the_rest_are_all(tmp_path, share, n_held):
    (tmp_path / "train.txt").write_text("".join(f"0 qid:{i} 1:1\n" for i in range(10)))
    split = read_letor([tmp_path / "train.txt"])
    rest, held = hold_out(split, share)
    assert len(held) == n_held
    assert sorted([*rest.query_ids, *held.query_ids]) == list(split.query_ids)
    assert hold_out(split, share)[1].query_ids == held.query_ids
    if n_held == 2:  # drawn, neither the first nor the last ones
        assert held.query_ids not in (["0", "1"], ["8", "9"])


def test_what_cannot_be_held_out(file, tmp_path):
    for share in (0, 1, -0.5, 1.5):
        with refused(f"must lie between 0 and 1, got {share}"):
            hold_out(read_letor([file]), share)
    (tmp_path / "one.txt").write_text("1 qid:1 1:1\n")
    with refused("must have at least two, got 1; add a dev split"):
        hold_out(read_letor([tmp_path / "one.txt"]), 0.5)


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def found(folder, fold=None):
    """Each split with its files."""
    splits = find_splits(folder, fold)
    return {name: " ".join(str(f.relative_to(folder)) for f in splits[name]) for name in splits}


def test_splits_are_files_or_folders(tmp_path):
    touch(tmp_path, "train/b.txt.bz2", "train/a.svm.gz", "train/README.md", "notes.txt")
    touch(tmp_path, "vali.letor", "test.txt.gz")
    train = "train/a.svm.gz train/b.txt.bz2"
    assert found(tmp_path) == {"train": train, "dev": "vali.letor", "test": "test.txt.gz"}


def test_a_fold_is_a_folder_or_an_entry_of_the_plan(tmp_path):
    touch(tmp_path, "Fold1/train.txt", "Fold2/train.txt", "Fold2/test.txt")
    assert found(tmp_path, 2) == {"train": "Fold2/train.txt", "test": "Fold2/test.txt"}
    touch(tmp_path, "S1.txt.gz", "S2.txt", "S3.txt", "S4.txt")
    plan = {"Fold1": {"test": ["S3"], "vali": ["S4"], "train": ["S2", "S1"]}}
    (tmp_path / "folds.json").write_text(json.dumps(plan))
    splits = {"train": "S2.txt S1.txt.gz", "dev": "S4.txt", "test": "S3.txt"}
    assert found(tmp_path, 1) == splits


# The files, the fold that is asked for, and the words of the refusal.
LOST_FILES = [
    (
        "a.csv",
        None,
        r"there must be files or folders named train, dev, val, vali, .* found \['a.csv'\]",
    ),
    ("Fold1/x Fold3/x", None, r"choose one of the folds 1, 3 \(option fold\)"),
    ("Fold10/x Fold2/x", None, r"choose one of the folds 2, 10 \(option fold\)"),
    ("train.txt", 1, r"there are no folds, got fold 1; leave fold out \(option fold\)"),
    ("Fold1/x", 6, r"there is no fold 6, only 1 \(option fold\)"),
    (
        "train.txt train.txt.gz",
        None,
        "must be one source of train, got train.txt, train.txt.gz; keep",
    ),
    ("dev.txt valid.txt", None, "must be one source of dev, got dev.txt, valid.txt; keep one"),
    ("train/x.csv", None, "train: the folder must hold files that end in .txt, .*; there are none"),
]


@pytest.mark.parametrize("files, fold, words", LOST_FILES)
def test_splits_that_cannot_be_found_are_named(tmp_path, files, fold, words):
    touch(tmp_path, *files.split())
    with refused(words):
        find_splits(tmp_path, fold)


PLAN = '{"Fold1": {"train": ["S1"]}, "Fold2": {"train": ["S2"]}}'
# What is wrong: the plan, and the words of the refusal behind its name.
LOST_FOLDS = {
    "part missing": (PLAN, ": there must be one file S2 with the end .*, got none"),
    "part twice": (
        PLAN.replace("S2", "S3"),
        ": there must be one file S3 .*, got S3.txt, S3.svm",
    ),
    "part in two splits": (
        '{"Fold2": {"train": ["S1"], "vali": ["S1"]}}',
        ": a part must .* 'S1' twice in Fold2",
    ),
    "split by two names": (
        '{"Fold2": {"dev": ["S1"], "vali": ["S4"]}}',
        ": a split must .* got .*dev.* and .*which are one",
    ),
    "split without a part": (
        '{"Fold2": {"train": []}}',
        r": expected .*, got 'Fold2': {'train': \[\]}",
    ),
    "no JSON": ('{\n"Fold2"', ":2: the file must be JSON"),
    "nested too deep": ("[" * 100_000, r":1: the file must be JSON \(.*recursion"),
    "of another shape": ('{"Fold2": {"tests": ["S1"]}}', ": expected .*, got 'Fold2': {'tests'"),
    "a list": ("[1]", r": expected .*, got '': \[1\]"),
}


@pytest.mark.parametrize("case", LOST_FOLDS)
def test_folds_that_cannot_be_found_are_named(tmp_path, case):
    plan, words = LOST_FOLDS[case]
    touch(tmp_path, "S1.txt", "S3.txt", "S3.svm", "S4.txt")
    (tmp_path / "folds.json").write_text(plan)
    with refused(f"folds.json{words}"):
        find_splits(tmp_path, 2)


def test_one_fold_of_a_plan_is_chosen(tmp_path):
    (tmp_path / "folds.json").write_text(PLAN)
    with refused("choose one of the folds 1, 2"):
        find_splits(tmp_path)


def test_a_missing_data_folder(tmp_path):
    with refused(r"nowhere: there is no such data folder \(option path\)"):
        find_splits(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["vali", "vali.txt", "folds.json"])
def test_a_link_that_leads_nowhere_is_not_taken_for_a_missing_split(tmp_path, name):
    (tmp_path / "train.txt").write_text("1 qid:1 1:1\n")
    (tmp_path / name).symlink_to("nothing")
    with refused(f"{name}: (expected a file, got a link .* nowhere|there is no such file)"):
        read_letor(find_splits(tmp_path)["dev"])


# Without qid, as LightGBM's and XGBoost's examples have them: the rows, and their sizes beside.
UNNAMED = "2 1:1 3:3\n# a comment\n\n0 2:2\n1\n0 1:9 # more\n"


def write_unnamed(folder, sizes="1\n3\n", name="rank.train", end=".query"):
    (folder / name).write_text(UNNAMED)
    (folder / f"{name}{end}").write_text(sizes)
    return folder / name


@pytest.mark.parametrize("end", [".query", ".group"])
def test_rows_without_qid_belong_to_the_queries_whose_sizes_lie_beside_them(
    tmp_path, monkeypatch, end
):
    named = tmp_path / "named.txt"
    named.write_text("2 qid:1 1:1 3:3\n0 qid:2 2:2\n1 qid:2\n0 qid:2 1:9\n")
    expected = read_letor([named])
    monkeypatch.setattr(svmlight, "BLOCK_BYTES", 8)
    split = read_letor([write_unnamed(tmp_path, end=end)])
    assert list(split.query_ids) == ["1", "2"] and split.offsets.tolist() == [0, 1, 4]
    assert split.labels.tolist() == expected.labels.tolist() == [2, 0, 1, 0]
    np.testing.assert_array_equal(split.features, expected.features)
    # Other sizes are other lists, under another key.
    (tmp_path / f"rank.train{end}").write_text("2\n2\n")
    other = read_letor([tmp_path / "rank.train"])
    assert other.offsets.tolist() == [0, 2, 4] and other.key != split.key


def test_sizes_of_queries_may_be_packed(tmp_path, caplog):
    """Beside plain rows and beside packed ones; so may what is not read be."""
    rows = write_unnamed(tmp_path)
    expected = read_letor([rows])
    sizes = tmp_path / "rank.train.query"
    (tmp_path / "rank.train.query.gz").write_bytes(gzip.compress(sizes.read_bytes()))
    sizes.unlink()
    (tmp_path / "rank.train.weight.gz").write_bytes(gzip.compress(b"1\n"))
    assert read_letor([rows]).offsets.tolist() == expected.offsets.tolist()
    assert "rank.train: rank.train.weight.gz is not read" in caplog.text
    packed = tmp_path / "rank.train.gz"
    packed.write_bytes(gzip.compress(rows.read_bytes()))
    assert read_letor([packed]).offsets.tolist() == expected.offsets.tolist()


def test_queries_of_several_files_are_numbered_through(tmp_path):
    files = [write_unnamed(tmp_path, name=name) for name in ("a.txt", "b.txt")]
    split = read_letor(files)
    assert list(split.query_ids) == ["1", "2", "3", "4"]
    assert split.offsets.tolist() == [0, 1, 4, 5, 8]
    (tmp_path / "c.txt").write_text("1 qid:1 1:1\n")
    with refused("c.txt: the rows have a qid, or no sizes beside them, and those of other files"):
        read_letor([*files, tmp_path / "c.txt"])


def test_rows_that_name_their_query_need_no_sizes(file):
    before = read_letor([file]).key
    file.with_name("train.txt.query").write_text("no sizes\n")
    assert read_letor([file]).key == before


BROKEN_SIZES = {
    "1\n2\n": r"rank.train:6: the row is of no query: .*query must add up to the rows of .*, 4, got 3",
    "1\n3\n\n2\n": r"rank.train.query:4: there are no rows of the query: .*, 4, got 6",
    "1\n4\n": r"rank.train.query:2: there are no rows of the query: .*, 4, got 5",
    "1\nx\n": r"query:2: a line must be the number of rows of a query, .* above 0, got 'x'",
    "0\n4\n": r"query:1: a line must be the number of rows of a query, .* above 0, got '0'",
    "": r"rank.train:1: the row is of no query: .*, 4, got 0",
}


@pytest.mark.parametrize("sizes", BROKEN_SIZES)
def test_sizes_that_do_not_fit_are_named(tmp_path, sizes):
    with refused(BROKEN_SIZES[sizes]):
        read_letor([write_unnamed(tmp_path, sizes)])


def test_sizes_stand_in_one_file(tmp_path):
    write_unnamed(tmp_path)
    with refused("must be one file of the sizes of queries, got rank.train.query and rank.train.g"):
        read_letor([write_unnamed(tmp_path, end=".group")])


def test_rows_without_qid_and_without_sizes_are_told_what_to_do(tmp_path):
    write_unnamed(tmp_path)
    (tmp_path / "rank.train.query").unlink()
    with refused(r"rank.train:1: .* got '2 1:1 3:3'; for rows without qid put the sizes of"):
        read_letor([tmp_path / "rank.train"])


def test_a_split_is_an_ending_where_there_is_no_file_of_its_name(tmp_path):
    touch(tmp_path, "rank.train", "rank.train.query", "rank.vali", "rank.test", "rank.test.query")
    assert found(tmp_path) == {"train": "rank.train", "dev": "rank.vali", "test": "rank.test"}
    touch(tmp_path, "test.txt", ".x.vali")
    assert found(tmp_path)["test"] == "test.txt"
    (tmp_path / "rank.train").write_text(ROWS)
    assert found(tmp_path) == {"train": "rank.train", "test": "test.txt"}
    (tmp_path / "other.train").write_text(ROWS)
    with refused("must be one source of train, got other.train, rank.train; keep one"):
        find_splits(tmp_path)


def test_what_is_a_folder_of_features(tmp_path):
    for number, name in enumerate(["train.txt", "test/a.svm", "Fold2/x", "folds.json"]):
        assert holds_features(touch(tmp_path / str(number), name)), name
    for number, name in enumerate(["train.tsv", "train/a.parquet", "corpus.jsonl", "x.txt"], 9):
        assert not holds_features(touch(tmp_path / str(number), name)), name
    assert not holds_features(tmp_path / "nowhere")
    (tmp_path / "a.dev").write_text("1\t2\tasks\ta text: one\n")
    assert not holds_features(tmp_path)
    for text in (UNNAMED, ROWS):
        (tmp_path / "a.dev").write_text(text)
        assert holds_features(tmp_path)


def test_other_files_end_as_splits_beside_files_of_them(tmp_path):
    touch(tmp_path, "train.txt", "vali.txt", "run.test", "bm25.val")
    assert found(tmp_path) == {"train": "train.txt", "dev": "vali.txt"}


def test_what_is_not_read_beside_rows_is_named(tmp_path, caplog):
    (tmp_path / "train.txt").write_text(ROWS)
    for end in ("weight", "position", "query"):
        (tmp_path / f"train.txt.{end}").write_text("1\n3\n")
    read_letor([tmp_path / "train.txt"])
    for words in (
        "train.txt: train.txt.weight or train.txt.position is not read; each row counts the same",
        "train.txt: the rows have qids, so train.txt.query is not read",
    ):
        assert words in caplog.text
