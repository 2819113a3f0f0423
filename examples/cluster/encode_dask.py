"""Encode a corpus by tasks of Dask, one for each missing shard.

python examples/cluster/encode_dask.py RANKER CORPUS OUTPUT [ADDRESS]     (of a scheduler that runs)
"""

import sys

from dask.distributed import Client, LocalCluster, as_completed, get_worker

from ltr.search.encoding import Plan
from ltr.use.corpus_encoding import open_encoding


def encode(number: int, ranker: str, corpus: str, folder: str, plan: Plan) -> int:
    """Encode a shard; the shard goes into its file, and only its number through Dask."""
    worker = get_worker()
    made = (folder, plan)
    if getattr(worker, "made", None) != made:  # a worker loads the model once
        worker.encoding = open_encoding(ranker, corpus, folder)
        worker.made = made
    worker.encoding.encode(number)
    return number


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        sys.exit(f"usage: python {sys.argv[0]} RANKER CORPUS OUTPUT [ADDRESS]")
    ranker, corpus, folder, *address = sys.argv[1:]
    encoding = open_encoding(ranker, corpus, folder)
    words = {"ranker": ranker, "corpus": corpus, "folder": folder, "plan": encoding.encoding.plan}
    missing = encoding.missing()
    with Client(address[0] if address else LocalCluster(threads_per_worker=1)) as client:
        tasks = client.map(encode, missing, **words, pure=False, retries=5)
        for task in as_completed(tasks):
            task.result()
    print(f"{len(missing)} shards made; digest {encoding.finish()['digest']}")
