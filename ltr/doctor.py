"""Does this machine compute the right numbers? What runs on it, and each way of computing against a
plain one.

Each check runs the code that training and search run. See ``docs/performance.md``.
"""

import datetime
import os
import re
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor, distributed, nn
from torch.multiprocessing import spawn
from transformers import BertConfig, BertModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ltr.data.formats import SingleTexts
from ltr.data.tokens import Tokens
from ltr.errors import InputError
from ltr.in_batch.embedded import Embedded
from ltr.in_batch.gather import gather_lists
from ltr.in_batch.longer_lists import queries_against_all
from ltr.losses import SoftmaxLoss
from ltr.models.encoder import attention, text_encoder
from ltr.models.encoder.kernels.linear import mkl_is_slow
from ltr.models.encoder.loading.pretrained import load_encoder, load_tokenizer, max_positions
from ltr.models.encoder.packed import one_line
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.run.provenance import provenance
from ltr.search.approximate import FaissIndex
from ltr.search.encode import encode_in_memory
from ltr.search.exact import search_exactly
from ltr.similarity import dot, similarity_of

FEATURES = (
    "avx2",
    "avx512_f",
    "avx512_bf16",
    "amx_bf16",
)  # of a CPU, that decide which kernels are fast
HALVES = {
    "cpu": (torch.bfloat16,),
    "cuda": (torch.bfloat16, torch.float16),
}  # what autocast is checked with
# relative error of padded reading from which on it is no safe path; bfloat16 makes 0.01 to 0.1
PADDED_MOST = 0.25
LEAST_COSINE = 0.999  # of the embeddings of a text in half precision and in float32
SAME = 1e-4  # relative, of float32 sums in another order


class Finding(NamedTuple):
    """A line of the report.

    Attributes:
        what: was looked at.
        uses: the way taken on this machine.
        result: empty where nothing is checked; ``fell back``: a check failed, and another way is
            taken by itself; ``wrong``: a check failed, and no other way is taken.
        why: the numbers, or the reason.
    """

    what: str
    uses: str
    result: Literal["", "ok", "fell back", "not run", "wrong"] = ""
    why: str = ""


def examine(backbone: str | None = None) -> Iterator[Finding]:
    """Look at the machine, then run the checks, one after the other.

    Args:
        backbone: hub id, folder, or ``package:NAME``; None: a tiny BERT with new weights.

    Raises:
        InputError: if the backbone can't be loaded.
    """
    encoder, tokenizer = _tiny() if backbone is None else _loaded(backbone)
    yield from machine()
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    for device in devices:
        yield from check_attention(encoder.to(device))
    for dtype in HALVES[devices[-1]]:
        yield check_encoding(encoder, tokenizer, dtype)
    yield check_search("Flat")
    yield check_search("IVF1,Flat")
    yield check_gather("gloo")
    yield check_gather("nccl")


def machine() -> Iterator[Finding]:
    """What the numbers come from: processor, GPUs, versions, allocator, linear layers."""
    found = provenance()
    able = torch.cpu.get_capabilities()
    yield Finding("machine", found["machine"])
    yield Finding(
        "CPU features", ", ".join(name if able.get(name) else f"no {name}" for name in FEATURES)
    )
    for number in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(number)
        yield Finding(
            f"GPU {number}",
            f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GB, sm_{gpu.major}{gpu.minor}",
        )
    for name in ("ltr", "python"):
        yield Finding(name, found[name])
    for name, version in found["packages"].items():
        yield Finding(name, version)
    maps = Path("/proc/self/maps")
    loaded = re.search("jemalloc|tcmalloc|mimalloc", maps.read_text() if maps.is_file() else "")
    yield Finding("allocator", loaded[0] if loaded else "the system's malloc")
    by, why = ("oneDNN", "torch's own is slow on this CPU") if mkl_is_slow() else ("torch", "")
    yield Finding("linear layers, CPU, float32", by, why=why)


def check_attention(encoder: TextEncoder) -> Iterator[Finding]:
    """Packed against padded reading in each precision, in training and inference."""
    device = next(encoder.parameters()).device.type
    for dtype in (None, *HALVES[device]):
        for stage in ("training", "inference"):
            what = f"attention, {_device(device)}, {_name(dtype)}, {stage}"
            if not encoder.reads_packed:
                yield Finding(
                    what, "padded, by transformers", why="this encoder can't read packed texts"
                )
                continue
            with torch.set_grad_enabled(stage == "training"):
                uses = _kernel(device, dtype or torch.float32)
                try:
                    check = encoder.check_packed(dtype)
                except RuntimeError as error:
                    yield Finding(
                        what, uses, "wrong", f"padded texts can't be read ({one_line(error)})"
                    )
                    continue
            if not check.fault:
                yield Finding(
                    what, uses, "ok", f"off by {check.error:.1g}, padded by {check.rounding:.1g}"
                )
            elif device in text_encoder.CHECKS_ITSELF and check.rounding <= PADDED_MOST:
                yield Finding(
                    what, "padded, by transformers", "fell back", f"packed texts {check.fault}"
                )
            else:
                yield Finding(what, uses, "wrong", f"packed texts {check.fault}")


def check_encoding(
    encoder: TextEncoder, tokenizer: PreTrainedTokenizerBase, dtype: torch.dtype
) -> Finding:
    """Texts encoded for a search under autocast, against float32."""
    draw = np.random.default_rng(0)
    offsets = np.cumsum([0, *draw.integers(1, 60, size=64)])
    store = Tokens(
        draw.integers(0, encoder.model.config.vocab_size, size=offsets[-1], dtype=np.int32), offsets
    )
    form = SingleTexts(tokenizer, min(48, max_positions(encoder.model) or 48))
    device = next(encoder.parameters()).device.type
    found = torch.empty(2, len(store), encoder.model.config.hidden_size)
    for row, enabled in enumerate((False, True)):
        with torch.autocast(device, dtype=dtype, enabled=enabled):
            embeddings = encode_in_memory(encoder, store, form, np.arange(len(store)))
            found[row] = torch.from_numpy(embeddings)
    least = torch.cosine_similarity(found[0], found[1], dim=1).amin().item()
    result: Literal["ok", "wrong"] = "ok" if least >= LEAST_COSINE else "wrong"
    return Finding(
        f"encoding, {_device(device)}, {_name(dtype)}",
        "autocast",
        result,
        f"cosine to float32 at least {least:.5f}",
    )


def check_search(factory: str) -> Finding:
    """The ten best of 1,000 random documents against a sort; of equal documents any may be found."""
    draw = np.random.default_rng(0)
    docs, queries = (draw.standard_normal((n, 64), dtype=np.float32) for n in (1000, 20))
    docs[1::100] = docs[::100]
    what = f"search, {factory}"
    uses = _device("cuda" if torch.cuda.is_available() else "cpu")
    prepare = partial(similarity_of("dot").prepare, centre=None)
    why = ""
    try:
        if factory == "Flat":
            scores, rows = search_exactly(docs, queries, 10, prepare, squared=False)
        else:
            index = FaissIndex.build(docs, prepare, factory, squared=False, probes=1, seed=0)
            why = "" if index.on_gpu or uses == "CPU" else "; faiss can't search it on the GPU"
            uses = "faiss, GPU" if index.on_gpu else "faiss, CPU"
            scores, rows = index.search(queries, 10, squared=False)
    except InputError as error:
        return Finding(what, "", "not run", error.message)
    except RuntimeError as error:
        return Finding(what, uses, "wrong", one_line(error))
    every = torch.from_numpy(queries.astype(np.float64) @ docs.T)
    best = every.topk(10).values
    theirs = every.gather(1, rows)
    off = max(
        _relative(found, best) for found in (scores.double(), theirs.sort(descending=True).values)
    )
    twice = (rows.sort().values.diff() == 0).any()
    return Finding(
        what, uses, "ok" if off < SAME and not twice else "wrong", f"scores off by {off:.1g}{why}"
    )


def check_gather(backend: Literal["gloo", "nccl"]) -> Finding:
    """In-batch lists of two processes against the gradient of one process that holds them all."""
    what = f"gather, two processes, {backend}"
    gpus = torch.cuda.device_count()
    if backend == "nccl" and gpus < 2:
        return Finding(what, "", "not run", f"{gpus or 'no'} GPU{'s' * (gpus == 0)}")
    try:
        with tempfile.TemporaryDirectory() as folder:
            spawn(_rank, args=(backend, folder), nprocs=2)
            of_ranks = torch.stack([torch.load(Path(folder, str(rank))) for rank in range(2)])
    except Exception as error:  # a process may raise anything, or be killed
        return Finding(what, "", "wrong", str(error).strip().splitlines()[-1])
    off = _relative(
        of_ranks.mean(dim=0), _gradient(slice(None), "cpu")
    )  # as DistributedDataParallel does
    return Finding(
        what,
        "GPU" if backend == "nccl" else "CPU",
        "ok" if off < SAME else "wrong",
        f"gradient off by {off:.1g}",
    )


def _rank(rank: int, backend: str, folder: str) -> None:
    torch.set_num_threads(1)
    device = "cpu"
    if backend == "nccl":
        torch.cuda.set_device(rank)
        device = "cuda"
    store = f"file://{folder}/store"
    limit = datetime.timedelta(seconds=60)
    distributed.init_process_group(
        backend, init_method=store, rank=rank, world_size=2, timeout=limit
    )
    torch.save(
        _gradient(slice(0, 3) if rank == 0 else slice(3, 5), device),
        os.path.join(folder, str(rank)),
    )
    distributed.destroy_process_group()


def _gradient(lists: slice, device: str) -> Tensor:
    """Of the in-batch loss of the lists of all processes, by a linear encoder; ``lists`` are this
    process's, of five.
    """
    draw = torch.Generator().manual_seed(0)
    vectors = torch.randn(5, 4, 8, generator=draw)[lists].to(device)  # a query and three documents
    weight = torch.randn(8, 6, generator=draw).to(device).requires_grad_()
    labels = torch.tensor([1.0, 0.0, 0.0]).repeat(len(vectors), 1).to(device)
    query_rows = torch.arange(5)[lists].to(device)
    doc_rows = torch.arange(15).view(5, 3)[lists].to(device)
    queries, docs = (vectors @ weight).split([1, 3], dim=1)
    longer = queries_against_all(
        gather_lists(Embedded(queries[:, 0], docs, labels, labels >= 0, query_rows, doc_rows))
    )
    loss = SoftmaxLoss()(dot(longer.rows, longer.columns), longer.labels, longer.mask)
    return torch.autograd.grad(loss, weight)[0].cpu()


def _tiny() -> tuple[TextEncoder, PreTrainedTokenizerBase]:
    """A BERT of two layers, whose attention is not uniform as that of initial weights is, and a
    tokenizer of its words.
    """
    sizes = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 128,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = BertModel(BertConfig(vocab_size=200, **sizes), add_pooling_layer=False)
        for weight in model.parameters():
            if weight.ndim > 1:
                nn.init.normal_(weight, std=0.1)
    words = Tokenizer(WordLevel({f"w{number}": number for number in range(200)}, unk_token="w1"))
    return TextEncoder(model), PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="w1", pad_token="w0"
    )


def _loaded(backbone: str) -> tuple[TextEncoder, PreTrainedTokenizerBase]:
    tokenizer = load_tokenizer(backbone)
    return TextEncoder(load_encoder(backbone).model.base_model, tokenizer.pad_token_id), tokenizer


def _kernel(device: str, dtype: torch.dtype) -> str:
    """Which attention reads packed texts here, as :mod:`ltr.models.encoder.attention` chooses it."""
    query = torch.empty(1, 1, 1, dtype=dtype, device=device, requires_grad=torch.is_grad_enabled())
    if attention.takes_varlen(query):
        return "varlen_attn"
    if device == "cuda":
        return "SDPA, padded"
    in_blocks = f"matmuls in blocks up to {attention.LONGEST_IN_BLOCKS:,} tokens, then "
    return (
        f"{in_blocks if attention.takes_blocks(query, 1) else ''}SDPA, texts of one length together"
    )


def _device(device: str) -> str:
    return {"cpu": "CPU", "cuda": "GPU"}[device]


def _name(dtype: torch.dtype | None) -> str:
    return str(dtype or torch.float32).removeprefix("torch.")


def _relative(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()
