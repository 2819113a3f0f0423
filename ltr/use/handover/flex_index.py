"""An encoded corpus as a ``FlexIndex`` of PyTerrier: three files in a folder, as pyterrier_dr reads
them.
"""

import json
from pathlib import Path

from ltr.errors import InputError
from ltr.use.handover.encoded_corpus import EncodedCorpus

VECTORS = "vecs.f4"  # float32, end to end
IDS = "docnos.npids"  # of the package npids
META = "pt_meta.json"


def write_flex(corpus: EncodedCorpus, path: Path, output: Path) -> str:
    """Write the folder of a ``FlexIndex``, and ``ltr.json`` beside its files.

    Args:
        corpus: what is written.
        path: where it is written.
        output: where it lies in the end.

    Returns:
        What opens it.

    Raises:
        InputError: without npids, for distances, which a ``FlexIndex`` does not compare, or for ids
            that npids can't write.
    """
    try:
        import npids
    except ImportError:
        raise InputError("a FlexIndex needs another package: pip install npids") from None
    if corpus.similarity.by_distance:
        raise InputError(
            f"a FlexIndex compares by inner product or cosine, got an encoding of a ranker that compares by {corpus.similarity.name}; hand it over as parquet, lance, faiss or milvus"
        )
    path.mkdir()
    try:
        with open(path / VECTORS, "wb") as vectors, npids.Lookup.builder(path / IDS) as lookup:
            for ids, embeddings in corpus.shards():
                vectors.write(embeddings.astype("<f4", copy=False).tobytes())
                for id_ in ids:
                    lookup.add(id_)
    except (UnicodeDecodeError, ZeroDivisionError):
        # What npids 0.1 raises for a single id, and where all ids begin with the same first byte of
        # different letters.
        raise InputError(
            "a FlexIndex needs ids that the package npids can write, and it can't write these; hand the corpus over as parquet, lance, faiss or milvus"
        ) from None
    meta = {
        "type": "dense_index",
        "format": "flex",
        "vec_size": corpus.dim,
        "doc_count": corpus.count,
    }
    (path / META).write_text(json.dumps(meta), encoding="utf-8")
    corpus.write_about(path)
    return f"pyterrier_dr.FlexIndex({str(output)!r})"
