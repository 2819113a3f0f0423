"""The model card of an exported ranker: what it is, how to use it, what it was trained on, and how
good it is.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ltr import __version__
from ltr.compare.comparison import compare
from ltr.compare.runs import experiments
from ltr.errors import InputError
from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.run.folder import RunFolder
from ltr.run.log import duration
from ltr.run.results import read_metrics
from ltr.run.yaml_files import read_yaml
from ltr.use.int8 import METRIC, Measured

CITATION = """\
```bibtex
@software{{ltr,
  title = {{ltr: train, compare and understand text rankers}},
  version = {{{version}}},
  year = {{2026}}
}}
```
"""

# By the form of the folder, and whether it is a cross-encoder.
SNIPPETS = {
    ("sentence-transformers", True): """\
from sentence_transformers import CrossEncoder

ranker = CrossEncoder("FOLDER")
scores = ranker.predict([("a question", "a document"), ("a question", "another document")])
""",
    ("sentence-transformers", False): """\
from sentence_transformers import SentenceTransformer

ranker = SentenceTransformer("FOLDER")
queries, documents = ranker.encode_query(["a question"]), ranker.encode_document(["a document", "another document"])
scores = ranker.similarity(queries, documents)
""",
    ("transformers", True): """\
from transformers import AutoModelForSequenceClassification, AutoTokenizer

tokenizer, ranker = AutoTokenizer.from_pretrained("FOLDER"), AutoModelForSequenceClassification.from_pretrained("FOLDER")
options = {"truncation": "only_second", "padding": True, "return_tensors": "pt"}
pairs = tokenizer(["a question"] * 2, ["a document", "another document"], **options)
scores = ranker(**pairs).logits[:, 0]
""",
    ("onnx", True): """\
import onnxruntime
from transformers import AutoTokenizer

tokenizer, ranker = AutoTokenizer.from_pretrained("FOLDER"), onnxruntime.InferenceSession("FOLDER/model.onnx")
options = {"truncation": "only_second", "max_length": LENGTH, "padding": True, "return_tensors": "np"}
pairs = tokenizer(["a question"] * 2, ["a document", "another document"], **options)
(scores,) = ranker.run(None, {one.name: pairs[one.name] for one in ranker.get_inputs()})
""",
    ("onnx", False): """\
import onnxruntime
from transformers import AutoTokenizer

tokenizer, ranker = AutoTokenizer.from_pretrained("FOLDER"), onnxruntime.InferenceSession("FOLDER/model.onnx")
texts = tokenizer(["a document"], truncation=True, max_length=LENGTH, padding=True, return_tensors="np")
(embeddings,) = ranker.run(None, {one.name: texts[one.name] for one in ranker.get_inputs()})
""",
}


def card(
    source: Path,
    to: str,
    model: PairWiseBertRanker | DualEncoder,
    measured: Sequence[Measured] = (),
) -> str:
    """The text of README.md, with its metadata for the hub.

    Args:
        source: where the ranker came from; a run folder tells most.
        to: the form of the folder, see :func:`ltr.use.export.export`.
        model: the ranker.
        measured: its graphs in float32 and int8.
    """
    cross = isinstance(model, PairWiseBertRanker)
    kind, pipeline = (
        ("cross-encoder", "text-ranking") if cross else ("dual encoder", "sentence-similarity")
    )
    head = f"---\nlibrary_name: {to}\npipeline_tag: {pipeline}\ntags: [{kind.replace(' ', '-')}, learning-to-rank, ltr]\n---\n"
    n_weights = sum(weight.numel() for weight in model.parameters())
    longest = (
        model.reads.max_length
        if isinstance(model, PairWiseBertRanker)
        else model.reads.docs.max_length
    )
    parts = [
        f"{head}\n# A {kind} trained with ltr\n\n{n_weights / 1e6:.1f} million weights; texts of up to {longest} tokens."
    ]
    parts += [
        _reading(model),
        f"## Use\n\n```python\n{SNIPPETS[to, cross].replace('LENGTH', str(longest))}```\n\nFOLDER is this folder.",
    ]
    if measured:
        parts += [_int8(measured, "pairs" if cross else "texts")]
    folder = RunFolder(
        source if source.is_dir() else source.parents[1] if len(source.parents) > 1 else source
    )
    if folder.config.is_file():
        parts += [
            _training(read_yaml(folder.config) or {}, read_metrics(folder.results)),
            _results(folder.path),
        ]
    return "\n\n".join(
        [
            *(part for part in parts if part),
            "## Citation\n\n" + CITATION.format(version=__version__),
        ]
    )


def _int8(measured: Sequence[Measured], what: str) -> str:
    rows = [
        f"| {one.kind} | {one.ndcg:.4f} | {one.per_second:.0f} | {one.megabytes:.1f} |"
        for one in measured
    ]
    head = f"## Int8\n\n| graph | {METRIC} on dev | {what} per second | MB |\n| --- | --- | --- | --- |\n"
    told = "`*_int8.onnx` hold the weights in int8. Speed: onnxruntime on all cores of the machine that exported them."
    return head + "\n".join(rows) + f"\n\n{told}"


def _reading(model: PairWiseBertRanker | DualEncoder) -> str:
    if isinstance(model, PairWiseBertRanker):
        cut = "The document is cut, the query is not."
        return (
            f"Scores are logits: higher is better, and they compare documents of one query. {cut}"
        )
    queries, documents = model.reads
    told = f"Embeddings of {model.dim} dimensions, compared by {model.similarity.name.replace('_', ' ')}."
    for name, form in (("query", queries), ("document", documents)):
        told += f" Before each {name}: `{form.prompt}`." if form.prompt else ""
    return told


def _training(config: dict[str, Any], metrics: dict[str, Any]) -> str:
    model = config.get("model", {})
    data = config.get("data", {}).get("init_args", {})
    rows = {
        "data": data.get("path"),
        "start": config.get("init_from")
        or model.get("ranker", {}).get("init_args", {}).get("backbone"),
        "negatives": data.get("negatives"),
        "negatives per query": data.get("negatives_per_query"),
        "loss": _named(model.get("loss")),
        "margin": _named(model.get("margin")),
        "in-batch": _named(model.get("in_batch")),
        "learning rate": model.get("lr"),
        "seed": config.get("seed_everything"),
        "precision": config.get("trainer", {}).get("precision") or "32-true",
        "steps": metrics.get("fit", {}).get("steps"),
        "time of training": duration(metrics["fit"]["seconds"])
        if "seconds" in metrics.get("fit", {})
        else None,
        "machine": metrics.get("test", {}).get("made", {}).get("machine"),
    }
    lines = [f"| {name} | {value} |" for name, value in rows.items() if value is not None]
    return "\n".join(
        [
            "## Training\n",
            "| | |",
            "| --- | --- |",
            *lines,
            "\n`config.yaml` of the run has every option.",
        ]
    )


def _named(part: Any) -> str | None:
    """A class with its options, as a configuration names it."""
    if not isinstance(part, dict):
        return part
    options = ", ".join(
        f"{name} {value}"
        for name, value in (part.get("init_args") or {}).items()
        if value is not None
    )
    return f"{part.get('class_path')}{f' ({options})' if options else ''}"


def _results(folder: Path) -> str:
    """The test metrics of this run with intervals, and those of the other seeds beside it."""
    try:
        (own,) = experiments([str(folder)])
        found = compare([own], list(own.runs[0].test["conventions"]), [])
    except (InputError, ValueError):
        return "It was not tested."  # or no longer as it stands
    seeds = own
    lines = []
    if folder.name.startswith("seed="):
        with suppress(InputError, ValueError):  # others were not tested, or have other options
            (seeds,) = experiments([str(folder.parent)])
    for one in found:
        low, high = one.rows[0].mean.interval()
        means = seeds.means(one.metric)
        spread = compare([seeds], [one.metric], [])[0].rows[0].deviation
        of_seeds = (
            "" if spread is None else f"{sum(means) / len(means):.4f} ± {spread:.4f} ({len(means)})"
        )
        lines.append(
            f"| {one.metric} | {one.rows[0].mean.mean:.4f} | {low:.4f} to {high:.4f} | {of_seeds} | {one.convention} |"
        )
    test = own.runs[0].test
    depth = "" if test.get("depth") is None else f", {test['depth']} deep"
    candidates = f"Candidates: {test.get('candidates', 'its own')}{depth}."
    told = f"{found[0].n_queries} test queries. {candidates} {test['made']['date']}, ltr {test['made']['ltr']}."
    header = [
        "| metric | this model | 95 % interval over queries | all seeds (number) | counted |",
        "| --- " * 5 + "|",
    ]
    return "\n".join(["## Results\n", *header, *lines, f"\n{told}"])
