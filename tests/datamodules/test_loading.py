"""The option ``loading``."""

import pytest

from ltr.datamodules import Loading
from ltr.errors import InputError


@pytest.mark.parametrize(("options", "message"), [
    ({"num_workers": -1}, "loading.num_workers must be at least 0, got -1"),
    ({"bucket_window": 0}, "loading.bucket_window must be at least 1, got 0"),
    ({"seed": -1}, "loading.seed must be at least 0, got -1"),
])  # fmt: skip
def test_bad_options_name_their_path(options, message):
    with pytest.raises(InputError, match=message):
        Loading(**options)


def test_the_seed_is_its_own_or_that_of_everything_or_0(monkeypatch):
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    assert Loading().sampling_seed == 0
    monkeypatch.setenv("PL_GLOBAL_SEED", "7")
    assert Loading().sampling_seed == 7
    assert Loading(seed=0).sampling_seed == 0
