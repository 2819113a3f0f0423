"""Several ranks against one process: value and gradients of every loss over every form of lists.

``python tests/rank_gradients.py`` prints the table of docs/results_processes.md;
tests/in_batch/test_gather.py asserts it.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ltr.losses
from ltr.batch import RankingBatch, ScoredLists
from ltr.in_batch.gather import gather_lists, gather_scored
from ltr.in_batch.longer_lists import all_against_all, queries_against_all
from ltr.similarity import cosine
from tests.child_processes import run_ranks

LOSSES = [ltr.losses.LOSSES[name] for name in sorted(ltr.losses.LOSSES)]
FORMS = ("OwnLists", "OtherQueries", "AllTexts")
RANKS = (1, 2, 3, 4)
# Lists of a batch, which the ranks deal out: of 3 lists one of four ranks gets none, and only two
# ranks share 6 evenly. The lists differ in length.
BATCHES = (3, 5, 6)


class Difference(NamedTuple):
    """Of several ranks from one process, both relative, the larger one of the ranks.

    Attributes:
        loss, form, n_ranks, n_lists: what was compared.
        value: of the loss.
        gradient: the largest over the parameters, of the largest element each.
        weakest: the smallest of the parameters' largest gradients in one process: above 0, or
            nothing was compared.
    """

    loss: str
    form: str
    n_ranks: int
    n_lists: int
    value: float
    gradient: float
    weakest: float


class Lists(NamedTuple):
    """Lists with vectors for texts; see :class:`ltr.batch.RankingBatch`."""

    queries: Tensor
    docs: Tensor
    labels: Tensor
    mask: Tensor
    query_rows: Tensor
    doc_rows: Tensor
    judged_rows: Tensor

    def part(self, lists: range) -> "Lists":
        """These lists, cut to the longest of them."""
        at = torch.tensor(list(lists), dtype=torch.int64)
        n_docs, n_judged = (
            int(real[at].sum(dim=1).amax()) if len(lists) else 1
            for real in (self.mask, self.judged_rows >= 0)
        )
        queries, docs, labels, mask, query_rows, doc_rows, judged_rows = (t[at] for t in self)
        docs, labels, mask, doc_rows = (t[:, :n_docs] for t in (docs, labels, mask, doc_rows))
        return Lists(queries, docs, labels, mask, query_rows, doc_rows, judged_rows[:, :n_judged])


def six_lists() -> Lists:
    """Of 3 to 6 documents, grades 0 to 2; documents come twice, and two lists have one query."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.arange(6) < torch.tensor([6, 5, 6, 3, 4, 4]).unsqueeze(1)
    labels = torch.randint(0, 3, (6, 6), generator=generator).double()
    labels[:, 0], labels[:, 1], labels[:, 2] = 2.0, 0.0, 1.0
    doc_rows = torch.stack([torch.randperm(24, generator=generator)[:6] for _ in range(6)])
    judged_rows = torch.randint(0, 24, (6, 4), generator=generator).where(
        torch.arange(4) < torch.tensor([[4], [2], [3], [1], [2], [0]]), -1
    )
    vectors = torch.randn(24, 8, generator=generator, dtype=torch.float64)
    return Lists(
        queries=torch.randn(6, 8, generator=generator, dtype=torch.float64),
        docs=vectors[doc_rows],
        labels=labels * mask,
        mask=mask,
        query_rows=torch.tensor([0, 1, 2, 3, 1, 4]),
        doc_rows=doc_rows,
        judged_rows=judged_rows,
    )


class Trained(nn.Module):
    """A small dual encoder with a temperature, up to the value of its loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Linear(8, 5, dtype=torch.float64)
        self.log_temperature = nn.Parameter(torch.tensor(0.2, dtype=torch.float64))

    def forward(self, lists: Lists, loss: nn.Module, form: str) -> Tensor:
        """Of the lists of all ranks."""
        queries = self.encoder(lists.queries)
        docs = self.encoder(lists.docs)
        temperature = self.log_temperature.exp()
        if form == "OwnLists":
            scores = cosine(queries.unsqueeze(1), docs).squeeze(1) / temperature
            own = gather_scored(ScoredLists(scores, lists.labels, lists.mask))
            return loss(own.scores, own.labels, own.mask)
        labels, mask, query_rows, doc_rows, judged_rows = lists[2:]
        batch = RankingBatch(labels, mask, query_rows, doc_rows, judged_rows=judged_rows)
        make = {"OtherQueries": queries_against_all, "AllTexts": all_against_all}[form]
        longer = make(*gather_lists(batch, queries, docs))
        scores = cosine(longer.queries, longer.embeddings[0]) / temperature
        return loss(scores, longer.labels, longer.mask)


def value_and_gradients(
    trained: nn.Module, lists: Lists, loss: nn.Module, form: str
) -> list[Tensor]:
    """The value, and the gradient of every parameter."""
    trained.zero_grad()
    value = trained(lists, loss, form)
    value.backward()
    return [value.detach(), *(p.grad.clone() for p in trained.parameters())]


def _of_all(trained: nn.Module, rank: int, n_ranks: int) -> dict[tuple, list[Tensor]]:
    """By loss, form and number of lists."""
    lists = six_lists()
    found = {}
    for n_lists in BATCHES:
        part = lists.part(range(rank, n_lists, n_ranks))
        for loss in LOSSES:
            for form in FORMS:
                of_part = value_and_gradients(trained, part, loss(), form)
                found[loss.__name__, form, n_lists] = of_part
    return found


def _run_rank(rank: int, folder: str, n_ranks: int) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=n_ranks
    )
    found = _of_all(DistributedDataParallel(Trained()), rank, n_ranks)
    torch.save(found, f"{folder}/{rank}")
    torch.distributed.destroy_process_group()


def differences(numbers_of_ranks: Sequence[int] = RANKS) -> list[Difference]:
    """Of every loss, form, number of ranks and of lists."""
    alone = _of_all(Trained(), 0, 1)
    rows = []
    for n_ranks in numbers_of_ranks:
        with tempfile.TemporaryDirectory() as folder:
            run_ranks(_run_rank, folder, n_ranks, n_ranks=n_ranks)
            ranks = [torch.load(Path(folder) / str(rank)) for rank in range(n_ranks)]
        for (loss, form, n_lists), expected in alone.items():
            value, *gradients = (
                max(_relative(rank[loss, form, n_lists][i], one) for rank in ranks)
                for i, one in enumerate(expected)
            )
            weakest = min(float(one.abs().amax()) for one in expected[1:])
            rows.append(Difference(loss, form, n_ranks, n_lists, value, max(gradients), weakest))
    return rows


def _relative(ours: Tensor, expected: Tensor) -> float:
    assert ours.isfinite().all() and expected.isfinite().all(), "a NaN could hide in the maximum"
    return float((ours - expected).abs().amax() / expected.abs().amax())


def table(rows: list[Difference]) -> str:
    """The largest difference of each loss over ranks and lists, in Markdown."""
    columns = [(form, part) for form in FORMS for part in ("value", "gradient")]
    lines = [
        "| loss | " + " | ".join(f"`{form}`: {part}" for form, part in columns) + " |",
        "| --- |" + " --- |" * len(columns),
    ]
    for loss in LOSSES:
        cells = [loss.__name__]
        for form, part in columns:
            of_cell = [row for row in rows if (row.loss, row.form) == (loss.__name__, form)]
            worst = max(getattr(row, part) for row in of_cell)
            cells.append(f"{worst:.0e}" if worst else "0")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    found = differences()
    print(table(found))
    print(
        f"\n{len(found)} comparisons: {RANKS} ranks, {BATCHES} lists; torch {torch.__version__}, float64, gloo"
    )
