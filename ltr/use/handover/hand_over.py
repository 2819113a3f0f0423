"""A finished encoding handed over to another program, whole or not at all."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

from ltr.data.console import counted
from ltr.data.outputs import check_inside, check_place
from ltr.data.whole_files import write_new
from ltr.errors import one_of
from ltr.use.handover.encoded_corpus import EncodedCorpus
from ltr.use.handover.faiss_file import write_faiss
from ltr.use.handover.parquet_file import write_parquet

Format = Literal["parquet", "faiss"]

# Of each format, the function that writes a corpus: where to, and where it lies in the end. It
# returns what opens it.
WRITERS: dict[Format, Callable[[EncodedCorpus, Path, Path], str]] = {
    "parquet": write_parquet,
    "faiss": write_faiss,
}


def hand_over(folder: str | Path, format: Format, output: str | Path) -> str:
    """Write the ids and the embeddings of a corpus as another program reads them. A failure leaves
    nothing.

    Args:
        folder: of a finished encoding, see :class:`ltr.use.corpus_encoding.CorpusEncoding`.
        format: ``parquet``, a file; or ``faiss``, a folder.
        output: the new file or folder.

    Returns:
        A line that says what was written and how it is read.

    Raises:
        InputError: if the encoding is not finished or damaged, the output exists or can't be
            written, or a package is missing.
    """
    one_of(get_args(Format), format=format)
    check_place(output, "the output")
    output = Path(output)
    check_inside(output.parent, "the output", output)
    corpus = EncodedCorpus(Path(folder))
    opened_by = ""

    def write(path: Path) -> None:
        nonlocal opened_by
        opened_by = WRITERS[format](corpus, path, output)

    write_new(output, write, "the output")
    compared = "squared distance" if corpus.similarity.by_distance else "inner product"
    length = ", at length 1" if corpus.has_length_1 else ""
    return (
        f"{output}: {counted(corpus.count, 'document')} of {corpus.dim} dimensions{length}, to be compared by {compared}; "
        f"read it: {opened_by}"
    )
