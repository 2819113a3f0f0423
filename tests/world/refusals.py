"""Input that must be refused."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ltr.errors import InputError


@contextmanager
def refused(words: str) -> Iterator[pytest.ExceptionInfo[InputError]]:
    """What stands below is refused in one line that has these words, a regular expression."""
    with pytest.raises(InputError, match=words) as error:
        yield error
    assert "\n" not in str(error.value)
