"""Encode a corpus by tasks of Ray, one for each missing shard.

python examples/cluster/encode_ray.py RANKER CORPUS OUTPUT     (RAY_ADDRESS: a cluster that runs)
"""

import sys

import ray

from ltr.use.corpus_encoding import CorpusEncoding, open_encoding

OPENED: dict[str, CorpusEncoding] = {}  # of a worker, which loads the model once


@ray.remote(max_retries=5)
def encode(number: int, ranker: str, corpus: str, folder: str) -> int:
    """Encode a shard; the shard goes into its file, and only its number through Ray."""
    if folder not in OPENED:
        OPENED[folder] = open_encoding(ranker, corpus, folder)
    OPENED[folder].encode(number)
    return number


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(f"usage: python {sys.argv[0]} RANKER CORPUS OUTPUT")
    ranker, corpus, folder = sys.argv[1:]
    encoding = open_encoding(ranker, corpus, folder)
    missing = encoding.missing()
    ray.init(include_dashboard=False)
    task = encode.options(num_gpus=1) if ray.cluster_resources().get("GPU") else encode
    ray.get([task.remote(number, ranker, corpus, folder) for number in missing])
    print(f"{len(missing)} shards made; digest {encoding.finish()['digest']}")
