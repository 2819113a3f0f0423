"""What a page says of leakage: counts, shares, examples, and what is severe."""

from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np

from ltr.check.leakage import KINDS, AlikeTexts, Leakage, find_alike_queries
from ltr.check.section import Section
from ltr.compare.tables import Table
from ltr.data.collection import Collection
from ltr.data.console import without_controls
from ltr.data.splits import SPLITS
from ltr.data.texts import TextTable, beginning

EXAMPLES = 3  # of each kind
LETTERS = 90  # of a text that is shown
MOST_QUERIES = 50_000  # that are looked at before a training: 4 s on one core
MANY = 0.01  # of the queries of dev or test that are equal or near: severe from here on


def leakage_section(leakage: Leakage) -> Section:
    """What leaks between the splits, with examples, counts and the share of each split."""
    tables = [_table_of_leaks(leakage)] if len(leakage.parts) > 1 else []
    if leakage.alike_texts is not None:
        tables.append(_corpus_table(leakage.alike_texts))
    examples = list(_examples(leakage))
    if examples:
        header = ["leak", "similarity", "query or text", "stands also in"]
        title = f"The nearest {EXAMPLES} of each kind"
        tables.append(
            Table(title, header, examples, text_columns=["query or text", "stands also in"])
        )
    severe, lines = _in_words(leakage)
    return Section(
        "Leakage between splits", tables, lines=lines, severe=severe, entries=_entries(leakage)
    )


def severe_leaks(collection: Collection) -> list[str]:
    """What is severe of the queries that stand in two splits, a sentence each. Nothing is looked at
    where it would take long, with more than 50,000 judged queries, or where ``datasketch`` is not
    installed.
    """
    n_queries = sum(len(judged.query_rows) for judged in collection.qrels.values())
    if len(collection.qrels) < 2 or n_queries > MOST_QUERIES or find_spec("datasketch") is None:
        return []
    severe, _ = _in_words(find_alike_queries(collection))
    return severe


def _share(n: int, total: int) -> str:
    return f"{n:,} ({n / total:.1%})" if n else "0"


def _table_of_leaks(leakage: Leakage) -> Table:
    header = ["queries of", "stand also in", "queries"]
    header += KINDS.values()
    leaks_of = {(leaks.part.name, leaks.other.name, leaks.kind): leaks for leaks in leakage.leaks}
    n_queries = {part.name: len(part.judged.query_rows) for part in leakage.parts}
    rows = []
    for part, other in dict.fromkeys((part, other) for part, other, _ in leaks_of):
        cells = [part, other, f"{n_queries[part]:,}"]
        for kind in KINDS:
            n_leaks = len(leaks_of[part, other, kind].query_rows)
            cells.append(_share(n_leaks, n_queries[part]))
        rows.append(cells)
    title = f"Queries of a split that stand in another; near: {leakage.threshold:g} and above"
    return Table(title, header, rows, text_columns=["stand also in"])


def _corpus_table(alike: AlikeTexts) -> Table:
    rows = []
    kinds = {
        "equal to another text": alike.is_equal,
        "near to another text": alike.nearest_rows >= 0,
        "equal to a relevant text, but judged for no query": alike.is_unjudged_copy,
    }
    for words, chosen in kinds.items():
        cells = [words]
        for group in (np.ones_like(alike.is_judged), alike.is_judged, ~alike.is_judged):
            cells.append(_share(int((chosen & group).sum()), int(group.sum())))
        rows.append(cells)
    return Table("Texts of the corpus", ["", "all", "judged", "not judged"], rows)


def _examples(leakage: Leakage) -> Iterator[list[str]]:
    for kind, words in KINDS.items():
        of_kind = [leaks for leaks in leakage.leaks if leaks.kind == kind]
        # What is measured comes first, then what is trained on.
        of_kind.sort(key=lambda leaks: list(SPLITS).index(leaks.part.name), reverse=True)
        rows = []
        for leaks in of_kind:
            queries = leaks.part.collection.queries
            partners = leaks.other.collection.queries
            order = np.argsort(-leaks.similarity, kind="stable")[:EXAMPLES]
            for place in order.tolist():
                rows.append(
                    [
                        words,
                        f"{leaks.similarity[place]:.2f}",
                        _shown(leaks.part.name, queries, leaks.query_rows[place]),
                        _shown(leaks.other.name, partners, leaks.partner_rows[place]),
                    ]
                )
        yield from rows[:EXAMPLES]
    alike = leakage.alike_texts
    if alike is None:
        return
    corpus = leakage.collection.corpus
    later = np.flatnonzero(alike.equal_rows != np.arange(len(corpus)))
    for row in later[:EXAMPLES]:
        cells = [_shown("", corpus, row), _shown("", corpus, alike.equal_rows[row])]
        yield ["equal text", "1.00", *cells]
    near = np.argsort(-alike.similarity, kind="stable")
    near = near[alike.nearest_rows[near] > near]  # else a pair would stand there twice
    for row in near[:EXAMPLES]:
        cells = [_shown("", corpus, row), _shown("", corpus, alike.nearest_rows[row])]
        yield ["near text", f"{alike.similarity[row]:.2f}", *cells]


def _shown(part: str, table: TextTable, row: int) -> str:
    """A text with its id and its part, as ``test q1: …``."""
    text = f"{part} {table.ids[row]}: {beginning(table.texts[row], LETTERS)}"
    return without_controls(text.strip())


def _in_words(leakage: Leakage) -> tuple[list[str], list[str]]:
    """What is severe, and what else is found, a sentence each."""
    severe: list[str] = []
    lines: list[str] = []
    measured = []
    if len(leakage.parts) == 1:
        (only,) = leakage.parts
        lines.append(f"{only.name} is the only split: there is no other one to leak into it")
    else:
        measured = [
            part for part in leakage.parts if not part.is_trained_on and part.name != "train"
        ]
    for part in measured:
        rows = leakage.leaked(part.name, ["equal", "near"])
        n = len(part.judged.query_rows)
        if len(rows) == 0:
            lines.append(f"no query of {part.name} stands in another split, nor a near one")
            continue
        others = {
            leaks.other.name
            for leaks in leakage.leaks_of(part.name, ["equal", "near"])
            if len(leaks.query_rows)
        }
        text = f"{len(rows):,} of {n:,} queries of {part.name} ({len(rows) / n:.1%}) are duplicates or near-duplicates of queries of {', '.join(sorted(others))}"
        if part.name == "test":
            text += "; ltr check --write makes a clean split"
        if len(rows) >= MANY * n:
            severe.append(text)
        else:
            lines.append(text)
    alike = leakage.alike_texts
    if alike is not None and alike.is_unjudged_copy.any():
        lines.append(
            f"{int(alike.is_unjudged_copy.sum()):,} documents that nobody judged have the text of a relevant one: a ranker that finds them is told it is wrong"
        )
    if leakage.n_cut:
        lines.append(
            f"{leakage.n_cut:,} groups of many alike texts were not compared pair by pair: there may be more near texts"
        )
    return severe, lines


def _entries(leakage: Leakage) -> dict[str, object]:
    """The numbers by part, other part and kind; and those of the corpus."""
    queries: dict[str, dict[str, dict[str, int]]] = {}
    for leaks in leakage.leaks:
        by_other = queries.setdefault(leaks.part.name, {})
        by_other.setdefault(leaks.other.name, {})[leaks.kind] = len(leaks.query_rows)
    n_queries = {part.name: len(part.judged.query_rows) for part in leakage.parts}
    entries: dict[str, object] = {
        "threshold": leakage.threshold,
        "n_queries": n_queries,
        "queries": queries,
    }
    alike = leakage.alike_texts
    if alike is not None:
        is_near = alike.nearest_rows >= 0
        entries["corpus"] = {
            "texts": len(is_near),
            "judged": int(alike.is_judged.sum()),
            "equal": int(alike.is_equal.sum()),
            "equal_judged": int((alike.is_equal & alike.is_judged).sum()),
            "near": int(is_near.sum()),
            "near_judged": int((is_near & alike.is_judged).sum()),
            "equal_to_relevant_not_judged": int(alike.is_unjudged_copy.sum()),
        }
    return entries
