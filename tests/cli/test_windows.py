"""Windows of long documents from the command line: a run, what it is, what is made of it, and bad
options.
"""

import json

import numpy as np
import pytest
import torch
import yaml

import ltr
from ltr.data.trec import read_run
from ltr.data.windows import Windows
from ltr.errors import InputError
from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.run.identity import identity_of
from ltr.search.encoding import Encoding
from ltr.use.export import export
from ltr.use.rankers import TextRanker
from tests.test_ranks import two_processes
from tests.world.commands import run_ltr
from tests.world.configurations import write_config
from tests.world.runs import metrics

WINDOWS = {"size": 4, "stride": 2, "score": "best"}
LONG = " ".join(f"w{n}" for n in range(40))


def cross(backbone, **options):
    init_args = {"backbone": backbone, "max_length": 24, "windows": WINDOWS, **options}
    return {"class_path": "ltr.models.PairWiseBertRanker", "init_args": init_args}


def dual(backbone, score):
    similarity = "dot" if score == "mean" else "cosine"
    init_args = {"backbone": backbone, "max_length": 24, "similarity": similarity}
    windows = WINDOWS | {"score": score}
    return {"class_path": "ltr.models.DualEncoder", "init_args": init_args | {"windows": windows}}


@pytest.fixture
def config_of(tmp_path, backbone, collection_folder):
    """``config_of(ranker, **changes)``: the file of a configuration."""

    def written(ranker, **changes):
        return write_config(
            tmp_path, backbone, collection_folder, **{"model.ranker": ranker} | changes
        )

    return written


def test_a_run_reads_windows_in_training_and_in_use(
    config_of, backbone, collection_folder, tmp_path, capfd
):
    """Its scores in use are those that ``ltr test`` wrote, and not those of documents that are cut."""
    run = tmp_path / "run"
    assert run_ltr(f"fit --config {config_of(cross(backbone))}") == run_ltr(f"test {run}") == 0
    identified = identity_of(yaml.safe_load((run / "config.yaml").read_text()))
    assert {name: identified[f"model.ranker.windows.{name}"] for name in WINDOWS} == WINDOWS

    ranker = ltr.load(run)
    assert ranker.reads.windows == Windows(**WINDOWS)
    texts = {
        one["_id"]: one["text"]
        for name in ("corpus", "queries")
        for one in map(json.loads, (collection_folder / f"{name}.jsonl").read_text().splitlines())
    }
    written = [line for _, line in read_run(run / "test.run")][:40]
    pairs = [(texts[line.query], texts[line.doc]) for line in written]
    assert ranker.score(pairs) == pytest.approx([line.score for line in written], abs=1e-4)
    ranker.model.reads = ranker.reads = ranker.reads.without_windows()
    assert np.abs(ranker.score([("w1", LONG)]) - ltr.load(run).score([("w1", LONG)])).max() > 1e-5

    # A resume under other ones is refused.
    resumed = f"fit {run} --trainer.max_epochs 3 --model.ranker.windows.stride 3"
    assert run_ltr(resumed) == 2
    assert "model.ranker.windows.stride was 2 and is 3" in capfd.readouterr().err


BAD_WINDOWS = {
    "stride 5": "windows.stride must be from 1 to windows.size 4, got 5",
    "size 0": "windows.size must be at least 1, got 0",
    "size 30": "windows.size must be at most 20",
    "score max": "max",
}


@pytest.mark.parametrize("option", BAD_WINDOWS)
def test_bad_windows_are_one_line(config_of, backbone, tmp_path, option, capfd):
    config = config_of(cross(backbone))
    capfd.readouterr()
    assert run_ltr(f"fit --config {config} --model.ranker.windows.{option}") == 2
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("ltr: ")]
    assert BAD_WINDOWS[option] in line and "model.ranker.windows" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("score", ["best", pytest.param("mean", marks=pytest.mark.long)])
def test_a_dual_encoder_searches_the_corpus_by_windows(
    config_of, backbone, collection_folder, tmp_path, score
):
    """Validation, ``ltr test`` and ``ltr search`` find the same."""
    evaluation = {"candidates": "corpus", "depth": 10}
    changes = {"trainer.max_steps": 3, "data.init_args.evaluation": evaluation}
    run = tmp_path / "run"
    assert run_ltr(f"fit --config {config_of(dual(backbone, score), **changes)}") == 0
    assert run_ltr(f"test {run}") == 0
    assert metrics(run)["test"]["queries"] == 30
    queries = (collection_folder / "queries.jsonl").read_text().splitlines(keepends=True)
    wanted = tmp_path / "queries.jsonl"
    wanted.write_text("".join(line for line in queries if '"test-' in line))
    found = tmp_path / "found.trec"
    files = f"--corpus {collection_folder} --queries {wanted} --output {found}"
    assert run_ltr(f"search {run} {files} --k 10") == 0
    ours, theirs = (
        sorted(line for _, line in read_run(path)) for path in (found, run / "test.run")
    )
    assert len(ours) == 300 and [one[:2] for one in ours] == [one[:2] for one in theirs]


def mining(recipe):
    callback = {"class_path": "ltr.callbacks.HardNegativeMining", "init_args": recipe}
    return {"data.init_args.negatives": "mined", "trainer.callbacks": [callback]}


def test_negatives_are_mined_and_a_corpus_is_encoded_by_the_mean_embedding(
    config_of, backbone, collection_folder, tmp_path
):
    """And documents are anchors. The embeddings in the folder are those of ``encode``."""
    changes = mining({"recipe": {"depth": 20, "n": 6, "relative": None}})
    changes |= {"model.in_batch": {"class_path": "ltr.in_batch.AllTexts"}, "trainer.max_steps": 3}
    assert run_ltr(f"fit --config {config_of(dual(backbone, 'mean'), **changes)}") == 0
    run = tmp_path / "run"
    manifests = [*(run / "negatives").glob("*/manifest.json")]
    assert manifests and json.loads(manifests[0].read_text())["counts"]["chosen"] > 0
    folder = tmp_path / "encoding"
    options = f"--corpus {collection_folder} --numbers float32 --output {folder}"
    assert run_ltr(f"encode {run} {options}") == 0
    first = (collection_folder / "corpus.jsonl").read_text().splitlines()[0]
    expected = ltr.load(run).encode([json.loads(first)["text"]])[0]
    distances = np.linalg.norm(Encoding.open(folder).embeddings()[:] - expected, axis=1)
    assert distances.min() < 1e-4


def test_mining_by_the_best_window_is_refused_before_training(config_of, backbone, capfd):
    assert run_ltr(f"fit --config {config_of(dual(backbone, 'best'), **mining({}))}") == 2
    assert "HardNegativeMining needs one embedding of each document" in capfd.readouterr().err


def ranker_with_windows(backbone, kind):
    torch.manual_seed(1)
    if kind == "cross":
        ranker = PairWiseBertRanker(backbone, 24, windows=Windows(**WINDOWS))
        torch.nn.init.normal_(ranker.head.weight)
        return ranker
    if kind == "dual":
        return DualEncoder(backbone, max_length=24, windows=Windows(**WINDOWS))
    windows = Windows(**WINDOWS | {"score": "mean"})
    return DualEncoder(backbone, max_length=24, similarity="dot", windows=windows)


@pytest.mark.parametrize("kind", ["cross", "dual", "dual by the mean"])
def test_an_export_gives_back_its_windows_and_says_that_others_read_none(tmp_path, backbone, kind):
    ranker = ranker_with_windows(backbone, kind)
    ranker.save(tmp_path / "saved")
    pairs = [("w1 w2", LONG), ("w3", "w4"), ("w9", LONG[::2])]
    expected = TextRanker(ranker).score(pairs)
    again = ltr.load(tmp_path / "saved")
    assert again.reads.windows == ranker.reads.windows
    assert again.score(pairs) == pytest.approx(expected, abs=1e-5)
    if kind == "dual by the mean":
        return

    exported = export(tmp_path / "saved", tmp_path / "exported")
    assert "windows of 4 tokens, one every 2, and the best of their scores" in exported.note
    assert exported.note in (tmp_path / "exported/README.md").read_text()
    assert ltr.load(tmp_path / "exported").score(pairs) == pytest.approx(expected, abs=1e-5)
    about = tmp_path / "exported/ltr.json"
    assert json.loads(about.read_text())["windows"] == WINDOWS
    about.write_text(json.dumps({"ranker": type(ranker).__name__, "windows": {"length": 3}}))
    with pytest.raises(InputError, match="must hold windows with size, stride and score"):
        ltr.load(tmp_path / "exported")


@pytest.mark.parametrize("kind", ["cross", "dual"])
def test_the_check_says_that_nothing_is_cut_and_how_many_windows_there_are(
    config_of, backbone, capsys, kind
):
    """And forecasts a search over windows."""
    if kind == "dual":
        evaluation = {"candidates": "corpus", "depth": 10}
        config = config_of(dual(backbone, "best"), **{"data.init_args.evaluation": evaluation})
    else:
        config = config_of(cross(backbone, max_length=12))
    capsys.readouterr()
    assert run_ltr(f"check --config {config}") == 0
    page = capsys.readouterr().out
    assert "in windows of 4 tokens, one every 2:" in page
    side = "pair" if kind == "cross" else "document"
    (line,) = [line for line in page.splitlines() if side in line.split()[:1] and "corpus" in line]
    assert line.count("0.0%") == 2


@pytest.mark.parametrize(("windows", "times"), [(None, 1), (WINDOWS, 0)])
def test_a_run_says_once_what_it_cuts(config_of, backbone, windows, times, capfd):
    config = config_of(cross(backbone, windows=windows, max_length=12), **{"trainer.max_steps": 2})
    assert run_ltr(f"fit --config {config}") == 0
    assert capfd.readouterr().out.count("max_length 12 cuts ") == times


@pytest.mark.long
@pytest.mark.usefixtures("programs_begin_warm")
def test_two_processes_train_as_one(config_of, backbone, tmp_path):
    config = config_of(cross(backbone), **{"trainer.max_steps": 4})
    run = tmp_path / "run"
    two_processes("fit", config)
    assert run_ltr(f"fit --config {config} --trainer.default_root_dir {run / 'one'}") == 0
    weights, alone = (
        torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
        for folder in (run, run / "one")
    )
    for name, weight in alone.items():
        if not name.endswith(("key.bias", "head.bias")):  # of these the gradient is 0
            torch.testing.assert_close(weights[name], weight, atol=2e-5, rtol=1e-4, msg=name)
