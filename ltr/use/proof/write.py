"""Writing the proof of a ranker into the folder that it is exported to."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ltr import __version__
from ltr.data.collection import Collection
from ltr.data.files import digest_of
from ltr.data.layouts import ApartTexts, JoinedPairs, SingleTexts
from ltr.data.templated_pairs import TemplatedPairs
from ltr.models import DualEncoder, Ranker
from ltr.models.encoder.tower import Tower
from ltr.models.ranker import digest_of_weights
from ltr.search.embed_texts import encode_in_memory
from ltr.search.scores import pair_scores
from ltr.similarity import similarity_of
from ltr.use.proof import contract as files
from ltr.use.proof.network import Kind, Network, TokenRow, forms_of, networks_of
from ltr.use.proof.probes import ProbeList, probe_lists
from ltr.use.proof.reading import SpecialTokens, Text, is_rendered_by_caller, special_tokens


class _Read(NamedTuple):
    """The texts of a kind, and what the ranker makes of them."""

    texts: list[Text]
    rows: list[TokenRow]
    pooled: np.ndarray


def write_proof(
    folder: Path, form: files.Form, model: Ranker, collection: Collection | None
) -> str:
    """Write ``proof/`` into the folder of an exported ranker, and return the digest of its contract.

    Args:
        folder: with the files of the export.
        form: what it is for.
        model: the ranker, in float32 and in eval mode.
        collection: of whose dev split (else test, else train) the probes are; None: they are of texts that ship.
    """
    networks = networks_of(model)
    forms = forms_of(model)
    lists = _lists(collection, forms)
    pairs = [(one.query, document) for one in lists for document in one.documents]
    form_of_pairs = forms.get("pair")
    if isinstance(form_of_pairs, TemplatedPairs):
        pairs = [
            (query, form_of_pairs.document_for_proof(query, document)) for query, document in pairs
        ]
    list_of_pair = np.repeat(np.arange(len(lists)), [len(one.documents) for one in lists])
    # Of each kind the distinct texts, and which of them each pair reads.
    fields: dict[Kind, list[tuple[str, ...]]] = {}
    numbers: dict[Kind, list[int]] = {}
    for kind in networks:
        texts_of_pairs = [_fields(kind, *pair) for pair in pairs]
        fields[kind] = list(dict.fromkeys(texts_of_pairs))
        numbers[kind] = [fields[kind].index(text) for text in texts_of_pairs]
    by_caller = is_rendered_by_caller(form, model.reads)
    read = {kind: _read(networks[kind], forms[kind], fields[kind], by_caller) for kind in networks}
    arrays = {f"{kind}_pooled": each.pooled for kind, each in read.items()}
    if isinstance(model, DualEncoder):
        arrays["query"] = _embeddings(model.query_tower, forms["query"], fields["query"])
        arrays["document"] = _embeddings(model.doc_tower, forms["document"], fields["document"])
        scores = similarity_scores(
            model.similarity.saved_as,
            arrays["query"][numbers["query"]],
            arrays["document"][numbers["document"]],
        )
    else:
        assert isinstance(form_of_pairs, JoinedPairs), "pairs are joined"
        distinct = np.arange(len(fields["pair"]))
        queries = form_of_pairs.tokens([query for query, _ in fields["pair"]], "query")
        documents = form_of_pairs.tokens([document for _, document in fields["pair"]], "document")
        scores = pair_scores(model, queries, documents, distinct, distinct)[numbers["pair"]]
    contract = _contract(form, model, networks, forms, read)
    contract["tolerance"] = files.tolerance_of(scores)
    contract["probes_of"] = files.SHIPPED
    if collection is not None:
        contract["probes_of"] = f"the data of the ranker, and {files.SHIPPED}"
    contract["rendered_by_caller"] = by_caller
    contract["files"] = _digests(folder)
    entries = {
        kind: [_entry(networks[kind], *one) for one in zip(each.texts, each.rows, strict=True)]
        for kind, each in read.items()
    }
    content = {"probes": _probes(scores, list_of_pair, numbers), "readings": entries}
    place = folder / files.FOLDER
    place.mkdir()
    np.savez(place / files.HIDDEN, allow_pickle=False, **arrays)
    _write_json(place / files.PROBES, content, indent=None)
    (place / files.CHECK).write_text(_check_of(form), encoding="utf-8")
    contract = files.signed(place, contract)
    _write_json(place / files.CONTRACT, contract, indent=2)
    digest: str = contract["digest"]
    return digest


def _fields(kind: Kind, query: str, document: str) -> tuple[str, ...]:
    """What of a pair is read as a text of this kind."""
    fields_of_kind: dict[Kind, tuple[str, ...]] = {
        "pair": (query, document),
        "query": (query,),
        "document": (document,),
    }
    return fields_of_kind[kind]


def _embeddings(
    tower: Tower, form: JoinedPairs | SingleTexts, fields: Sequence[tuple[str, ...]]
) -> np.ndarray:
    assert isinstance(form, SingleTexts), "a tower reads texts alone"
    texts = form.tokens([text for (text,) in fields])
    return encode_in_memory(tower, texts, form, np.arange(len(fields)))


def _probes(
    scores: np.ndarray, lists: np.ndarray, numbers: dict[Kind, list[int]]
) -> list[dict[str, Any]]:
    """The probes as probes.json has them: each with its score, and its rank in its list."""
    probes: list[dict[str, Any]] = []
    for row, score in enumerate(scores.tolist()):
        n_better = int((scores[lists == lists[row]] > scores[row]).sum())
        probes.append(
            {
                "list": int(lists[row]),
                "readings": {kind: numbers[kind][row] for kind in numbers},
                "score": score,
                "rank": n_better + 1,
            }
        )
    return probes


def _check_of(form: files.Form) -> str:
    """``check.py`` without what it does with the libraries of other forms."""
    source = Path(__file__).with_name("exported_check.py").read_text(encoding="utf-8")
    own = f"def by_{form.replace('-', '_')}("
    parts = source.split("\n\n\n")
    return "\n\n\n".join(
        part for part in parts if part.startswith(own) or not part.startswith("def by_")
    )


def similarity_scores(name: str, queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """``[P]`` float32, the similarity of each query ``[P, dim]`` with the document beside it."""
    score = similarity_of(name).score
    pairs = zip(torch.from_numpy(queries), torch.from_numpy(documents), strict=True)
    scores = [score(query[None], document[None])[0, 0].item() for query, document in pairs]
    return np.array(scores, np.float32)


def _lists(
    collection: Collection | None, forms: dict[Kind, JoinedPairs | SingleTexts]
) -> list[ProbeList]:
    """The probes, with queries that leave room for a document where both are joined."""
    longest = max(form.max_length for form in forms.values())
    form = forms.get("pair") or forms["query"]
    if isinstance(form, SingleTexts):  # a text alone is cut
        return probe_lists(collection, longest, lambda _: 0, form.max_length)
    room = form.max_length - form.n_template - 1

    def n_tokens(query: str) -> int:
        field = form.queries.field(query)
        ids = form.tokenizer(field, add_special_tokens=False, verbose=False)["input_ids"]
        return len(ids)

    return probe_lists(collection, longest, n_tokens, room)


def _read(
    network: Network,
    form: JoinedPairs | SingleTexts,
    fields: Sequence[tuple[str, ...]],
    rendered_by_caller: bool,
) -> _Read:
    """Lay the texts out as in training, and pool their hidden states."""
    texts = []
    for each in fields:
        rendered = form.rendered(*each)
        texts.append(Text(rendered if rendered_by_caller else form.fields(*each), rendered))
    rows = _rows(form, fields)
    return _Read(texts, rows, network(rows).pooled)


def _rows(form: JoinedPairs | SingleTexts, fields: Sequence[tuple[str, ...]]) -> list[TokenRow]:
    places = np.arange(len(fields))
    if isinstance(form, JoinedPairs):
        queries = form.tokens([query for query, _ in fields], "query")
        documents = form.tokens([document for _, document in fields], "document")
        texts = form.lay_out(queries, places, documents, places)
    else:
        texts = form.lay_out(form.tokens([text for (text,) in fields]), places)
    lengths = texts.lengths.tolist()
    ids = [part.tolist() for part in texts.ids.split(lengths)]
    if texts.type_ids is None:
        return [TokenRow(each, None) for each in ids]
    types = [part.tolist() for part in texts.type_ids.split(lengths)]
    return [TokenRow(*each) for each in zip(ids, types, strict=True)]


def _entry(network: Network, text: Text, row: TokenRow) -> dict[str, Any]:
    """A reading as probes.json has it; ``place`` ends behind the last token the head reads."""
    n_tokens = len(row.ids)
    places = {"first token": [0, 1], "last token": [n_tokens - 1, n_tokens]}
    place = places.get(network.place, [0, n_tokens])
    return {
        "fields": text.fields,
        "texts": text.rendered,
        "ids": row.ids,
        "types": row.types,
        "place": place,
    }


def _contract(
    form: files.Form,
    model: Ranker,
    networks: dict[Kind, Network],
    forms: dict[Kind, JoinedPairs | SingleTexts],
    read: dict[Kind, _Read],
) -> dict[str, Any]:
    """What a server must do, as far as the ranker decides it."""
    templates: dict[str, str | None] = {"query": "{query}", "document": "{document}", "pair": None}
    budgets: dict[str, int | None] = dict.fromkeys(["instruction", "query", "document"])
    reads = model.reads
    if isinstance(reads, ApartTexts):
        template = reads.template
        if template is None:
            templates["query"] = f"{reads.queries.prompt}{{query}}"
            templates["document"] = f"{reads.docs.prompt}{{document}}"
    else:
        assert isinstance(reads, JoinedPairs), "a ranker of texts reads pairs, or texts apart"
        template = reads.template
    if template is not None:
        templates["query"] = template.query.replace("{instruction}", template.instruction)
        templates["document"] = template.document
        templates["pair"] = template.pair
        budgets = {
            "instruction": template.instruction_tokens,
            "query": template.query_tokens,
            "document": template.document_tokens,
        }
    adds_special = _adds_special(forms)
    special = {}
    head = {}
    for kind, network in networks.items():
        n_texts = len(read[kind].texts[0].rendered)
        around = special_tokens(forms[kind].tokenizer, n_texts)
        if not adds_special:
            around = SpecialTokens([], [], [])
        special[kind] = around._asdict()
        digest = digest_of_weights(torch.nn.ModuleList(network.modules))
        layers = [" ".join(str(module).split()) for module in network.modules]
        head[kind] = {"layers": ", ".join(layers) or "none", "weights": digest}
    is_dual = isinstance(model, DualEncoder)
    form_of_any = next(iter(forms.values()))
    side = form_of_any.tokenizer.truncation_side
    return {
        "version": files.VERSION,
        "ltr": __version__,
        "form": form,
        "kind": "dual encoder" if is_dual else "cross-encoder",
        "template": templates,
        "budgets": budgets,
        "special_tokens": special,
        "adds_special_tokens": adds_special,
        "max_tokens": {kind: each.max_length for kind, each in forms.items()},
        "cut": f"{'the text' if is_dual else 'the document alone'}, on the {side}",
        "place": {kind: network.place for kind, network in networks.items()},
        "pooling": {
            kind: network.pooling or "the head's own" for kind, network in networks.items()
        },
        "head": head,
        "activation": "none",
        "dtype": "float32",
        "similarity": model.similarity.saved_as if isinstance(model, DualEncoder) else None,
    }


def _adds_special(forms: dict[Kind, JoinedPairs | SingleTexts]) -> bool:
    """Whether the tokenizer adds special tokens to a text, as it does by itself. A template may hold
    its own. It shows in a text that is short enough not to be cut.
    """
    for kind, form in forms.items():
        fields = ("a", "a") if kind == "pair" else ("a",)
        (row,) = _rows(form, [fields])
        rendered = form.rendered(*fields)
        cut = "only_second" if len(rendered) == 2 else True
        options = {"truncation": cut, "max_length": form.max_length, "verbose": False}
        if list(form.tokenizer(*rendered, **options)["input_ids"]) != row.ids:
            return False
    return True


def _digests(folder: Path) -> dict[str, str]:
    """SHA-256 of the files that decide the numbers."""
    digests = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.name != files.CARD:
            digests[str(file.relative_to(folder))] = digest_of(file)
    return digests


def _write_json(file: Path, content: dict[str, Any], indent: int | None) -> None:
    text = json.dumps(content, indent=indent, ensure_ascii=False) + "\n"
    file.write_text(text, encoding="utf-8")
