"""Prompts: ltr, sentence-transformers and exported graphs read the same tokens, whatever the
tokenizer and wherever a prompt ends.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as parts
from transformers import (
    AutoTokenizer,
    BertModel,
    ModernBertModel,
    MPNetModel,
    PreTrainedTokenizerFast,
    RobertaModel,
    XLMRobertaModel,
)

from ltr.models import DualEncoder
from ltr.use import export as export_module
from ltr.use.export import export
from ltr.use.load import load
from ltr.use.onnx_graph import Session
from tests.use.verify.test_verify_library import edit
from tests.world.backbones import make_backbone, wordpiece_tokenizer
from tests.world.tokenizers import (
    byte_level_bpe,
    llama_like,
    modernbert_like,
    mpnet_like,
    random_prompts,
    xlm_roberta_like,
)

N_PROMPTS = 12
LENGTH = 40
# The last is longer than 40 tokens with any prompt. Some begin with what a prompt may end with.
TEXTS = ["w1 w2", " w3", "\tw4 w5", ": é", "<mask> w6 [SEP]</s>", "w7 " * 50]


# A tokenizer, and an encoder that comes with such a one.
KINDS = {
    "BERT, WordPiece": (wordpiece_tokenizer, BertModel),
    "RoBERTa, byte-level BPE": (byte_level_bpe, RobertaModel),
    "ModernBERT, byte-level BPE": (modernbert_like, ModernBertModel),
    "XLM-R, Unigram": (xlm_roberta_like, XLMRobertaModel),
    "as Llama's, BPE with bytes": (llama_like, BertModel),
    "MPNet, WordPiece": (mpnet_like, MPNetModel),
}


def write_model(folder: Path, kind: str) -> PreTrainedTokenizerFast:
    """A sentence-transformers model without prompts; returns its tokenizer."""
    make_tokenizer, model = KINDS[kind]
    tokenizer = make_tokenizer()
    tokenizer.model_max_length = LENGTH
    plain = folder.with_name("plain")
    options = {"intermediate_size": 24, "initializer_range": 0.2}
    options |= {"max_position_embeddings": LENGTH + 10, "pad_token_id": tokenizer.pad_token_id}
    options |= {"bos_token_id": None, "eos_token_id": None}
    make_backbone(plain, tokenizer, model, **options)
    modules = [parts.Transformer(str(plain)), parts.Pooling(16, "mean")]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder), create_model_card=False)
    return tokenizer


def set_prompts(folder: Path, query: str, document: str) -> None:
    prompts = {"query": query, "document": document}
    edit(folder / "config_sentence_transformers.json", lambda one: one.update(prompts=prompts))


def of_sentence_transformers(folder: Path) -> np.ndarray:
    """Embeddings ``[2, S, H]`` of the texts as queries and as documents."""
    model = SentenceTransformer(str(folder), device="cpu")
    return np.stack([model.encode_query(TEXTS), model.encode_document(TEXTS)])


def of_ltr(folder: Path) -> np.ndarray:
    ranker = load(folder, "32-true", "cpu")
    return np.stack([ranker.encode(TEXTS, "query"), ranker.encode(TEXTS, "document")])


def of_onnx(folder: Path) -> np.ndarray:
    """As the model card says: a prompt and a text are one string."""
    settings = json.loads((folder / "ltr.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    session = Session(folder / "model.onnx")
    embeddings = []
    for side in ("query", "document"):
        texts = [settings["prompts"][side] + text for text in TEXTS]
        length = settings["max_lengths"][side]
        options = {"truncation": True, "max_length": length, "padding": True}
        inputs = tokenizer(texts, **options, return_tensors="np")
        embeddings.append(session.output(inputs))
    return np.stack(embeddings)


def graphs_written_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph does not depend on the prompts, and takes seconds to write."""
    write_graph = export_module.write_graph

    def write_or_copy(file, *others):
        if not (folder / file.name).exists():
            write_graph(file, *others)
            shutil.copy(file, folder / file.name)
        else:
            shutil.copy(folder / file.name, file)

    monkeypatch.setattr(export_module, "write_graph", write_or_copy)


@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
def test_embeddings_with_any_prompt_are_those_of_sentence_transformers(name, tmp_path, monkeypatch):
    """Twelve prompts, two in each model; the model as it is loaded, and exported in both forms."""
    ready = tmp_path / "ready"
    tokenizer = write_model(ready, name)
    graphs_written_once(tmp_path, monkeypatch)
    without = of_sentence_transformers(ready)
    prompts = random_prompts(tokenizer, N_PROMPTS)
    pairs = zip(prompts[::2], prompts[1::2], strict=True)
    for number, (query, document) in enumerate(pairs):
        set_prompts(ready, query, document)
        expected = of_sentence_transformers(ready)
        assert (np.abs(expected - without).max(axis=(1, 2)) > 1e-3).all(), "prompts say something"
        equal = pytest.approx(expected, abs=1e-5)
        assert of_ltr(ready) == equal, (query, document)
        export(ready, tmp_path / f"{number}-theirs")
        assert of_sentence_transformers(tmp_path / f"{number}-theirs") == equal
        export(ready, tmp_path / f"{number}-onnx", "onnx")
        assert of_onnx(tmp_path / f"{number}-onnx") == equal


def test_a_prompt_that_ends_in_a_space_before_a_byte_level_bpe(tmp_path):
    """Loaded from sentence-transformers, and saved for it."""
    ready = tmp_path / "ready"
    write_model(ready, "RoBERTa, byte-level BPE")
    set_prompts(ready, "w5: ", "w6\t")
    expected = of_sentence_transformers(ready)
    assert of_ltr(ready) == pytest.approx(expected, abs=1e-5)
    plain = str(tmp_path / "plain")
    DualEncoder(plain, query_prompt="w5: ", doc_prompt="w6\t").save(tmp_path / "saved")
    assert of_sentence_transformers(tmp_path / "saved") == pytest.approx(expected, abs=1e-5)
