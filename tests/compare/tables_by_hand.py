"""A table with the letters that the formats must escape."""

from ltr.compare.tables import Table

TABLE = Table("100 % of a_b", ["name", "p"], [["x|y", "< 0.001"], ["bm25-2 [b]", "-0.1 ± 0.2"]])
