"""The long description of the package: README.md as an index of packages can show it. All else is in
setup.cfg.
"""

import configparser
import re
from pathlib import Path

ROOT = Path(__file__).parent
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")


def long_description(page: str, address: str) -> str:
    """A page whose links and pictures lead to the repository: on an index its files are not there.

    Args:
        page: Markdown, whose links count from the root of the repository.
        address: of the repository; empty where it has none yet. Then words stay without their link,
            and pictures are left out.
    """

    def in_repository(match: re.Match[str]) -> str:
        picture, text, target = match.groups()
        if "://" in target:
            return match[0]
        if not address:
            return "" if picture else text
        if target.startswith("#"):
            return f"[{text}]({address}{target})"
        place = "raw" if picture else "blob"
        return f"{picture}[{text}]({address}/{place}/HEAD/{target})"

    parts = FENCE.split(page)
    parts[::2] = [LINK.sub(in_repository, part) for part in parts[::2]]
    return "".join(parts)


def address_of_project() -> str:
    """The one address that the owner sets in setup.cfg: url of [metadata]."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser["metadata"].get("url", "").rstrip("/")


if __name__ == "__main__":
    from setuptools import setup

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    setup(
        long_description=long_description(readme, address_of_project()),
        long_description_content_type="text/markdown",
    )
