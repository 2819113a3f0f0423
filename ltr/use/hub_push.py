"""An exported folder goes to the hub: one commit, after which a repository holds what the folder
does.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    ModelInfo,
    constants,
    get_token,
)
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import validate_repo_id

from ltr import __version__
from ltr.entries import read_json
from ltr.errors import InputError
from ltr.models.encoder.loading.model_folder import HUB_ERRORS, ModelFolder, one_line
from ltr.models.encoder.loading.whole_folder import CARD, CONTRACT, check_is_whole, files_of_card
from ltr.use.proof.contract import MEND, SHIPPED

MAIN = "main"
GIT = ".gitattributes"  # the hub's own: which files are large
IGNORED = ".gitignore"  # its lines name files that the hub leaves out of a commit
# What a proof has of a ranker's data, in words.
TEXTS_OF_DATA = "queries of dev (else test, else train) and documents of the corpus"
# What the user can do, by the status of the hub's answer.
TO_DO = {
    401: "log in (hf auth login), or set HF_TOKEN to a token that may write",
    403: "take a token that may write there (hf auth login, or HF_TOKEN), or another name",
    409: "somebody else changes it just now; push again",
    412: "somebody else has changed it meanwhile; push again",
    429: "push again later",
}
REFUSED_CARD = "Invalid metadata in README.md"  # how the library begins what the hub says of it


class HubFile(NamedTuple):
    """A file that goes to the hub: its path in the repository, and how many bytes it has."""

    name: str
    size: int


class Pushed(NamedTuple):
    """What a push has done.

    Attributes:
        url: of the commit.
        is_private: whether others can't see the repository.
        deleted: the files that the repository had and the folder has not.
    """

    url: str
    is_private: bool
    deleted: list[str]


def check_name(hub_id: str) -> None:
    """Raise an InputError for what is no name of a repository: ``USER/NAME``."""
    try:
        validate_repo_id(hub_id)
    except ValueError as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise InputError(f"the name at the hub must be USER/NAME: {reason}") from None
    if hub_id.count("/") != 1:
        raise InputError(f"the name at the hub must be USER/NAME, got {hub_id!r}")


def check_can_push(hub_id: str) -> None:
    """Raise an InputError where a push can't succeed, before anything is written: a name that the
    hub doesn't take, no network by choice, or no token.
    """
    check_name(hub_id)
    if constants.is_offline_mode():
        raise InputError(
            f"{hub_id}: a push needs the network, and HF_HUB_OFFLINE is set; unset it, or see what would go with --dry_run"
        )
    if get_token() is None:
        raise InputError(f"{hub_id}: a push needs a token of the hub; {TO_DO[401]}")


def check_visibility(hub_id: str, public: bool) -> None:
    """Raise an InputError where a repository is public and ``public`` is not said: a push to it is
    refused, so the export before it can be spared.
    """
    api = HfApi()
    with _told(hub_id, "nothing was written there"):
        if not public and api.repo_exists(hub_id):
            _check_private(api.model_info(hub_id), hub_id)


def _check_private(repository: ModelInfo, hub_id: str) -> None:
    if not repository.private:
        raise InputError(
            f"{hub_id} is public, and a proof has texts of the data, {TEXTS_OF_DATA}: --public says that everybody may read them"
        )


def is_exported(folder: Path) -> bool:
    """Whether a folder is one that ``ltr export`` has written: its card lists its files."""
    return files_of_card(folder / CARD) is not None


def files_to_push(folder: Path) -> list[HubFile]:
    """The files of an exported folder, by name. Hidden ones stay where they are.

    Raises:
        InputError: if a file is lost that its proof or its card lists.
    """
    check_is_whole(ModelFolder(str(folder)))
    files = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in name.parts):
            files.append(HubFile(name.as_posix(), path.stat().st_size))
    return files


def holds_texts_of_data(folder: Path) -> bool:
    """Whether the proof of an exported folder has texts of the data that the ranker was made with."""
    contract = folder / CONTRACT
    return contract.is_file() and read_json(contract, MEND).get("probes_of") != SHIPPED


def push_folder(
    folder: Path, hub_id: str, *, public: bool = False, revision: str | None = None
) -> Pushed:
    """Make a repository of the hub hold what an exported folder holds, by one commit: a push that
    fails leaves it as it was. Its earlier commits keep what it had.

    The token is the hub's own: ``HF_TOKEN``, or that of ``hf auth login``.

    Args:
        folder: what ``ltr export`` has written.
        hub_id: ``USER/NAME``. A repository that is not there is created.
        public: whether everybody may read it. A new one is private otherwise, since a proof has
            texts of the data. One that is there stays as it is.
        revision: the branch, created from ``main`` where it is not there; None: ``main``.

    Raises:
        InputError: if a file is lost, the hub refuses, can't be reached, or has a public repository
            of this name where ``public`` is not said.
    """
    check_can_push(hub_id)
    files = files_to_push(folder)
    branch = revision or MAIN
    api = HfApi()
    with _told(hub_id, "nothing was written there"):
        is_new = not api.repo_exists(hub_id)
        if is_new:
            api.create_repo(hub_id, private=not public)
    state = "nothing was committed" + (", and it is there now, empty" if is_new else "")
    with _told(hub_id, state):
        if not public:
            _check_private(api.model_info(hub_id), hub_id)
        if branch != MAIN and not api.revision_exists(hub_id, branch):
            api.create_branch(hub_id, branch=branch, exist_ok=True)
            state += f", and its branch {branch} is there now"
    with _told(hub_id, state):
        before = api.model_info(hub_id, revision=branch)
        names = {file.name for file in files}
        there = {sibling.rfilename for sibling in before.siblings or []}
        deleted = sorted(there - names - {GIT, IGNORED})
        # Not upload_folder, which makes several commits of a large folder: a reader would find parts.
        operations: list[CommitOperationAdd | CommitOperationDelete] = []
        operations += [CommitOperationDelete(name) for name in deleted]
        operations += [CommitOperationAdd(file.name, folder / file.name) for file in files]
        if IGNORED in there:
            operations.append(CommitOperationAdd(IGNORED, b"# Nothing is left out.\n"))
        commit = api.create_commit(
            hub_id,
            operations,
            commit_message=f"Push by ltr {__version__}",
            revision=branch,
            parent_commit=before.sha,
        )
    return Pushed(commit.commit_url, before.private is True, deleted)


@contextmanager
def _told(hub_id: str, state: str) -> Iterator[None]:
    """An InputError for what the hub refuses inside the block, and where it can't be reached.

    Args:
        hub_id: of the repository.
        state: in which a failure leaves it, in words.
    """
    try:
        yield
    except InputError:
        raise
    # What breaks while a large file goes is a RuntimeError, made of one of the hub's.
    except (*HUB_ERRORS, ValueError, RuntimeError) as error:
        if str(error).startswith(REFUSED_CARD):
            reason = str(error).removeprefix(REFUSED_CARD).lstrip("- .\n")
            said = one_line(reason or "it gives no reason")
            raise InputError(
                f"{hub_id}: the hub must take the head of {CARD}, and refused it ({said}); {state}; mend --license or --language of the export"
            ) from None
        cause = error.__cause__ if isinstance(error, RuntimeError) else error
        if not isinstance(cause, HfHubHTTPError):
            said = one_line(cause or error)
            raise InputError(
                f"{hub_id}: the push to {constants.ENDPOINT} broke off ({said}); {state}, unless the hub took it as it broke; push again"
            ) from None
        status = cause.response.status_code
        said = one_line(cause.server_message or cause.response.reason_phrase)
        otherwise = "push again later" if status >= 500 else "mend that, and push again"
        raise InputError(
            f"{hub_id}: the hub must take the push, and answered {status} ({said}); {state}; {TO_DO.get(status, otherwise)}"
        ) from None
