"""Is ltr right on one GPU, how fast is it there, and what does it wait for?  python benchmarks/gpu.py

Sections run in order of worth, in nine minutes at most; those without time or without the packages
that they need are named. Beside each number stands what was predicted before anything had run on a
GPU, for an H100 in bf16: 5.5 µs for each launch that launches.py counts, and 45 % of the peak of
large products. Models have random weights. All rows are also written to OUTPUT/gpu.jsonl.

On a CPU, --tiny runs every section in small: the numbers then mean nothing.
"""

import copy
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import encode
import numpy as np
import torch
import train_cross
import train_dual
import yaml
from harness.gpu_bench import DEVICE, Bench, Contest, compete, peak, seconds_of
from harness.machine import machine_line
from harness.meter import Meter
from harness.options import MEDQUAD, add_data, parser
from harness.sides import Run, Setting, Side, fit, matmul_peak
from harness.tables import head
from harness.trainers import quiet_trainer, silence
from lightning.pytorch import Callback
from torch import nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModel
from transformers.utils.logging import disable_progress_bar

from ltr.batch import Texts
from ltr.draws import draw_site
from ltr.dropout import keyed_dropout
from ltr.in_batch import OtherQueries
from ltr.losses import RankNetLoss, SoftmaxLoss
from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.models.encoder.lora import Lora
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.module import RankerModule
from ltr.search.index import DenseIndex
from ltr.similarity import similarity_of

PRECISION = {"bf16": "bf16-mixed", "float32": "32-true"}


@contextmanager
def products(precision: str) -> Iterator[None]:
    """Multiply float32 as torch names it: ``highest``, or ``high`` for TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


# The ceilings


def machine(bench: Bench) -> None:
    """Products, copies, one launch, one small copy."""
    rates = {name: peak(name) / 1e12 for name in ("bf16", "float32")}
    with products("high"):
        rates["TF32"] = matmul_peak(DEVICE.type, "float32") / 1e12
    expected = "bf16 700 to 800, float32 50 to 60, TF32 350 to 450"
    bench.say("machine", "products, TFLOP/s", expected, **rates)
    source = torch.zeros(1 << (20 if bench.tiny else 30), dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    copied = 2 * len(source) / seconds_of(lambda: target.copy_(source)) / 1e12
    bench.say("machine", "copies on the device", "3.0 (H200: 4.3)", TB_per_s=copied)
    host = torch.zeros(1 << (20 if bench.tiny else 28), dtype=torch.uint8)
    rates = {"pageable": len(host) / seconds_of(lambda: host.to(DEVICE)) / 1e9}
    if DEVICE.type == "cuda":
        pinned = host.pin_memory()
        rates["pinned"] = len(host) / seconds_of(lambda: pinned.to(DEVICE)) / 1e9
    bench.say("machine", "copies to the device, GB/s", "pageable 5 to 15, pinned 50", **rates)
    small = torch.zeros(8, device=DEVICE)
    launch = 1e6 * seconds_of(lambda: small.add_(1), calls=2000)
    wait = 1e6 * seconds_of(small.tolist, calls=200)
    bench.say("machine", "one launch, one wait", "3 to 6, 10 to 20", launch_us=launch, wait_us=wait)


# Equality


class Losses(Callback):
    """The loss of every step."""

    def __init__(self) -> None:
        self.kept: list[float] = []

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        self.kept.append(float(module.last_step.loss))


def equality(bench: Bench) -> None:
    """Six steps with dropout, whose masks are the same on every device."""
    for name in ("MiniLM", "ModernBERT-base"):
        setting = bench.setting(name, batch=4, max_length=64)
        curves = {}
        for device, precision in (("cpu", "float32"), ("gpu", "float32"), ("gpu", "bf16")):
            ranker = cross_encoder(setting)
            losses = Losses()
            on_gpu = device == "gpu" and DEVICE.type == "cuda"
            trainer = quiet_trainer(
                accelerator="gpu" if on_gpu else "cpu",
                precision=PRECISION[precision],
                max_steps=6,
                limit_val_batches=0,
                num_sanity_val_steps=0,
                callbacks=[losses],
            )
            module = RankerModule(ranker, RankNetLoss())
            trainer.fit(module, train_cross.triplets(setting, ranker.reads))
            curves[device, precision] = np.array(losses.kept)
        exact = curves.pop(("cpu", "float32"))
        off = {}
        for (_, precision), curve in curves.items():
            off[f"off_in_{precision}"] = float(np.abs(curve / exact - 1).max())
        expected = "float32 below 1e-4, bf16 below 2e-2"
        bench.say("equality", f"{name}: losses of six steps", expected, **off)


# Training


def cross_encoder(setting: Setting, **encoder: Any) -> PairWiseBertRanker:
    """With seeded heads."""
    torch.manual_seed(0)
    options = TextEncoder.Options(**encoder)
    return PairWiseBertRanker(setting.backbone, setting.max_length, encoder=options)


def ours_cross(**encoder: Any) -> Run:
    """A cross-encoder under RankNet, with options of the encoder."""

    def run(meter: Meter, setting: Setting, side: Side) -> None:
        ranker = cross_encoder(setting, **encoder)
        meter.watch(ranker.encoder.model)
        data = train_cross.triplets(setting, ranker.reads)
        fit(RankerModule(ranker, RankNetLoss()), data, meter, setting, side)

    return run


def ours_dual(**encoder: Any) -> Run:
    """A dual encoder under the softmax over all documents of a step."""

    def run(meter: Meter, setting: Setting, side: Side) -> None:
        torch.manual_seed(0)
        options = TextEncoder.Options(**encoder)
        ranker = DualEncoder(
            setting.backbone, temperature=0.05, max_length=setting.max_length, encoder=options
        )
        meter.watch(ranker.query_tower.encoder.model)
        module = RankerModule(ranker, SoftmaxLoss(), in_batch=OtherQueries())
        fit(module, train_dual.groups(setting), meter, setting, side)

    return run


def plain_loop(meter: Meter, setting: Setting, side: Side) -> None:
    """A cross-encoder as one writes it by hand: padded pairs that lie on the device, SDPA, autocast,
    and fused AdamW. The model has its own dropout, but none on attention weights.
    """
    config = AutoConfig.from_pretrained(setting.backbone)
    config.attention_probs_dropout_prob = 0.0
    options = {"config": config, "attn_implementation": "sdpa"}
    model = AutoModel.from_pretrained(setting.backbone, **options).to(DEVICE).train()
    score = nn.Linear(config.hidden_size, 1).to(DEVICE)
    weights = [*model.parameters(), *score.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=2e-5, fused=True)
    batches = [padded(pairs) for pairs in pairs_of_steps(setting)]
    meter.watch(model)
    goes_on = True
    while goes_on:
        for ids, mask in batches:
            with torch.autocast(DEVICE.type, torch.bfloat16, enabled=side.precision == "bf16"):
                hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
            weight = mask.unsqueeze(2)
            scores = score((hidden.float() * weight).sum(dim=1) / weight.sum(dim=1))
            relevant, others = scores.view(-1, 2).unbind(1)
            F.softplus(others - relevant).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            goes_on = meter.step_ended()
            if not goes_on:
                break


def pairs_of_steps(setting: Setting) -> list[Texts]:
    """The pairs of as many steps as are taken, or of an epoch."""
    data = train_cross.triplets(setting, cross_encoder(setting).reads)
    data.setup("fit")
    n_steps = setting.warm_up + setting.steps
    return [batch.pairs for batch, _ in zip(data.train_dataloader(), range(n_steps), strict=False)]


def padded(pairs: Texts) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask ``[S, L]`` on the device."""
    ids = nn.utils.rnn.pad_sequence(pairs.ids.split(pairs.lengths.tolist()), batch_first=True)
    mask = (torch.arange(ids.shape[1]) < pairs.lengths.unsqueeze(1)).long()
    return ids.to(DEVICE), mask.to(DEVICE)


def theirs(module: Any) -> dict[Side, str]:
    """sentence-transformers as it comes, and in bf16 with its fastest attention."""
    return {
        Side("sentence-transformers", module.theirs, "float32"): "8 to 15 times as long as ltr",
        Side(
            "sentence-transformers, tuned", module.theirs, "bf16", tuned=True
        ): "1.5 times as long",
    }


OURS = Side("ltr", ours_cross(), "bf16")
WITHOUT_DROPOUT = Side("ltr, no dropout", ours_cross(dropout="none"), "bf16")
PLAIN = Side("plain loop", plain_loop, "bf16")
OF_CROSS: dict[str, Any] = {
    "passes": 3,
    "prepare": train_cross.prepare,
    "needs": train_cross.NEEDS,
}
LORA = {"lora": Lora(r=16, alpha=32), "dtype": "bfloat16", "pooling": "last"}
TRAINING = {
    "MiniLM, 32 pairs": Contest(
        "MiniLM",
        batch=16,
        max_length=128,
        sides={
            OURS: "2.3 to 3 ms, 410 launches, no wait: bound by launches",
            WITHOUT_DROPOUT: "5 % faster: 390 launches",
            PLAIN: "3 to 4 ms, 519 launches",
            **theirs(train_cross),
        },
        **OF_CROSS,
    ),
    "BERT-base, 128 pairs of 256 tokens": Contest(
        "BERT-base",
        batch=64,
        max_length=256,
        sides={
            OURS: "40 ms, 740 launches, 45 % of the peak, no wait",
            WITHOUT_DROPOUT: "3 % faster",
            PLAIN: "as ltr, slower by its padding",
            Side("ltr in float32", ours_cross(), "float32"): "8 to 15 times as long as in bf16",
            **theirs(train_cross),
        },
        **OF_CROSS,
    ),
    "ModernBERT-base, 64 pairs of 256 tokens": Contest(
        "ModernBERT-base",
        batch=32,
        max_length=256,
        passes=3,
        sides={
            OURS: "25 ms, 1,309 launches, 45 % of the peak",
            PLAIN: "as ltr, slower by its padding",
        },
    ),
    "BERT-base, dual, 128 queries": Contest(
        "BERT-base",
        batch=128,
        max_length=256,
        passes=3,
        sides={
            Side("ltr", ours_dual(), "bf16"): "40 ms, 900 launches, no wait",
            Side("ltr, keep_tokens: 0", ours_dual(keep_tokens=0), "bf16"): "a third longer",
            **theirs(train_dual),
        },
        prepare=train_dual.prepare,
        needs=train_dual.NEEDS,
    ),
    "Qwen3-0.6B with LoRA, dual, 32 queries": Contest(
        "Qwen3-0.6B",
        batch=32,
        max_length=128,
        passes=2,  # the weights of the model have no gradient
        sides={
            Side("ltr", ours_dual(**LORA), "bf16"): "26 ms, 4,693 launches: bound by launches",
        },
    ),
}
COMPILED = {
    Side("ltr, compiled", ours_cross(compile=True), "bf16"): "10 % faster than not compiled",
    Side("ltr, compiled, no dropout", ours_cross(compile=True, dropout="none"), "bf16"): "the same",
}


def training(bench: Bench) -> None:
    """Steps of ltr, of a plain loop, and of sentence-transformers' own trainers."""
    for name, contest in TRAINING.items():
        compete(bench, "training", name, contest)


def compiled(bench: Bench) -> None:
    """``compile: true``: the first steps take a minute or more."""
    contest = Contest("BERT-base", batch=64, max_length=256, passes=3, sides=COMPILED)
    compete(bench, "compiled", "BERT-base, 128 pairs of 256 tokens", contest)


# Parts beside what could take their place


def micro(bench: Bench) -> None:
    """Dropout, a layer with ragged and padded attention, and AdamW."""
    dropout(bench)
    one_layer(bench)
    adamw(bench)


def dropout(bench: Bench) -> None:
    """Keyed dropout beside torch's, forward and backward."""
    tokens, width = (512, 16) if bench.tiny else (32_768, 768)
    x = torch.randn(tokens, width, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    ones = torch.ones_like(x)
    keys = torch.randint(-(2**62), 2**62, (tokens,), device=DEVICE)
    site = draw_site(3).to(DEVICE)

    def both(drop: Callable[[], torch.Tensor]) -> Callable[[], None]:
        return lambda: torch.autograd.backward(drop(), ones, inputs=[x])

    keyed = both(lambda: keyed_dropout(x, 0.1, keys, site))
    torchs = both(lambda: F.dropout(x, 0.1))
    times = {"keyed_us": 1e6 * seconds_of(keyed), "torch_us": 1e6 * seconds_of(torchs)}
    bench.say("micro", f"dropout of {tokens:,} × {width}", "at most as torch's", **times)


def one_layer(bench: Bench) -> None:
    """A layer of BERT-base over 256 texts, in bf16 packed and padded, and in float32."""
    folder = bench.model("BERT-base")
    model = AutoModel.from_pretrained(folder, num_hidden_layers=1, add_pooling_layer=False)
    lengths = np.random.default_rng(0).integers(16, 200, 8 if bench.tiny else 256)
    ids = torch.randint(100, (int(lengths.sum()),), device=DEVICE)
    texts = Texts(ids, torch.from_numpy(lengths).to(DEVICE), host_lengths=lengths)
    times = {}
    for name, half, packed in (
        ("bf16", True, True),
        ("bf16, padded", True, False),
        ("float32", False, True),
    ):
        encoder = TextEncoder(copy.deepcopy(model), 0, TextEncoder.Options(dropout="none"))
        encoder.to(DEVICE).eval()
        if not packed:
            encoder.reads_packed = False
            encoder.model.set_attn_implementation("sdpa")

        def both(encoder: TextEncoder = encoder, half: bool = half) -> None:
            with torch.autocast(DEVICE.type, torch.bfloat16, enabled=half):
                outputs = encoder(texts)
            outputs.square().sum().backward()

        times[f"{name}, ms"] = 1e3 * seconds_of(both)
    expected = "padded in bf16 1.2 times as long, float32 8 to 15 times"
    bench.say("micro", f"a layer of BERT-base, {len(ids):,} tokens", expected, **times)


def adamw(bench: Bench) -> None:
    """The fused one and torch's default, over the weights of BERT-base."""
    config = AutoConfig.from_pretrained(bench.model("BERT-base"))
    with torch.device(DEVICE):
        model = AutoModel.from_config(config)
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    times = {}
    for name, options in {"fused_ms": {"fused": True}, "foreach_ms": {"foreach": True}}.items():
        optimizer = torch.optim.AdamW(model.parameters(), **options)
        times[name] = 1e3 * seconds_of(optimizer.step)
    bench.say("micro", "AdamW, BERT-base", "fused 1.0, foreach 2.0", **times)


# Encoding and searching


ENCODING = {
    Side("ltr", encode.ours, "bf16"): "90 % busy; 1.5 times as fast as the next row but one",
    Side("sentence-transformers", encode.theirs, "float32"): "8 to 15 times as long as ltr",
    Side("sentence-transformers in bf16", encode.theirs, "bf16", tuned=True): "under half busy",
}


def encoding(bench: Bench) -> None:
    """1,024 documents a step, from tokens (sentence-transformers: from texts) to an array."""
    for name in ("MiniLM", "BERT-base", "ModernBERT-base"):
        contest = Contest(
            name, batch=64, max_length=256, passes=1, sides=ENCODING, steps=6, warm_up=3
        )
        compete(bench, "encoding", name, contest)


def searching(bench: Bench) -> None:
    """Exact search of documents in memory, beside documents that lie on the device."""
    n_docs, n_queries, dim, k = (20_000, 100, 64, 10) if bench.tiny else (10**6, 10**4, 384, 100)
    rng = np.random.default_rng(0)
    docs = rng.standard_normal((n_docs, dim), dtype=np.float32)
    queries = rng.standard_normal((n_queries, dim), dtype=np.float32)
    index = DenseIndex.build(docs, similarity_of("dot"), device=DEVICE)
    index.search(queries[:64], k)
    begin = time.perf_counter()
    _, rows = index.search(queries, k)
    seconds = time.perf_counter() - begin
    docs_there = torch.from_numpy(docs).to(DEVICE)
    queries_there = torch.from_numpy(queries).to(DEVICE)

    def plain() -> None:
        for block in queries_there.split(1024):
            best = [(block @ part.T).topk(k).values for part in docs_there.split(262_144)]
            torch.cat(best, dim=1).topk(k)

    _, expected = DenseIndex.build(docs, similarity_of("dot")).search(queries[:50], k)
    bench.say(
        "searching",
        f"{n_docs:,} documents, {n_queries:,} queries, {k} found of each",
        "twice the floor at most; rows as on the CPU but for ties",
        ltr_s=seconds,
        plain_s=seconds_of(plain, calls=1),
        floor_s=2 * n_docs * n_queries * dim / peak("float32"),
        rows_as_on_the_cpu=float((rows[:50] == expected).mean()),
    )


# The command line


def commands(bench: Bench) -> None:
    """A run that SIGTERM ends and that is resumed, under ``deterministic``, beside one that nobody
    has ended.
    """
    config = {
        "seed_everything": 0,
        "trainer": {
            "max_epochs": 2,
            "limit_train_batches": 12,
            "limit_val_batches": 2,
            "accelerator": "gpu" if DEVICE.type == "cuda" else "cpu",
            "devices": 1,
            "deterministic": True,
            "enable_progress_bar": False,
        },
        "model": {
            "ranker": {
                "class_path": "ltr.models.PairWiseBertRanker",
                "init_args": {"backbone": bench.model("MiniLM"), "max_length": 32},
            },
            "loss": {"class_path": "ltr.losses.RankNetLoss"},
        },
        "data": {
            "class_path": "ltr.datamodules.TripletDataModule",
            "init_args": {
                "path": str(Path(bench.data).resolve()),
                "negatives": "random",
                "batch_size": 4,
                "evaluation": {"candidates": "bm25", "depth": 5},
            },
        },
        "last": {"every_n_steps": 3},
    }
    folder = bench.folder / "commands"
    folder.mkdir()
    (folder / "fit.yaml").write_text(yaml.safe_dump(config))
    with ExitStack() as started:
        whole = started_fit(started, folder, "whole")
        parts = started_fit(started, folder, "parts")
        last = folder / "parts/checkpoints/last.ckpt"
        while parts.poll() is None and not last.exists():
            time.sleep(0.05)
        parts.send_signal(signal.SIGTERM)
        codes = [parts.wait()]
        codes.append(started_fit(started, folder, "parts", "--ckpt_path", "last").wait())
        codes.append(whole.wait())
    weights = []
    for name in ("whole", "parts"):
        checkpoint = torch.load(folder / name / "checkpoints/last.ckpt", "cpu", weights_only=True)
        weights.append(checkpoint["state_dict"])
    n_other = sum(not torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    other = f"{n_other} of {len(weights[0])}"
    expected = "143, 0, 0 and none"
    bench.say("commands", "a resumed run", expected, exit_codes=codes, tensors_that_differ=other)


def started_fit(started: ExitStack, folder: Path, name: str, *words: str) -> subprocess.Popen:
    """``ltr fit`` in a process of its own, into a folder of this name. It ends with the stack."""
    command = [sys.executable, "-m", "ltr", "fit", "--config", str(folder / "fit.yaml")]
    command += ["--trainer.default_root_dir", str(folder / name), *words]
    root = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    with open(folder / f"{name}.txt", "a") as log:
        environment = os.environ | {"PYTHONPATH": path}
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    started.callback(process.kill)
    return process


class Section(NamedTuple):
    """A part of the run, with the seconds that it takes at most."""

    run: Callable[[Bench], None]
    seconds: float


# In order of worth.
SECTIONS = {
    "machine": Section(machine, 15),
    "equality": Section(equality, 30),
    "training": Section(training, 180),
    "micro": Section(micro, 20),
    "encoding": Section(encoding, 60),
    "searching": Section(searching, 30),
    "commands": Section(commands, 90),
    "compiled": Section(compiled, 100),
}


def main() -> None:
    """Print a table; the exit code is 1 if a section has failed."""
    arguments = parser(__doc__)
    add_data(arguments, MEDQUAD)
    arguments.add_argument("--only", nargs="+", choices=SECTIONS, help="these sections alone")
    arguments.add_argument("--seconds", type=float, default=540, help="for all sections")
    arguments.add_argument(
        "--output", type=Path, default=Path("runs/gpu"), help="folder of the rows"
    )
    options = arguments.parse_args()
    if DEVICE.type == "cpu" and not options.tiny:
        print("there is no GPU here, so nothing is measured; --tiny tries all sections on the CPU")
        return
    silence()
    disable_progress_bar()
    logging.disable(logging.WARNING)
    gpu = f"{torch.cuda.get_device_name()}; " if DEVICE.type == "cuda" else ""
    print(head(["section", "case", "measured", "predicted"]))
    has_failed = False
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("LTR_CACHE", f"{folder}/cache")
        bench = Bench(options.data, Path(folder), options.output, options.seconds, options.tiny)
        bench.say("machine", "what it is", it_is=f"{gpu}{machine_line()}")
        for name, section in SECTIONS.items():
            if name not in (options.only or SECTIONS):
                continue
            if bench.seconds_left() < section.seconds / 2 and not options.tiny:
                bench.say(name, "all", left_out="no time")
                continue
            try:
                section.run(bench)
            except Exception as error:  # the other sections are worth their time
                traceback.print_exc()
                bench.say(name, "all", failed=f"{type(error).__name__}: {error}")
                has_failed = True
    sys.exit(has_failed)


if __name__ == "__main__":
    main()
