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
from harness.machine import allocator, machine_line
from harness.options import parser
from harness.tables import head
from harness.turns import SECONDS, Case, Side, Work, measure
from torch import Tensor
from torch.nn.functional import logsigmoid

ST = "sentence-transformers"
PML = "pytorch-metric-learning"
ALLRANK = "allRank"
ST_LOSSES = "sentence_transformers.sentence_transformer.losses"
EMBEDDING = 384
MARGIN = 1.0  # of distances around 27.7 ± 1: some three triplets of four are active
# (texts of a label, texts of a batch)
TRIPLET_SHAPES = ((4, 256), (4, 1024), (4, 2048), (32, 1024), (256, 1024), (256, 8192))


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

    x, group = texts(labels, per_label)
    module = getattr(losses, loss)(margin=MARGIN)

    def compute() -> Tensor:
        are_alike = (group[:, None] == group).float()
        is_other = ~torch.eye(len(x), dtype=torch.bool)  # no text is compared with itself
        return module(euclidean(x, x), are_alike, is_other)

    return x, compute


def st_triplets(loss: str, labels: int, per_label: int) -> Work:
    """sentence-transformers. Its semi-hard mean is over all positives, ours over anchors: here all
    have as many.
    """
    x, group = texts(labels, per_label)
    module = getattr(import_module(ST_LOSSES), loss)(model=None, margin=MARGIN)
    return x, lambda: module.compute_loss_from_embeddings([x], group)


def pml_triplets(loss: str, labels: int, per_label: int) -> Work:
    """pytorch-metric-learning. Its default is the mean over the active triplets, of normalised
    embeddings.
    """
    from pytorch_metric_learning import distances, losses

    x, group = texts(labels, per_label)
    distance = distances.LpDistance(normalize_embeddings=False)
    module = losses.TripletMarginLoss(MARGIN, distance=distance)
    return x, lambda: module(x, group)


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

    options: dict[str, Any] = {}
    if loss == "LambdaLoss":
        options = {"scheme": "ndcg2++", "mu": 10.0}
    module = getattr(losses, loss)(**options)
    scores, labels = lists(n_lists, n_docs, ties=loss != "ListMLELoss")
    return scores, lambda: module(scores, labels)


def allrank_lists(loss: str, n_lists: int, n_docs: int) -> Work:
    """allRank. Its LambdaLoss sums over lists, ours is the mean. Its ListMLE breaks ties at random:
    there labels have none.
    """
    # The losses import a number and a function from two modules, which import torchvision and
    # gcsfs: stand-ins have just that number and that function.
    stand_in("allrank.data.dataset_loading", PADDED_Y_VALUE=-1)
    stand_in("allrank.models.model_utils", get_torch_device=None)
    function = getattr(import_module("allrank.models.losses"), loss)
    options: dict[str, Any] = {}
    divisor = 1
    if loss == "lambdaLoss":
        options = {"weighing_scheme": "ndcgLoss2PP_scheme", "mu": 10.0, "reduction": "sum"}
        divisor = n_lists
    scores, labels = lists(n_lists, n_docs, ties=loss != "listMLE")
    return scores, lambda: function(scores, labels, **options) / divisor


def stand_in(module: str, **values: object) -> None:
    """Put these values where an import of the module finds them."""
    vars(sys.modules.setdefault(module, ModuleType(module))).update(values)


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
    for per_label, batch in TRIPLET_SHAPES:
        if batch == 8192:
            yield growth_case(batch, per_label)
            continue
        shape = (batch // per_label, per_label)
        sides = triplet_sides("BatchAllTripletLoss", shape)
        if per_label > 4:
            sides[PML] = Side(pml_triplets, "BatchAllTripletLoss", shape)
        yield Case(f"batch-all, {per_label} per label, B = {batch}", sides)
    for per_label, batch in TRIPLET_SHAPES:
        sides = triplet_sides("BatchSemiHardTripletLoss", (batch // per_label, per_label))
        yield Case(f"semi-hard, {per_label} per label, B = {batch}", sides)


def triplet_sides(loss: str, shape: tuple[int, int]) -> dict[str, Side]:
    """Ours and that of sentence-transformers, which has the same name."""
    return {"ltr": Side(our_triplets, loss, shape), ST: Side(st_triplets, loss, shape)}


def growth_case(batch: int, per_label: int) -> Case:
    """Ours alone, over the whole batch and over a quarter of it."""
    sides = {}
    for n_labels in (batch // 4 // per_label, batch // per_label):
        shape = (n_labels, per_label)
        sides[f"ltr, B = {n_labels * per_label}"] = Side(our_triplets, "BatchAllTripletLoss", shape)
    st_gigabytes = 4 * batch * (per_label - 1) * batch / 1e9
    pml_gigabytes = batch**3 / 1e9
    return Case(
        "batch-all, 256 per label, growth to B = 8192, 16 times the scores",
        sides,
        agree=False,
        note=f"{ST} cannot run, a tensor would be {st_gigabytes:.0f} GB; {PML} neither, {pml_gigabytes:.0f} GB",
    )


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
    first_of_kind: dict[str, Case] = {}
    for case in cases:
        kind = case.name.partition(",")[0]
        first_of_kind.setdefault(kind, case)
    small = []
    for case in first_of_kind.values():
        sides = {}
        for name, side in case.sides.items():
            sides[name] = side._replace(shape=tuple(min(n, 8) for n in side.shape))
        small.append(case._replace(sides=sides))
    return small


def installed(package: str) -> str:
    """Name and version."""
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package} absent"


def main() -> None:
    """Print a table per group of cases."""
    arguments = parser(__doc__)
    arguments.add_argument(
        "patterns",
        nargs="*",
        default=["*"],
        metavar="CASE-PATTERN",
        help="a part of a case's name, or a glob",
    )
    options = arguments.parse_args()
    torch.set_num_threads(1)
    peers = ", ".join(map(installed, (ST, PML, ALLRANK)))
    print(f"{machine_line()}; {peers}; allocator: {allocator()}")
    print("\ntime and memory: how many times those of the first side")
    for title, cases in (("Triplets", triplet_cases()), ("Lists", list_cases())):
        chosen = [case for case in cases if is_named(case, options.patterns)]
        if options.tiny:
            chosen = tiny(chosen)
        if chosen:
            columns = ["case", "side", "ms", "steps kept", "MB", "time", "memory"]
            print(f"\n{title}\n\n{head(columns)}", flush=True)
        for case in chosen:
            seconds = 0 if options.tiny else SECONDS
            measure(case, ["torch", "ltr.losses", ST_LOSSES], seconds)


def is_named(case: Case, patterns: list[str]) -> bool:
    """Whether one of the patterns is a part of the case's name."""
    return any(fnmatch(case.name, f"*{pattern}*") for pattern in patterns)


if __name__ == "__main__":
    main()
