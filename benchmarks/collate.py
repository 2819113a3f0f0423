"""How long does the data of a training step take, without workers?  python benchmarks/collate.py

Batches of epoch 0. Drawing chooses the documents of each row, and sorts the rows of a window of
batches by length; collating joins the tokens of each pair, at most 256, and pads the lists.

CPU time, which other processes disturb less than time on the clock. Drawing is that of all batches
divided by their number, so that each pays its share of the sorting; collating is that of the median
batch.
"""

import statistics
import time

from harness.machine import machine_line
from harness.options import LIVEQA, MEDQUAD, add_backbone, add_data, parser
from harness.tables import head, row

from ltr.data.layouts import JoinedPairs
from ltr.datamodules import Evaluation, TripletDataModule
from ltr.models.encoder.loading.pretrained import load_tokenizer

ROUNDS = 5
STEPS = 64  # a window


def draw(data: TripletDataModule, steps: int) -> tuple[list, float]:
    """The rows of the first steps, and the seconds that drawing them took."""
    start = time.process_time()
    lists = [data.train.plan.lists(0, step) for step in range(steps)]
    return lists, time.process_time() - start


def main() -> None:
    """Print a table."""
    arguments = parser(__doc__)
    add_data(arguments, LIVEQA, MEDQUAD)
    add_backbone(arguments)
    options = arguments.parse_args()
    folder = options.data
    rounds = 1 if options.tiny else ROUNDS
    tokenizer = load_tokenizer(options.backbone)
    print(machine_line(), f"\n{folder}, {rounds} rounds\n")
    columns = ["lists", "documents", "tokens of a pair", "drawn, ms", "collated, ms"]
    print(head([*columns, "collated, µs a pair"]))
    max_length = 256
    sizes = [(16, 1), (64, 3)]
    if options.tiny:
        max_length = 64
        sizes = [(2, 1)]
    for batch_size, negatives in sizes:
        drawing = []
        collating = []
        for _ in range(rounds):
            # A new one has drawn nothing yet: windows of batches are sorted only once.
            data = TripletDataModule(
                folder,
                negatives="bm25",
                negatives_per_query=negatives,
                batch_size=batch_size,
                evaluation=Evaluation("bm25", depth=20),
            )
            data.reads = JoinedPairs(tokenizer, max_length)
            data.setup("fit")
            steps = 1 if options.tiny else min(len(data.train_dataloader()), STEPS)
            lists, seconds = draw(data, steps)
            drawing.append(seconds / steps)
            for rows_of_step in lists:
                start = time.process_time()
                data.collator(rows_of_step)
                collating.append(time.process_time() - start)
        lengths = []
        for rows_of_step in lists:
            lengths += data.collator(rows_of_step).pairs.lengths.tolist()
        drawn = statistics.median(drawing)
        collated = statistics.median(collating)
        n_pairs = len(lengths) / len(lists)
        cells = [
            batch_size,
            f"1 + {negatives}",
            f"{statistics.fmean(lengths):.0f}",
            f"{drawn * 1e3:.2f}",
            f"{collated * 1e3:.2f}",
            f"{collated / n_pairs * 1e6:.2f}",
        ]
        print(row(cells), flush=True)


if __name__ == "__main__":
    main()
