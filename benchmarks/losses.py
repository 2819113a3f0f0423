"""How much time and memory do our losses take, beside those of others?  python benchmarks/losses.py
[CASE-PATTERN …]

Forward and backward on one CPU thread, float32, embeddings of 384 numbers. A pattern is a part of a
case's name, or a glob. harness/turns.py says how it is measured.

Peers: sentence-transformers, and those of ``pip install -e '.[bench]'``. allRank asks for an
ancient torch, but its losses run with ours: ``pip install --no-deps allrank==1.4.3``. A peer that
is not there is reported as absent.
"""

import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

import torch
from harness.machine import allocator, described
from harness.options import parser
from harness.turns import SECONDS, Case, Side, Work, measure
from torch import Tensor
from torch.nn.functional import logsigmoid

ST, PML, ALLRANK = PEERS = ("sentence-transformers", "pytorch-metric-learning", "allRank")
ST_LOSSES = "sentence_transformers.sentence_transformer.losses"
EMBEDDING = 384
MARGIN = 1.0  # of distances around 27.7 ± 1: some three triplets of four are active


def texts(labels: int, per_label: int) -> tuple[Tensor, Tensor]:
    """Embeddings and group numbers of a P x K batch, in random order."""
    group = torch.arange(labels).repeat_interleave(per_label)[torch.randperm(labels * per_label)]
    return torch.randn(len(group), EMBEDDING, requires_grad=True), group


def our_triplets(loss: str, labels: int, per_label: int) -> Work:
    """From embeddings and group numbers, as the peers: distances, labels and mask belong to the
    step.
    """
    from ltr import losses
    from ltr.similarity import euclidean

    (x, group), f = texts(labels, per_label), getattr(losses, loss)(margin=MARGIN)
    return x, lambda: f(
        euclidean(x, x), (group[:, None] == group).float(), ~torch.eye(len(x), dtype=torch.bool)
    )


def st_triplets(loss: str, labels: int, per_label: int) -> Work:
    """sentence-transformers. Its semi-hard mean is over all positives, ours over anchors: here all
    have as many.
    """
    (x, group), f = (
        texts(labels, per_label),
        getattr(import_module(ST_LOSSES), loss)(model=None, margin=MARGIN),
    )
    return x, lambda: f.compute_loss_from_embeddings([x], group)


def pml_triplets(loss: str, labels: int, per_label: int) -> Work:
    """pytorch-metric-learning. Its default is the mean over the active triplets, of normalised
    embeddings.
    """
    losses, distances = (
        import_module(f"pytorch_metric_learning.{name}") for name in ("losses", "distances")
    )
    distance = distances.LpDistance(normalize_embeddings=False)
    (x, group), f = texts(labels, per_label), losses.TripletMarginLoss(MARGIN, distance=distance)
    return x, lambda: f(x, group)


def lists(n_lists: int, n_docs: int, ties: bool = True) -> tuple[Tensor, Tensor]:
    """Scores and labels. Each list is a shuffle of the same labels, grades from 0 to 4, so that all
    have as many pairs: then the mean over the pairs of each list and over lists (our RankNet) is
    the mean over all pairs (allRank's).
    """
    grades = torch.randint(5, (n_docs,)).float() if ties else torch.linspace(0, 4, n_docs)
    labels = torch.stack([grades[torch.randperm(n_docs)] for _ in range(n_lists)])
    return torch.randn(n_lists, n_docs, requires_grad=True), labels


def our_lists(loss: str, n_lists: int, n_docs: int) -> Work:
    """Losses over lists."""
    from ltr import losses

    options: dict[str, Any] = {"scheme": "ndcg2++", "mu": 10.0} if loss == "LambdaLoss" else {}
    (scores, labels), f = (
        lists(n_lists, n_docs, ties=loss != "ListMLELoss"),
        getattr(losses, loss)(**options),
    )
    return scores, lambda: f(scores, labels)


def allrank_lists(loss: str, n_lists: int, n_docs: int) -> Work:
    """allRank. Its LambdaLoss sums over lists, ours is the mean. Its ListMLE breaks ties at random:
    there labels have none.
    """
    # The losses want a number and a function of two modules which want torchvision and gcsfs:
    # stand-ins have just these.
    for name, value in (
        ("data.dataset_loading", {"PADDED_Y_VALUE": -1}),
        ("models.model_utils", {"get_torch_device": None}),
    ):
        stand_in = sys.modules.setdefault(f"allrank.{name}", ModuleType(name))
        vars(stand_in).update(value)
    f = getattr(import_module("allrank.models.losses"), loss)
    options = (
        {"weighing_scheme": "ndcgLoss2PP_scheme", "mu": 10.0, "reduction": "sum"}
        if loss == "lambdaLoss"
        else {}
    )
    scores, labels = lists(n_lists, n_docs, ties=loss != "listMLE")
    divisor = n_lists if loss == "lambdaLoss" else 1
    return scores, lambda: f(scores, labels, **options) / divisor


def plain_hinge(loss: str, n_lists: int, n_docs: int) -> Work:
    """The margin ranking loss as one would write it down."""
    scores, labels = lists(n_lists, n_docs)

    def mean_over_pairs() -> Tensor:
        pairs = labels[:, :, None] > labels[:, None, :]
        return (1.0 - (scores[:, :, None] - scores[:, None, :])).relu()[pairs].mean()

    return scores, mean_over_pairs


def plain_ranknet(loss: str, n_lists: int, n_docs: int) -> Work:
    """RankNet as one would write it down, over all N² pairs of each list."""
    scores, labels = lists(n_lists, n_docs)

    def mean_over_pairs() -> Tensor:
        pairs = labels[:, :, None] > labels[:, None, :]
        costs = -logsigmoid(scores[:, :, None] - scores[:, None, :]) * pairs
        return (costs.sum(dim=(1, 2)) / pairs.sum(dim=(1, 2)).clamp(min=1)).mean()

    return scores, mean_over_pairs


def triplet_cases() -> Iterator[Case]:
    """Triplet losses over P x K batches."""
    for kind, loss in (
        ("batch-all", "BatchAllTripletLoss"),
        ("semi-hard", "BatchSemiHardTripletLoss"),
    ):
        for per_label, batch in (
            (4, 256),
            (4, 1024),
            (4, 2048),
            (32, 1024),
            (256, 1024),
            (256, 8192),
        ):
            shape = (batch // per_label, per_label)
            sides = {"ltr": Side(our_triplets, loss, shape), ST: Side(st_triplets, loss, shape)}
            if kind == "batch-all" and batch == 8192:
                sides = {f"ltr, B = {256 * n}": Side(our_triplets, loss, (n, 256)) for n in (8, 32)}
                gigabytes = [4 * batch * (per_label - 1) * batch / 1e9, batch**3 / 1e9]
                note = f"{ST} cannot run, a tensor would be {gigabytes[0]:.0f} GB; {PML} neither, {gigabytes[1]:.0f} GB"
                yield Case(
                    "batch-all, 256 per label, growth to B = 8192, 16 times the scores",
                    sides,
                    agree=False,
                    note=note,
                )
                continue
            if kind == "batch-all" and per_label > 4:
                sides[PML] = Side(pml_triplets, loss, shape)
            yield Case(f"{kind}, {per_label} per label, B = {batch}", sides)


def list_cases() -> Iterator[Case]:
    """Pairwise and listwise losses."""
    for name, ours, theirs, shapes in (
        ("RankNet", "RankNetLoss", "rankNet", ((16, 10), (16, 100), (4, 1000))),
        ("NDCG-Loss2++", "LambdaLoss", "lambdaLoss", ((16, 10), (16, 100), (4, 1000))),
        ("ListNet", "ListNetLoss", "listNet", ((16, 100),)),
        ("ListMLE", "ListMLELoss", "listMLE", ((16, 100),)),
    ):
        for shape in shapes:
            sides = {
                "ltr": Side(our_lists, ours, shape),
                ALLRANK: Side(allrank_lists, theirs, shape),
            }
            if name == "RankNet":
                sides["plain O(N²)"] = Side(plain_ranknet, "", shape)
            yield Case(f"{name}, {shape[0]} lists of {shape[1]}", sides)
    hinge = {
        "ltr": Side(our_lists, "MarginRankingLoss", (1, 10_000)),
        "plain O(N²)": Side(plain_hinge, "", (1, 10_000)),
    }
    yield Case("margin ranking, 1 list of 10000", hinge)


def tiny(cases: list[Case]) -> list[Case]:
    """One case of each kind, with sizes up to 8."""
    kinds = {case.name.partition(",")[0]: case for case in reversed(cases)}

    def small(side: Side) -> Side:
        return side._replace(shape=tuple(min(n, 8) for n in side.shape))

    return [
        case._replace(sides={name: small(side) for name, side in case.sides.items()})
        for case in kinds.values()
    ]


def installed(package: str) -> str:
    """Name and version."""
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package} absent"


def main() -> None:
    """Print a table per group of cases."""
    made = parser(__doc__)
    made.add_argument(
        "patterns",
        nargs="*",
        default=["*"],
        metavar="CASE-PATTERN",
        help="a part of a case's name, or a glob",
    )
    options = made.parse_args()
    torch.set_num_threads(1)
    print(f"{described()}; {', '.join(map(installed, PEERS))}; allocator: {allocator()}")
    print("\ntime and memory: how many times those of the first side")
    for title, cases in (("Triplets", triplet_cases()), ("Lists", list_cases())):
        chosen = [
            case
            for case in cases
            if any(fnmatch(case.name, f"*{pattern}*") for pattern in options.patterns)
        ]
        chosen = tiny(chosen) if options.tiny else chosen
        if chosen:
            print(
                f"\n{title}\n\n| case | side | ms | steps kept | MB | time | memory |\n| --- {'| --- ' * 6}|",
                flush=True,
            )
        for case in chosen:
            measure(
                case, ["torch", "ltr.losses", ST_LOSSES], seconds=0 if options.tiny else SECONDS
            )


if __name__ == "__main__":
    main()
