"""Steps of ragged batches don't grow the process: what one step takes, the next one takes again."""

import subprocess
import sys

import pytest

WARM_UP, STEPS = 100, 200
PROGRAM = f"""
import sys
import torch
from ltr.batch import Texts
from ltr.losses import RankNetLoss
from ltr.models import PairWiseBertRanker

torch.manual_seed(0)
ranker = PairWiseBertRanker(sys.argv[1], max_length=64)
optimiser = torch.optim.AdamW(ranker.parameters())
loss, labels = RankNetLoss(), torch.tensor([1.0, 0.0]).expand(8, 2)
kept = []

def resident():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))

for step in range({WARM_UP + STEPS}):
    if step == {WARM_UP}:
        before = resident()
    lengths = torch.randint(1, 65, (16,))
    ids = torch.randint(5, 20, (int(lengths.sum()),))
    with torch.autocast("cpu", torch.bfloat16, enabled=sys.argv[2] == "bf16-mixed"):
        scores = ranker.score(Texts(ids, lengths, torch.zeros_like(ids)))
    loss(scores.float().view(8, 2), labels).backward()
    optimiser.step()
    optimiser.zero_grad()
    if sys.argv[3] == "leaks":
        kept.append(torch.ones(10_000))  # 40 kB, as of ten tokens of one layer
print(resident() - before)
"""


def grown(backbone: str, precision: str, how: str = "") -> float:
    """Megabytes that 200 steps have added to a process of their own."""
    output = subprocess.run([sys.executable, "-c", PROGRAM, backbone, precision, how], check=True, capture_output=True, text=True)
    return int(output.stdout) / 1000


@pytest.mark.skipif(sys.platform != "linux", reason="VmRSS is Linux's")
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_steps_of_ragged_batches_do_not_grow_the_process(backbone, precision):
    assert grown(backbone, precision) < 4


@pytest.mark.skipif(sys.platform != "linux", reason="VmRSS is Linux's")
def test_a_leak_of_40_kb_a_step_is_seen(backbone):
    assert grown(backbone, "32-true", "leaks") > 4
