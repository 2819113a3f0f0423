"""A finished encoding as others take it: ids and embeddings, shard by shard.

Letters of shapes: n documents of a shard, H dimensions.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ltr.data.files import exists_as_file
from ltr.data.progress import track
from ltr.data.strings import Strings
from ltr.errors import InputError
from ltr.search.encoding import AGAIN, IDS, Encoding
from ltr.similarity import SIMILARITIES, Cosine

ABOUT = "ltr.json"  # beside files that have no place for it


class EncodedCorpus:
    """The documents of a folder that ``ltr encode`` has finished.

    Args:
        folder: of the encoding.

    Attributes:
        count: how many documents there are.
        dim: H.
        similarity: by which the ranker compares.
        has_length_1: whether embeddings are handed over at length 1.
        dtype: of what no client has to compute with: float16 where the shards hold that and it is
            handed over as it is, else float32.
        about: what a reader must know beside ids and embeddings.

    Raises:
        InputError: if the encoding is not finished, damaged, or does not name its documents.
    """

    def __init__(self, folder: Path) -> None:
        self._encoding = Encoding.open(folder)
        manifest = self._encoding.checked_manifest()
        name = manifest.get("similarity")
        if (
            name not in SIMILARITIES
            or "ranker" not in manifest
            or not exists_as_file(folder / f"{IDS}.npy")
        ):
            raise InputError(
                f"{folder}: the encoding does not hold the ids of its documents and the similarity of its ranker; start its ltr encode again, which adds them"
            )
        self._ids = Strings(folder, IDS)  # as they were written, by the digest of the manifest
        self._embeddings = self._encoding.embeddings()
        self.count, self.dim = self._embeddings.shape
        self.similarity = SIMILARITIES[name]
        self.has_length_1 = isinstance(self.similarity, Cosine)
        is_as_stored = not self.has_length_1 and self._encoding.plan.numbers == "float16"
        self.dtype = np.dtype(np.float16 if is_as_stored else np.float32)
        self.about: dict[str, Any] = {
            "ranker": manifest["ranker"],
            "similarity": self.similarity.name,
            "embeddings_have_length_1": self.has_length_1,
            "digest": manifest["digest"],
        }

    def write_about(self, folder: Path) -> None:
        """Write ``ltr.json``, what a reader must know, into a folder."""
        text = json.dumps(self.about, indent=2) + "\n"
        (folder / ABOUT).write_text(text, encoding="utf-8")

    def shards(self) -> Iterator[tuple[list[str], np.ndarray]]:
        """Ids ``[n]`` and embeddings ``[n, H]`` float32 of each shard, in the order of the corpus.
        One shard is in memory at a time.

        Embeddings are what the similarity compares: those of a ranker that compares by cosine have
        length 1, so their inner products with a query order as the cosines do.

        Raises:
            InputError: if the bytes of a shard are not those that were written.
        """
        begin = 0
        for shard in track(self._embeddings.shards, "handing over", "shards"):
            if shard.digest() != shard.seal.digest:
                raise InputError(
                    f"{shard.file}: the bytes of this shard are not those that were written; {AGAIN}"
                )
            end = begin + shard.count
            yield self._ids.between(begin, end), self.similarity.prepare(shard.read(), None)
            begin = end
