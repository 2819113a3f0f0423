"""An encoded corpus as a Parquet file.

It has the columns ``id``, strings, and ``embedding``, lists of a fixed size. What a reader must
know beside them stands as JSON in the metadata of the schema, under ``ltr``.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

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
    schema = _schema(corpus)
    # Embeddings don't compress, and ids don't repeat.
    with ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for batch in _batches(corpus, schema):
            writer.write_batch(batch, row_group_size=len(batch))
    return f"pyarrow.parquet.ParquetFile({str(output)!r})"


def _schema(corpus: EncodedCorpus) -> "Schema":
    import pyarrow

    embedding = pyarrow.list_(pyarrow.from_numpy_dtype(corpus.dtype), corpus.dim)
    columns = [("id", pyarrow.string()), ("embedding", embedding)]
    return pyarrow.schema(columns, metadata={"ltr": json.dumps(corpus.about)})


def _batches(corpus: EncodedCorpus, schema: "Schema") -> Iterator["RecordBatch"]:
    """A batch for each shard."""
    import pyarrow

    for ids, embeddings in corpus.shards():
        numbers = pyarrow.array(embeddings.astype(corpus.dtype, copy=False).reshape(-1))
        lists = pyarrow.FixedSizeListArray.from_arrays(numbers, corpus.dim)
        id_column = pyarrow.array(ids, pyarrow.string())
        yield pyarrow.record_batch([id_column, lists], schema=schema)
