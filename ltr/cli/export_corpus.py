"""``ltr export-corpus``: a corpus that was encoded is handed over to another program."""

import sys
from contextlib import redirect_stdout

from ltr.data.console import say
from ltr.use.handover.hand_over import Format, hand_over


def export_corpus(encoded: str, *, format: Format, output: str) -> None:
    """Write the ids and the embeddings of an encoded corpus as another program reads them.

    Under cosine they are handed over at length 1, so that inner products order as cosines do.

    Args:
        encoded: A folder that ltr encode has finished.
        format: ``parquet``, a file; or ``faiss``, a folder with index.faiss and ids.txt.
        output: The new file or folder.
    """
    with redirect_stdout(sys.stderr):  # some packages speak when they are imported
        line = hand_over(encoded, format, output)
    say(line)
