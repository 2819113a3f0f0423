"""What is told of two folders of negatives, by hand; the arithmetic is tested in test_diff.py."""

from ltr.mining.diff import pairs_of_both
from ltr.mining.diff_report import diff_lines, diff_tsv
from tests.mining.audited import negatives_of


def pairs_of(collection, *both):
    return pairs_of_both(*(negatives_of(collection, each) for each in both))


def test_lines_by_hand(collection):
    """Query 1: (7, 3) and (3, 9); 3 is in both, and moves by one place. Jaccard 1/3 in all. Among
    the first ones, 7 and 3, none is shared."""
    lines = list(diff_lines(pairs_of(collection, {1: [7, 3]}, {1: [3, 9]}), collection))
    assert lines[0] == "2 and 2 negatives, 1 in both; 1 queries in both"
    assert lines[1] == "  first 1     0.0% of the first folder's are in the second; Jaccard 0.000"
    assert lines[4] == "  all        50.0% of the first folder's are in the second; Jaccard 0.333"
    assert lines[5] == "  a negative of both moves by 1.0 places on average"
    assert lines[7].startswith(f"  0.333 {collection.queries.ids[1]}: ")


def test_folders_with_nothing_in_common_have_no_means(collection):
    lines = list(diff_lines(pairs_of(collection, {1: [7, 3]}, {2: [3]}), collection))
    assert lines == ["2 and 1 negatives, 0 in both; 0 queries in both"]
    lines = list(diff_lines(pairs_of(collection, {1: [7, 3]}, {1: [9]}), collection))
    assert lines[4].startswith("  all         0.0% ") and lines[5] == "changed most:"


def test_a_table_has_a_row_a_pair_and_no_text_of_what_is_not_suspected(collection):
    pairs = pairs_of(collection, {1: [7, 3]}, {1: [3, 9]})
    header, *rows = diff_tsv(pairs, collection).splitlines()
    assert header.split("\t")[:4] == ["query", "doc", "rank_1", "rank_2"]
    ranks = {row.split("\t")[1]: row.split("\t")[2:4] for row in rows}
    docs = collection.corpus.ids
    assert ranks == {docs[7]: ["1", ""], docs[3]: ["2", "1"], docs[9]: ["", "2"]}
    assert all(row.endswith("\t0\t\t") for row in rows)
