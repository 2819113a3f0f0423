"""A small server on loopback, which reads an exported folder by plain transformers and may have
faults. Nothing of ltr computes here.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer


class Serving:
    """A folder of sentence-transformers with an encoder, a pooling by the mean, and a linear layer.

    Args:
        folder: exported.
        **faults: what it does otherwise; see :meth:`ids` and :meth:`vectors`.
    """

    def __init__(self, folder: Path, **faults: Any) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.encoder = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
        weights = load_file(next(folder.glob("*_Dense/model.safetensors")))
        self.weight = weights["linear.weight"]
        self.bias = weights.get("linear.bias", torch.zeros(len(self.weight)))
        settings = json.loads((folder / "sentence_bert_config.json").read_text())
        self.max_length = faults.get("max_length", settings.get("max_seq_length", 600))
        own = json.loads((folder / "config_sentence_transformers.json").read_text())
        self.prompts = own.get("prompts", {})
        self.faults = faults
        if faults.get("dtype"):  # merged in it, then served in float32
            self.encoder.to(faults["dtype"]).float()
        if faults.get("served_in"):
            self.encoder.to(faults["served_in"])
        if "head" in faults:
            self.weight, self.bias = faults["head"]

    def ids(self, texts: list[tuple[str, ...]]) -> list[tuple[list[int], list[int]]]:
        """Token ids and types of each text or pair."""
        if self.faults.get("lower"):
            texts = [tuple(part.lower() for part in text) for text in texts]
        if self.faults.get("swapped"):
            texts = [text[::-1] for text in texts]
        rows = []
        for text in texts:
            cut = "only_second" if len(text) == 2 and not self.faults.get("swapped") else True
            read = self.tokenizer(*text, truncation=cut, max_length=self.max_length)
            ids, types = read["input_ids"], read["token_type_ids"]
            if self.faults.get("no_first"):
                ids, types = ids[1:], types[1:]
            if self.faults.get("last_twice"):
                ids, types = [*ids, ids[-1]], [*types, types[-1]]
            rows.append((ids, types))
        return rows

    @torch.inference_mode()
    def vectors(self, texts: list[tuple[str, ...]]) -> Tensor:
        """Pooled and through the linear layer, in one batch."""
        rows = self.ids(texts)
        longest = max(len(ids) for ids, _ in rows)
        inputs = {}
        for name, which in (("input_ids", 0), ("token_type_ids", 1), ("attention_mask", None)):
            padded = []
            for row in rows:
                values = [1] * len(row[0]) if which is None else row[which]
                fill = [0] * (longest - len(values))
                padded.append(fill + values if self.faults.get("left") else values + fill)
            inputs[name] = torch.tensor(padded)
        hidden = self.encoder(**inputs).last_hidden_state.float()
        mask = inputs["attention_mask"].unsqueeze(2)
        pooled = (hidden * mask).sum(dim=1) / mask.sum(dim=1)
        if self.faults.get("pooling") == "cls":
            pooled = hidden[:, 0]
        return F.linear(pooled, self.weight, self.bias)

    def rerank(self, query: str, documents: list[str]) -> list[float]:
        """Scores of documents, by pairs, or by the cosine of two texts."""
        if len(self.weight) == 1:
            scores = self.vectors([(query, document) for document in documents])[:, 0]
        else:
            prompts = {} if self.faults.get("template") == "lost" else self.prompts
            (asked,) = self.vectors([(prompts.get("query", "") + query,)])
            read = [(prompts.get("document", "") + document,) for document in documents]
            scores = F.cosine_similarity(asked[None], self.vectors(read))
        if self.faults.get("sigmoid"):
            scores = scores.sigmoid()
        return scores.tolist()

    def embed(self, texts: list[str]) -> list[list[float]]:
        """Embeddings of texts."""
        if self.faults.get("template") == "twice":
            texts = [self._with_prompt_again(text) for text in texts]
        vectors = self.vectors([(text,) for text in texts])
        if self.faults.get("normalised"):
            vectors = F.normalize(vectors, dim=1)
        return vectors.tolist()

    def _with_prompt_again(self, text: str) -> str:
        for prompt in self.prompts.values():
            if text.startswith(prompt):
                return prompt + text
        return text


@contextmanager
def served(serving: Serving, form: str = "texts", **odd: Any) -> Iterator[str]:
    """The address of a server, inside the block.

    Args:
        serving: what it serves.
        form: of /rerank: ``texts`` as text-embeddings-inference, or ``documents`` as Cohere.
        **odd: ``body``, an answer to every request; ``code``, of every answer; ``shuffled``:
            numbers of a request that stand beside other indices.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            asked = json.loads(self.rfile.read(length))
            code, answer = self.answer(asked)
            content = odd.get("body", json.dumps(answer).encode())
            self.send_response(odd.get("code", code))
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def answer(self, asked: dict) -> tuple[int, Any]:
            if self.path == "/rerank":
                if form not in asked:
                    return 422, {"error": f"missing field {form}"}
                scores = serving.rerank(asked["query"], asked[form])
                best = sorted(range(len(scores)), key=lambda n: -scores[n])
                name = "score" if form == "texts" else "relevance_score"
                named = enumerate(best) if odd.get("shuffled") else zip(best, best, strict=True)
                results = [{"index": n, name: scores[of]} for n, of in named]
                return 200, results if form == "texts" else {"results": results}
            if self.path == "/v1/embeddings":
                rows = serving.embed(asked["input"])
                data = [{"index": n, "embedding": row} for n, row in enumerate(rows)]
                return 200, {"data": data}
            return 404, {"error": "no such route"}

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
