"""A crawler for HTML files on this disk: its workers add to the queue they take from.

    python examples/crawler.py START.html

Follows the links between the files in START's folder and below, and writes one line for each page
to pages.txt: how many links it has, and its title. Kill it and start it again: it goes on where it
was.
"""

from __future__ import annotations

import asyncio
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import outlast

PAGES = Path("pages.txt")
WORKERS = 5

queue: asyncio.Queue[str] = outlast.Queue(name="crawler")  # was: asyncio.Queue()


class Page(HTMLParser):
    """The title and the links of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.title = ""
        self.links: list[str] = []
        self._in_title = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_title = tag == "title"
        href = dict(attrs).get("href")
        if tag == "a" and href and "://" not in href:
            self.links.append(unquote(urldefrag(href).url))

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title += data.strip()

    def handle_endtag(self, tag: str) -> None:
        self._in_title = False


async def visit(root: Path, name: str) -> str:
    """Read a page and queue what it links to; the line to write about it."""
    path = root / name
    page = Page(await asyncio.to_thread(path.read_text, errors="replace"))
    for link in sorted(set(page.links)):
        target = (path.parent / link).resolve()
        if target.suffix == ".html" and target.is_relative_to(root) and target.is_file():
            await queue.put(str(target.relative_to(root)))
    return f"{name}\t{len(page.links)}\t{page.title}"


async def work(root: Path, seen: set[str]) -> None:
    """Take pages from the queue, one after the other."""
    with PAGES.open("a") as pages:
        while True:
            name = await queue.get()
            if name not in seen:
                seen.add(name)
                # First the links, then the line: who reads it knows that the links are stored.
                print(await visit(root, name), file=pages, flush=True)
            queue.task_done()


async def main() -> None:
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_file():
        sys.exit("usage: python examples/crawler.py START.html (a file that is there)")
    start = Path(sys.argv[1]).resolve()
    lines = PAGES.read_text().splitlines() if PAGES.exists() else []
    seen = {line.split("\t")[0] for line in lines}
    await queue.put(start.name)
    workers = [asyncio.create_task(work(start.parent, seen)) for _ in range(WORKERS)]
    await queue.join()
    for worker in workers:
        worker.cancel()
    print(f"{len(seen)} pages")


if __name__ == "__main__":
    asyncio.run(main())
