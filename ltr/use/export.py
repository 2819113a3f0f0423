"""A trained ranker as a folder that others load: sentence-transformers, transformers, onnxruntime,
PEFT.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from safetensors.torch import save_file
from torch import nn

from ltr.data.collection import Collection, open_collection
from ltr.data.template import PLAIN_TEMPLATE
from ltr.data.whole_files import write_new_model_folder
from ltr.errors import InputError, local_path
from ltr.models import DecoderRanker, DualEncoder
from ltr.models.encoder.loading.pretrained import without_truncation
from ltr.models.encoder.lora import save_adapter
from ltr.models.encoder.text_encoder import TextEncoder, encoders_of
from ltr.models.pair_ranker import PairRanker
from ltr.run.run_folder import CALIBRATION
from ltr.use.calibration.calibration import Calibration, OfAnotherRanker, digest_of_ranker
from ltr.use.card import card, reading_note
from ltr.use.int8 import GraphMeasurement, add_int8_graphs
from ltr.use.load import load
from ltr.use.merging import (
    MergedScores,
    base_dtype,
    has_adapters,
    merged_and_compared,
    store_in_bfloat16,
)
from ltr.use.onnx_graph import build_graphs, write_graph
from ltr.use.proof.contract import IN_CARD
from ltr.use.proof.contract import Form as ProvenForm
from ltr.use.proof.write import write_proof
from ltr.use.rankers import TextRanker

Form = Literal[ProvenForm, "adapter"]

NO_CALIBRATION = "The calibration of the run is of squared distances, and the folder gives distances, so it stays behind."
OF_OTHER_WEIGHTS = "The calibration of the run is of other weights than those of this checkpoint, so it stays behind."


class Exported(NamedTuple):
    """What is told of an export.

    Attributes:
        measurements: what the graphs do in float32 and in int8; empty without ``int8``.
        merged: how scores changed as adapters became part of the weights; None where there are
            none.
        note: what of the template and of windows whoever uses the folder must do; empty where
            nothing.
    """

    measurements: list[GraphMeasurement]
    merged: MergedScores | None
    note: str = ""


def export(
    source: str | Path,
    folder: str | Path,
    to: Form = "sentence-transformers",
    int8: str | None = None,
    data: str | None = None,
    *,
    hub_id: str | None = None,
    license: str | None = None,
    language: Sequence[str] = (),
) -> Exported:
    """Write a folder that another library loads, with a model card and a proof
    (``ltr.use.proof``). A failure leaves no folder.

    Adapters become part of the weights, which are cast to the type of the base (``encoder.dtype``).
    Those of a base in bfloat16 lie in the files as such, and are loaded as float32.

    Args:
        source: as :func:`ltr.load` takes it.
        folder: the new folder.
        to: ``sentence-transformers``: a ``CrossEncoder`` or a ``SentenceTransformer``;
            ``transformers``: a sequence classifier, for decoder rankers, and cross-encoders with a
            head of their own;
            ``onnx``: ``model.onnx`` (two towers: ``query.onnx`` and ``document.onnx``) beside the
            tokenizer; ``adapter``: the adapters alone, as ``peft.PeftModel`` loads them beside the
            model below, with a linear head in ``head.safetensors`` (two towers: in folders of their
            own).
        int8: a data folder. With ``onnx``, each graph gets a second one with weights in int8
            (``model_int8.onnx``), and both are measured on the dev split. None: float32 alone.
        data: the data of the ranker, of which the probes of the proof are. None, or data
            that can't be opened: they are of texts that ship with ltr.
        hub_id: where the hub will have it, for the card: ``USER/NAME`` or ``USER/NAME@REVISION``.
        license: of the model, as the hub calls it (``apache-2.0``), for the card; None: left out.
        language: of its texts, as codes (``en``), for the card; empty: left out.

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
    if not isinstance(ranker, TextRanker) or not isinstance(model, PairRanker | DualEncoder):
        raise InputError(
            f"{source}: text rankers are exported, got a {type(model).__name__}; use it in Python: ltr.load"
        )
    if int8 is not None and isinstance(model, DecoderRanker):
        raise InputError(
            "int8 is for graphs of encoders, got a DecoderRanker; leave it out", option="int8"
        )
    if to == "transformers" and isinstance(model, DualEncoder):
        raise InputError(
            "a dual encoder is no sequence classifier of transformers; export it to sentence-transformers"
        )

    if to == "adapter":
        _check_adapters(model, source)
    measurements: list[GraphMeasurement] = []

    def write(temporary: Path) -> None:
        # The libraries want to make their folder themselves, and ``temporary`` is there already.
        inner = temporary / "model"
        if to == "onnx":
            inner.mkdir()
            _write_onnx(inner, model)
            if collection is not None:
                measurements.extend(add_int8_graphs(inner, model, collection))
        elif to == "adapter":
            _write_adapters(inner, model)
        elif to == "transformers":
            assert isinstance(model, PairRanker), "checked above"
            model.save_plain(inner)
        else:
            model.save(inner)
        if to in ("sentence-transformers", "transformers") and merges_halves:
            store_in_bfloat16(inner)
        for file in inner.iterdir():
            file.rename(temporary / file.name)
        inner.rmdir()
        handed_on = None
        if calibration is not None:
            handed_on = _write_calibration(temporary, to, model, calibration)
        files = [
            str(file.relative_to(temporary)) for file in temporary.rglob("*") if file.is_file()
        ]
        text = card(
            Path(source),
            to,
            model,
            measurements,
            sorted(files),
            hub_id=hub_id,
            license=license,
            language=language,
            calibration=handed_on,
        )
        if to != "adapter":  # adapters alone compute nothing
            with without_windows(model):  # nor does the folder read windows
                digest = write_proof(temporary, to, model, collection or _data_of_probes(data))
            text += f"\n{IN_CARD.format(digest)}\n"
        (temporary / "README.md").write_text(text, encoding="utf-8")

    # Before the weights are changed: it is of those of the run.
    calibration = None
    without = ""
    if to != "adapter":  # adapters alone give no scores
        calibration, without = _handed_on(ranker, model, source)
    note = f"{reading_note(to, model)} {without}".strip()
    merges_halves = has_adapters(model) and base_dtype(model) == "bfloat16"
    scores: MergedScores | None = None
    with ExitStack() as stack:
        if isinstance(model, PairRanker):
            stack.enter_context(model.temperature_in_head())
        if to != "adapter" and has_adapters(model):
            scores = stack.enter_context(merged_and_compared(ranker))
        write_new_model_folder(Path(folder), write)
    return Exported(measurements, scores, note)


@contextmanager
def without_windows(model: PairRanker | DualEncoder) -> Iterator[None]:
    """Inside the block the model cuts documents, as libraries do that know no windows."""
    reads = model.reads
    model.reads = reads.without_windows()
    try:
        yield
    finally:
        model.reads = reads


def _handed_on(
    ranker: TextRanker, model: PairRanker | DualEncoder, source: str | Path
) -> tuple[Calibration | None, str]:
    """The calibration of the scores that a folder will give, or why that of the run stays behind.

    Raises:
        InputError: if it is damaged, or a run has more training behind it than its calibration. Of a
            run's single checkpoint nobody says that it is calibrated.
    """
    if not ranker.has_calibration:
        return None, ""
    try:
        calibration = ranker.calibration
    except OfAnotherRanker:
        if Path(source).is_file():
            return None, OF_OTHER_WEIGHTS
        raise
    if not isinstance(model, DualEncoder):
        return calibration, ""
    if model.similarity.name != model.similarity.saved_as:
        return None, NO_CALIBRATION
    # There is no temperature in the folder.
    return calibration.of_scaled(model.temperature_value), ""


def _write_calibration(
    folder: Path, to: Form, model: PairRanker | DualEncoder, calibration: Calibration
) -> Calibration:
    """Write the calibration of a ranker beside its exported files. It names the ranker that
    ``ltr.load`` finds there: its weights may have been merged and cast.
    """
    digest = digest_of_ranker(model)
    if to != "onnx":  # of which ltr loads nothing
        digest = digest_of_ranker(load(folder, "32-true", "cpu").model)
    written = replace(calibration, ranker=digest)
    written.write(folder / CALIBRATION)
    return written


def _check_adapters(model: PairRanker | DualEncoder, source: str | Path) -> None:
    """Refuse a model without adapters, or with some that do not fit what they lie beside."""
    if not has_adapters(model):
        raise InputError(
            f"{source}: an adapter is exported where one was trained (encoder.lora), and this ranker has none; leave out --to adapter"
        )
    if any(encoder.options.layers is not None for encoder in encoders_of(model)):
        raise InputError(
            f"{source}: its adapters belong to some of its backbone's layers (encoder.layers), and whoever loads the backbone has all; export it to sentence-transformers, where they are part of the weights"
        )


def _write_adapters(folder: Path, model: PairRanker | DualEncoder) -> None:
    """Write the adapters, tokenizers, and linear heads behind them."""
    if isinstance(model, PairRanker):
        _write_adapter(folder, model.encoder, model.head, model.tokenizer)
        return
    folder.mkdir()
    sides = [folder] if len(model.towers) == 1 else [folder / "query", folder / "document"]
    for side, tower in zip(sides, (model.query_tower, model.doc_tower), strict=False):
        _write_adapter(side, tower.encoder, tower.head, tower.tokenizer)


def _write_adapter(folder: Path, encoder: TextEncoder, head: nn.Module, tokenizer: Any) -> None:
    save_adapter(folder, encoder.model)
    without_truncation(tokenizer).save_pretrained(folder)
    weights = head.state_dict()
    if weights:
        save_file(weights, folder / "head.safetensors", metadata={"format": "pt"})


def _data_of_probes(data: str | None) -> Collection | None:
    """The data of a run, where it is here."""
    if data is None:
        return None
    try:
        return open_collection(data)
    except InputError:
        return None


def _write_onnx(folder: Path, model: PairRanker | DualEncoder) -> None:
    """Write the graphs, their tokenizers, and ``ltr.json`` with what a caller must know of both."""
    settings: dict[str, Any] = {}
    for name, built in build_graphs(model).items():
        write_graph(folder / f"{name}.onnx", built.graph, built.tokenizer)
        tokenizer_folder = folder if name == "model" else folder / name  # two towers have two
        without_truncation(built.tokenizer).save_pretrained(tokenizer_folder)
        settings[name] = {"max_length": built.max_length}
    if isinstance(model, DualEncoder):
        queries = model.reads.queries
        docs = model.reads.docs
        settings["prompts"] = model.reads.prompts
        settings["max_lengths"] = {"query": queries.max_length, "document": docs.max_length}
        settings["similarity"] = model.similarity.name
    template = model.reads.template
    if template is not None and template != PLAIN_TEMPLATE:
        settings["template"] = asdict(template)
    if model.reads.windows is not None:
        settings["windows"] = asdict(model.reads.windows)
    (folder / "ltr.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
