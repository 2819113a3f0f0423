"""Encode a corpus by tasks of Ray, one for each missing shard.

python examples/cluster/encode_ray.py RANKER CORPUS OUTPUT     (RAY_ADDRESS: a cluster that runs)
"""

import sys

import ray

from ltr.use.corpus_encoding import CorpusEncoding, open_encoding

Words = tuple[str, str, str]  # ranker, corpus and output
OPENED: dict[Words, CorpusEncoding] = {}  # of a worker, which loads the model once


@ray.remote(max_retries=5)
def encode(number: int, words: Words) -> int:
    """Encode a shard; the shard goes into its file, and only its number through Ray."""
    if words not in OPENED:
        OPENED[words] = open_encoding(*words)
    OPENED[words].encode(number)
    return number


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(f"usage: python {sys.argv[0]} RANKER CORPUS OUTPUT")
    ranker, corpus, output = sys.argv[1:]
    words = (ranker, corpus, output)
    encoding = open_encoding(*words)
    missing = encoding.missing()
    ray.init(include_dashboard=False)
    gpus = 1 if ray.cluster_resources().get("GPU") else 0
    ray.get([encode.options(num_gpus=gpus).remote(number, words) for number in missing])
    print(f"{len(missing)} shards made; digest {encoding.finish()['digest']}")
