"""``ltr push``: a trained ranker goes to the hub."""

import tempfile
from pathlib import Path

from ltr.cli.cache import size_in_words
from ltr.cli.export_ranker import say_exported, say_pushed, total_of
from ltr.cli.opened_rankers import data_of_ranker
from ltr.data.console import say, speech_on_stderr
from ltr.errors import InputError
from ltr.use.export import Form, export
from ltr.use.hub_push import (
    MAIN,
    TEXTS_OF_DATA,
    check_can_push,
    check_name,
    check_visibility,
    files_to_push,
    holds_texts_of_data,
    is_exported,
)


def push(
    ranker: str,
    name: str,
    *,
    to: Form | None = None,
    license: str | None = None,
    language: list[str] | None = None,
    public: bool = False,
    revision: str | None = None,
    dry_run: bool = False,
) -> None:
    """Export a ranker and push it to the hub, by one commit: the repository then holds what the
    export holds. Files that it had beside them are deleted, and stay in its history.

    A new repository is private: the proof of an export has texts of the data. The token is that of
    ``hf auth login``, or ``HF_TOKEN``.

    Args:
        ranker: A run folder, a checkpoint or a model, which is exported; or an exported folder, which
            goes as it is.
        name: At the hub: USER/NAME.
        to: The form of the export, see ltr export. Default: sentence-transformers.
        license: Of the model, for its card, as the hub calls it: ``apache-2.0``.
        language: Of its texts, for its card: codes such as ``en``.
        public: A new repository is one that everybody may read. Also needed for one that is public.
        revision: The branch; it is created where it is not there. Default: main.
        dry_run: Print what would go, the card too, and send nothing.
    """
    if dry_run:
        check_name(name)
    else:
        check_can_push(name)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(ranker)
        if is_exported(folder):
            if to is not None or license is not None or language is not None:
                raise InputError(
                    f"{ranker} is exported and goes as it is: --to, --license and --language are for ltr export; leave them out, or push the run"
                )
        else:
            if not dry_run:
                check_visibility(name, public)
            folder = Path(temporary) / "exported"
            form = to or "sentence-transformers"
            with speech_on_stderr():
                exported = export(
                    ranker,
                    folder,
                    form,
                    data=data_of_ranker(ranker),
                    hub_id=name if revision is None else f"{name}@{revision}",
                    license=license,
                    language=language or (),
                )
            say_exported(exported)
        if dry_run:
            _say_what_would_go(folder, name, public, revision)
        else:
            say_pushed(folder, name, public, revision)


def _say_what_would_go(folder: Path, name: str, public: bool, revision: str | None) -> None:
    files = files_to_push(folder)
    visibility = "public" if public else "private"
    say(
        f"would go to {name} ({visibility}, if it is new), branch {revision or MAIN}: {total_of(files)}"
    )
    for file in files:
        say(f"{size_in_words(file.size):>10}  {file.name}")
    if holds_texts_of_data(folder):
        say(f"proof/ has {TEXTS_OF_DATA}")
    say("what the repository has beside these files would be deleted")
    say()
    say((folder / "README.md").read_text(encoding="utf-8"))
