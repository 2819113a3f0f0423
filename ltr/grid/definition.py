"""A family of experiments: a base configuration and the options that vary, as one file."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import product
from pathlib import Path
from typing import Any

from ltr.data.cross_validation import Fold
from ltr.errors import InputError, local_path
from ltr.run.shipped_recipes import configuration_file
from ltr.run.yaml_files import read_yaml

REQUIRED = {"base", "axes"}


@dataclass(frozen=True)
class Cell:
    """One run of a grid.

    Attributes:
        names: of its value on each axis.
        options: of ``ltr fit``, by path.
        seed: of ``seed_everything``.
        fold: of a cross-validation; None: it is trained and tested by the splits of its data.
    """

    names: tuple[str, ...]
    options: Mapping[str, Any]
    seed: int
    fold: Fold | None = None

    @property
    def experiment(self) -> Path:
        """The folder of its experiment, within that of the grid."""
        return experiment_folder(self.names)

    @property
    def folder(self) -> Path:
        """The run folder, within that of the grid."""
        seed_folder = self.experiment / f"seed={self.seed}"
        return seed_folder if self.fold is None else seed_folder / f"fold={self.fold.number}"

    def words(self) -> list[str]:
        """The options as the command line takes them."""
        words = []
        for name, value in self.options.items():
            words += [f"--{name}", as_word(value)]
        if self.fold is not None:
            words += ["--data.evaluation.fold", as_word(asdict(self.fold))]
        return words


def experiment_folder(names: Sequence[str]) -> Path:
    """The folder of the experiment with these values on the axes, within that of the grid."""
    return Path(*names) if names else Path("base")


@dataclass(frozen=True)
class Grid:
    """All combinations of the values on some axes, each with several seeds.

    Attributes:
        name: of the file.
        base: the configurations that all share, one layer over the other.
        options: of all cells, by path.
        axes: by name, the options of each of its named values.
        seeds: of each combination.
        choose: the axis whose value is chosen on dev with the first seed; only that one is trained
            with the others.
        metrics: that the experiments are compared by; empty: the first one.
        baseline: values of axes that the others on their axis are compared with; empty: the first
            experiment.
    """

    name: str
    base: tuple[Path, ...]
    axes: Mapping[str, Mapping[str, Mapping[str, Any]]]
    options: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0, 1, 2)
    choose: str | None = None
    metrics: tuple[str, ...] = ()
    baseline: tuple[str, ...] = ()

    @classmethod
    def read(cls, file: Path) -> "Grid":
        """Read a grid file.

        Raises:
            InputError: if it is no YAML, or something in it is unknown or has another form.
        """
        local_path("file", file)
        if not file.is_file():
            raise InputError(f"{file}: there is no such grid file")
        content = read_yaml(file, "a grid") or {}
        known_keys = {each.name for each in fields(cls)} - {"name"}
        if not REQUIRED <= content.keys() <= known_keys:
            optional = ", ".join(sorted(known_keys - REQUIRED))
            keys = ", ".join(sorted(map(str, content)))
            raise InputError(
                f"{file}: a grid must have base and axes, and perhaps {optional}; got {keys}"
            )
        axes = _axes(file, content["axes"])
        grid = cls(
            name=file.stem,
            base=_base(file, content["base"]),
            axes=axes,
            options=_mapping(file, "options", content.get("options")),
            seeds=_seeds(file, content.get("seeds", [0, 1, 2])),
            choose=_choose(file, content.get("choose"), axes),
            metrics=tuple(map(str, _as_list(content.get("metrics")))),
            baseline=_baseline(file, content.get("baseline"), axes, content.get("choose")),
        )
        if any("seed_everything" in cell.options for cell in grid.cells()):
            raise InputError(f"{file}: seeds are named by seeds, not by the option seed_everything")
        return grid

    def cells(
        self,
        seeds: Sequence[int] | None = None,
        only: Sequence[str] = (),
        n_folds: int | None = None,
    ) -> Iterator[Cell]:
        """The cells: the seeds of an experiment one after the other, and the folds of a seed.

        Args:
            seeds: of each combination; None: those of the file.
            only: names of values. On each axis that has some of them, a cell has one of them.
            n_folds: a cell for each of so many folds; None: none has a fold.

        Raises:
            InputError: if no axis has one of these names, or folds are too few.
        """
        known = [name for axis in self.axes.values() for name in axis]
        unknown = sorted(name for name in only if _safe_name(name) not in known)
        if unknown:
            raise InputError(
                f"--only must name values of an axis, {', '.join(known)}; got {', '.join(unknown)}"
            )
        folds: list[Fold | None] = [None]
        if n_folds is not None:
            folds = [Fold(number, n_folds) for number in range(1, n_folds + 1)]
        wanted = {_safe_name(name) for name in only}
        axes = []
        for axis in self.axes.values():
            kept = axis.keys() & wanted
            axes.append([(name, axis[name]) for name in axis if not kept or name in kept])
        for chosen_values in product(*axes):
            options = dict(self.options)
            for _, options_of_value in chosen_values:
                options |= options_of_value
            names = tuple(name for name, _ in chosen_values)
            for seed in self.seeds if seeds is None else seeds:
                for fold in folds:
                    yield Cell(names, options, seed, fold)

    def pairs_by_place(
        self, combinations: Sequence[tuple[str, ...]]
    ) -> tuple[list[tuple[int, int]], list[str]]:
        """Which combinations to compare, by their places: each with its neighbour that has the
        value of a baseline.

        Neighbours may differ on the axis ``choose``. Without a baseline, each combination is compared
        with the first one.

        Returns:
            The pairs; and a line for each combination that has no such neighbour.
        """
        if not self.baseline:
            return [(place, 0) for place in range(1, len(combinations))], []
        place_of = {self.names_but_chosen(names): place for place, names in enumerate(combinations)}
        pairs: list[tuple[int, int]] = []
        lonely: list[str] = []
        for baseline_value in self.baseline:
            axis_place = next(
                n for n, axis in enumerate(self.axes.values()) if baseline_value in axis
            )
            for place, names in enumerate(combinations):
                neighbour = (*names[:axis_place], baseline_value, *names[axis_place + 1 :])
                other = place_of.get(self.names_but_chosen(neighbour))
                if other is None:
                    lonely.append(
                        f"{'/'.join(names)} is not compared with {baseline_value}, which is not there"
                    )
                elif other != place and not {(place, other), (other, place)} & {*pairs}:
                    # Two baselines on one axis meet each other twice: once is enough.
                    pairs.append((place, other))
        return pairs, lonely

    def names_but_chosen(self, names: Sequence[str]) -> tuple[str, ...]:
        """The names of a combination on the axes of which nothing is chosen. Cells that share them
        are those among which one is chosen.
        """
        named = zip(self.axes, names, strict=True)
        return tuple(name for axis, name in named if axis != self.choose)


def as_word(value: Any) -> str:
    """A value as the command line takes it."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _mapping(file: Path, key: str, content: Any) -> dict[str, Any]:
    if not isinstance(content or {}, dict):
        raise InputError(f"{file}: {key} must be names with their values, got {content!r}")
    return content or {}


def _base(file: Path, content: Any) -> tuple[Path, ...]:
    names = [str(name) for name in _as_list(content)]
    for name in names:
        local_path(f"{file}: base", name)
    paths = tuple(file.parent / configuration_file(name, f"{file}: base") for name in names)
    if not paths:
        raise InputError(f"{file}: base must name a configuration, got {content!r}")
    for path in paths:
        if not path.is_file():
            raise InputError(f"{file}: base {path} is not there; paths count from the grid's file")
    return paths


def _axes(file: Path, content: Any) -> dict[str, dict[str, dict[str, Any]]]:
    axes = _mapping(file, "axes", content)
    return {str(name): _values_of_axis(file, str(name), axes[name]) for name in axes}


def _seeds(file: Path, content: Any) -> tuple[int, ...]:
    # bool is a kind of int
    if not (
        isinstance(content, list)
        and content
        and all(type(seed) is int and seed >= 0 for seed in content)
    ):
        raise InputError(f"{file}: seeds must be a list of whole numbers, got {content!r}")
    return tuple(dict.fromkeys(content))


def _choose(file: Path, content: Any, axes: Mapping[str, Any]) -> str | None:
    if content is None or (isinstance(content, str) and content in axes):
        return content
    raise InputError(f"{file}: choose must be one of the axes {', '.join(axes)}, got {content!r}")


def _baseline(
    file: Path, content: Any, axes: Mapping[str, Mapping[str, Any]], choose: str | None
) -> tuple[str, ...]:
    known = [name for axis in axes.values() for name in axis]
    baseline = tuple(_safe_name(as_word(name)) for name in _as_list(content))
    for name in baseline:
        n_axes = sum(name in axis for axis in axes.values())
        if n_axes == 0:
            raise InputError(
                f"{file}: baseline must be a value of an axis, {', '.join(known)}, got {name!r}"
            )
        if n_axes > 1:
            raise InputError(
                f"{file}: baseline {name!r} must be a value of one axis, and is one of {n_axes}; give them other names"
            )
        if choose is not None and name in axes[choose]:
            raise InputError(
                f"{file}: baseline {name!r} is a value of the axis {choose}, of which one is chosen, so nothing is compared with it; leave it out"
            )
    return baseline


def _values_of_axis(file: Path, axis: str, content: Any) -> dict[str, dict[str, Any]]:
    """The named values of an axis: of the option that it is named after, or names with options."""
    named: list[tuple[str, dict[str, Any]]] = []
    if isinstance(content, list) and content:
        option = axis.rpartition(".")[2]
        for value in content:
            named.append((f"{option}={_short(value)}", {axis: value}))
    elif isinstance(content, dict) and content and _are_options(content.values()):
        for name, options in content.items():
            named.append((as_word(name), options or {}))
    else:
        raise InputError(
            f"{file}: the axis {axis} must be a list of values, or names with their options, as in 'ranknet: {{model.loss: ltr.losses.RankNetLoss}}'; got {content!r}"
        )
    values: dict[str, dict[str, Any]] = {}
    for name, options in named:
        safe_name = _safe_name(name)
        if safe_name in values or not safe_name.strip(". "):
            raise InputError(
                f"{file}: the values of {axis} must have names of their own, fit for folders; got {name!r}"
            )
        values[safe_name] = options
    return values


def _are_options(values: Any) -> bool:
    return all(options is None or isinstance(options, dict) for options in values)


def _safe_name(name: str) -> str:
    """The name as a folder can have it."""
    return "".join(letter if letter.isalnum() or letter in " .,=+-_" else "_" for letter in name)


def _short(value: Any) -> str:
    """What a value of a list is called; a path or a class path is called by its last part."""
    if isinstance(value, str):
        if "/" in value:
            return value.rpartition("/")[2] or value
        is_class_path = all(part.isidentifier() for part in value.split("."))
        last_part = value.rpartition(".")[2]
        return last_part if is_class_path and last_part[:1].isupper() else value
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return as_word(value)


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
