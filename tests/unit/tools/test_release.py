"""Version, addresses and the page of the package index are of one piece."""

from __future__ import annotations

import re
import runpy
import shutil
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from keylane import __version__
from tools import release

ROOT: Final = Path(__file__).resolve().parents[3]
PROJECT: Final[dict[str, Any]] = tomllib.loads(
    (ROOT / "pyproject.toml").read_text(encoding="utf-8")
)["project"]
SETUP: Final = runpy.run_path(str(ROOT / "setup.py"))
URLS: Final = {"Documentation": "https://d.example", "Source": "https://s.example/k"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the files that have addresses."""
    for name in release.FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_all_addresses_are_those_of_the_one_place() -> None:
    """Chart, alerts and image name the home and source of pyproject.toml."""
    urls = PROJECT["urls"]
    chart = yaml.safe_load((ROOT / "helm/keylane/Chart.yaml").read_text(encoding="utf-8"))
    rules = yaml.safe_load((ROOT / "helm/keylane/rules/keylane.yaml").read_text(encoding="utf-8"))
    runbooks = [rule["annotations"]["runbook_url"] for rule in rules["groups"][0]["rules"]]
    labels = dict(
        re.findall(
            r'org\.opencontainers\.image\.(\w+)="([^"]*)"', (ROOT / "Dockerfile").read_text()
        )
    )

    assert urls["Documentation"] == urls["Homepage"]
    assert urls["Changelog"].startswith(urls["Source"])
    assert chart["home"] == urls["Homepage"]
    assert chart["sources"] == [urls["Source"]]
    assert chart["maintainers"] == [{"name": "The keylane project", "url": urls["Homepage"]}]
    assert labels["url"] == urls["Homepage"]
    assert labels["source"] == urls["Source"]
    assert all(url.startswith(f"{urls['Homepage']}/operations.html#") for url in runbooks)


def test_a_home_is_set_everywhere(tree: Path) -> None:
    """After `make home` no file has an old address, and each has the new ones."""
    old = release.read_urls(tree)

    changed = release.set_home("https://keylane.invalid.example", "https://git.example/k", tree)

    texts = [(tree / name).read_text(encoding="utf-8") for name in release.FILES]
    assert changed == list(release.FILES)
    assert release.read_urls(tree)["Source"] == "https://git.example/k"
    assert all("https://keylane.invalid.example" in text for text in texts)
    assert not any(re.search(rf"{re.escape(old['Homepage'])}(?!\.example)", t) for t in texts)


def test_a_home_below_the_source_moves_alone(tree: Path) -> None:
    """Pages of a repository are often below it: a change of the source leaves them in place."""
    home, source = "https://git.example/k/pages", "https://git.example/k"
    release.set_home(home, source, tree)

    release.set_home(home, "https://other.example/k", tree)

    urls = release.read_urls(tree)
    assert (urls["Homepage"], urls["Source"]) == (home, "https://other.example/k")


def test_home_and_source_are_two_addresses(tree: Path) -> None:
    """One address for both could never be parted again, so it is refused."""
    with pytest.raises(release.HomeInvalid, match="two addresses"):
        release.set_home("https://x.example", "https://x.example", tree)


@pytest.mark.parametrize("url", ["http://x.example", "https://x.example/", "x.example", "https://"])
def test_an_address_that_is_none_is_refused(url: str, tree: Path) -> None:
    """No file changes when one of the addresses cannot be used."""
    before = (tree / "pyproject.toml").read_text(encoding="utf-8")

    with pytest.raises(release.HomeInvalid, match=re.escape(url)):
        release.set_home("https://x.example", url, tree)

    assert (tree / "pyproject.toml").read_text(encoding="utf-8") == before


def test_a_home_that_is_not_set_is_no_release() -> None:
    """The placeholder is named, with the command that replaces it."""
    assert release.check_home({"Homepage": "https://k.example"}) == ""

    found = release.check_home({"Homepage": "https://k.invalid", "Source": "https://s.example"})

    assert found.startswith("Homepage lead nowhere; `make home")


@pytest.mark.parametrize(
    ("changelog", "found"),
    [
        ("## [1.0.0] - 2026-01-02\n\n- It.\n", ""),
        ("## [Unreleased]\n\n## [1.0.0] - 2026-01-02\n\n- It.\n", ""),
        ("## [Unreleased]\n\n- It.\n", "its changes stand under [Unreleased]"),
        ("## [Unreleased]\n", "no section [1.0.0]"),
        ("## [0.9.0] - 2026-01-02\n\n- It.\n", "the newest section is 0.9.0"),
        ("## [1.0.0]\n\n- It.\n", "the section [1.0.0] has no date"),
        ("## [1.0.0] - 2026-01-02\n", "the section [1.0.0] is empty"),
    ],
)
def test_the_changelog_has_the_version(changelog: str, found: str) -> None:
    """The newest section is the version's, dated and with a content."""
    assert release.check_changelog(changelog, "1.0.0").startswith(found)
    assert bool(release.check_changelog(changelog, "1.0.0")) == bool(found)


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("v1.0.0\n", ""),
        ("nightly\nv1.0.0\n", ""),
        ("", "this commit has no tag v1.0.0"),
        ("v1.0.1\n", "this commit has no tag v1.0.0"),
        ("v1.0.0\nv1.0.1\n", "this commit has another version's tag, too: v1.0.1"),
    ],
)
def test_the_tag_is_the_version(tags: str, found: str) -> None:
    """A commit is released by the tag of its version, and by no other."""
    assert release.check_tag(tags, "1.0.0") == found


def test_the_newest_section_is_this_version_or_unreleased() -> None:
    """Between releases changes stand under [Unreleased], above the version's section if any."""
    sections = release.newest_headings((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))

    assert [name for name, _, _ in sections if name != "Unreleased"][:1] in ([], [__version__])


def test_the_index_page_has_no_relative_link() -> None:
    """Every link of the readme leads somewhere from a package index, pictures too."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")

    page = SETUP["page_of"](readme, PROJECT["urls"])

    links = re.findall(r"\]\(([^)\s]+)\)", page)
    assert len(links) == len(re.findall(r"\]\(([^)\s]+)\)", readme)) > 20
    assert all(link.startswith(("https://", "#")) for link in links)


@pytest.mark.parametrize(
    ("link", "address"),
    [
        ("docs/spark.md", "https://d.example/spark.html"),
        ("docs/operations.md#many-nodes", "https://d.example/operations.html#many-nodes"),
        ("docs/reference/README.md", "https://d.example/reference/index.html"),
        ("docs/images/live.png", "https://d.example/images/live.png"),
        ("docs/decisions", "https://s.example/k/blob/main/docs/decisions"),
        ("CHANGELOG.md", "https://s.example/k/blob/main/CHANGELOG.md"),
        ("https://kafka.apache.org", "https://kafka.apache.org"),
        ("#limits", "#limits"),
    ],
)
def test_a_link_becomes_an_address(link: str, address: str) -> None:
    """Pages and pictures are on the documentation's site, other files in the source."""
    assert SETUP["page_of"](f"[a]({link})", URLS) == f"[a]({address})"


def test_only_pythons_that_tests_ran_with_are_named() -> None:
    """Classifiers begin with the oldest Python that is taken, and skip none."""
    minors = [
        int(found[1])
        for one in PROJECT["classifiers"]
        if (found := re.fullmatch(r"Programming Language :: Python :: 3\.(\d+)", one))
    ]

    assert PROJECT["requires-python"] == f">=3.{minors[0]}"
    assert minors == list(range(minors[0], minors[-1] + 1))
