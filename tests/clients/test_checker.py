"""The checker finds what is planted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.clients.checker import judge
from tests.clients.members import Commit
from tests.integration.harness import Sighting

LOG = {(offset % 2, offset // 2): ("k", f"k:{offset}") for offset in range(8)}
GIVEN = {("a", 0): [0.0], ("a", 1): [0.0], ("b", 0): [0.5, 5.0]}


def saw(*places: tuple[str, int, int], value: str = "") -> list[Sighting]:
    """Sightings of (member, lane, offset), a second after one another, from 1 on."""
    return [
        Sighting(member, lane, offset, "k", value or f"k:{2 * offset + lane}", 1.0 + at)
        for at, (member, lane, offset) in enumerate(places)
    ]


ALL = [("a", lane, offset) for offset in range(4) for lane in range(2)]


@pytest.mark.parametrize(
    ("sightings", "commits", "found"),
    [
        (saw(*ALL), [], set()),
        (saw(*ALL[:-1]), [], {"lost"}),
        (saw(*ALL, value="k:0"), [], {"altered"}),
        (saw(*ALL, ("a", 1, 9)), [], {"altered"}),
        (saw(("b", 0, 1), *ALL), [], {"out_of_order"}),
        (saw(*ALL, ("b", 0, 0)), [], set()),
        (saw(*ALL, ("a", 0, 3)), [], {"steps_back"}),
        (saw(*ALL, ("b", 0, 2)), [Commit("a", 0, 2, 4.0)], set()),
        (saw(*ALL, ("b", 0, 2)), [Commit("a", 0, 3, 4.0)], {"again"}),
        (saw(*ALL, ("b", 0, 2)), [Commit("a", 0, 3, 6.0)], set()),
        (saw(*ALL, ("b", 0, 2)), [Commit("a", 1, 3, 4.0)], set()),
    ],
)
def test_a_planted_fault_is_found(
    sightings: Sequence[Sighting], commits: Sequence[Commit], found: set[str]
) -> None:
    """Each fault, and no other, is in the verdict."""
    verdict = judge(LOG, sightings, commits, GIVEN, partitions=2)

    names = ("lost", "altered", "out_of_order", "steps_back", "again")
    assert {name for name in names if getattr(verdict, name)} == found
    assert verdict.is_clean is (not found)
    assert (verdict.records, verdict.deliveries) == (8, len(sightings))
