"""``ltr export``: a trained ranker is handed over to another library."""

import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from huggingface_hub.utils import disable_progress_bars

from ltr.cli.cache import size_in_words
from ltr.cli.opened_rankers import data_of_ranker
from ltr.data.console import say, speech_on_stderr
from ltr.data.outputs import check_folder
from ltr.errors import InputError
from ltr.use.export import Exported, Form
from ltr.use.export import export as write_exported
from ltr.use.hub_push import (
    TEXTS_OF_DATA,
    HubFile,
    check_can_push,
    check_visibility,
    files_to_push,
    holds_texts_of_data,
    push_folder,
)
from ltr.use.int8 import METRIC


def export(
    ranker: str,
    folder: str,
    *,
    to: Form = "sentence-transformers",
    int8: str | None = None,
    license: str | None = None,
    language: list[str] | None = None,
    push: str | None = None,
    public: bool = False,
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
        license: Of the model, for its card, as the hub calls it: ``apache-2.0``.
        language: Of its texts, for its card: codes such as ``en``.
        push: USER/NAME at the hub, where the folder goes then: see ltr push.
        public: Of ``push``: everybody may read it.
    """
    check_folder(folder, "the folder")
    if push is not None:
        check_can_push(push)
        check_visibility(push, public)
    elif public:
        raise InputError(
            "--public is of a push: say where the folder goes with --push USER/NAME, or leave it out"
        )
    try:
        with speech_on_stderr():
            exported = write_exported(
                ranker,
                folder,
                to,
                int8,
                data_of_ranker(ranker),
                hub_id=push,
                license=license,
                language=language or (),
            )
    except KeyboardInterrupt:
        say(f"interrupted; {folder} is not written", to=sys.stderr)
        raise
    say_exported(exported)
    say(f"{folder} is written, for {to}; its README.md says how to use it")
    if (Path(folder) / "proof/check.py").is_file():  # adapters alone have none
        say(
            f"python {folder}/proof/check.py says on any machine whether it computes the same scores there"
        )
    if push is not None:
        try:
            say_pushed(Path(folder), push, public)
        except InputError as error:
            again = f"ltr push {quote(folder)} {push}"
            raise InputError(f"{error}; {folder} is written, and goes there by {again}") from None


def say_exported(exported: Exported) -> None:
    """Say what an export has measured, and what whoever uses the folder must do."""
    if exported.merged is not None:
        say(exported.merged)
    for graph in exported.measurements:  # with --int8
        say(
            f"{graph.kind}: {METRIC} {graph.ndcg:.4f} on dev, {graph.per_second:.0f} per second, {graph.megabytes:.1f} MB"
        )
    if exported.note:
        say(exported.note)


def say_pushed(folder: Path, name: str, public: bool = False, revision: str | None = None) -> None:
    """Push an exported folder, and say what was done."""
    if not sys.stderr.isatty():
        disable_progress_bars()
    pushed = push_folder(folder, name, public=public, revision=revision)
    files = files_to_push(folder)
    if pushed.deleted:
        say(f"deleted there: {', '.join(pushed.deleted)}")
    if holds_texts_of_data(folder):
        say(f"proof/ has {TEXTS_OF_DATA}")
    visibility = "private" if pushed.is_private else "public"
    say(f"{name} ({visibility}) holds {total_of(files)}: {pushed.url}")
    if public and pushed.is_private:
        say(f"{name} was there, and stays private: its settings at the hub make it public")


def total_of(files: Sequence[HubFile]) -> str:
    """The number of files and their size, in words."""
    return f"{len(files)} files, {size_in_words(sum(file.size for file in files))}"
