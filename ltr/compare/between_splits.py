"""How the mean of an experiment changes from one split to another."""

from ltr.compare.group_result import queries_with_values, values_by_experiment
from ltr.compare.query_groups import Groups
from ltr.compare.statistics import Estimate, estimate_of_change
from ltr.errors import InputError


def check_weights(groups: Groups) -> None:
    """Check that each run was tested by the same weights on all splits."""
    for experiments in groups.experiments.values():
        for experiment, experiment_there in zip(groups.first, experiments, strict=True):
            for run, run_there in zip(experiment.runs, experiment_there.runs, strict=True):
                if run.weights != run_there.weights:
                    raise InputError(
                        f"{run.folder} must have been tested by the same weights on all splits, and was by {run.weights} on {run.split} and by {run_there.weights} on {run_there.split}; test it again: ltr test {run.folder} --split {run.split} {run_there.split}"
                    )


def changes_of_means(groups: Groups, metric: str) -> dict[str, dict[str, Estimate]]:
    """Of each split but the first, by the name of an experiment: how its mean changes from the first
    split to this one.
    """
    queries = queries_with_values(groups.first, metric)
    values = values_by_experiment(groups.first, metric)
    _, *other_splits = groups.experiments
    changes: dict[str, dict[str, Estimate]] = {}
    for split in other_splits:
        experiments = groups.experiments[split]
        queries_there = queries_with_values(experiments, metric)
        changes[split] = {}
        for name, values_there in values_by_experiment(experiments, metric).items():
            changes[split][name] = estimate_of_change(
                values[name], values_there, queries, queries_there
            )
    return changes
