"""What a loss can learn from the lists of the data: said, or refused, before training."""

import shutil

import numpy as np
import pytest
import torch

from ltr.callbacks import LossChange, LossSchedule
from ltr.compatibility import check_anchor, check_labels, check_transform
from ltr.data.layouts import JoinedPairs
from ltr.datamodules import FeatureDataModule, Labels, ListDataModule, TripletDataModule
from ltr.errors import InputError
from ltr.in_batch import OtherQueries, OwnLists
from ltr.losses import (
    LOSSES,
    ApproxMRRLoss,
    BCELoss,
    LambdaRankLoss,
    MarginRankingLoss,
    MeanInequalityLoss,
    RankNetLoss,
    SoftmaxLoss,
    WeightedSum,
)
from ltr.margins import Constant
from ltr.models import DualEncoder
from tests.world.backbones import wordpiece_tokenizer
from tests.world.rankers import data_for, feature_ranker, trainer

# They know only relevant or not. BCELoss pushes all relevant documents up, and orders none.
OF_TWO_GRADES = (
    SoftmaxLoss(),
    MeanInequalityLoss(),
    ApproxMRRLoss(),
    LambdaRankLoss("ap"),
    LambdaRankLoss("mrr"),
    LambdaRankLoss("precision", k=1),
    BCELoss(),
    WeightedSum([SoftmaxLoss(), BCELoss()]),
)


def write_letor(folder, labels: list[list[int]]):
    """Queries with these labels, and two features a document."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for split in ("train", "dev", "test"):
        lines = []
        for query, grades in enumerate(labels):
            for grade in grades:
                one, other = rng.normal(size=2)
                lines.append(f"{grade} qid:{query} 1:{one:.4f} 2:{other:.4f}\n")
        (folder / f"{split}.txt").write_text("".join(lines))
    return folder


def features(folder, labels, **options):
    data = FeatureDataModule(str(write_letor(folder, labels)), **options)
    data.setup("fit")
    return data


@pytest.mark.parametrize("loss", OF_TWO_GRADES, ids=lambda loss: type(loss).__name__)
def test_lists_without_an_irrelevant_document_are_counted_or_refused(loss, tmp_path, caplog):
    some = features(tmp_path / "some", [[1, 2, 2], [1, 0], [0, 0], [3, 0]])
    assert some.lists_with_both == (2, 4)
    check_labels(loss, OwnLists(), some)
    assert "2 of 4 training lists have no relevant or no irrelevant document" in caplog.text
    none = features(tmp_path / "none", [[1, 2, 2], [0, 0], [3, 1]])
    with pytest.raises(InputError, match="none of the 3 training lists has both"):
        check_labels(loss, OwnLists(), none)
    check_labels(loss, OtherQueries(), none)  # which brings irrelevant documents


def test_a_loss_of_grades_needs_no_irrelevant_document(tmp_path, caplog):
    data = features(tmp_path / "data", [[1, 2, 2], [3, 1]])
    for loss in (RankNetLoss(), WeightedSum([SoftmaxLoss(), RankNetLoss()])):
        check_labels(loss, OwnLists(), data)
    assert "training lists" not in caplog.text


def test_losses_that_order_grades_are_those_whose_gradient_does():
    """On a list of grades 1 and 2, both relevant: by the gradient of each loss of the package."""
    data = type("Data", (), {"has_teacher_scores": False, "largest_soft_label": 0.0})()
    data.lists_with_both = (0, 1)
    for kind in LOSSES.values():
        loss = kind()
        scores = torch.zeros(1, 2, requires_grad=True)
        (gradient,) = torch.autograd.grad(loss(scores, torch.tensor([[2.0, 1.0]])).sum(), scores)
        orders = bool(gradient[0, 0] < gradient[0, 1])
        if orders:
            check_labels(loss, OwnLists(), data)
        else:
            with pytest.raises(InputError, match=f"^{kind.__name__} tells relevant documents"):
                check_labels(loss, OwnLists(), data)


def test_lists_of_half_relevant_documents_keep_an_irrelevant_one(tmp_path, caplog):
    """As in MSLR-WEB30K: half of 120 documents are above 0."""
    data = features(tmp_path / "data", [[*range(1, 5)] * 15 + [0] * 60] * 2, list_size=16)
    assert data.lists_with_both == (2, 2)
    for labels in data.train[0, 0].labels:
        assert (labels == 0).sum() == 1


def test_judged_documents_alone_are_no_lists_for_a_softmax(tmp_path, collection_folder):
    """Where only relevant documents are judged, as in most sets of BEIR."""
    folder = tmp_path / "collection"  # the fixture is of the whole session
    shutil.copytree(collection_folder, folder)
    judged = [f"train-q0\ttrain-q0-d{grade}\t{grade}\n" for grade in (1, 2)]
    (folder / "qrels/train.tsv").write_text("".join(judged))
    data = ListDataModule(str(folder), unjudged="skip")
    data.reads = JoinedPairs(wordpiece_tokenizer(), 24)
    data.setup("fit")
    with pytest.raises(InputError, match="none of the 1 training lists has both"):
        check_labels(SoftmaxLoss(), OwnLists(), data)


def fit(module, folder, ckpt_path=None, **options):
    run = trainer(folder, **options)
    run.fit(module, data_for(module, FeatureDataModule, folder, batch_size=2), ckpt_path=ckpt_path)
    return run


def test_a_run_says_after_an_epoch_that_most_lists_had_no_gradient(tmp_path, caplog):
    """A hinge with margin 0 over lists that one feature orders: whatever the reason is, it is said."""
    lines = [f"{label} qid:{query} 1:{label} 2:0\n" for query in range(4) for label in (1, 0)]
    folder = tmp_path / "data"
    folder.mkdir()
    for split in ("train", "dev", "test"):
        (folder / f"{split}.txt").write_text("".join(lines))
    module = feature_ranker(2, MarginRankingLoss(0.1), "linear")
    with torch.no_grad():
        module.ranker.head.weight.copy_(torch.tensor([[5.0, 0.0]]))
    fit(module, folder, max_epochs=2)
    said = [line for line in caplog.messages if "in the first epoch" in line]
    assert said == [
        "in the first epoch 4 of 4 lists gave MarginRankingLoss no gradient, so nothing was learnt from them: they are in order already, or have nothing to be told apart"
    ]


def test_a_run_that_resumes_says_nothing_of_its_first_epoch(tmp_path, caplog):
    """The second epoch alone is no first epoch, whatever its lists give."""
    folder = write_letor(tmp_path / "data", [[1, 0], [0, 1]])
    checkpoint = tmp_path / "first.ckpt"
    first = fit(feature_ranker(2, MarginRankingLoss(1.0), "linear"), folder, max_epochs=1)
    first.save_checkpoint(checkpoint)
    module = feature_ranker(2, MarginRankingLoss(1.0), "linear")
    module.loss.forward = lambda scores, *_: (scores * 0.0).sum()  # no list has a gradient
    fit(module, folder, checkpoint, max_epochs=2)
    assert not [line for line in caplog.messages if "in the first epoch" in line]


def test_a_schedule_warns_of_each_kind_of_loss_once_and_by_its_name(tmp_path, caplog):
    """Query 0 has no irrelevant document. Two stages of one loss, then another one."""
    folder = write_letor(tmp_path / "data", [[1, 2], [1, 0]])
    changes = [
        LossChange(epoch=1, options={"temperature": 0.5}),
        LossChange(epoch=2, loss=BCELoss()),
        LossChange(epoch=3, loss=RankNetLoss()),
    ]
    module = feature_ranker(2, SoftmaxLoss(), "linear")
    fit(module, folder, max_epochs=1, callbacks=[LossSchedule(changes)])
    said = [line for line in caplog.messages if "learns no order" in line]
    assert sorted(line.split(" so ")[1].split()[0] for line in said) == ["BCELoss", "SoftmaxLoss"]
    assert all(line.startswith("1 of 2 training lists") for line in said)


# Also where a later stage brings a margin policy, which the first one has not.
LATER = LossSchedule([LossChange(epoch=1, loss=MarginRankingLoss(0.5), margin=Constant(0.2))])


@pytest.mark.parametrize(
    ("loss", "transform", "callbacks", "message"),
    [
        (SoftmaxLoss(), "none", [], "none of the 2 training lists has both"),
        (SoftmaxLoss(), "none", [LATER], "^SoftmaxLoss tells relevant documents"),
        (
            MarginRankingLoss(1.0),
            "sigmoid",
            [LATER],
            "sigmoid .* MarginRankingLoss asks for a gap of 1",
        ),
    ],
    ids=["labels", "labels of a schedule", "transform of a schedule"],
)
def test_a_run_refuses_its_first_loss_by_its_name_before_the_first_step(
    tmp_path, loss, transform, callbacks, message
):
    folder = write_letor(tmp_path / "data", [[1, 2], [2, 1]])
    module = feature_ranker(2, loss, "linear", transform=transform)
    with pytest.raises(InputError, match=message):
        fit(module, folder, max_epochs=1, callbacks=callbacks)
    assert module.last_step is None


def test_transformed_scores_are_refused_with_labels_of_a_teacher_and_margins_out_of_reach():
    data = TripletDataModule("somewhere")
    for transform, loss, margin in (
        ("softmax", BCELoss(), None),
        ("softmax", MarginRankingLoss(0.3), None),
        ("none", MarginRankingLoss(1.0), None),
        ("softmax", MarginRankingLoss(1.0), Constant(0.2)),
    ):
        check_transform(transform, loss, margin, data)
    with pytest.raises(InputError, match="after transform: sigmoid .* asks for a gap of 1, which"):
        check_transform("sigmoid", MarginRankingLoss(1.0), None, data)
    taught = TripletDataModule("somewhere", labels=Labels(scores="scores"))
    with pytest.raises(InputError, match="the softmax of a score can't be compared with them"):
        check_transform("softmax", BCELoss(), None, taught)


def test_an_anchor_is_refused_where_scores_lie_on_one_side_of_it(backbone):
    anchored = SoftmaxLoss(anchor=1.0)
    by_product = DualEncoder(backbone, similarity="cosine")
    by_distance = DualEncoder(backbone, similarity="squared_euclidean")
    check_anchor(by_product, anchored, "none")
    check_anchor(by_distance, SoftmaxLoss(), "softmax")
    for loss in (anchored, WeightedSum([BCELoss(), anchored])):
        with pytest.raises(InputError, match="none can go below the anchor of SoftmaxLoss"):
            check_anchor(by_product, loss, "softmax")
        with pytest.raises(
            InputError, match="squared_euclidean are 0 at most, so none can go above"
        ):
            check_anchor(by_distance, loss, "none")
