"""Rankings that lie in files, whoever made them: read, and measured by judgements."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from glob import glob
from pathlib import Path
from typing import Any

import numpy as np

from ltr.checkpoint import RESULTS
from ltr.compare.experiment import (
    SAME_DATA,
    Experiment,
    check_seeds,
    experiment_folder,
    run_folders,
    short_names,
)
from ltr.compare.named_judgements import CollectionIds, Judgements
from ltr.compare.query_values import values_by_query
from ltr.compare.tested_run import Run, read_run
from ltr.data.files import digest_of_arrays
from ltr.data.forms import ENDINGS_OF_ROWS
from ltr.data.judged_lists import lists_of_ranking
from ltr.data.lines import IdTable
from ltr.data.progress import reading
from ltr.data.query_lists import QueryLists
from ltr.errors import InputError
from ltr.metrics import RankingMetric
from ltr.run.provenance import made_by

METRICS = ["nDCG@10", "RR@10", "AP"]  # where none is named

RUN_ENDINGS = {".trec", ".run"}
# Of names of files, what says their form.
ENDINGS = RUN_ENDINGS | {".txt", ".gz", ".zst", ".bz2", ".xz", *ENDINGS_OF_ROWS, ".tsv"}

TEXTS_TO_THE_LETTER = (
    "a text must be that of the data to the letter, with its white space; or name the ids"
)


@dataclass(frozen=True)
class RankedFile:
    """A ranking that lies in a file.

    Attributes:
        name: of the experiment that it belongs to.
        seed: of the experiment.
        file: where it lies.
        lists: the documents of each judged query, in the order of trec_eval, with their scores.
        notes: what must be told of it.
        run: that it is the test of; None for a file of others.
    """

    name: str
    seed: int
    file: Path
    lists: QueryLists
    notes: list[str]
    run: Run | None = None


def is_ranking(word: str) -> bool:
    """Whether a word of the command line names files of rankings: ``runs/bm25.trec``, a pattern that
    matches such files, or either behind ``name=``.
    """
    name, path = _name_and_path(word)
    return any(map(_is_file_of_ranking, _matches(path, is_named=name is not None)))


def read_rankings(words: Iterable[str], judgements: Judgements) -> list[RankedFile]:
    """The rankings that words name, in their order.

    Args:
        words: files; run folders, or folders of these, whose ``test.run`` is read; patterns of either.
            With a name before it (``bm25=runs/bm25.*.trec``) all that a word names are the seeds of
            one experiment; without, each file is an experiment.
        judgements: the queries whose documents are read.

    Raises:
        InputError: for a word that names nothing, a line that can't be read, a pair again, a ranking
            of no judged query, a file that is named twice, or a run that was tested on other texts.
    """
    found: list[tuple[str | None, Path, Run | None]] = []
    for word in words:
        name, path = _name_and_path(word)
        matches = _matches(path, is_named=name is not None)
        files = [match for match in matches if _is_file_of_ranking(match)]
        found += [(name, file, None) for file in files]
        folders = [match for match in matches if match not in files]
        for place in map(str, folders) if matches else [path]:
            for folder in run_folders(place):
                tested = _tested_run(folder, judgements)
                found.append((name, tested.ranking, tested))
    seen: set[Path] = set()
    for _, file, _ in found:
        if file.resolve() in seen:
            raise InputError(f"{file} must be named once, and is twice; leave one out")
        seen.add(file.resolve())
    names = _names_of(found)
    n_seeds: dict[str, int] = {}
    rankings = []
    for name, (_, file, run) in zip(names, found, strict=True):
        place_of_seed = n_seeds.setdefault(name, 0)
        n_seeds[name] += 1
        seed = place_of_seed if run is None else run.seed
        lists, notes = _read(file, judgements)
        rankings.append(RankedFile(name, seed, file, lists, notes, run))
    return rankings


def _tested_run(folder: Path, judgements: Judgements) -> Run:
    """A run whose own test has left a ranking of what is judged."""
    run = read_run(folder, split=judgements.split)
    if run.fold is not None:
        raise InputError(
            f"{folder} is a fold of a cross-validation, whose folds have no ranking in common; compare such runs without files"
        )
    if not run.ranking.is_file():
        raise InputError(f"{run.ranking}: there is no such file; test the run again")
    if run.sources:
        raise InputError(
            f"{folder} was tested on several sources, {', '.join(run.sources)}; measure each (ltr test {folder} --data.path A B)"
        )
    for part in ("queries", "documents"):
        tested_on = run.report["evaluated"].get(part)
        judged = judgements.digests.get(part)
        # Behind the digest of the texts may be one of an instruction.
        if tested_on and judged and tested_on.split()[0] != judged:
            raise InputError(
                f"{folder} was tested on other {SAME_DATA[part]} than those of {judgements.source}; name the data that it was tested on"
            )
    return run


def _name_and_path(word: str) -> tuple[str | None, str]:
    """The name before a path, and the path. ``seed=0`` is a folder, and what is there is a path."""
    name, separator, path = word.partition("=")
    is_named = separator and name and path and "/" not in name and name not in ("seed", "fold")
    if not is_named or Path(word).exists() or glob(word, recursive=True):
        return None, word
    return name, path


def _matches(path: str, is_named: bool) -> list[Path]:
    """What is called so, or else what the pattern matches. Beside folders, a pattern without a name may
    match other files than rankings, so of the files those alone whose names say so count.
    """
    if Path(path).exists():
        return [Path(path)]
    matches = [Path(match) for match in sorted(glob(path, recursive=True))]
    if is_named or not any(match.is_dir() for match in matches):
        return matches
    return [match for match in matches if match.is_dir() or match.suffix in RUN_ENDINGS]


def _is_file_of_ranking(path: Path) -> bool:
    """Whether it is a file, and none that stands for its run."""
    return path.is_file() and path.name != RESULTS


def _names_of(found: Sequence[tuple[str | None, Path, Run | None]]) -> list[str]:
    """The names of the experiments: the given ones, else short ones of files and of experiments."""
    paths = []
    for name, file, run in found:
        if name is None:
            paths.append(_without_endings(file) if run is None else experiment_folder(run.folder))
    short = iter(short_names(paths))
    names = [next(short) if name is None else name for name, _, _ in found]
    # A file alone is an experiment: it must not become a seed of another one.
    given = {name for name, _, _ in found}
    for name, (word, file, run) in zip(names, found, strict=True):
        if word is None and (name in given or (run is None and names.count(name) > 1)):
            raise InputError(
                f"{file} would be called {name}, and so would another ranking; name each, as in {Path(name).name}1={file}"
            )
    return names


def _without_endings(file: Path) -> str:
    """The absolute path of a file, without what its name says of its form."""
    file = file.absolute()
    while file.suffix.lower() in ENDINGS:
        file = file.with_suffix("")
    return str(file)


def _read(file: Path, judgements: Judgements) -> tuple[QueryLists, list[str]]:
    """The documents of the judged queries of a file, best first, and what must be told of them."""
    n_judged = len(judgements.lists.query_rows)
    with reading([file]):
        lists = lists_of_ranking(file, judgements.queries, judgements.docs)
    known = lists.of_queries(judgements.lists.query_rows)
    n_own = 0
    if judgements.own_docs is not None:
        is_own = are_pairs_of(known, judgements.own_docs)
        n_own = int(is_own.sum())
        known = known.where(~is_own)
    n_unknown = len(lists.query_rows) - len(known.query_rows)
    if not len(known.query_rows):
        raise InputError(
            f"{file}: at least one query must be judged in {judgements.source}, got {len(lists.query_rows)} others; {_other_names(judgements.queries, lists.query_rows)}"
        )
    if not np.isin(known.doc_rows, judgements.lists.doc_rows).any():
        raise InputError(
            f"{file}: at least one document must be judged in {judgements.source}, got none of {len(known.doc_rows):,}; {_other_names(judgements.docs, known.doc_rows)}"
        )
    notes = []
    n_missing = n_judged - len(known.query_rows)
    if n_missing:
        notes.append(
            f"{n_missing:,} of {n_judged:,} judged queries found nothing, as they are missing"
        )
    if n_unknown:
        notes.append(f"queries without judgements are left out: {n_unknown:,}")
    if n_own:
        notes.append(f"queries that find themselves, which is left out: {n_own:,}")
    if isinstance(judgements.docs, CollectionIds):
        doc_rows = np.unique(known.doc_rows)
        absent = doc_rows[~judgements.docs.are_there(doc_rows)]
        if len(absent):
            hint = f"; {TEXTS_TO_THE_LETTER}" if are_texts(judgements.docs, absent) else ""
            notes.append(f"documents that are not in {judgements.source}: {len(absent):,}{hint}")
    return known, notes


def _other_names(table: IdTable, rows: np.ndarray) -> str:
    """What names that are not judged may be."""
    return TEXTS_TO_THE_LETTER if are_texts(table, rows) else "these may be ids of other data"


def are_texts(table: IdTable, rows: np.ndarray) -> bool:
    """Whether one of some names has white space, as texts have."""
    return any(len(table.ids[row].split()) > 1 for row in rows.tolist())


def are_pairs_of(lists: QueryLists, others: QueryLists) -> np.ndarray:
    """``[D]`` bool: of each document of ``lists`` whether its query has it in ``others``, too."""
    n_docs = 1 + max(lists.doc_rows.max(initial=0), others.doc_rows.max(initial=0))
    pairs = lists.query_of_doc * n_docs + lists.doc_rows
    return np.isin(pairs, others.query_of_doc * n_docs + others.doc_rows)


def measured_experiments(
    rankings: Sequence[RankedFile], judgements: Judgements, metrics: Sequence[RankingMetric]
) -> list[Experiment]:
    """The rankings as experiments, those of one name together: each a run that was tested.

    Args:
        rankings: to be measured.
        judgements: to measure them by. A document that nobody judged counts as irrelevant.
        metrics: what is measured.
    """
    runs_of_name: dict[str, list[Run]] = {}
    for ranking in rankings:
        runs_of_name.setdefault(ranking.name, []).append(_as_run(ranking, judgements, metrics))
    experiments = []
    for name, runs in runs_of_name.items():
        seeds = [run.seed for run in runs]
        for run in runs:
            if seeds.count(run.seed) > 1:
                raise InputError(
                    f"{name}: seeds must differ, got {run.seed} of {run.folder} and of another; name one of them"
                )
        experiments.append(Experiment(name, sorted(runs, key=lambda run: run.seed)))
        check_seeds([run for run in experiments[-1].runs if run.file is None])
    return experiments


def check_same_documents(rankings: Sequence[RankedFile], metrics: Sequence[RankingMetric]) -> None:
    """Raise an InputError for a metric of the list alone, where rankings do not have the same
    documents: a shorter list would be better.
    """
    digests = {_digest_of_documents(ranking.lists) for ranking in rankings}
    for metric in metrics:
        if len(digests) > 1 and not metric.measure.by_rank:
            raise InputError(
                f"{metric.name} looks at the order of a list, whatever it lacks, so all rankings must have the same documents, and they do not; name another metric",
                option="metric",
            )


def _as_run(ranking: RankedFile, judgements: Judgements, metrics: Sequence[RankingMetric]) -> Run:
    query_ids = judgements.query_ids
    by_query: dict[str, dict[str, float]] = {}
    report: dict[str, Any] = {}
    for metric, values in zip(
        metrics, values_by_query(ranking.lists, judgements.lists, metrics), strict=True
    ):
        counted = values[~np.isnan(values)]
        report[metric.name] = float(counted.mean()) if len(counted) else None
        of_six_digits = values.round(6)  # as a run's own
        by_query[metric.name] = dict(zip(query_ids, of_six_digits.tolist(), strict=True))
    report |= {
        "conventions": {metric.name: metric.convention for metric in metrics},
        "lower_is_better": [metric.name for metric in metrics if metric.measure.lower_is_better],
        "evaluated": judgements.digests | {"candidates": _digest_of_documents(ranking.lists)},
        "queries": len(query_ids),
        "candidates": "those of its file",
        "path": judgements.path,
        "checkpoint": None,
        "made": made_by(),
    }
    split = judgements.split
    if ranking.run is None:
        results = {"test": report}
        return Run(ranking.file, ranking.seed, {}, results, by_query, split, ranking.file)
    report["checkpoint"] = ranking.run.report["checkpoint"]
    results = ranking.run.results | {"test": report}
    return replace(ranking.run, results=results, by_query=by_query)


def _digest_of_documents(lists: QueryLists) -> str:
    """Of which documents are ranked, whatever their order."""
    order = np.lexsort((lists.doc_rows, lists.query_of_doc))
    return digest_of_arrays(lists.query_rows, lists.offsets, lists.doc_rows[order])
