"""In-batch negatives that are read in windows: for each query another window of a document may be
the best.

Letters of shapes: D documents, S windows of all of them, W windows of each after padding, R rows,
C columns, H dimensions.
"""

import torch
from torch import Tensor

from ltr.models import DualEncoder
from ltr.processes import all_gather


def windows_in_rows(windows: Tensor, counts: Tensor) -> Tensor:
    """The embeddings of each document's windows beside each other, ``[D, W · H]``. Where it has
    fewer than the W of the longest document of all processes, its first one is repeated: that is
    never better than itself. All processes must call it.

    Args:
        windows: ``[S, H]``, end to end.
        counts: ``[D]`` int64, windows of each document.
    """
    most = counts.max().unsqueeze(0) if len(counts) else counts.new_ones(1)
    width = int(all_gather(most).max())
    number = torch.arange(width, device=counts.device)
    first = (counts.cumsum(0) - counts).unsqueeze(1)
    places = first + torch.where(number < counts.unsqueeze(1), number, 0)
    return windows[places].flatten(1)


def best_embeddings(encoder: DualEncoder, rows: Tensor, columns: Tensor) -> Tensor:
    """The embedding of each column's best window for each row, ``[R, C, H]``. The choice has no
    gradient; what is chosen has one.

    Args:
        encoder: compares.
        rows: ``[R, H]``.
        columns: ``[C, W · H]``, as :func:`windows_in_rows` lays them out.
    """
    windows = columns.reshape(-1, rows.shape[1])
    with torch.no_grad():
        scores = encoder.score(rows, windows).view(len(rows), len(columns), -1)
        best = scores.argmax(dim=2)
    width = scores.shape[2]
    return windows[torch.arange(len(columns), device=best.device) * width + best]
