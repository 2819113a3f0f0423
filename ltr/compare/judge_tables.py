"""What the labels of a machine add to a comparison of rankings, as tables and notes."""

import math
from collections.abc import Sequence
from itertools import product

import numpy as np
from scipy import stats

from ltr.compare.experiment import Experiment
from ltr.compare.judge_agreement import agreement_line, bias_table, judged_pairs
from ltr.compare.machine_labels import (
    FEWEST,
    PoweredDifference,
    Values,
    powered_difference,
)
from ltr.compare.named_judgements import Judgements, judgements_of_judge
from ltr.compare.ranges import interval_of_difference
from ltr.compare.ranked_files import RankedFile, measured_experiments, read_rankings
from ltr.compare.statistics import Estimate, estimate, holm
from ltr.compare.tables import Table, p_value
from ltr.data.collection import open_collection, with_split
from ltr.data.judge_labels import open_judge
from ltr.errors import InputError
from ltr.metrics import RankingMetric

MORE = 100  # labels of people whose worth is foretold
FEW = 50  # below, intervals are slightly too short (docs/results_judges.md)
SURE = 0.001  # of a test that rankings lack queries in other shares


class JudgedRankings:
    """Rankings that people have judged at some queries and a machine at these and others.

    Args:
        words: that name the rankings, see :func:`ltr.compare.ranked_files.read_rankings`.
        human: the judgements of people, of a split of a collection.
        name: of the machine.

    Raises:
        InputError: if the machine has no labels, or rankings lack the queries that it judged.
    """

    def __init__(self, words: Sequence[str], human: Judgements, name: str) -> None:
        collection = with_split(open_collection(str(human.path)), human.split)
        self.corpus = collection.corpus
        self.labels = open_judge(collection, name, human.split)
        self.human = human
        self.machine = judgements_of_judge(self.labels, collection, human.split)
        self.rankings = read_rankings(words, self.machine)
        of_people = set(human.query_ids)
        ranked = [_ranked_ids(ranking, self.machine) for ranking in self.rankings]
        self.both_ids: list[str] = []
        self.other_ids: list[str] = []
        self.n_unranked = 0
        # Both kinds of queries alike: the one must be a sample of the other.
        for query in self.machine.query_ids:
            if not any(query in ids for ids in ranked):
                self.n_unranked += 1
            elif query in of_people:
                self.both_ids.append(query)
            else:
                self.other_ids.append(query)
        self.missing: dict[str, tuple[int, int]] = {}  # queries of both kinds that a file lacks
        self._check(ranked)

    def _check(self, ranked: Sequence[set[str]]) -> None:
        """Check that there are queries of both kinds, and that rankings have both alike."""
        name = self.labels.name
        if len(self.both_ids) < FEWEST:
            raise InputError(
                f"{FEWEST} queries or more must be judged by people and by {name}, got {len(self.both_ids)} in these rankings; let {name} label what people have judged, too, and rank it",
                option="judge",
            )
        if len(self.other_ids) < 2:
            alone = {*self.machine.query_ids} - {*self.human.query_ids}
            raise InputError(
                f"queries that {name} alone has labelled must be ranked, and {len(alone) - len(self.other_ids)} of {len(alone)} are in no ranking; rank them, too (run folders: import with --mixed_split NAME, and ltr test RUN --split NAME)",
                option="judge",
            )
        for ranking, ids in zip(self.rankings, ranked, strict=True):
            n_both = sum(query in ids for query in self.both_ids)
            n_others = sum(query in ids for query in self.other_ids)
            n_missing = (len(self.both_ids) - n_both, len(self.other_ids) - n_others)
            if any(n_missing):
                self.missing[str(ranking.file)] = n_missing
            table = [
                [n_both, len(self.both_ids) - n_both],
                [n_others, len(self.other_ids) - n_others],
            ]
            lacks_a_kind = not n_both or not n_others
            if lacks_a_kind or stats.fisher_exact(table).pvalue < SURE:
                raise InputError(
                    f"{ranking.file}: a ranking must have the queries of people and of {name} alike, got {n_both} of {len(self.both_ids)} and {n_others} of {len(self.other_ids)}; rank all of them",
                    option="judge",
                )


def judge_tables(
    judged: JudgedRankings,
    rankings: Sequence[RankedFile],
    metric_names: Sequence[str],
    pairs: Sequence[tuple[str, str]],
    alpha: float,
) -> tuple[list[Table], list[str]]:
    """The differences with the labels of a machine beside those of people alone, where the machine is
    biased, and what must be told of both.

    A query counts 0 where nothing relevant is known of it, by people or by the machine: which queries
    have something relevant is not known of those that people have not judged.

    Args:
        judged: the rankings with what the machine says.
        rankings: the same with what people say.
        metric_names: to measure by.
        pairs: names of an experiment and of its baseline.
        alpha: the level of the family of comparisons.
    """
    measured = {}
    for metric in metric_names:
        measure = [RankingMetric(metric, "zero", judged.human.max_grade)]
        by_people = measured_experiments(rankings, judged.human, measure)
        measure = [RankingMetric(metric, "zero", judged.machine.max_grade)]
        by_machine = measured_experiments(judged.rankings, judged.machine, measure)
        measured[metric] = (by_people, by_machine)
    found = {}
    for metric, (name, baseline) in product(metric_names, pairs):
        found[metric, name, baseline] = _powered(judged, *measured[metric], metric, name, baseline)
    tables = []
    if found:
        tables.append(_table_of_differences(judged, found, measured, alpha))
    tables.append(_table_of_biases(judged, measured))
    both = judged_pairs(judged.human, judged.machine, judged.rankings)
    if len(both.docs) >= 2:
        rows = judged.corpus.rows(both.docs)
        title = f"{judged.labels.name} and people: documents that both have judged"
        lengths = judged.corpus.texts.lengths(rows)
        tables.append(bias_table(title, both, lengths))
    agreement = agreement_line(both, judged.labels.are_graded)
    return tables, [
        *_notes(judged, found),
        f"{judged.labels.origin}: {agreement}",
    ]


def _powered(
    judged: JudgedRankings,
    by_people: Sequence[Experiment],
    by_machine: Sequence[Experiment],
    metric: str,
    *names: str,
) -> PoweredDifference:
    human = {each.name: each for each in by_people}
    machine = {each.name: each for each in by_machine}

    def values(experiments: dict[str, Experiment], query_ids: list[str]) -> Values:
        first, second = (experiments[name].values(metric, query_ids) for name in names)
        return first, second

    return powered_difference(
        values(human, judged.both_ids),
        values(machine, judged.both_ids),
        values(machine, judged.other_ids),
    )


Found = dict[tuple[str, str, str], PoweredDifference]
Measured = dict[str, tuple[list[Experiment], list[Experiment]]]


def _table_of_differences(
    judged: JudgedRankings, found: Found, measured: Measured, alpha: float
) -> Table:
    """A row for each comparison: people alone, both, and what more labels would buy."""
    corrected = holm([each.both.p for each in found.values()])
    rows = []
    for ((metric, name, baseline), each), p in zip(found.items(), corrected, strict=True):
        report = measured[metric][0][0].runs[0].report
        gain = -each.both.mean if metric in report["lower_is_better"] else each.both.mean
        verdict = "not shown" if p > alpha else "better" if gain > 0 else "worse"
        rows.append(
            [
                f"{metric}: {name} − {baseline}",
                verdict,
                *_cells(each.humans, metric),
                *_cells(each.both, metric),
                p_value(each.both.p),
                p_value(p),
                f"{each.relative_width:.2f}",
                "" if math.isnan(each.correlation) else f"{each.correlation:.2f}",
                f"{_half(each.both):.4f}",
                f"{_half(each.planned(MORE)):.4f}",
            ]
        )
    title = f"people at {len(judged.both_ids):,} queries, {judged.labels.name} at these and {len(judged.other_ids):,} others; level {alpha:g}"
    header = [
        "comparison",
        "verdict",
        "people",
        "their 95 % interval",
        "with the judge",
        "its 95 % interval",
        "p",
        "p, Holm",
        "width to people's",
        "correlation",
        "±",
        f"± with {MORE} more by people",
    ]
    return Table(title, header, rows)


def _cells(difference: Estimate, metric: str) -> list[str]:
    low, high = interval_of_difference(difference, metric)
    return [f"{difference.mean:+.4f}", f"{low:+.4f} to {high:+.4f}"]


def _half(difference: Estimate) -> float:
    low, high = difference.interval()
    return (high - low) / 2


def _table_of_biases(judged: JudgedRankings, measured: Measured) -> Table:
    """A row for each metric and ranking: what people say of it and what the machine does, at the
    queries that both have judged.
    """
    has_label = _judged_share(judged.rankings, judged.machine)
    rows = []
    for metric, (by_people, by_machine) in measured.items():
        for human, machine in zip(by_people, by_machine, strict=True):
            values = human.values(metric, judged.both_ids).mean(axis=0)
            of_machine = machine.values(metric, judged.both_ids).mean(axis=0)
            bias = estimate((of_machine - values)[None])
            rows.append(
                [
                    f"{metric}: {human.name}",
                    f"{values.mean():.4f}",
                    f"{of_machine.mean():.4f}",
                    *_cells(bias, metric),
                    f"{machine.values(metric, judged.other_ids).mean():.4f}",
                    f"{1 - has_label[human.name]:.1%}",
                ]
            )
    title = f"{judged.labels.name}'s bias by ranking, at the queries that people have judged"
    header = ["ranking", "people", "judge", "bias", "95 % interval"]
    header += ["judge elsewhere", "no label of the first 10"]
    return Table(title, header, rows)


def _judged_share(rankings: Sequence[RankedFile], machine: Judgements) -> dict[str, float]:
    """By experiment, the mean share of documents with a label among the first ten."""
    name = "Judged@10"
    experiments = measured_experiments(rankings, machine, [RankingMetric(name, "zero")])
    return {each.name: float(np.mean(each.means(name))) for each in experiments}


def _ranked_ids(ranking: RankedFile, judgements: Judgements) -> set[str]:
    return {judgements.queries.ids[row] for row in ranking.lists.query_rows}


def _notes(judged: JudgedRankings, found: Found) -> list[str]:
    name = judged.labels.name
    notes = [
        f"with the judge: prediction-powered inference, unbiased whatever the errors of {name}, if people have judged a random sample of the queries; a query without a relevant document counts 0, and a document without a label is irrelevant",
    ]
    n_people = len({*judged.human.query_ids} - {*judged.machine.query_ids})
    if n_people:
        notes.append(
            f"{n_people:,} queries that people have judged and {name} has not are left out beside the judge"
        )
    if judged.n_unranked:
        notes.append(
            f"{judged.n_unranked:,} queries that {name} has labelled are in no ranking, and left out beside the judge"
        )
    for file, (n_both, n_others) in judged.missing.items():
        notes.append(
            f"{file}: {n_both:,} of {len(judged.both_ids):,} queries of people and {n_others:,} of {len(judged.other_ids):,} others found nothing and count 0 beside the judge, as they are missing; if they were never ranked, the difference is wrong: rank them"
        )
    if any(len(each.both.n_seeds) < 2 for each in found.values()):
        notes.append("with the judge, of one seed: of these models alone")
    if len(judged.both_ids) < FEW:
        notes.append(
            f"people have judged fewer than {FEW} of these queries: intervals with the judge are slightly too short"
        )
    for (metric, first, second), each in found.items():
        if each.sample_p < 0.01:
            notes.append(
                f"{metric}: {first} − {second}: by {name}, the queries that people have judged differ from the others (p = {p_value(each.sample_p)}); they may be no random sample, and the interval with the judge may not hold"
            )
        if math.isnan(each.correlation):
            notes.append(
                f"{metric}: {first} − {second}: by people or by {name} no query differs from another, so {name} is not followed"
            )
        elif each.weight == 0:
            notes.append(
                f"{metric}: {first} − {second}: {name} does not agree with people, and is not followed"
            )
    notes += [f"{judged.machine.source}: {note}" for note in judged.machine.notes]
    return notes
