"""keylane/embedded/resolve.py: which mirror of Maven Central a user has set."""

from __future__ import annotations

import pytest

from keylane.embedded.resolve import read_central_mirror

SETTINGS = """<settings xmlns="http://maven.apache.org/SETTINGS/1.0.0"><mirrors>
<mirror><id>other</id><mirrorOf>snapshots</mirrorOf><url>https://other.test/</url></mirror>
<mirror><id>ours</id><mirrorOf>{mirror_of}</mirrorOf><url>https://ours.test/</url></mirror>
</mirrors></settings>"""


@pytest.mark.parametrize(
    "mirror_of", ["central", "*", "external:*", "*,!snapshots", " a, central "]
)
def test_a_mirror_of_central_is_used(mirror_of: str) -> None:
    """Every way to name Central in `mirrorOf` gives the mirror's address."""
    assert read_central_mirror(SETTINGS.format(mirror_of=mirror_of)) == "https://ours.test/"


@pytest.mark.parametrize("mirror_of", ["snapshots", "*,!central", "", "centralized"])
def test_a_mirror_of_something_else_is_not(mirror_of: str) -> None:
    """A mirror that does not stand for Central leaves jgo's own default."""
    assert read_central_mirror(SETTINGS.format(mirror_of=mirror_of)) is None


def test_settings_without_mirrors_have_none() -> None:
    """An empty settings file decides nothing."""
    assert read_central_mirror("<settings/>") is None
