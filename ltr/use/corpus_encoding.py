"""A corpus encoded into a folder, by as many workers as there are."""

import logging
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

from ltr.data.files import exists_as_file
from ltr.data.outputs import check_folder
from ltr.data.strings import Strings
from ltr.data.text_files import open_texts
from ltr.data.texts import TextTable
from ltr.data.whole_files import being_written
from ltr.errors import InputError, one_of
from ltr.run.precision import Precision
from ltr.run.provenance import made_by
from ltr.search.embedder import embedder_of
from ltr.search.encoding import AGAIN, IDS, MANIFEST, PLAN, Encoding, plan_of
from ltr.search.encoding_places import texts_of_table
from ltr.search.encoding_worker import Worker
from ltr.search.numbers import Numbers
from ltr.search.shard_file import remove_unfinished
from ltr.use.load import load
from ltr.use.retriever import Retriever

log = logging.getLogger(__name__)


class CorpusEncoding:
    """The embeddings of a corpus in a folder of shards, some of which may be missing.

    Any number of these, in any process of any machine, may encode the shards of one folder: each
    shard is written whole, and is the same whoever wrote it.

    Args:
        retriever: the dual encoder.
        documents: the corpus.
        folder: the folder; it is made where it is not there.
        numbers: in which embeddings are stored.

    Raises:
        InputError: if the folder holds something else.
    """

    def __init__(
        self,
        retriever: Retriever,
        documents: TextTable,
        folder: str | Path,
        numbers: Numbers = "float16",
    ) -> None:
        check_folder(folder, "the folder of the encoding", PLAN)
        one_of(get_args(Numbers), numbers=numbers)
        retriever.model.reads.docs.check_one_embedding("an encoding in a folder")
        self.folder = Path(folder)
        embedder = embedder_of(retriever.model, "document", retriever.context, retriever.precision)
        texts = texts_of_table(documents, embedder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.encoding = Encoding(self.folder, plan_of(embedder, texts, numbers))
        self._worker = Worker(self.encoding, embedder, texts)
        self._documents = documents
        self._about = {
            "ranker": str(retriever.name),
            "similarity": retriever.model.similarity.name,
            "corpus": str(documents.folder),
            "made": made_by(),
        }

    @property
    def overlap(self) -> float | None:
        """How many of the 100 nearest texts of a sample stay the same in the stored numbers, from 0
        to 1; None where this process has encoded nothing, and for float32.
        """
        return self._worker.overlap

    def missing(self) -> list[int]:
        """The numbers of the shards that are not there."""
        return self.encoding.missing()

    def encode(self, number: int) -> None:
        """Encode a shard, and write it whole, unless it is there: an engine asks twice where it has
        lost the answer.
        """
        if self.encoding.shard(number) is None:
            self._worker.encode(number)

    def encode_missing(self, number: int = 0, count: int = 1) -> None:
        """Encode shards until none is missing, beside other workers.

        Args:
            number: of this worker; each begins at a shard of its own.
            count: how many workers there are.
        """
        n_shards = self.encoding.plan.n_shards
        self._worker.encode_missing(first=number * n_shards // count)

    def finish(self) -> dict[str, Any]:
        """Check every shard against its digest, and write the ids of the documents and the manifest,
        if these are not there, or not those that were written together.

        Returns:
            The manifest, with the ``digest`` of the whole.

        Raises:
            InputError: if a shard is missing or damaged.
        """
        with being_written(self.folder / "finish"):  # one process at a time
            remove_unfinished(self.folder)
            if exists_as_file(self.folder / f"{IDS}.npy") and exists_as_file(
                self.folder / MANIFEST
            ):
                with suppress(InputError):
                    return self.encoding.checked_manifest()
            # Where a manifest is, ids are whole.
            (self.folder / MANIFEST).unlink(missing_ok=True)
            self._write_ids()
            return self.encoding.finish(self._about)

    def _write_ids(self) -> None:
        """The ids of the documents, in the order of the rows."""
        spans = map(self.encoding.plan.span, range(self.encoding.plan.n_shards))
        ids = (id_ for span in spans for id_ in self._documents.ids.between(span.start, span.stop))
        Strings.write(self.folder, IDS, (id_.encode("utf-8") for id_ in ids))

    def check(self) -> bool:
        """Check what a finished folder holds: every shard against its digest, the ids, the manifest.
        What is damaged is named in a warning, and made again by :meth:`encode_missing` and
        :meth:`finish`.

        Returns:
            Whether the folder is finished, and nothing in it is damaged.
        """
        if not exists_as_file(self.folder / MANIFEST):
            return False
        self.encoding.remove_damaged()
        try:
            self.encoding.checked_manifest()
        except InputError as error:
            log.warning("%s", error.message.removesuffix(f"; {AGAIN}"))
            (self.folder / MANIFEST).unlink(missing_ok=True)
            return False
        return True


def open_encoding(
    ranker: str | Path,
    corpus: str,
    folder: str | Path,
    numbers: Numbers = "float16",
    precision: Precision | None = None,
    device: str | None = None,
) -> CorpusEncoding:
    """The encoding of a corpus in a folder, for a worker.

    Args:
        ranker: a dual encoder, see :func:`ltr.use.load.load`.
        corpus: a data folder, or a file of texts, see :func:`ltr.data.text_files.open_texts`.
        folder: see :class:`CorpusEncoding`.
        numbers: in which embeddings are stored.
        precision: of the encoder; None: see :func:`ltr.use.load.load`.
        device: where it runs; None: the GPU if there is one.

    Raises:
        InputError: if the ranker is no dual encoder, or the folder holds something else.
    """
    documents = open_texts(corpus, "document", "corpus")
    retriever = load(ranker, precision, device)
    if not isinstance(retriever, Retriever):
        raise InputError(f"{ranker} is no dual encoder, and only one can encode a corpus")
    return CorpusEncoding(retriever, documents, folder, numbers)
