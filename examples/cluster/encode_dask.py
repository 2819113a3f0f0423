"""Encode a corpus by tasks of Dask, one for each missing shard.

python examples/cluster/encode_dask.py RANKER CORPUS OUTPUT [ADDRESS]     (of a scheduler that runs)
"""

import sys

import dask
from dask.distributed import Client, LocalCluster, as_completed, get_worker

from ltr.search.encoding import EncodingPlan
from ltr.use.corpus_encoding import open_encoding


def encode(number: int, words: tuple[str, str, str], plan: EncodingPlan) -> int:
    """Encode a shard; the shard goes into its file, and only its number through Dask."""
    worker = get_worker()
    if getattr(worker, "opened", None) != (words, plan):  # a worker loads the model once
        worker.encoding = open_encoding(*words)
        worker.opened = (words, plan)
    worker.encoding.encode(number)
    return number


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        sys.exit(f"usage: python {sys.argv[0]} RANKER CORPUS OUTPUT [ADDRESS]")
    ranker, corpus, output = sys.argv[1:4]
    words = (ranker, corpus, output)
    encoding = open_encoding(*words)
    missing = encoding.missing()
    if len(sys.argv) == 5:
        cluster = sys.argv[4]
    else:
        # Otherwise a killed worker that is not back within 15 seconds is given up.
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1 hour"})
        cluster = LocalCluster(threads_per_worker=1, dashboard_address=None)
    with Client(cluster) as client:
        plan = encoding.encoding.plan
        tasks = client.map(encode, missing, words=words, plan=plan, pure=False, retries=5)
        for task in as_completed(tasks):
            task.result()
    print(f"{len(missing)} shards made; digest {encoding.finish()['digest']}")
