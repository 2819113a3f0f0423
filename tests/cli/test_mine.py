"""``ltr mine``: the negatives of a run, outside training."""

import json
import sys

import numpy as np
import pytest
import torch

from ltr.__main__ import main
from ltr.data.collection import open_collection
from ltr.data.trec import read_run
from ltr.mining.mined_negatives import MinedNegatives
from tests.callbacks.test_mining import configuration
from tests.child_processes import run_command
from tests.test_ranks import ROOT, TWO
from tests.world.collections import write_t2ranking
from tests.world.commands import run_ltr


@pytest.fixture(scope="module")
def run(tmp_path_factory, collection_folder, backbone):
    """A run of two epochs that mined at steps 0 and 6: recipe depth 12, n 4, relative null."""
    folder = tmp_path_factory.mktemp("mine")
    assert main(configuration(folder, collection_folder, backbone)) == 0
    return folder / "run"


def manifest(folder):
    return json.loads((folder / "manifest.json").read_text())


def test_untrained_weights_give_the_negatives_of_the_first_refresh(
    run, tmp_path, caplog, collection_folder, backbone
):
    _, *args = configuration(tmp_path, collection_folder, backbone)
    assert run_ltr("mine", *args) == 0
    assert "no --ckpt_path: the weights that the model starts from" in caplog.text
    (mined,) = (tmp_path / "run/negatives").glob("mined-*")
    first = run / "negatives/step=0"
    key = manifest(first)["key"]
    assert mined.name == f"mined-{key[:8]}" and manifest(mined)["key"] == key
    assert np.array_equal(np.load(mined / "ids.npy"), np.load(first / "ids.npy"))


def test_a_run_that_has_mined_is_tested(run, capsys):
    """Its checkpoint has the negatives of its training, which a test needs not."""
    assert run_ltr(f"test {run}") == 0
    assert "test.run, per_query.tsv and metrics.json lie in" in capsys.readouterr().out


def test_documents_below_the_level_of_relevance_may_be_mined(tmp_path, backbone):
    """Of T2Ranking's grades 0 to 3, from 2 on: none of 2 and 3 is mined, and all of 0 and 1 are, as
    the depth is that of the corpus. Without a level those of 1 are not.
    """
    folder = write_t2ranking(tmp_path / "t2")
    grades_of_level = {}
    for level in ("2", "null"):
        out = tmp_path / level
        _, *args = configuration(tmp_path, folder, backbone)
        recipe = f"--recipe.depth 96 --recipe.n 96 --data.relevant_from {level} --output {out}"
        assert run_ltr("mine", *args, *recipe.split()) == 0
        collection = open_collection(folder)
        judged = collection.judgements("train")
        negatives = MinedNegatives.open(out, collection)
        grades = set()
        for query in negatives.lists.query_rows.tolist():
            judged_rows, judged_grades = judged.of(query)
            grades |= set(judged_grades[np.isin(judged_rows, negatives.lists.of(query)[0])])
        grades_of_level[negatives.relevant_from] = grades
    assert grades_of_level == {2.0: {0.0, 1.0}, None: {0.0}}


def test_a_run_is_mined_with_its_recipe_and_what_the_options_change(
    run, tmp_path, collection_folder, monkeypatch, caplog
):
    out = tmp_path / "out"
    file = tmp_path / "negatives.trec"
    options = "--recipe.depth 20 --recipe.relative 0.9 --split dev"
    words = f"mine {run} {options} --output {out} --trec {file}"
    assert run_ltr(words) == 0
    about = manifest(out)
    expected = {"depth": 20, "n": 4, "relative": 0.9}
    assert {name: about["recipe"][name] for name in expected} == expected
    assert (about["split"], about["mined_queries"]) == ("dev", 30)
    assert about["checkpoint"].endswith("best.ckpt")
    collection = open_collection(str(collection_folder))
    negatives = MinedNegatives.open(out, collection)
    expected = [
        (collection.queries.ids[query], collection.corpus.ids[doc], pytest.approx(1 / (rank + 1)))
        for query in negatives.lists.query_rows
        for rank, doc in enumerate(negatives.lists.of(query)[0])
    ]
    assert [tuple(line) for _, line in read_run(file)] == expected and len(expected) >= 60
    assert {query[:3] for query, _, _ in expected} == {"dev"}
    # Nothing is mined twice.
    file.unlink()
    monkeypatch.setattr("ltr.mining.miner.Miner.mine", lambda *_: pytest.fail("mined again"))
    assert run_ltr(words) == 0 and file.exists()
    assert "not mined again" in caplog.text


def test_damaged_negatives_of_the_same_key_are_not_taken_for_mined(run, tmp_path, capsys):
    out = tmp_path / "out"
    assert run_ltr(f"mine {run} --output {out}") == 0
    ids = np.load(out / "ids.npy")
    np.save(out / "ids.npy", np.full_like(ids, -1))
    assert run_ltr(f"mine {run} --output {out}") == 2
    rule = "the arrays must be those that manifest.json was written with, and have changed since"
    expected = f"ltr: {out}: {rule}; remove the folder, and mine again"
    assert expected in capsys.readouterr().err


def test_mining_leaves_the_run_as_it_was(run, tmp_path):
    before = {
        file: file.read_bytes()
        for file in run.rglob("*")
        if file.is_file() and file.name not in ("train.log", ".lock")
    }
    assert run_ltr(f"mine {run} --ckpt_path last --recipe.n 2 --output {tmp_path / 'out'}") == 0
    assert {file: file.read_bytes() for file in before} == before
    weights = torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    assert weights and np.load(tmp_path / "out/ids.npy").shape == (90, 2)


@pytest.mark.usefixtures("programs_begin_warm")
@pytest.mark.long
@pytest.mark.parametrize("is_encoded", [False, True])
def test_two_processes_mine_the_same(run, collection_folder, tmp_path, is_encoded):
    """Where ``ltr encode`` has encoded the corpus, too: each process reads its share."""
    assert run_ltr(f"mine {run} --output {tmp_path / 'one'}") == 0
    options = []
    if is_encoded:
        encoded = str(tmp_path / "encoded")
        assert run_ltr(f"encode {run} --corpus {collection_folder} --output {encoded}") == 0
        options = ["--encoded", encoded]
    out = str(tmp_path / "two")
    args = [sys.executable, "-m", "ltr", "mine", str(run), "--output", out, *TWO, *options]
    done = run_command(args, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    one, two = (tmp_path / name for name in ("one", "two"))
    assert np.array_equal(np.load(one / "ids.npy"), np.load(two / "ids.npy"))
    assert manifest(one)["key"] == manifest(two)["key"]


REFUSED = {
    "--recipe.depth 0": "depth must be at least 1, got 0 (option recipe.depth)",
    "--recipe.dept 3": "recipe.dept",
    "--split all": "split",
    "--output .": ". must be a new folder, and is there already; name another one (option output)",
}


@pytest.mark.parametrize("options", REFUSED)
def test_what_can_be_mended_is_one_line(run, options, capsys):
    assert run_ltr(f"mine {run} {options}") == 2
    told = capsys.readouterr().err.splitlines()
    assert REFUSED[options] in told[-1] and told[-1].startswith("ltr: ")


def test_only_a_dual_encoder_mines_and_only_in_a_collection(
    tmp_path, backbone, collection_folder, letor_folder, capsys
):
    of_texts = f"--model.ranker.backbone {backbone} --model.ranker.max_length 24"
    for ranker, data, message in (
        (
            f"PairWiseBertRanker {of_texts}",
            f"TripletDataModule --data.path {collection_folder}",
            "mining searches with a dual encoder, and PairWiseBertRanker is none",
        ),
        (
            "FeatureRanker --model.ranker.n_features 5",
            f"FeatureDataModule --data.path {letor_folder}",
            "mining needs a collection of texts, got FeatureDataModule",
        ),
    ):
        model = f"--model.ranker {ranker} --model.loss RankNetLoss"
        root = f"--trainer.default_root_dir {tmp_path / 'run'}"
        assert run_ltr(f"mine {model} --data {data} {root}") == 2
        assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
