"""What was probably meant by a name that there isn't."""

import pytest

from ltr.cli.near_names import did_you_mean, near_class, near_option

KNOWN = [
    "ckpt_path",
    "seed_everything",
    "model.lr",
    "model.loss",
    "model.loss.temperature",
    "model.ranker.temperature",
    "model.ranker.max_length",
    "data.batch_size",
    "data.epoch",
    "data.evaluation.batch_size",
    "data.loading.seed",
    "trainer.max_epochs",
    "trainer.min_epochs",
]


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("lr", ["model.lr"]),
        ("learning_rate", ["model.lr"]),
        ("trainer.epochs", ["trainer.max_epochs"]),
        ("epoch", ["trainer.max_epochs"]),  # not that of the data
        ("trainer.max_epoch", ["trainer.max_epochs"]),
        ("seed", ["seed_everything"]),
        ("data.seed", ["data.loading.seed"]),
        ("batch-size", ["data.batch_size"]),  # the shortest path
        ("data.evaluation.batchsize", ["data.evaluation.batch_size"]),
        ("temperature", ["model.loss.temperature", "model.ranker.temperature"]),
        ("data.max_lenght", ["model.ranker.max_length"]),
        ("model.lr", ["model.lr"]),  # as in model.lr=3
        ("xyzzy", []),
    ],
)
def test_options(name, near):
    assert near_option(name, KNOWN) == near


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("SoftMaxLoss", ["SoftmaxLoss"]),
        ("mse", ["MSELoss"]),
        ("LambdaRank", ["LambdaRankLoss"]),
        ("CrossEntropyLoss", ["SoftmaxLoss"]),
        ("RankNetLos", ["RankNetLoss"]),
        ("Nothing", []),
    ],
)
def test_classes(name, near):
    assert near_class(name, ["LambdaRankLoss", "MSELoss", "RankNetLoss", "SoftmaxLoss"]) == near


def test_another_name_is_none_of_another_part():
    assert near_class("CrossEncoder", ["DualEncoder", "PairWiseBertRanker"]) == [
        "PairWiseBertRanker"
    ]
    assert near_class("CrossEncoder", ["SoftmaxLoss"]) == []


def test_the_question():
    assert did_you_mean(["a", "b"]) == "; did you mean a or b?"
    assert did_you_mean([]) == ""
