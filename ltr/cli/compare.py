"""``ltr compare``: is the difference of runs real?"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from ltr.compare import comparison, tables
from ltr.compare.comparison import MetricResult, full_name, pairs_with_baselines
from ltr.compare.csv_lines import as_csv
from ltr.compare.experiment import read_experiments, run_folders
from ltr.compare.gate import Answer, Gate, gate_answers
from ltr.compare.judge_tables import JudgedRankings, judge_tables
from ltr.compare.named_judgements import Judgements, named_judgements
from ltr.compare.query_groups import Groups, grouped
from ltr.compare.ranked_files import (
    METRICS,
    RankedFile,
    check_same_documents,
    is_ranking,
    measured_experiments,
    read_rankings,
)
from ltr.compare.table_formats import as_latex, as_markdown, print_tables
from ltr.compare.unjudged import unjudged_tables
from ltr.compare.wandb_runs import log_comparison
from ltr.data.console import say, table_console, without_controls
from ltr.data.outputs import check_file
from ltr.data.splits import split_named
from ltr.data.whole_files import write_whole
from ltr.errors import InputError
from ltr.metrics import RankingMetric
from ltr.run.data_sets import data_sets
from ltr.run.wandb_place import entity_and_project

WIDTH = 200  # letters of a line where no terminal says it


def compare(
    runs: list[str],
    *,
    metric: list[str] | None = None,
    baseline: list[str] | None = None,
    alpha: float = 0.05,
    plan: float | None = None,
    markdown: str | None = None,
    latex: str | None = None,
    csv: str | None = None,
    html: str | None = None,
    wandb: str | None = None,
    data: list[str] | None = None,
    qrels: str | None = None,
    split: list[str] | None = None,
    gate: list[str] | None = None,
    judge: str | None = None,
) -> None:
    """Compare experiments over queries and seeds: is the difference of runs real?

    Args:
        runs: Run folders, folders that hold seed=0, seed=1 …, rankings of others (a TREC run, JSON
            lines, CSV or Parquet of query, document and score), or glob patterns of any. NAME=PATTERN
            names an experiment, whose seeds are what matches. The first experiment is the baseline.
        metric: Metrics to test, all one family. None: the first that was measured; of rankings of
            others nDCG@10.
        baseline: Experiments that the others are compared with. None: the first.
        alpha: The chance of even one false difference in the family.
        plan: Also say how many queries would show this difference.
        markdown: Also write the tables to this file.
        latex: Also write the tables to this file.
        csv: Also write the tables to this file.
        html: Also write a page of tables, figures, and the queries that differ most, to this file.
        wandb: Also log that page, which has beginnings of queries and documents, and the tables, to
            this project of Weights & Biases: PROJECT or ENTITY/PROJECT.
        data: Data sets on which the runs were tested by ltr test RUN --data.path …, named as there,
            and their mean: paths, or suite:NAME. None: the runs' own data. With rankings of others,
            the data set whose judgements measure them, and the test.run of each run folder.
        qrels: Judgements that measure rankings of others, where there are no texts: a file.
        split: Splits on which the runs were tested by ltr test RUN --split …; of several, what changes
            from the first one to the others is told too. None: test.
        gate: What must hold of every other experiment, as 'nDCG@10 >= -0.01 of bm25'. Exit code 0 where
            that is shown, 1 where the opposite is, 3 where neither can be told.
        judge: A machine whose labels lie in the data set (ltr labels import): beside the difference by
            the judgements of people, that by both, over all queries that are ranked and labelled.
    """
    if plan is not None and not plan > 0:
        raise InputError(f"--plan must be a difference above 0, got {plan:g}")
    files = {"markdown": markdown, "latex": latex, "csv": csv, "html": html}
    check_files(files)
    if wandb is not None:
        entity_and_project(wandb)
    gates = [Gate.of(text) for text in gate or []]
    if gates and len(split or []) > 1:
        raise InputError(f"--gate is of one split, got {', '.join(split or [])}; name one")
    metrics = [*(metric or []), *(each.metric for each in gates)]
    baselines = [*(baseline or []), *(each.baseline for each in gates)]
    rankings: list[RankedFile] = []
    judgements: Judgements | None = None
    measures: list[RankingMetric] = []
    if judge is not None and (data is None or qrels is not None):
        raise InputError("--judge is of one data folder; name it with --data, without --qrels")
    if qrels is not None or judge is not None or any(map(is_ranking, runs)):
        if len(split or []) > 1 or len(data or []) > 1:
            raise InputError("rankings in files are of one data set and one split; name one")
        name_of_split = split_named(split[0], "split") if split else "test"
        judgements = named_judgements(data[0] if data else None, qrels, name_of_split)
        rankings = read_rankings(runs, judgements)
        measures = []
        for name in dict.fromkeys(metrics or _usual(rankings)):
            measures.append(RankingMetric(name, max_grade=judgements.max_grade))
        check_same_documents(rankings, measures)
        experiments = measured_experiments(rankings, judgements, measures)
        groups = Groups("split", {judgements.split: experiments})
    else:
        groups = _groups(runs, data, split, plan)
    names = [experiment.name for experiment in groups.first]
    pairs = pairs_with_baselines(names, baselines)
    results = comparison.compare(groups, metrics, pairs, alpha)
    gates = [replace(each, baseline=full_name(each.baseline, names)) for each in gates]
    answer, remarks = gate_answers(gates, results, alpha) if gates else (Answer.PASSES, [])
    more_tables = []
    if judgements is not None:
        remarks += [f"{judgements.source}: {note}" for note in judgements.notes]
        remarks += [f"{ranking.file}: {note}" for ranking in rankings for note in ranking.notes]
        more_tables = unjudged_tables(rankings, judgements, measures, pairs, alpha)
        if judge is not None:
            judged = JudgedRankings(runs, judgements, judge)
            check_same_documents(judged.rankings, measures)
            measured_by = [measure.name for measure in measures]
            of_judge, told = judge_tables(judged, rankings, measured_by, pairs, alpha)
            more_tables += of_judge
            remarks += told
            if any(each.look for result in results for each in result.main.comparisons):
                remarks.append(
                    "the table with the labels of a judge counts no looks: its p and its intervals are those of one"
                )
    print_and_write(results, alpha, plan, files, remarks, more_tables)
    if wandb is not None:
        from ltr.compare.page import page  # matplotlib takes a second to import

        notes = [*remarks, *tables.footnotes(results)]
        shown = [*tables.tables(results, alpha, plan), *more_tables]
        text = without_controls(page(results, shown, notes))
        place = log_comparison(wandb, names, text, as_csv(results))
        say(f"logged to {wandb} at Weights & Biases: {place}")
    if answer is not Answer.PASSES:
        raise SystemExit(int(answer))


def _usual(rankings: Sequence[RankedFile]) -> list[str]:
    """The metric that the first run folder was measured by first; else nDCG@10."""
    for ranking in rankings:
        if ranking.run is not None:
            return list(ranking.run.report["conventions"])[:1]
    return METRICS[:1]


def _groups(
    runs: Sequence[str], data: list[str] | None, split: list[str] | None, plan: float | None
) -> Groups:
    """The experiments on what :func:`compare` names, or on the sources of the runs."""
    splits = list(dict.fromkeys(split_named(name, "split") for name in split or ["test"]))
    if len(splits) > 1:
        if plan is not None or data is not None:
            other = "--plan" if plan is not None else "--data"
            raise InputError(f"{other} is of one split, got {', '.join(splits)}; name one of them")
        return Groups("split", {name: read_experiments(runs, split=name) for name in splits})
    if data is None:
        groups = grouped(read_experiments(runs, split=splits[0]))
        if groups.by == "set" and plan is not None:
            raise InputError(
                "--plan is of one data set, and these runs were tested on several; leave it out"
            )
        return groups
    if plan is not None:
        raise InputError("--plan is of one data set; leave out --data")
    sets = data_sets(data, "--data")
    if len(sets) < 2:
        for run in runs:
            run_folders(run)  # a file that is not there is no run
        raise InputError(f"--data must name two data sets or more, got {sets[0].name}")
    on_sets = {}
    for data_set in sets:
        on_sets[data_set.name] = read_experiments(runs, data_set, splits[0])
    return Groups("set", on_sets)


def check_files(files: Mapping[str, str | None]) -> None:
    """Raise an InputError for a file of :func:`print_and_write` that can't be written."""
    for form, file in files.items():
        check_file(file, f"--{form}")


def print_and_write(
    results: Sequence[MetricResult],
    alpha: float = 0.05,
    plan: float | None = None,
    files: Mapping[str, str | None] = MappingProxyType({}),
    remarks: Sequence[str] = (),
    more_tables: Sequence[tables.Table] = (),
) -> None:
    """Print a comparison, and write it to files.

    Args:
        results: of :func:`ltr.compare.comparison.compare`.
        alpha: the level of each family.
        plan: a difference to plan for.
        files: to write, by their form: ``markdown``, ``latex``, ``csv``, ``html``; None for none.
        remarks: lines to stand before the notes of the tables, such as what is not there.
        more_tables: to stand behind those of the results.
    """
    shown = [*tables.tables(results, alpha, plan), *more_tables]
    notes = [*remarks, *tables.footnotes(results)]

    def text_of(form: str) -> str:
        if form == "csv":  # for programs, which take names as they are
            return as_csv(results)
        if form == "markdown":
            text = as_markdown(shown, notes)
        elif form == "latex":
            text = as_latex(shown, notes)
        else:
            from ltr.compare.page import page  # matplotlib takes a second to import

            text = page(results, shown, notes)
        return without_controls(text)

    written = {form: file for form, file in files.items() if file is not None}
    for form, file in written.items():
        write_whole(Path(file), [text_of(form)])
    console = table_console(WIDTH)
    # After the files: where nobody reads on (… | head), printing raises.
    print_tables(shown, notes, console)
    for file in written.values():
        console.print(f"written to {file}", markup=False, highlight=False)
