"""Several sources of one training: what the entries of ``path`` say, and how they are mixed."""

import hashlib
import json
import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from ltr.data.files import HUBS
from ltr.data.first_bytes import unpacked_name
from ltr.data.sampling.mixture import MixedBatches, OneSourceBatches, PlannedSource
from ltr.data.splits import check_plain_name
from ltr.entries import fits
from ltr.errors import InputError, local_path, one_of

log = logging.getLogger(__name__)

# What each entry of a source must be, in words, and what to do otherwise. Their types are those of
# a DataSource.
RULES = {
    "path": ("a text", ""),
    "weight": ("a finite number above 0", "; remove the source to train without it"),
    "name": ("a text", ""),
    "instruction": ("a text", ""),
    "negatives": ("a source of negatives, or several with how many documents each gives", ""),
}
LEAST_SHARE = 1e-6  # of that of the largest source: none is left out altogether
BatchesOf = Literal["one_source", "mixed"]


@dataclass(frozen=True)
class Mixture:
    """How several sources share the steps of a training.

    Args:
        batches: each batch is of ``one_source``, or lists of several are ``mixed`` in it.
        temperature: T, without weights: the share of a source is its size to the power of 1/T, the
            size in batches, or in lists where batches are mixed. 1 (as None): in proportion to the
            sizes; the larger, the more alike the shares.
        leave_out: the name of a source that is not trained on: its train and dev splits are not
            used, and it is tested as the others.

    Raises:
        InputError: for a value that is none of these.

    Example:
        >>> mixed = Mixture(batches="mixed", temperature=2)  # shares between the sizes and equal ones
    """

    batches: BatchesOf = "one_source"
    temperature: float | None = None
    leave_out: str | None = None

    def __post_init__(self) -> None:
        one_of(get_args(BatchesOf), **{"mixture.batches": self.batches})
        temperature = self.temperature
        if temperature is not None and not 0 < temperature < math.inf:
            raise InputError(
                f"temperature must be finite and above 0, got {temperature}",
                option="mixture.temperature",
            )


@dataclass(frozen=True)
class DataSource:
    """One entry of ``path``.

    Attributes:
        path: a collection, see :func:`ltr.data.collection.open_collection`.
        name: of its metrics; empty for a source that stands alone.
        weight: its share of the training, in any scale; None where the sizes say it.
        instruction: of its queries that have none of their own; empty: they have none.
        negatives: where its negatives come from; None: as the data module says for all.
    """

    path: str
    name: str = ""
    weight: float | None = None
    instruction: str = ""
    negatives: str | dict[str, int] | None = None


def sources_of(path: str | Path | Sequence[Any]) -> tuple[DataSource, ...]:
    """The sources that ``path`` names: one without a name of its own, or each entry of a list.

    Raises:
        InputError: names the entry by its place, as ``path[1]``.
    """
    if isinstance(path, str | Path):
        return (DataSource(str(path)),)
    if len(path) < 2:
        raise InputError(
            f"path must be a path, or a list of two sources or more, got a list of {len(path)}",
            option="path",
        )
    sources = [_read_entry(number, entry) for number, entry in enumerate(path)]
    number_of_path: dict[str, int] = {}
    for number, source in enumerate(sources):
        path_of_source = _canonical(source.path)
        if path_of_source in number_of_path:
            raise InputError(
                f"path[{number}]: each source must stand there once, and {source.path!r} is path[{number_of_path[path_of_source]}] too; remove one, or give the other more weight",
                option="path",
            )
        number_of_path[path_of_source] = number
    weighted = [source.weight is not None for source in sources]
    if any(weighted) and not all(weighted):
        number = weighted.index(False)
        raise InputError(
            f"path[{number}]: all sources must have a weight, or none, and {sources[number].path!r} has none; add it",
            option="path",
        )
    return _with_names(sources)


def _read_entry(number: int, entry: Any) -> DataSource:
    where = f"path[{number}]"
    if isinstance(entry, str | Path):
        entry = {"path": entry}
    if not isinstance(entry, Mapping):
        raise InputError(
            f"{where}: a source must be a path, or path: with weight:, name:, instruction: or negatives: beside it, got {entry!r:.60}",
            option="path",
        )
    unknown = [str(key) for key in entry if key not in RULES]
    if unknown:
        raise InputError(
            f"{where}: a source has {', '.join(RULES)}, got {unknown[0]!r}; rename or remove it",
            option="path",
        )
    values = {"path": None} | {key: value for key, value in entry.items() if value is not None}
    if isinstance(values["path"], Path):
        values["path"] = str(values["path"])
    types = get_type_hints(DataSource)
    for key, value in values.items():
        is_fit = fits(value, types[key])
        if key in ("path", "weight", "negatives"):  # neither empty nor 0
            is_fit = is_fit and bool(value)
        if key == "weight":
            is_fit = is_fit and value > 0
        if not is_fit:
            must, mend = RULES[key]
            raise InputError(
                f"{where}: {key} must be {must}, got {value!r:.60}{mend}", option="path"
            )
    source = DataSource(**values)
    local_path(f"{where}.path", source.path)
    if "name" in values:
        check_plain_name(source.name, f"{where}: name", "path")
    return source if source.weight is None else replace(source, weight=float(source.weight))


def _canonical(path: str) -> str:
    """What two spellings of one path have in common."""
    return path if path.startswith(HUBS) else str(Path(path).absolute().resolve())


def _with_names(sources: Sequence[DataSource]) -> tuple[DataSource, ...]:
    """Sources with names of their own: the one given, or of the folder, as long as is needed."""
    given = Counter(source.name for source in sources if source.name)
    for name, count in given.items():
        if count > 1:
            raise InputError(
                f"path: each source must have a name of its own, and {count} are called {name!r}; rename one",
                option="path",
            )
    named = []
    for source in sources:
        others = [other for other in sources if other is not source]
        name = source.name or _own_name(source, others)
        check_plain_name(
            name, f"path: the name of the source {source.path!r}", "path", "; add name:"
        )
        named.append(replace(source, name=name))
    return tuple(named)


def _own_name(source: DataSource, others: Sequence[DataSource]) -> str:
    """The shortest end of a source's path that no other source is called by."""
    for count in range(1, len(Path(source.path).absolute().parts) + 1):
        name = _last_parts(source.path, count)
        if name not in [other.name or _last_parts(other.path, count) for other in others]:
            return name
    raise InputError(
        f"path: {source.path!r} must have a name of its own beside the other sources; add name:",
        option="path",
    )


def _last_parts(path: str, count: int) -> str:
    """The last parts of a path without the suffixes of a file, as the name of a metric has them."""
    if path.startswith(HUBS):
        return path.partition(":")[2].replace("/", "-").replace(":", "-")
    parts = list(Path(path).absolute().resolve().parts)
    short = unpacked_name("-".join(parts[-count:])).removesuffix(".tsv")
    return "_".join(short.split())


def weights_of(
    sources: Sequence[DataSource], mixture: Mixture, sizes: Sequence[int]
) -> list[float]:
    """The share of each source, in some scale.

    Args:
        sources: whose weights say it, if they have some.
        mixture: has the temperature, where they have none.
        sizes: of the sources, in batches, or in lists where these are mixed.
    """
    weights = [source.weight for source in sources if source.weight is not None]
    if weights:
        return weights
    temperature = mixture.temperature or 1.0
    if temperature == 1.0:
        return list(map(float, sizes))
    # By logarithms, of the largest one: a small temperature makes large powers.
    largest = max(sizes)
    powers = [math.exp(math.log(size / largest) / temperature) for size in sizes]
    return [max(power, LEAST_SHARE) for power in powers]


def check_mixture(sources: Sequence[DataSource], mixture: Mixture) -> None:
    """Check that a mixture fits several sources.

    Raises:
        InputError: where both say the shares, weights and a temperature; for a source to be left
            out that is not there.
    """
    names = [source.name for source in sources]
    if mixture.leave_out is not None and mixture.leave_out not in names:
        raise InputError(
            f"leave_out must be the name of a source, {', '.join(names)}, got {mixture.leave_out!r}",
            option="mixture.leave_out",
        )
    weights = [source.weight for source in sources if source.weight is not None]
    if weights and mixture.temperature is not None:
        raise InputError(
            f"temperature must have no weights beside it, as it makes the shares of the sizes, and the sources have the weights {', '.join(map(str, weights))}; leave one out",
            option="mixture.temperature",
        )


def digest_of_mixture(sources: Sequence[DataSource], mixture: Mixture) -> str:
    """A digest of how the sources are mixed, but for their paths: a checkpoint keeps it."""
    parts: list[Any] = [asdict(mixture)]
    for source in sources:
        negatives = source.negatives
        if isinstance(negatives, dict):
            negatives = {Path(name).name: count for name, count in negatives.items()}
        elif negatives is not None:
            negatives = Path(negatives).name  # a folder may be mounted elsewhere
        parts.append([source.name, source.weight, source.instruction, negatives])
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def plan_of_sources(
    planned: Sequence[PlannedSource],
    entries: Sequence[DataSource],
    mixture: Mixture,
    least_per_batch: int,
    rank: int,
    world_size: int,
) -> OneSourceBatches | MixedBatches:
    """The batches of several sources.

    Args:
        planned: the plan of each that is trained on.
        entries: what ``path`` says of each.
        mixture: how they share the steps.
        least_per_batch: lists of a mixed batch at least.
        rank, world_size: this process, and how many there are.
    """
    plans = [source.plan for source in planned]
    plan: OneSourceBatches | MixedBatches
    if mixture.batches == "one_source":
        sizes = [len(source_plan) for source_plan in plans]
        weights = weights_of(entries, mixture, sizes)
        plan = OneSourceBatches(planned, weights, rank, world_size)
        unit = "batches"
    else:
        # The mixed plan deals the lists out to the processes, and the sources' plans must not.
        for source_plan in plans:
            source_plan.rank = 0
            source_plan.world_size = 1
        sizes = [int(source_plan.lists_per_step(0).sum()) for source_plan in plans]
        weights = weights_of(entries, mixture, sizes)
        plan = MixedBatches(planned, weights, plans[0].per_step, least_per_batch, rank, world_size)
        unit = "lists"
        for entry, weight in zip(entries, weights, strict=True):
            per_batch = plan.per_step * weight / sum(weights)
            # A list that may stand alone in a batch brings all that it is told from.
            if least_per_batch > 1 and per_batch < least_per_batch:
                log.warning(
                    "source %s gives %.2g groups to a batch: alone, it has nothing to be told from; give it more weight, or take batches of one source",
                    entry.name,
                    per_batch,
                )
    for entry, weight, size in zip(entries, weights, sizes, strict=True):
        log.info(
            "source %s: %.1f %% of the %s, %d in an epoch of its own",
            entry.name,
            100 * weight / sum(weights),
            unit,
            size,
        )
    return plan
