"""Dropout by keys: its share of zeros, its mean, what its masks depend on and what not."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BertConfig, BertModel

from ltr import draws
from ltr.batch import RankingBatch, Texts
from ltr.draws import (
    draw_site,
    keys_at_site,
    keys_inside,
    keys_of_lists,
    mixed,
    seed_of_step,
)
from ltr.dropout import KeyedDropout, keyed_dropout, new_keys, use_keyed_dropout
from ltr.models import FeatureRanker
from ltr.models.encoder.text_encoder import TextEncoder


def keys(*shape):
    return torch.randint(-(2**63), 2**63 - 1, shape, generator=torch.Generator().manual_seed(0))


def test_mixed_is_splitmix64():
    """The first numbers of SplitMix64 from the seed 0, as other implementations give them: its state
    after n steps is n times the golden number.
    """
    golden = 0x9E3779B97F4A7C15 - 2**64
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]
    assert [n % 2**64 for n in mixed(torch.arange(1, 5) * golden).tolist()] == expected


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_share_and_mean_are_those_of_coins(p, dtype):
    """Five standard errors: of the share sqrt(q(1-q)/n), of the mean sqrt(q/(1-q)/n)."""
    q = round(256 * p) / 256
    y = keyed_dropout(torch.ones(2500, 400, dtype=dtype), p, keys(2500))
    assert y.dtype == dtype
    assert abs((y == 0).float().mean() - q) < 5 * (q * (1 - q) / y.numel()) ** 0.5
    torch.testing.assert_close(y.max(), torch.tensor(1 / (1 - q), dtype=dtype))
    if dtype == torch.float32:
        assert abs(y.double().mean() - 1) < 5 * (q / (1 - q) / y.numel()) ** 0.5


@pytest.mark.parametrize("given", ["random", "in a row"])
def test_elements_fall_together_as_often_as_chance_has_it(given):
    """Any two of 24 neighbours in a row, and any two of 24 rows, also where their keys are 0, 1, 2…"""
    row_keys = keys(100_000) if given == "random" else torch.arange(100_000)
    dropped = (keyed_dropout(torch.ones(100_000, 24), 0.25, row_keys) == 0).float()
    for table in (dropped, dropped[: 24 * 4000].view(24, -1).T):
        together = (table.T @ table) / len(table)
        expected = torch.full_like(together, 1 / 16).fill_diagonal_(1 / 4)
        # Of 300 pairs the largest deviation: six standard errors.
        assert (together - expected).abs().max() < 6 * (0.25 * 0.75 / len(table)) ** 0.5


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5), (8, 4), (0, 4), (2, 3, 9)])
def test_the_gradient_is_the_mask_times_the_scale(shape):
    x = torch.full(shape, 3.0, requires_grad=True)
    y = keyed_dropout(x, 0.5, keys(*shape[:-1]))
    assert y.shape == shape
    weights = torch.rand(shape)
    (gradient,) = torch.autograd.grad((y * weights).sum(), x)
    torch.testing.assert_close(gradient, weights * 2 * (y != 0))
    torch.testing.assert_close(y, 6.0 * (y != 0))


def test_the_mask_of_a_row_depends_on_its_key_alone():
    """Not on the rows beside it, on how wide it is, or on the layout in memory."""
    x = torch.randn(12, 33)
    row_keys = keys(12)
    whole = keyed_dropout(x, 0.3, row_keys)
    assert torch.equal(keyed_dropout(x[5:7], 0.3, row_keys[5:7]), whole[5:7])
    assert torch.equal(keyed_dropout(x[:, :20], 0.3, row_keys), whole[:, :20])
    assert torch.equal(keyed_dropout(x.T.contiguous().T, 0.3, row_keys), whole)
    assert torch.equal(keyed_dropout(x, 0.3, row_keys), whole)
    assert not torch.equal(keyed_dropout(x, 0.3, row_keys + 1), whole)


def test_the_mask_waits_for_the_backward_pass_in_bytes():
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        keyed_dropout(torch.randn(10, 100, requires_grad=True), 0.1, keys(10))
    assert [x.dtype for x in kept if x.numel() > 1] == [torch.uint8]


class Ops(TorchDispatchMode):
    """The ops of torch below autograd, views left out: as many kernels as a GPU launches, nearly."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if not op.is_view:
            self.names.append(str(op))
        return op(*args, **(kwargs or {}))


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(draws, "takes_kernel", lambda x: True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_op_computes_what_the_definition_does(dtype, monkeypatch):
    """To the bit, in value and gradient, also where the gradient overflows by the scale, and in the
    gradient of the gradient. Nothing is kept for the backward pass but the keys.
    """
    given = (torch.randn(9, 20) * 1e4).to(dtype)
    weights = torch.full((9, 20), 6e4).to(dtype)
    row_keys = keys(9)

    def computed():
        x = given.clone().requires_grad_()
        gradient_of_y = weights.clone().requires_grad_()
        y = keyed_dropout(x, 0.3, row_keys, draw_site(4))
        (gradient,) = torch.autograd.grad(y, x, gradient_of_y, create_graph=True)
        (twice,) = torch.autograd.grad(gradient, gradient_of_y, given)
        return y, gradient, twice

    expected = computed()
    monkeypatch.setattr(draws, "takes_kernel", lambda x: True)
    kept = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x)
    with hooks, Ops() as ops:
        ours = computed()
    assert ops.names.count("ltr.dropped.default") == 3
    assert {x.dtype for x in kept if x.numel() > 1} == {torch.int64}
    assert dtype != torch.float16 or expected[1].isnan().any()
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(one.signbit()[~one.isnan()], other.signbit()[~one.isnan()])


@pytest.mark.usefixtures("as_on_a_gpu")
def test_keys_and_dropout_are_one_launch_each():
    dropout = nn.Sequential(nn.Dropout(0.5))
    model_draws = use_keyed_dropout(dropout)
    x = torch.ones(20, 50, requires_grad=True)
    row_keys = keys(20)
    with model_draws.drawing_for(keys(3), token_keys=row_keys):
        with Ops() as ops:
            y = dropout(x)
        assert ops.names == ["ltr.dropped.default"]
        gradient = torch.ones(20, 50)
        with Ops() as ops:
            torch.autograd.grad(y, x, gradient)
        assert ops.names == ["ltr.dropped.default"]
    with Ops() as ops:
        keys_inside(row_keys, row_keys)
        keys_at_site(row_keys, draw_site(2))
    assert ops.names == ["ltr.keys_inside.default", "ltr.keys_at_site.default"]


@pytest.mark.usefixtures("as_on_a_gpu")
def test_the_ops_are_what_torch_wants_of_ops():
    x = torch.randn(3, 9).T
    torch.library.opcheck(torch.ops.ltr.dropped, (x, keys(9), draw_site(1), 30, False))
    torch.library.opcheck(torch.ops.ltr.keys_at_site, (keys(9), draw_site(1)))
    torch.library.opcheck(torch.ops.ltr.keys_inside, (keys(9).unsqueeze(1), torch.arange(4)))


@pytest.mark.parametrize("on_a_gpu", [False, True])
def test_compiled_it_draws_the_same_and_layers_share_the_code(on_a_gpu, monkeypatch):
    monkeypatch.setattr(draws, "takes_kernel", lambda x: on_a_gpu)
    torch.compiler.reset()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    model = nn.ModuleList([nn.Dropout(0.5) for _ in range(12)])
    model_draws = use_keyed_dropout(model)
    compiled = copy.deepcopy(model)
    compiled_draws = compiled[0].draws
    for layer in compiled:
        layer.compile(backend=backend, dynamic=True, fullgraph=True)
    for n_rows in (20, 30, 7):
        x = torch.ones(n_rows, 50)
        with model_draws.drawing_for(keys(n_rows)), compiled_draws.drawing_for(keys(n_rows)):
            for layer, other in zip(model, compiled, strict=True):
                ours, expected = (x.clone().requires_grad_() for _ in range(2))
                y = layer(expected)
                assert torch.equal(other(ours), y)
    assert len(graphs) == 1


def test_eval_0_and_1():
    model = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.0), nn.Dropout(1.0))
    use_keyed_dropout(model)
    x = torch.randn(10, 4)
    assert model[0].eval()(x) is x and model[1](x) is x
    assert torch.equal(model[2](x), torch.zeros(10, 4))


def test_every_dropout_inside_is_replaced_and_nothing_else():
    shared = nn.Dropout(0.2)
    model = nn.Sequential(
        nn.Linear(4, 4),
        nn.Dropout(0.1),
        nn.ModuleDict({"a": shared, "b": shared}),
        nn.Dropout1d(0.1),
    ).eval()
    model[1].train()
    before = model.state_dict()
    use_keyed_dropout(model)
    assert [type(module).__name__ for module in model.modules()] == [
        "Sequential", "Linear", "KeyedDropout", "ModuleDict", "KeyedDropout", "Dropout1d",
    ]  # fmt: skip
    assert model[1].p == 0.1 and model[2]["b"].p == 0.2
    assert model[1].training and not model[2]["a"].training
    assert model.state_dict().keys() == before.keys()
    assert not list(model.buffers())  # which processes would send each other


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_layers_draw_apart_and_a_copy_draws_the_same(copied):
    model = nn.ModuleList([nn.Dropout(0.5), nn.Dropout(0.5)])
    draws = use_keyed_dropout(model)
    other = copied(model)
    x = torch.ones(20, 50)
    with draws.drawing_for(keys(20)), other[0].draws.drawing_for(keys(20)):
        first, second = (dropout(x) for dropout in model)
        assert not torch.equal(first, second)
        assert torch.equal(other[0](x), first) and torch.equal(other[1](x), second)


def test_without_keys_torch_s_generator_decides():
    dropout = nn.Sequential(nn.Dropout(0.5))
    use_keyed_dropout(dropout)
    x = torch.ones(20, 50)
    torch.manual_seed(1)
    first = dropout(x)
    assert not torch.equal(dropout(x), first)
    torch.manual_seed(1)
    assert torch.equal(dropout(x), first)
    assert new_keys(3, torch.device("cpu")).unique().numel() == 3


def test_a_default_device_moves_no_key():
    with torch.device("meta"):  # as torch.set_default_device("cuda") may say
        assert draw_site(3).device.type == "cpu"
        assert new_keys(4, torch.device("cpu")).device.type == "cpu"


def test_keys_differ_by_seed_epoch_step_place_and_part():
    steps = [(seed, epoch, step) for seed in range(3) for epoch in range(4) for step in range(5)]
    seeds = [seed_of_step(*step) for step in steps]
    assert len(set(seeds)) == len(steps) and all(0 <= seed < 2**63 for seed in seeds)
    of_lists = torch.stack([keys_of_lists(seed, torch.arange(50)) for seed in seeds])
    of_docs = keys_inside(of_lists.unsqueeze(-1), torch.arange(20))
    assert torch.cat([of_lists.flatten(), of_docs.flatten()]).unique().numel() == 60 * 50 * 21


LENGTHS = [7, 1, 20, 3, 7, 12, 2]


def texts(places, of_keys):
    """Some of seven texts, with their keys."""
    ids = torch.randint(3, 60, (sum(LENGTHS),), generator=torch.Generator().manual_seed(0))
    parts = ids.split(LENGTHS)
    chosen = [parts[place] for place in places]
    lengths = torch.tensor([LENGTHS[place] for place in places])
    return Texts(torch.cat(chosen), lengths, keys=of_keys[places])


@pytest.mark.parametrize("attention", [0.0, 0.3])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_text_is_read_with_its_own_masks_beside_any_others(pooling, attention):
    """In one chunk or in several, packed or padded, in another order, with activations kept or
    computed again: the same outputs and gradients, and others under other keys.
    """
    config = BertConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, hidden_dropout_prob=0.3, attention_probs_dropout_prob=attention,
    )  # fmt: skip
    torch.manual_seed(0)
    model = BertModel(config, add_pooling_layer=False).train()
    of_keys = keys(len(LENGTHS))
    every = list(range(len(LENGTHS)))

    def read(places_of_parts, of_keys=of_keys, padded=False, **options):
        options = TextEncoder.Options(pooling=pooling, **options)
        encoder = TextEncoder(copy.deepcopy(model), 0, options)
        assert encoder.reads_packed
        if padded:
            encoder.reads_packed = False
            encoder.model.set_attn_implementation("sdpa")
        outputs = torch.zeros(len(LENGTHS), 16)
        for places in places_of_parts:
            outputs = outputs.index_add(0, torch.tensor(places), encoder(texts(places, of_keys)))
        outputs.square().sum().backward()
        return [outputs.detach(), *(p.grad for p in encoder.parameters() if p.grad is not None)]

    whole = read([every])
    others = [
        read([every[::2], every[1::2]]),
        read([[place] for place in every]),
        read([every[::-1]], max_tokens=15),
        read([every], max_tokens=15, keep_tokens=0),
        read([every], kernels="plain"),
    ]
    if attention == 0:  # torch's own attention reads padded texts, and draws by itself
        others.append(read([every], padded=True))
    for other in others:
        for ours, expected in zip(other, whole, strict=True):
            torch.testing.assert_close(ours, expected, atol=2e-5, rtol=1e-4)
    assert (read([every], of_keys + 1)[0] - whole[0]).abs().mean() > 0.05


@pytest.mark.parametrize("preset", ["mlp", "deep", "list_attention"])
def test_feature_rankers_draw_for_each_list_alone(preset):
    torch.manual_seed(0)
    model = FeatureRanker(4, preset)
    mask = torch.arange(6) < torch.tensor([6, 2, 4, 1]).unsqueeze(1)
    features = torch.randn(4, 6, 4) * mask.unsqueeze(-1)
    batch = RankingBatch(mask.float(), mask, torch.arange(4), torch.zeros(4, 6), features=features)
    whole = model(batch.with_keys(keys(4)))
    for row, n_docs in enumerate([6, 2, 4, 1]):
        alone = RankingBatch(
            batch.labels[[row], :n_docs],
            mask[[row], :n_docs],
            torch.tensor([row]),
            batch.doc_rows[[row], :n_docs],
            features=features[[row], :n_docs],
        )
        scores = model(alone.with_keys(keys(4)[[row]]))
        torch.testing.assert_close(scores[0], whole[row, :n_docs], atol=1e-5, rtol=1e-5)
    assert (model(batch.with_keys(keys(4) + 1)) - whole).abs().max() > 0.01
    assert isinstance(model.layers[2 if preset == "mlp" else 3], KeyedDropout)
