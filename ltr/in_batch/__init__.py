"""What each row of a training batch is ranked against: its own list, the documents of other
queries, or all texts; or all lists as one.
"""

from ltr.in_batch.policies import AllTexts, InBatch, OneList, OtherQueries, OwnLists

__all__ = ["AllTexts", "InBatch", "OneList", "OtherQueries", "OwnLists"]
