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
from ltr.run.training_recipe import TrainingRecipe, recipe_options

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


def recipe(taken: dict[str, str] | None = None, **options) -> TrainingRecipe:
    """Of options of the data alone."""
    config = {"model": {}, "data": {"init_args": options}, "trainer": {"callbacks": None}}
    return TrainingRecipe.of(config, {"data": {}, "models": {}, "taken": taken or {}})


def test_bm25_by_name_by_auto_and_to_its_usual_depth_is_one_recipe():
    """Of pools None takes all, so there 100 is another depth."""
    names = ("negatives of train", "evaluation.candidates of dev")
    by_auto = dict.fromkeys(names, "bm25, 100 deep")
    options = {"negatives": "auto", "negatives_depth": None}
    same = [recipe(by_auto, **options, evaluation={"candidates": "auto", "depth": None})]
    for negatives in ("auto", "bm25"):
        for depth in (None, 100):
            evaluation = {"candidates": "bm25", "depth": depth}
            options = {"negatives": negatives, "negatives_depth": depth, "evaluation": evaluation}
            same.append(recipe(by_auto, **options))
    for one in same:
        assert [one.differences(other) for other in same] == [[]] * len(same)
    assert len({one.digest() for one in same}) == 1
    pools = {"negatives of train": "candidates"}
    all_of_pools = recipe(pools, negatives="auto", negatives_depth=None)
    best_of_pools = recipe(pools, negatives="auto", negatives_depth=100)
    assert all_of_pools.differences(best_of_pools) == ["data.negatives_depth (None, 100)"]
    assert recipe(negatives="bm25", negatives_depth=None).differences(
        recipe(negatives="bm25", negatives_depth=50)
    ) == ["data.negatives_depth (100, 50)"]


@pytest.mark.parametrize(
    ("negatives", "is_one"),
    [({"bm25": 3}, True), ({"bm25": 3, "random": 1}, True), ({"bm25": 3, "mined": 1}, False)],
)
def test_of_several_negatives_the_usual_depth_of_bm25_is_the_same_as_none(negatives, is_one):
    """Of mined ones None takes all, so there 100 is another depth."""
    to_all, to_100 = (recipe(negatives=negatives, negatives_depth=depth) for depth in (None, 100))
    assert (to_all.differences(to_100) == []) is is_one


def digest(answer: dict) -> str:
    return hashlib.sha256(json.dumps(answer, sort_keys=True).encode()).hexdigest()[:8]
