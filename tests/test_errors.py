"""The one exception for what the user can mend, and the checks of options."""

import math

import pytest

from ltr.errors import InputError, at_least, not_negative, one_of, positive


def test_the_option_stands_behind_the_line():
    assert str(InputError("k must be at least 1, got 0")) == "k must be at least 1, got 0"
    assert str(InputError("k must be 1", option="k")) == "k must be 1 (option k)"


@pytest.mark.parametrize(("check", "fine", "bad", "rule"), [
    (lambda value: at_least(2, k=value), 2, 1, "k must be at least 2, got 1"),
    (lambda value: at_least(1, k=value), 2**63 - 1, 2**63, r"k must be below 2\^63, got 92233"),
    (lambda value: one_of(("a", "b"), k=value), "b", "c", "k must be one of a, b, got 'c'"),
    (lambda value: positive("k", value), 1e-9, 0.0, "k must be finite and above 0, got 0.0"),
    (lambda value: positive("k", value), 1.0, math.inf, "k must be finite and above 0, got inf"),
    (lambda value: not_negative("k", value), 0.0, -1.0, "k must be finite and at least 0, got -1"),
    (lambda value: not_negative("k", value), 0.0, math.nan, "k must be finite and at least 0, got"),
])  # fmt: skip
def test_checks_of_options(check, fine, bad, rule):
    check(fine)
    with pytest.raises(InputError, match=rule) as error:
        check(bad)
    assert error.value.option == "k"


def test_none_is_allowed_where_a_number_may_be_left_out():
    at_least(1, k=None)
