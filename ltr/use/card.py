"""The model card of an exported ranker: what it is, how to use it, what it was trained on, and how
good it is.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ltr import __version__
from ltr.compare.experiment import Experiment, read_experiments
from ltr.compare.group_result import GroupResult, group_result
from ltr.compare.query_groups import Groups, grouped
from ltr.compare.ranges import interval_of_mean
from ltr.compare.tested_run import read_run
from ltr.data.judge_labels import labels_in_words
from ltr.data.progress import duration
from ltr.data.template import Side
from ltr.data.templated_pairs import TemplatedPairs
from ltr.errors import InputError
from ltr.models import DecoderRanker, DualEncoder
from ltr.models.encoder.loading.model_folder import PACKAGE, hub_id_and_commit
from ltr.models.encoder.text_encoder import encoders_of
from ltr.models.pair_ranker import PairRanker
from ltr.run.config_file import read_config
from ltr.run.metrics_file import read_metrics
from ltr.run.run_folder import RunFolder, run_of_checkpoint
from ltr.use.calibration.calibration import Calibration
from ltr.use.calibration.card_section import calibration_section
from ltr.use.card_head import card_head, kind_of, paths_of
from ltr.use.int8 import METRIC, GraphMeasurement
from ltr.use.proof.reading import is_rendered_by_caller

CITATION = """\
```bibtex
@software{{ltr,
  title = {{ltr: train, compare and understand text rankers}},
  version = {{{version}}},
  year = {{2026}}
}}
```
"""

# By the form of the folder, and whether it scores pairs.
SNIPPETS = {
    ("sentence-transformers", True): """\
from sentence_transformers import CrossEncoder

ranker = CrossEncoder("FOLDER")
scores = ranker.predict([("a question", "a document"), ("a question", "another document")])
""",
    ("sentence-transformers", False): """\
from sentence_transformers import SentenceTransformer

ranker = SentenceTransformer("FOLDER")
queries = ranker.encode_query(["a question"])
documents = ranker.encode_document(["a document", "another document"])
scores = ranker.similarity(queries, documents)
""",
    ("transformers", True): """\
from transformers import AutoModelForSequenceClassification, AutoTokenizer

tokenizer, ranker = AutoTokenizer.from_pretrained("FOLDER"), AutoModelForSequenceClassification.from_pretrained("FOLDER")
options = {"truncation": "only_second", "padding": True, "return_tensors": "pt"}
pairs = tokenizer(["a question"] * 2, ["a document", "another document"], **options)
scores = ranker(**pairs).logits[:, 0].detach()
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


def embed(texts, folder, graph, length, prompt):
    tokenizer, encoder = AutoTokenizer.from_pretrained(folder), onnxruntime.InferenceSession(graph)
    texts = [prompt + text for text in texts]
    inputs = tokenizer(texts, truncation=True, max_length=length, padding=True, return_tensors="np")
    return encoder.run(None, {one.name: inputs[one.name] for one in encoder.get_inputs()})[0]


queries = embed(["a question"], ARGUMENTS_OF_QUERIES)
documents = embed(["a document", "another document"], ARGUMENTS_OF_DOCUMENTS)
scores = SIMILARITIES
""",
    ("adapter", True): """\
from peft import PeftModel
from transformers import AUTO, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = PeftModel.from_pretrained(AUTO.from_pretrained("BASE", dtype=DTYPE), "FOLDER").eval()
pairs = tokenizer(["a question"] * 2, ["a document", "another document"], truncation="only_second", max_length=LENGTH, padding=True, return_tensors="pt")
output = model(**pairs)
""",
    ("adapter", False): """\
from peft import PeftModel
from transformers import AUTO, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = PeftModel.from_pretrained(AUTO.from_pretrained("BASE", dtype=DTYPE), "FOLDER").eval()
texts = tokenizer(["a document", "another document"], truncation=True, max_length=LENGTH, padding=True, return_tensors="pt")
output = model(**texts)
""",
}
# By the similarity, of arrays ``[Q, H]`` and ``[D, H]``.
COMPARED = {
    "dot": "queries @ documents.T",
    "cosine": "queries @ documents.T / (queries**2).sum(1)[:, None] ** 0.5 / (documents**2).sum(1) ** 0.5",
    "euclidean": "-((queries[:, None] - documents) ** 2).sum(2) ** 0.5",
    "squared_euclidean": "-((queries[:, None] - documents) ** 2).sum(2)",
}
# Of a ranker that reads query and document as one text: its tokenizer has the template.
CHAT_SNIPPETS = {
    ("transformers", True): """\
from transformers import AutoModelForSequenceClassification, AutoTokenizer

tokenizer, ranker = AutoTokenizer.from_pretrained("FOLDER"), AutoModelForSequenceClassification.from_pretrained("FOLDER")
pairs = [("a question", "a document"), ("a question", "another document")]
pairs = [[{"role": "query", "content": q}, {"role": "document", "content": d}] for q, d in pairs]
options = {"padding": True, "return_dict": True, "return_tensors": "pt"}
scores = ranker(**tokenizer.apply_chat_template(pairs, **options)).logits[:, 0].detach()
""",
    ("onnx", True): """\
import onnxruntime
from transformers import AutoTokenizer

tokenizer, ranker = AutoTokenizer.from_pretrained("FOLDER"), onnxruntime.InferenceSession("FOLDER/model.onnx")
pairs = [("a question", "a document"), ("a question", "another document")]
pairs = [[{"role": "query", "content": q}, {"role": "document", "content": d}] for q, d in pairs]
options = {"padding": True, "return_dict": True, "return_tensors": "np"}
inputs = tokenizer.apply_chat_template(pairs, **options)
(scores,) = ranker.run(None, {one.name: inputs[one.name] for one in ranker.get_inputs()})
""",
}


def card(
    source: Path,
    to: str,
    model: PairRanker | DualEncoder,
    measurements: Sequence[GraphMeasurement] = (),
    files: Sequence[str] = (),
    *,
    hub_id: str | None = None,
    license: str | None = None,
    language: Sequence[str] = (),
    calibration: Calibration | None = None,
) -> str:
    """The text of README.md, with its metadata for the hub.

    Args:
        source: where the ranker came from; a run folder tells most.
        to: the form of the folder, see :func:`ltr.use.export.export`.
        model: the ranker.
        measurements: of its graphs in float32 and int8.
        files: beside which it stands. Where one of them is lost the folder isn't opened.
        hub_id: where the hub will have it, ``USER/NAME`` or ``USER/NAME@REVISION``; None: nobody
            says.
        license, language: see :func:`ltr.use.card_head.card_head`.
        calibration: of the scores that the folder gives, if it has one.
    """
    if isinstance(model, PairRanker):
        longest = model.reads.max_length
        unit = "pairs"
    else:
        longest = model.reads.docs.max_length
        unit = "texts"
    run = None  # of a model of the hub
    if source.is_dir():
        run = RunFolder(source)
    elif source.is_file():
        run = run_of_checkpoint(source)
    config = None
    tested = None
    if run is not None and run.config.is_file():
        config = read_config(run.config)
        tested = _tested(run, _weights(source, run))
    name = source.name
    if run is not None:
        path = run.run_path().resolve()
        name = path.parent.name if path.name.startswith("seed=") else path.name
    head = card_head(
        to,
        model,
        files,
        config=config,
        tested=tested,
        name=hub_id or name,
        license=license,
        language=language,
    )
    n_weights = sum(weight.numel() for weight in model.parameters())
    parts = [
        f"{head}\n\n# A {kind_of(model)} trained with ltr",
        f"{n_weights / 1e6:.1f} million weights; texts of up to {longest} tokens.",
        " ".join(filter(None, [_reading(model), reading_note(to, model)])),
        _use(to, model, longest, hub_id),
    ]
    if calibration is not None:
        at_hub = None if hub_id is None else _loaded_from(*_name_and_revision(hub_id))
        parts.append(calibration_section(calibration, at_hub))
        windows = model.reads.windows
        if windows is not None:
            parts.append(
                f"The thresholds are of the scores that `ltr.load` gives, the {windows.score} of a document's windows. They promise nothing of a long document that is cut."
            )
        if measurements:
            parts.append("The thresholds are of the graphs in float32: int8 moves scores.")
    if measurements:
        parts.append(_int8(measurements, unit))
    if run is not None and config is not None:
        parts.append(_training(config, read_metrics(run.metrics)))
        parts.append(_results(run.path, tested))
    parts.append("## Citation\n\n" + CITATION.format(version=__version__))
    return "\n\n".join(parts)


def _use(to: str, model: PairRanker | DualEncoder, longest: int, hub_id: str | None) -> str:
    """The code that loads the folder."""
    snippets = SNIPPETS
    if isinstance(model.reads, TemplatedPairs):
        snippets = SNIPPETS | CHAT_SNIPPETS
    code = snippets[to, isinstance(model, PairRanker)].replace("LENGTH", str(longest))
    if to == "adapter":
        code = _beside_base(code, model)
    if isinstance(model, DualEncoder):
        code = code.replace("ARGUMENTS_OF_QUERIES", _side_of_onnx(model, "query"))
        code = code.replace("ARGUMENTS_OF_DOCUMENTS", _side_of_onnx(model, "document"))
        code = code.replace("SIMILARITIES", COMPARED[model.similarity.name])
    where = "FOLDER is this folder."
    if hub_id is not None:
        name, revision = _name_and_revision(hub_id)
        if '"FOLDER/' not in code:  # whoever loads it finds it at the hub
            code = code.replace('"FOLDER"', _loaded_from(name, revision))
            return f"## Use\n\n```python\n{code}```"
        words = f"{name} --revision {revision}" if revision else name
        where = f"FOLDER is what `hf download {words} --local-dir FOLDER` fetches."
    return f"## Use\n\n```python\n{code}```\n\n{where}"


def _name_and_revision(hub_id: str) -> tuple[str, str]:
    """The parts of ``USER/NAME@REVISION``; the revision is empty where there is none."""
    name, _, revision = hub_id.partition("@")
    return name, revision


def _loaded_from(name: str, revision: str | None) -> str:
    """The arguments by which libraries load a model of the hub."""
    return f'"{name}", revision="{revision}"' if revision else f'"{name}"'


def _beside_base(code: str, model: PairRanker | DualEncoder) -> str:
    """The code that loads adapters, with the model below them, and what stands behind it."""
    encoder = encoders_of(model)[0]
    has_own_head = isinstance(model, PairRanker) and model.has_own_head
    auto = "AutoModelForSequenceClassification" if has_own_head else "AutoModel"
    base = encoder.model.name_or_path
    if base.startswith(PACKAGE):
        package = base.removeprefix(PACKAGE)
        base = "BASE"
        code = f"# BASE: the folder with config.json in the Python package {package}, which must be installed\n{code}"
    name, commit = hub_id_and_commit(base) or (base, None)
    code = code.replace("AUTO", auto).replace('"BASE"', _loaded_from(name, commit))
    code = code.replace("DTYPE", f'"{encoder.options.dtype or "float32"}"')
    if isinstance(model, DualEncoder) and len(model.towers) > 1:
        code = code.replace("FOLDER", "FOLDER/document")  # as query
    if has_own_head:
        return code + "scores = output.logits[:, 0].detach()\n"
    return (
        code + f"# behind it: the {encoder.pooling} of the tokens, then head.safetensors, if any\n"
    )


def _side_of_onnx(model: DualEncoder, side: Side) -> str:
    """What ``embed`` of the snippet takes for a side: tokenizer, graph, length and prompt."""
    reads = model.reads.layout_of(side)
    if len(model.towers) == 1:
        return f'"FOLDER", "FOLDER/model.onnx", {reads.max_length}, {reads.prompt or ""!r}'
    return f'"FOLDER/{side}", "FOLDER/{side}.onnx", {reads.max_length}, {reads.prompt or ""!r}'


def _int8(measurements: Sequence[GraphMeasurement], unit: str) -> str:
    lines = [
        "## Int8",
        "",
        f"| graph | {METRIC} on dev | {unit} per second | MB |",
        "| --- | --- | --- | --- |",
    ]
    for graph in measurements:
        lines.append(
            f"| {graph.kind} | {graph.ndcg:.4f} | {graph.per_second:.0f} | {graph.megabytes:.1f} |"
        )
    lines.append("")
    lines.append(
        "`*_int8.onnx` hold the weights in int8. Speed: onnxruntime on all cores of the machine that exported them."
    )
    return "\n".join(lines)


def _reading(model: PairRanker | DualEncoder) -> str:
    """What scores mean, and what stands before the texts."""
    if isinstance(model, PairRanker):
        token_words = " of the last token" if isinstance(model, DecoderRanker) else ""
        text = f"Scores are logits{token_words}: higher is better, and they compare documents of one query."
        if not isinstance(model.reads, TemplatedPairs):
            if model.reads.windows is None:
                text += " The document is cut, the query is not."
            prompt = model.reads.queries.prompt
            return f"{text} Before each query: `{prompt}`." if prompt else text
        text += " The chat template makes the text of a message of the role `query` and one of the role `document`"
        if not model.template.reads_instructions:
            return f"{text}."
        return f"{text}; a message of the role `system` takes the place of the instruction, {model.template.instruction!r}."
    similarity = model.similarity.name.replace("_", " ")
    text = f"Embeddings of {model.dim} dimensions, compared by {similarity}."
    if model.reads.queries.prompt:
        text += f" Before each query: `{model.reads.queries.prompt}`."
    if model.reads.docs.prompt:
        text += f" Before each document: `{model.reads.docs.prompt}`."
    return text


def reading_note(to: str, model: PairRanker | DualEncoder) -> str:
    """What of a template and of windows whoever uses a folder must do: nothing in the folder does
    it. Empty where that is nothing.
    """
    notes = []
    windows = model.reads.windows
    if windows is not None:
        notes.append(
            f"Long documents are read in windows of {windows.size} tokens, one every {windows.stride}, and the {windows.score} of their scores counts. `ltr.load` does so; {to} cuts a document: give it each window as a document."
        )
    notes.append(_template_note(to, model))
    return " ".join(filter(None, notes))


def _template_note(to: str, model: PairRanker | DualEncoder) -> str:
    reads = model.reads
    template = reads.template
    if template is None:
        return ""
    notes = []
    if is_rendered_by_caller(to, reads):
        query = template.query.replace("{instruction}", template.instruction)
        notes.append(
            f"No prompt of {to} says its template: put texts into it before, `{query}` and `{template.document}`."
        )
    budgets = {
        "instructions": template.instruction_tokens,
        "queries": template.query_tokens,
        "documents": template.document_tokens,
    }
    cuts = [f"{name} to {n} tokens" for name, n in budgets.items() if n is not None]
    if cuts:
        notes.append(f"Cut before: {', '.join(cuts)}.")
    if isinstance(reads, TemplatedPairs) and not reads.cuts_the_end:
        notes.append(
            f"Cut long documents before: of more than {reads.max_length} tokens {to} leaves out others than those of the document."
        )
    return " ".join(notes)


def _training(config: dict[str, Any], metrics: dict[str, Any]) -> str:
    """The options of a run that matter most, and what its training took."""
    model = config["model"]
    data = config["data"].get("init_args", {})
    ranker = model["ranker"] if isinstance(model["ranker"], dict) else {}
    backbone = (ranker.get("init_args") or {}).get("backbone")
    labels = data["labels"] if isinstance(data.get("labels"), dict) else {}
    fit = metrics.get("fit", {})
    trainer = config["trainer"]
    rows = {
        "data": ", ".join(map(_published, paths_of(data.get("path")))) or None,
        "start": _published(config.get("init_from") or backbone),
        "negatives": data.get("negatives"),
        "negatives per query": data.get("negatives_per_query"),
        "relevant from": data.get("relevant_from"),
        "labels": labels_in_words(labels.get("scores")),
        "labels divided by": labels.get("divide_by"),
        "loss": _class_with_options(model.get("loss")),
        "margin": _class_with_options(model.get("margin")),
        "in-batch": _class_with_options(model.get("in_batch")),
        "learning rate": model.get("lr"),
        "seed": config.get("seed_everything"),
        # A plugin may have said another one.
        "precision": None if trainer.get("plugins") else trainer["precision"],
        "steps": fit.get("steps"),
        "time of training": duration(fit["seconds"]) if "seconds" in fit else None,
        "machine": metrics.get("test", {}).get("made", {}).get("machine"),
    }
    lines = ["## Training", "", "| | |", "| --- | --- |"]
    for name, value in rows.items():
        if value is not None:
            lines.append(f"| {name} | {value} |")
    lines.append("")
    lines.append("`config.yaml` of the run has every option.")
    return "\n".join(lines)


def _published(name: Any) -> Any:
    """A path or a name as others may read it: of a path on this machine, its last part."""
    if isinstance(name, str) and (Path(name).is_absolute() or ".." in Path(name).parts):
        return Path(name).name
    return name


def _class_with_options(part: Any) -> str | None:
    """A class with its options, of a part of a configuration."""
    if not isinstance(part, dict):
        return part
    options = []
    for name, value in (part.get("init_args") or {}).items():
        if value is not None:
            options.append(f"{name} {value}")
    if not options:
        return f"{part.get('class_path')}"
    return f"{part.get('class_path')} ({', '.join(options)})"


def _weights(source: Path, run: RunFolder) -> str:
    """The file of the weights that a source of a run names, without its folder."""
    if source.is_file():
        return source.name
    has_last_alone = run.last.is_file() and not run.best.is_file()
    return (run.last if has_last_alone else run.best).name


def _tested(run: RunFolder, weights: str) -> Groups | None:
    """The test of a run, by itself; None where these weights were not tested."""
    if read_metrics(run.metrics).get("test") is None or not run.per_query.is_file():
        return None
    tested = read_run(run.path)
    if tested.weights != weights:
        return None
    # read_experiments wants all folds of a cross-validation; here a single one may be an experiment.
    return grouped([Experiment(run.path.name, [tested])])


def _results(folder: Path, tested: Groups | None) -> str:
    """The test metrics of this run with intervals, and those of the other seeds beside it."""
    if tested is None:
        return "These weights were not tested."
    seeds_of_groups = tested.experiments  # or this run with the seeds beside it
    if folder.name.startswith("seed="):
        with suppress(InputError, ValueError):  # others were not tested, or have other options
            seeds_of_groups = grouped(read_experiments([str(folder.parent)])).experiments
    lines = ["## Results", ""]
    for name, (on_group,) in tested.experiments.items():
        if tested.by == "set":
            lines += [f"### {name}", ""]
        lines += _result_lines(on_group, seeds_of_groups[name][0])
        lines.append("")
    return "\n".join(lines[:-1])


def _result_lines(alone: Experiment, with_seeds: Experiment) -> list[str]:
    """The test metrics on one collection, of a run alone and with the seeds beside it."""
    test = alone.runs[0].report
    results = []
    without_values = []
    for metric in test["conventions"]:
        try:
            results.append(group_result(metric, [alone]))
        except InputError:  # its files are read by now: only queries can be missing
            without_values.append(metric)
    if not results:
        return ["It was tested on fewer than two queries, too few for an interval."]
    lines = [
        "| metric | this model | 95 % interval over queries | all seeds (number) | counted |",
        "| --- " * 5 + "|",
    ]
    for result in results:
        lines.append(_metric_row(result, with_seeds))
    candidates = f"Candidates: {test.get('candidates', 'its own')}"
    if test.get("depth") is not None:
        candidates += f", {test['depth']} deep"
    n_queries = max(result.n_queries for result in results)
    measured = f"{n_queries} test queries. {candidates}."
    for result in results:
        if result.n_queries < n_queries:
            measured += f" {result.metric} is of {result.n_queries} of them."
    measured += f" {test['made']['date']}, ltr {test['made']['ltr']}."
    if without_values:
        measured += f" Fewer than two queries have a value of {', '.join(without_values)}."
    return [*lines, "", measured]


def _metric_row(result: GroupResult, with_seeds: Experiment) -> str:
    """A row of the table of results, of a run alone and with the seeds beside it."""
    mean = result.rows[0].estimate
    low, high = interval_of_mean(mean, result.metric)
    all_seeds = ""
    deviation = group_result(result.metric, [with_seeds]).rows[0].deviation
    if deviation is not None:  # there are several
        means = with_seeds.means(result.metric)
        all_seeds = f"{sum(means) / len(means):.4f} ± {deviation:.4f} ({len(means)})"
    return f"| {result.metric} | {mean.mean:.4f} | {low:.4f} to {high:.4f} | {all_seeds} | {result.convention} |"
