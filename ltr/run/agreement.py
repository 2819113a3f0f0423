"""What all processes of a run must have in common, checked before any work: software, configuration,
encoding of text, and the time of day.
"""

import hashlib
import locale
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ltr import __version__
from ltr.errors import InputError
from ltr.processes import differences_from_rank_0, gather_objects, world_size
from ltr.run.content_digests import digest_without_weights
from ltr.run.provenance import versions
from ltr.run.same_options import MODEL_OPTIONS, deciding_options, flat_options, last_name_of_path

# Seconds that clocks may be apart, as many as Kerberos and MUNGE allow.
CLOCKS_APART = 300.0


def check_agreement(config: Mapping[str, Any]) -> None:
    """Raise an InputError on every process unless all have the same software, options and encoding
    of text, and clocks that agree.

    Args:
        config: the whole configuration of the command, as plain dicts, lists and values.
    """
    if world_size() == 1:
        return
    facts = _software() | _text_encodings() | dict(_options(config)) | dict(_models(config))
    differences = differences_from_rank_0(facts)
    if differences:
        hint = "start each by the same command, in the same environment"
        # Each has chosen it by the GPUs of its node.
        if differences.startswith("trainer.precision "):
            hint = "name one for GPUs of several kinds: --trainer.precision 32-true"
        raise InputError(
            f"all processes of a run must have one environment and one configuration, and {differences}; {hint}"
        )
    times = gather_objects(time.time())
    apart = max(times) - min(times)
    if apart > CLOCKS_APART:
        hosts = gather_objects(platform.node())
        early = times.index(min(times))
        late = times.index(max(times))
        raise InputError(
            f"the clocks of all processes must be at most {CLOCKS_APART:.0f} s apart, and that of process {late} (on {hosts[late]}) is {apart:.0f} s ahead of that of process {early} (on {hosts[early]}); set the clocks by NTP"
        )


def _software() -> dict[str, str]:
    """The versions of what computes."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return {"ltr": f"{__version__} ({_digest_of_code()})", "python": python} | versions()


@cache
def _digest_of_code() -> str:
    """A digest of the files of this package: two checkouts may have one version."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(f"{file.relative_to(root).as_posix()}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:8]


def _text_encodings() -> dict[str, str]:
    """Of file names, and of text in files that don't say theirs: both come from the locale."""
    return {
        "the encoding of file names": sys.getfilesystemencoding(),
        "the encoding of the locale": locale.getencoding(),
    }


def _models(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """A digest of each model that is named, without its weights: rank 0 gives those to all."""
    for path, value in flat_options(config["model"]):
        if path.rpartition(".")[2] in MODEL_OPTIONS and isinstance(value, str):
            digest = digest_without_weights(value)
            if digest is not None:
                yield f"the digest of model.{path}", digest


def _options(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The options that must be the same, each by its path. A folder may be mounted elsewhere."""
    for path, value in deciding_options(config, "processes").items():
        if isinstance(value, list):
            yield path, repr([*map(last_name_of_path, value)])
        else:
            yield path, repr(last_name_of_path(value))
