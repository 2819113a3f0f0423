"""Recipes: configurations that ship with ltr. ``recipe:NAME`` stands wherever a configuration's file
may be named.
"""

from pathlib import Path

from ltr.errors import InputError

RECIPE = "recipe:"
SHIPPED = Path(__file__).parent / "recipes"


def recipe_names() -> list[str]:
    """The names of all recipes, in their order."""
    return sorted(file.stem for file in SHIPPED.glob("*.yaml"))


def recipe_file(name: str, option: str) -> Path:
    """The file of a recipe.

    Args:
        name: of the recipe.
        option: that names it, for errors.

    Raises:
        InputError: for a name that no recipe has.
    """
    if name not in recipe_names():
        raise InputError(
            f"{option}: a recipe must be one of {', '.join(recipe_names())}, got {name!r}; ltr recipes says what each is for"
        )
    return SHIPPED / f"{name}.yaml"


def is_recipe(file: Path) -> bool:
    """Whether a file is that of a recipe."""
    return file.parent.resolve() == SHIPPED.resolve()


def configuration_file(word: str, option: str) -> str:
    """The path of a configuration that a user names.

    Args:
        word: ``recipe:NAME``, or a path.
        option: that has the word, for errors.

    Raises:
        InputError: for a name that no recipe has.
    """
    if word.startswith(RECIPE):
        return str(recipe_file(word.removeprefix(RECIPE), option))
    return word
