"""Steps of ragged batches do not grow the process: sizes of chunks, and so buffers, recur."""

import subprocess
import sys

import pytest

WARM_UP = 100
STEPS = 200
# Documents and their shortest length; the longest has 64 tokens. 16 of 40 and more make some 130
# sums and 5 sizes of chunks. On a CPU that does not multiply bfloat16, its attention takes texts of
# one length together, and oneDNN keeps a kernel for each count and length: few of both, so that all
# have come.
RAGGED = {"32-true": ("16", "40"), "bf16-mixed": ("4", "60")}
PROGRAM = f"""
import sys
import torch
from ltr.batch import Texts
from ltr.losses import RankNetLoss
from ltr.models import PairWiseBertRanker

torch.manual_seed(0)
ranker = PairWiseBertRanker(sys.argv[1], max_length=64)
optimiser = torch.optim.AdamW(ranker.parameters())
n_texts, shortest, leaks, kept = int(sys.argv[3]), int(sys.argv[4]), len(sys.argv) > 5, []
loss, labels = RankNetLoss(), torch.tensor([1.0, 0.0]).expand(n_texts // 2, 2)

def resident():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))

for step in range({WARM_UP + STEPS}):
    if step == {WARM_UP}:
        before = resident()
    lengths = torch.randint(shortest, 65, (n_texts,))
    ids = torch.randint(5, 20, (int(lengths.sum()),))
    with torch.autocast("cpu", torch.bfloat16, enabled=sys.argv[2] == "bf16-mixed"):
        scores = ranker.score(Texts(ids, lengths, torch.zeros_like(ids)))
    loss(scores.view(-1, 2), labels).backward()
    optimiser.step()
    optimiser.zero_grad()
    if leaks:
        kept.append(torch.ones(25_000))  # 100 kB: hidden states of this tiny encoder, once a step
print(resident() - before)
"""


def grown(backbone: str, precision: str, *leaks: str) -> float:
    """Megabytes that 200 steps add to a process of their own, which has imported everything."""
    command = [sys.executable, "-c", PROGRAM, backbone, precision, *RAGGED[precision], *leaks]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) / 1000


pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="VmRSS is Linux's"),
    pytest.mark.usefixtures("programs_begin_warm"),
]


@pytest.mark.long
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_200_steps_of_ragged_batches_do_not_grow_the_process(backbone, precision):
    assert grown(backbone, precision) < 10


@pytest.mark.long
def test_a_tensor_kept_in_each_step_is_seen(backbone):
    assert grown(backbone, "32-true", "leaks") > 15
