"""keylane/cli/manual.py: where the documentation is, and what it says where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from keylane.cli.manual import run_docs


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site of two pages."""
    for name in ("index", "tuning", "404"):
        (tmp_path / f"{name}.html").write_text("<p>")
    return tmp_path


@pytest.mark.parametrize("page", ["tuning", "tuning.md", "tuning.html"])
def test_a_page_is_an_address(page: str, site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The address of a page is one that a browser opens as a file."""
    status = run_docs(page, (site / "none", site))

    assert status == 0
    assert capsys.readouterr().out == f"{(site / 'tuning.html').as_uri()}\n"


@pytest.mark.parametrize("page", ["tunnig", "../secret", "/etc/passwd"])
def test_an_unknown_page_names_all_pages(
    page: str, site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A misspelt page, and one outside the site, end with 1 and the names that there are."""
    status = run_docs(page, (site,))

    assert status == 1
    assert capsys.readouterr().err.endswith("there are index, tuning\n")


def test_a_checkout_without_a_site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The cure is named where nothing was built."""
    status = run_docs("index", (tmp_path,))

    assert status == 1
    assert "`make docs`" in capsys.readouterr().err
