"""Builds the documentation as a site with a search, in build/site: `make docs`.

README.md is its first page. Files outside of docs/ that pages link to are copied beside them. Nothing in the site asks
another host for anything.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE, SITE = ROOT / "build" / "docs", ROOT / "build" / "site"
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")
OUTSIDE = re.compile(
    r"""<(?:script|img|iframe|link rel="?(?:stylesheet|preconnect|icon))[^>]*(?:src|href)="?(?:https?:)?//[^>]*>"""
)
PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
PAGES |= {"compose/README.md": "containers.md", "SECURITY.md": "reporting.md"}


def main() -> int:
    """Gathers the pages, and has mkdocs build them; its exit code. A link that leads nowhere is an error."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    pages = {ROOT / name: target for name, target in PAGES.items()}
    pages |= {path: str(path.relative_to(ROOT / "docs")) for path in sorted((ROOT / "docs").rglob("*.md"))}
    for path, target in pages.items():
        text = LINK.sub(lambda link, path=path: _link(path, link, pages), path.read_text(encoding="utf-8"))  # type: ignore[misc]
        page = SOURCE / target
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")
    for picture in (ROOT / "docs").rglob("*.png"):
        copy = SOURCE / picture.relative_to(ROOT / "docs")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, copy)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", "docs/mkdocs.yml"]
    exit_code = subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}).returncode
    for path in () if exit_code else sorted(SITE.rglob("*.html")):
        if match := OUTSIDE.search(path.read_text(encoding="utf-8")):
            print(f"{path} asks another host: {match[0]}", file=sys.stderr)
            return 1
    if not exit_code:
        print(f"built; to read it: {sys.executable} -m http.server --directory {SITE.relative_to(ROOT)}")
    return exit_code


def _link(page: Path, link: re.Match[str], pages: dict[Path, str]) -> str:
    """The link as it is in the site: to a page, or to a copy of a file."""
    to = (page.parent / link[1]).resolve()
    if to.is_dir() and to / "README.md" in pages:
        to /= "README.md"
    if to not in pages and to.is_file():
        pages_at = f"files/{to.relative_to(ROOT)}"
        # As text, or browsers offer to save it.
        pages_at += "" if to.suffix in (".png", ".txt") else ".txt"
        (SOURCE / pages_at).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(to, SOURCE / pages_at)
    elif to in pages:
        pages_at = pages[to]
    else:
        return link[0]
    up = "../" * (len(Path(pages[page]).parts) - 1)
    return f"]({up}{pages_at}{link[2] or ''})"


if __name__ == "__main__":
    sys.exit(main())
