"""Each form of data that docs/data.md shows is imported, trained one step and tested; a broken line
of it is one line that leads there, and leaves nothing.
"""

import json
import re
from itertools import count
from pathlib import Path

import datasets
import pytest

from ltr.data.collection import open_collection
from ltr.datamodules import FeatureDataModule, RankingDataModule, TripletDataModule
from ltr.losses import MarginRankingLoss, RankNetLoss
from ltr.module import RankerModule
from tests.world.collections import same_collections
from tests.world.commands import refusal, run_ltr
from tests.world.rankers import cross_encoder, data_for, feature_ranker, trainer

PAGE = Path(__file__).parents[2] / "docs" / "data.md"
N_ROWS = 6
BROKEN = b"\xff\n"  # no UTF-8


def forms_of_page() -> dict[str, str]:
    """The forms of rows with named columns, each with a row as the page shows it."""
    (table,) = re.findall(
        r"^\| form \|.*\n\| --- .*\n((?:\|.*\n)+)", PAGE.read_text(), re.MULTILINE
    )
    return dict(re.findall(r"^\| (.*?) \| `(\{.*?\})`", table, re.MULTILINE))


def filled(line: str, number: int, texts: count) -> str:
    """A line of the page with texts for ``…``, no two alike, and the number for ``N``."""
    line = re.sub("…", lambda _: f"common w{next(texts)}", line)
    return re.sub(r"\bN\b|(?<=[qpn])N\b", str(number), line)


def lines(line: str, *, header: str = "") -> str:
    texts = count()
    return header + "".join(filled(line, number, texts) + "\n" for number in range(1, N_ROWS + 1))


FORMS = {
    **{form: {"SPLIT.jsonl": lines(row)} for form, row in forms_of_page().items()},
    "an array": {
        "SPLIT.json": "[\n"
        + ",".join(lines('{"query": "…", "pos": ["…"]}').splitlines(True))
        + "]\n"
    },
    "CSV": {"SPLIT.csv": lines('"…,\n…",…,…', header="anchor,positive,negative\n")},
    "triples": {"SPLIT.tsv": lines("…\t…\t…\t…")},
    "plain pairs": {"SPLIT.tsv": lines("…\t…")},
    "plain labelled pairs": {"SPLIT.tsv": lines("…\t…\t2", header="query\tdocument\tlabel\n")},
    "a data folder": {
        "corpus.jsonl": lines('{"_id": "pN", "title": "…", "text": "…"}'),
        "queries.jsonl": lines('{"_id": "qN", "text": "…"}'),
        "qrels/SPLIT.tsv": lines("qN\tpN\t1"),
    },
    "MTEB and BEIR on the hub": {
        "corpus.jsonl": lines('{"_id": "pN", "title": "…", "text": "…"}'),
        "queries.jsonl": lines('{"_id": "qN", "text": "…"}'),
        "default/SPLIT.jsonl": lines('{"query-id": "qN", "corpus-id": "pN", "score": 1.0}'),
    },
    "MTEB's reranking": {
        "corpus.jsonl": lines('{"_id": "pN", "text": "…"}') + lines('{"_id": "nN", "text": "x …"}'),
        "queries.jsonl": lines('{"_id": "qN", "text": "…"}'),
        "qrels/SPLIT.tsv": lines("qN\tpN\t1"),
        "top_ranked/SPLIT.jsonl": lines('{"query-id": "qN", "corpus-ids": ["nN", "pN"]}'),
    },
    "MS MARCO": {
        "collection.tsv": lines("N\t…"),
        "queries.SPLIT.tsv": lines("N\t…"),
        "top1000.test": lines("N\tN\tasks\tpassage") + "1\t2\tasks\tpassage\n",
        "qrels.SPLIT.tsv": lines("N\t0\tN\t1"),
    },
}


def write(folder: Path, form: str) -> Path:
    """The files of a form, the split test as train; the folder."""
    for name, text in FORMS[form].items():
        for split in ("train", "test"):
            file = folder / name.replace("SPLIT", split)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    return folder


def test_the_page_has_the_forms():
    assert len(forms_of_page()) == 9 and "Tevatron" in FORMS


def import_train_and_test(source: Path, new: Path, backbone: str, **options: object) -> None:
    """Import a source, train one step of what was written, and test it."""
    assert run_ltr(f"import {source} {new}") == 0
    collection = open_collection(new)
    assert same_collections(collection, open_collection(source))
    texts = [*collection.corpus.texts, *collection.queries.texts]
    assert len(texts) > N_ROWS and all("w" in text for text in texts)
    module = cross_encoder(backbone, MarginRankingLoss())
    options = {"batch_size": 2, "negatives_per_query": 1} | options
    train_and_test(module, data_for(module, TripletDataModule, new, **options), new.parent)


def train_and_test(module: RankerModule, data: RankingDataModule, folder: Path) -> None:
    training = trainer(folder, max_steps=1, limit_val_batches=0)
    training.fit(module, datamodule=data)
    assert training.global_step == 1
    (measured,) = training.test(module, datamodule=data, verbose=False)
    assert 0 <= measured[f"test/{module.ranking_metrics[0].name}"] <= 1


# A file of rows, of lines, and two folders.
EVERY_DAY = {"CSV", "triples", "a data folder", "MS MARCO"}


@pytest.mark.parametrize(
    "form",
    [pytest.param(form, marks=[pytest.mark.long] * (form not in EVERY_DAY)) for form in FORMS],
)
def test_a_form_is_imported_trained_one_step_and_tested(tmp_path, backbone, form):
    source = write(tmp_path / "source", form)
    import_train_and_test(source, tmp_path / "new", backbone)


@pytest.mark.parametrize("form", FORMS)
def test_a_broken_line_of_a_form_is_named_and_leaves_nothing(tmp_path, capsys, form):
    source = write(tmp_path / "source", form)
    name = max(name for name in FORMS[form] if "SPLIT" in name)
    file = source / name.replace("SPLIT", "train")
    text = file.read_text()
    number = text.count("\n") + 1
    if form in forms_of_page():
        file.write_text(text + '{"other": "column"}\n')
    else:
        file.write_bytes(text.encode() + BROKEN)
    before = sorted(tmp_path.iterdir())
    told = refusal(capsys, f"import {source} {tmp_path / 'new'}")
    assert told.startswith(f"ltr: {file}:{number}: ")
    assert sorted(tmp_path.iterdir()) == before


def save_as_parquet(rows: datasets.Dataset, folder: Path) -> Path:
    """Both splits; the file of train."""
    for split in ("train", "test"):
        rows.to_parquet(folder / f"{split}.parquet")
    return folder / "train.parquet"


def save_to_disk(rows: datasets.Dataset, folder: Path) -> Path:
    """As datasets does; the file of train."""
    datasets.DatasetDict(train=rows, test=rows).save_to_disk(folder)
    return folder / "train/data-00000-of-00001.arrow"


@pytest.mark.parametrize("save", [save_as_parquet, save_to_disk])
def test_a_table_is_imported_trained_one_step_and_tested(tmp_path, backbone, capsys, save):
    text = lines('{"query": "…", "pos": ["…"], "neg": ["…", "…"]}')
    rows = [json.loads(line) for line in text.splitlines()]
    source = tmp_path / "source"
    source.mkdir()
    file = save(datasets.Dataset.from_list(rows), source)
    import_train_and_test(source, tmp_path / "new", backbone)
    file.write_bytes(file.read_bytes()[:-50])  # a download that was cut
    before = sorted(tmp_path.iterdir())
    assert str(file) in refusal(capsys, f"import {source} {tmp_path / 'other'}")
    assert sorted(tmp_path.iterdir()) == before


# Rows of two queries, which a file beside tells apart: LightGBM's and XGBoost's.
ROWS = "2 1:1.5 3:1\n0 1:-0.1\n1 2:4\n0 2:3\n"


@pytest.mark.parametrize("beside", ["query", "group"])
def test_features_are_imported_trained_one_step_and_tested(tmp_path, capsys, beside):
    source = tmp_path / "source"
    source.mkdir()
    for split in ("train", "test"):
        (source / f"{split}.txt").write_text(ROWS)
        (source / f"{split}.txt.{beside}").write_text("2\n2\n")
    new = tmp_path / "new"
    assert run_ltr(f"import {source} {new}") == 0
    module = feature_ranker(3, RankNetLoss())
    train_and_test(module, data_for(module, FeatureDataModule, new, batch_size=2), tmp_path)
    (source / "train.txt").write_text(ROWS + "1 3:many\n")
    before = sorted(tmp_path.iterdir())
    told = refusal(capsys, f"import {source} {tmp_path / 'other'}")
    assert told.startswith(f"ltr: {source / 'train.txt'}:5: ")
    assert sorted(tmp_path.iterdir()) == before


def test_msmarco_hard_negatives_are_imported_trained_one_step_and_tested(
    tmp_path, backbone, capsys
):
    """The ids are those of the collection."""
    source = write(tmp_path / "source", "MS MARCO")
    hard = tmp_path / "hard.jsonl"
    text = "".join(
        f'{{"qid": {n}, "pos": [{n}], "neg": {{"bm25": [{n % N_ROWS + 1}], "ance": []}}}}\n'
        for n in range(1, N_ROWS + 1)
    )
    hard.write_text(text)
    words = f"negatives import {hard} {{}} --data {source}"
    assert run_ltr(words.format(tmp_path / "mined")) == 0
    module = cross_encoder(backbone, MarginRankingLoss())
    options = {"batch_size": 2, "negatives_per_query": 1, "negatives": str(tmp_path / "mined")}
    train_and_test(module, data_for(module, TripletDataModule, source, **options), tmp_path)
    hard.write_text(text + '{"qid": 1, "neg": {"bm25": [true]}}\n')
    capsys.readouterr()
    assert run_ltr(words.format(tmp_path / "other")) == 2
    told = capsys.readouterr().err.splitlines()[-1]  # the collection has told of itself before
    assert told.startswith(f"ltr: {hard}:{N_ROWS + 1}: ") and not (tmp_path / "other").exists()
