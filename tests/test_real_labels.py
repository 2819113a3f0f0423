"""Labels with fractions, as people's mean ratings (STS, 0 to 5) and ESCI's gains: what is read,
trained on and measured, and which losses refuse them.
"""

import json
import math

import pytest
import torch

from ltr.callbacks import LossChange, LossSchedule
from ltr.compatibility import check_labels
from ltr.data.collection import open_collection
from ltr.datamodules import (
    Evaluation,
    FeatureDataModule,
    GroupDataModule,
    Labels,
    ListDataModule,
    Mixture,
    TripletDataModule,
)
from ltr.errors import InputError
from ltr.in_batch import AllTexts, OneList, OtherQueries, OwnLists
from ltr.losses import (
    LOSSES,
    BCELoss,
    CoSENTLoss,
    LambdaRankLoss,
    MarginRankingLoss,
    MSELoss,
    RankNetLoss,
    SoftmaxLoss,
    WeightedSum,
)
from ltr.margins import Constant, FromDistance, FromDocuments
from ltr.metrics import MeasuredLists, RankingMetric
from tests.world.rankers import (
    cross_encoder,
    data_for,
    dual_encoder,
    feature_ranker,
    first_batch,
    trainer,
)

# They know only relevant or not.
OF_TWO_GRADES = {"SoftmaxLoss", "MeanInequalityLoss", "ApproxMRRLoss"}

ESCI = (1.0, 0.1, 0.01, 0.0)  # exact, substitute, complement, irrelevant
RATINGS = (4.75, 0.5, 3.25, 0.0)


def write_folder(folder, grades, n_queries=4):
    """A data folder whose queries have a document of each grade; all splits are alike."""
    (folder / "qrels").mkdir(parents=True)
    texts = {"corpus": [], "queries": []}
    judged = []
    for q in range(n_queries):
        texts["queries"].append({"_id": f"q{q}", "text": f"w{q} w1"})
        for d, grade in enumerate(grades):
            texts["corpus"].append({"_id": f"q{q}-d{d}", "text": f"w{q} w{d} w{q + d}"})
            judged.append(f"q{q}\tq{q}-d{d}\t{grade}\n")
    for name, records in texts.items():
        lines = [json.dumps(record) + "\n" for record in records]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    for split in ("train", "dev", "test"):
        (folder / f"qrels/{split}.tsv").write_text("".join(judged))
    return folder


def write_pairs(file, labels):
    """Labelled pairs, each of a query of its own."""
    lines = ["sentence1\tsentence2\tscore\n"]
    lines += [f"w{i} w1\tw{i} w2\t{label}\n" for i, label in enumerate(labels)]
    file.write_text("".join(lines))
    return file


def lists_of(module, folder, **options):
    options = {"unjudged": "skip", "candidates": None} | options
    return data_for(module, ListDataModule, folder, **options)


def test_labels_are_the_numbers_of_the_files(tmp_path, backbone):
    module = cross_encoder(backbone, MSELoss())
    folder = write_folder(tmp_path / "esci", ESCI)
    batch = first_batch(lists_of(module, folder, batch_size=4))
    for labels in batch.labels.tolist():
        assert sorted(labels) == pytest.approx(sorted(ESCI), rel=1e-6)
    judged = open_collection(write_pairs(tmp_path / "sts.tsv", RATINGS)).judgements("train")
    assert sorted(judged.values.tolist()) == sorted(RATINGS)
    assert judged.largest_fraction() == 4.75


def test_grades_with_a_point_are_whole_numbers(tmp_path, backbone):
    """2.0 is 2: the same lists, and no loss is refused."""
    module = cross_encoder(backbone, MSELoss())
    whole, pointed = (
        lists_of(module, write_folder(tmp_path / name, grades))
        for name, grades in (("whole", "210"), ("pointed", ("2.0", "1.00", "0.")))
    )
    batches = [first_batch(data) for data in (whole, pointed)]
    assert torch.equal(batches[0].labels, batches[1].labels)
    assert whole.largest_soft_label == pointed.largest_soft_label == 0
    check_labels(BCELoss(), OwnLists(), pointed)


@pytest.mark.parametrize("loss", LOSSES.values())
def test_a_loss_trains_on_real_labels_or_refuses_them(tmp_path, backbone, loss):
    """On ESCI's gains, which are all in [0, 1]."""
    folder = write_folder(tmp_path / "esci", ESCI)
    module = dual_encoder(backbone, loss())
    run = trainer(tmp_path, max_steps=1, limit_val_batches=0)
    if loss.__name__ in OF_TWO_GRADES:
        with pytest.raises(InputError, match=f"^{loss.__name__} takes every label above 0 for"):
            run.fit(module, lists_of(module, folder))
        return
    run.fit(module, lists_of(module, folder))
    value = module.last_step.loss
    assert torch.isfinite(value) and module.last_step.lists.labels.max() == 1
    changed = module.last_step.lists._replace(labels=(module.last_step.lists.labels > 0).float())
    of_relevant = module.loss(changed.scores, changed.labels, changed.mask)
    assert of_relevant != value, "0.01 would be as good as 1"


class Data:
    """What a check asks of data."""

    has_teacher_scores = False
    lists_with_both = None
    needs_in_batch = False

    def __init__(self, largest_soft_label):
        self.largest_soft_label = largest_soft_label


@pytest.mark.parametrize(
    ("loss", "in_batch", "largest", "message"),
    [
        (MSELoss(), OwnLists(), 4.75, None),
        (RankNetLoss(), OtherQueries(), 4.75, None),
        (LambdaRankLoss("ndcg"), OwnLists(), 4.75, None),
        (LambdaRankLoss("ap"), OwnLists(), 0.5, "^LambdaRankLoss takes every label above 0 for"),
        (RankNetLoss(), AllTexts(), 0.5, "^AllTexts takes every label above 0 for relevant"),
        (BCELoss(), OwnLists(), 0.99, None),
        (
            BCELoss(),
            OwnLists(),
            4.75,
            "^BCELoss takes every label above 1 for .* up to 4.75; divide the ",
        ),
        (WeightedSum([BCELoss(), MSELoss()]), OwnLists(), 0.5, None),
        (WeightedSum([BCELoss(), MSELoss()]), OwnLists(), 1.5, "^WeightedSum .* above 1 for"),
    ],
)
def test_losses_that_take_different_labels_for_the_same_are_refused(
    loss, in_batch, largest, message
):
    if message is None:
        check_labels(loss, in_batch, Data(largest))
        return
    with pytest.raises(InputError, match=message):
        check_labels(loss, in_batch, Data(largest))


@pytest.mark.parametrize(
    ("grades", "divide_by", "largest"),
    [
        ((0, 0.25, 0.5, 1, 2, 5), None, 5),
        ((0, 1, 4), 2, 2),
        ((0, 0.25, 0.5, 1), None, 1),
        ((0, 2, 4), 2, 0),
    ],
)
def test_whole_labels_beside_fractions_are_of_their_scale(
    tmp_path, backbone, grades, divide_by, largest
):
    """BCELoss would take 5 for 1 beside 0.5; without fractions all above 0 are relevant."""
    module = cross_encoder(backbone, BCELoss())
    folder = write_folder(tmp_path / "mixed", grades)
    data = lists_of(module, folder, divide_by=divide_by)
    data.setup("fit")
    assert data.largest_soft_label == largest
    if divide_by is None:
        lines = [f"{grade} qid:1 1:0.{place}\n" for place, grade in enumerate(grades)]
        (tmp_path / "train.txt").write_text("".join(lines))
        features = data_for(feature_ranker(1, BCELoss()), FeatureDataModule, tmp_path)
        features.setup("fit")
        assert features.largest_soft_label == largest
    if largest <= 1:
        check_labels(BCELoss(), OwnLists(), data)
        return
    with pytest.raises(InputError, match=f"BCELoss takes every label above 1 .* up to {largest};"):
        check_labels(BCELoss(), OwnLists(), data)


def test_one_divisor_is_of_one_source(tmp_path, backbone):
    """Ratings from 0 to 5, and 0 and 1: a fifth of both would make 0.2 of what is certain."""
    paths = [
        str(write_folder(tmp_path / name, grades))
        for name, grades in (("rated", RATINGS), ("binary", (1, 0)))
    ]
    module = cross_encoder(backbone, MSELoss())
    data = ListDataModule(
        paths, unjudged="skip", evaluation=Evaluation(None), labels=Labels(divide_by=5)
    )
    with pytest.raises(InputError, match="^divide_by is one number .* got 5 and 2 sources") as told:
        trainer(tmp_path, max_steps=1).fit(module, data)
    assert told.value.option == "labels.divide_by"


@pytest.mark.parametrize("loss", [BCELoss(), SoftmaxLoss()])
def test_a_level_of_relevance_makes_soft_labels_ones_of_relevance(tmp_path, backbone, loss):
    """From 3 on: 4.75 and 3.25 are relevant, 0.5 is 0."""
    folder = write_folder(tmp_path / "rated", RATINGS)
    module = dual_encoder(backbone, loss)
    run = trainer(tmp_path, max_steps=1, limit_val_batches=0)
    run.fit(module, lists_of(module, folder, relevant_from=3))
    assert sorted(set(module.last_step.lists.labels.flatten().tolist())) == [0, 3.25, 4.75]


def test_labels_divided_by_the_largest_are_probabilities(tmp_path, backbone):
    folder = write_folder(tmp_path / "rated", RATINGS)
    module = dual_encoder(backbone, BCELoss())
    run = trainer(tmp_path, max_steps=1, limit_val_batches=0)
    data = lists_of(module, folder, divide_by=5, candidates="auto")
    run.fit(module, data)
    labels = module.last_step.lists.labels[0].tolist()
    assert sorted(labels) == pytest.approx([0, 0.1, 0.65, 0.95])
    assert data.eval_batches("dev").batches[0][0].known_grades.max() == 4.75
    with pytest.raises(InputError, match="^SoftmaxLoss takes every label above 0"):
        check_labels(SoftmaxLoss(), OwnLists(), data)
    triplets = data_for(
        module, TripletDataModule, folder, negatives="random", candidates=None, divide_by=5
    )
    assert 0 < first_batch(triplets).labels.max() < 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"divide_by": 0.0}, "labels.divide_by must be finite and above 0, got 0"),
        ({"divide_by": 5.0, "scores": "taught"}, "divide_by is for grades, and labels.scores"),
    ],
)
def test_labels_are_not_divided_by_nothing_nor_are_scores(options, message):
    with pytest.raises(InputError, match=message):
        Labels(**options)


def test_feature_vectors_have_real_labels_too(tmp_path):
    """In the fast way of reading, and in the slow one, which features out of order take."""
    rows = ["0.25 qid:1 1:0.5 2:1\n", "4.75 qid:1 1:1 2:0\n", "3 qid:1 1:0 2:0.5\n"]
    for name, lines in (("fast", rows), ("slow", [*rows, "1 qid:2 2:1 1:0\n", "0 qid:2 1:1\n"])):
        folder = tmp_path / name
        folder.mkdir()
        for split in ("train", "dev", "test"):
            (folder / f"{split}.txt").write_text("".join(lines))
        module = feature_ranker(2, RankNetLoss())
        data = data_for(module, FeatureDataModule, folder)
        trainer(folder, max_steps=1, limit_val_batches=0).fit(module, data)
        expected = [float(line.split()[0]) for line in lines]
        assert sorted(data.split("train").labels.tolist()) == sorted(expected)
        assert data.largest_soft_label == 4.75
        with pytest.raises(InputError, match="^SoftmaxLoss takes every label above 0"):
            check_labels(SoftmaxLoss(), OwnLists(), data)


def test_a_schedule_is_refused_for_its_later_loss(tmp_path, backbone):
    folder = write_folder(tmp_path / "rated", RATINGS)
    module = cross_encoder(backbone, MSELoss())
    schedule = LossSchedule([LossChange(epoch=1, loss=BCELoss())])
    run = trainer(tmp_path, max_steps=1, limit_val_batches=0, callbacks=[schedule])
    with pytest.raises(InputError, match="BCELoss takes every label above 1 .* up to 4.75"):
        run.fit(module, lists_of(module, folder))


def test_pairs_of_texts_train_a_loss_of_single_documents(tmp_path, backbone):
    """As STS: each query has one document. MSE is the mean of squares over all of them."""
    file = write_pairs(tmp_path / "sts.tsv", RATINGS)
    module = cross_encoder(backbone, MSELoss())
    run = trainer(tmp_path, max_steps=1, limit_val_batches=0)
    run.fit(module, lists_of(module, file, batch_size=4))
    lists = module.last_step.lists
    assert lists.labels.shape == (4, 1) and sorted(lists.labels.flatten()) == sorted(RATINGS)
    squares = []
    for (score,), (label,) in zip(lists.scores.tolist(), lists.labels.tolist(), strict=True):
        squares.append((score - label) ** 2)
    assert module.last_step.loss.item() == pytest.approx(sum(squares) / 4, rel=1e-5)


def test_lists_of_one_document_are_said_to_measure_nothing(tmp_path, backbone, caplog):
    """nDCG would be 1 whatever the weights."""
    folder = tmp_path / "sts"
    folder.mkdir()
    for split in ("train", "dev"):
        write_pairs(folder / f"{split}.tsv", RATINGS)
    module = cross_encoder(backbone, MSELoss())
    lists_of(module, folder, candidates="candidates").setup("validate")
    assert "all 4 dev lists have one document" in caplog.text
    caplog.clear()
    rated = write_folder(tmp_path / "rated", RATINGS)
    lists_of(module, rated, candidates="bm25", depth=2).setup("validate")
    assert "have one document" not in caplog.text


def test_pairs_of_texts_teach_no_loss_of_lists(tmp_path, backbone):
    file = write_pairs(tmp_path / "sts.tsv", RATINGS)
    module = cross_encoder(backbone, RankNetLoss())
    with pytest.raises(InputError, match="no query has two documents of different grades"):
        trainer(tmp_path, max_steps=1).fit(module, lists_of(module, file))


@pytest.mark.parametrize("loss", [MSELoss(), BCELoss(), RankNetLoss()])
def test_labels_that_are_all_the_same_are_refused(tmp_path, backbone, loss):
    file = write_pairs(tmp_path / "sts.tsv", [0.5, 0.5, 0.5])
    module = cross_encoder(backbone, loss, in_batch=OneList())
    with pytest.raises(InputError, match="must have different grades, .* queries are 0.5; there"):
        trainer(tmp_path, max_steps=1).fit(module, lists_of(module, file))


@pytest.mark.parametrize("make", [cross_encoder, dual_encoder])
def test_one_list_compares_the_documents_of_all_queries(tmp_path, backbone, make):
    """By all pairs of the batch whose labels differ, each counted once."""
    labels = [*RATINGS, 3.25]
    file = write_pairs(tmp_path / "sts.tsv", labels)
    module = make(backbone, RankNetLoss(), in_batch=OneList())
    run = trainer(tmp_path, max_steps=1, limit_val_batches=0)
    run.fit(module, lists_of(module, file, batch_size=5))
    lists = module.last_step.lists
    assert lists.scores.shape == (1, 5) and sorted(lists.labels[0].tolist()) == sorted(labels)
    costs = []
    for s_i, y_i in zip(lists.scores[0].tolist(), lists.labels[0].tolist(), strict=True):
        for s_j, y_j in zip(lists.scores[0].tolist(), lists.labels[0].tolist(), strict=True):
            if y_i > y_j:
                costs.append(math.log1p(math.exp(s_j - s_i)))
    assert len(costs) == 9
    assert module.last_step.loss.item() == pytest.approx(sum(costs) / 9, rel=1e-5)


@pytest.mark.parametrize("make", [cross_encoder, dual_encoder])
def test_cosent_over_the_pairs_of_a_batch(tmp_path, backbone, make):
    """As published: log(1 + the sum of exp(s_j - s_i) over all pairs of texts with y_i > y_j)."""
    file = write_pairs(tmp_path / "sts.tsv", RATINGS)
    module = make(backbone, CoSENTLoss(temperature=0.05), in_batch=OneList())
    run = trainer(tmp_path, max_steps=1, limit_val_batches=0)
    run.fit(module, lists_of(module, file, batch_size=4))
    lists = module.last_step.lists
    scores, labels = lists.scores[0].double() / 0.05, lists.labels[0]
    exponents = [0.0]
    for i in range(4):
        exponents += [scores[j] - scores[i] for j in range(4) if labels[i] > labels[j]]
    assert len(exponents) == 1 + 6
    expected = torch.logsumexp(torch.tensor(exponents), dim=0)
    assert module.last_step.loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_one_list_leaves_padding_out(tmp_path, backbone):
    """Of two lists, of three and of two documents."""
    file = write_pairs(tmp_path / "rated.tsv", [*RATINGS, 1.5])
    text = file.read_text()
    for number, query in ((1, 0), (2, 0), (4, 3)):
        text = text.replace(f"w{number} w1\t", f"w{query} w1\t")
    file.write_text(text)
    module = dual_encoder(backbone, RankNetLoss(), in_batch=OneList()).eval()
    batch = first_batch(lists_of(module, file, batch_size=2))
    assert batch.mask.sum(dim=1).sort().values.tolist() == [2, 3]
    own = OwnLists()(module.ranker, batch)
    joined = OneList()(module.ranker, batch)
    assert joined.mask.sum() == own.mask.sum()
    assert torch.equal(joined.scores[joined.mask], own.scores[own.mask])
    assert torch.equal(joined.labels[joined.mask], own.labels[own.mask])
    assert joined.embeddings.shape[:2] == joined.scores.shape and joined.queries is None


@pytest.mark.parametrize("margin", [FromDistance(), FromDocuments()])
def test_one_list_refuses_margins_of_the_texts_of_a_list(tmp_path, backbone, margin):
    folder = write_folder(tmp_path / "rated", RATINGS)
    module = dual_encoder(backbone, MarginRankingLoss(), margin=margin, in_batch=OneList())
    with pytest.raises(InputError, match=f"^{type(margin).__name__} compares the texts of a list"):
        trainer(tmp_path, max_steps=1).fit(module, lists_of(module, folder))
    module = dual_encoder(backbone, MarginRankingLoss(), margin=Constant(0.1), in_batch=OneList())
    run = trainer(tmp_path, max_steps=1, limit_val_batches=0)
    run.fit(module, lists_of(module, folder))
    assert module.last_step.lists.scores.shape == (1, 16)


def test_one_list_is_of_one_source(tmp_path, backbone):
    paths = [str(write_folder(tmp_path / name, RATINGS)) for name in ("first", "second")]
    module = dual_encoder(backbone, RankNetLoss(), in_batch=OneList())
    for batches in ("one_source", "mixed"):
        data = ListDataModule(
            paths, unjudged="skip", evaluation=Evaluation(None), mixture=Mixture(batches)
        )
        run = trainer(tmp_path, max_steps=1, limit_val_batches=0)
        if batches == "one_source":
            run.fit(module, data)
            continue
        with pytest.raises(InputError, match="OneList compares the labels .* to one_source"):
            run.fit(module, data)


def test_soft_targets_of_bce_by_hand():
    """Scores (log 3, 0), labels (0.1, 0.01): softplus(s) - y s, the mean."""
    scores = torch.tensor([[math.log(3.0), 0.0]])
    by_hand = (math.log(4) - 0.1 * math.log(3) + math.log(2)) / 2
    assert BCELoss()(scores, torch.tensor([[0.1, 0.01]])).item() == pytest.approx(by_hand, rel=1e-6)


def test_triplets_and_groups_have_real_labels_too(tmp_path, backbone):
    folder = write_folder(tmp_path / "rated", RATINGS)
    module = dual_encoder(backbone, RankNetLoss())
    triplets = data_for(module, TripletDataModule, folder, negatives="random", candidates=None)
    batch = first_batch(triplets)
    assert set(batch.labels.unique().tolist()) <= set(RATINGS) and batch.labels.max() % 1 > 0
    assert triplets.largest_soft_label == 4.75
    groups = data_for(module, GroupDataModule, folder, candidates=None)
    groups.setup("fit")
    assert groups.largest_soft_label == 4.75


def test_measures_of_real_labels_by_hand():
    """Labels in the order of the scores: 0.5, 0, 4. What is above 0 is relevant: ranks 1 and 3."""
    scores = torch.tensor([[3.0, 2.0, 1.0]])
    labels = torch.tensor([[0.5, 0.0, 4.0]])
    lists = MeasuredLists(scores, labels, torch.ones(1, 3, dtype=torch.bool))
    expected = {
        "nDCG@3": (0.5 + 4 / 2) / (4 + 0.5 / math.log2(3)),
        "nDCG_exp@3": (2**0.5 - 1 + 15 / 2) / (15 + (2**0.5 - 1) / math.log2(3)),
        "AP": (1 + 2 / 3) / 2,
        "RR": 1.0,
        "P@2": 0.5,
        "R@2": 0.5,
        "swapped_pairs": 2.0,
        "tau": -1 / 3,
    }
    for name, value in expected.items():
        assert RankingMetric(name).per_query(lists).item() == pytest.approx(value, abs=1e-6), name


@pytest.mark.parametrize(
    ("loss", "in_batch", "is_taught"),
    [(MSELoss(), None, True), (BCELoss(), None, True), (CoSENTLoss(), OneList(), True)]
    + [(RankNetLoss(), None, False)],
)
def test_feature_vectors_of_one_document_train_what_learns_from_one(
    tmp_path, loss, in_batch, is_taught
):
    """As lists of texts do."""
    lines = ["0.25 qid:1 1:0.5\n", "1 qid:2 1:1\n", "0 qid:3 1:0\n"]
    (tmp_path / "train.txt").write_text("".join(lines))
    module = feature_ranker(1, loss, **({} if in_batch is None else {"in_batch": in_batch}))
    data = data_for(module, FeatureDataModule, tmp_path)
    run = trainer(tmp_path, max_steps=1, limit_val_batches=0)
    if not is_taught:
        with pytest.raises(InputError, match="no query has two documents of different grades"):
            run.fit(module, data)
        return
    run.fit(module, data)
    assert module.last_step.lists.labels.numel() == 3 and data.lists_with_both is None
