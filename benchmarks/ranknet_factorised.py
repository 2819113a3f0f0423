"""What does RankNet's factorised gradient save?  python benchmarks/ranknet_factorised.py

One list, the two-layer net of RankNet over 100 features, float32, one CPU thread. Three sides find
the gradient of the mean cost of the pairs P = {(i, j) : y_i > y_j}, where a pair costs C_ij = log(1
+ exp(-(s_i - s_j))):

* per pair, as in the RankNet of 2005: each pair has its own forward, of two documents, and its own
  backward;
* dense: one forward of the list, the pairs as an ``[N, N]`` matrix in autograd, one backward;
* ours: one forward of the list, :class:`ltr.losses.RankNetLoss`, one backward.

Per pair, the net differentiates 2·|P| scores: dC_ij/dθ = -sigmoid(s_j - s_i) · (∂s_i/∂θ - ∂s_j/∂θ).
Factorised, the pairs of a document are summed to one number before the net is asked, and it
differentiates N scores:

    dL/dθ = Σ_i λ_i ∂s_i/∂θ,    λ_i = (Σ_{j: y_j > y_i} sigmoid(s_i - s_j) - Σ_{j: y_i > y_j}
    sigmoid(s_j - s_i)) / |P|

λ_i = ∂L/∂s_i, so autograd factorises by itself wherever a list goes through the net as a whole:
dense does it too, and ours differs only in how it sums over the pairs. Per pair asks the net 2·|P|
/ N times as often; what its ratio has beyond that is the overhead of small calls. The RankNet of
2005 also took a step after each pair; here none is taken, so that all compute the same.

CPU time, which other processes disturb less than time on the clock. The sides take turns; medians,
where a step of minutes is measured twice.

References:
    Burges et al. (2005), Learning to rank using gradient descent; Burges (2010), From RankNet to
    LambdaRank to LambdaMART: an overview, section 2.1.
"""

import statistics
import time
from collections.abc import Callable

import torch
from harness.machine import machine_line
from harness.options import parser
from harness.tables import head, row
from harness.turns import SHORTEST
from torch import Tensor, nn
from torch.nn import functional as F

from ltr.losses import RankNetLoss

LISTS = (10, 100, 1000)  # documents
FEATURES = 100
HIDDEN = 10
TURNS = 41
SECONDS = 6.0  # of measured steps per side, after which it is only measured once more


def graded_list(n_docs: int) -> tuple[Tensor, Tensor]:
    """Features ``[N, F]``, and grades ``[N]`` from 0 to 4 that follow a noisy linear score."""
    weights = torch.randn(FEATURES)
    x = torch.randn(n_docs, FEATURES)
    score = x @ weights + torch.randn(n_docs)
    return x, torch.bucketize(score, torch.tensor([-1.0, 0.0, 1.0, 2.0])).float()


def per_pair(net: nn.Module, x: Tensor, labels: Tensor) -> None:
    """A forward of two documents and a backward for each pair."""
    pairs = (labels[:, None] > labels).nonzero()
    gap = torch.tensor([[-1.0, 1.0]])
    share = torch.tensor([[1 / len(pairs)]])
    for pair in pairs:
        F.softplus(gap @ net(x[pair])).backward(share)


def dense(net: nn.Module, x: Tensor, labels: Tensor) -> None:
    """A forward of the list, every pair in autograd, a backward."""
    scores = net(x).squeeze(1)
    is_pair = labels[:, None] > labels
    (F.logsigmoid(scores[:, None] - scores) * is_pair).sum().div(-is_pair.sum()).backward()


def ours(net: nn.Module, x: Tensor, labels: Tensor) -> None:
    """A forward of the list, our loss, a backward."""
    RankNetLoss()(net(x).T, labels[None]).backward()


def measure(
    side: Callable[..., None], net: nn.Module, x: Tensor, labels: Tensor, n_steps: int = 1
) -> tuple[float, Tensor]:
    """CPU seconds of a step, and the gradient of all parameters in a row."""
    start = time.process_time()
    for _ in range(n_steps):
        net.zero_grad()
        side(net, x, labels)
    seconds = (time.process_time() - start) / n_steps
    return seconds, nn.utils.parameters_to_vector(p.grad for p in net.parameters())


def compare(n_docs: int, turns: int = TURNS) -> None:
    """Print the row of a list; the sides must agree before they are timed."""
    torch.manual_seed(0)
    x, labels = graded_list(n_docs)
    net = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))
    sides = (per_pair, dense, ours)
    times = []  # of each side: seconds of its steps
    n_steps = []  # of a measurement
    gradients = []
    for side in sides:
        seconds, gradient = measure(side, net, x, labels)
        # The median forgets the warm-up; a step of minutes has none.
        times.append([seconds])
        n_steps.append(max(1, round(SHORTEST / seconds)))
        gradients.append(gradient)
    for side, gradient in zip(sides, gradients, strict=True):
        error = (gradient - gradients[0]).norm() / gradients[0].norm()
        assert error < 1e-4, (
            f"{n_docs} documents, {side.__name__}: the gradient differs by {error:.1e} of its length"
        )

    for turn in range(turns):
        for i, side in enumerate(sides):
            has_time_left = sum(times[i]) * n_steps[i] < SECONDS
            if has_time_left or turn == turns // 2:  # every side is measured twice at least
                times[i].append(measure(side, net, x, labels, n_steps[i])[0])

    per_pair_s, dense_s, ours_s = [statistics.median(steps) for steps in times]
    cells = [f"{n_docs:,}", f"{int((labels[:, None] > labels).sum()):,}"]
    for seconds in (per_pair_s, dense_s, ours_s):
        digits = 1 if seconds > 0.01 else 3
        cells.append(f"{seconds * 1e3:,.{digits}f}")
    cells += [f"{per_pair_s / ours_s:,.0f}", f"{dense_s / ours_s:.2f}"]
    print(row(cells), flush=True)


def main() -> None:
    """Print a table."""
    options = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    print(f"{machine_line()}\n\nms of CPU time, and how many times ours")
    columns = ["list", "pairs", "per pair ms", "dense ms", "ours ms"]
    columns += ["per pair / ours", "dense / ours"]
    print(f"\n{head(columns)}", flush=True)
    lists = LISTS
    turns = TURNS
    if options.tiny:
        lists = LISTS[:1]
        turns = 1
    for n_docs in lists:
        compare(n_docs, turns)


if __name__ == "__main__":
    main()
