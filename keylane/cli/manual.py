"""`keylane docs`: the documentation that came with the package.

A wheel holds the site of docs/ as files (`keylane/manual/`), which a browser opens without a
server and without the internet. A checkout has none until `make docs` builds it.
"""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from typing import Final

import click

from keylane.usage import HELP_NAMES

SITE: Final = Path(__file__).resolve().parent.parent / "manual"
BUILT: Final = Path(__file__).resolve().parents[2] / "build" / "docs"
"""Folder of the site of a checkout: `make docs` builds it."""


@click.command(
    "docs",
    context_settings=dict(HELP_NAMES),
    short_help="Print where the documentation is, or open it.",
)
@click.argument("page", default="index")
@click.option("--open", "is_opened", is_flag=True, help="Open it in a browser.")
def docs_command(page: str, *, is_opened: bool) -> int:
    """Print the address of the documentation of this version: it needs no internet.

    PAGE is the name of a page, such as getting-started or configuration.
    """
    return run_docs(page, is_opened=is_opened)


def run_docs(page: str, sites: tuple[Path, ...] = (SITE, BUILT), *, is_opened: bool = False) -> int:
    """Print the address of a page, or open it; 1 where it is not there."""
    site = next((each for each in sites if (each / "index.html").exists()), None)
    if site is None:
        print(
            "keylane docs: this checkout has no built documentation: `make docs`", file=sys.stderr
        )
        return 1
    file = site / f"{page.removesuffix('.html').removesuffix('.md')}.html"
    if not file.resolve().is_relative_to(site.resolve()) or not file.exists():
        names = ", ".join(sorted(each.stem for each in site.glob("*.html") if each.stem != "404"))
        print(f"keylane docs: there is no page {page}; there are {names}", file=sys.stderr)
        return 1
    address = file.resolve().as_uri()
    print(address)
    if is_opened and not webbrowser.open(address):
        print("keylane docs: no browser was found; open the address above", file=sys.stderr)
        return 1
    return 0
