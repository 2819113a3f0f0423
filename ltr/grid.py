"""A family of experiments: a base configuration and the options that vary, as one file."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from ltr.errors import InputError

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
        return [word for name, value in self.options.items() for word in (f"--{name}", as_word(value))]


@dataclass(frozen=True)
class Grid:
    """All combinations of the values on some axes, each with several seeds.

    Attributes:
        name: of the file.
        base: the configurations that all share, one layer over the other.
        options: of all cells, by path.
        axes: by name, the options of each of its named values.
        seeds: of each combination.
        choose: the axis whose value is chosen on dev with the first seed; only that one is trained with the others.
        metrics: that the experiments are compared by; none: the first one.
        baseline: the experiments that the others are compared with; none: the first one.
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
        try:
            found = yaml.safe_load(file.read_text()) if file.is_file() else None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise InputError(f"{file}: a grid must be a YAML file ({' '.join(str(error).split())[:120]})") from None
        if not isinstance(found, dict) or not {"base", "axes"} <= found.keys() <= KNOWN:
            came = (
                "no such file"
                if not file.is_file()
                else f"got {', '.join(sorted(map(str, found))) if isinstance(found, dict) else found}"
            )
            raise InputError(
                f"{file}: a grid must have base and axes, and perhaps {', '.join(sorted(KNOWN - {'base', 'axes'}))}; {came}"
            )
        base = tuple(file.parent / one for one in _listed(found["base"]))
        for one in base:
            if not one.is_file():
                raise InputError(f"{file}: base {one} is not there; paths count from the grid's file")
        if not isinstance(found["axes"], dict):
            raise InputError(f"{file}: axes must be names with their values, got {found['axes']!r}")
        axes = {str(name): _values(file, str(name), given) for name, given in found["axes"].items()}
        seeds, choose = found.get("seeds", [0, 1, 2]), found.get("choose")
        if not isinstance(seeds, list) or not seeds or not all(isinstance(one, int) for one in seeds):
            raise InputError(f"{file}: seeds must be a list of whole numbers, got {seeds!r}")
        if choose is not None and choose not in axes:
            raise InputError(f"{file}: choose must be one of the axes {', '.join(axes)}, got {choose!r}")
        named = {name: tuple(map(str, _listed(found.get(name, [])))) for name in ("metrics", "baseline")}
        return cls(file.stem, base, axes, found.get("options") or {}, tuple(dict.fromkeys(seeds)), choose, **named)

    def cells(self) -> Iterator[Cell]:
        """All of them: the seeds of an experiment one after the other."""
        for values in product(*(axis.items() for axis in self.axes.values())):
            options = dict(self.options)
            for _, own in values:
                options |= own
            for seed in self.seeds:
                yield Cell(tuple(name for name, _ in values), options, seed)

    def rival(self, cell: Cell) -> tuple[str, ...]:
        """What the cells share among which one is chosen: their values on all other axes."""
        return tuple(name for axis, name in zip(self.axes, cell.names, strict=True) if axis != self.choose)


def as_word(value: Any) -> str:
    """A value as the command line takes it."""
    return value if isinstance(value, str) else json.dumps(value)


def _values(file: Path, axis: str, given: Any) -> dict[str, dict[str, Any]]:
    """The named values of an axis: a list of values of the option that the axis is named after, or names with their options."""
    if isinstance(given, list) and given:
        return {f"{axis.rpartition('.')[2]}={_name(value)}": {axis: value} for value in given}
    if isinstance(given, dict) and given and all(own is None or isinstance(own, dict) for own in given.values()):
        return {_name(name): own or {} for name, own in given.items()}
    text = f"{file}: the axis {axis} must be a list of values, or names with their options"
    raise InputError(f"{text}, as in 'ranknet: {{model.loss: ltr.losses.RankNetLoss}}'; got {given!r}")


def _name(value: Any) -> str:
    """A folder name: of a class path or a path its last part."""
    text = value.rpartition("/" if "/" in value else ".")[2] if isinstance(value, str) else as_word(value)
    text = f"{value:g}" if isinstance(value, float) else text or str(value)
    return "".join(letter if letter.isalnum() or letter in " .,=+-_" else "_" for letter in text)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
