import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from ltr.data.texts import Record, TextTable
from ltr.data.tokens import JoinedPairs, TokenStore
from ltr.errors import InputError
from tests.conftest import WORDS, wordpiece_tokenizer

TEXTS = [
    "w1 w2 w3",
    "a w4",
    "w5",
    "w6 unknown w7 w8 w9 w10 w11 w12",
    "Naïve — w1, w2! 中文 [SEP] </s> tail",
    "w1  double  space ",
]


def byte_level_bpe() -> PreTrainedTokenizerFast:
    """RoBERTa's kind: <s> query </s></s> document </s>, no types."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        TEXTS * 3, trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    )
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    names = {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>"}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", model_input_names=["input_ids", "attention_mask"], **names
    )


def sentencepiece_like() -> PreTrainedTokenizerFast:
    """XLM-R's and T5's kind: Unigram over ▁words, a template with types that say nothing."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=80, special_tokens=special, unk_token="<unk>")
    tokenizer.train_from_iterator([*TEXTS, *WORDS], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="<s> $A </s> $B:1 </s>:1 <s>:1", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", eos_token="</s>", model_input_names=names
    )


KINDS = {"wordpiece": wordpiece_tokenizer, "byte-level BPE": byte_level_bpe, "sentencepiece": sentencepiece_like}


def table_of(texts, cache, name="t"):
    records = (Record(f"{i:03d}", text, f"here:{i}") for i, text in enumerate(texts))
    return TextTable.open(cache, f"{name} {texts}", records, "document")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("max_length", [48, 20, 15])
def test_a_joined_pair_equals_the_tokenizer_own(kind, side, max_length, tmp_path):
    tokenizer = KINDS[kind]()
    tokenizer.truncation_side = side
    table = table_of(TEXTS, tmp_path)
    store, join = TokenStore.open(table, tokenizer), JoinedPairs(tokenizer, max_length)
    checked = 0
    for q, query in enumerate(TEXTS):
        if len(store[q]) + join.n_special >= max_length:
            continue
        for d, doc in enumerate(TEXTS):
            expected = tokenizer(query, doc, truncation="only_second", max_length=max_length)
            ids, types = join(store[q], store[d])
            assert ids.tolist() == expected["input_ids"]
            assert len(ids) == join.lengths(store.lengths(np.array([q])), store.lengths(np.array([d])))[0] <= max_length
            if "token_type_ids" in expected:
                assert types.tolist() == expected["token_type_ids"]
            checked += 1
    assert checked >= 6


def test_settings_left_in_a_tokenizer_file_do_not_cut_or_pad(tmp_path):
    tokenizer = wordpiece_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(2)
    tokenizer.backend_tokenizer.enable_padding(length=9)
    store = TokenStore.open(table_of(TEXTS, tmp_path), tokenizer)
    assert [len(store[i]) for i in range(3)] == [3, 2, 1]


def test_the_key_is_content_and_tokenizer(tmp_path):
    stores = {
        TokenStore.open(table_of(texts, tmp_path), tokenizer).folder
        for texts in (TEXTS, TEXTS[:-1])
        for tokenizer in (wordpiece_tokenizer(), byte_level_bpe())
    }
    assert len(stores) == 4
    assert TokenStore.open(table_of(TEXTS, tmp_path), wordpiece_tokenizer()).folder in stores


def test_a_query_too_long_for_the_limit_is_named(tmp_path):
    tokenizer = wordpiece_tokenizer()
    table = table_of(["w1", "w1 w2 w3 w4 w5 w6"], tmp_path, "q")
    join, store = JoinedPairs(tokenizer, 9), TokenStore.open(table, tokenizer)
    with pytest.raises(InputError, match="query '001' has 6 tokens, but max_length 9 leaves 5 "):
        join.check_queries(table, store)
    JoinedPairs(tokenizer, 10).check_queries(table, store)
    with pytest.raises(InputError, match="room for a query and a document beside 3"):
        JoinedPairs(tokenizer, 4)


BUILD = """
import sys, time
import ltr.data.tokens as tokens
from pathlib import Path
from ltr.data.texts import TextTable
from tests.conftest import wordpiece_tokenizer
tokens.BATCH = 1
plain = tokens._plain
class Slow:
    def __init__(self, backend): self.backend = backend
    def __getattr__(self, name): return getattr(self.backend, name)
    def encode_batch_fast(self, *a, **k):
        print("working", flush=True); time.sleep(float(sys.argv[2])); return self.backend.encode_batch_fast(*a, **k)
tokens._plain = lambda t: Slow(plain(t))
store = tokens.TokenStore.open(TextTable(Path(sys.argv[1])), wordpiece_tokenizer())
print(store.folder, sum(len(store[i]) for i in range(len(store))), flush=True)
"""


def start_build(table, seconds):
    command = [sys.executable, "-c", BUILD, str(table.folder), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": os.getcwd()})


def test_a_killed_build_leaves_nothing_that_counts_as_whole(tmp_path):
    table = table_of([f"w{i} w{i}" for i in range(40)], tmp_path, "killed")
    process = start_build(table, 30)
    assert process.stdout.readline() == "working\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    store = TokenStore.open(table, wordpiece_tokenizer())
    assert [len(store[i]) for i in range(len(table))] == [2] * 40
    assert not list(store.folder.parent.glob(f".{store.folder.name}.tmp-*"))


def test_two_processes_that_build_the_same_store_do_not_clash(tmp_path):
    table = table_of([f"w{i} w{i} w{i}" for i in range(20)], tmp_path, "two")
    first = start_build(table, 0.1)
    assert first.stdout.readline() == "working\n"
    second = start_build(table, 0.1)
    outputs = [p.communicate(timeout=120)[0].splitlines() for p in (first, second)]
    assert first.returncode == second.returncode == 0
    assert outputs[0][-1] == outputs[1][-1] and outputs[0][-1].endswith(" 60")
    assert "working" not in outputs[1]  # it waited, and found the work done
