"""What each row of a training batch is ranked against: its own list, the documents of other
queries, or all texts.
"""

from ltr.in_batch.policies import AllTexts, InBatch, OtherQueries, OwnLists

__all__ = ["AllTexts", "InBatch", "OtherQueries", "OwnLists"]
