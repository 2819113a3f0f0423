"""Runs that collapse, die or blow up are noticed, and healthy ones left in peace."""

import logging
import math
import os
import socket

import pytest
import torch
from lightning.pytorch.demos.boring_classes import BoringModel
from torch import nn
from torch.utils.data import DataLoader

from ltr.batch import RankingBatch, ScoredLists
from ltr.callbacks import Health
from ltr.datamodules import RankingDataModule
from ltr.errors import InputError
from ltr.losses import (
    AdaptiveMarginRankingLoss,
    AdaptiveRankNetLoss,
    BatchHardTripletLoss,
    KLDivergenceLoss,
    LambdaRankLoss,
    Loss,
    MarginRankingLoss,
    RankNetLoss,
    WeightedSum,
)
from ltr.models import DualEncoder, PairWiseBertRanker, Ranker
from ltr.module import LastStep, RankerModule
from ltr.similarity import euclidean
from tests.child_processes import run_ranks
from tests.world.rankers import trainer

LABELS = [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]


def batches(n, scores=None, labels=None, mask=None):
    """n batches of two lists of three documents with one feature."""
    labels = torch.tensor(LABELS if labels is None else labels)
    mask = torch.ones_like(labels, dtype=torch.bool) if mask is None else torch.tensor(mask)
    features = labels.clone() if scores is None else torch.tensor(scores)
    rows = [torch.tensor([2 * i, 2 * i + 1]) for i in range(n)]
    return [
        RankingBatch(
            labels, mask, r, torch.zeros_like(mask, dtype=torch.int64), features=features[..., None]
        )
        for r in rows
    ]


class Linear(Ranker):
    """score = weight · feature."""

    gives_embeddings = False

    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))

    def forward(self, batch):
        return self.weight * batch.features.squeeze(-1)


class Toy(RankerModule):
    """``margin`` is what a policy would give, ``embeddings`` what a ranker would."""

    def __init__(self, loss, margin=None, weight=1.0, embeddings=None, lr=0.1, nan_at=None):
        super().__init__(Linear(weight), loss, lr=lr)
        self.margin_given = margin
        self.embeddings = embeddings
        self.nan_at = nan_at

    def training_step(self, batch, batch_idx):
        scores = self.ranker(batch)
        loss = self.loss(scores, batch.labels, batch.mask, self.margin_given)
        if self.global_step == self.nan_at:
            loss = loss * math.nan
        lists = ScoredLists(scores.detach(), batch.labels, batch.mask, embeddings=self.embeddings)
        self.last_step = LastStep(lists, self.margin_given, loss.detach())
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)

    def on_train_end(self):
        """Not the error that ends a run with such weights: here they are lost on purpose."""


class Named(RankingDataModule):
    def __init__(self, data):
        super().__init__("nowhere")
        self.data = data

    def train_dataloader(self):
        return DataLoader(self.data, batch_size=None)

    def val_dataloader(self):
        return []

    def setup(self, stage):
        """It brings its batches."""

    def state_dict(self):
        return {}

    def eval_batches(self, split):
        return None

    def names(self, split):
        assert split == "train"
        return [f"q{i}" for i in range(100)], []


@pytest.fixture
def fit(tmp_path, caplog):
    """A run over the batches under Health; (trainer, warnings)."""

    def run(module, data, health=None, **options):
        one = trainer(
            tmp_path, max_epochs=1, callbacks=[health or Health(every_n_steps=1)], **options
        )
        with caplog.at_level(logging.WARNING, logger="ltr"):
            if isinstance(data, RankingDataModule):
                one.fit(module, data)
            else:
                one.fit(module, DataLoader(data, batch_size=None))
        return one, [r.getMessage() for r in caplog.records if r.name == "ltr.callbacks.health"]

    return run


# Numbers

SCORES = [[0.9, 0.6, 0.95, 0.0], [0.5, 0.1, 0.2, 7.0]]
GRADES = [[2.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 9.0]]
MASK = [[True] * 4, [True, True, True, False]]
# Gaps s_i - s_j of the pairs with y_i > y_j. Row 1: 2 > 1: 0.3; 2 > 0: -0.05 and 0.9; 1 > 0: -0.35
# and 0.6. Row 2: -0.4, -0.1.
ACTIVE = {
    "without a margin, below 0: 4 of 7": (RankNetLoss(), None, 4 / 7),
    "the loss's own 0.5: 0.9 and 0.6 are not below": (MarginRankingLoss(margin=0.5), None, 5 / 7),
    "the batch's 0.35 goes before the loss's": (
        MarginRankingLoss(margin=5.0),
        torch.full((2, 4), 0.35),
        5 / 7,
    ),
    "twice the batch's 0.4": (AdaptiveMarginRankingLoss(k=2.0), torch.full((2, 4), 0.4), 6 / 7),
    # 1 where the last column is the less relevant one, with 0.9 and 0.6; 0 for the others.
    "a margin per document": (
        MarginRankingLoss(),
        torch.tensor([[0.0, 0.0, 0.0, 1.0]]).expand(2, 4),
        6 / 7,
    ),
    "a smooth hinge has none": (BatchHardTripletLoss(soft=True), None, 4 / 7),
    "but takes the batch's 0.35": (
        BatchHardTripletLoss(soft=True),
        torch.full((2, 4), 0.35),
        5 / 7,
    ),
    "a shift of 0.5 times the batch's 0.7": (
        AdaptiveRankNetLoss(k=0.5),
        torch.full((2, 4), 0.7),
        5 / 7,
    ),
    "a scale asks for no gap": (
        AdaptiveRankNetLoss(k=0.5, mode="scale"),
        torch.full((2, 4), 0.7),
        4 / 7,
    ),
    "LambdaRank's own 0.35": (LambdaRankLoss(margin=0.35), None, 5 / 7),
    "a teacher's gaps are no margin": (KLDivergenceLoss(), None, 4 / 7),
    "the larger of a sum's margins, of those that weigh": (
        WeightedSum(
            [RankNetLoss(), *map(MarginRankingLoss, (0.35, 0.7, 9.0))], [1.0, 1.0, 1.0, 0.0]
        ),
        None,
        6 / 7,
    ),
    "a sum without margins": (WeightedSum([RankNetLoss(), KLDivergenceLoss()]), None, 4 / 7),
    # 0.4 for the first three columns, and 2 for the last one's gaps of 0.9 and 0.6.
    "a sum of a number and one per document": (
        WeightedSum([LambdaRankLoss(margin=0.1), AdaptiveMarginRankingLoss(k=2.0)]),
        torch.tensor([[0.2, 0.2, 0.2, 1.0]]).expand(2, 4),
        7 / 7,
    ),
}


@pytest.mark.parametrize("case", ACTIVE)
def test_numbers_by_hand(fit, case):
    """All rows share four texts, at (3, 0), (-3, 0) and twice (0, 3), of length 3; their centre is
    (0, 1.5).

    Squares of their distances to it: 11.25, 11.25, 2.25 and 2.25, on average 6.75.
    Relevant: 0.9, 0.6 and 0.1; not: 0.95, 0, 0.5 and 0.2.
    """
    loss, margin, active = ACTIVE[case]
    texts = torch.tensor([[[3.0, 0.0], [-3.0, 0.0], [0.0, 3.0], [0.0, 3.0]]])
    run, said = fit(Toy(loss, margin, embeddings=texts), batches(1, SCORES, GRADES, MASK))
    found = {name: value.item() for name, value in run.callback_metrics.items()}
    expected = {
        "active": active,
        "positive_score": 1.6 / 3,
        "negative_score": 1.65 / 4,
        "spread": math.sqrt(6.75) / 3,
    }
    assert {name: found[f"health/{name}"] for name in expected} == pytest.approx(expected)
    assert not said


def test_the_gradient_norm_is_taken_before_clipping(fit):
    """Hinge of margin 9 over (feature) gaps 1, 1, 1 and 1: d loss / d weight = -1; accumulated over
    two batches, and clipped.
    """
    module = Toy(MarginRankingLoss(margin=9.0), lr=1.0)
    options = {"gradient_clip_val": 0.25, "accumulate_grad_batches": 2}
    run, _ = fit(module, batches(2), **options)
    assert run.callback_metrics["health/gradient_norm"].item() == pytest.approx(1.0)
    assert module.ranker.weight.item() == pytest.approx(1.25)


def test_what_a_batch_has_not_is_not_logged(fit):
    run, said = fit(Toy(MarginRankingLoss()), batches(1, labels=[[0.0, 0.0]], scores=[[1.0, 2.0]]))
    assert (
        set(run.callback_metrics) == {"health/negative_score", "health/gradient_norm"} and not said
    )


def test_it_looks_every_n_optimiser_steps(fit, monkeypatch):
    seen = []
    look = Health._check_batch
    monkeypatch.setattr(
        Health, "_check_batch", lambda self, *args: seen.append(self._step) or look(self, *args)
    )
    fit(
        Toy(MarginRankingLoss(margin=9.0)),
        batches(14),
        Health(every_n_steps=3),
        accumulate_grad_batches=2,
    )
    assert seen == [2, 5]  # of steps 0 to 6


# Trouble


class Siamese(Toy):
    """All texts of a batch against each other, under batch hard. The first weight falls to 0 and
    takes all embeddings with it.
    """

    def training_step(self, batch, batch_idx):
        texts = self.ranker.weight * batch.features[0]
        groups = batch.labels[0]
        labels = (groups[:, None] == groups).float()
        mask = ~torch.eye(len(groups), dtype=torch.bool)
        scores = euclidean(texts, texts)
        loss = self.loss(scores, labels, mask)
        lists = ScoredLists(scores.detach(), labels, mask, embeddings=texts.detach()[None])
        self.last_step = LastStep(lists, None, loss.detach())
        return loss


def siamese_batches(n):
    """Two groups of two texts that lie across: the hardest positive is always further than the
    hardest negative.
    """
    texts = torch.tensor([[0.0], [2.0], [1.0], [3.0]])
    groups = torch.tensor([[0.0, 0.0, 1.0, 1.0]])
    rows = torch.tensor([0])
    docs = torch.zeros(1, 4, dtype=torch.int64)
    return [RankingBatch(groups, groups >= 0, rows, docs, features=texts[None]) for _ in range(n)]


def test_a_collapse_under_batch_hard_is_told_once_with_its_margin(fit):
    """d loss / d weight is 1: with lr 0.25 the fifth step (4) sees weight 0: every distance 0, and
    loss = margin.
    """
    module = Siamese(BatchHardTripletLoss(margin=0.2), lr=0.25)
    run, said = fit(module, siamese_batches(20))
    assert module.ranker.weight.item() == 0.0 and len(said) == 1
    assert said[0].startswith(
        "step 4: the model has collapsed: all scores of each list are equal "
        "(loss 0.2, mean margin 0.2, spread of the embeddings 0)"
    )
    assert run.global_step == 20


def test_stop_ends_the_run_at_the_collapse(fit):
    run, said = fit(
        Siamese(BatchHardTripletLoss(margin=0.2), lr=0.25),
        siamese_batches(20),
        Health(every_n_steps=1, stop=True),
    )
    assert run.global_step == 5 and len(said) == 1


@pytest.mark.parametrize(("width", "collapsed"), [(0.019, True), (0.021, False)])
def test_embeddings_that_are_nearly_equal_are_a_collapse(fit, width, collapsed):
    """Three texts at (1, width/2) and three at (1, -width/2): spread is width / 2, and the bound
    0.01.
    """
    texts = torch.tensor([[1.0, width / 2], [1.0, -width / 2]])[
        torch.tensor([[0, 1, 0], [1, 0, 1]])
    ]
    _, said = fit(Toy(MarginRankingLoss(margin=9.0), embeddings=texts), batches(3))
    assert len(said) == collapsed
    assert not said or "the embeddings are closer than 0.01 of their length" in said[0]


def test_equal_scores_are_a_collapse_if_they_are_so_in_every_list(fit):
    """As of a cross-encoder, which gives no embeddings; lists may differ from each other."""
    data = batches(1, [[5.0, 5.0, 5.0], [2.0, 2.0, 3.0]]) + batches(
        1, [[5.0, 5.0, 5.0], [2.0, 2.0, 2.0]]
    )
    _, said = fit(Toy(RankNetLoss()), data)
    assert len(said) == 1 and said[0].startswith(
        "step 1: the model has collapsed: all scores of each list are equal (loss 0.6931)"
    )


def test_equal_scores_without_anything_to_order_are_no_collapse(fit):
    run, said = fit(Toy(RankNetLoss()), batches(3, labels=[[1.0, 1.0]], scores=[[2.0, 2.0]]))
    assert run.callback_metrics["health/positive_score"] == 2.0 and not said


def test_a_dead_hinge_is_told_when_its_patience_ends(fit):
    """Margin 0 and a solved order: the loss is 0 from the start. Alone it doesn't stop the run, nor
    does it one step earlier.
    """
    module = Toy(MarginRankingLoss(margin=0.0))
    assert fit(module, batches(6), Health(patience=7))[1] == []
    run, said = fit(module, batches(9), Health(patience=7))
    assert len(said) == 1 and run.global_step == 9
    assert said[0].startswith(
        "step 6: for 7 steps the loss or its gradient was exactly 0 (now 0.0 and 0.0)"
    )


def test_a_loss_without_a_gradient_is_dead(fit):
    """The loss is 1 + 0 · scores."""

    class Flat(Loss):
        def forward(self, scores, labels, mask=None, margin=None):
            return 1.0 + 0.0 * scores.sum()

    _, said = fit(Toy(Flat()), batches(3), Health(patience=2))
    assert (
        len(said) == 1
        and "for 2 steps the loss or its gradient was exactly 0 (now 1.0 and 0.0)" in said[0]
    )


def test_batches_whose_gradients_are_added_up_make_one_step_of_the_patience(fit):
    """Of each two batches the first has a norm of None, and a loss that is not 0."""

    class Flat(Loss):
        def forward(self, scores, labels, mask=None, margin=None):
            return 1.0 + 0.0 * scores.sum()

    health = Health(patience=3)
    assert fit(Toy(Flat()), batches(5), health, accumulate_grad_batches=2)[1] != []
    zero = Toy(MarginRankingLoss(margin=0.0))
    assert len(fit(zero, batches(4), health, accumulate_grad_batches=2)[1]) == 1, "2 steps"


def test_a_step_is_alive_where_one_of_its_batches_has_a_loss(fit):
    """The loss of every second batch, the last of its step, is 0."""
    data = [batches(1, None if i % 2 else [[0.0, 1.0, 1.0]] * 2)[0] for i in range(8)]
    module = Toy(MarginRankingLoss(margin=0.0), lr=0.0)
    assert fit(module, data, Health(patience=2), accumulate_grad_batches=2)[1] == []


def test_steps_that_learn_interrupt_the_patience(fit):
    """Every third batch is in the wrong order."""
    data = [batches(1, [[0.0, 1.0, 1.0]] * 2 if i % 3 == 2 else None)[0] for i in range(12)]
    assert fit(Toy(MarginRankingLoss(margin=0.0), lr=0.0), data, Health(patience=3))[1] == []


@pytest.mark.parametrize("named", [True, False])
def test_nan_names_its_step_and_its_queries(fit, named):
    """Step 3 has rows 6 and 7; every step after it is NaN too, and not told again. n is 50: a CPU
    is looked at every step.
    """
    data = Named(batches(6)) if named else batches(6)
    run, said = fit(Toy(MarginRankingLoss(margin=9.0), nan_at=3), data, Health())
    told = "queries q6, q7" if named else "query rows 6, 7"
    assert len(said) == 1 and run.global_step == 6
    assert said[0].startswith(
        f"step 3: the loss is nan, the gradient's norm nan; the batch has {told}. The weights are lost"
    )
    assert said[0].endswith("all scores are numbers, so a lower learning rate is no help")


def test_nan_of_the_scores_is_no_fault_of_the_loss(fit):
    _, said = fit(Toy(MarginRankingLoss(margin=9.0), weight=math.nan), batches(2), Health())
    assert said[0].startswith("step 0: the loss is nan")
    assert "with a lower learning rate, clipped gradients" in said[0]


def test_an_infinite_gradient_of_a_finite_loss_is_told(fit):
    class Steep(Toy):
        def on_after_backward(self):
            self.ranker.weight.grad.fill_(math.inf)

    _, said = fit(Steep(MarginRankingLoss(margin=9.0)), batches(1))
    assert len(said) == 1 and said[0].startswith(
        "step 0: the loss is 8.0, the gradient's norm inf; the batch has query rows 0, 1."
    )


def test_stop_ends_a_run_with_nan_at_once(fit):
    run, _ = fit(Toy(MarginRankingLoss(margin=9.0), nan_at=3), batches(9), Health(stop=True))
    assert run.global_step == 4


def test_away_from_the_cpu_steps_are_read_together_and_still_told_apart(fit, monkeypatch):
    """As on a GPU: nothing is read but at every fifth step, and NaN in step 3 is told then, with
    the queries of step 3.
    """
    read = []
    look_back = Health._check_steps
    monkeypatch.setattr(
        Health,
        "_check_steps",
        lambda self, *args: read.append(self._step) or look_back(self, *args),
    )
    monkeypatch.setattr("ltr.callbacks.health.reading_is_free", lambda loss: False)
    _, said = fit(
        Toy(MarginRankingLoss(margin=9.0), nan_at=3), batches(12), Health(every_n_steps=5)
    )
    assert read == [4, 9, 11], "and at the end"
    assert len(said) == 1 and said[0].startswith(
        "step 3: the loss is nan, the gradient's norm nan; the batch has query rows 6, 7."
    )


def test_away_from_the_cpu_the_last_steps_are_read_at_the_end(fit, monkeypatch):
    monkeypatch.setattr("ltr.callbacks.health.reading_is_free", lambda loss: False)
    _, said = fit(Toy(MarginRankingLoss(margin=9.0), nan_at=3), batches(5), Health())
    assert len(said) == 1 and said[0].startswith("step 3: the loss is nan")


def test_healthy_training_is_left_in_peace(fit):
    """Scores begin in the wrong order and end in the right one, with their margin."""
    texts = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(0))
    module = Toy(RankNetLoss(), weight=-1.0, embeddings=texts)
    run, said = fit(module, batches(200), Health(every_n_steps=10, stop=True))
    assert not said and run.global_step == 200
    assert run.callback_metrics["health/active"] == 0 and module.ranker.weight > 1


# Before the first step

# One tie, and three.
HALVES = [
    [1.5, 1.5, 0.25, -2.0, 4.0, 5.0, 6.0, 7.0],
    [3.0, 0.75, 0.75, 0.75, 4.0, 5.0, 6.0, 7.0],
]
FIRST_RELEVANT = [[1.0] + [0.0] * 7] * 2


def test_scores_of_half_precision_that_tie_are_told_before_the_first_step(fit):
    _, told = fit(Toy(RankNetLoss()), batches(2, HALVES, FIRST_RELEVANT))
    (line,) = [line for line in told if "tie" in line]
    assert line.startswith("before the first step: 4 pairs of documents of the first batch tie")
    assert "numbers of bfloat16" in line


@pytest.mark.parametrize("place", [0, 1], ids=["a score of float32", "the same without a tie"])
def test_other_scores_are_left_in_peace(fit, place):
    scores = [list(HALVES[0]), [8.0, 0.5, 0.75, 1.0, 4.0, 5.0, 6.0, 7.0]]
    scores[0][place] = [0.1, 2.0][place]
    _, told = fit(Toy(RankNetLoss()), batches(2, scores, FIRST_RELEVANT))
    assert not told


def test_a_ranker_that_can_not_tell_texts_apart_is_told_before_the_first_step(fit):
    _, told = fit(Toy(RankNetLoss(), weight=0.0), batches(2))
    assert told[0].startswith("before the first step: all scores of each list are equal")


def test_embeddings_that_are_equal_are_told_before_the_first_step(fit):
    _, told = fit(Toy(RankNetLoss(), embeddings=torch.ones(2, 3, 4)), batches(2))
    assert told[0].startswith("before the first step: the embeddings are closer than 0.01")


def test_a_new_head_is_told_and_one_that_has_learnt_is_not(backbone, tmp_path):
    ranker = PairWiseBertRanker(str(backbone), max_length=32)
    assert ranker.new_parts == ("head",)
    ranker.save(tmp_path / "saved")
    assert PairWiseBertRanker(str(tmp_path / "saved"), max_length=32).new_parts == ()
    assert DualEncoder(str(backbone)).new_parts == ()
    assert DualEncoder(str(backbone), projection=4).new_parts == ("projection",)


def test_the_line_of_a_new_part(tmp_path, caplog):
    module = Toy(RankNetLoss())
    module.ranker.new_parts = ("head", "projection")
    with caplog.at_level(logging.INFO, logger="ltr"):
        trainer(tmp_path, max_epochs=1, callbacks=[Health()]).fit(
            module, DataLoader(batches(2), batch_size=None)
        )
    lines = [r.getMessage() for r in caplog.records if r.name == "ltr.callbacks.health"]
    assert lines == [
        "before the first step: new in the ranker, made of random numbers: head, projection"
    ]


def test_another_run_starts_anew(fit):
    health = Health(patience=4)
    for count in (1, 2):
        _, said = fit(Toy(MarginRankingLoss(margin=0.0)), batches(5), health)
        assert len(said) == count


@pytest.mark.parametrize("options", [{"every_n_steps": 0}, {"patience": 0}, {"collapse": -0.1}])
def test_bad_options_are_refused(options):
    with pytest.raises(
        InputError,
        match="Health: every_n_steps and patience must be at least 1 and collapse at least 0, got",
    ):
        Health(**options)


def test_another_module_is_refused(fit):
    with pytest.raises(InputError, match="Health watches a RankerModule, got BoringModel"):
        fit(BoringModel(), batches(1))


# Two ranks


def _fit_rank(rank, store, folder):
    """Rank 1's batches are in order from the start, so its hinge is dead; rank 0's never are."""
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE="2",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=store,
    )
    data = batches(12, [[0.0, 1.0, 1.0]] * 2 if rank == 0 else None, labels=[[1.0, 0.0, 0.0]] * 2)
    health = Health(every_n_steps=3, patience=4, stop=True)
    run = trainer(
        folder,
        max_epochs=1,
        callbacks=[health],
        strategy="ddp",
        devices=2,
        use_distributed_sampler=False,
    )
    run.fit(
        Toy(Constant() if rank == 0 else MarginRankingLoss(margin=0.0), lr=0.0),
        DataLoader(data, batch_size=None),
    )
    torch.save((run.global_step, sorted(health._warned)), f"{folder}/{rank}")


class Constant(Loss):
    """A loss that always teaches the same."""

    def forward(self, scores, labels, mask=None, margin=None):
        return 1.0 + scores.sum()


@pytest.mark.long
def test_two_ranks_stop_together_at_the_next_look_of_both(tmp_path):
    """Rank 1's loss is 0 in steps 0 to 3: told then, and both ranks end after the sixth step. Its
    gradient is rank 0's too.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    run_ranks(_fit_rank, port, str(tmp_path))
    assert [torch.load(tmp_path / str(rank)) for rank in range(2)] == [(6, []), (6, ["dead"])]
