"""Build the site of docs/ and check it: `python -m tools.doc_site FOLDER`.

Pages are written for a repository's own view: links lead to files beside them, lists need no empty
line before them. A copy of them is made fit for the site, which Zensical builds without the
internet. Then every link, anchor and file of the result is looked up: a broken one fails the build,
and so does anything that a browser would fetch from elsewhere.
"""

from __future__ import annotations

import argparse
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urldefrag

ROOT: Final = Path(__file__).resolve().parent.parent
FRAME: Final = "docs/site/zensical.toml"
BESIDE: Final = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "bench/README.md")
"""Pages of the site that stand outside docs/, by their path from the root."""
UNSEARCHED: Final = "guarantees-tests.md"
"""A page of names: each search would find it before the page that explains."""
LINK: Final = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)(#[^)\s]*)?(?=[)\s])")
FENCE: Final = re.compile(r"^( *)(```|~~~)")
ITEM: Final = re.compile(r"^( *)(?:[-*]|\d+\.) ")
EMPTY: Final = re.compile(r' *\{ "[^"]+" = \[\n *\] \},\n?')
"""A section of the navigation without pages."""
SHIM: Final = re.compile(r'<script src="https://unpkg\.com/iframe-worker/shim"[^>]*></script>')
"""By it the search works in a page that is opened as a file; the site brings its own copy."""
LOADS: Final = {"img": "src", "script": "src", "iframe": "src", "source": "src"}


class SiteBroken(Exception):
    """A page or the result is not as it has to be; the text has a line for each finding."""


def build(folder: Path, root: Path = ROOT) -> None:
    """Build the site of a tree into a folder, in the place of an earlier one.

    Raises: SiteBroken.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / "index.html").exists():
        # All of it would be removed: docs/ itself, by a slip.
        raise SiteBroken(f"{folder}: has files, and no index.html: it is not an earlier site")
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        pages = _stage(root, work / "docs")
        frame = (root / FRAME).read_text(encoding="utf-8")
        (work / "zensical.toml").write_text(_with_nav(frame, pages), encoding="utf-8")
        command = [sys.executable, "-m", "zensical", "build", "--clean"]
        # Without a terminal and without colours, so that a finding can be read in a log.
        environment = {**os.environ, "NO_COLOR": "1"}
        built = subprocess.run(
            command, cwd=work, env=environment, capture_output=True, text=True, check=False
        )
        if built.returncode:
            raise SiteBroken(f"zensical ended with {built.returncode}:\n{built.stderr}")
        site = work / "site"
        for page in site.rglob("*.html"):
            _finish(page, site)
        findings = check(site)
        if findings:
            raise SiteBroken("\n".join(findings))
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(site, folder)


def _stage(root: Path, target: Path) -> list[str]:
    """Copy all pages and pictures; return the paths of the pages on the site.

    Raises: SiteBroken.
    """
    urls = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    sources = {
        path.relative_to(root).as_posix(): path.relative_to(root / "docs").as_posix()
        for path in sorted((root / "docs").rglob("*"))
        if path.is_file()
    }
    sources |= {path: path for path in BESIDE}
    for source, place in sources.items():
        copy = target / place
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.endswith(".md"):
            text = (root / source).read_text(encoding="utf-8")
            text = _with_links(text, source, sources, urls["Source"])
            head = "---\nsearch:\n  exclude: true\n---\n\n" if place == UNSEARCHED else ""
            copy.write_text(head + _with_lists(text), encoding="utf-8")
        else:
            shutil.copyfile(root / source, copy)
    return [place for place in sources.values() if place.endswith(".md")]


def _with_links(text: str, source: str, places: Mapping[str, str], home: str) -> str:
    """Turn links from file to file into links of the site, or to the source's home.

    Raises: SiteBroken.
    """
    here = posixpath.dirname(places[source])

    def turn(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[1]))
        index = posixpath.join(path, "README.md")
        place = places.get(path) or places.get(index)
        if place is None and path.startswith("docs/") and path.endswith(".md"):
            raise SiteBroken(f"{source}: link {link[1]}: no such page")
        if place is None:
            kind = "tree" if link[1].endswith("/") else "blob"
            return f"{home}/{kind}/main/{path}{link[2] or ''}"
        return posixpath.relpath(place, here or ".") + (link[2] or "")

    return LINK.sub(turn, text)


def _with_lists(text: str) -> str:
    """Give lists what Python-Markdown asks for: an empty line before, four columns a level."""
    lines: list[str] = []
    fence: int | None = None  # what is added to lines of an open fence
    in_list = False
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip(" "))
        mark = FENCE.match(line)
        deeper = _deeper(indent) if in_list and indent else 0
        if mark and fence is None:
            fence = deeper
            lines.append(" " * deeper + line)
        elif fence is not None:
            lines.append(" " * fence + line if line else line)
            fence = None if mark else fence
        else:
            starts = ITEM.match(line) is not None
            if starts and not in_list and lines and lines[-1].strip():
                lines.append("")
            in_list = starts or (in_list and (indent > 0 or not line.strip()))
            lines.append(" " * deeper + line)
    return "\n".join(lines)


def _deeper(indent: int) -> int:
    """Return the columns that are missing to four for each level of two or three."""
    return (indent + 1) // 3 * 4 - indent if indent % 2 else indent


def _with_nav(frame: str, pages: list[str]) -> str:
    """Return the settings with the navigation of the pages that exist.

    Raises: SiteBroken, pages are in no place of the navigation.
    """
    head, _, rest = frame.partition("nav = [\n")
    nav, _, tail = rest.partition("\n]\n")
    kept = [line for line in nav.split("\n") if (page := _page_of(line)) is None or page in pages]
    named = {page for line in kept if (page := _page_of(line)) is not None}
    records = sorted(set(pages) - named)
    lost = [page for page in records if not page.startswith("decisions/")]
    if lost:
        raise SiteBroken("\n".join(f"{page} is not in the nav of {FRAME}" for page in lost))
    listed = "".join(f', "{page}"' for page in records)
    text = EMPTY.sub("", "\n".join(kept)).replace(
        '"decisions/README.md"', f'"decisions/README.md"{listed}'
    )
    return f"{head}nav = [\n{text}\n]\n{tail}"


def _page_of(line: str) -> str | None:
    found = re.search(r'"([\w./-]+\.md)"', line)
    return found[1] if found else None


def _finish(page: Path, site: Path) -> None:
    """Take the reference to another server out of a page."""
    own = posixpath.relpath("site/iframe-worker.js", page.parent.relative_to(site).as_posix())
    text = page.read_text(encoding="utf-8")
    page.write_text(SHIM.sub(f'<script src="{own}"></script>', text), encoding="utf-8")


@dataclass(slots=True)
class _Page(HTMLParser):
    """Links, anchors and loaded files of one page."""

    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        HTMLParser.__init__(self)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag names."""
        values = {name: value or "" for name, value in attrs}
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and values.get("rel") in {"stylesheet", "icon", "preload"}:
            self.loads.append(values["href"])
        if tag in LOADS and LOADS[tag] in values:
            self.loads.append(values[LOADS[tag]])


def check(site: Path) -> list[str]:
    """Return each broken link, anchor and file of a site, and each file of another server."""
    pages = {path: _read(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}
    return [
        f"{path.relative_to(site)}: {finding}"
        for path, page in pages.items()
        for finding in _findings(path, page, pages)
    ]


def _read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def _findings(path: Path, page: _Page, pages: Mapping[Path, Any]) -> Iterator[str]:
    for load in page.loads:
        if re.match(r"(\w+:)?//", load):
            yield f"{load} is fetched from elsewhere"
        elif not (path.parent / unquote(load.partition("?")[0])).exists():
            yield f"{load} does not exist"
    for link in dict.fromkeys(page.links):
        address, anchor = urldefrag(link)
        if re.match(r"\w+:", address):
            continue
        target = (path.parent / unquote(address)).resolve() if address else path.resolve()
        if not target.exists():
            yield f"link {link}: no such file"
        elif anchor and target in pages and unquote(anchor) not in pages[target].anchors:
            yield f"link {link}: no such heading"


def main(argv: list[str] | None = None) -> int:
    """Build into a folder; 1 with a line for each finding."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "folder", type=Path, help="new, empty, or an earlier site, which is replaced"
    )
    folder = parser.parse_args(argv).folder
    try:
        build(folder)
    except SiteBroken as error:
        print(error, file=sys.stderr)
        return 1
    print(f"built {folder / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
