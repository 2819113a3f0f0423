"""How many of the tokens that a cross-encoder reads are padding?  python benchmarks/padding.py

Every batch of epoch 0, 16 rows of 1 + 3 documents, with and without length buckets. A batch is
padded as a whole, or cut into chunks of similar length.
"""

from itertools import islice, product
from typing import NamedTuple

from harness.machine import machine_line
from harness.options import LIVEQA, MEDQUAD, WIKIQA, add_backbone, add_data, parser
from harness.tables import head, row

from ltr.data.layouts import JoinedPairs
from ltr.datamodules import Evaluation, Loading, TripletDataModule
from ltr.models.encoder.chunks import chunk_spans
from ltr.models.encoder.loading.pretrained import load_tokenizer
from ltr.models.encoder.text_encoder import CHUNK_TOKENS

CASES = (  # data, negatives, max_length
    (MEDQUAD, "bm25", 128),
    (MEDQUAD, "bm25", 256),
    (LIVEQA, "bm25", 256),
    (WIKIQA, "candidates", 96),
)


class Shares(NamedTuple):
    """Of padding, among the tokens that are read."""

    whole: float  # batches
    chunks: float  # for a CPU


def padding_shares(data: TripletDataModule, steps: int | None) -> Shares:
    """Over an epoch, or its first steps."""
    real = 0
    whole = 0
    chunks = 0
    for batch in islice(data.train_dataloader(), steps):
        lengths = sorted(batch.pairs.lengths.tolist())
        real += sum(lengths)
        whole += len(lengths) * lengths[-1]
        for begin, end in chunk_spans(lengths, CHUNK_TOKENS["cpu"], padded=True):
            chunks += (end - begin) * lengths[end - 1]
    return Shares(whole=1 - real / whole, chunks=1 - real / chunks)


def main() -> None:
    """Print a table."""
    arguments = parser(__doc__)
    add_data(arguments, MEDQUAD, LIVEQA, WIKIQA, several=True)
    add_backbone(arguments)
    options = arguments.parse_args()
    tokenizer = load_tokenizer(options.backbone)
    cases = [case for case in CASES if case[0] in options.data]
    if options.tiny:
        cases = [(path, "bm25", 64) for path in options.data]
    print(machine_line(), "\n")
    print(head(["data", "max_length", "buckets", "padding, whole batches", "padding, chunks"]))
    for (path, negatives, max_length), window in product(cases, (1, 64)):
        data = TripletDataModule(
            path,
            negatives,
            negatives_per_query=3,
            evaluation=Evaluation("bm25", depth=20),
            loading=Loading(bucket_window=window),
        )
        data.reads = JoinedPairs(tokenizer, max_length)
        data.setup("fit")
        shares = padding_shares(data, steps=1 if options.tiny else None)
        buckets = "yes" if window > 1 else "no"
        cells = [path, max_length, buckets, f"{shares.whole:.1%}", f"{shares.chunks:.1%}"]
        print(row(cells), flush=True)


if __name__ == "__main__":
    main()
