"""Hooks of mkdocs (mkdocs.yml): the pages of the repository's top folder are pages of the site.

The rule for links: a page of the top folder links to `docs/PAGE.md`, a page of docs/ to a page of
the top folder as `../PAGE.md`. That works in the repository, and is rewritten for the site, where
all pages are in one folder. Pages link to no other files of the repository; they name these.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

TOP = Path(__file__).parents[2]
# Page of the top folder -> its name in the site.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
}
_LINK = re.compile(r"\]\((?:docs/|\.\./)([^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the top folder."""
    for source, there in PAGES.items():
        files.append(File.generated(config, there, content=(TOP / source).read_text()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page's text with its links as in the site's one folder."""
    return _LINK.sub(lambda link: f"]({_renamed(link[1])})", markdown)


def _renamed(target: str) -> str:
    page, mark, anchor = target.partition("#")
    return f"{PAGES.get(page, page)}{mark}{anchor}"
