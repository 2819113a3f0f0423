"""What holds on a GPU, too: the computed values, the draws, resumes, memory and waits.

Run by ``make test-gpu``. With LTR_GPU_TESTS_ON=cpu the same tests compare the CPU with itself, which
shows only that they run.
"""

import copy
import json
import subprocess
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from lightning.pytorch import Callback
from torch.utils._pytree import tree_leaves

from ltr.__main__ import main
from ltr.data.collection import open_collection
from ltr.datamodules import TripletDataModule
from ltr.dropout import keyed_dropout
from ltr.in_batch import OtherQueries
from ltr.losses import (
    LOSSES,
    ApproxNDCGLoss,
    BatchHardTripletLoss,
    ListMLELoss,
    RankNetLoss,
    SoftmaxLoss,
)
from ltr.models import DualEncoder
from ltr.models.encoder.lora import Lora
from ltr.search import tiles
from ltr.search.embed_texts import encode_in_memory
from tests.run.kills import start
from tests.run.resumes import differences, kind, outcome
from tests.search.indexed import EVERY, build, embeddings
from tests.search.stored import stored
from tests.world.commands import refusal, run_ltr
from tests.world.configurations import write_config
from tests.world.decoders import decoder
from tests.world.encoders import assert_same_gradients, bert, gradients, modernbert, reader, texts
from tests.world.rankers import cross_encoder, data_for, dual_encoder, trainer
from tests.world.runs import losses

pytestmark = pytest.mark.gpu

MODELS = {
    "bert": (partial(bert, dropout=0.1), {}),
    "modernbert": (modernbert, {}),
    "qwen3 with adapters": (
        partial(decoder, "qwen3"),
        {"pooling": "last", "lora": Lora(r=4, alpha=8)},
    ),
}
EVERY_MODEL = pytest.mark.parametrize("name", MODELS)


def accelerator(device: torch.device) -> str:
    """Lightning's name of a device."""
    return {"cuda": "gpu", "cpu": "cpu"}[device.type]


# One step of an encoder


def encoder_of(name: str, packed: bool = True, **options):
    """An encoder in training, whose adapters have learnt something."""
    build_model, usual = MODELS[name]
    encoder = reader(build_model(), **usual, **options).train()
    for weight_name, weight in encoder.named_parameters():
        if "lora_B" in weight_name:
            torch.nn.init.normal_(weight, std=0.3)
    if not packed:
        encoder.reads_packed = False
        encoder.model.set_attn_implementation("sdpa")
    return encoder


def outputs_and_gradients(encoder, device: torch.device, dtype: torch.dtype | None = None):
    """Of a weighted sum of what the encoder makes of texts that have keys, all on the CPU."""
    encoder = copy.deepcopy(encoder).to(device)
    of = texts(keys=True)
    of = of._replace(**{
        field: getattr(of, field).to(device) for field in ("ids", "lengths", "keys")
    })  # fmt: skip
    with torch.autocast(device.type, dtype, enabled=dtype is not None):
        outputs = encoder(of)
    weights = torch.sin(torch.arange(outputs.numel(), device=device)).view_as(outputs)
    found = gradients(encoder, (outputs * weights).sum())
    gradients_here = {weight: gradient.cpu() for weight, gradient in found.items()}
    return outputs.detach().cpu(), gradients_here, encoder.reads_packed


@EVERY_MODEL
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_a_step_in_float32_is_that_of_the_cpu(name, packed, device):
    """Dropout included: its masks follow from the keys of the texts."""
    encoder = encoder_of(name, packed)
    expected, expected_gradients, _ = outputs_and_gradients(encoder, torch.device("cpu"))
    outputs, found, is_packed = outputs_and_gradients(encoder, device)
    assert is_packed == packed, "the check of packed reading must not fail here"
    torch.testing.assert_close(outputs, expected, atol=1e-5, rtol=1e-5)
    assert_same_gradients(found, expected_gradients)


@EVERY_MODEL
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_packed_in_half_precision_errs_as_padded_does(name, dtype, device):
    """Three times at most: the kernel for ragged texts rounds elsewhere."""
    expected, expected_gradients, _ = outputs_and_gradients(encoder_of(name), torch.device("cpu"))
    off = {}  # of outputs, and of all gradients together
    for packed in (True, False):
        outputs, found, is_packed = outputs_and_gradients(encoder_of(name, packed), device, dtype)
        assert is_packed == packed, "the check of packed reading must not fail here"
        off[packed] = (outputs - expected).norm(), distance(found, expected_gradients)
    for off_packed, off_padded in zip(off[True], off[False], strict=True):
        assert off_packed <= 3 * off_padded
    nothing = {key: torch.zeros_like(gradient) for key, gradient in expected_gradients.items()}
    assert off[True][1] < 0.1 * distance(nothing, expected_gradients)


def distance(found: dict, expected: dict) -> float:
    """Between the gradients of all weights, as one vector."""
    assert found.keys() == expected.keys()
    return sum(float((found[key] - expected[key]).square().sum()) for key in found) ** 0.5


# Draws, and trainings from the same seed


@pytest.mark.parametrize("p", [0.002, 0.1, 0.5, 0.999])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_masks_are_those_of_the_cpu_to_the_bit(p, dtype, device):
    for width in (1, 7, 384, 4096):
        x = torch.randn(37, width, dtype=dtype)
        keys = torch.randint(-(2**63), 2**63 - 1, (37,))
        there = x.to(device).requires_grad_()
        dropped = keyed_dropout(there, p, keys.to(device))
        here = x.requires_grad_()
        expected = keyed_dropout(here, p, keys)
        assert torch.equal(dropped.cpu(), expected)
        expected.backward(torch.ones_like(expected))
        dropped.backward(torch.ones_like(dropped))
        assert torch.equal(there.grad.cpu(), here.grad)


@pytest.fixture
def fit(tmp_path, backbone, collection_folder):
    """``fit(run, device, **changes)``: begin a run or go on with it, in float32; its exit code."""

    def begin(run: str, on: torch.device, **changes) -> int:
        (tmp_path / run).mkdir(exist_ok=True)
        options = {"trainer.accelerator": accelerator(on), "trainer.devices": 1}
        options |= {"trainer.precision": "32-true", "model.lr": 1e-3, "trainer.max_steps": 12}
        file = write_config(tmp_path / run, backbone, collection_folder, **options | changes)
        return main(start(tmp_path / run / "run", file))

    return begin


def ended_at(step: int) -> dict:
    """The change that ends a run by SIGTERM after a step."""
    return {"trainer.callbacks": [kind("tests.run.interrupted.TerminatedAt", step=step)]}


def test_six_steps_of_a_training_with_dropout_have_the_losses_of_the_cpu(fit, tmp_path, device):
    for run, on in (("here", torch.device("cpu")), ("there", device)):
        assert fit(run, on, **{"trainer.max_steps": 6}) == 0
    here = [float(loss) for loss in losses(tmp_path / "here/run")]
    there = [float(loss) for loss in losses(tmp_path / "there/run")]
    assert len(here) == 6 and len(set(here)) > 3
    np.testing.assert_allclose(there, here, rtol=1e-4)


@pytest.fixture
def deterministic():
    """Lightning leaves torch as it has set it."""
    yield
    torch.use_deterministic_algorithms(False)


def test_a_resume_under_deterministic_is_equal_to_the_bit(fit, tmp_path, device, deterministic):
    options = {"trainer.deterministic": True}
    assert fit("whole", device, **options) == 0
    assert fit("parts", device, **options | ended_at(5)) == 143
    assert fit("parts", device, **options) == 0
    whole = outcome(tmp_path / "whole/run")
    assert list(differences(whole, outcome(tmp_path / "parts/run"))) == []


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_is_deterministic_or_says_that_it_is_not(loss, device, deterministic):
    torch.use_deterministic_algorithms(True)
    scores = torch.randn(4, 6, device=device)
    labels = torch.zeros(4, 6, device=device)
    labels[:, 0] = 1
    gradients_of_calls = []
    for _ in range(2):
        leaf = scores.clone().requires_grad_()
        try:
            LOSSES[loss]()(leaf, labels).backward()
        except RuntimeError as error:
            if "does not have a deterministic implementation" not in str(error):
                raise
            return
        gradients_of_calls.append(leaf.grad)
    assert torch.equal(*gradients_of_calls)


# The training step


@contextmanager
def counted_waits(device: torch.device, found: Counter) -> Iterator[None]:
    """Count the lines inside the block that wait for the GPU."""
    if device.type != "cuda":
        yield
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for warning in caught:
        if "called a synchronizing" in str(warning.message):
            found[f"{warning.filename}:{warning.lineno}"] += 1


class Waits(Callback):
    """Counts where three steps wait for the GPU, each up to the begin of the next one: the third and
    what follows. The first ones load kernels and check themselves.
    """

    def __init__(self, device: torch.device) -> None:
        self.found: Counter[str] = Counter()
        self._counting = counted_waits(device, self.found)

    def on_train_batch_start(self, trainer, module, batch, index) -> None:
        if index == 2:
            self._counting.__enter__()
        if index == 5:
            self._counting.__exit__(None, None, None)


DUAL = {"kind": dual_encoder, "in_batch": OtherQueries}
STEPS = {
    "cross-encoder, RankNet": ({"kind": cross_encoder, "loss": RankNetLoss}, 0),
    "cross-encoder, ListMLE": ({"kind": cross_encoder, "loss": ListMLELoss}, 0),
    "cross-encoder, ApproxNDCG": ({"kind": cross_encoder, "loss": ApproxNDCGLoss}, 0),
    "cross-encoder, batch-hard": ({"kind": cross_encoder, "loss": BatchHardTripletLoss}, 0),
    "dual encoder, own lists": ({"kind": dual_encoder, "loss": SoftmaxLoss}, 0),
    "dual encoder, other queries": (DUAL | {"loss": SoftmaxLoss}, 0),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_does_not_wait_for_the_gpu(name, backbone, collection_folder, tmp_path, device):
    """Three steps in bfloat16, forward, backward and AdamW, which is the fused one."""
    parts, allowed = STEPS[name]
    options = {"in_batch": parts["in_batch"]()} if "in_batch" in parts else {}
    module = parts["kind"](backbone, parts["loss"](), **options)
    data = data_for(module, TripletDataModule, collection_folder, batch_size=4)
    waits = Waits(device)
    training = trainer(
        tmp_path,
        accelerator=accelerator(device),
        devices=1,
        precision="bf16-mixed",
        max_steps=6,
        limit_val_batches=0,
        callbacks=[waits],
    )
    training.fit(module, data)
    assert training.global_step == 6
    n_waits = sum(waits.found.values())
    assert n_waits <= 3 * allowed, f"in three steps: {waits.found.most_common()}"
    (optimizer,) = training.optimizers
    assert all(group["fused"] for group in optimizer.param_groups)


@EVERY_MODEL
def test_recomputed_chunks_give_the_gradient_of_the_whole_batch(name, device):
    """With ``keep_tokens: 0``, dropout included."""
    _, whole, _ = outputs_and_gradients(encoder_of(name), device)
    recomputed = encoder_of(name, max_tokens=15, keep_tokens=0)
    _, found, _ = outputs_and_gradients(recomputed, device)
    assert_same_gradients(found, whole)


# Checkpoints of another device


@pytest.mark.parametrize("back", [False, True], ids=["gpu to cpu", "cpu to gpu"])
def test_a_checkpoint_is_resumed_on_the_other_device(back, fit, tmp_path, device):
    """With the losses of a run that stays on the CPU."""
    cpu = torch.device("cpu")
    first, second = (cpu, device) if back else (device, cpu)
    assert fit("whole", cpu) == 0
    assert fit("parts", first, **ended_at(5)) == 143
    assert fit("parts", second) == 0
    whole = [float(loss) for loss in losses(tmp_path / "whole/run")]
    resumed = [float(loss) for loss in losses(tmp_path / "parts/run")]
    assert len(resumed) == 7
    np.testing.assert_allclose(resumed, whole[5:], rtol=1e-3)
    last = torch.load(tmp_path / "parts/run/checkpoints/last.ckpt", "cpu", weights_only=True)
    assert last["global_step"] == 12
    assert all(group["fused"] for group in last["optimizer_states"][0]["param_groups"])


# Loading


class Batches(Callback):
    """Keeps the batches of a training, on the CPU."""

    def __init__(self) -> None:
        self.kept: list[list[torch.Tensor]] = []
        self.devices: set[str] = set()

    def on_train_batch_start(self, trainer, module, batch, index) -> None:
        leaves = [leaf for leaf in tree_leaves(batch) if leaf is not None]
        self.devices.add(batch.labels.device.type)
        self.kept.append([torch.as_tensor(leaf).cpu().clone() for leaf in leaves])


def test_workers_with_pinned_memory_give_the_batches_of_none(
    backbone, collection_folder, tmp_path, device
):
    batches_of = {}
    for n_workers in (0, 2):
        module = cross_encoder(backbone, RankNetLoss())
        options = {"batch_size": 4, "num_workers": n_workers, "seed": 0}
        data = data_for(module, TripletDataModule, collection_folder, **options)
        batches = Batches()
        options = {"accelerator": accelerator(device), "devices": 1, "callbacks": [batches]}
        trainer(tmp_path, max_epochs=2, limit_val_batches=0, **options).fit(module, data)
        assert batches.devices == {device.type}
        batches_of[n_workers] = batches.kept
    assert len(batches_of[0]) == 16
    exactly = {"rtol": 0, "atol": 0, "equal_nan": True}
    torch.testing.assert_close(batches_of[2], batches_of[0], **exactly)


# Mining beside the training, and memory


@pytest.mark.slow
def test_mining_beside_the_training_takes_its_gpu(fit, tmp_path, device, monkeypatch):
    commands = []

    class Recorded(subprocess.Popen):
        def __init__(self, command, **options):
            commands.append(command)
            super().__init__(command, **options)

    monkeypatch.setattr("subprocess.Popen", Recorded)
    run = tmp_path / "mined/run"
    recipe = {"depth": 10, "n": 4, "relative": None}
    mining = kind(
        "ltr.callbacks.HardNegativeMining", every_n_steps=3, recipe=recipe, asynchronous=True
    )
    manifest = run / "negatives/step=3/manifest.json"
    waits = kind("tests.faults.WaitFor", file=str(manifest), step=4)
    changes = {
        "model.ranker.class_path": "ltr.models.DualEncoder",
        "data.init_args.negatives": "mined",
        "trainer.callbacks": [mining, waits],
        "trainer.max_steps": 5,
    }
    assert fit("mined", device, **changes) == 0
    assert json.loads(manifest.read_text())["seed"][1] == 3
    (beside,) = [command for command in commands if "ltr.cli.process" in command]
    devices = beside[beside.index("--trainer.devices") + 1]
    assert devices == {"cuda": "[0]", "cpu": "1"}[device.type]
    config = yaml.safe_load(Path(beside[beside.index("--config") + 1]).read_text())
    assert config["trainer"]["accelerator"] == accelerator(device)


def test_a_full_device_is_told_in_one_line(
    copied_run, collection_folder, tmp_path, device, monkeypatch, capsys
):
    """By the first embedding that needs more than there is."""
    run = copied_run(tmp_path, "dual")

    def too_large(encoder, of):
        return torch.empty(1 << 55, device=of.ids.device)

    monkeypatch.setattr("ltr.models.encoder.text_encoder.TextEncoder.forward", too_large)
    words = f"encode {run} --corpus {collection_folder} --output {tmp_path / 'full'}"
    told = refusal(capsys, f"{words} --device {device.type}")
    assert told.startswith("ltr: no memory is left (")


# Encoding and search


def test_embeddings_in_bfloat16_are_near_those_in_float32(backbone, collection_folder, device):
    model = DualEncoder(backbone, max_length=24).to(device).eval()
    store = model.reads.docs.store(open_collection(collection_folder).corpus)
    rows = np.arange(200)
    embedded = partial(encode_in_memory, model.doc_tower, store, model.reads.docs, rows)
    exact = embedded()
    with torch.autocast(device.type, torch.bfloat16):
        half = embedded()
    lengths = np.linalg.norm(exact, axis=1) * np.linalg.norm(half, axis=1)
    cosines = (exact * half).sum(axis=1) / lengths
    assert cosines.min() > 0.999
    assert not np.array_equal(exact, half)


def test_two_encodings_are_equal_to_the_byte(copied_run, collection_folder, tmp_path, device):
    run = copied_run(tmp_path, "dual")
    shards = []
    for name in ("a", "b"):
        folder = tmp_path / name
        words = f"encode {run} --corpus {collection_folder} --output {folder}"
        assert run_ltr(f"{words} --device {device.type} --precision bf16-mixed") == 0
        files = sorted(Path(folder).glob("*.npy"))
        shards.append({file.name: file.read_bytes() for file in files})
    assert shards[0] and shards[0] == shards[1]


@pytest.fixture(params=["highest", "high"], ids=["float32", "TF32 allowed"])
def products(request):
    """How exactly the user lets torch multiply."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield
    torch.set_float32_matmul_precision(before)


@EVERY
def test_search_finds_the_rows_of_the_cpu(similarity, products, device):
    """But where scores are as near as their rounding: there any of them."""
    docs = embeddings(40_000, dim=32, shift=0.5)
    queries = embeddings(50, dim=32, seed=1)
    expected_scores, expected = build(docs, similarity).search(queries, 20)
    scores, rows = build(docs, similarity, device=device).search(queries, 20)
    rounding = 3e-6 * np.abs(expected_scores).max()
    np.testing.assert_allclose(scores, expected_scores, rtol=0, atol=rounding)
    near = np.abs(np.diff(expected_scores, axis=1)) <= 2 * rounding
    is_tied = np.pad(near, ((0, 0), (0, 1))) | np.pad(near, ((0, 0), (1, 0)))
    is_tied[:, -1] = True  # perhaps with the first one that is not found
    assert ((rows == expected) | is_tied).all() and is_tied.mean() < 0.5


@EVERY
@pytest.mark.parametrize("stay", [False, True])
def test_halves_in_shards_are_found_there_again_and_again(similarity, stay, tmp_path, device):
    """40,000 halves are three tiles; the third search finds what the first does, to the bit."""
    docs = stored(tmp_path / "shards", embeddings(40_000, dim=32), rows=4096).embeddings()
    queries = embeddings(50, dim=32, seed=1)
    expected_scores, _ = build(docs, similarity).search(queries, 20)
    index = build(docs, similarity, device=device, stay=stay)
    first, *others = [index.search(queries, 20) for _ in range(3)]
    atol = 1e-6 * np.abs(expected_scores).max()
    np.testing.assert_allclose(first[0], expected_scores, rtol=0, atol=atol)
    for other in others:
        np.testing.assert_array_equal(other, first)


def test_a_search_waits_as_often_for_many_tiles_as_for_few(monkeypatch, device):
    """Beside the copies of tiles, whose places are waited for without a halt of the GPU."""
    monkeypatch.setattr(tiles, "DOCS_AT_ONCE", 1024)
    queries = embeddings(50, dim=32, seed=1)
    found = []
    for n_docs in (2000, 20_000):
        index = build(embeddings(n_docs, dim=32), "cosine", device=device)
        index.search(queries, 20)  # loads kernels
        waits: Counter[str] = Counter()
        with counted_waits(device, waits):
            index.search(queries, 20)
        found.append(waits)
    assert found[0] == found[1], found


@EVERY
def test_of_equal_scores_the_larger_row_comes_first_there_too(similarity, products, device):
    """300 documents at four places, so that k = 70 cuts through a tie."""
    places = np.array([[4, 0], [0, 4], [-4, 0], [0, -4]], dtype=np.float32)
    docs = places[np.arange(300) % 4]
    _, rows = build(docs, similarity, device=device).search(places, 70)
    for place in range(4):
        assert rows[place].tolist() == list(range(299, -1, -1))[3 - place :: 4][:70]
