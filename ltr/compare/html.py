"""Pages of HTML from templates, each one file that asks for nothing from elsewhere."""

from datetime import UTC, datetime

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from ltr import __version__


def rendered(package: str, template: str, **values: object) -> str:
    """A page from a template of a package, which may extend those of this one. It says by which
    version it was made, and when. All texts are escaped.
    """
    loaders = [PackageLoader(package, "."), PackageLoader("ltr.compare", ".")]
    environment = Environment(
        loader=ChoiceLoader(loaders), autoescape=True, undefined=StrictUndefined
    )
    made = f"ltr {__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    return environment.get_template(template).render(made=made, **values)
