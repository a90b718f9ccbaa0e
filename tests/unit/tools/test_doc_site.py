"""tools/doc_site.py: the site of docs/ builds, and what is broken does not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tools import doc_site
from tools.doc_site import ROOT, SiteBroken, build, check

PAGE = '<a href="{link}">there</a><h2 id="here">Here</h2>'


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small checkout: two pages, those beside docs/, and the project's own frame."""
    root = tmp_path / "tree"
    shutil.copytree(ROOT / "docs" / "site", root / "docs" / "site")
    shutil.copyfile(ROOT / "pyproject.toml", root / "pyproject.toml")
    for name in (*doc_site.BESIDE, "docs/index.md", "docs/faq.md", "docs/decisions/README.md"):
        page = root / name
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(f"# {page.stem}\n\n## Here\n", encoding="utf-8")
    return root


def test_the_documentation_builds(tmp_path: Path) -> None:
    """Each page has a place, each link and anchor leads somewhere, nothing is fetched."""
    build(tmp_path / "site")

    pages = {page.relative_to(tmp_path / "site") for page in (tmp_path / "site").rglob("*.html")}
    sources = {page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")}
    home = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert {
        source.with_suffix(".html") for source in sources if source.name != "README.md"
    } <= pages
    assert "Getting started" in home
    assert "unpkg.com" not in home and "site/iframe-worker.js" in home
    assert (tmp_path / "site" / "search.js").exists()


def test_a_link_into_the_source_leads_to_its_home(tree: Path, tmp_path: Path) -> None:
    """A file that is no page becomes an address of the project; a page stays a page."""
    text = "# faq\n\n[a](../proxy/server.py) [b](../CHANGELOG.md#here) [c](decisions)\n"
    (tree / "docs" / "faq.md").write_text(text, encoding="utf-8")

    build(tmp_path / "site", tree)

    page = (tmp_path / "site" / "faq.html").read_text(encoding="utf-8")
    assert "/blob/main/proxy/server.py" in page
    assert 'href="CHANGELOG.html#here"' in page
    assert 'href="decisions/' in page


def test_only_an_earlier_site_is_replaced(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder of other files stays as it is; of an earlier site nothing is left."""
    assert doc_site.main([str(tree / "docs")]) == 1
    assert "it is not an earlier site" in capsys.readouterr().err
    assert (tree / "docs" / "faq.md").exists()

    site = tmp_path / "site"
    site.mkdir()
    for name in ("index.html", "gone.html"):
        (site / name).touch()
    build(site, tree)

    assert (site / "faq.html").exists()
    assert not (site / "gone.html").exists()


def test_a_page_without_a_place_is_refused(tree: Path, tmp_path: Path) -> None:
    """A page that the navigation does not name is found by no reader."""
    (tree / "docs" / "lost.md").write_text("# Lost\n", encoding="utf-8")

    with pytest.raises(SiteBroken, match=r"lost\.md is not in the nav"):
        build(tmp_path / "site", tree)


@pytest.mark.parametrize("link", ["gone.md", "index.md#gone", "#gone"])
def test_a_broken_link_is_refused(link: str, tree: Path, tmp_path: Path) -> None:
    """A page or heading that is not there ends the build, and nothing is written."""
    (tree / "docs" / "faq.md").write_text(f"# faq\n\n[a]({link})\n", encoding="utf-8")

    with pytest.raises(SiteBroken, match="no such"):
        build(tmp_path / "site", tree)

    assert not (tmp_path / "site").exists()


@pytest.mark.parametrize(
    ("html", "finding"),
    [
        ('<script src="https://cdn.example/x.js"></script>', "fetched from elsewhere"),
        ('<img src="gone.png">', "gone.png does not exist"),
        ('<a href="gone.html">x</a>', "link gone.html: no such file"),
        ('<a href="b.html#gone">x</a>', "link b.html#gone: no such heading"),
    ],
)
def test_each_fault_of_a_site_is_found(html: str, finding: str, tmp_path: Path) -> None:
    """A file, link or anchor that is missing, and one of another server, are each a line."""
    (tmp_path / "a.html").write_text(html, encoding="utf-8")
    (tmp_path / "b.html").write_text(PAGE.format(link="a.html#"), encoding="utf-8")

    found = check(tmp_path)

    assert len(found) == 1
    assert found[0].startswith("a.html: ") and finding in found[0]


def test_lists_are_lists_to_the_builder() -> None:
    """An empty line before a list, four columns a level; code within a list moves with it."""
    text = "Look:\n- a\n  - b\n\n    ```sh\n    run\n    ```\n1. c\n   more\n"

    staged = doc_site._with_lists(text)

    assert staged == (
        "Look:\n\n- a\n    - b\n\n        ```sh\n        run\n        ```\n1. c\n    more\n"
    )
