"""A decoder ranker, whose template makes one text of a pair, is proven and verified as others."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from ltr.__main__ import main
from ltr.data.template import Template
from ltr.models import DecoderRanker
from tests.decoders import save_decoder
from tests.use.proof.test_check import are_verified, checked
from tests.use.verify.served import Serving, served
from tests.use.verify.test_verify_url import verify

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


def test_it_passes_with_its_libraries_and_by_its_check(decoders, capsys):
    found = checked([*decoders.values()])
    for code, said in found.values():
        assert code == 0 and said.splitlines()[-1] == "pass", said
    are_verified([*decoders.values()], capsys)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({}, "pass: 64 probes"),
        ({"template": "lost"}, "template: "),
        ({"swapped": True}, "template: query and document have changed places"),
        ({"sigmoid": True}, "activation: a sigmoid"),
        ({"dtype": torch.bfloat16}, "hidden state: weights are rounded to bfloat16"),
        ({"lower": True}, "tokens: texts are lower-cased"),
    ],
)
def test_a_server_of_it_is_verified(decoders, capsys, fault, said):
    folder = decoders["transformers"]
    with served(ServingDecoder(folder, **fault)) as url:
        code, told = verify(folder, url + "/rerank", capsys)
    assert told.startswith(said) and code == (1 if fault else 0), told
