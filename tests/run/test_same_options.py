"""Who may find another value of an option: the answers to all who ask, stored as data.

``same_options.json`` has the options of all classes of the command line by those to whom they decide,
callbacks likewise, and random configurations with a digest of what each of these looks at.
"""

import hashlib
import json
from itertools import chain
from pathlib import Path

import pytest

from ltr.grid.folder import decisive_options
from ltr.run.agreement import _options
from ltr.run.identity import identity_of
from ltr.run.same_options import (
    deciding_callbacks,
    deciding_options,
    flat_options,
    may_differ_for,
)
from ltr.run.training_recipe import recipe_options

STORED = json.loads(Path(__file__).with_name("same_options.json").read_text())
ASKING = ("resume", "seeds", "set", "cell", "processes")


@pytest.mark.parametrize("deciding", STORED["options"])
def test_an_option_decides_to_those_whom_it_did(deciding):
    for path in STORED["options"][deciding]:
        may_differ = may_differ_for(path)
        assert [who for who in ASKING if who not in may_differ] == deciding.split(), path


@pytest.mark.parametrize("deciding", STORED["callbacks"])
def test_a_callback_decides_to_those_whom_it_did(deciding):
    for class_path in STORED["callbacks"][deciding]:
        config = {"trainer": {"callbacks": class_path}}
        asking = [who for who in ("resume", "seeds") if deciding_callbacks(config, who)]
        assert asking == deciding.split(), class_path


def test_whole_configurations_have_the_answers_that_they_had():
    """With nested options, paths and callbacks: the values, too, as each of those asks for them."""
    for config, expected in STORED["configurations"]:
        words = chain.from_iterable((f"--{path}", repr(v)) for path, v in flat_options(config))
        answers = (
            identity_of(config),
            recipe_options(config),
            deciding_options(config, "set"),
            decisive_options({"base": [], "seed": 0, "options": list(words)}),
            dict(_options(config)),
        )
        digests = zip(ASKING, map(digest, answers), expected.split(), strict=True)
        assert [who for who, got, then in digests if got != then] == [], config


def digest(answer: dict) -> str:
    return hashlib.sha256(json.dumps(answer, sort_keys=True).encode()).hexdigest()[:8]
