"""The rankers that the commands of a trained ranker open, and the data of the run that one is of."""

from pathlib import Path

from ltr.cli.run_paths import data_of_run
from ltr.data.console import speech_on_stderr
from ltr.errors import InputError
from ltr.run.precision import Precision
from ltr.run.run_folder import RunFolder, run_of_checkpoint
from ltr.use.load import load
from ltr.use.rankers import FeatureScorer, TextRanker


def open_text_ranker(name: str, precision: Precision | None, device: str | None) -> TextRanker:
    """A ranker of texts; an InputError for one that reads features."""
    text_ranker = open_ranker(name, precision, device)
    if not isinstance(text_ranker, TextRanker):
        raise InputError(f"{name} reads feature vectors, not texts; use it in Python: ltr.load")
    return text_ranker


def open_ranker(
    name: str, precision: Precision | None, device: str | None
) -> TextRanker | FeatureScorer:
    """As :func:`ltr.use.load.load`; what packages print meanwhile goes to stderr."""
    with speech_on_stderr():
        return load(name, precision, device)


def data_of_ranker(ranker: str) -> str | None:
    """Where the data of the run lies that a ranker is of; None where it is of no run."""
    path = Path(ranker)
    folder = RunFolder(path) if path.is_dir() else run_of_checkpoint(path)
    if folder is None or not folder.config.is_file():
        return None
    path_of_data = data_of_run(folder)
    return path_of_data if isinstance(path_of_data, str) else None
