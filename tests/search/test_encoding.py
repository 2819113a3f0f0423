"""An encoding is what its texts give, whoever makes its shards, and whatever happens meanwhile."""

import json
import logging
import os
import random
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ltr.data.collection import open_collection
from ltr.data.layouts import SingleTexts
from ltr.data.tokens import TokenStore
from ltr.data.whole_files import being_written
from ltr.errors import InputError
from ltr.models.encoder.loading.pretrained import load_encoder, load_tokenizer
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.search import encoding_worker as room
from ltr.search.embed_texts import Batch, encode_in_memory
from ltr.search.embedder import Embedder
from ltr.search.encoding import Encoding, plan_of, rows_of_shard
from ltr.search.encoding_places import texts_of_store
from ltr.search.encoding_worker import Worker
from ltr.search.shard_file import read_shard, remove_unfinished, write_shard
from tests.child_processes import fork

DOCS = 720  # of the tiny collection


@pytest.fixture
def world(backbone, collection_folder):
    """An embedder, the tokens of a corpus and the embeddings of all texts."""
    tokenizer = load_tokenizer(backbone)
    store = TokenStore.open(open_collection(str(collection_folder)).corpus, tokenizer)
    form = SingleTexts(tokenizer, 12)
    encoder = TextEncoder(load_encoder(backbone)[0])
    embedder = Embedder(encoder, form, ["a model"], nullcontext, "32-true")
    return embedder, store, encode_in_memory(encoder, store, form, np.arange(DOCS))


def begun(folder: Path, world, numbers="float32", **changes) -> Worker:
    """A worker of the encoding in a folder."""
    embedder, store, _ = world
    folder.mkdir(exist_ok=True)
    texts = texts_of_store(store)
    encoding = Encoding(folder, plan_of(embedder, texts, numbers))
    return Worker(encoding, embedder, texts)


def finished(folder: Path, world, numbers="float32") -> Encoding:
    worker = begun(folder, world, numbers)
    worker.encode_missing()
    worker.encoding.finish()
    return worker.encoding


def files(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


WHOLE = ["000000.npy", "000001.npy", "000002.npy", "manifest.json", "plan.json"]


@pytest.mark.parametrize(
    ("numbers", "atol"), [("float32", 1e-6), ("float16", 2e-3), ("int8", 0.02)]
)
def test_rows_are_those_of_the_texts(world, tmp_path, numbers, atol):
    encoding = finished(tmp_path / "made", world, numbers)
    expected = world[2]
    embeddings = encoding.embeddings()
    assert embeddings.shape == (DOCS, expected.shape[1]) and len(embeddings) == DOCS
    np.testing.assert_allclose(embeddings[0:DOCS], expected, atol=atol)
    np.testing.assert_array_equal(embeddings[200:600], embeddings[0:DOCS][200:600])
    rows = np.array([700, 0, 255, 256, 0])
    np.testing.assert_array_equal(embeddings[rows], embeddings[0:DOCS][rows])
    assert embeddings[5:5].shape == (0, expected.shape[1])
    np.testing.assert_allclose(embeddings.sum(), embeddings[0:DOCS].sum(axis=0), rtol=1e-5)
    assert files(tmp_path / "made") == WHOLE
    assert [shard.count for shard in embeddings.shards] == [256, 256, 208]
    # As any other file of numpy.
    assert len(np.load(tmp_path / "made/000002.npy")) == 208


def test_the_number_of_rows_does_not_depend_on_who_encodes():
    assert [rows_of_shard(n) for n in (1, 256 * 64, 256 * 64 + 1, 2**18, 2**18 + 1)] == [
        256,
        256,
        512,
        4096,
        4096,
    ]
    assert rows_of_shard(4096 * 65_536) == 4096 and rows_of_shard(4096 * 65_536 + 1) == 8192


def test_two_orders_of_work_give_the_same_bytes(world, tmp_path):
    one = finished(tmp_path / "one", world)
    worker = begun(tmp_path / "two", world)
    for number in (2, 0, 1):
        worker.encode(number)
    worker.encoding.finish()
    for name in WHOLE:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert one.manifest()["digest"] == worker.encoding.manifest()["digest"]
    assert one.manifest()["count"] == DOCS and one.manifest()["devices"] == ["cpu"]


def test_what_decides_the_embeddings_decides_the_key(world):
    embedder, store, _ = world
    texts = texts_of_store(store)
    plan = plan_of(embedder, texts, "float32")
    others = [
        plan_of(
            Embedder(embedder.tower, embedder.form, ["other"], nullcontext, "32-true"),
            texts,
            "float32",
        ),
        plan_of(
            Embedder(embedder.tower, embedder.form, ["a model"], nullcontext, "bf16-mixed"),
            texts,
            "float32",
        ),
        plan_of(embedder, texts, "float16"),
        plan_of(embedder, texts_of_store(store, 719), "float32"),
    ]
    assert len({plan.key, *(other.key for other in others)}) == 5


def damaged(file: Path, how: str) -> str:
    """Damage a shard; what is said of it."""
    content = file.read_bytes()
    if how == "cut":
        file.write_bytes(content[: len(content) // 2])
        return "it is cut short, or no array"
    if how == "without a seal":
        file.write_bytes(content[: content.rindex(b"\n{") if b"\n{" in content else -1])
        np.save(file, np.load(file))
        return "it has no seal"
    if how == "empty":
        file.write_bytes(b"")
        return "it is cut short, or no array"
    if how == "of another number":
        shutil.copy(file.with_name("000000.npy"), file)
        return "it belongs to another encoding"
    shard = read_shard(file)
    write_shard(file, shard.read_stored(), "0" * 32, 1, "cpu")
    return "it belongs to another encoding"


@pytest.mark.parametrize(
    "how", ["cut", "without a seal", "empty", "of another number", "of other weights"]
)
def test_a_bad_shard_is_named_and_made_again(world, tmp_path, caplog, how):
    encoding = finished(tmp_path / "made", world)
    before = (tmp_path / "made/000001.npy").read_bytes()
    said = damaged(tmp_path / "made/000001.npy", how)
    with caplog.at_level(logging.WARNING, "ltr"):
        assert encoding.missing() == [1]
        with pytest.raises(InputError, match="000001.npy is missing or damaged"):
            encoding.embeddings()
    assert said in caplog.text and "000001.npy" in caplog.text
    begun(tmp_path / "made", world).encode_missing()
    assert (tmp_path / "made/000001.npy").read_bytes() == before


def test_a_changed_byte_is_found_by_the_check_and_the_shard_made_again(world, tmp_path, caplog):
    encoding = finished(tmp_path / "made", world)
    file = tmp_path / "made/000002.npy"
    before = file.read_bytes()
    with open(file, "r+b") as opened:
        opened.seek(1000)
        opened.write(b"\x7f")
    assert encoding.missing() == [], "the seal says nothing of it"
    with caplog.at_level(logging.WARNING, "ltr"):
        encoding.remove_damaged()
    assert "000002.npy: the bytes of this shard are not those that were written" in caplog.text
    assert encoding.missing() == [2]
    assert finished(tmp_path / "made", world).missing() == []
    assert file.read_bytes() == before


def test_numbers_that_are_not_finite_are_not_stored(world, tmp_path, monkeypatch):
    worker = begun(tmp_path / "made", world)
    encode_batches = room.encode_batches

    def overflown(*args):
        for places, embeddings in encode_batches(*args):
            embeddings[places == 7, 1] = np.nan
            yield places, embeddings

    monkeypatch.setattr(room, "encode_batches", overflown)
    with pytest.raises(InputError, match="finite, got NaN or infinity in row 263;"):
        worker.encode(1)
    assert files(tmp_path / "made") == ["plan.json"]


@pytest.mark.parametrize(
    ("device", "precision", "version"),
    [
        ("cpu", "32-true", "encoding-1"),
        ("cpu", "bf16-mixed", "encoding-1"),
        ("cuda:1", "32-true", "encoding-1"),
        ("cuda:1", "16-mixed", "encoding-1"),
        ("cuda:1", "bf16-mixed", "encoding-2"),
    ],
)
def test_what_has_norms_in_bfloat16_is_an_encoding_of_its_own(
    world, monkeypatch, device, precision, version
):
    embedder, store, _ = world
    monkeypatch.setattr(Embedder, "device", torch.device(device))
    embedder = replace(embedder, precision_name=precision)
    assert plan_of(embedder, texts_of_store(store), "float16").version == version


def test_another_encoding_in_the_folder_is_refused(world, tmp_path):
    begun(tmp_path / "made", world)
    with pytest.raises(
        InputError, match=r"holds another encoding \(what differs: numbers\); name a new"
    ):
        begun(tmp_path / "made", world, "float16")
    with pytest.raises(InputError, match="the encoding is not finished, there is no manifest.json"):
        Encoding.open(tmp_path / "made")
    with pytest.raises(InputError, match="expected an encoding, as ltr encode writes it, found no"):
        Encoding.open(tmp_path)


PLAN = {
    "model": "x",
    "precision": "32-true",
    "texts": "x",
    "count": 720,
    "rows": 256,
    "numbers": "float16",
    "version": "encoding-1",
}
NO_PLANS = {
    "cut": "[",
    "a list": "[1]",
    "nested lists": "[" * 100_000,
    "nested objects": '{"rows":' * 100_000,
    "no entries": "{}",
    "another entry": json.dumps(PLAN | {"more": 1}),
    **{f"no {name}": json.dumps({k: v for k, v in PLAN.items() if k != name}) for name in PLAN},
    **{
        f"{name} = {value!r:.20}": json.dumps(PLAN | {name: value})
        for name in PLAN
        for value in (None, True, [1], {}, 1.5, -1, 0, 10**30)
    },
    "rows as text": json.dumps(PLAN | {"rows": "256"}),
    "other numbers": json.dumps(PLAN | {"numbers": "float64"}),
}


@pytest.mark.parametrize("content", NO_PLANS.values(), ids=NO_PLANS)
def test_a_damaged_plan_is_one_line(tmp_path, content):
    (tmp_path / "plan.json").write_text(content)
    with pytest.raises(InputError) as refused:
        Encoding.open(tmp_path)
    assert str(refused.value).startswith(f"{tmp_path}/plan.json: the file is damaged")
    assert str(refused.value).endswith(
        "; remove the folder, and encode the corpus again: ltr encode"
    )


def test_a_file_is_no_encoding(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        InputError, match=r"file: expected the folder of an encoding, .* got a file"
    ):
        Encoding.open(tmp_path / "file")
    (tmp_path / "folder/plan.json").mkdir(parents=True)
    with pytest.raises(InputError, match=r"plan.json: expected a file, got a folder"):
        Encoding.open(tmp_path / "folder")


def test_a_full_disk_leaves_no_half_shard(world, tmp_path, monkeypatch):
    worker = begun(tmp_path / "made", world)

    def no_room(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(OSError, match="No space left"):
        worker.encode(0)
    assert files(tmp_path / "made") == ["plan.json"]


def test_of_shards_that_others_are_at_none_is_made_twice(world, tmp_path):
    """Two processes encode beside this one; each shard is encoded once."""
    folder = tmp_path / "made"
    begun(folder, world)
    children = [
        fork(lambda number=number: _encode_and_note(folder, world, number)) for number in (0, 1)
    ]
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
    made = [json.loads((tmp_path / f"{number}.json").read_text()) for number in (0, 1)]
    assert sorted(made[0] + made[1]) == [0, 1, 2]


def _encode_and_note(folder: Path, world, number: int) -> None:
    worker = begun(folder, world)
    made = []
    write = room.write_shard

    def noting(file: Path, stored, key, shard: int, device) -> None:
        made.append(shard)
        time.sleep(0.2)
        write(file, stored, key, shard, device)

    room.write_shard = noting
    worker.encode_missing()
    (folder.parent / f"{number}.json").write_text(json.dumps(made))


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Shards are prepared a shard ahead, as for a GPU, whose pinned memory there is none of here."""
    monkeypatch.setattr(room, "shards_ahead", lambda device: 1)
    monkeypatch.setattr(Batch, "pinned", lambda batch, device: batch)


def test_what_is_made_ahead_and_written_behind_has_the_same_bytes(
    world, tmp_path, monkeypatch, as_on_a_gpu
):
    """Also where the disk is slow: the first shard is written when the second was encoded."""
    events = []
    second_is_encoded = threading.Event()
    write, encode, prepare = room.write_shard, room.encode_batches, Worker._prepare

    def slow_write(file, stored, key, number, device):
        if number == 0:
            assert second_is_encoded.wait(60)
        write(file, stored, key, number, device)
        events.append(f"written {number}")

    def encoded(encoder, batches):
        assert type(batches) is list, "they were laid out before"
        number = sum(event.startswith("encoded") for event in events)
        yield from encode(encoder, batches)
        events.append(f"encoded {number}")
        if number == 1:
            second_is_encoded.set()

    def prepared(worker, number):
        assert threading.current_thread().name.startswith("ltr-reads")
        return prepare(worker, number)

    monkeypatch.setattr(room, "write_shard", slow_write)
    monkeypatch.setattr(room, "encode_batches", encoded)
    monkeypatch.setattr(Worker, "_prepare", prepared)
    begun(tmp_path / "slow", world, "float16").encode_missing()
    assert [each for each in events if each[0] == "w"] == ["written 0", "written 1", "written 2"]
    assert events.index("encoded 1") < events.index("written 0")
    monkeypatch.undo()
    worker = begun(tmp_path / "one by one", world, "float16")
    for number in range(3):
        worker.encode(number)
    for name in WHOLE[:3]:
        made = [(tmp_path / folder / name).read_bytes() for folder in ("slow", "one by one")]
        assert made[0] == made[1]


def test_the_wait_for_a_slow_disk_counts_as_time(world, tmp_path, monkeypatch):
    worker = begun(tmp_path / "made", world)
    is_timed = []
    inside = []

    @contextmanager
    def timed():
        inside.append(None)
        yield
        inside.pop()

    class Writer:
        def submit(self, write, *args):
            number = write(*args)
            return SimpleNamespace(result=lambda: is_timed.append(bool(inside)) or number)

    monkeypatch.setattr(worker.throughput, "timed", timed)
    with ThreadPoolExecutor(1) as reader:
        assert list(worker._made(range(3), reader, Writer())) == [0, 1, 2]
    assert is_timed == [True, True, True]


def test_a_damaged_shard_is_named_once(world, tmp_path, caplog):
    finished(tmp_path / "made", world)
    (tmp_path / "made/000001.npy").write_bytes(b"cut")
    begun(tmp_path / "made", world).encode_missing()
    assert caplog.text.count("000001.npy is no shard of this encoding") == 1


@pytest.mark.parametrize("error", [InputError("a fault"), OSError(28, "full"), KeyboardInterrupt()])
@pytest.mark.parametrize("phase", ["preparing", "encoding", "writing"])
def test_an_error_in_any_thread_ends_the_work_and_keeps_what_was_made(
    world, tmp_path, monkeypatch, as_on_a_gpu, phase, error
):
    """Of the second shard. The first is kept, and no lock and no half shard is left."""
    if isinstance(error, KeyboardInterrupt) and phase != "encoding":
        pytest.skip("a signal comes to the thread that encodes")
    folder = tmp_path / "made"
    counts = iter(range(3))

    def failing(real, number_of):
        def at_the_second(*args):
            if number_of(*args) == 1:
                raise error
            return real(*args)

        return at_the_second

    if phase == "preparing":
        failing_prepare = failing(Worker._prepare, lambda _, number: number)
        monkeypatch.setattr(Worker, "_prepare", failing_prepare)
    elif phase == "encoding":
        monkeypatch.setattr(
            room, "encode_batches", failing(room.encode_batches, lambda *_: next(counts))
        )
    else:
        monkeypatch.setattr(room, "write_shard", failing(room.write_shard, lambda *args: args[3]))
    worker = begun(folder, world)
    with pytest.raises(type(error)) as raised:
        worker.encode_missing()
    assert raised.value is error
    kept = [name for name in files(folder) if name.endswith(".npy")]
    assert kept == ["000000.npy"] and files(folder) == ["000000.npy", "plan.json"]
    assert not [each for each in threading.enumerate() if each.name.startswith("ltr-")]
    monkeypatch.undo()
    finished(tmp_path / "whole", world)
    begun(folder, world).encode_missing()
    for name in WHOLE[:3]:
        assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_worker_begins_at_its_place_and_locks_what_it_makes_alone(world, tmp_path, monkeypatch):
    """Shard 2 is at another worker, shard 0 is made by one meanwhile: neither is locked."""
    folder = tmp_path / "made"
    worker = begun(folder, world)
    locked = []
    lock = room.being_written

    def counting(path, **options):
        locked.append(path.name)
        return lock(path, **options)

    looks = []
    is_being_written = room.is_being_written

    def looked(path):
        looks.append(path.name)
        if len(looks) == 3:
            other.close()  # the other worker is killed, after the first look
        return is_being_written(path)

    other = ExitStack()
    other.enter_context(lock(folder / "000002.npy"))
    monkeypatch.setattr(room, "being_written", counting)
    monkeypatch.setattr(room, "is_being_written", looked)
    monkeypatch.setattr(room, "SECONDS_BETWEEN_LOOKS", 0)
    prepare = Worker._prepare

    def prepared(own, number):
        if number == 1 and own is worker:
            begun(folder, world).encode(0)
        return prepare(own, number)

    monkeypatch.setattr(Worker, "_prepare", prepared)
    worker.encode_missing(first=1)
    assert locked == ["000001.npy", "000002.npy"]
    assert looks == ["000001.npy", "000002.npy", "000002.npy"]
    worker.encoding.finish()
    assert files(folder) == WHOLE


def test_a_lock_that_was_left_beside_a_whole_shard_goes(world, tmp_path):
    """A worker may be killed after it has renamed a shard and before it removes the lock."""
    worker = begun(tmp_path / "made", world)
    worker.encode(1)
    (tmp_path / "made/.000001.npy.ltr-lock").touch()
    with being_written(tmp_path / "made/000002.npy"):
        remove_unfinished(tmp_path / "made")
        assert files(tmp_path / "made") == [".000002.npy.ltr-lock", "000001.npy", "plan.json"]
    worker.encode_missing()
    worker.encoding.finish()
    assert files(tmp_path / "made") == WHOLE


@pytest.mark.parametrize("rounds", [3, pytest.param(30, marks=pytest.mark.long)])
def test_kills_cost_the_shard_that_was_made(world, tmp_path, rounds):
    """Two workers, both killed at a random moment: what is there is whole, at most two shards were
    begun and lost, and the third worker makes the bytes of one that was never killed.
    """
    random.seed(rounds)
    torch.set_num_threads(1)
    finished(tmp_path / "whole", world)
    start = time.monotonic()
    finished(tmp_path / "timed", world)
    seconds = time.monotonic() - start
    folder = tmp_path / "made"
    for _ in range(rounds):
        shutil.rmtree(folder, ignore_errors=True)
        begun(folder, world)
        children = [fork(lambda: begun(folder, world).encode_missing()) for _ in range(2)]
        time.sleep(random.uniform(0, 1.2 * seconds))
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        there = [file for file in files(folder) if file.endswith(".npy")]
        for name in there:
            assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
        worker = begun(folder, world)
        assert len(worker.encoding.missing()) == 3 - len(there)
        worker.encode_missing()
        worker.encoding.finish()
        assert files(folder) == WHOLE, "nothing is left of the killed"
        for name in WHOLE:
            assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
