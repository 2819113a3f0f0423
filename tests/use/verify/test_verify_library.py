"""``ltr verify FOLDER --with LIBRARY`` compares layers one after the other: faults are planted into
the files of an exported folder, which the library then loads.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ltr.__main__ import main

SEP = {"SpecialToken": {"id": "[SEP]", "type_id": 0}}
CLS = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}
A = {"Sequence": {"id": "A", "type_id": 0}}
B = {"Sequence": {"id": "B", "type_id": 1}}
SEP_1 = {"SpecialToken": {"id": "[SEP]", "type_id": 1}}


def edit(file: Path, change: Callable[[dict], None]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def tokenizer(change: Callable[[dict], None]) -> Callable[[Path], None]:
    return lambda folder: edit(folder / "tokenizer.json", change)


def template(single: list, pair: list) -> Callable[[Path], None]:
    special = {
        name: {"id": name, "ids": [number], "tokens": [name]}
        for name, number in (("[CLS]", 1), ("[SEP]", 2))
    }
    processor = {"type": "TemplateProcessing", "single": single, "pair": pair}
    processor["special_tokens"] = special
    return tokenizer(lambda content: content.update(post_processor=processor))


def weights(pattern: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable:
    def plant(folder: Path) -> None:
        (file,) = folder.glob(pattern)
        tensors = {name: change(tensor) for name, tensor in load_file(file).items()}
        save_file(tensors, file, metadata={"format": "pt"})

    return plant


def settings(name: str, **values: object) -> Callable[[Path], None]:
    return lambda folder: edit(folder / name, lambda content: content.update(values))


def cut_at(length: int) -> Callable[[Path], None]:
    def plant(folder: Path) -> None:
        for file in ("sentence_bert_config.json", "tokenizer_config.json"):
            if (folder / file).is_file():
                key = "max_seq_length" if file.startswith("sentence") else "model_max_length"
                edit(folder / file, lambda content, key=key: content.update({key: length}))

    return plant


def other(tensor: torch.Tensor) -> torch.Tensor:
    return torch.randn(tensor.shape, generator=torch.Generator().manual_seed(5))


def rounded(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.bfloat16().float() if tensor.is_floating_point() else tensor


def norm_times(factor: float) -> Callable[[Path], None]:
    """The last norm of the encoder."""

    def plant(folder: Path) -> None:
        file = folder / "model.safetensors"
        tensors = load_file(file)
        (*_, last) = sorted(name for name in tensors if name.endswith("output.LayerNorm.weight"))
        tensors[last] = tensors[last] * factor
        save_file(tensors, file, metadata={"format": "pt"})

    return plant


PROMPTS = "config_sentence_transformers.json"
HEAD = "*_Dense/model.safetensors"
SIGMOID = settings(PROMPTS, activation_fn="torch.nn.modules.activation.Sigmoid")
LOWER = tokenizer(lambda content: content.update(normalizer={"type": "Lowercase"}))
OTHER_STATES = "hidden state: other hidden states"
FAULTS = {
    "no BOS": (template([A, SEP], [A, SEP, B, SEP_1]), "special tokens: no first special token"),
    "EOS twice": (
        template([CLS, A, SEP, SEP], [CLS, A, SEP, B, SEP_1, SEP_1]),
        "special tokens: the last special token twice",
    ),
    "sigmoid on top": (SIGMOID, "activation: a sigmoid stands behind the score"),
    "wrong head": (weights(HEAD, other), "head: other weights of the head"),
    "head random": (
        weights(HEAD, lambda one: other(one) * 0.02),
        "head: other weights of the head",
    ),
    "merged in bf16": (weights("model.safetensors", rounded), "hidden state: rounded hidden"),
    "a norm that is 2 % larger": (norm_times(1.02), OTHER_STATES),
    "a norm that is 0.01 % larger": (norm_times(1.0001), OTHER_STATES),
    "another epsilon": (settings("config.json", layer_norm_eps=3e-3), OTHER_STATES),
    "template lost": (settings(PROMPTS, prompts={}), "template: no template"),
    "fields swapped": (
        template([CLS, A, SEP], [CLS, B, SEP, A, SEP_1]),
        "template: query and document have changed places",
    ),
    "left padding": (
        settings("tokenizer_config.json", padding_side="left"),
        "place: what is pooled depends on the texts beside it",
    ),
    "cut at 512": (cut_at(512), "truncation: texts are cut at 512 tokens, not at 600"),
    "wrong pooling": (
        settings("1_Pooling/config.json", pooling_mode="cls"),
        "place: other tokens are pooled than by the mean of the contract",
    ),
    "lower-cased": (LOWER, "tokens: other tokens for the same text"),
    "in bfloat16": (
        settings("config.json", dtype="bfloat16"),
        "dtype: the library computes in bfloat16",
    ),
    "in float16": (
        settings("config.json", dtype="float16"),
        "dtype: the library computes in float16",
    ),
}
NOT_OF = {
    ("cross", "template lost"),
    ("dual", "sigmoid on top"),
    ("dual", "fields swapped"),
    # The length of an embedding: no cosine tells it.
    ("dual", "a norm that is 0.01 % larger"),
}
# Each fault once in `make test`; with the other kind of ranker in `make test-long`.
SHORT = dict.fromkeys(
    ("template lost", "wrong pooling", "left padding", "no BOS", "in float16"), "dual"
)
CASES = [
    pytest.param(kind, name, marks=[] if SHORT.get(name, "cross") == kind else pytest.mark.long)
    for kind in ("cross", "dual")
    for name in FAULTS
    if (kind, name) not in NOT_OF
]


def verify(folder: Path, library: str, capsys) -> tuple[int, str]:
    capsys.readouterr()
    try:
        code = main(["verify", str(folder), "--with", library])
    except SystemExit as stop:
        code = stop.code
    told = capsys.readouterr()
    return code, told.out + told.err


def planted(folder: Path, place: Path, plant: Callable[[Path], None]) -> Path:
    shutil.copytree(folder, place)
    plant(place)
    return place


@pytest.mark.parametrize("kind", ["cross", "dual"])
def test_a_right_library_passes(proofs, capsys, kind):
    """Where none is named, it is the one that the folder is for: test_exported_check.py."""
    code, said = verify(proofs[kind], "sentence-transformers", capsys)
    assert said.startswith("pass: 64 probes") and code == 0


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_planted_fault_is_named_by_its_layer(proofs, tmp_path, capsys, kind, name):
    plant, said = FAULTS[name]
    folder = planted(proofs[kind], tmp_path / "folder", plant)
    code, told = verify(folder, "sentence-transformers", capsys)
    assert told.startswith(said) and code == 1, told
    assert "changed since the export: " in told
