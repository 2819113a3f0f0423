"""``ltr verify FOLDER --with URL`` names the layer of every planted fault, and passes a right server."""

import json
import shutil
import socket

import numpy as np
import pytest
import torch

from ltr.errors import InputError
from ltr.use.proof.contract import signed
from ltr.use.verify.server import Server
from tests.use.verify.served import Serving, served
from tests.use.verify.test_verify_library import edit, verify

SEED = torch.Generator().manual_seed(3)
OTHER_HEADS = {
    "cross": (torch.randn(1, 16, generator=SEED), torch.randn(1, generator=SEED)),
    "dual": (torch.randn(8, 16, generator=SEED), torch.randn(8, generator=SEED)),
}
# As transformers makes one up: small normal numbers, no bias.
RANDOM_HEADS = {
    "cross": (torch.randn(1, 16, generator=SEED) * 0.02, torch.zeros(1)),
    "dual": (torch.randn(8, 16, generator=SEED) * 0.02, torch.zeros(8)),
}
LEFT = "texts are padded on the left"
IN_HALF = "dtype: numbers are rounded, as by a server in half"
# The twelve faults of docs/verify.md and half precision, by what the server does otherwise, and what is said.
FAULTS = {
    "no BOS": ({"no_first": True}, "special tokens: no first special token"),
    "EOS twice": ({"last_twice": True}, "special tokens: the last special token twice"),
    "sigmoid on top": ({"sigmoid": True}, "activation: a sigmoid stands behind the score"),
    "wrong head": ({"head": OTHER_HEADS}, "head: the head has other weights"),
    "head random": ({"head": RANDOM_HEADS}, "head: the head has other weights"),
    "merged in bf16": ({"dtype": torch.bfloat16}, "hidden state: weights are rounded to bfloat16"),
    "template lost": ({"template": "lost"}, "template: no template"),
    "fields swapped": ({"swapped": True}, "template: query and document have changed places"),
    "left padding": ({"left": True}, f"place: {LEFT}"),
    "cut at 512": ({"max_length": 512}, "truncation: texts are cut at 512 tokens, not at 600"),
    "wrong pooling": ({"pooling": "cls"}, "place: the first token is pooled"),
    "lower-cased": ({"lower": True}, "tokens: texts are lower-cased"),
    "in bfloat16": ({"served_in": torch.bfloat16}, IN_HALF),
    "in float16": ({"served_in": torch.float16}, IN_HALF),
}
# A pair of texts has no template of its own here; embeddings have no order of fields, nor a sigmoid,
# and their texts are sent with the template.
NOT_OF = {
    ("cross", "template lost"),
    ("embeddings", "template lost"),
    ("embeddings", "fields swapped"),
    ("embeddings", "sigmoid on top"),
    # Cosines of 64 pairs do not tell a head of 16 by 8 numbers.
    ("dual", "wrong head"),
    ("dual", "head random"),
    ("dual", "fields swapped"),
    ("dual", "in float16"),
}
# A fault of each layer, but for dtype, which test_calibrated.py has, in `make test`; all on all servers in `make test-long`.
SHORT = {
    "template lost": "dual",
    "wrong pooling": "embeddings",
    "cut at 512": "embeddings",
    **dict.fromkeys(
        ("EOS twice", "head random", "fields swapped", "left padding", "in bfloat16", "in float16"),
        "none",
    ),
}
CASES = [
    pytest.param(server, name, marks=[] if SHORT.get(name, "cross") == server else pytest.mark.long)
    for server in ("cross", "dual", "embeddings")
    for name in FAULTS
    if (server, name) not in NOT_OF
]


def verify_server(
    proofs, server, capsys, form="texts", shuffled=False, **faults
) -> tuple[int, str]:
    """The exit code, and what is said of a server of these faults."""
    folder = proofs["cross" if server == "cross" else "dual"]
    route = "/v1/embeddings" if server == "embeddings" else "/rerank"
    with served(Serving(folder, **faults), form, shuffled=shuffled) as url:
        return verify(folder, url + route, capsys)


LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("server", "form"),
    [
        ("cross", "documents"),
        ("dual", "texts"),
        pytest.param("cross", "texts", marks=LONG),
        pytest.param("dual", "documents", marks=LONG),
    ],
)
def test_a_right_server_of_scores_passes(proofs, capsys, server, form):
    code, said = verify_server(proofs, server, capsys, form)
    assert said.startswith("pass: 64 probes, largest difference ") and code == 0


def test_a_right_server_of_embeddings_passes_and_its_route_is_found(proofs, capsys):
    """A dual encoder is asked for embeddings where the URL names no route."""
    with served(Serving(proofs["dual"])) as url:
        code, said = verify(proofs["dual"], url, capsys)
    assert said.startswith("pass: ") and code == 0


@pytest.mark.parametrize(("server", "name"), CASES)
def test_a_planted_fault_is_named_by_its_layer(proofs, capsys, server, name):
    faults, said = FAULTS[name]
    if "head" in faults:
        faults = {"head": faults["head"]["cross" if server == "cross" else "dual"]}
    code, told = verify_server(proofs, server, capsys, **faults)
    assert told.startswith(said) and code == 1


@pytest.mark.parametrize(
    ("server", "faults", "said"),
    [
        ("cross", {"shuffled": True}, "order: the numbers of a request are right"),
        ("cross", {"sigmoid": True, "lower": True}, "tokens: texts are lower-cased, and a sig"),
        ("embeddings", {"template": "twice"}, "template: the template is put around the texts"),
        ("embeddings", {"normalised": True}, "activation: embeddings are scaled to length 1"),
    ],
)
def test_other_faults_are_named(proofs, capsys, server, faults, said):
    code, told = verify_server(proofs, server, capsys, **faults)
    assert told.startswith(said) and code == 1


class Another(Serving):
    """A server of another model: its scores say nothing of those texts."""

    def rerank(self, query, documents):
        places = [sum(map(ord, query + document)) for document in documents]
        return np.sin(np.array(places) * 12.9898).tolist()

    def embed(self, texts):
        return [[float(len(text)), 1.0, 2.0] for text in texts]


@LONG
def test_what_is_no_right_server_gets_one_line(proofs, tmp_path, capsys):
    cross, dual = proofs["cross"], proofs["dual"]
    right = Serving(dual)
    no_json = "the server must answer in JSON"
    too_deep = f"{no_json}, and does not (nested too deep"
    no_url = "--with must be a library or a URL (http://HOST:PORT), got "
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{free.getsockname()[1]}"
    with (
        served(right) as url,
        served(right, body=b"<html>") as html,
        served(right, body=b"[]") as empty,
        served(right, body=b'[{"index": 0, "score": NaN}]') as nan,
        served(right, body=b'[{"index": 0, "score": 1' + b"0" * 400 + b"}]") as huge,
        served(right, body=b"[" * 100_000) as nested,
        served(right, body=b'{"results":' * 100_000) as nested_objects,
        served(right, body=b"\xff[]") as latin,
        served(right, code=500) as broken,
        served(Another(cross)) as other,
    ):
        for folder, address, said in [
            (cross, closed, "the server can't be reached"),
            (cross, "http://127.0.0.1:80a", "the server can't be reached"),
            (cross, url + "/v1/embeddings", "a cross-encoder is asked for scores"),
            (cross, url + "/nothing", "the server must answer a POST to /rerank, and says 404"),
            (cross, html, no_json),
            (cross, empty, "the server must answer [{index, relevance_score}, …] for 4 texts"),
            (cross, nan, "for 4 texts, got 1 of them"),
            (cross, huge, "for 4 texts, got 1 of them"),
            (cross, nested, f"{nested}/rerank: {too_deep}"),
            (cross, nested_objects, too_deep),
            (dual, nested, too_deep),
            (cross, latin, f"{no_json}, and does not ('utf-8' codec"),
            (cross, f"{url}/é", "the server can't be reached"),
            (cross, broken, "says 500"),
            (cross, other, "the server must serve the model of this folder"),
            (dual, other, "whose embeddings have 8 dimensions, got 3"),
            (cross, "ftp://127.0.0.1/rerank", no_url),
            (cross, "http://[::1", no_url + "'http"),
            (cross, "http://a\nb", no_url + r"'http://a\nb'"),
            (cross, "http://a b", no_url + "'http://a b'"),
            (cross, "http://a\x1b[31m", no_url + r"'http://a\x1b[31m'"),
            (cross, "keras", no_url + "'keras'"),
            (tmp_path / "none", url, "an exported folder is needed, and there is no such folder"),
        ]:
            code, told = verify(folder, address, capsys)
            assert code == 2 and said in told and told.count("\n") == 1, (address, told)


@pytest.mark.parametrize(
    "number", [float("nan"), float("inf"), 10**400, -(10**400), True, "1", [1]]
)
def test_a_number_of_a_server_must_be_finite(number, monkeypatch):
    url = "http://127.0.0.1:1"
    server = Server(url, "rerank", "a model")
    monkeypatch.setattr(server, "_post", lambda _: [{"index": 0, "score": number}])
    with pytest.raises(InputError, match=rf"{url}: score must be of finite numbers, got"):
        server.rerank("a query", ["a document"])
    server = Server(url, "embeddings", "a model")
    monkeypatch.setattr(server, "_post", lambda _: [{"index": 0, "embedding": [0.5, number]}])
    with pytest.raises(InputError, match=r"embedding must be of finite numbers, got"):
        server.embed(["a text"])


def damaged(folder, copy, name, change, signs=False):
    """A copy of an exported folder in which a file of its proof is changed, perhaps by someone who
    signs it anew and removes the card.

    ``change``: None removes it; bytes take its place; a function is called with what a JSON holds,
    or gives an array for each of hidden.npz.
    """
    shutil.copytree(folder, copy)
    file = copy / "proof" / name
    if change is None:
        file.unlink()
    elif isinstance(change, bytes):
        file.write_bytes(change)
    elif name == "hidden.npz":
        np.savez(file, **{one: change(array) for one, array in np.load(file).items()})
    else:
        edit(file, change)
    if signs:
        (copy / "README.md").unlink()
        contract = copy / "proof/contract.json"
        contract.write_text(json.dumps(signed(copy / "proof", json.loads(contract.read_text()))))
    return copy


def sets(**values):
    return lambda content: content.update(values)


def probe(**values):
    return lambda content: content["probes"][0].update(values)


CHANGES = {
    "another pooling": ("contract.json", lambda one: one["pooling"].update(pair="cls")),
    "another activation": ("contract.json", sets(activation="sigmoid")),
    "another dtype": ("contract.json", sets(dtype="float16")),
    "another place": ("contract.json", lambda one: one["place"].update(pair="first token")),
    "another length": ("contract.json", lambda one: one["max_tokens"].update(pair=512)),
    "another head": ("contract.json", lambda one: one["head"]["pair"].update(weights="0" * 64)),
    "a tolerance": ("contract.json", sets(tolerance=1e9)),
    "an entry more": ("contract.json", sets(more=1)),
    "other files": ("contract.json", lambda one: one["files"].clear()),
    "another check": ("check.py", b"print('pass')\n"),
    "a comment in the check": ("check.py", b"# more\n"),
    "other lists": ("probes.json", probe(list=3)),
    "another score": ("probes.json", probe(score=0.5)),
    "other ids": ("probes.json", lambda one: one["readings"]["pair"][0]["ids"].append(5)),
    "no probes": ("probes.json", b"{}"),
    "no arrays": ("hidden.npz", b"no array"),
    "empty arrays": ("hidden.npz", b""),
    "NaN": ("hidden.npz", lambda one: one * np.nan),
    "rounded arrays": ("hidden.npz", lambda one: one.astype(np.float16)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_proof_that_was_changed_is_told(proofs, tmp_path, capsys, change):
    name, damage = CHANGES[change]
    folder = damaged(proofs["cross"], tmp_path / "damaged", name, damage)
    code, told = verify(folder, "sentence-transformers", capsys)
    assert told == (
        f"ltr: {folder}/proof/{name}: a proof must be as it was exported, and this file has changed since; "
        "export the ranker again\n"
    )
    assert code == 2


@pytest.mark.parametrize("kind", ["cross", "dual"])
def test_the_card_names_the_contract(proofs, tmp_path, capsys, kind):
    """So one that was signed anew is told as well."""
    folder = damaged(proofs[kind], tmp_path / "d", "contract.json", sets(dtype="int8"), signs=True)
    shutil.copy(proofs[kind] / "README.md", folder)
    code, told = verify(folder, "sentence-transformers", capsys)
    assert code == 2 and "contract.json: a proof must be as it was exported" in told


TOLERANCE = "tolerance must be from 0 to "
NO_SCORE = "probes.0.score must be a finite number"
NO_ROWS = "must be rows of finite numbers"
SIGNED = [
    ("probes.json", lambda one: one["readings"].clear(), "do not fit"),
    ("probes.json", probe(score="x"), NO_SCORE),
    ("probes.json", probe(score=float("nan")), NO_SCORE),
    ("contract.json", sets(tolerance=1e9), TOLERANCE),
    ("contract.json", sets(tolerance=-1e-9), TOLERANCE),
    ("hidden.npz", b"no array", "hidden.npz: the file can't be read"),
    ("hidden.npz", lambda one: one * np.nan, NO_ROWS),
    ("hidden.npz", lambda one: one.astype(str), NO_ROWS),
    ("hidden.npz", lambda one: one.astype(int), NO_ROWS),
    ("hidden.npz", lambda one: one[None], NO_ROWS),
    ("hidden.npz", lambda one: one[1:], "do not fit"),
]
DAMAGED = [
    ("contract.json", None, "must hold proof/contract.json, and does not"),
    ("contract.json", b"{", "contract.json: the file is damaged"),
    ("contract.json", lambda one: one.pop("tolerance"), "tolerance must be there"),
    ("contract.json", sets(version=3), "proofs of version 2, got 3"),
    ("contract.json", sets(version=[]), "proofs of version 2, got []"),
    ("contract.json", lambda one: one.pop("proof"), "proof must be there, and is not"),
    ("contract.json", sets(proof={}), "probes.json: a proof must be as it"),
    ("probes.json", None, "probes.json: the file can't be read"),
    ("hidden.npz", None, "hidden.npz: the file can't be read"),
    ("check.py", None, "check.py: the file can't be read"),
]


@pytest.mark.parametrize(
    ("signs", "name", "change", "said"),
    [*((False, *row) for row in DAMAGED), *((True, *row) for row in SIGNED)],
)
def test_a_damaged_proof_gets_one_line(proofs, tmp_path, capsys, signs, name, change, said):
    """One that was signed anew is its own fault."""
    folder = damaged(proofs["cross"], tmp_path / "damaged", name, change, signs=signs)
    code, told = verify(folder, "sentence-transformers", capsys)
    assert code == 2 and said in told and told.count("\n") == 1
    assert not signs or told.endswith("; export the ranker again\n")


def test_a_folder_that_has_changed_can_show_no_fault_of_a_server(proofs, tmp_path, capsys):
    """Its own numbers are not those of its proof."""

    def change(content):
        for probe in content["probes"]:
            probe["score"] += 1

    folder = damaged(proofs["cross"], tmp_path / "damaged", "probes.json", change, signs=True)
    with served(Serving(proofs["cross"])) as url:
        code, told = verify(folder, url, capsys)
    assert code == 2 and "the folder itself gives other numbers than its proof" in told
