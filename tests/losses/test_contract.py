"""Laws of every loss of ``ltr.losses``, with its defaults and other options, in every form."""

import inspect
import itertools
import math
import typing
from functools import partial

import pytest
import torch

import ltr.losses
from ltr import pairs
from ltr.errors import InputError
from ltr.losses import (
    LOSSES,
    AdaptiveMarginRankingLoss,
    AdaptiveRankNetLoss,
    BatchAllTripletLoss,
    BatchHardTripletLoss,
    BCELoss,
    LambdaLoss,
    LambdaRankLoss,
    ListNetLoss,
    Loss,
    MarginRankingLoss,
    MSELoss,
    RankNetLoss,
    SoftmaxLoss,
    WeightedSum,
)
from ltr.pairs import blocks

EVERY_CLASS = list(LOSSES.values())
PAIRS = ("hardest", "semi-hard", "adjacent", "mean")
OPTIONS = [
    *[(MarginRankingLoss, {"pairs": pairs}) for pairs in PAIRS],
    (MarginRankingLoss, {"squared": True}),
    (MarginRankingLoss, {"squared": True, "pairs": "adjacent"}),
    (MarginRankingLoss, {"pairs_reduction": "sum"}),
    (MarginRankingLoss, {"pairs_reduction": "active", "margin": 0.3}),
    (AdaptiveMarginRankingLoss, {"k": 0.5, "pairs": "mean"}),
    *[(RankNetLoss, {"pairs": pairs}) for pairs in PAIRS],
    (RankNetLoss, {"sigma": 2.0, "targets": "soft"}),
    (RankNetLoss, {"ties": "half", "pairs_reduction": "sum"}),
    (AdaptiveRankNetLoss, {"ties": "half", "mode": "scale", "targets": "soft"}),
    (AdaptiveRankNetLoss, {"mode": "scale"}),
    (AdaptiveRankNetLoss, {"mode": "scale", "targets": "soft", "pairs": "mean"}),
    (BatchAllTripletLoss, {"average": "all"}),
    (BatchAllTripletLoss, {"average": "row"}),
    (BatchHardTripletLoss, {"soft": True}),
    *[(LambdaRankLoss, {"metric": metric, "k": 3}) for metric in ("ndcg", "err", "mrr", "ap")],
    (LambdaRankLoss, {"metric": "precision", "k": 1}),
    *[(LambdaRankLoss, {"metric": metric}) for metric in ("err", "mrr", "ap")],
    (LambdaRankLoss, {"normalize": True}),
    (LambdaRankLoss, {"metric": "ap", "cost": "hinge", "margin": 0.7}),
    *[(LambdaRankLoss, {"metric": "ndcg", "pairs": choice, "margin": 0.3}) for choice in PAIRS[:3]],
    (LambdaRankLoss, {"cost": "squared hinge", "pairs": "hardest", "margin": 0.7}),
    (LambdaLoss, {"scheme": "ndcg1"}),
    (LambdaLoss, {"scheme": "ndcg2", "k": 2}),
    (SoftmaxLoss, {"positives": "in", "temperature": 0.5}),
    (SoftmaxLoss, {"anchor": 0.5}),
    (SoftmaxLoss, {"anchor": 1.0, "positives": "in", "temperature": 0.5}),
    (ListNetLoss, {"kind": "kl", "temperature": 2.0}),
    (WeightedSum, {"losses": [RankNetLoss(), LambdaRankLoss()], "weights": [0.5, 2.0]}),
]
CASES = {c.__name__: c for c in EVERY_CLASS}
for _class, _options in OPTIONS:
    _told = ", ".join(f"{name}={value}" for name, value in _options.items() if name != "losses")
    CASES[f"{_class.__name__}({_told})"] = partial(_class, **_options)


def except_for(*names):
    """Every case but those whose name begins with one of these."""
    left = [name for name in CASES if not name.startswith(names)]
    return pytest.mark.parametrize("loss", [CASES[name] for name in left], ids=left)


EVERY_LOSS = pytest.mark.parametrize("loss", CASES.values(), ids=CASES)


# A document that is judged by itself: the level of its score counts, and there is always something
# to learn.
POINTWISE = ("BCELoss", "MSELoss", "SoftmaxLoss(anchor")
# Documents of one label have something to learn: that none of them comes first.
OF_TIES = ("RankNetLoss(ties", "AdaptiveRankNetLoss(ties")
# Published as a mean over the batch, not over rows.
OVER_THE_BATCH = ("BatchAllTripletLoss", "BatchAllTripletLoss(average=all)")


def take_long_forms(monkeypatch):
    monkeypatch.setitem(blocks.BLOCK, "cpu", 16)
    monkeypatch.setattr(pairs, "UPPERS_PER_LEVEL_TO_SORT", 0)
    monkeypatch.setattr(pairs, "SHORT", 0)


@pytest.fixture(params=["short lists", "long lists"])
def size(request, monkeypatch):
    """A law for the dense form, and for the sorted and blocked forms that long lists take."""
    if request.param == "long lists":
        take_long_forms(monkeypatch)


@pytest.fixture
def lists():
    """Up to seven documents with grades 0 to 2; every row has a relevant and an irrelevant one."""
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(5, 7, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 3, (5, 7), generator=generator).double()
    labels[:, 0], labels[:, 1] = 2.0, 0.0
    mask = torch.arange(7) < torch.tensor([7, 2, 5, 3, 6]).unsqueeze(1)
    return scores.requires_grad_(), labels, mask


def value_and_gradient(loss, scores, labels, mask):
    value = loss(scores, labels, mask)
    (gradient,) = torch.autograd.grad(value, scores)
    return value, gradient


def widened(lists, in_front=False):
    """The lists with two columns of padding that repeat the first two."""
    scores, labels, mask = lists
    parts = [scores, labels, mask]
    repeated = [scores[:, :2], labels[:, :2], torch.zeros_like(mask[:, :2])]
    both = zip(*([repeated, parts] if in_front else [parts, repeated]), strict=True)
    return [torch.cat(pair, dim=1) for pair in both]


def test_the_contract_finds_the_losses():
    tables = "BCELoss MSELoss MarginRankingLoss AdaptiveMarginRankingLoss RankNetLoss AdaptiveRankNetLoss BatchAllTripletLoss "
    tables += "BatchHardTripletLoss BatchSemiHardTripletLoss LambdaRankLoss LambdaLoss SoftmaxLoss ListNetLoss ListMLELoss "
    tables += "PositionAwareListMLELoss MeanInequalityLoss ApproxNDCGLoss ApproxMRRLoss NeuralNDCGLoss MarginMSELoss "
    tables += "KLDivergenceLoss WeightedSum"
    assert LOSSES.keys() >= set(tables.split())
    for name, loss in LOSSES.items():
        assert issubclass(loss, Loss) and loss is getattr(ltr.losses, name)
        assert name in ltr.losses.__all__


@EVERY_LOSS
def test_padding_changes_nothing(loss, lists, size):
    scores, labels, mask = lists
    expected = value_and_gradient(loss(), scores, labels, mask)
    for noise, label in ((1e4, 3.0), (math.nan, 3.0), (math.inf, 3.0), (math.nan, math.nan)):
        noisy = torch.where(mask, scores.detach(), noise).requires_grad_()
        other_labels = torch.where(mask, labels, label)
        found = value_and_gradient(loss(), noisy, other_labels, mask)
        torch.testing.assert_close(found, expected)
    for in_front in (False, True):  # nothing may lean on it coming last
        torch.testing.assert_close(loss()(*widened(lists, in_front)), expected[0])


@EVERY_LOSS
def test_order_of_columns_changes_nothing(loss, lists):
    scores, labels, mask = lists
    order = torch.tensor([3, 0, 6, 2, 5, 1, 4])
    value, gradient = value_and_gradient(loss(), scores, labels, mask)
    shuffled = scores.detach()[:, order].requires_grad_()
    found = value_and_gradient(loss(), shuffled, labels[:, order], mask[:, order])
    torch.testing.assert_close(found, (value, gradient[:, order]))


@except_for(*POINTWISE)
def test_a_constant_added_to_a_row_changes_nothing(loss, lists):
    scores, labels, mask = lists
    shift = torch.tensor([[3.0], [-20.0], [0.5], [100.0], [-1.0]], dtype=torch.float64)
    torch.testing.assert_close(loss()(scores + shift, labels, mask), loss()(scores, labels, mask))


@EVERY_LOSS
def test_gradcheck(loss, lists):
    scores, labels, mask = lists
    assert torch.autograd.gradcheck(lambda s: loss()(s, labels, mask), scores)


@except_for(*POINTWISE)
def test_the_gradient_of_a_row_sums_to_zero(loss, lists):
    scores, labels, mask = lists
    _, gradient = value_and_gradient(loss(), scores, labels, mask)
    assert gradient.sum(dim=1).abs().max() < 1e-12


@EVERY_LOSS
def test_a_step_downhill_raises_the_only_relevant_document(loss):
    """Scores are nearly equal; it falls as well when another document falls."""
    scores = torch.tensor([[0.02, 0.01, 0.0]], dtype=torch.float64, requires_grad=True)
    for place in range(3):
        labels = torch.zeros(1, 3, dtype=torch.float64)
        labels[0, place] = 1.0
        make = loss()
        if getattr(make, "k", None) is not None and isinstance(make, LambdaRankLoss):
            make.k = 1 if place else 2  # where a swap changes the metric
        _, gradient = value_and_gradient(make, scores, labels, None)
        others = gradient[0, [i for i in range(3) if i != place]]
        assert gradient[0, place] < 0 and (others >= 0).all() and others.sum() > 0, place


@except_for(*OVER_THE_BATCH)
def test_many_rows_are_the_mean_of_single_rows(loss, lists):
    scores, labels, mask = lists
    single = [loss()(scores[b : b + 1], labels[b : b + 1], mask[b : b + 1]) for b in range(5)]
    torch.testing.assert_close(loss()(scores, labels, mask), torch.stack(single).mean())


@EVERY_LOSS
def test_reductions_agree(loss, lists):
    """``none`` sums up to ``sum``, as does ``mean`` times the rows; all five can be learnt from."""
    values = {}
    for reduction in ("none", "sum", "mean"):
        made = loss()
        for part in [made, *getattr(made, "losses", [])]:
            part.reduction = reduction
        values[reduction] = made(*lists)
    assert values["none"].shape == (5,)
    torch.testing.assert_close(values["none"].sum(), values["sum"])
    rows = 1 if isinstance(made, BatchAllTripletLoss) and made.average != "row" else 5
    torch.testing.assert_close(values["mean"] * rows, values["sum"])


@EVERY_LOSS
def test_what_is_no_tensor_is_refused(loss, lists):
    """Lists, arrays, and a mask of numbers."""
    made = loss()
    scores, labels, mask = (each.detach() for each in lists)
    with pytest.raises(TypeError, match="scores must be a tensor, got list; make one: torch.as_t"):
        made(scores.tolist(), labels, mask)
    with pytest.raises(TypeError, match="labels must be a tensor, got ndarray"):
        made(scores, labels.numpy(), mask)
    with pytest.raises(TypeError, match="mask must be a tensor, got ndarray"):
        made(scores, labels, mask.numpy())
    with pytest.raises(TypeError, match=r"mask must be a tensor of bool, got torch.int64; call"):
        made(scores, labels, mask.long())


@except_for("WeightedSum")
def test_an_unknown_reduction_is_refused(loss, lists):
    made = loss()
    made.reduction = "max"
    with pytest.raises(ValueError, match="reduction must be one of mean, sum, none, got 'max'"):
        made(*lists)


@except_for(*POINTWISE, *OF_TIES)
def test_a_row_without_anything_to_learn_does_not_dilute_the_mean(loss, lists):
    scores, labels, mask = lists
    one_label = (scores[:2], torch.zeros(2, 7), mask[:2])
    more = [torch.cat(both) for both in zip(lists, one_label, strict=True)]
    torch.testing.assert_close(loss()(*more), loss()(*lists))


@pytest.mark.parametrize("loss", [CASES[n] for n in CASES if n.startswith(POINTWISE)])
def test_a_row_without_documents_does_not_dilute_the_mean_of_pointwise_losses(loss, lists):
    scores, labels, mask = lists
    without = (scores[:2], labels[:2], torch.zeros_like(mask[:2]))
    more = [torch.cat(both) for both in zip(lists, without, strict=True)]
    torch.testing.assert_close(loss()(*more), loss()(*lists))


@EVERY_LOSS
def test_value_and_gradient_are_zero_when_nothing_can_be_learnt(loss, lists, request, size):
    scores, labels, mask = lists
    nothing = [(labels, torch.zeros_like(mask))]
    if not request.node.callspec.id.split("-")[-1].startswith((*POINTWISE, *OF_TIES)):
        # -1: a teacher's score, lower than the 0 of the padding.
        nothing += [(torch.full_like(labels, label), mask) for label in (0, 1, -1)]
        nothing += [(labels, torch.arange(7) < torch.ones(5, 1))]
    for some_labels, some_mask in nothing:
        value, gradient = value_and_gradient(loss(), scores, some_labels, some_mask)
        assert value == 0 and (gradient == 0).all()


@except_for(*POINTWISE, *OF_TIES)
def test_a_row_of_one_label_teaches_nothing_without_a_mask_either(loss, lists):
    """Alone, and beside rows that teach: as with a mask in which every document is one."""
    scores, labels, _ = lists
    labels = torch.cat([labels[:3], torch.full((2, 7), -1.0)])
    everything = torch.ones_like(labels, dtype=torch.bool)
    found = value_and_gradient(loss(), scores, labels, None)
    torch.testing.assert_close(found, value_and_gradient(loss(), scores, labels, everything))
    assert loss()(scores[3:], labels[3:]) == 0


@EVERY_LOSS
def test_a_batch_without_rows_or_columns_gives_zero(loss, size):
    for shape in ((0, 4), (3, 0)):
        scores = torch.zeros(shape, requires_grad=True)
        value, gradient = value_and_gradient(loss(), scores, torch.zeros(shape), None)
        assert value == 0 and gradient.shape == shape


PRECISION = {
    torch.float64: 1e-9,
    torch.float32: 1e-5,
    torch.float16: 1e-3,
    torch.bfloat16: 1e-2,
}


@EVERY_LOSS
def test_large_scores_stay_finite(loss, lists):
    _, labels, mask = lists
    for dtype in PRECISION:
        for sign in (1, -1):
            scores = (sign * 1e4 * (labels - 1)).to(dtype).requires_grad_()
            value, gradient = value_and_gradient(loss(), scores, labels.float(), mask)
            assert value.isfinite() and gradient.isfinite().all(), dtype


@EVERY_LOSS
def test_the_value_is_float32_or_better_and_the_gradient_of_the_scores_type(loss, lists):
    """Half precision only rounds the scores that come in."""
    scores, labels, mask = lists
    for dtype, near in PRECISION.items():
        low = scores.detach().to(dtype).requires_grad_()
        value, gradient = value_and_gradient(loss(), low, labels.float(), mask)
        exact = low.detach().double().requires_grad_()
        expected, expected_gradient = value_and_gradient(loss(), exact, labels, mask)
        assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert gradient.dtype == dtype
        torch.testing.assert_close(value.double(), expected, rtol=2e-5, atol=1e-5)
        torch.testing.assert_close(gradient.double(), expected_gradient, rtol=near, atol=near)


@EVERY_LOSS
def test_a_nan_that_comes_in_goes_out(loss, lists, size):
    """From a score or a label, with a mask or without."""
    scores, labels, mask = lists
    for place in range(7):
        broken = torch.arange(35).view(5, 7) == place
        for some_mask in (mask, None):
            assert loss()(torch.where(broken, torch.nan, scores), labels, some_mask).isnan(), place
            assert loss()(scores, torch.where(broken, torch.nan, labels), some_mask).isnan(), place


@EVERY_LOSS
def test_a_nan_comes_out_of_a_list_that_would_teach_nothing(loss, size):
    """Of documents of one label, and of a document alone; beside a list that teaches, too."""
    scores = torch.tensor([[1.0, 2.0, 3.0], [0.5, 0.0, 1.0]])
    alone = torch.tensor([[False, True, False], [True, True, True]])
    broken = torch.tensor([[False, True, False], [False, False, False]])
    for label, n_lists in itertools.product((0.0, 1.0, -1.0), (1, 2)):
        labels = torch.tensor([[label, label, label], [1.0, 0.0, 0.0]])
        for mask in (None, alone[:n_lists]):
            lists = scores[:n_lists], labels[:n_lists]
            with_nan = [torch.where(broken[:n_lists], torch.nan, one) for one in lists]
            assert loss()(with_nan[0], lists[1], mask).isnan(), label
            assert loss()(lists[0], with_nan[1], mask).isnan(), label


@except_for("BCELoss")
def test_grades_below_zero_are_grades_too(loss, lists, size):
    """Spam may have -1 or -2; where there is nothing to gain the value is 0, not NaN."""
    scores, labels, mask = lists
    for sign in (1, -1):
        signed = scores, sign * (labels - 1.5), mask
        value = loss()(*signed)
        assert value.isfinite(), sign
        torch.testing.assert_close(loss()(*widened(signed)), value)


def second_derivative(loss, lists, weights):
    """Of the loss, in one direction; None if it is refused."""
    scores, labels, mask = lists
    try:
        (gradient,) = torch.autograd.grad(loss(scores, labels, mask), scores, create_graph=True)
    except RuntimeError as error:
        if "no second derivative" not in str(error):
            raise
        return None
    if not gradient.requires_grad:  # piecewise linear
        return torch.zeros_like(gradient)
    return torch.autograd.grad((gradient * weights).sum(), scores, materialize_grads=True)[0]


@EVERY_LOSS
def test_a_second_derivative_is_right_or_refused(loss, lists, size):
    """Never silently the first derivative of a constant."""
    scores, labels, mask = lists
    weights = torch.linspace(-1, 1, 7, dtype=torch.float64)
    step = 1e-6
    ahead, behind = ((scores.detach() + h * weights).requires_grad_() for h in (step, -step))
    numeric = [torch.autograd.grad(loss()(s, labels, mask), s)[0] for s in (ahead, behind)]
    expected = (numeric[0] - numeric[1]) / (2 * step)
    found = second_derivative(loss(), lists, weights)
    if found is not None:
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)


@EVERY_LOSS
def test_labels_get_no_gradient_and_inference_mode_gives_the_same_number(loss, lists, size):
    scores, labels, mask = lists
    teacher = labels.clone().requires_grad_()
    expected = loss()(scores, teacher, mask)
    assert torch.autograd.grad(expected, teacher, allow_unused=True) == (None,)
    with torch.inference_mode():
        assert loss()(scores, labels, mask) == expected


@EVERY_LOSS
def test_wrong_shapes_are_refused(loss):
    with pytest.raises(ValueError, match=r"must share one shape \[B, N\]"):
        loss()(torch.zeros(2, 3), torch.zeros(3, 2))
    with pytest.raises(ValueError, match="scores must be floating, got torch.int64"):
        loss()(torch.zeros(2, 3).long(), torch.zeros(2, 3))


@EVERY_LOSS
def test_a_loss_says_whether_it_takes_a_margin(loss, lists):
    """Those that do not ignore it; the others have another value for a larger one."""
    scores, labels, mask = lists
    small, large = (loss()(scores, labels, mask, torch.full_like(labels, m)) for m in (0.5, 5.0))
    assert (small != large) == loss().takes_margin


@EVERY_LOSS
def test_a_hinge_is_0_from_the_gap_on_that_the_loss_asks_for(loss):
    """Where every gap is what it asks for it is 0, and above 0 a little below that."""
    made = loss()
    labels = torch.tensor([[1.0, 0.0, 0.0]])
    given = torch.tensor([[0.0, 1.5, 0.75]])
    asked = made.asked_margin(given)
    if not made.takes_margin:
        assert asked is None and made.asked_margin(None) is None
    elif isinstance(made, MarginRankingLoss) and not getattr(made, "soft", False):
        gap = torch.as_tensor(asked)
        for gaps, active in ((gap, False), (gap - 0.01, True)):
            scores = torch.tensor([[5.0, 5.0, 5.0]]) - gaps * (labels == 0)
            assert (made(scores, labels, None, given) > 1e-5) == active


def other_values(parameter):
    """Values of an option that are not its default."""
    default = parameter.default
    named = parameter.annotation
    for part in typing.get_args(named):
        if typing.get_origin(part) is typing.Literal:  # or a class of the user's own
            named = part
    choices = typing.get_args(named)
    if typing.get_origin(named) is typing.Literal:
        return [choice for choice in choices if choice != default]
    if isinstance(default, bool):
        return [not default]
    return [2 if default is None else 0.7 * default + 0.2]


@pytest.mark.parametrize("loss", [c for c in EVERY_CLASS if c is not WeightedSum])
def test_every_option_alone_changes_the_value(loss, lists):
    """So none of them is lost on the way; what each does stands in the tests by hand."""
    for name, parameter in inspect.signature(loss).parameters.items():
        for value in other_values(parameter):
            first = {"metric": "err"} if name == "max_grade" else {}
            if value == "precision":
                first = {"k": 2}
            default = loss(**first)(*lists)
            changed = loss(**first, **{name: value})(*lists)
            if name == "reduction" and issubclass(loss, BatchAllTripletLoss):
                continue  # a mean over the batch is the sum of its rows' shares
            assert changed.shape != default.shape or changed != default, (name, value)


@pytest.mark.parametrize("loss", [c for c in EVERY_CLASS if c is not WeightedSum])
def test_a_loss_says_whether_it_distinguishes_grades(loss):
    """Of labels 1, 0.5, 0 and 1, 1, 0 the values differ, or not; under every option."""
    right, wrong, soft, hard = torch.tensor(
        [[[0.3, 0.1, -0.4]], [[-0.4, 0.1, 0.3]], [[1.0, 0.5, 0.0]], [[1.0, 1.0, 0.0]]]
    )
    made = [loss()]
    for name, parameter in inspect.signature(loss).parameters.items():
        for value in other_values(parameter):
            made.append(loss(**{name: value} | ({"k": 2} if value == "precision" else {})))
    for one in made:
        told = any(not torch.equal(one(s, soft), one(s, hard)) for s in (right, wrong))
        assert told == one.distinguishes_grades, vars(one)


@pytest.mark.parametrize("loss", [c for c in EVERY_CLASS if c is not WeightedSum])
def test_a_loss_says_from_which_label_on_all_are_the_same_to_it(loss):
    """Labels 3, 1.5, 0 and 3, 3, 0: BCE takes both first ones for certainly relevant."""
    right, wrong, rated, same = torch.tensor(
        [[[0.3, 0.1, -0.4]], [[-0.4, 0.1, 0.3]], [[3.0, 1.5, 0.0]], [[3.0, 3.0, 0.0]]]
    )
    one = loss()
    told = any(not torch.equal(one(s, rated), one(s, same)) for s in (right, wrong))
    assert told == (one.distinguishes_grades and one.largest_label > 1.5)


@pytest.mark.parametrize("loss", [c for c in EVERY_CLASS if c is not WeightedSum])
def test_a_loss_says_whether_a_document_alone_teaches_it(loss):
    made = [loss()]
    for name, parameter in inspect.signature(loss).parameters.items():
        for value in other_values(parameter):
            made.append(loss(**{name: value} | ({"k": 2} if value == "precision" else {})))
    for one in made:
        scores = torch.tensor([[0.3]], requires_grad=True)
        value = one(scores, torch.tensor([[0.7]])).sum()
        (gradient,) = torch.autograd.grad(value, scores)
        assert bool(gradient != 0) == one.learns_from_one_document, vars(one)


def test_a_sum_tells_grades_if_a_part_does():
    assert not SoftmaxLoss().distinguishes_grades
    assert WeightedSum([SoftmaxLoss(), RankNetLoss()], [1.0, 1.0]).distinguishes_grades
    assert not WeightedSum([SoftmaxLoss(), SoftmaxLoss()], [1.0, 1.0]).distinguishes_grades
    assert WeightedSum([MSELoss(), BCELoss()], [1.0, 1.0]).largest_label == 1
    assert WeightedSum([RankNetLoss(), BCELoss()]).learns_from_one_document
    assert not WeightedSum([RankNetLoss(), SoftmaxLoss()]).learns_from_one_document


@pytest.mark.parametrize("option", ["temperature", "sigma"])
def test_what_would_give_nan_is_refused_before_training(option):
    losses = [c for c in EVERY_CLASS if option in inspect.signature(c).parameters]
    assert len(losses) >= 4
    for loss in losses:
        message = f"{option} must be finite and above 0, got"
        with pytest.raises(InputError, match=message) as refused:
            loss(**{option: 0.0})
        assert refused.value.option == option


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_number_below_0_or_not_finite_is_refused_before_training(value):
    found = {
        (c, name)
        for c in EVERY_CLASS
        for name, p in inspect.signature(c).parameters.items()
        if isinstance(p.default, float)
    }
    named = "margin k mu max_grade pos_weight temperature sigma"
    assert {name for _, name in found} >= set(named.split())
    for loss, option in found:
        message = rf"^{option} must be finite and (above|at least) 0, got {value}"
        with pytest.raises(InputError, match=message) as refused:
            loss(**{option: value})
        assert refused.value.option == option
    with pytest.raises(InputError, match=f"weights must be finite and at least 0, got {value}"):
        WeightedSum([RankNetLoss(), SoftmaxLoss()], [1.0, value])


@EVERY_LOSS
def test_short_and_long_lists_take_forms_of_one_value_and_gradient(loss, lists, monkeypatch):
    scores, labels, mask = lists
    expected = value_and_gradient(loss(), scores, labels, mask)
    take_long_forms(monkeypatch)
    found = value_and_gradient(loss(), scores, labels, mask)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
