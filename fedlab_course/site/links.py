"""Check a built site for broken links and for resources loaded from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

LOADING_LINKS = {"stylesheet", "icon", "preload", "preconnect", "modulepreload"}
IN_STYLE = re.compile(r"(?:@import\s+|url\()\s*[\"']?((?:https?:)?//[^\"')\s]+)")


class _Page(HTMLParser):
    """The ids, links and loaded resources of one page."""

    def __init__(self, file: Path):
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        text = file.read_text(encoding="utf-8")
        self.feed(text)
        self.loads += IN_STYLE.findall(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record the ids, links and resources of a tag."""
        given = {name: value or "" for name, value in attrs}
        self.names |= {given[key] for key in ("id", "name") if key in given}
        if "src" in given:
            self.loads.append(given["src"])
        if "href" in given:
            is_load = LOADING_LINKS.intersection(given.get("rel", "").split())
            (self.loads if is_load else self.links).append(given["href"])


def findings(site: Path) -> list[str]:
    """One line for each link that does not resolve and each load from elsewhere.

    Links to other sites are not followed; loading from them is what is refused.
    """
    files = [file.resolve() for file in sorted(site.rglob("*.html"))]
    files = [file for file in files if "_static" not in file.parts]  # themes' templates
    pages = {file: _Page(file) for file in files}
    found = [
        f"{file.relative_to(site.resolve())}: {reason}"
        for file, page in pages.items()
        for reason in _of_page(file, page, pages)
    ]
    for sheet in sorted(site.rglob("*.css")):
        for address in IN_STYLE.findall(sheet.read_text(encoding="utf-8")):
            found.append(f"{sheet.relative_to(site)}: loads {address}")
    return found


def _of_page(file: Path, page: _Page, pages: dict[Path, _Page]) -> Iterator[str]:
    """The problems of one page."""
    for address in page.loads:
        if urlsplit(address).netloc:
            yield f"loads {address}"
    for address in [*page.links, *page.loads]:
        parts = urlsplit(address)
        if parts.scheme or parts.netloc:
            continue
        path, name = urldefrag(address)
        target = (file.parent / unquote(path.partition("?")[0])).resolve()
        target = file if not path else target
        if not target.is_file():
            yield f"leads to {address}, which is not there"
        elif name and target in pages and unquote(name) not in pages[target].names:
            yield f"leads to {address}, a name that its page does not have"
