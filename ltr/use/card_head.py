"""The head of a model card: what the hub reads of an exported ranker, in YAML. What nobody knows or
says, such as the licence, is left out.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from ltr.compare.query_groups import Groups
from ltr.compare.tested_run import Run
from ltr.models import DecoderRanker, DualEncoder
from ltr.models.encoder.loading.model_folder import hub_id_and_commit
from ltr.models.encoder.text_encoder import encoders_of
from ltr.models.pair_ranker import PairRanker

HUB_DATA = "datasets:"  # what the path of a data set of the hub begins with
TASK = "text-ranking"  # what is measured, of a dual encoder too
NOT_OF_HUB = "unknown"  # the type of a data set that the hub doesn't know


def card_head(
    to: str,
    model: PairRanker | DualEncoder,
    files: Sequence[str],
    *,
    config: dict[str, Any] | None,
    tested: Groups | None,
    name: str,
    license: str | None = None,
    language: Sequence[str] = (),
) -> str:
    """The head, between its two lines of dashes.

    Args:
        to: the form of the folder, see :func:`ltr.use.export.export`.
        model: the ranker.
        files: beside the card.
        config: of the run; None for a model of no run.
        tested: the run's results; None where it was not tested.
        name: of the model, for its results.
        license: as the hub calls it; None: unknown.
        language: of the texts, as codes; empty: unknown.
    """
    is_dual = isinstance(model, DualEncoder)
    kind = kind_of(model).replace(" ", "-")
    metadata = ModelCardData(
        base_model=_base_models(model, config),
        datasets=_hub_data_sets(config),
        eval_results=None if tested is None else _eval_results(tested, config),
        language=list(language) or None,
        library_name="peft" if to == "adapter" else to,
        license=license,
        model_name=None if tested is None else name,
        pipeline_tag="sentence-similarity" if is_dual else TASK,
        tags=[kind, "learning-to-rank", "ltr"],
        ltr_files=list(files),
    )
    return f"---\n{metadata.to_yaml()}\n---"


def kind_of(model: PairRanker | DualEncoder) -> str:
    """What a ranker is, in words."""
    if isinstance(model, DualEncoder):
        return "dual encoder"
    return "decoder ranker" if isinstance(model, DecoderRanker) else "cross-encoder"


def paths_of(path: Any) -> list[str]:
    """Where data lies, one path for each source, by ``data.path`` of a configuration."""
    paths = []
    for source in path if isinstance(path, list) else [path]:
        if source is not None:
            paths.append(str(source["path"] if isinstance(source, dict) else source))
    return paths


def _base_models(
    model: PairRanker | DualEncoder, config: dict[str, Any] | None
) -> str | list[str] | None:
    """The models of the hub that training began with; None where it began with another run, or with
    models of folders and packages, which the hub doesn't know.
    """
    if config is not None and config.get("init_from"):
        return None
    names = []
    for encoder in encoders_of(model):
        at_hub = hub_id_and_commit(encoder.model.name_or_path)
        if at_hub is not None and at_hub[0] and at_hub[0] not in names:
            names.append(at_hub[0])
    return names[0] if len(names) == 1 else names or None


def _hub_data_sets(config: dict[str, Any] | None) -> list[str] | None:
    """The data sets of the hub that a run was trained on; None where there are none."""
    names = []
    for path in _trained_on(config):
        if path.startswith(HUB_DATA):
            names.append(_hub_data_set(path)[0])
    return list(dict.fromkeys(names)) or None


def _trained_on(config: dict[str, Any] | None) -> list[str]:
    """Where the data of a run lies, one path for each source."""
    return [] if config is None else paths_of(config["data"].get("init_args", {}).get("path"))


def _hub_data_set(path: str) -> tuple[str, str | None]:
    """The name and the configuration of ``datasets:ORG/NAME:CONFIG``."""
    name, _, configuration = path.removeprefix(HUB_DATA).partition(":")
    return name, configuration or None


def _eval_results(tested: Groups, config: dict[str, Any] | None) -> list[EvalResult] | None:
    """Each measure of the test on each data set, with how it is counted."""
    results = []
    for number, (group, (experiment,)) in enumerate(tested.experiments.items()):
        run = experiment.runs[0]
        # A test may have been of other data than the run was trained on.
        paths = paths_of(run.report["path"]) if "path" in run.report else _trained_on(config)
        path = paths[number] if len(paths) == len(tested.experiments) else group
        type_ = NOT_OF_HUB
        data_name = Path(path).name
        # Results are grouped by type and configuration: those of two sources must differ in one.
        configuration = group if tested.by == "set" else None
        if path.startswith(HUB_DATA):
            type_, configuration = _hub_data_set(path)
            data_name = type_
        for metric, convention in run.report["conventions"].items():
            value = run.report[metric]
            if value is None:  # no query has one
                continue
            results.append(
                EvalResult(
                    task_type=TASK,
                    dataset_type=type_,
                    dataset_name=data_name,
                    dataset_config=configuration,
                    dataset_split=run.report.get("split", "test"),
                    dataset_args=_ranked(run),
                    metric_type=metric.lower(),
                    metric_name=metric,
                    metric_value=value,
                    metric_args=_counted(run, metric, convention),
                )
            )
    return results or None


def _ranked(run: Run) -> dict[str, Any] | None:
    """Which documents were ranked for each query, and which part of a cross-validation was tested;
    None where the report says nothing of it.
    """
    named = {name: run.report.get(name) for name in ("candidates", "depth", "fold")}
    return {name: value for name, value in named.items() if value is not None} or None


def _counted(run: Run, metric: str, convention: str) -> dict[str, Any]:
    """How a measure is counted, and of how many queries it is the mean."""
    values = run.by_query[metric].values()
    counted: dict[str, Any] = {
        "convention": convention,
        "queries": sum(not math.isnan(value) for value in values),
    }
    if metric in run.report["lower_is_better"]:
        counted["lower_is_better"] = True
    return counted
