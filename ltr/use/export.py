"""A trained ranker as a folder that others load: sentence-transformers, transformers, onnxruntime."""

import json
from pathlib import Path
from typing import Any, get_args

from ltr.data.collection import Collection, open_collection
from ltr.data.files import write_new_model_folder
from ltr.errors import InputError, local_path
from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.use.card import card
from ltr.use.int8 import GraphMeasurement, add_int8_graphs
from ltr.use.load import load
from ltr.use.onnx_graph import build_graphs, write_graph
from ltr.use.proof.contract import Form
from ltr.use.proof.write import write_proof
from ltr.use.rankers import TextRanker


def export(
    source: str | Path,
    folder: str | Path,
    to: Form = "sentence-transformers",
    int8: str | None = None,
    data: str | None = None,
) -> list[GraphMeasurement]:
    """Write a folder that another library loads, with a model card and a proof
    (:mod:`ltr.use.proof`). A failure leaves no folder.

    Args:
        source: as :func:`ltr.load` takes it.
        folder: the new folder.
        to: ``sentence-transformers``: a ``CrossEncoder`` or a ``SentenceTransformer``;
            ``transformers``: a sequence classifier, for cross-encoders with a head of their own;
            ``onnx``: ``model.onnx`` (two towers: ``query.onnx`` and ``document.onnx``) beside the
            tokenizer.
        int8: a data folder. With ``onnx``, each graph gets a second one with weights in int8
            (``model_int8.onnx``), and both are measured on the dev split. None: float32 alone.
        data: the data of the ranker, of whose dev split the probes of the proof are. None, or data
            that can't be opened: they are of texts that ship with ltr.

    Returns:
        What the graphs do in float32 and in int8; empty without ``int8``.

    Raises:
        InputError: for a ranker that this form can't express, a folder that is there, data without
            a dev split, or a missing package.
    """
    local_path("folder", folder)
    if int8 is not None and to != "onnx":
        raise InputError(
            f"int8 is for ONNX graphs, got --to {to}; leave it out, or export --to onnx",
            option="int8",
        )
    collection = None if int8 is None else open_collection(int8)
    if to not in get_args(Form):
        raise InputError(
            f"the form must be one of {', '.join(get_args(Form))}, got {to!r}", option="to"
        )
    ranker = load(source, "32-true", "cpu")
    model = ranker.model
    if not isinstance(ranker, TextRanker) or not isinstance(
        model, PairWiseBertRanker | DualEncoder
    ):
        raise InputError(
            f"{source}: text rankers are exported, got a {type(model).__name__}; use it in Python: ltr.load"
        )
    if to == "transformers" and isinstance(model, DualEncoder):
        raise InputError(
            "a dual encoder is no sequence classifier of transformers; export it to sentence-transformers"
        )

    measurements: list[GraphMeasurement] = []

    def write(temporary: Path) -> None:
        # The libraries want to make their folder themselves, and ``temporary`` is there already.
        inner = temporary / "model"
        if to == "onnx":
            inner.mkdir()
            _write_onnx(inner, model)
            if collection is not None:
                measurements.extend(add_int8_graphs(inner, model, collection))
        elif to == "transformers":
            assert isinstance(model, PairWiseBertRanker), "checked above"
            model.save_plain(inner)
        else:
            model.save(inner)
        for file in inner.iterdir():
            file.rename(temporary / file.name)
        inner.rmdir()
        write_proof(temporary, to, model, collection or _data_of_probes(data))
        text = card(Path(source), to, model, measurements)
        (temporary / "README.md").write_text(text, encoding="utf-8")

    write_new_model_folder(Path(folder), write)
    return measurements


def _data_of_probes(data: str | None) -> Collection | None:
    """The data of a run, where it is here."""
    if data is None:
        return None
    try:
        return open_collection(data)
    except InputError:
        return None


def _write_onnx(folder: Path, model: PairWiseBertRanker | DualEncoder) -> None:
    """Write the graphs, their tokenizers, and ``ltr.json`` with what a caller must know of both."""
    settings: dict[str, Any] = {}
    for name, built in build_graphs(model).items():
        write_graph(folder / f"{name}.onnx", built.graph, built.tokenizer)
        tokenizer_folder = folder if name == "model" else folder / name  # two towers have two
        built.tokenizer.save_pretrained(tokenizer_folder)
        settings[name] = {"max_length": built.max_length}
    if isinstance(model, DualEncoder):
        queries = model.reads.queries
        docs = model.reads.docs
        settings["prompts"] = {"query": queries.prompt, "document": docs.prompt}
        settings["max_lengths"] = {"query": queries.max_length, "document": docs.max_length}
        settings["similarity"] = model.similarity.name
    (folder / "ltr.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
