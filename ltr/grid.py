"""A family of experiments: a base configuration and the options that vary, as one file."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from ltr.errors import InputError
from ltr.run.yaml_files import read_yaml

KNOWN = {"base", "options", "axes", "seeds", "choose", "metrics", "baseline"}


@dataclass(frozen=True)
class Cell:
    """One run of a grid.

    Attributes:
        names: of its value on each axis.
        options: of ``ltr fit``, by path.
        seed: of ``seed_everything``.
    """

    names: tuple[str, ...]
    options: Mapping[str, Any]
    seed: int

    @property
    def experiment(self) -> Path:
        """The folder of its experiment, within that of the grid."""
        return Path(*self.names) if self.names else Path("base")

    @property
    def folder(self) -> Path:
        """The run folder, within that of the grid."""
        return self.experiment / f"seed={self.seed}"

    def words(self) -> list[str]:
        """The options as the command line takes them."""
        return [
            word for name, value in self.options.items() for word in (f"--{name}", as_word(value))
        ]


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
        metrics: that the experiments are compared by; none: the first one.
        baseline: values of axes that the others on their axis are compared with; none: the first
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
        if not file.is_file():
            raise InputError(f"{file}: there is no such grid file")
        found = read_yaml(file, "a grid") or {}
        if not {"base", "axes"} <= found.keys() <= KNOWN:
            came = ", ".join(sorted(map(str, found)))
            raise InputError(
                f"{file}: a grid must have base and axes, and perhaps {', '.join(sorted(KNOWN - {'base', 'axes'}))}; got {came}"
            )
        for name, kind in (("axes", dict), ("options", dict), ("choose", str)):
            if not isinstance(found.get(name) or kind(), kind):
                what = "one of the axes" if kind is str else "names with their values"
                raise InputError(f"{file}: {name} must be {what}, got {found[name]!r}")
        base = tuple(file.parent / str(one) for one in _listed(found["base"]))
        for path in base or [file.parent / "None"]:
            if not path.is_file():
                raise InputError(
                    f"{file}: base {path} is not there; paths count from the grid's file"
                )
        axes = {
            str(name): _values(file, str(name), given)
            for name, given in (found["axes"] or {}).items()
        }
        seeds = found.get("seeds", [0, 1, 2])
        choose = found.get("choose")
        if (
            not isinstance(seeds, list)
            or not seeds
            or not all(type(one) is int and one >= 0 for one in seeds)
        ):
            raise InputError(f"{file}: seeds must be a list of whole numbers, got {seeds!r}")
        if choose is not None and choose not in axes:
            raise InputError(
                f"{file}: choose must be one of the axes {', '.join(axes)}, got {choose!r}"
            )
        named = {
            name: tuple(map(str, _listed(found.get(name)))) for name in ("metrics", "baseline")
        }
        made = cls(
            file.stem,
            base,
            axes,
            found.get("options") or {},
            tuple(dict.fromkeys(seeds)),
            choose,
            **named,
        )
        known = [value for axis in axes.values() for value in axis]
        for one in made.baseline:
            if one not in known:
                raise InputError(
                    f"{file}: baseline must be a value of an axis, {', '.join(known)}, got {one!r}"
                )
        if any("seed_everything" in cell.options for cell in made.cells()):
            raise InputError(f"{file}: seeds are named by seeds, not by the option seed_everything")
        return made

    def cells(self) -> Iterator[Cell]:
        """All of them: the seeds of an experiment one after the other."""
        for values in product(*(axis.items() for axis in self.axes.values())):
            options = dict(self.options)
            for _, own in values:
                options |= own
            for seed in self.seeds:
                yield Cell(tuple(name for name, _ in values), options, seed)

    def pairs(
        self, combinations: Sequence[tuple[str, ...]]
    ) -> tuple[list[tuple[int, int]], list[str]]:
        """Which combinations to compare, by their places: each with its neighbour that has the
        value of a baseline.

        What was chosen does not count: it may differ. Without a baseline, each is compared with the
        first one.

        Returns:
            The pairs; and a line for each combination that has no such neighbour.
        """
        shown = [n for n, axis in enumerate(self.axes) if axis != self.choose]
        at = {tuple(one[n] for n in shown): place for place, one in enumerate(combinations)}
        found: list[tuple[int, int]] = (
            [] if self.baseline else [(place, 0) for place in range(1, len(combinations))]
        )
        alone: list[str] = []
        for base in self.baseline:
            axis = next(n for n, values in enumerate(self.axes.values()) if base in values)
            for place, one in enumerate(combinations):
                other = at.get(tuple(base if n == axis else one[n] for n in shown))
                if other is None:
                    alone.append(f"{'/'.join(one)} is not compared with {base}, which is not there")
                elif other != place and (other, place) not in found:
                    found.append((place, other))
        return list(dict.fromkeys(found)), alone

    def rival(self, cell: Cell) -> tuple[str, ...]:
        """What the cells share among which one is chosen: their values on all other axes."""
        return tuple(
            name for axis, name in zip(self.axes, cell.names, strict=True) if axis != self.choose
        )


def as_word(value: Any) -> str:
    """A value as the command line takes it."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _values(file: Path, axis: str, given: Any) -> dict[str, dict[str, Any]]:
    """The named values of an axis: a list of values of the option that the axis is named after, or
    names with their options.
    """
    if isinstance(given, list) and given:
        short = axis.rpartition(".")[2]
        named: list[tuple[str, dict[str, Any]]] = [
            (f"{short}={_short(value)}", {axis: value}) for value in given
        ]
    elif (
        isinstance(given, dict)
        and given
        and all(own is None or isinstance(own, dict) for own in given.values())
    ):
        named = [(as_word(name), own or {}) for name, own in given.items()]
    else:
        text = f"{file}: the axis {axis} must be a list of values, or names with their options"
        raise InputError(
            f"{text}, as in 'ranknet: {{model.loss: ltr.losses.RankNetLoss}}'; got {given!r}"
        )
    made: dict[str, dict[str, Any]] = {}
    for name, own in named:
        folder = "".join(
            letter if letter.isalnum() or letter in " .,=+-_" else "_" for letter in name
        )
        if folder in made or not folder.strip(". "):
            raise InputError(
                f"{file}: the values of {axis} must have names of their own, fit for folders; got {name!r}"
            )
        made[folder] = own
    return made


def _short(value: Any) -> str:
    """The name of a value in a list: of a class path or a path its last part."""
    if isinstance(value, str):
        return value.rpartition("/" if "/" in value else ".")[2] or value
    return (
        f"{value:g}"
        if isinstance(value, float) and float(f"{value:g}") == value
        else as_word(value)
    )


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]
