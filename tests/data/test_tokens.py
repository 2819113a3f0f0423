"""Stored tokens: what a store holds, and that it is whole whatever happens to its builders."""

import io
import os
import pickle
import signal
import subprocess
import sys

import numpy as np
import pytest

from ltr.data.cache_contents import Cache
from ltr.data.token_parts import TokenPart, TokenParts
from ltr.data.tokens import Rendering, Tokens, TokenStore
from ltr.data.whole_files import parts_of
from tests.world.backbones import wordpiece_tokenizer
from tests.world.tokenizers import TEXTS, byte_level_bpe, table_of


def test_views_are_the_first_or_last_tokens_and_read_nothing(tmp_path):
    store = TokenStore.open(table_of(TEXTS), wordpiece_tokenizer())
    rows = np.array([3, 0, 3])
    counts = np.array([4, 0, 8])
    for last in (False, True):
        views = store.views(rows, counts, last=last)
        parts = [
            store[row][len(store[row]) - n :] if last else store[row][:n]
            for row, n in zip(rows, counts, strict=True)
        ]
        assert [view.tolist() for view in views] == [part.tolist() for part in parts]
        assert np.shares_memory(views[0], store[3])


def test_settings_left_in_a_tokenizer_file_do_not_cut_or_pad(tmp_path):
    tokenizer = wordpiece_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(2)
    tokenizer.backend_tokenizer.enable_padding(length=9)
    store = TokenStore.open(table_of(TEXTS), tokenizer)
    assert [len(store[i]) for i in range(3)] == [3, 2, 1]


def test_the_key_is_content_and_tokenizer(tmp_path):
    stores = {
        TokenStore.open(table_of(texts), tokenizer).folder
        for texts in (TEXTS, TEXTS[:-1])
        for tokenizer in (wordpiece_tokenizer(), byte_level_bpe())
    }
    assert len(stores) == 4
    assert TokenStore.open(table_of(TEXTS), wordpiece_tokenizer()).folder in stores


def test_each_prompt_has_a_store_of_its_own(tmp_path):
    table = table_of(["w1 w2"])
    tokenizer = wordpiece_tokenizer()
    stores = [
        TokenStore.open(table, tokenizer, Rendering(prompt)) for prompt in ("", "w3 ", "w3", "w3\t")
    ]
    assert len({store.folder for store in stores}) == 4
    words = [tokenizer.convert_ids_to_tokens(store[0].tolist()) for store in stores]
    assert words[:3] == [["w1", "w2"], ["w3", "w1", "w2"], ["[UNK]", "w2"]]
    again = pickle.loads(pickle.dumps(stores[1]))  # as a worker gets it
    assert (again.rendering_key, again[0].tolist()) == ("w3 ", stores[1][0].tolist())


def test_special_tokens_in_a_text_are_split_where_the_tokenizer_splits_them(tmp_path):
    table = table_of(["a </s> w1"])
    tokenizer = byte_level_bpe()
    whole = TokenStore.open(table, tokenizer)
    tokenizer.split_special_tokens = True
    split = TokenStore.open(table, tokenizer)
    assert tokenizer.eos_token_id in whole[0] and tokenizer.eos_token_id not in split[0]
    assert split[0].tolist() == Tokens.from_texts(["a </s> w1"], tokenizer)[0].tolist()


BUILD = """
import sys, time
import ltr.data.tokens as tokens
from pathlib import Path
from ltr.data.texts import TextTable
from tests.world.backbones import wordpiece_tokenizer
tokens.BATCH = 1
tokens.TEXTS_OF_PART = int(sys.argv[3])
plain = tokens.backend_without_cutting
class Slow:
    def __init__(self, backend): self.backend = backend
    def __getattr__(self, name): return getattr(self.backend, name)
    def encode_batch_fast(self, *a, **k):
        print("working", flush=True); time.sleep(float(sys.argv[2])); return self.backend.encode_batch_fast(*a, **k)
tokens.backend_without_cutting = lambda t: Slow(plain(t))
store = tokens.TokenStore.open(TextTable(Path(sys.argv[1])), wordpiece_tokenizer())
print(store.folder, sum(len(store[i]) for i in range(len(store))), flush=True)
"""


def start_build(table, seconds, texts_of_part=16):
    arguments = [str(table.folder), str(seconds), str(texts_of_part)]
    command = [sys.executable, "-c", BUILD, *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": os.getcwd()}
    )


def test_a_killed_build_leaves_nothing_that_counts_as_whole(tmp_path):
    table = table_of([f"w{i} w{i}" for i in range(40)], "killed")
    process = start_build(table, 30)
    assert process.stdout.readline() == "working\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
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
    process = start_build(table, 0.05, texts_of_part=3)
    for _ in range(8):
        assert process.stdout.readline() == "working\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    (left,) = [entry for entry in Cache().entries if entry.last_used is None]
    assert Cache().why_unused(left, None) == "left by a killed command" and left.size > 1000
    parts = sorted(file.name for file in parts_of(left.folder).iterdir())
    assert parts == ["000000.npz", "000001.npz"]

    monkeypatch.setattr("ltr.data.tokens.BATCH", 1)
    monkeypatch.setattr("ltr.data.tokens.TEXTS_OF_PART", 3)
    written = []
    monkeypatch.setattr(TokenParts, "append", recording(TokenParts.append, written))
    store = TokenStore.open(table, wordpiece_tokenizer())
    assert [len(part.lengths) for part in written] == [3, 1]
    assert store.folder == left.folder and not parts_of(left.folder).exists()
    for name in ("ids.npy", "offsets.npy"):
        assert (store.folder / name).read_bytes() == (whole.folder / name).read_bytes()

    # Killed between the last rename and the removal of the parts.
    parts_of(left.folder).mkdir()
    (left,) = [entry for entry in Cache().entries if entry.last_used is None]
    assert left.try_remove() and not parts_of(left.folder).exists() and store.folder.is_dir()


def recording(append, written):
    def recorded(parts, part):
        written.append(part)
        append(parts, part)

    return recorded


def test_a_store_has_the_bytes_that_numpy_saves():
    """Also one without any token."""
    for texts in (TEXTS, [" \u200b"]):
        tokenizer = wordpiece_tokenizer()
        store = TokenStore.open(table_of(texts), tokenizer)
        ids_of_texts = [Tokens.from_texts([text], tokenizer)[0].tolist() for text in texts]
        flat = sum(ids_of_texts, []) or [0]
        for name, values, dtype in (
            ("ids", flat, store.dtype),
            ("offsets", np.cumsum([0, *map(len, ids_of_texts)]), np.int64),
        ):
            saved = io.BytesIO()
            np.save(saved, np.asarray(values, dtype=dtype))
            assert (store.folder / f"{name}.npy").read_bytes() == saved.getvalue()


def test_a_damaged_part_is_made_again(tmp_path):
    parts = TokenParts(tmp_path)
    for number in range(3):
        array = np.arange(100 * number)
        parts.append(TokenPart(array, np.arange(4), 1.5))
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


def test_two_processes_that_build_the_same_store_do_not_clash(tmp_path):
    table = table_of([f"w{i} w{i} w{i}" for i in range(20)], "two")
    first = start_build(table, 0.1)
    assert first.stdout.readline() == "working\n"
    second = start_build(table, 0.1)
    outputs = [p.communicate()[0].splitlines() for p in (first, second)]
    assert first.returncode == second.returncode == 0
    assert outputs[0][-1] == outputs[1][-1] and outputs[0][-1].endswith(" 60")
    assert "working" not in outputs[1]  # it waited, and found the work done


def test_tokens_in_memory_are_those_of_the_store():
    """Also where the tokenizer cuts and pads: neither does."""
    tokenizer = wordpiece_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(2)
    tokenizer.backend_tokenizer.enable_padding(length=9)
    table = table_of(TEXTS)
    store = TokenStore.open(table, tokenizer)
    tokens = Tokens.from_texts(list(table.texts), tokenizer)
    assert len(tokens) == len(store) and tokens.dtype == store.dtype
    assert all(np.array_equal(tokens[row], store[row]) for row in range(len(store)))
    assert (
        len(Tokens.from_texts([], tokenizer)) == 0
        and Tokens.from_texts(["", "w1"], tokenizer)[0].tolist() == []
    )
