"""Lane names that groups have used."""

from __future__ import annotations

import pytest

from keylane.proxy.commits import lane_uses
from keylane.proxy.commits.lane_uses import LaneNames


def test_names_are_kept_in_the_order_of_their_first_use() -> None:
    """Each once; a group that was deleted has none."""
    names = LaneNames()

    for name in ("b", "a", "b"):
        names.note("g", name)

    assert names.of("g") == ("b", "a")
    names.forget("g")
    assert names.of("g") == ()


def test_the_longest_unseen_group_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for two, the third takes the place of the one that was not seen again."""
    monkeypatch.setattr(lane_uses, "GROUPS_NAMED_MAX", 2)
    names = LaneNames()

    for group in ("one", "two", "one", "three"):
        names.note(group, "orders.lanes-2")

    assert [names.of(group) for group in ("one", "two", "three")] == [
        ("orders.lanes-2",), (), ("orders.lanes-2",)
    ]  # fmt: skip
