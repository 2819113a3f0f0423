import math

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ltr.__main__ import main
from ltr.batch import ScoredLists
from ltr.data.collection import open_collection
from ltr.errors import InputError
from ltr.losses import MarginRankingLoss
from ltr.margins import Annealed, Constant, FromDistance, FromDocuments, FromQuery, LabelGap, Learnable, NormalSample
from ltr.mining.negatives import MinedNegatives
from tests.cli.test_command import write_config


def lists_of(labels, mask=None, **others) -> ScoredLists:
    """Lists with scores of 0."""
    labels = torch.as_tensor(labels)
    mask = torch.ones_like(labels).bool() if mask is None else torch.as_tensor(mask)
    return ScoredLists(torch.zeros_like(labels), labels, mask, **others)


def one_list(h: torch.Tensor) -> ScoredLists:
    """Representations ``[B, N, H]`` without padding."""
    return lists_of(torch.zeros(h.shape[:2]), embeddings=h)


def plain_distances(h: torch.Tensor) -> torch.Tensor:
    return (h.unsqueeze(2) - h.unsqueeze(1)).norm(dim=3)


# Values by hand


def test_constant():
    assert Constant(0.25)(lists_of([[1.0, 0.0]])).tolist() == [[0.25, 0.25]]


def test_label_gap_by_hand():
    """y = (2, 0, 1) and half a unit of score per grade; rows are the more relevant documents."""
    assert LabelGap(0.5)(lists_of([[2.0, 0.0, 1.0]])).tolist() == [[[0.0, 1.0, 0.5], [0.0, 0.0, 0.0], [0.0, 0.5, 0.0]]]


def test_from_distance_by_hand():
    margin = FromDistance(k=0.5, power=0.5, cap=1.2)(
        lists_of([[0.0, 0.0, 0.0]], distances=torch.tensor([[4.0, 9.0, 0.0]], requires_grad=True))
    )
    assert margin.tolist() == [[1.0, pytest.approx(1.2), 0.0]] and not margin.requires_grad


def test_from_documents_by_hand():
    """Documents (1, 0), (0, 2), (-3, 0): cosines 0, -1 and 0, so half the scale, nothing, and the scale for equal ones."""
    h = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]]], requires_grad=True)
    margin = FromDocuments(scale=4.0)(one_list(h))
    assert margin.tolist() == [[[4.0, 2.0, 0.0], [2.0, 4.0, 2.0], [0.0, 2.0, 4.0]]] and not margin.requires_grad
    assert FromDocuments(gradient=True)(one_list(h)).requires_grad


def test_from_query_by_hand():
    """The query (2, 0) against (1, 0), (0, 2) and (-3, 0): nothing, half the scale and the scale."""
    q, h = torch.tensor([[2.0, 0.0]], requires_grad=True), torch.tensor([[[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]]])
    given = one_list(h)._replace(queries=q)
    margin = FromQuery(scale=4.0)(given)
    assert margin.tolist() == [[0.0, 2.0, 4.0]] and not margin.requires_grad
    assert FromQuery(gradient=True)(given).requires_grad


def test_normal_sample_gives_the_easier_negative_the_larger_draw():
    """Negatives at distances 5, 2 and 9 have ranks 1, 0 and 2 among the first three draws of the row; the last is padding."""
    given = lists_of([[1.0, 0.0, 0.0, 0.0, 0.0]], [[True] * 4 + [False]], distances=torch.tensor([[0.0, 5.0, 2.0, 9.0, 7.0]]))
    margin = NormalSample(mean=1.0, std=0.1, low=0.0, high=2.0, seed=7)(given)
    draws = sorted(np.random.default_rng([7, 0, 0]).normal(1.0, 0.1, (1, 5))[0, :3])
    assert margin[0, 1:4].tolist() == pytest.approx([draws[1], draws[0], draws[2]])


def test_learnable_by_hand():
    """h = (0, 0), (3, 4), (0, 1): distances 5, 1 and √18; k = 0.1 within [0.2, 0.45]; the gradient is k times the unit vector."""
    h = torch.tensor([[[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]]], requires_grad=True)
    margin = Learnable(k=0.1, floor=0.2, cap=0.45)(one_list(h))
    middle = 0.1 * math.sqrt(18)
    expected = torch.tensor([[[0.2, 0.45, 0.2], [0.45, 0.2, middle], [0.2, middle, 0.2]]])
    torch.testing.assert_close(margin, expected)
    margin[0, 1, 2].backward()
    unit = torch.tensor([3.0, 3.0]) / math.sqrt(18)
    torch.testing.assert_close(h.grad[0], 0.1 * torch.stack([torch.zeros(2), unit, -unit]))


def test_annealed_by_hand():
    """4 batches from 0 to 2: 0, 0.5, 1, 1.5, and 2 from there on."""
    policy = Annealed(Constant(2.0), steps=4)
    assert [policy(lists_of([[1.0]])).item() for _ in range(6)] == [0.0, 0.5, 1.0, 1.5, 2.0, 2.0]


# Laws


@pytest.fixture
def lists():
    torch.manual_seed(0)
    labels = torch.randint(0, 3, (40, 9)).float()
    mask = torch.rand(40, 9) < 0.8
    distances, scores = torch.rand(40, 9), torch.randn(40, 9)
    return ScoredLists(scores, labels, mask, distances)


def negatives(given: ScoredLists) -> torch.Tensor:
    best = torch.where(given.mask, given.labels, -1.0).amax(dim=1, keepdim=True)
    return given.mask & (given.labels < best)


@pytest.mark.parametrize("by", ["distances", "scores"])
def test_normal_sample_orders_each_list(lists, by):
    given = lists if by == "distances" else lists._replace(distances=None)
    ease = given.distances if by == "distances" else -given.scores
    margin = NormalSample()(given)
    assert margin.shape == (40, 9) and not margin.requires_grad
    assert (margin >= 1e-4).all() and (margin <= 0.5).all()
    for row, real in enumerate(negatives(given)):
        in_order = margin[row, real][ease[row, real].argsort()]
        assert (in_order.diff() >= 0).all()


def test_no_gradient_reaches_scores_or_distances_through_a_margin_of_them(lists):
    given = lists._replace(scores=lists.scores.requires_grad_(), distances=lists.distances.clone().requires_grad_())
    for policy in (NormalSample(), FromDistance(), Annealed(NormalSample(), steps=3)):
        assert not policy(given).requires_grad
    assert not NormalSample()(given._replace(distances=None)).requires_grad


def test_normal_sample_heeds_neither_padding_nor_order(lists):
    expected = NormalSample()(lists)
    real = negatives(lists)
    noise = torch.where(lists.mask, lists.distances, 1e4 * torch.randn(40, 9))
    other = torch.where(lists.mask, lists.labels, 9.0)
    assert torch.equal(NormalSample()(lists._replace(distances=noise, labels=other))[real], expected[real])
    order = torch.randperm(9)
    moved = ScoredLists(*(x[:, order] if isinstance(x, torch.Tensor) else x for x in lists))
    assert torch.equal(NormalSample()(moved)[real[:, order]], expected[:, order][real[:, order]])


def test_normal_sample_has_its_distribution():
    """20,000 draws: the mean within 5 standard errors; rows, batches, seeds and ranks draw apart."""
    given = lists_of([[1.0] + [0.0] * 20] * 1000, distances=torch.rand(1000, 21))
    policy = NormalSample(mean=0.3, std=0.05, low=0.0, high=1.0)
    first = policy(given)[:, 1:]
    assert abs(first.mean() - 0.3) < 5 * 0.05 / math.sqrt(20_000) and abs(first.std() - 0.05) < 0.002
    assert not torch.equal(first[0], first[1]) and not torch.equal(policy(given)[:, 1:], first)
    assert not torch.equal(NormalSample(mean=0.3, std=0.05, low=0.0, high=1.0, seed=1)(given)[:, 1:], first)


def test_ranks_draw_apart_unless_they_share_their_lists(lists, monkeypatch):
    alone = NormalSample()(lists)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
    assert torch.equal(NormalSample()(lists), alone)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    assert not torch.equal(NormalSample()(lists), alone)
    assert torch.equal(NormalSample()(lists._replace(shared=True)), alone)


def test_normal_sample_leaves_the_global_random_state_alone(lists):
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    NormalSample()(lists)
    after = torch.rand(1), np.random.rand()  # noqa: NPY002
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    assert after == (torch.rand(1), np.random.rand())  # noqa: NPY002


@pytest.mark.parametrize("make", [NormalSample, lambda: Annealed(Constant(), steps=9), lambda: Annealed(NormalSample(), steps=4)])
def test_a_resumed_policy_goes_on(lists, make):
    policy, resumed = make(), make()
    for _ in range(3):
        policy(lists)
    resumed.load_state_dict({name: value.clone() for name, value in policy.state_dict().items()})
    for _ in range(2):
        assert torch.equal(resumed(lists), policy(lists))
    assert not torch.equal(policy(lists), make()(lists))


def test_learnable_has_the_gradient_of_the_plain_form():
    torch.manual_seed(0)
    h = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    policy = Learnable(k=0.3, floor=1e-3, cap=50.0).double()
    weight = torch.randn(2, 4, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda h: policy(one_list(h)) * weight, (h,))
    off = ~torch.eye(4).bool()  # the plain form has no gradient at 0
    ours = torch.autograd.grad((policy(one_list(h)) * weight)[:, off].sum(), (h, policy.theta))
    k = 0.3 * 2 ** policy.theta.tanh()
    distinct = torch.stack([(h[:, i] - h[:, j]).norm(dim=1) * weight[:, i, j] for i in range(4) for j in range(4) if i != j])
    plain = torch.autograd.grad(k * distinct.sum(), (h, policy.theta))
    torch.testing.assert_close(ours, plain)


@pytest.mark.parametrize("floor", [1e-30, 0.1])
def test_learnable_is_quiet_where_there_is_no_distance(floor):
    """Equal documents, i = j, and padding (NaN even): no gradient, and none that is not a number; large means lose no digits."""
    h = torch.randn(1, 1, 8).repeat(1, 4, 1) + 1e3
    h[0, 3] = torch.nan
    h.requires_grad_()
    labels = torch.zeros(1, 4)
    policy = Learnable(floor=floor, cap=1e9)
    margin = policy(lists_of(labels, torch.tensor([[True, True, True, False]]), embeddings=h))
    assert torch.isfinite(margin).all() and (margin[0, :3, :3] == floor).all()
    margin[0, :3, :3].sum().backward()
    assert (h.grad == 0).all() and policy.theta.grad == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_learnable_counts_in_float32(dtype):
    h = torch.randn(2, 5, 16).to(dtype)
    margin = Learnable(k=0.1)(one_list(h))
    assert margin.dtype == torch.float32
    torch.testing.assert_close(margin, (0.1 * plain_distances(h.float())).clamp(0.1, 1.0))


def test_learnable_needs_no_tensor_of_all_differences():
    """B = 2, N = 8, H = 64: nothing larger than B·N·H, forwards and backwards."""

    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            for one in out if isinstance(out, tuple) else (out,):
                self.elements = max(self.elements, one.numel() if isinstance(one, torch.Tensor) else 0)
            return out

    h = torch.randn(2, 8, 64, requires_grad=True)
    with Largest() as seen:
        Learnable()(one_list(h)).sum().backward()
    assert seen.elements == 2 * 8 * 64


@pytest.mark.parametrize("learnt", ["k", "h", "both"])
def test_a_learnt_margin_shrinks_to_its_bounds_and_no_further(learnt):
    """The scores stay, so the loss can fall through the margin alone: k falls to k₀/2, or every margin to the floor."""
    torch.manual_seed(0)
    policy = Learnable(k=0.2, floor=0.05, cap=10.0)
    h = torch.nn.Parameter(torch.randn(3, 5, 4))
    labels = torch.tensor([[2.0, 1.0, 0.0, 0.0, 0.0]]).expand(3, 5)
    pair_bij = labels.unsqueeze(2) > labels.unsqueeze(1)
    optimizer = torch.optim.Adam({"k": [policy.theta], "h": [h], "both": [policy.theta, h]}[learnt], lr=0.05)
    start = policy(one_list(h))[pair_bij]
    for _ in range(400):
        margin = policy(one_list(h))
        assert margin.min() >= 0.05 and policy.k >= 0.1
        optimizer.zero_grad()
        MarginRankingLoss()(torch.zeros(3, 5), labels, margin=margin).backward()
        optimizer.step()
    end = policy(one_list(h))[pair_bij]
    if learnt == "k":
        assert policy.k < 0.101
        torch.testing.assert_close(end, (start / 2).clamp(min=0.05), rtol=0.01, atol=0)
    else:
        assert start.mean() > 0.4 and (end < 0.06).all()


def test_the_floor_cuts_the_gradient_and_so_does_the_cap():
    h = torch.tensor([[[0.0], [1.0], [2.0], [9.0]]], requires_grad=True)
    policy = Learnable(k=1.0, floor=1.5, cap=8.5)
    margin = policy(one_list(h))
    for j, cut in ((1, True), (2, False), (3, True)):
        gradients = torch.autograd.grad(margin[0, 0, j], (h, policy.theta), retain_graph=True)
        assert all((g == 0).all() == cut for g in gradients)


def test_annealed_wants_what_its_policy_wants():
    assert Annealed(Learnable(), steps=2).wants_embeddings and not Annealed(Constant(), steps=2).wants_embeddings
    of_query = Annealed(FromQuery(encoder="other"), steps=2)
    assert of_query.wants_queries and of_query.encoder == "other" and not of_query.wants_distances


@pytest.mark.parametrize("rows", [1, 3])
def test_rows_that_share_their_documents_have_the_margins_of_rows_that_repeat_them(rows):
    torch.manual_seed(0)
    shared, q, labels = torch.randn(1, 5, 8), torch.randn(rows, 8), torch.zeros(rows, 5)
    for policy in (FromDocuments(scale=2.0), FromQuery(scale=2.0)):
        margin = policy(lists_of(labels, embeddings=shared, queries=q))
        assert margin.shape[:2] == (rows, 5)
        torch.testing.assert_close(margin, policy(lists_of(labels, embeddings=shared.expand(rows, -1, -1), queries=q)))


def test_from_query_is_a_quarter_of_the_squared_distance_of_unit_vectors():
    torch.manual_seed(0)
    q, h = (torch.nn.functional.normalize(x, dim=-1) for x in (torch.randn(2, 8), torch.randn(2, 5, 8)))
    given = one_list(h)._replace(queries=q, distances=(q.unsqueeze(1) - h).norm(dim=2))
    torch.testing.assert_close(FromQuery(scale=3.0)(given), FromDistance(k=0.75, power=2.0)(given))


@pytest.mark.parametrize("policy", [FromDocuments(encoder="other"), FromQuery(encoder="other")], ids=lambda p: type(p).__name__)
def test_a_frozen_encoder_replaces_the_ranker(policy):
    torch.manual_seed(0)
    own, other = ((torch.randn(2, 8), torch.randn(2, 5, 8)) for _ in range(2))
    given = one_list(own[1])._replace(queries=own[0], frozen=other)
    alone = one_list(other[1])._replace(queries=other[0])
    assert torch.equal(policy(given), type(policy)()(alone))
    with pytest.raises(InputError, match="needs the embeddings of queries and documents, got none"):
        policy(alone)


def test_normal_sample_goes_by_score_where_a_negative_has_no_distance(lists):
    row, column = negatives(lists).nonzero()[0]
    lists.distances[row, column] = torch.nan
    assert torch.equal(NormalSample()(lists), NormalSample()(lists._replace(distances=None)))


def test_a_ranker_without_queries_needs_the_distance_of_every_negative():
    given = lists_of([[1.0, 0.0, 0.0]], [[True, True, False]], distances=torch.tensor([[math.nan, 2.0, math.nan]]))
    assert FromDistance()(given)[0, 1] == 2.0  # neither the relevant document's nor the padding's is used
    with pytest.raises(InputError, match="needs a batch with distances, got negatives without one"):
        FromDistance()(given._replace(distances=torch.tensor([[0.0, math.nan, 2.0]])))


# Bad input


BAD = {
    "Constant: value": lambda: Constant(-1.0),
    "LabelGap: scale": lambda: LabelGap(0.0),
    "FromDistance: k and power": lambda: FromDistance(power=-1.0),
    "FromDistance: cap": lambda: FromDistance(cap=0.0),
    "FromDocuments: scale": lambda: FromDocuments(scale=0.0),
    "FromQuery: gradient must be false with a frozen encoder": lambda: FromQuery(encoder="other", gradient=True),
    "NormalSample: low and high .* got 0.6, 0.5": lambda: NormalSample(low=0.6),
    "NormalSample: mean": lambda: NormalSample(mean=math.nan),
    "NormalSample: std": lambda: NormalSample(std=-0.1),
    "NormalSample: seed": lambda: NormalSample(seed=-1),
    "Learnable: k": lambda: Learnable(k=0.0),
    "Learnable: floor and cap must be 0 < floor < cap, got 2.0, 1.0": lambda: Learnable(floor=2.0),
    "Annealed: steps": lambda: Annealed(Constant(), steps=0),
}


@pytest.mark.parametrize("message", BAD)
def test_options_are_checked(message):
    with pytest.raises(InputError, match=message):
        BAD[message]()


@pytest.mark.parametrize("policy", [FromDistance(), FromDocuments(), FromQuery(), Learnable()], ids=lambda p: type(p).__name__)
def test_a_policy_says_what_it_misses(policy):
    with pytest.raises(ValueError, match=f"{type(policy).__name__} needs .*got none"):
        policy(lists_of([[1.0, 0.0]]))


# In a configuration


CONFIGURED = [
    {"class_path": "ltr.margins.Constant", "init_args": {"value": 0.5}},
    {"class_path": "ltr.margins.LabelGap", "init_args": {"scale": 0.5}},
    {"class_path": "ltr.margins.FromDistance", "init_args": {"k": 0.5, "power": 0.5, "cap": 1.0}},
    {"class_path": "ltr.margins.FromDocuments", "init_args": {"scale": 0.5}},
    {"class_path": "ltr.margins.NormalSample", "init_args": {"mean": 0.2, "seed": 3}},
    {"class_path": "ltr.margins.Learnable", "init_args": {"k": 0.05, "cap": 0.5}},
    {
        "class_path": "ltr.margins.Annealed",
        "init_args": {"margin": {"class_path": "ltr.margins.Learnable", "init_args": {"k": 0.05}}, "steps": 4},
    },
]


@pytest.mark.parametrize("margin", CONFIGURED, ids=lambda m: m["class_path"].rpartition(".")[2])
def test_every_policy_is_named_in_a_configuration(margin, tmp_path, backbone, collection_folder):
    """And its checkpoint is resumed and tested by the configuration of the run."""
    collection = open_collection(str(collection_folder))
    ids = np.tile(np.arange(4), (len(collection.queries), 1))
    MinedNegatives(ids, ids.astype(np.float32), {"seed": 0}).save(tmp_path / "negatives", collection)
    changes = {
        "model.loss": {"class_path": "ltr.losses.MarginRankingLoss"},
        "model.margin": margin,
        "data.init_args.negatives": str(tmp_path / "negatives"),
    }
    config = write_config(tmp_path, backbone, collection_folder, **changes)
    assert main(["fit", "--config", str(config), "--trainer.max_steps", "2"]) == 0
    again = str(tmp_path / "run/config.yaml")
    assert main(["fit", "--config", again, "--trainer.max_steps", "4", "--ckpt_path", "last"]) == 0
    assert main(["test", "--config", again, "--ckpt_path", "last"]) == 0


def test_rows_that_share_their_documents_share_their_learnt_margins():
    """[1, N, H] gives what N documents repeated in each of three rows give."""
    torch.manual_seed(0)
    shared, labels, mask = torch.randn(1, 5, 8), torch.zeros(3, 5), torch.ones(3, 5, dtype=torch.bool)
    margin = Learnable()(lists_of(labels, mask, embeddings=shared))
    repeated = Learnable()(lists_of(labels, mask, embeddings=shared.expand(3, -1, -1).clone()))
    assert margin.shape == (3, 5, 5)
    torch.testing.assert_close(margin, repeated)
