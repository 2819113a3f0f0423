"""An encoded corpus as an index of faiss.

faiss writes an index that it holds in memory. Here the file of a flat index, which is a header and
the embeddings, is written shard by shard, with the header of faiss's own.
"""

from pathlib import Path
from typing import IO

import numpy as np

from ltr.errors import InputError
from ltr.search.faiss_index import faiss
from ltr.use.handover.encoded_corpus import EncodedCorpus

INDEX = "index.faiss"
IDS = "ids.txt"


def write_faiss(corpus: EncodedCorpus, path: Path, output: Path) -> str:
    """Write a folder with ``index.faiss``, a flat index by inner products or squared distances, the
    ids in ``ids.txt``, one a line in the order of the index, and ``ltr.json``.

    Args:
        corpus: what is written.
        path: where it is written.
        output: where it lies in the end.

    Returns:
        What opens it.

    Raises:
        InputError: without faiss, or if faiss does not read what was written.
    """
    if faiss is None:
        raise InputError("an index of faiss needs another package: pip install faiss-cpu")
    path.mkdir()
    last = np.empty(0, np.float32)
    with open(path / INDEX, "wb") as index, open(path / IDS, "w", encoding="utf-8") as ids_file:
        _write_header(index, corpus)
        for ids, embeddings in corpus.shards():
            index.write(embeddings.tobytes())
            # An id holds no white space, see ltr.data.texts.
            ids_file.writelines(f"{id_}\n" for id_ in ids)
            last = embeddings[-1]
    _check(path / INDEX, corpus, last)
    corpus.write_about(path)
    return f"faiss.read_index({str(output / INDEX)!r}), whose row i is line i + 1 of {IDS}"


def _write_header(file: IO[bytes], corpus: EncodedCorpus) -> None:
    """The header of an empty index, with the two numbers that differ."""
    kind = faiss.IndexFlatL2 if corpus.similarity.by_distance else faiss.IndexFlatIP
    # Four letters, H as int32, the number of embeddings as int64, …, and last, how many numbers
    # follow, as int64.
    header = bytearray(faiss.serialize_index(kind(corpus.dim)).tobytes())
    header[8:16] = np.array(corpus.count, "<i8").tobytes()
    header[-8:] = np.array(corpus.count * corpus.dim, "<i8").tobytes()
    file.write(header)


def _check(file: Path, corpus: EncodedCorpus, last: np.ndarray) -> None:
    """Refuse a file in which faiss does not find the last embedding; it is mapped, not read."""
    try:
        index = faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC)
        is_whole = index.ntotal == corpus.count and index.d == corpus.dim
        is_whole = is_whole and np.array_equal(index.reconstruct(corpus.count - 1), last)
    except RuntimeError:
        is_whole = False
    if not is_whole:
        raise InputError(
            f"this version of faiss ({faiss.__version__}) has another format of files; hand the corpus over as Parquet, or install faiss-cpu 1.15"
        )
