"""A temperature that is fixed or learnt: in rankers, their checkpoints, and what is saved of them."""

import copy
import math

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from sentence_transformers import CrossEncoder

from ltr.batch import RankingBatch
from ltr.datamodules import FeatureDataModule
from ltr.errors import InputError
from ltr.losses import RankNetLoss
from ltr.models import DecoderRanker, DualEncoder, FeatureRanker, PairWiseBertRanker
from ltr.use.rankers import TextRanker
from tests.world.backbones import make_classifier
from tests.world.decoders import save_decoder
from tests.world.rankers import data_for, feature_ranker, trainer

PAIRS = [("w1 w2", "w3 w4"), ("w1 w2", "w5 w6 w7"), ("w7", "w8 w9 w10 w1 w1")]


def feature_batch(features: torch.Tensor, mask: torch.Tensor | None = None) -> RankingBatch:
    """Without a mask nothing is padding."""
    mask = torch.ones(features.shape[:2], dtype=torch.bool) if mask is None else mask
    rows = torch.zeros(len(mask), dtype=torch.long)
    return RankingBatch(torch.zeros(mask.shape), mask, rows, rows, features=features)


TWO = feature_batch(torch.tensor([[[2.0]]]))


def linear_ranker(weight: float, temperature: float, learn: bool) -> FeatureRanker:
    """Scores one feature times a weight, over the temperature."""
    ranker = FeatureRanker(1, "linear", temperature=temperature, learn_temperature=learn)
    with torch.no_grad():
        ranker.head.weight.fill_(weight)
        ranker.head.bias.zero_()
    return ranker


def test_value_by_hand():
    """3 · 2 / 0.5 = 12, and its derivative by the logarithm of the temperature is −12."""
    for learn in (False, True):
        ranker = linear_ranker(3.0, 0.5, learn)
        score = ranker(TWO)
        assert score.item() == pytest.approx(12.0)
    score.sum().backward()
    assert ranker.log_temperature.grad.item() == pytest.approx(-12.0)


def test_the_gradient_of_a_learnt_temperature_is_that_of_the_formula():
    """1,000 random lists under RankNet. With d_ij = (s_i - s_j) / τ the cost log(1 + exp(-d)) has the
    derivative d / (1 + exp(d)) by log τ: a mean over the pairs of each list, then over lists.
    """
    rng = np.random.default_rng(0)
    temperature = 0.7
    scores = rng.normal(0, 2, (1000, 5))
    labels = rng.integers(0, 3, (1000, 5)).astype(float)
    mask = rng.random((1000, 5)) < 0.8
    by_list = []
    for row_scores, row_labels, row_mask in zip(scores, labels, mask, strict=True):
        terms = []
        for i in np.flatnonzero(row_mask):
            for j in np.flatnonzero(row_mask):
                if row_labels[i] > row_labels[j]:
                    gap = (row_scores[i] - row_scores[j]) / temperature
                    terms.append(gap / (1 + math.exp(gap)))
        if terms:
            by_list.append(np.mean(terms))
    ranker = linear_ranker(1.0, temperature, learn=True)
    features = torch.tensor(scores, dtype=torch.float32).unsqueeze(2)
    ours = ranker(feature_batch(features, torch.tensor(mask)))
    RankNetLoss()(ours, torch.tensor(labels), torch.tensor(mask)).backward()
    assert ranker.log_temperature.grad.item() == pytest.approx(np.mean(by_list), rel=1e-5)


def test_it_stays_at_its_bound_and_a_gradient_leads_back():
    ranker = linear_ranker(1.0, 0.5, learn=True)
    with torch.no_grad():
        ranker.log_temperature.fill_(math.log(0.001))
    assert ranker.eval()(TWO).item() == pytest.approx(200.0, rel=1e-5)
    ranker.train()(TWO).sum().backward()
    assert ranker.log_temperature.item() == pytest.approx(math.log(0.01))
    assert ranker.log_temperature.grad.item() != 0


@pytest.mark.parametrize(
    ("value", "learn", "message"),
    [
        (0.0, False, "temperature must be finite and above 0, got 0.0"),
        (math.inf, False, "temperature must be finite and above 0, got inf"),
        (math.inf, True, "temperature must be finite and above 0, got inf"),
        (0.001, True, "temperature must be at least 0.01 where it is learnt, got 0.001"),
    ],
)
def test_what_is_no_temperature_is_refused(value, learn, message, backbone):
    options = {"temperature": value, "learn_temperature": learn}
    with pytest.raises(InputError, match=message):
        FeatureRanker(2, **options)
    for kind in (PairWiseBertRanker, DualEncoder):
        with pytest.raises(InputError, match=message):
            kind(backbone, max_length=24, **options)


def test_it_decides_the_key():
    keys = [linear_ranker(1.0, temperature, False).key for temperature in (1.0, 0.5)]
    assert keys[0] != keys[1]


@pytest.mark.parametrize("learn", [False, True])
def test_that_of_a_dual_encoder_is_a_number_in_its_key(learn, backbone):
    """Which is made outside training, too, where a warning would be an error here."""
    ranker = DualEncoder(backbone, max_length=24, temperature=0.25, learn_temperature=learn)
    assert ranker.key[-1] == pytest.approx(0.25) and type(ranker.key[-1]) is float


@pytest.mark.parametrize("kind", ["encoder", "classifier", "decoder"])
@pytest.mark.parametrize("learn", [False, True])
def test_a_saved_folder_scores_on_the_same_scale(kind, learn, backbone, tmp_path):
    """By this package, and by sentence-transformers; and the ranker stays what it was."""
    options = {"temperature": 0.25, "learn_temperature": learn}
    if kind == "decoder":
        ranker = DecoderRanker(save_decoder(tmp_path / "decoder"), max_length=300, **options)
    else:
        name = backbone if kind == "encoder" else make_classifier(tmp_path / "classifier")
        ranker = PairWiseBertRanker(name, max_length=24, **options)
    if learn:
        with torch.no_grad():
            ranker.log_temperature.add_(0.3)

    def scores_of(ranker):
        return TextRanker(ranker.eval(), "32-true").score(PAIRS)

    scores = scores_of(ranker)
    plain = copy.deepcopy(ranker)
    plain.log_temperature = None
    plain._temperature = 1.0
    factor = 0.25 * (math.exp(0.3) if learn else 1.0)
    np.testing.assert_allclose(scores_of(plain), scores * factor, rtol=1e-5, atol=1e-7)
    before = {name: value.clone() for name, value in ranker.state_dict().items()}
    ranker.save(tmp_path / "saved")
    after = ranker.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    np.testing.assert_array_equal(scores_of(ranker), scores)
    reloaded = type(ranker)(str(tmp_path / "saved"), max_length=ranker.reads.max_length)
    assert reloaded.temperature == 1.0
    np.testing.assert_allclose(scores_of(reloaded), scores, rtol=1e-4, atol=1e-6)
    if kind != "decoder":
        theirs = CrossEncoder(str(tmp_path / "saved"), device="cpu").predict(PAIRS)
        np.testing.assert_allclose(theirs, scores, rtol=1e-4, atol=1e-6)


def learning(path, folder, **options):
    """A run of a learnt temperature over the tiny LETOR world, its module, and its log."""
    torch.manual_seed(0)
    module = feature_ranker(5, RankNetLoss(), "linear", learn_temperature=True, lr=1e-5)
    data = data_for(module, FeatureDataModule, folder, batch_size=4)
    run = trainer(path, **options)
    return run, module, data


def test_it_is_trained_at_its_own_rate_told_and_in_the_checkpoint(tmp_path, letor_folder, caplog):
    """At lr 1e-5 Adam moves it by about 1e-3 a step, the floor of a number's rate."""
    keep = ModelCheckpoint(dirpath=tmp_path, filename="last")
    run, module, data = learning(tmp_path, letor_folder, max_steps=5)
    run.callbacks.append(keep)
    with caplog.at_level("INFO"):
        run.fit(module, data)
    moved = abs(module.ranker.log_temperature.item())
    assert 1e-3 < moved <= 5.1e-3
    assert "the temperature is learnt, from 1 on, with a peak rate of 0.001" in caplog.messages
    value = module.ranker.temperature.item()
    assert f"the temperature ends at {value:.4g}" in caplog.messages
    assert run.callback_metrics["train/temperature"].item() == pytest.approx(value, abs=2e-3)
    run.save_checkpoint(tmp_path / "end.ckpt")
    state = torch.load(tmp_path / "end.ckpt", weights_only=True)["state_dict"]
    assert state["ranker.log_temperature"] == module.ranker.log_temperature


def test_a_run_that_resumes_learns_the_same_temperature(tmp_path, letor_folder):
    """From the end of the first epoch: equal to the bit."""
    keep = ModelCheckpoint(dirpath=tmp_path, filename="{epoch}", save_top_k=-1)
    whole, module, data = learning(tmp_path, letor_folder, max_epochs=2)
    whole.callbacks.append(keep)
    whole.fit(module, data)
    second, resumed, data = learning(tmp_path, letor_folder, max_epochs=2)
    second.fit(resumed, data, ckpt_path=tmp_path / "epoch=0.ckpt")
    assert resumed.ranker.log_temperature.item() != 0
    for name, value in module.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
