"""How fast is a TokenStore built?  python benchmarks/tokens.py

Every build is from scratch, in a cache of its own. Reading and checking the texts comes first and
is timed separately.
"""

import json
import os
import statistics
import tempfile
import time

from harness.machine import machine_line
from harness.options import LIVEQA, MEDQUAD, WIKIQA, add_backbone, add_data, parser
from harness.tables import head, row

from ltr.data.collection import open_collection
from ltr.data.tokens import Rendering, TokenStore
from ltr.models.encoder.loading.pretrained import load_tokenizer

RUNS = 5


def main() -> None:
    """Print a table."""
    arguments = parser(__doc__)
    add_data(arguments, MEDQUAD, LIVEQA, WIKIQA, several=True)
    add_backbone(arguments)
    arguments.add_argument("--prompt", default="", help="text in front of every document")
    options = arguments.parse_args()
    runs = 1 if options.tiny else RUNS
    tokenizer = load_tokenizer(options.backbone)
    print(machine_line(), f"\nmedian of {runs} builds\n")
    columns = ["corpus", "documents", "tokens", "read and checked, s", "tokenised, s", "tokens/s"]
    print(head(columns))
    for folder in options.data:
        reading = []
        building = []
        for _ in range(runs):
            with tempfile.TemporaryDirectory() as cache:
                os.environ["LTR_CACHE"] = cache
                start = time.perf_counter()
                corpus = open_collection(folder).corpus
                reading.append(time.perf_counter() - start)
                store = TokenStore.open(corpus, tokenizer, Rendering(options.prompt))
                counts = json.loads((store.folder / "manifest.json").read_text())
                building.append(counts["seconds"])
        read = statistics.median(reading)
        tokenised = statistics.median(building)
        cells = [
            folder,
            f"{counts['texts']:,}",
            f"{counts['tokens']:,}",
            f"{read:.2f}",
            f"{tokenised:.2f}",
            f"{counts['tokens'] / tokenised:,.0f}",
        ]
        print(row(cells))


if __name__ == "__main__":
    main()
