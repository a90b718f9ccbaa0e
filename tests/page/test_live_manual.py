"""docs/live-page.md: its pictures are there, small, and each has the five answers."""

from __future__ import annotations

import re
from pathlib import Path

from tests.pictures import BYTES_MAX

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "live-page.md").read_text(encoding="utf-8")


def test_each_picture_of_the_page_is_shown_and_small() -> None:
    """None is left over, none is missing, none is above the bound."""
    shown = set(re.findall(r"\(images/(page-[a-z-]+\.png)\)", PAGE))
    there = {path.name for path in (DOCS / "images").glob("page-*.png")}

    assert shown == there
    assert max((DOCS / "images" / name).stat().st_size for name in there) <= BYTES_MAX


def test_each_scene_has_five_answers() -> None:
    """A numbered list of five under each of the five scenes."""
    scenes = [part for part in re.split(r"^## ", PAGE, flags=re.MULTILINE) if "\n1. " in part]

    assert len(scenes) == 5
    for scene in scenes:
        for number, word in enumerate(("ehind", "tuck", "oved", "alance", "luster"), 1):
            assert re.search(rf"\b{number}\. [^\n]*{word}", scene), scene[:40]
