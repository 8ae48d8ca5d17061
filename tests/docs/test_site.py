"""The documentation's site lists every page: `make docs` refuses one that it does not, and one that is not there."""

from __future__ import annotations

import runpy
from pathlib import Path

import yaml

DOCS = Path(__file__).parents[2] / "docs"


def listed(part: object) -> list[str]:
    """The pages that a part of the navigation names."""
    if isinstance(part, str):
        return [part]
    values = part.values() if isinstance(part, dict) else part if isinstance(part, list) else []
    return [page for value in values for page in listed(value)]


def test_the_navigation_has_each_page_once() -> None:
    nav = yaml.safe_load((DOCS / "mkdocs.yml").read_text())["nav"]
    own = [page.relative_to(DOCS).as_posix() for page in (*DOCS.glob("*.md"), *DOCS.glob("*/index.md"))]
    pages = [*own, *runpy.run_path(str(DOCS / "site.py"))["PAGES"].values()]
    assert sorted(listed(nav)) == sorted(pages)
