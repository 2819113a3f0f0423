"""What an audit of negatives has found, as lines to read and as a table."""

from ltr.data.collection import Collection
from ltr.data.texts import in_one_line
from ltr.mining.audit import Suspects
from ltr.mining.mined_negatives import MinedNegatives

SHOWN = 10  # suspects among the lines
WIDTH = 100  # letters of a text there
COLUMNS = (
    "query_id",
    "doc_id",
    "relevant_id",
    "score",
    "relevant_score",
    "place",
    "distance",
    "query",
    "doc",
    "relevant",
)


def audit_lines(suspects: Suspects, counts: dict[str, int], collection: Collection) -> list[str]:
    """What is told of an audit: how many negatives are suspected, and the first of them.

    Args:
        suspects: the largest gap first.
        counts: of :func:`ltr.mining.audit.find_suspects`.
        collection: of the negatives.
    """
    queries = collection.queries
    corpus = collection.corpus
    n_suspects = counts["suspects"]
    n_negatives = counts["negatives"]
    share = f" ({n_suspects / n_negatives:.1%})" if n_negatives else ""
    lines = [
        f"{n_negatives:,} negatives of {counts['queries']:,} queries are judged",
        f"likely false negatives: {n_suspects:,}{share}, of {counts['suspect_queries']:,} queries",
    ]
    for number in range(min(n_suspects, SHOWN)):
        query, doc, _, score, relevant, relevant_score = (values[number] for values in suspects)
        lines.append("")
        lines.append(f"{queries.ids[query]}  {in_one_line(queries.texts[query])[:WIDTH]}")
        for name, row, value in (("negative", doc, score), ("relevant", relevant, relevant_score)):
            text = in_one_line(corpus.texts[row])[:WIDTH]
            lines.append(f"  {name} {value:7.3f}  {corpus.ids[row]}  {text}")
    if n_suspects > SHOWN:
        lines += ["", f"… and {n_suspects - SHOWN:,} more"]
    return lines


def audit_tsv(suspects: Suspects, negatives: MinedNegatives, collection: Collection) -> list[str]:
    """All suspects as the lines of a TSV file, the largest gap first."""
    queries = collection.queries
    corpus = collection.corpus
    lines = ["\t".join(COLUMNS) + "\n"]
    for query, doc, place, score, relevant, relevant_score in zip(*suspects, strict=True):
        _, distances = negatives.lists.of(int(query))
        fields = (
            queries.ids[query],
            corpus.ids[doc],
            corpus.ids[relevant],
            f"{score:.6g}",
            f"{relevant_score:.6g}",
            str(place),
            f"{distances[place]:.6g}",
            in_one_line(queries.texts[query]),
            in_one_line(corpus.texts[doc]),
            in_one_line(corpus.texts[relevant]),
        )
        lines.append("\t".join(fields) + "\n")
    return lines
