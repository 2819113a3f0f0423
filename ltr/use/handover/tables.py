"""An encoded corpus as a table of Arrow: a Parquet file, or a data set of Lance.

Both have the columns ``id``, strings, and ``embedding``, lists of a fixed size. What a reader must
know beside them stands as JSON in the metadata of the schema, under ``ltr``.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from ltr.errors import InputError
from ltr.use.handover.encoded_corpus import EncodedCorpus

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Schema


def write_parquet(corpus: EncodedCorpus, path: Path, output: Path) -> str:
    """Write a Parquet file with a row group for each shard. Embeddings that are stored in halves,
    and are handed over as they are, stay halves.

    Args:
        corpus: what is written.
        path: where it is written.
        output: where it lies in the end.

    Returns:
        What opens it.

    Raises:
        InputError: without pyarrow.
    """
    try:
        from pyarrow.parquet import ParquetWriter
    except ImportError:
        raise InputError("Parquet needs another package: pip install pyarrow") from None
    schema = _schema(corpus, corpus.dtype)
    # Embeddings don't compress, and ids don't repeat.
    with ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for batch in _batches(corpus, schema, corpus.dtype):
            writer.write_batch(batch, row_group_size=len(batch))
    return f"pyarrow.parquet.ParquetFile({str(output)!r})"


def write_lance(corpus: EncodedCorpus, path: Path, output: Path) -> str:
    """Write a data set of Lance, in float32: to embeddings in halves, Lance would round the queries,
    too.

    Args:
        corpus: what is written.
        path: where it is written.
        output: where it lies in the end.

    Returns:
        What opens it.

    Raises:
        InputError: without pylance.
    """
    try:
        import lance
        from pyarrow import RecordBatchReader
    except ImportError:
        raise InputError("Lance needs another package: pip install pylance") from None
    dtype = np.dtype(np.float32)
    schema = _schema(corpus, dtype)
    with _read_within(_batches(corpus, schema, dtype)) as batches:
        lance.write_dataset(RecordBatchReader.from_batches(schema, batches), str(path))
    metric = "l2" if corpus.similarity.by_distance else "dot"
    return f"lance.dataset({str(output)!r}), searched with metric {metric!r}"


def _schema(corpus: EncodedCorpus, dtype: np.dtype) -> "Schema":
    import pyarrow

    embedding = pyarrow.list_(pyarrow.from_numpy_dtype(dtype), corpus.dim)
    columns = [("id", pyarrow.string()), ("embedding", embedding)]
    return pyarrow.schema(columns, metadata={"ltr": json.dumps(corpus.about)})


def _batches(corpus: EncodedCorpus, schema: "Schema", dtype: np.dtype) -> Iterator["RecordBatch"]:
    """A batch for each shard."""
    import pyarrow

    for ids, embeddings in corpus.shards():
        numbers = pyarrow.array(embeddings.astype(dtype, copy=False).reshape(-1))
        lists = pyarrow.FixedSizeListArray.from_arrays(numbers, corpus.dim)
        id_column = pyarrow.array(ids, pyarrow.string())
        yield pyarrow.record_batch([id_column, lists], schema=schema)


@contextmanager
def _read_within(batches: Iterator["RecordBatch"]) -> Iterator[Iterator["RecordBatch"]]:
    """Batches that a thread of Lance reads, and none after the block. Where a signal ends the
    command, that thread would go on while Python shuts down, which aborts the process.
    """
    making = Lock()
    is_over = False

    def read() -> Iterator["RecordBatch"]:
        while True:
            with making:
                if is_over:
                    raise RuntimeError("the writing has ended")
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    try:
        yield read()
    finally:
        with making:  # waits for the batch that is being made
            is_over = True
