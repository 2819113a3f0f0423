"""A section of what ``ltr check`` says."""

from dataclasses import dataclass, field

from ltr.compare.tables import Table


@dataclass(frozen=True)
class Section:
    """What one check has found.

    Attributes:
        title: of the section, as ``Leakage between splits``.
        tables: of numbers.
        lines: what is found, one sentence each.
        severe: what is likely to spoil the experiment, one line each. ``ltr fit`` says what
            :func:`ltr.check.kept_forecast.severe_lines` finds of it.
        entries: numbers with names, for JSON.
    """

    title: str
    tables: list[Table] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    severe: list[str] = field(default_factory=list)
    entries: dict[str, object] = field(default_factory=dict)
