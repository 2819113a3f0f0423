"""Does this machine compute the right numbers? A report of what it has, and of checks: each fast
way of computing is compared with a plain one.

Each check runs the code that training and search run. See ``docs/doctor.md``.
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

from ltr import draws
from ltr.batch import RankingBatch
from ltr.data.layouts import SingleTexts
from ltr.data.tokens import Tokens
from ltr.draws import draw_site, keys_inside
from ltr.dropout import keyed_dropout
from ltr.errors import InputError
from ltr.in_batch.gather import gather_lists
from ltr.in_batch.longer_lists import queries_against_all
from ltr.losses import SoftmaxLoss
from ltr.models.encoder import attention, text_encoder
from ltr.models.encoder.kernels.linear import mkl_is_slow
from ltr.models.encoder.loading.architecture import caps_scores, max_positions
from ltr.models.encoder.loading.pooling import Pooling
from ltr.models.encoder.loading.pretrained import load_encoder, load_tokenizer
from ltr.models.encoder.packed import is_causal, one_line
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.run.precision import gpu_of
from ltr.run.provenance import made_by
from ltr.search.embed_texts import encode_in_memory
from ltr.search.exact import search_exactly
from ltr.search.faiss_index import FaissIndex
from ltr.search.tiles import tiles_of
from ltr.similarity import dot, similarity_of

# Of a CPU; they decide which kernels are fast.
FEATURES = ("avx2", "avx512_f", "avx512_bf16", "amx_bf16")
# The precisions that autocast is checked with, by device.
HALVES = {
    "cpu": (torch.bfloat16,),
    "cuda": (torch.bfloat16, torch.float16),
}
# If padded reading itself has a larger relative error than this, it is no safe fallback. bfloat16
# alone makes 0.01 to 0.1.
LARGEST_PADDED_ERROR = 0.25
LEAST_COSINE = 0.999  # of the embeddings of a text in half precision and in float32
SAME = 1e-4  # relative, of float32 sums in another order
DEPTH = 10  # of the searches
LISTS_OF_RANK = (slice(0, 3), slice(3, 5))  # of the five lists of check_gather, by process

Result = Literal["", "ok", "fell back", "not run", "wrong"]


class ReportLine(NamedTuple):
    """A line of the report.

    Attributes:
        what: is looked at.
        uses: the way of computing that is taken on this machine.
        result: empty where nothing is checked; ``fell back``: a check failed, and another way is
            taken by itself; ``wrong``: a check failed, and no other way is taken.
        why: the numbers, or the reason.
    """

    what: str
    uses: str
    result: Result = ""
    why: str = ""


def examine(backbone: str | None = None) -> Iterator[ReportLine]:
    """Look at the machine, then run the checks, one after the other.

    Args:
        backbone: hub id, folder, or ``package:NAME``; None: a tiny BERT with new weights.

    Raises:
        InputError: if the backbone can't be loaded.
    """
    encoder, tokenizer = _tiny() if backbone is None else _load(backbone)
    yield from machine()
    device = "cpu"
    yield from check_attention(encoder)
    if torch.cuda.is_available():
        device = "cuda"
        encoder.to(device)  # for all checks that follow
        yield from check_attention(encoder)
        yield check_dropout()
    for dtype in HALVES[device]:
        yield check_encoding(encoder, tokenizer, dtype)
    yield check_search("Flat")
    yield check_search("IVF1,Flat")
    yield check_gather("gloo")
    yield check_gather("nccl")


def machine() -> Iterator[ReportLine]:
    """What the numbers come from: processor, GPUs, versions, allocator, linear layers."""
    facts = made_by()
    yield ReportLine("machine", facts["machine"])
    capabilities = torch.cpu.get_capabilities()
    features = [name if capabilities.get(name) else f"no {name}" for name in FEATURES]
    yield ReportLine("CPU features", ", ".join(features))
    for number in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(number)
        found = gpu_of(torch.device("cuda", number))
        bfloat16 = "native" if found.is_native else "emulated" if found.emulates else "not known"
        yield ReportLine(
            f"GPU {number}",
            f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GB, sm_{gpu.major}{gpu.minor}",
            why=f"bfloat16 is {bfloat16}",
        )
    for name in ("ltr", "python"):
        yield ReportLine(name, facts[name])
    for name, version in facts["packages"].items():
        yield ReportLine(name, version)
    yield ReportLine("allocator", _allocator())
    if mkl_is_slow():
        yield ReportLine(
            "linear layers, CPU, float32", "oneDNN", why="torch's own is slow on this CPU"
        )
    else:
        yield ReportLine("linear layers, CPU, float32", "torch")


def _allocator() -> str:
    """The malloc of this process: a preloaded one is mapped into it."""
    maps = Path("/proc/self/maps")
    if maps.is_file():
        preloaded = re.search("jemalloc|tcmalloc|mimalloc", maps.read_text())
        if preloaded:
            return preloaded[0]
    return "the system's malloc"


def check_attention(encoder: TextEncoder) -> Iterator[ReportLine]:
    """Packed against padded reading in each precision, in training and inference."""
    device = next(encoder.parameters()).device.type
    for dtype in (None, *HALVES[device]):
        for stage in ("training", "inference"):
            what = f"attention, {_device(device)}, {_name(dtype)}, {stage}"
            with torch.set_grad_enabled(stage == "training"):
                finding = _check_packed(what, encoder, device, dtype)
            yield finding


def _check_packed(
    what: str, encoder: TextEncoder, device: str, dtype: torch.dtype | None
) -> ReportLine:
    padded = "padded, by transformers"
    if not encoder.reads_packed:
        return ReportLine(what, padded, why="this encoder can't read packed texts")
    kernel = _kernel(device, dtype or torch.float32)
    if caps_scores(encoder.model.config):
        kernel = "matmuls, as scores are capped"
    try:
        check = encoder.check_packed(dtype)
    except RuntimeError as error:
        return ReportLine(what, kernel, "wrong", f"padded texts can't be read ({one_line(error)})")
    if not check.fault:
        errors = f"off by {check.error:.1g}, padded by {check.padded_error:.1g}"
        return ReportLine(what, kernel, "ok", errors)
    # Training makes the same check on these devices, and reads padded texts where it fails.
    falls_back = device in text_encoder.CHECKS_ITSELF and check.padded_error <= LARGEST_PADDED_ERROR
    if falls_back:
        return ReportLine(what, padded, "fell back", f"packed texts {check.fault}")
    return ReportLine(what, kernel, "wrong", f"packed texts {check.fault}")


def check_dropout(device: str = "cuda") -> ReportLine:
    """Dropout on a GPU, forward and backward, against its definition on a CPU: the same bits."""
    what = "dropout, GPU"
    try:
        is_equal = _dropped_twice(device) == _dropped_twice("cpu")
    except RuntimeError as error:
        return ReportLine(what, "", "wrong", one_line(error))
    fault = draws.kernel_fault()
    has_kernel = draws.takes_kernel(torch.empty(0, device=device)) and fault is None
    uses = "Triton's kernel" if has_kernel else "torch's operations"
    if not is_equal:
        return ReportLine(what, uses, "wrong", "other numbers than on a CPU")
    if has_kernel:
        return ReportLine(what, uses, "ok", "the numbers of a CPU to the bit")
    why = "there is no Triton" if fault is None else f"Triton: {one_line(fault)}"
    return ReportLine(what, uses, "fell back", why)


def _dropped_twice(device: str) -> list[list[float]]:
    """Numbers after dropout and their gradient, in float32 and bfloat16."""
    keys = keys_inside(torch.arange(64), torch.zeros(64, dtype=torch.int64)).to(device)
    made = []
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.arange(1.0, 6401.0).view(64, 100).to(device, dtype).requires_grad_()
        y = keyed_dropout(x, 0.1, keys, draw_site(1))
        (gradient,) = torch.autograd.grad(y, x, x.detach())
        made += [y.flatten().tolist(), gradient.flatten().tolist()]
    return made


def check_encoding(
    encoder: TextEncoder, tokenizer: PreTrainedTokenizerBase, dtype: torch.dtype
) -> ReportLine:
    """Texts encoded for a search under autocast, against float32."""
    rng = np.random.default_rng(0)
    offsets = np.cumsum([0, *rng.integers(1, 60, size=64)])
    ids = rng.integers(0, encoder.model.config.vocab_size, size=offsets[-1], dtype=np.int32)
    tokens = Tokens(ids, offsets)
    layout = SingleTexts(tokenizer, min(48, max_positions(encoder.model) or 48))
    device = next(encoder.parameters()).device.type

    def embeddings(autocast: bool) -> Tensor:
        with torch.autocast(device, dtype=dtype, enabled=autocast):
            rows = np.arange(len(tokens))
            return torch.tensor(encode_in_memory(encoder, tokens, layout, rows))

    cosines = torch.cosine_similarity(embeddings(autocast=False), embeddings(autocast=True), dim=1)
    least = cosines.amin().item()
    return ReportLine(
        f"encoding, {_device(device)}, {_name(dtype)}",
        "autocast",
        _result(least >= LEAST_COSINE),
        f"cosine to float32 at least {least:.5f}",
    )


def check_search(factory: str) -> ReportLine:
    """The ten best of 1,000 random documents against a sort; of equal ones each may be found."""
    rng = np.random.default_rng(0)
    docs = rng.standard_normal((1000, 64), dtype=np.float32)
    queries = rng.standard_normal((20, 64), dtype=np.float32)
    docs[1::100] = docs[::100]  # documents 0 and 1 are equal, 100 and 101, and so on
    what = f"search, {factory}"
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    uses = _device(device.type)
    note = ""
    similarity = similarity_of("dot")
    try:
        if factory == "Flat":
            scores, rows = search_exactly(tiles_of(docs, similarity, None, device), queries, DEPTH)
        else:
            prepare = partial(similarity.prepare, centre=None)
            index = FaissIndex.build(
                docs, prepare, factory, device=device, squared=False, probes=1, seed=0
            )
            if device.type == "cuda" and not index.on_gpu:
                note = "; faiss can't search it on the GPU"
            uses = "faiss, GPU" if index.on_gpu else "faiss, CPU"
            scores, rows = index.search(queries, DEPTH, squared=False)
    except InputError as error:
        return ReportLine(what, "", "not run", error.message)
    except RuntimeError as error:
        return ReportLine(what, uses, "wrong", one_line(error))
    if (rows < 0).any():  # a place that faiss filled with no document
        return ReportLine(what, uses, "wrong", f"fewer than {DEPTH} documents were found")

    all_scores = torch.from_numpy(queries.astype(np.float64) @ docs.T)
    expected = all_scores.topk(DEPTH).values
    scores_of_rows = all_scores.gather(1, rows).sort(descending=True).values
    off = max(_relative_error(scores.double(), expected), _relative_error(scores_of_rows, expected))
    has_a_row_twice = (rows.sort().values.diff() == 0).any()
    result = _result(off < SAME and not has_a_row_twice)
    return ReportLine(what, uses, result, f"scores off by {off:.1g}{note}")


def check_gather(backend: Literal["gloo", "nccl"]) -> ReportLine:
    """In-batch lists of two processes against the gradient of one process that holds them all."""
    what = f"gather, two processes, {backend}"
    n_gpus = torch.cuda.device_count()
    if backend == "nccl" and n_gpus < 2:
        return ReportLine(what, "", "not run", "1 GPU" if n_gpus else "no GPUs")
    try:
        with tempfile.TemporaryDirectory() as folder:
            spawn(_save_gradient, args=(backend, folder), nprocs=2)
            files = [Path(folder, str(rank)) for rank in range(2)]
            gradients = [torch.load(file, weights_only=True) for file in files]
    except Exception as error:  # a process may raise anything, or be killed
        # The text is the traceback of the process, which ends with what was wrong.
        return ReportLine(what, "", "wrong", str(error).strip().splitlines()[-1])
    # The mean over the processes, as DistributedDataParallel takes it.
    off = _relative_error(torch.stack(gradients).mean(dim=0), _gradient(slice(None), "cpu"))
    uses = "GPU" if backend == "nccl" else "CPU"
    return ReportLine(what, uses, _result(off < SAME), f"gradient off by {off:.1g}")


def _save_gradient(rank: int, backend: str, folder: str) -> None:
    """In one of two processes: save the gradient of its lists in a file named by its rank."""
    torch.set_num_threads(1)
    device = "cpu"
    if backend == "nccl":
        torch.cuda.set_device(rank)
        device = "cuda"
    distributed.init_process_group(
        backend,
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=60),
    )
    torch.save(_gradient(LISTS_OF_RANK[rank], device), os.path.join(folder, str(rank)))
    distributed.destroy_process_group()


def _gradient(lists: slice, device: str) -> Tensor:
    """The weight's gradient of an in-batch loss over all processes; ``lists`` are here."""
    # All processes draw the same numbers, and take their part.
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(5, 4, 8, generator=generator)[lists].to(device)  # a query, 3 documents
    weight = torch.randn(8, 6, generator=generator).to(device).requires_grad_()
    labels = torch.tensor([1.0, 0.0, 0.0]).repeat(len(vectors), 1).to(device)
    queries, docs = (vectors @ weight).split([1, 3], dim=1)
    batch = RankingBatch(
        labels=labels,
        mask=torch.ones_like(labels, dtype=torch.bool),
        query_rows=torch.arange(5)[lists].to(device),
        doc_rows=torch.arange(15).view(5, 3)[lists].to(device),
    )
    gathered = gather_lists(batch, queries[:, 0], docs)
    longer = queries_against_all(*gathered)
    assert longer.queries is not None and longer.embeddings is not None, "they are given above"
    scores = dot(longer.queries, longer.embeddings[0])
    loss = SoftmaxLoss()(scores, longer.labels, longer.mask)
    return torch.autograd.grad(loss, weight)[0].cpu()


def _tiny() -> tuple[TextEncoder, PreTrainedTokenizerBase]:
    """A BERT of two layers, and a tokenizer of its words. Its weights are large: with initial
    weights attention is nearly uniform, and a wrong kernel would not show.
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
    vocabulary = {f"w{number}": number for number in range(200)}
    words = Tokenizer(WordLevel(vocabulary, unk_token="w1"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w1", pad_token="w0")
    return TextEncoder(model), tokenizer


def _load(backbone: str) -> tuple[TextEncoder, PreTrainedTokenizerBase]:
    tokenizer = load_tokenizer(backbone)
    whole, _ = load_encoder(backbone)
    model = whole.base_model
    pooling: Pooling = "last" if is_causal(model) else "mean"
    options = TextEncoder.Options(pooling=pooling)
    return TextEncoder(model, tokenizer.pad_token_id, options), tokenizer


def _kernel(device: str, dtype: torch.dtype) -> str:
    """The attention that :mod:`ltr.models.encoder.attention` chooses here for packed texts."""
    query = torch.empty(1, 1, 1, dtype=dtype, device=device, requires_grad=torch.is_grad_enabled())
    if attention.takes_varlen(query):
        return "varlen_attn"
    if device == "cuda":
        return "SDPA, padded"
    kernel = "SDPA, texts of one length together"
    if attention.takes_blocks(query, 1):
        kernel = f"matmuls in blocks up to {attention.LONGEST_IN_BLOCKS:,} tokens, then {kernel}"
    return kernel


def _result(is_right: bool) -> Result:
    return "ok" if is_right else "wrong"


def _device(device: str) -> str:
    return {"cpu": "CPU", "cuda": "GPU"}[device]


def _name(dtype: torch.dtype | None) -> str:
    return str(dtype or torch.float32).removeprefix("torch.")


def _relative_error(values: Tensor, expected: Tensor) -> float:
    return ((values - expected).norm() / expected.norm()).item()
