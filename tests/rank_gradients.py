"""Two ranks against one process: value and gradients of every loss over in-batch lists.

``python tests/rank_gradients.py`` prints the table of docs/distributed.md;
tests/in_batch/test_gather.py asserts it.
"""

import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ltr.losses
from ltr.in_batch.embedded import Embedded
from ltr.in_batch.gather import gather_lists
from ltr.in_batch.longer_lists import all_against_all, queries_against_all
from ltr.similarity import cosine
from tests.child_processes import run_ranks

LOSSES = [ltr.losses.LOSSES[name] for name in sorted(ltr.losses.LOSSES)]
FORMS = {"OtherQueries": queries_against_all, "AllTexts": all_against_all}
# The lists of each of two ranks, of six; the ranks' longest lists differ, but in the even split.
SPLITS = {
    "3 + 2 lists": ([0, 1, 2], [3, 4]),
    "3 + 3 lists": ([0, 1, 2], [3, 4, 5]),
    "1 + 4 lists": ([1], [3, 0, 2, 4]),
    "5 + 0 lists": ([0, 1, 2, 3, 4], []),
}


class Difference(NamedTuple):
    """Of two ranks from one process, both relative, the larger one of the ranks.

    Attributes:
        loss, form, split: what was compared.
        value: of the loss.
        gradient: the largest over the parameters, of the largest element each.
        weakest: the smallest of the parameters' largest gradients in one process: above 0, or
            nothing was compared.
    """

    loss: str
    form: str
    split: str
    value: float
    gradient: float
    weakest: float


class Lists(NamedTuple):
    """Lists with vectors for texts; see :class:`ltr.in_batch.embedded.Embedded`."""

    queries: Tensor
    docs: Tensor
    labels: Tensor
    mask: Tensor
    query_rows: Tensor
    doc_rows: Tensor
    judged_rows: Tensor

    def part(self, lists: list[int]) -> "Lists":
        """These lists, cut to the longest of them."""
        at = torch.tensor(lists, dtype=torch.int64)
        n_docs, n_judged = (
            int(real[at].sum(dim=1).amax()) if lists else 1
            for real in (self.mask, self.judged_rows >= 0)
        )
        queries, docs, labels, mask, query_rows, doc_rows, judged_rows = (t[at] for t in self)
        docs, labels, mask, doc_rows = (t[:, :n_docs] for t in (docs, labels, mask, doc_rows))
        return Lists(queries, docs, labels, mask, query_rows, doc_rows, judged_rows[:, :n_judged])


def six_lists() -> Lists:
    """Of 3 to 6 documents, grades 0 to 2; documents come twice, and two lists have one query."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.arange(6) < torch.tensor([6, 5, 6, 3, 4, 4]).unsqueeze(1)
    labels = torch.randint(0, 3, (6, 6), generator=generator).float()
    labels[:, 0], labels[:, 1], labels[:, 2] = 2.0, 0.0, 1.0
    doc_rows = torch.stack([torch.randperm(24, generator=generator)[:6] for _ in range(6)])
    judged_rows = torch.randint(0, 24, (6, 4), generator=generator).where(
        torch.arange(4) < torch.tensor([[4], [2], [3], [1], [2], [0]]), -1
    )
    vectors = torch.randn(24, 8, generator=generator)
    return Lists(
        queries=torch.randn(6, 8, generator=generator),
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
        self.encoder = nn.Linear(8, 5)
        self.log_temperature = nn.Parameter(torch.tensor(0.2))

    def forward(self, lists: Lists, loss: nn.Module, form: str) -> Tensor:
        """Of the lists of all ranks."""
        longer = FORMS[form](
            gather_lists(
                Embedded(self.encoder(lists.queries), self.encoder(lists.docs), *lists[2:])
            )
        )
        scores = cosine(longer.rows, longer.columns) / self.log_temperature.exp()
        return loss(scores, longer.labels, longer.mask)


def value_and_gradients(
    trained: nn.Module, lists: Lists, loss: nn.Module, form: str
) -> list[Tensor]:
    """The value, and the gradient of every parameter."""
    trained.zero_grad()
    value = trained(lists, loss, form)
    value.backward()
    return [value.detach(), *(p.grad.clone() for p in trained.parameters())]


def _run_rank(rank: int, folder: str) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    trained = DistributedDataParallel(Trained())
    lists = six_lists()
    found = {
        (loss.__name__, form, split): value_and_gradients(
            trained, lists.part(parts[rank]), loss(), form
        )
        for split, parts in SPLITS.items()
        for loss in LOSSES
        for form in FORMS
    }
    torch.save(found, f"{folder}/{rank}")
    torch.distributed.destroy_process_group()


def differences() -> list[Difference]:
    """Of every loss, form and split."""
    with tempfile.TemporaryDirectory() as folder:
        run_ranks(_run_rank, folder)
        ranks = [torch.load(Path(folder) / str(rank)) for rank in range(2)]
    trained = Trained()
    lists = six_lists()
    rows = []
    for split, parts in SPLITS.items():
        whole = lists.part(parts[0] + parts[1])
        for loss in LOSSES:
            for form in FORMS:
                expected = value_and_gradients(trained, whole, loss(), form)
                value, *gradients = (
                    max(_relative(rank[loss.__name__, form, split][i], one) for rank in ranks)
                    for i, one in enumerate(expected)
                )
                weakest = min(float(one.abs().amax()) for one in expected[1:])
                rows.append(Difference(loss.__name__, form, split, value, max(gradients), weakest))
    return rows


def _relative(ours: Tensor, expected: Tensor) -> float:
    assert ours.isfinite().all() and expected.isfinite().all(), "a NaN could hide in the maximum"
    return float((ours - expected).abs().amax() / expected.abs().amax())


def table(rows: list[Difference]) -> str:
    """The largest difference of each loss over the splits, in Markdown."""
    columns = [(form, part) for form in FORMS for part in ("value", "gradient")]
    lines = [
        "| loss | " + " | ".join(f"`{form}`: {part}" for form, part in columns) + " |",
        "| --- |" + " --- |" * len(columns),
    ]
    for loss in LOSSES:
        worst = [
            max(getattr(r, part) for r in rows if (r.loss, r.form) == (loss.__name__, form))
            for form, part in columns
        ]
        lines.append(
            f"| {loss.__name__} | " + " | ".join(f"{x:.0e}" if x else "0" for x in worst) + " |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    found = differences()
    print(table(found))
    print(
        f"\n{len(found)} comparisons: {', '.join(SPLITS)}; torch {torch.__version__}, float32, gloo"
    )
