"""``ltr export``: a trained ranker is handed over to another library."""

import sys
from pathlib import Path

from ltr.cli.opened_rankers import data_of_ranker
from ltr.data.console import say
from ltr.data.outputs import check_folder
from ltr.use.export import Form
from ltr.use.export import export as write_exported
from ltr.use.int8 import METRIC


def export(
    ranker: str, folder: str, *, to: Form = "sentence-transformers", int8: str | None = None
) -> None:
    """Write a folder that sentence-transformers, transformers, onnxruntime or PEFT loads, with a
    model card, and a proof of what it computes: see ltr verify.

    Adapters become part of the weights, and how that changes scores is printed.

    Args:
        ranker: A run folder, a checkpoint, an exported folder, or a model of the hub.
        folder: The new folder.
        to: ``sentence-transformers``; ``transformers``, for cross-encoders that kept a head of
            their own; ``onnx``; or ``adapter``: the adapters alone, for PEFT.
        int8: A data folder: ``onnx`` graphs with weights in int8, too, and both kinds measured on
            its dev split.
    """
    check_folder(folder, "the folder")
    try:
        exported = write_exported(ranker, folder, to, int8, data_of_ranker(ranker))
    except KeyboardInterrupt:
        say(f"interrupted; {folder} is not written", to=sys.stderr)
        raise
    if exported.merged is not None:
        say(exported.merged)
    for graph in exported.measurements:  # with --int8
        say(
            f"{graph.kind}: {METRIC} {graph.ndcg:.4f} on dev, {graph.per_second:.0f} per second, {graph.megabytes:.1f} MB"
        )
    if exported.note:
        say(exported.note)
    say(f"{folder} is written, for {to}; its README.md says how to use it")
    if (Path(folder) / "proof/check.py").is_file():  # adapters alone have none
        say(f"python {folder}/proof/check.py says whether it computes the same elsewhere")
