"""Does this folder still compute what it was exported with? It needs only the library that serves it.

python proof/check.py     # prints pass, or what differs; the exit code is 0 or 1
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

PROOF = Path(__file__).resolve().parent
FOLDER = PROOF.parent
CONTRACT = json.loads((PROOF / "contract.json").read_text(encoding="utf-8"))
CONTENT = json.loads((PROOF / "probes.json").read_text(encoding="utf-8"))
PROBES, READINGS = CONTENT["probes"], CONTENT["readings"]


def by_sentence_transformers() -> tuple[dict[str, Any], np.ndarray]:
    """The token ids of each kind of text, and the scores of the probes."""
    import sentence_transformers as library

    if "pair" in READINGS:
        cross = library.CrossEncoder(str(FOLDER), device="cpu", trust_remote_code=False)
        texts = [tuple(reading["fields"]) for reading in READINGS["pair"]]
        prompt = cross.prompts.get(cross.default_prompt_name)
        read = [cross.preprocess([each], prompt=prompt)["input_ids"][0] for each in texts]
        ids = {"pair": [each.tolist() for each in read]}
        return ids, cross.predict(texts, batch_size=8, show_progress_bar=False)
    dual = library.SentenceTransformer(str(FOLDER), device="cpu", trust_remote_code=False)
    ids, vectors = {}, {}
    for kind, encode in (("query", dual.encode_query), ("document", dual.encode_document)):
        raw = [reading["fields"][0] for reading in READINGS[kind]]
        options = {"prompt": dual.prompts.get(kind), "task": kind}
        ids[kind] = [dual.preprocess([each], **options)["input_ids"][0].tolist() for each in raw]
        vectors[kind] = encode(raw, batch_size=8, show_progress_bar=False)
    rows = {kind: [probe["readings"][kind] for probe in PROBES] for kind in vectors}
    queries, documents = (vectors[kind][rows[kind]] for kind in ("query", "document"))
    return ids, dual.similarity_pairwise(queries, documents).numpy()


def by_transformers() -> tuple[dict[str, Any], np.ndarray]:
    """The token ids of each kind of text, and the scores of the probes."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(FOLDER, trust_remote_code=False)
    model = AutoModelForSequenceClassification.from_pretrained(
        FOLDER, dtype=torch.float32, trust_remote_code=False
    ).eval()
    cut = "only_second" if len(READINGS["pair"][0]["texts"]) == 2 else True
    ids, scores = [], []
    for reading in READINGS["pair"]:
        special = CONTRACT["adds_special_tokens"]  # a template may hold its own
        options = {"truncation": cut, "add_special_tokens": special, "return_tensors": "pt"}
        inputs = tokenizer(*reading["texts"], **options)
        ids.append(inputs["input_ids"][0].tolist())
        with torch.inference_mode():
            scores.append(model(**inputs).logits[0, 0].item())
    return {"pair": ids}, np.array(scores)


def by_onnx() -> tuple[dict[str, Any], np.ndarray]:
    """The token ids of each kind of text, and the scores of the probes."""
    import onnxruntime
    from tokenizers import Tokenizer

    ids: dict[str, Any] = {}
    outputs: dict[str, np.ndarray] = {}
    for kind, readings in READINGS.items():
        is_alone = (FOLDER / f"{kind}.onnx").is_file()  # two towers have a graph each
        place = FOLDER / kind if is_alone else FOLDER
        tokenizer = Tokenizer.from_file(str(place / "tokenizer.json"))
        tokenizer.no_padding()
        strategy = "only_second" if len(readings[0]["texts"]) == 2 else "longest_first"
        length, side = CONTRACT["max_tokens"][kind], CONTRACT["cut"].split()[-1]
        tokenizer.enable_truncation(length, strategy=strategy, direction=side)
        graph = FOLDER / (f"{kind}.onnx" if is_alone else "model.onnx")
        session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_inputs()]
        ids[kind], results = [], []
        for reading in readings:
            special = CONTRACT["adds_special_tokens"]  # a template may hold its own
            text, pair = (*reading["texts"], None)[:2]
            read = tokenizer.encode(text, pair, add_special_tokens=special)
            parts = dict(input_ids=read.ids, attention_mask=read.attention_mask)
            parts["token_type_ids"] = read.type_ids
            ids[kind].append(read.ids)
            results.append(session.run(None, {name: np.array([parts[name]]) for name in names})[0])
        outputs[kind] = np.concatenate(results)
    if "pair" in outputs:
        return ids, outputs["pair"]
    rows = {kind: [probe["readings"][kind] for probe in PROBES] for kind in outputs}
    queries, documents = (outputs[kind][rows[kind]] for kind in ("query", "document"))
    if CONTRACT["similarity"] == "euclidean":
        return ids, -np.linalg.norm(queries - documents, axis=1)
    if CONTRACT["similarity"] == "cosine":
        queries = queries / np.linalg.norm(queries, axis=1, keepdims=True)
        documents = documents / np.linalg.norm(documents, axis=1, keepdims=True)
    return ids, (queries * documents).sum(axis=1)


def differences(ids: dict[str, Any], scores: np.ndarray) -> list[str]:
    """What differs, a line each: the proof, tokens, scores, the order of a list."""
    lines = []
    for name, digest in CONTRACT["proof"].items():
        if hashlib.sha256((PROOF / name).read_bytes()).hexdigest() != digest:
            lines.append(f"{name} has changed since the export")
    for kind, readings in READINGS.items():
        for number, reading in enumerate(readings):
            if ids[kind][number] != reading["ids"]:
                lines.append(
                    f"tokens of {kind} {number}: {ids[kind][number]}, not {reading['ids']}"
                )
    expected = np.array([probe["score"] for probe in PROBES])
    tolerance = CONTRACT["tolerance"]
    wrong = np.flatnonzero(~(np.abs(scores - expected) <= tolerance)).tolist()  # of NaN, too
    for number in wrong:
        lines.append(f"score of probe {number}: {scores[number]:.7g}, not {expected[number]:.7g}")
    for a, probe in enumerate(PROBES):
        for b, other in enumerate(PROBES):
            is_better = probe["list"] == other["list"] and expected[a] > expected[b] + 2 * tolerance
            if is_better and not scores[a] > scores[b]:
                lines.append(f"order of list {probe['list']}: probe {b} stands above probe {a}")
    return lines


if __name__ == "__main__":
    read = globals()[f"by_{CONTRACT['form'].replace('-', '_')}"]
    lines = differences(*read())
    print("\n".join(lines[:10] + [f"{len(lines)} differences"]) if lines else "pass")
    sys.exit(1 if lines else 0)
