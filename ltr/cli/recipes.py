"""``ltr recipes``: the configurations that ship."""

import sys

from ltr.data.console import say
from ltr.run.shipped_recipes import RECIPE, recipe_file, recipe_names


def recipes(name: str | None = None) -> None:
    """List the configurations that ship, or print one: ltr recipes cross_encoder > mine.yaml.

    A command takes one by its name: ltr fit --config recipe:cross_encoder --data.path PATH.

    Args:
        name: The recipe whose YAML is printed. None: all are listed, with a line on each.
    """
    if name is not None:
        file = recipe_file(name.removeprefix(RECIPE), "name")
        sys.stdout.write(file.read_text(encoding="utf-8"))
        return
    names = recipe_names()
    width = max(map(len, names))
    for each in names:
        first_line = recipe_file(each, "name").read_text(encoding="utf-8").partition("\n")[0]
        say(f"{each:<{width}}  {first_line.removeprefix('# ')}")
