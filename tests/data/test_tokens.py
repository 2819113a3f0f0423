"""Stored tokens: what a store holds, and that it is whole whatever happens to its builders."""

import os
import signal
import subprocess
import sys

import numpy as np

from ltr.data.tokens import Tokens, TokenStore
from tests.conftest import wordpiece_tokenizer
from tests.data.tokenizers import TEXTS, byte_level_bpe, table_of


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


BUILD = """
import sys, time
import ltr.data.tokens as tokens
from pathlib import Path
from ltr.data.texts import TextTable
from tests.conftest import wordpiece_tokenizer
tokens.BATCH = 1
plain = tokens._backend_without_cutting
class Slow:
    def __init__(self, backend): self.backend = backend
    def __getattr__(self, name): return getattr(self.backend, name)
    def encode_batch_fast(self, *a, **k):
        print("working", flush=True); time.sleep(float(sys.argv[2])); return self.backend.encode_batch_fast(*a, **k)
tokens._backend_without_cutting = lambda t: Slow(plain(t))
store = tokens.TokenStore.open(TextTable(Path(sys.argv[1])), wordpiece_tokenizer())
print(store.folder, sum(len(store[i]) for i in range(len(store))), flush=True)
"""


def start_build(table, seconds):
    command = [sys.executable, "-c", BUILD, str(table.folder), str(seconds)]
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
    assert not list(store.folder.parent.glob(f".{store.folder.name}.tmp-*"))


def test_two_processes_that_build_the_same_store_do_not_clash(tmp_path):
    table = table_of([f"w{i} w{i} w{i}" for i in range(20)], "two")
    first = start_build(table, 0.1)
    assert first.stdout.readline() == "working\n"
    second = start_build(table, 0.1)
    outputs = [p.communicate(timeout=120)[0].splitlines() for p in (first, second)]
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
    tokens = Tokens.of(list(table.texts), tokenizer)
    assert len(tokens) == len(store) and tokens.dtype == store.dtype
    assert all(np.array_equal(tokens[row], store[row]) for row in range(len(store)))
    assert len(Tokens.of([], tokenizer)) == 0 and Tokens.of(["", "w1"], tokenizer)[0].tolist() == []
