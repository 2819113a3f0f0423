"""What the terminal says of a run at its end."""

from typing import Any

from ltr.data.progress import duration
from ltr.run.checkpoint_options import BestOptions, best_first
from ltr.run.metrics_file import read_metrics
from ltr.run.run_folder import RunFolder


def summary_line(folder: RunFolder, best: BestOptions) -> str:
    """What a training has reached."""
    results = read_metrics(folder.metrics)
    if "fit" not in results or not folder.last.is_file():
        return "nothing was trained"
    fit = results["fit"]
    text = f"trained {fit['steps']:,} steps in {duration(fit['seconds'])}"
    scores = folder.kept_scores(best.monitor)
    if not scores:
        return f"{text}; last.ckpt has the weights"
    step = best_first(scores)[0]
    text += f"; best {best.monitor} {best.sign * scores[step]:.4f} at step {step:,}"
    before = _monitored_before_training(results, best)
    if before is not None:
        text += f" ({before:.4f} before training)"
    return text


def ceiling_line(report: dict[str, Any]) -> str | None:
    """A line where the candidates of an evaluation don't hold all that is relevant; else None.

    Args:
        report: the part of ``metrics.json`` for this evaluation.
    """
    highest = report.get("ceiling", {})
    recall = highest.get("R", 1.0)
    if recall >= 1.0:
        return None
    limits = []
    for name, value in highest.items():
        if name != "R" and value < 1:
            limits.append(f"{name} {value:.4f}")
    text = f"the candidates hold {recall:.1%} of the relevant documents"
    if not limits:  # each metric can reach 1 with those that are there
        return text
    return f"{text}; no ranker of them can reach more than {', '.join(limits)}"


def made_worse_warning(folder: RunFolder, best: BestOptions) -> str | None:
    """A warning where the best weights of a training rank worse than those it started from; else
    None.
    """
    before = _monitored_before_training(read_metrics(folder.metrics), best)
    scores = folder.kept_scores(best.monitor)
    if before is None or not scores or max(scores.values()) >= best.sign * before:
        return None
    best_value = best.sign * max(scores.values())
    return (
        f"training made the ranker worse: the best {best.monitor} is {best_value:.4f}, and it started from "
        f"{before:.4f}. Likely causes: a learning rate that is too high (try a third of model.lr); negatives that are relevant "
        "(ltr negatives audit); texts that are cut where dev needs them (max_length); scores that all become one value (the "
        "callback ltr.callbacks.Health tells)"
    )


def _monitored_before_training(results: dict[str, Any], best: BestOptions) -> float | None:
    """The value of ``best.monitor`` before training; None where it was not measured."""
    return results.get("start", {}).get(best.metric)
