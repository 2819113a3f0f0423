"""How much memory does a batch take that does not fit at once?  python benchmarks/big_batch.py

One training step of a dual encoder over the in-batch softmax of 4,096 pairs. With
``keep_tokens: 0`` memory grows with the chunk and the matrix of scores, not with the activations of
the batch. The peak is that of the whole process, libraries and optimiser included.
"""

import logging
import time
import warnings

import torch
from harness.machine import machine_line, resident
from harness.options import LIVEQA, MEDQUAD, add_backbone, add_data, parser
from harness.trainers import quiet_trainer
from lightning.pytorch import Callback

from ltr.datamodules import Evaluation, GroupDataModule
from ltr.in_batch import OtherQueries
from ltr.losses import SoftmaxLoss
from ltr.models import DualEncoder
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.module import RankerModule


class Timer(Callback):
    """Seconds of the last step."""

    def on_train_batch_start(self, *_: object) -> None:
        self.start = time.perf_counter()

    def on_train_batch_end(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self.start


def main() -> None:
    """Read the options, take the steps, print a line."""
    arguments = parser(__doc__)
    arguments.add_argument("--batch", type=int, default=4096, help="pairs")
    arguments.add_argument("--max-length", type=int, default=128, help="tokens of a text")
    arguments.add_argument("--max-tokens", type=int, help="of a chunk; default: by the device")
    arguments.add_argument(
        "--keep", action="store_true", help="keep all activations, for comparison"
    )
    add_backbone(arguments)
    add_data(arguments, LIVEQA, MEDQUAD)
    options = arguments.parse_args()
    if options.tiny:
        options.batch = 4
        options.max_length = 16
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    encoder = TextEncoder.Options(
        max_tokens=options.max_tokens, keep_tokens=None if options.keep else 0
    )
    ranker = DualEncoder(
        options.backbone, temperature=0.05, max_length=options.max_length, encoder=encoder
    )
    module = RankerModule(ranker, SoftmaxLoss(), in_batch=OtherQueries())
    searched = Evaluation("corpus", depth=10)
    data = GroupDataModule(
        options.data, groups=options.batch, docs_per_group=1, evaluation=searched
    )
    timer = Timer()
    trainer = quiet_trainer(accelerator="auto", max_steps=1, callbacks=[timer], limit_val_batches=0)
    trainer.fit(module, data)
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else resident("VmHWM")
    scores = module.last_step.lists.scores.shape
    assert scores == (options.batch, options.batch)
    how = "all activations kept" if options.keep else "recomputed"
    print(
        f"{options.batch:,} pairs of at most {options.max_length} tokens a text, {how}: "
        f"scores {scores[0]:,} x {scores[1]:,}, loss {module.last_step.loss:.4f}, "
        f"{timer.seconds:.0f} s a step, peak {peak / 1e9:.2f} GB\n{machine_line()}"
    )


if __name__ == "__main__":
    main()
