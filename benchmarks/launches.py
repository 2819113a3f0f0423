"""What does a training step ask of a GPU: how many kernels, how many waits of the host, how many
bytes?  python benchmarks/launches.py

Counted on a CPU that pretends to be a GPU (harness/pretended_gpu.py), or, where there is a GPU, on
that one by torch's profiler (harness/profiled_gpu.py). On the pretended one a launch is an operator of
torch below autograd that is no view. Most of them are one kernel, some are several. A wait is a
place where the host needs a number that the device has not computed yet. Bytes are those that
operators beside matrix products and attention read and write.

Models have random weights. Batches are of 32 pairs or texts of examples/medquad, 64 tokens at most.
"""

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from harness.machine import machine_line
from harness.options import MEDQUAD, add_backbone, add_data, parser
from harness.pretended_gpu import DEVICE, Counts, PretendedGPU
from harness.profiled_gpu import ProfiledGPU
from harness.shapes import SHAPES
from harness.tables import head, row
from harness.trainers import quiet_trainer
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import nn
from torch.nn import functional as F
from transformers import (
    AutoModel,
    BertModel,
    ModernBertConfig,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    Qwen3Config,
)

from ltr.data.layouts import SingleTexts
from ltr.data.tokens import Tokens
from ltr.datamodules import Evaluation, Loading, TripletDataModule
from ltr.in_batch import InBatch, OtherQueries, OwnLists
from ltr.losses import LOSSES
from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.models.encoder.loading.pretrained import load_tokenizer
from ltr.models.encoder.lora import Lora
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.module import RankerModule
from ltr.search import embed_texts

MAX_LENGTH = 64
TEXTS = 32  # pairs of query and document in a step
COUNTED_STEP = 2  # the first ones make what stays: the moments of AdamW
PRECISION = {"bf16": "bf16-mixed", "float32": "32-true"}

MODELS: dict[str, PreTrainedConfig] = {
    **SHAPES,
    "ModernBERT, 6 layers": ModernBertConfig(num_hidden_layers=6, max_position_embeddings=512),
    "Qwen3-0.6B, 6 layers": Qwen3Config(
        hidden_size=1024,
        num_hidden_layers=6,
        num_attention_heads=16,
        num_key_value_heads=8,
        intermediate_size=3072,
        max_position_embeddings=512,
    ),
}
# The number of launches does not depend on the width of a model.
NARROW = {
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "intermediate_size": 24,
}


class Work(NamedTuple):
    """A step of training.

    Attributes:
        model: the name of its shapes.
        is_dual: a dual encoder; False: a cross-encoder.
        loss: the name of the loss.
        in_batch: what the lists are ranked against.
        docs: documents of a list.
        precision: bf16 or float32.
        encoder: options of the encoder.
    """

    model: str
    is_dual: bool = False
    loss: str = "RankNetLoss"
    in_batch: InBatch | None = None
    docs: int = 2
    precision: str = "bf16"
    encoder: TextEncoder.Options = TextEncoder.Options()


LORA = TextEncoder.Options(lora=Lora(r=16, alpha=32), pooling="last")
LAST = TextEncoder.Options(pooling="last")
STEPS = {
    "cross-encoder, MiniLM": Work("MiniLM"),
    "the same, `dropout: none`": Work("MiniLM", encoder=TextEncoder.Options(dropout="none")),
    "the same, ListMLE, lists of 8": Work("MiniLM", loss="ListMLELoss", docs=8),
    "the same in float32": Work("MiniLM", precision="float32"),
    "cross-encoder, BERT-base": Work("BERT-base"),
    "cross-encoder, ModernBERT, 6 layers": Work("ModernBERT, 6 layers"),
    "dual encoder, MiniLM, own lists": Work("MiniLM", True, "SoftmaxLoss", OwnLists()),
    "dual encoder, MiniLM, other queries": Work("MiniLM", True, "SoftmaxLoss", OtherQueries()),
    "the same, batch-hard": Work("MiniLM", True, "BatchHardTripletLoss", OtherQueries()),
    "dual encoder, Qwen3, 6 layers": Work(
        "Qwen3-0.6B, 6 layers", True, "SoftmaxLoss", OtherQueries(), encoder=LAST
    ),
    "the same with LoRA, r 16": Work(
        "Qwen3-0.6B, 6 layers", True, "SoftmaxLoss", OtherQueries(), encoder=LORA
    ),
}
PLAIN = "a plain loop over transformers' BertModel, MiniLM"
ENCODED = "encoding, MiniLM"

# The counts of a step, by its part.
Parts = dict[str, Counts]


@contextmanager
def backbone(name: str, tokenizer: PreTrainedTokenizerBase, narrow: bool) -> Iterator[str]:
    """A folder with a model of random weights and its tokenizer."""
    config = MODELS[name].__class__.from_dict(MODELS[name].to_dict())
    sizes: dict[str, Any] = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    if narrow:
        sizes |= NARROW
    config.update(sizes)
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        AutoModel.from_config(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        yield folder


def new_gpu() -> PretendedGPU | ProfiledGPU:
    """The one that is there, or a pretended one."""
    return ProfiledGPU() if torch.cuda.is_available() else PretendedGPU()


class PretendedAccelerator(CPUAccelerator):
    """Lets Lightning send the module and its batches to the pretended GPU."""

    def setup_device(self, device: torch.device) -> None:
        """There is nothing to set up."""


class PartsOfStep(Callback):
    """Has the forward pass, the backward pass and the optimiser of one step counted apart."""

    def __init__(self, gpu: PretendedGPU | ProfiledGPU) -> None:
        self.gpu = gpu
        self.parts: Parts = {}

    def _begin(self, part: str, trainer: Trainer) -> None:
        self.gpu.counts = None
        if trainer.global_step == COUNTED_STEP:
            self.parts[part] = self.gpu.counts = Counts()

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        self._begin("forward", trainer)

    def on_before_backward(self, trainer: Trainer, *_: Any) -> None:
        self._begin("backward", trainer)

    def on_after_backward(self, trainer: Trainer, *_: Any) -> None:
        self._begin("optimiser", trainer)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self.gpu.counts = None
        # Whoever reads a number between two steps waits too: up to the next one.
        if trainer.global_step == COUNTED_STEP + 1:
            self.gpu.counts = Counts(waits=self.parts["optimiser"].waits)


def count_step(work: Work, folder: str, data: str) -> Parts:
    """The counts of a step of Lightning's loop."""
    if work.is_dual:
        ranker = DualEncoder(folder, max_length=MAX_LENGTH, encoder=work.encoder)
    else:
        ranker = PairWiseBertRanker(folder, MAX_LENGTH, encoder=work.encoder)
    module = RankerModule(ranker, LOSSES[work.loss](), in_batch=work.in_batch)
    loader = TripletDataModule(
        data,
        negatives="random",
        negatives_per_query=work.docs - 1,
        batch_size=TEXTS // work.docs,
        evaluation=Evaluation("bm25", depth=1),
        loading=Loading(seed=0),
    )
    gpu = new_gpu()
    parts = PartsOfStep(gpu)
    accelerator = "gpu" if isinstance(gpu, ProfiledGPU) else PretendedAccelerator()
    with gpu:
        trainer = quiet_trainer(
            accelerator=accelerator,
            strategy=SingleDeviceStrategy(DEVICE),
            precision=PRECISION[work.precision],
            max_steps=COUNTED_STEP + 2,
            limit_val_batches=0,
            num_sanity_val_steps=0,
            callbacks=[parts],
        )
        trainer.fit(module, loader)
    return parts.parts


def count_plain_step(folder: str) -> Parts:
    """The counts of a step as one writes it by hand: transformers' model with its own dropout over
    padded pairs, autocast, and fused AdamW.
    """
    gpu = new_gpu()
    with gpu:
        torch.manual_seed(0)
        model = BertModel.from_pretrained(folder, attn_implementation="sdpa").train().to(DEVICE)
        score = nn.Linear(model.config.hidden_size, 1).to(DEVICE)
        weights = [*model.parameters(), *score.parameters()]
        optimizer = torch.optim.AdamW(weights, lr=1e-5, fused=True)
        lengths = torch.arange(TEXTS) % 40 + 20
        is_token = torch.arange(MAX_LENGTH) < lengths.unsqueeze(1)
        ids = torch.randint(model.config.vocab_size, is_token.shape)
        for step in range(COUNTED_STEP + 1):
            is_counted = step == COUNTED_STEP
            batch = [x.to(DEVICE, non_blocking=True) for x in (ids, is_token.long())]
            gpu.counts = forward = Counts() if is_counted else None
            with torch.autocast("cuda", dtype=torch.bfloat16):
                hidden = model(*batch).last_hidden_state
                scores = score(hidden[:, 0]).squeeze(1)
            relevant, others = scores.float().view(-1, 2).unbind(1)
            loss = F.softplus(others - relevant).mean()
            gpu.counts = backward = Counts() if is_counted else None
            loss.backward()
            gpu.counts = update = Counts() if is_counted else None
            optimizer.step()
            optimizer.zero_grad()
    assert forward and backward and update
    return {"forward": forward, "backward": backward, "optimiser": update}


def count_encoding(folder: str, tokenizer: PreTrainedTokenizerBase) -> Parts:
    """The counts of the second of two batches of texts that are encoded in bf16."""
    form = SingleTexts(tokenizer, MAX_LENGTH)
    n_tokens = 2 * embed_texts.MANY_TOKENS  # of a batch
    lengths = np.full(2 * n_tokens // MAX_LENGTH, MAX_LENGTH - 4)
    offsets = np.concatenate([[0], lengths.cumsum()])
    ids = np.random.default_rng(0).integers(len(tokenizer), size=offsets[-1], dtype=np.uint16)
    tokens = Tokens(ids, offsets)
    gpu = new_gpu()
    batch_tokens = mock.patch.object(embed_texts, "BATCH_TOKENS", n_tokens)
    each_batch = mock.patch.object(embed_texts, "TEXTS_OF_COPY", 1)
    encoder = DualEncoder(folder, max_length=MAX_LENGTH).query_tower
    with gpu, batch_tokens, each_batch, torch.autocast("cuda", dtype=torch.bfloat16):
        encoder.to(DEVICE)
        batches = embed_texts.encode_batches(
            encoder, embed_texts.LaidOut(tokens, form, np.arange(len(tokens)))
        )
        next(batches)
        gpu.counts = counts = Counts()
        next(batches)
    return {"forward": counts}


def count(name: str, tokenizer: PreTrainedTokenizerBase, data: str, narrow: bool) -> Parts:
    """The counts of a row of the table, by its name.

    Args:
        name: of ``STEPS``, ``PLAIN`` or ``ENCODED``.
        tokenizer: of the models.
        data: a collection.
        narrow: models of few dimensions: launches and waits stay the same, bytes don't.
    """
    shapes = STEPS[name].model if name in STEPS else "MiniLM"
    with backbone(shapes, tokenizer, narrow) as folder:
        if name == PLAIN:
            return count_plain_step(folder)
        if name == ENCODED:
            return count_encoding(folder, tokenizer)
        return count_step(STEPS[name], folder, data)


def main() -> None:
    """Print a table, and the lines that wait."""
    arguments = parser(__doc__)
    add_data(arguments, MEDQUAD)
    add_backbone(arguments)
    options = arguments.parse_args()
    logging.disable(logging.WARNING)
    tokenizer = load_tokenizer(options.backbone)
    print(machine_line())
    parts = ("forward", "backward", "optimiser")
    print(head(["step", *(f"launches: {part}" for part in parts), "all", "waits", "MB moved"]))
    waits: dict[tuple[str, str], list[str]] = {}
    steps = [*STEPS][:1] if options.tiny else [*STEPS]
    for name in (*steps, PLAIN, ENCODED):
        counted = count(name, tokenizer, options.data, narrow=options.tiny)
        launches = {part: counts.launches.total() for part, counts in counted.items()}
        cells = [launches.get(part, "") for part in parts]
        n_waits = sum(counts.waits.total() for counts in counted.values())
        moved: int | str = ""  # a GPU that is there does not say it
        if not torch.cuda.is_available():
            moved = round(sum(counts.moved.total() for counts in counted.values()) / 1e6)
        print(row([name, *cells, sum(launches.values()), n_waits, moved]), flush=True)
        for counts in counted.values():
            for place in counts.waits:
                waits.setdefault(place, []).append(name)
    for (what, line), names in waits.items():
        print(f"waits: {what} in {line}, in {len(names)} rows: {names[0]}, …")


if __name__ == "__main__":
    main()
