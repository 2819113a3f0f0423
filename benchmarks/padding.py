"""How many of the tokens that a cross-encoder reads are padding?  python benchmarks/padding.py

Every batch of epoch 0, 16 rows of 1 + 3 documents, with and without length buckets. A batch is
padded as a whole, or cut into chunks of similar length.
"""

from itertools import islice, product

from harness.machine import described
from harness.options import LIVEQA, MEDQUAD, WIKIQA, add_backbone, add_data, parser

from ltr.data.formats import JoinedPairs
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


def shares(data: TripletDataModule, steps: int | None) -> list[float]:
    """Share of padding over an epoch, or its first steps: of whole batches, and of chunks for a
    CPU.
    """
    real = 0
    padded = [0, 0]
    for batch in islice(data.train_dataloader(), steps):
        lengths = sorted(batch.pairs.lengths.tolist())
        real += sum(lengths)
        for i, limit in enumerate((10**9, CHUNK_TOKENS["cpu"])):
            padded[i] += sum(
                (end - begin) * lengths[end - 1]
                for begin, end in chunk_spans(lengths, limit, padded=True)
            )
    return [1 - real / p for p in padded]


def main() -> None:
    """Print a table."""
    made = parser(__doc__)
    add_data(made, MEDQUAD, LIVEQA, WIKIQA, several=True)
    add_backbone(made)
    options = made.parse_args()
    tokenizer = load_tokenizer(options.backbone)
    cases = (
        [(path, "bm25", 64) for path in options.data]
        if options.tiny
        else [case for case in CASES if case[0] in options.data]
    )
    print(described(), "\n")
    print(
        "| data | max_length | buckets | padding, whole batches | padding, chunks |\n"
        + "| --- " * 5
        + "|"
    )
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
        whole, chunks = shares(data, steps=1 if options.tiny else None)
        print(
            f"| {path} | {max_length} | {'yes' if window > 1 else 'no'} | {whole:.1%} | {chunks:.1%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
