"""Tiny encoders by themselves, texts for them, and how the gradients of two are compared."""

from collections import Counter

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BertConfig, BertModel, ModernBertConfig, ModernBertModel

from ltr.batch import Texts
from ltr.models.encoder.text_encoder import TextEncoder

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 60,
}
SPECIAL = {"bos_token_id": 0, "eos_token_id": 2, "cls_token_id": 0, "sep_token_id": 2}
# One layer sees everything, one its neighbours.
LOCAL = {"local_attention": 8, "global_attn_every_n_layers": 2}
# One token, equal ones, and longer than the window of local attention.
LENGTHS = [7, 1, 20, 3, 7, 12, 7, 1, 5]
NO_TEXTS = Texts(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))


def with_large_weights(model, std=0.3):
    """Initial weights are so small that attention is all but uniform."""
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=std)
    return model


def bert(kind=BertModel, dropout=0.0, std=0.3, seed=0, **changes):
    """A BERT without its pooler, or of another kind with one score."""
    torch.manual_seed(seed)
    options = {"attention_probs_dropout_prob": 0.0, "num_labels": 1} | changes
    config = BertConfig(**SIZES | {"hidden_dropout_prob": dropout} | options)
    model = with_large_weights(kind(config), std)
    if kind is BertModel:
        model.pooler = None
    return model


def modernbert(**changes):
    torch.manual_seed(0)
    return ModernBertModel(
        ModernBertConfig(**SIZES | SPECIAL | LOCAL | {"pad_token_id": 1} | changes)
    )


def reader(model, pad_id=0, **options):
    return TextEncoder(model, pad_id, TextEncoder.Options(**options))


def texts(lengths=LENGTHS, seed=0, ids=(3, 60), keys=False, types=False):
    """Random ones; ``ids`` from the first to before the second."""
    generator = torch.Generator().manual_seed(seed)
    of = Texts(torch.randint(*ids, (sum(lengths),), generator=generator), torch.tensor(lengths))
    if types:
        of = of._replace(type_ids=torch.randint(2, of.ids.shape, generator=generator))
    return of._replace(keys=torch.arange(len(lengths)) * 7919) if keys else of


def one_by_one(model, of, pooling):
    """The pooled hidden states of each text, read by itself."""
    poolings = {
        "cls": lambda hidden: hidden[0],
        "mean": lambda hidden: hidden.mean(dim=0),
        "max": lambda hidden: hidden.max(dim=0).values,
        "last": lambda hidden: hidden[-1],
    }
    rows = of.ids.split(of.lengths.tolist())
    return torch.stack([poolings[pooling](model(row[None]).last_hidden_state[0]) for row in rows])


def logits_one_by_one(model, of):
    """The scores of each text, read by itself."""
    return torch.cat([model(row[None]).logits[:, 0] for row in of.ids.split(of.lengths.tolist())])


def gradients(model, loss):
    """Of all weights that have one, by name."""
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same_gradients(found, expected):
    """To 1e-5 of the largest number in each, or of 1."""
    assert found.keys() == expected.keys() and found
    for name, gradient in found.items():
        largest = expected[name].abs().max().clamp(min=1)
        difference = (gradient - expected[name]) / largest
        assert difference.abs().max() < 1e-5, name


def assert_same_to_rounding(found, expected, dtype):
    """Outputs with gradients, in float32 to 1e-5. In half precision outputs are near in value."""
    if dtype == torch.float32:
        torch.testing.assert_close(found[0], expected[0], atol=1e-5, rtol=1e-5)
        assert_same_gradients(found[1], expected[1])
    else:
        assert torch.cosine_similarity(found[0], expected[0]).min() > 0.999


def save_gradients_of_rank(rank, folder, build, value_and_gradients, texts_of_ranks):
    """What one of two processes has after a step on its texts, as a file by its rank."""
    store = f"file://{folder}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    encoder = DistributedDataParallel(build())
    for _ in range(2):  # the second step finds out what the first has not finished
        _, found = value_and_gradients(encoder, texts_of_ranks[rank])
    torch.save({name.removeprefix("module."): g for name, g in found.items()}, f"{folder}/{rank}")
    torch.distributed.destroy_process_group()


class Calls(TorchDispatchMode):
    """Counts operators that are called, also by the shape of what they read, and casts to bfloat16
    by shape (weights that autocast has cast it keeps).
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.reads: Counter[tuple[str, tuple[int, ...]]] = Counter()
        self.cast: Counter[tuple[int, ...]] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.calls[name] += 1
        if args and isinstance(args[0], torch.Tensor):
            shape = tuple(args[0].shape)
            self.reads[name, shape] += 1
            self.cast[shape] += name == "_to_copy" and (kwargs or {}).get("dtype") == torch.bfloat16
        return func(*args, **(kwargs or {}))
