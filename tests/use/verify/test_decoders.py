"""A decoder ranker, whose template makes one text of a pair, is proven and verified as others."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from ltr.__main__ import main
from ltr.data.template import Template
from ltr.models import DecoderRanker, DualEncoder
from ltr.use.export import export
from ltr.use.verify.verification import verify as verify_folder
from tests.child_processes import ELSEWHERE
from tests.use.proof.test_exported_check import are_verified, pass_alone
from tests.use.verify.served import Serving, served
from tests.use.verify.test_verify_library import planted, settings, verify
from tests.world.collections import small_collection
from tests.world.decoders import save_decoder

# Short, so that few texts are cut.
TEMPLATE = Template(
    query="Query: {query}",
    document="Document: {document}",
    pair="<|im_start|>user\n{query}\n{document}<|im_end|>\n<|im_start|>assistant\n",
)


@pytest.fixture(scope="module")
def decoders(tmp_path_factory) -> dict[str, Path]:
    """A tiny Qwen3 reranker with random weights, exported in both forms."""
    folder = tmp_path_factory.mktemp("decoders")
    ranker = DecoderRanker(save_decoder(folder / "backbone"), TEMPLATE, max_length=512)
    ranker.save_plain(folder / "own")
    forms = ("sentence-transformers", "transformers")
    for form in forms:
        assert main(["export", str(folder / "own"), str(folder / form), "--to", form]) == 0
    return {form: folder / form for form in forms}


@pytest.fixture(scope="module")
def embedder(tmp_path_factory) -> Path:
    """A tiny Qwen3 embedder, which appends a token to each text and reads that, exported."""
    folder = tmp_path_factory.mktemp("embedder")
    backbone = save_decoder(folder / "backbone", appends_end=True)
    DualEncoder(backbone, max_length=400, query_prompt="Query: ").save(folder / "own")
    assert main(["export", str(folder / "own"), str(folder / "exported")]) == 0
    return folder / "exported"


@pytest.mark.parametrize(
    "pair",
    [
        "{query}\n{document}\nyes?",
        pytest.param("{document}\n{query}\nyes?", marks=pytest.mark.long),
    ],
)
def test_cuts_inside_characters_are_no_fault(pair, tmp_path):
    """Three tokens a letter; sentence-transformers cuts what stands last in the template."""
    letters = "日本語東京大学研究開発機構情報"
    docs = {f"d{number}": letters[number:] + letters * 4 for number in range(8)}
    queries = {f"q{number}": docs[f"d{number}"][:2] for number in range(8)}
    judged = [(f"q{number}", f"d{number}", 1) for number in range(8)]
    data = tmp_path / "data"
    small_collection(data, docs, queries, judged, dev=judged)
    ranker = DecoderRanker(save_decoder(tmp_path / "backbone"), Template(pair=pair), max_length=80)
    ranker.save(tmp_path / "own")
    for form in ("sentence-transformers", "transformers"):
        export(tmp_path / "own", tmp_path / form, form, data=str(data))
        verified = verify_folder(tmp_path / form)
        assert verified.finding is None and not verified.changed, verified.finding


class ServingDecoder(Serving):
    """The sequence classifier of a decoder, asked by the chat template of its tokenizer."""

    def __init__(self, folder: Path, **faults: Any) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
        self.model = model.eval()
        self.faults = faults
        if "dtype" in faults:
            for weight in self.model.parameters():
                weight.data = weight.data.to(faults["dtype"]).float()

    @torch.inference_mode()
    def rerank(self, query: str, documents: list[str]) -> list[float]:
        scores = []
        for document in documents:
            asked = (document, query) if self.faults.get("swapped") else (query, document)
            roles = zip(("query", "document"), asked, strict=True)
            messages = [{"role": role, "content": content} for role, content in roles]
            text = self.tokenizer.apply_chat_template(messages, tokenize=False)
            if self.faults.get("lower"):
                text = text.lower()
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            if self.faults.get("template") == "lost":
                read = self.tokenizer(query, document, truncation="only_second", max_length=512)
                ids = read["input_ids"]
            if len(ids) > 512:
                ids = self.with_cut_document(messages, ids)
            ids += [self.tokenizer.eos_token_id] * self.faults.get("last_twice", 0)
            scores.append(self.model(torch.tensor([ids])).logits[0, 0].item())
        if self.faults.get("sigmoid"):
            return torch.tensor(scores).sigmoid().tolist()
        return scores

    def with_cut_document(self, messages: list[dict[str, str]], ids: list[int]) -> list[int]:
        """The document is cut by as many tokens as the whole has too many."""
        document = messages[1]["content"]
        places = self.tokenizer(document, return_offsets_mapping=True)["offset_mapping"]
        n_left = len(places) - len(ids) + 512
        if n_left < 1:
            return ids[:512]
        messages[1]["content"] = document[: places[n_left - 1][1]]
        text = self.tokenizer.apply_chat_template(messages, tokenize=False)
        if self.faults.get("lower"):
            text = text.lower()
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.long
@pytest.mark.parametrize("where", ELSEWHERE)
def test_each_passes_with_its_library_and_by_its_check(where, decoders, embedder, capsys):
    folders = [*decoders.values(), embedder]
    pass_alone(folders, where)
    are_verified(folders, capsys)


LONG = pytest.mark.long
BF16 = torch.bfloat16


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({}, "pass: 64 probes"),
        ({"template": "lost"}, "template: "),
        ({"sigmoid": True}, "activation: a sigmoid"),
        pytest.param(
            {"swapped": True}, "template: query and document have changed places", marks=LONG
        ),
        pytest.param({"dtype": BF16}, "hidden state: weights are rounded to bfloat16", marks=LONG),
        pytest.param({"lower": True}, "tokens: texts are lower-cased", marks=LONG),
    ],
)
def test_a_server_of_it_is_verified(decoders, capsys, fault, said):
    folder = decoders["transformers"]
    with served(ServingDecoder(folder, **fault)) as url:
        code, told = verify(folder, url + "/rerank", capsys)
    assert told.startswith(said) and code == (1 if fault else 0), told


class ServingEmbedder(Serving):
    """A decoder whose last token is the embedding, in batches that are padded on either side."""

    def __init__(self, folder: Path, **faults: Any) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.encoder = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
        self.encoder.to(faults.get("served_in", torch.float32))
        self.prompts = {}
        self.faults = faults

    @torch.inference_mode()
    def vectors(self, texts: list[tuple[str, ...]]) -> Tensor:
        rows = [
            self.tokenizer(text, truncation=True, max_length=400)["input_ids"] for (text,) in texts
        ]
        if self.faults.get("no_end"):
            rows = [row[:-1] for row in rows]
        longest = max(map(len, rows))
        ids = torch.full((len(rows), longest), self.tokenizer.pad_token_id)
        mask = torch.zeros_like(ids)
        for number, row in enumerate(rows):
            first = longest - len(row) if self.faults.get("left") else 0
            ids[number, first : first + len(row)] = torch.tensor(row)
            mask[number, first : first + len(row)] = 1
        hidden = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        if self.faults.get("pooling") == "mean":
            pooled = (hidden * mask[:, :, None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)
        else:
            places = mask.sum(dim=1) - 1
            at_end = self.faults.get("last_slot") or self.faults.get("left")
            if at_end and not self.faults.get("counted"):
                places = torch.full_like(places, longest - 1)
            pooled = hidden[torch.arange(len(hidden)), places]
        return F.normalize(pooled, dim=1) if self.faults.get("normalised") else pooled


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (
            settings("1_Pooling/config.json", pooling_mode="mean"),
            "place: other tokens are pooled than by the last of the contract",
        ),
        # No fault: the library finds the last token on either side, and positions are relative.
        (settings("tokenizer_config.json", padding_side="left"), "pass: 64 probes"),
    ],
)
def test_a_fault_in_the_folder_of_an_embedder_is_named(embedder, tmp_path, capsys, plant, said):
    code, told = verify(planted(embedder, tmp_path / "e", plant), "sentence-transformers", capsys)
    assert told.startswith(said) and code == (0 if said.startswith("pass") else 1), told


LEFT = "place: texts are padded on the left, and the last token is counted from the first slot"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({}, "pass: "),
        ({"pooling": "mean"}, "place: the mean of the tokens is pooled"),
        pytest.param({"left": True}, "pass: ", marks=LONG),
        pytest.param({"left": True, "counted": True}, LEFT, marks=LONG),
        pytest.param({"last_slot": True}, "place: the last slot is pooled", marks=LONG),
        pytest.param({"no_end": True}, "special tokens: no last special token", marks=LONG),
        pytest.param({"normalised": True}, "activation: embeddings are scaled", marks=LONG),
        pytest.param({"served_in": BF16}, "dtype: ", marks=LONG),
    ],
)
def test_a_server_of_an_embedder_is_verified(embedder, capsys, fault, said):
    with served(ServingEmbedder(embedder, **fault)) as url:
        code, told = verify(embedder, url + "/v1/embeddings", capsys)
    assert told.startswith(said) and code == (0 if said.startswith("pass") else 1), told


@pytest.mark.long
@pytest.mark.parametrize("kind", ["reranker", "embedder"])
def test_a_graph_of_a_decoder_is_proven(kind, decoders, embedder, tmp_path, capsys):
    source = decoders["sentence-transformers"] if kind == "reranker" else embedder
    assert main(["export", str(source), str(tmp_path / "onnx"), "--to", "onnx"]) == 0
    pass_alone([tmp_path / "onnx"])
    are_verified([tmp_path / "onnx"], capsys)
