"""The cells of a grid, compared as its file says."""

from collections.abc import Sequence
from dataclasses import dataclass

from ltr.compare.comparison import MetricResult, compare
from ltr.compare.experiment import read_experiments
from ltr.compare.query_groups import grouped
from ltr.grid.definition import Cell, experiment_folder
from ltr.grid.folder import GridFolder


@dataclass(frozen=True)
class ComparedCells:
    """A comparison of the experiments of a grid.

    Attributes:
        results: by metric.
        remarks: what is not compared, in lines.
        values_of: the values on the axes, by the names of the experiments in the comparison.
    """

    results: list[MetricResult]
    remarks: list[str]
    values_of: dict[str, tuple[str, ...]]

    @classmethod
    def of(cls, folder: GridFolder, cells: Sequence[Cell]) -> "ComparedCells":
        """The comparison of cells that are made.

        Raises:
            InputError: if they can't be compared.
        """
        read = read_experiments([str(folder.root / cell.folder) for cell in cells])
        # The name of each experiment in the comparison, by its folder.
        name_of = {experiment.runs[0].folder.parent: experiment.name for experiment in read}
        values = list(
            dict.fromkeys(cell.names for cell in cells)
        )  # on the axes, of each experiment
        names = [name_of[folder.root / experiment_folder(each)] for each in values]
        place_pairs, remarks = folder.grid.pairs_by_place(values)
        pairs = [(names[place], names[baseline_place]) for place, baseline_place in place_pairs]
        results = compare(grouped(read), folder.grid.metrics, pairs)
        return cls(results, remarks, dict(zip(names, values, strict=True)))
