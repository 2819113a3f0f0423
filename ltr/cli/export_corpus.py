"""``ltr export-corpus``: a corpus that was encoded is handed over to another program."""

from ltr.data.console import say, speech_on_stderr
from ltr.use.handover.hand_over import Format, hand_over


def export_corpus(encoded: str, *, format: Format, output: str) -> None:
    """Write the ids and the embeddings of an encoded corpus as another program reads them.

    Under cosine they are handed over at length 1, so that inner products order as cosines do.

    Args:
        encoded: A folder that ltr encode has finished.
        format: ``parquet``, a file; or ``faiss``, a folder with index.faiss and ids.txt.
        output: The new file or folder.
    """
    with speech_on_stderr():
        line = hand_over(encoded, format, output)
    say(line)
