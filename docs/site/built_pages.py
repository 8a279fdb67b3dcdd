"""Check built HTML pages: every link leads to a file and an element, and nothing is requested from another host."""

from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

REQUESTED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}


class Page(HTMLParser):
    """The ids of a page, its links, and the resources that a browser requests for it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.resources: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect one element."""
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.ids.add(value)
            elif (tag, name) in REQUESTED and value:
                self.resources.add(value)
            elif (tag, name) == ("a", "href") and value:
                self.links.add(value)


def problems(site: Path) -> list[str]:
    """One line for each dead link and each request to another host."""
    pages = sorted(site.rglob("*.html"))
    return [f"{path.relative_to(site)}: {fault}" for path in pages for fault in _faults(path, site)]


@cache
def _read(path: Path) -> Page:
    return Page(path)


def _faults(path: Path, site: Path) -> Iterator[str]:
    page = _read(path)
    for link in sorted(page.resources | page.links):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            if link in page.resources and parts.scheme != "data":
                yield f"requests {link}"
            continue
        base = site if parts.path.startswith("/") else path.parent
        target = (base / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
        if target.is_dir():
            target /= "index.html"
        if not target.exists():
            yield f"dead link {link}"
        elif parts.fragment and target.suffix == ".html" and unquote(parts.fragment) not in _read(target).ids:
            yield f"dead anchor {link}"
