"""Texts that are laid out for an encoder, as lists."""

import numpy as np

from ltr.batch import Texts


def ids_of(texts: Texts) -> list[list[int]]:
    """The token ids of each text."""
    return [ids.tolist() for ids in texts.ids.split(texts.lengths.tolist())]


def ids_of_pairs(reads, queries: list[str], docs: list[str]) -> list[list[int]]:
    """Those of each query with the document of the same place."""
    rows = np.arange(len(queries))
    query_tokens = reads.tokens(queries, "query")
    return ids_of(reads.lay_out(query_tokens, rows, reads.tokens(docs, "document"), rows))
