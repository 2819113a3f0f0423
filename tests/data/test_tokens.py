"""Stored tokens: what a store holds, and that it is whole whatever happens to its builders."""

import io
import os
import pickle
import signal
import time

import numpy as np
import pytest

from ltr.data import tokens as tokens_file
from ltr.data.cache_contents import Cache
from ltr.data.texts import TextTable
from ltr.data.token_parts import TokenPart, TokenParts
from ltr.data.tokens import Rendering, Tokens, TokenStore, backend_without_cutting
from ltr.data.whole_files import parts_of
from tests.child_processes import fork
from tests.world.backbones import wordpiece_tokenizer
from tests.world.tokenizers import TEXTS, byte_level_bpe, table_of


def test_views_are_the_first_or_last_tokens_and_read_nothing():
    store = TokenStore.open(table_of(TEXTS), wordpiece_tokenizer())
    rows = np.array([3, 0, 3])
    counts = np.array([4, 0, 8])
    for last in (False, True):
        views = store.views(rows, counts, last=last)
        for view, row, n in zip(views, rows, counts, strict=True):
            whole = store[row].tolist()
            assert view.tolist() == (whole[len(whole) - n :] if last else whole[:n])
        assert np.shares_memory(views[0], store[3])


def test_the_key_is_content_and_tokenizer():
    stores = {
        TokenStore.open(table_of(texts), tokenizer).folder
        for texts in (TEXTS, TEXTS[:-1])
        for tokenizer in (wordpiece_tokenizer(), byte_level_bpe())
    }
    assert len(stores) == 4
    assert TokenStore.open(table_of(TEXTS), wordpiece_tokenizer()).folder in stores


def test_each_prompt_has_a_store_of_its_own():
    table = table_of(["w1 w2"])
    tokenizer = wordpiece_tokenizer()
    renderings = [Rendering(prompt) for prompt in ("", "w3 ", "w3", "w3\t")]
    stores = [TokenStore.open(table, tokenizer, rendering) for rendering in renderings]
    assert len({store.folder for store in stores}) == 4
    words = [tokenizer.convert_ids_to_tokens(store[0].tolist()) for store in stores]
    assert words[:3] == [["w1", "w2"], ["w3", "w1", "w2"], ["[UNK]", "w2"]]
    again = pickle.loads(pickle.dumps(stores[1]))  # as a worker gets it
    assert (again.rendering_key, again[0].tolist()) == ("w3 ", stores[1][0].tolist())


def test_special_tokens_in_a_text_are_split_where_the_tokenizer_splits_them():
    table = table_of(["a </s> w1"])
    tokenizer = byte_level_bpe()
    whole = TokenStore.open(table, tokenizer)
    tokenizer.split_special_tokens = True
    split = TokenStore.open(table, tokenizer)
    assert tokenizer.eos_token_id in whole[0] and tokenizer.eos_token_id not in split[0]
    for backend in (None, backend_without_cutting(tokenizer)):
        tokens = Tokens.from_texts(["a </s> w1"], tokenizer, backend=backend)
        assert split[0].tolist() == tokens[0].tolist()


class Slow:
    """A tokenizer's backend that says when it works, and takes its time."""

    def __init__(self, backend, seconds, pipe):
        self.backend = backend
        self.seconds = seconds
        self.pipe = pipe

    def __getattr__(self, name):
        return getattr(self.backend, name)

    def encode_batch_fast(self, *texts, **options):
        os.write(self.pipe, b"working\n")
        time.sleep(self.seconds)
        return self.backend.encode_batch_fast(*texts, **options)


class Build:
    """A process that builds the store of a table, text by text; what it says, and its number."""

    def __init__(self, table, seconds, texts_of_part=16):
        ours, theirs = os.pipe()

        def build():
            tokens_file.BATCH = 1
            tokens_file.TEXTS_OF_PART = texts_of_part
            plain = tokens_file.backend_without_cutting
            tokens_file.backend_without_cutting = lambda t: Slow(plain(t), seconds, theirs)
            store = TokenStore.open(TextTable(table.folder), wordpiece_tokenizer())
            n_tokens = sum(len(store[row]) for row in range(len(store)))
            os.write(theirs, f"{store.folder} {n_tokens}\n".encode())

        self.number = fork(build)
        os.close(theirs)
        self.said = os.fdopen(ours)

    def kill(self):
        os.kill(self.number, signal.SIGKILL)
        self.wait()

    def wait(self):
        self.said.close()
        _, status = os.waitpid(self.number, 0)
        return status


def test_a_killed_build_leaves_nothing_that_counts_as_whole():
    table = table_of([f"w{i} w{i}" for i in range(40)], "killed")
    build = Build(table, 30)
    assert build.said.readline() == "working\n"
    build.kill()
    store = TokenStore.open(table, wordpiece_tokenizer())
    assert [len(store[i]) for i in range(len(table))] == [2] * 40
    assert not list(store.folder.parent.glob(f".{store.folder.name}.*"))


def test_a_killed_build_goes_on_after_its_finished_parts(monkeypatch):
    """Of 10 texts in parts of 3 it is killed at the eighth; the store has the bytes of one that was
    never killed. What is left is told and removed by ltr cache.
    """
    texts = [f"w{i} w{i} é w1"[: 3 + 3 * i] for i in range(10)]
    whole = TokenStore.open(table_of(texts, "whole"), wordpiece_tokenizer())
    table = table_of(texts, "parts")
    build = Build(table, 0.05, texts_of_part=3)
    for _ in range(8):
        assert build.said.readline() == "working\n"
    build.kill()
    (left,) = [entry for entry in Cache().entries if entry.last_used is None]
    assert Cache().why_unused(left, None) == "left by a killed command" and left.size > 1000
    parts = sorted(file.name for file in parts_of(left.folder).iterdir())
    assert parts == ["000000.npz", "000001.npz"]

    monkeypatch.setattr("ltr.data.tokens.BATCH", 1)
    monkeypatch.setattr("ltr.data.tokens.TEXTS_OF_PART", 3)
    written = []
    append = TokenParts.append

    def recorded(parts, part):
        written.append(part)
        append(parts, part)

    monkeypatch.setattr(TokenParts, "append", recorded)
    store = TokenStore.open(table, wordpiece_tokenizer())
    assert [len(part.lengths) for part in written] == [3, 1]
    assert store.folder == left.folder and not parts_of(left.folder).exists()
    for name in ("ids.npy", "offsets.npy"):
        assert (store.folder / name).read_bytes() == (whole.folder / name).read_bytes()

    # Killed between the last rename and the removal of the parts.
    parts_of(left.folder).mkdir()
    (left,) = [entry for entry in Cache().entries if entry.last_used is None]
    assert left.try_remove() and not parts_of(left.folder).exists() and store.folder.is_dir()


def test_a_store_has_the_bytes_that_numpy_saves():
    """Also one without any token."""
    for texts in (TEXTS, [" \u200b"]):
        tokenizer = wordpiece_tokenizer()
        store = TokenStore.open(table_of(texts), tokenizer)
        ids_of_texts = [Tokens.from_texts([text], tokenizer)[0].tolist() for text in texts]
        flat = np.array(sum(ids_of_texts, []) or [0], dtype=store.dtype)
        offsets = np.cumsum([0, *map(len, ids_of_texts)])
        for name, array in (("ids", flat), ("offsets", offsets)):
            saved = io.BytesIO()
            np.save(saved, array)
            assert (store.folder / f"{name}.npy").read_bytes() == saved.getvalue()


def test_a_damaged_part_is_made_again(tmp_path):
    parts = TokenParts(tmp_path)
    for number in range(3):
        parts.append(TokenPart(np.arange(100 * number), np.arange(4), 1.5))
    assert [len(part.ids) for part in TokenParts(tmp_path)] == [0, 100, 200]
    whole = (tmp_path / "000001.npz").read_bytes()
    for damaged in (b"", whole[:-10], whole[:500] + b"\1" + whole[501:]):
        (tmp_path / "000001.npz").write_bytes(damaged)
        assert TokenParts(tmp_path).n_texts == 4


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_flipped_bit_in_a_part_is_noticed_or_changes_nothing(tmp_path):
    TokenParts(tmp_path).append(TokenPart(np.arange(30, dtype=np.uint16), np.arange(4), 1.5))
    file = tmp_path / "000000.npz"
    whole = file.read_bytes()
    n_noticed = 0
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 64 if place % 2 else 1
        file.write_bytes(damaged)
        parts = list(TokenParts(tmp_path))
        if not parts:
            n_noticed += 1
            continue
        assert parts[0].ids.tolist() == list(range(30)) and parts[0].ids.dtype == np.uint16
        assert parts[0].lengths.tolist() == list(range(4))
    assert n_noticed > 500


@pytest.mark.long
def test_two_processes_that_build_the_same_store_do_not_clash():
    table = table_of([f"w{i} w{i} w{i}" for i in range(20)], "two")
    first = Build(table, 0.1)
    assert first.said.readline() == "working\n"
    second = Build(table, 0.1)
    *work, found = first.said.read().splitlines()
    assert work == ["working"] * 19 and found.endswith(" 60")
    assert second.said.read() == f"{found}\n", "it waited, and found the work done"
    assert first.wait() == second.wait() == 0


def test_tokens_in_memory_are_those_of_the_store():
    """Also where the tokenizer's file says that it cuts and pads: neither does."""
    tokenizer = wordpiece_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(2)
    tokenizer.backend_tokenizer.enable_padding(length=9)
    table = table_of(TEXTS)
    store = TokenStore.open(table, tokenizer)
    for backend in (None, backend_without_cutting(tokenizer)):
        tokens = Tokens.from_texts(list(table.texts), tokenizer, backend=backend)
        assert len(tokens) == len(store) and tokens.dtype == store.dtype
        assert all(np.array_equal(tokens[row], store[row]) for row in range(len(store)))
        assert len(Tokens.from_texts([], tokenizer, backend=backend)) == 0
    assert [len(store[row]) for row in range(3)] == [3, 2, 1]
    assert Tokens.from_texts(["", "w1"], tokenizer)[0].tolist() == []
