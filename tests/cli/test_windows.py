"""Windows of long documents from the command line: a run, what it is, what is made of it, and bad
options.
"""

import json

import numpy as np
import pytest
import torch
import yaml

import ltr
from ltr.__main__ import main
from ltr.data.trec import read_run
from ltr.data.windows import Windows
from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.run.identity import identity_of
from ltr.search.encoding import Encoding
from ltr.use.export import export
from ltr.use.rankers import TextRanker
from tests.test_ranks import two_processes
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


def test_a_run_reads_windows_in_training_and_in_use(tmp_path, backbone, collection_folder):
    """Its scores in use are those that ``ltr test`` wrote, and not those of documents that are cut."""
    config = write_config(
        tmp_path, backbone, collection_folder, **{"model.ranker": cross(backbone)}
    )
    assert main(["fit", "--config", str(config)]) == 0
    run = tmp_path / "run"
    assert main(["test", str(run)]) == 0
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


def test_a_resume_under_other_windows_is_refused(tmp_path, backbone, collection_folder, capfd):
    config = write_config(
        tmp_path,
        backbone,
        collection_folder,
        **{"model.ranker": cross(backbone), "trainer.max_steps": 3},
    )
    assert main(["fit", "--config", str(config)]) == 0
    capfd.readouterr()
    resumed = ["fit", str(tmp_path / "run"), "--trainer.max_steps", "5"]
    assert main([*resumed, "--model.ranker.windows.stride", "3"]) == 2
    assert "model.ranker.windows.stride was 2 and is 3" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["windows.stride", "5"], "windows.stride must be from 1 to windows.size 4, got 5"),
        (["windows.size", "0"], "windows.size must be at least 1, got 0"),
        (["windows.size", "30"], "windows.size must be at most 20"),
        (["windows.score", "max"], "max"),
    ],
)
def test_bad_windows_are_one_line(tmp_path, backbone, collection_folder, options, message, capfd):
    config = write_config(
        tmp_path, backbone, collection_folder, **{"model.ranker": cross(backbone)}
    )
    name, value = options
    capfd.readouterr()
    assert main(["fit", "--config", str(config), f"--model.ranker.{name}", value]) == 2
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("ltr: ")]
    assert message in line and "model.ranker.windows" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("score", ["best", "mean"])
def test_a_dual_encoder_searches_the_corpus_by_windows(
    tmp_path, backbone, collection_folder, score
):
    """Validation, ``ltr test`` and ``ltr search`` find the same."""
    config = write_config(
        tmp_path,
        backbone,
        collection_folder,
        **{
            "model.ranker": dual(backbone, score),
            "trainer.max_steps": 3,
            "data.init_args.evaluation": {"candidates": "corpus", "depth": 10},
        },
    )
    assert main(["fit", "--config", str(config)]) == 0
    run = tmp_path / "run"
    assert main(["test", str(run)]) == 0
    assert metrics(run)["test"]["queries"] == 30
    queries = (collection_folder / "queries.jsonl").read_text().splitlines(keepends=True)
    wanted = tmp_path / "queries.jsonl"
    wanted.write_text("".join(line for line in queries if '"test-' in line))
    found = tmp_path / "found.trec"
    words = ["--corpus", str(collection_folder), "--queries", str(wanted), "--output", str(found)]
    assert main(["search", str(run), *words, "--k", "10"]) == 0
    ours, theirs = (
        sorted(line for _, line in read_run(path)) for path in (found, run / "test.run")
    )
    assert len(ours) == 300 and [one[:2] for one in ours] == [one[:2] for one in theirs]


def test_negatives_are_mined_and_a_corpus_is_encoded_by_the_mean_embedding(
    tmp_path, backbone, collection_folder
):
    """And documents are anchors. The embeddings in the folder are those of ``encode``."""
    config = write_config(
        tmp_path,
        backbone,
        collection_folder,
        **{
            "model.ranker": dual(backbone, "mean"),
            "model.in_batch": {"class_path": "ltr.in_batch.AllTexts"},
            "data.init_args.negatives": "mined",
            "trainer.max_steps": 3,
            "trainer.callbacks": [
                {
                    "class_path": "ltr.callbacks.HardNegativeMining",
                    "init_args": {"recipe": {"depth": 20, "n": 6, "relative": None}},
                }
            ],
        },
    )
    assert main(["fit", "--config", str(config)]) == 0
    run = tmp_path / "run"
    manifests = [*(run / "negatives").glob("*/manifest.json")]
    assert manifests and json.loads(manifests[0].read_text())["counts"]["chosen"] > 0
    folder = tmp_path / "encoding"
    words = ["--corpus", str(collection_folder), "--numbers", "float32", "--output", str(folder)]
    assert main(["encode", str(run), *words]) == 0
    texts = [
        json.loads(line)["text"]
        for line in (collection_folder / "corpus.jsonl").read_text().splitlines()[:1]
    ]
    encoding = Encoding.open(folder)
    expected = ltr.load(run).encode(texts)[0]
    distances = np.linalg.norm(encoding.embeddings()[:] - expected, axis=1)
    assert distances.min() < 1e-4


def test_mining_by_the_best_window_is_refused_before_training(
    tmp_path, backbone, collection_folder, capfd
):
    config = write_config(
        tmp_path,
        backbone,
        collection_folder,
        **{
            "model.ranker": dual(backbone, "best"),
            "data.init_args.negatives": "mined",
            "trainer.callbacks": [
                {"class_path": "ltr.callbacks.HardNegativeMining", "init_args": {}}
            ],
        },
    )
    assert main(["fit", "--config", str(config)]) == 2
    assert "HardNegativeMining needs one embedding of each document" in capfd.readouterr().err


def test_an_export_by_the_mean_of_windows_is_loaded_again(tmp_path, backbone):
    windows = Windows(**WINDOWS | {"score": "mean"})
    ranker = DualEncoder(backbone, max_length=24, similarity="dot", windows=windows)
    ranker.save(tmp_path / "saved")
    pairs = [("w1 w2", LONG), ("w3", "w4")]
    again = ltr.load(tmp_path / "saved")
    assert again.reads.windows == windows
    assert again.score(pairs) == pytest.approx(TextRanker(ranker).score(pairs), abs=1e-5)


@pytest.mark.parametrize("kind", ["cross", "dual"])
def test_an_export_gives_back_its_windows_and_says_that_others_read_none(tmp_path, backbone, kind):
    torch.manual_seed(1)
    if kind == "cross":
        ranker = PairWiseBertRanker(backbone, 24, windows=Windows(**WINDOWS))
        torch.nn.init.normal_(ranker.head.weight)
    else:
        ranker = DualEncoder(backbone, max_length=24, windows=Windows(**WINDOWS))
    ranker.save(tmp_path / "saved")
    pairs = [("w1 w2", LONG), ("w3", "w4"), ("w9", LONG[::2])]
    expected = TextRanker(ranker).score(pairs)
    again = ltr.load(tmp_path / "saved")
    assert again.reads.windows == Windows(**WINDOWS)
    assert again.score(pairs) == pytest.approx(expected, abs=1e-5)

    exported = export(tmp_path / "saved", tmp_path / "exported")
    assert "windows of 4 tokens, one every 2, and the best of their scores" in exported.note
    assert exported.note in (tmp_path / "exported/README.md").read_text()
    assert ltr.load(tmp_path / "exported").score(pairs) == pytest.approx(expected, abs=1e-5)
    assert json.loads((tmp_path / "exported/ltr.json").read_text())["windows"] == WINDOWS
    (tmp_path / "exported/ltr.json").write_text(
        json.dumps({"ranker": type(ranker).__name__, "windows": {"length": 3}})
    )
    with pytest.raises(
        ltr.errors.InputError, match="must hold windows with size, stride and score"
    ):
        ltr.load(tmp_path / "exported")


@pytest.mark.parametrize("kind", ["cross", "dual"])
def test_the_check_says_that_nothing_is_cut_and_how_many_windows_there_are(
    tmp_path, backbone, collection_folder, capsys, kind
):
    """And forecasts a search over windows."""
    options = {"model.ranker": cross(backbone, max_length=12)}
    if kind == "dual":
        evaluation = {"candidates": "corpus", "depth": 10}
        options = {"model.ranker": dual(backbone, "best"), "data.init_args.evaluation": evaluation}
    config = write_config(tmp_path, backbone, collection_folder, **options)
    capsys.readouterr()
    assert main(["check", "--config", str(config)]) == 0
    page = capsys.readouterr().out
    assert "in windows of 4 tokens, one every 2:" in page
    side = "pair" if kind == "cross" else "document"
    (line,) = [line for line in page.splitlines() if side in line.split()[:1] and "corpus" in line]
    assert line.count("0.0%") == 2


def test_a_run_says_once_what_it_cuts(tmp_path, backbone, collection_folder, capfd):
    options = {"trainer.max_steps": 2}
    for name, ranker in (("cut", cross(backbone, windows=None, max_length=12)), ("windows", None)):
        (tmp_path / name).mkdir()
        ranker = ranker or cross(backbone, max_length=12)
        config = write_config(
            tmp_path / name, backbone, collection_folder, **options, **{"model.ranker": ranker}
        )
        capfd.readouterr()
        assert main(["fit", "--config", str(config)]) == 0
        assert capfd.readouterr().out.count("max_length 12 cuts ") == (name == "cut")


@pytest.mark.usefixtures("programs_begin_warm")
@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path, backbone, collection_folder):
    config = write_config(
        tmp_path,
        backbone,
        collection_folder,
        **{"model.ranker": cross(backbone), "trainer.max_steps": 4},
    )
    run = tmp_path / "run"
    two_processes("fit", config)
    one = ["--trainer.default_root_dir", str(run / "one")]
    assert main(["fit", "--config", str(config), *one]) == 0
    weights, alone = (
        torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
        for folder in (run, run / "one")
    )
    for name, weight in alone.items():
        if not name.endswith(("key.bias", "head.bias")):  # of these the gradient is 0
            torch.testing.assert_close(weights[name], weight, atol=2e-5, rtol=1e-4, msg=name)
