"""A ranker is loaded as it was trained."""

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import yaml

import ltr
from ltr.__main__ import main
from ltr.errors import InputError
from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.use.rankers import TextRanker
from ltr.use.retriever import Retriever
from tests.use.loaded import texts_of_run


@pytest.mark.parametrize("kind", ["cross", pytest.param("dual", marks=pytest.mark.long)])
def test_a_run_in_half_precision_is_used_in_half_precision(
    tmp_path, kind, collection_folder, copied_run
):
    run = copied_run(tmp_path, kind, "--trainer.precision", "bf16-mixed")
    pairs, expected = texts_of_run(run, collection_folder)
    assert ltr.load(run).precision == "bf16-mixed"
    half = np.abs(ltr.load(run).score(pairs) - expected).max()
    whole = np.abs(ltr.load(run, precision="32-true").score(pairs) - expected).max()
    # Batches of other sizes round otherwise.
    assert half < 1e-3 * np.ptp(expected) or half < whole / 3


def test_a_checkpoint_is_loaded_too(runs, collection_folder):
    pairs, expected = texts_of_run(runs["cross"], collection_folder)
    last = ltr.load(runs["cross"] / "checkpoints/last.ckpt")
    assert last.score(pairs).shape == expected.shape and not last.model.training


@pytest.mark.long
def test_two_threads_load_at_once(runs, collection_folder):
    expected = {kind: texts_of_run(run, collection_folder) for kind, run in runs.items()}
    with ThreadPoolExecutor(4) as threads:
        kinds = [*runs] * 4
        for kind, ranker in zip(kinds, threads.map(ltr.load, map(runs.get, kinds)), strict=True):
            pairs, scores = expected[kind]
            np.testing.assert_allclose(ranker.score(pairs), scores, atol=1e-6)


def test_the_configuration_of_a_run_is_read_and_not_run(runs, collection_folder, here, monkeypatch):
    """Its folder may be that of a stranger: no command that uses the ranker imports what it names."""
    monkeypatch.delitem(sys.modules, "named_by_stranger", raising=False)
    ran = here / "ran"
    run = shutil.copytree(runs["cross"], here / "stranger")
    config = (run / "config.yaml").read_text()
    for named in ("ltr.losses.SoftmaxLoss", "ltr.datamodules.TripletDataModule"):
        assert named in config
        config = config.replace(named, "named_by_stranger.Part")
    (run / "config.yaml").write_text(config)
    (here / "named_by_stranger.py").write_text(f"open({str(ran)!r}, 'w').close()\n")

    pairs, expected = texts_of_run(run, collection_folder)
    np.testing.assert_allclose(ltr.load(run).score(pairs), expected, atol=1e-6)
    assert main(["export", str(run), "exported"]) == 0
    documents = here / "documents.txt"
    documents.write_text("w1\nw2\n")
    assert main(["rank", str(run), "--query", "w1", "--documents", str(documents)]) == 0
    other = shutil.copytree(run, here / "other")
    main(["compare", str(run), str(other)])
    assert not ran.exists()
    # A command that runs a configuration does.
    assert main(["test", str(run)]) == 2
    assert ran.exists()


def test_bad_precision_side_and_source(backbone, tmp_path, runs):
    with pytest.raises(InputError, match="precision must be one of 32-true"):
        TextRanker(PairWiseBertRanker(backbone, max_length=20), "bf16")
    with pytest.raises(InputError, match="side must be query or document"):
        Retriever(DualEncoder(backbone)).encode(["w1"], "doc")
    with pytest.raises(InputError, match="one string"):
        Retriever(DualEncoder(backbone)).encode("w1")
    with pytest.raises(InputError, match="no run, checkpoint or model"):
        ltr.load(tmp_path / "nothing")
    with pytest.raises(InputError, match="no run, checkpoint or model"):
        ltr.load("runs/nothing")
    for device in ("gpu", "cuda:99"):
        with pytest.raises(InputError, match=f"device '{device}' can't be used here: "):
            ltr.load(backbone, device=device)
    with pytest.raises(InputError, match="device must be one that computes, got 'meta'"):
        ltr.load(backbone, device="meta")
    damaged = shutil.copytree(runs["cross"], tmp_path / "damaged")
    options = yaml.safe_load((damaged / "config.yaml").read_text())
    for trainer in (None, [1]):
        (damaged / "config.yaml").write_text(yaml.safe_dump(options | {"trainer": trainer}))
        with pytest.raises(InputError, match=r"config\.yaml: .*, trainer must be an object, got "):
            ltr.load(damaged)
    (tmp_path / "experiment/seed=0").mkdir(parents=True)
    with pytest.raises(InputError, match="holds several runs; name one: .*seed=0"):
        ltr.load(tmp_path / "experiment")


def test_importing_the_package_imports_nothing_else():
    code = "import sys, ltr; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert ltr.load is sys.modules["ltr.use.load"].load
    with pytest.raises(AttributeError, match="no attribute 'lood'"):
        _ = ltr.lood
