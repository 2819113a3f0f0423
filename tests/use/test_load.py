"""A ranker is loaded as it was trained."""

import subprocess
import sys

import numpy as np
import pytest

import ltr
from ltr.errors import InputError
from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.use.rankers import TextRanker
from ltr.use.retriever import Retriever
from tests.use.loaded import texts_of_run
from tests.use.runs import trained_on_texts


@pytest.mark.parametrize("kind", ["cross", "dual"])
def test_a_run_in_half_precision_is_used_in_half_precision(
    tmp_path, kind, collection_folder, backbone
):
    run = trained_on_texts(
        tmp_path, kind, collection_folder, backbone, "--trainer.precision", "bf16-mixed"
    )
    pairs, expected = texts_of_run(run, collection_folder)
    assert ltr.load(run).precision == "bf16-mixed"
    half = np.abs(ltr.load(run).score(pairs) - expected).max()
    whole = np.abs(ltr.load(run, precision="32-true").score(pairs) - expected).max()
    assert (
        half < 1e-3 * np.ptp(expected) or half < whole / 3
    )  # batches of other sizes round otherwise


def test_a_checkpoint_is_loaded_too(runs, collection_folder):
    pairs, expected = texts_of_run(runs["cross"], collection_folder)
    last = ltr.load(runs["cross"] / "checkpoints/last.ckpt")
    assert last.score(pairs).shape == expected.shape and not last.model.training


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
    (tmp_path / "experiment/seed=0").mkdir(parents=True)
    with pytest.raises(InputError, match="holds several runs; name one: .*seed=0"):
        ltr.load(tmp_path / "experiment")


def test_importing_the_package_imports_nothing_else():
    code = "import sys, ltr; assert 'torch' not in sys.modules; ltr.load; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'lood'"):
        _ = ltr.lood
