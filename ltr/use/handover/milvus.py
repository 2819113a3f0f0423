"""An encoded corpus as a database of Milvus Lite, which is a folder."""

from pathlib import Path
from typing import Any

import numpy as np

from ltr.errors import InputError
from ltr.spans import spans
from ltr.use.handover.encoded_corpus import EncodedCorpus

DATABASE = "milvus.db"
COLLECTION = "corpus"
ROWS_AT_ONCE = 1024  # of an insertion: a message has at most 64 MB
LONGEST_ID = 65_535  # bytes that Milvus takes


def write_milvus(corpus: EncodedCorpus, path: Path, output: Path) -> str:
    """Write a folder with the database ``milvus.db``, whose collection ``corpus`` has the fields
    ``id`` and ``embedding`` (float32) and a flat index, and ``ltr.json``.

    Args:
        corpus: what is written.
        path: where it is written.
        output: where it lies in the end.

    Returns:
        What opens it.

    Raises:
        InputError: without pymilvus or milvus-lite, or for an id of more than 65,535 bytes.
    """
    try:
        from milvus_lite.server_manager import server_manager_instance
        from pymilvus import MilvusClient
    except ImportError:
        raise InputError(
            "Milvus needs two other packages: pip install pymilvus milvus-lite"
        ) from None
    path.mkdir()
    database = str(path / DATABASE)
    client = MilvusClient(database)
    try:
        _create_collection(client, corpus)
        for ids, embeddings in corpus.shards():
            _insert(client, ids, embeddings)
        client.flush(COLLECTION)
    finally:
        client.close()
        # The server of this database is a thread of this process. It lets go of the files here.
        server_manager_instance.release_server(database)
    corpus.write_about(path)
    return f"pymilvus.MilvusClient({str(output / DATABASE)!r}), collection {COLLECTION}"


def _create_collection(client: Any, corpus: EncodedCorpus) -> None:
    from pymilvus import DataType, MilvusClient

    fields = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    fields.add_field("id", DataType.VARCHAR, is_primary=True, max_length=LONGEST_ID)
    fields.add_field("embedding", DataType.FLOAT_VECTOR, dim=corpus.dim)
    index = client.prepare_index_params()
    metric = _metric(corpus)
    index.add_index("embedding", index_type="FLAT", metric_type=metric)
    client.create_collection(COLLECTION, schema=fields, index_params=index)


def _metric(corpus: EncodedCorpus) -> str:
    if corpus.similarity.by_distance:
        return "L2"
    return "COSINE" if corpus.has_length_1 else "IP"


def _insert(client: Any, ids: list[str], embeddings: np.ndarray) -> None:
    for span in spans(len(ids), ROWS_AT_ONCE):
        rows = []
        for id_, embedding in zip(ids[span], embeddings[span], strict=True):
            n_bytes = len(id_.encode("utf-8"))
            if n_bytes > LONGEST_ID:
                raise InputError(
                    f"an id must have at most {LONGEST_ID} bytes for Milvus, got one of {n_bytes}: {id_[:60]}…; hand the corpus over as parquet, lance or faiss"
                )
            rows.append({"id": id_, "embedding": embedding})
        client.insert(COLLECTION, rows)
