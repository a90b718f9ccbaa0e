"""proxy/session/memory_watch.py: connections that have to go."""

from __future__ import annotations

import pytest

from keylane.proxy.session.memory_watch import find_heavy


@pytest.mark.parametrize(
    ("holdings", "gone"),
    [
        ([("a", "x", 5), ("b", "x", 5)], ""),
        ([("a", "x", 5), ("b", "x", 6)], "b"),
        ([("a", "x", 9), ("b", "x", 9), ("c", "x", 1)], "a"),
        ([("a", "x", 11), ("b", "y", 10)], "a"),
        ([("a", "x", 10), ("b", "y", 10), ("c", "z", 6)], "a"),
        ([("a", None, 9), ("b", None, 9), ("c", None, 2)], ""),
        ([("a", None, 9), ("b", None, 10), ("c", None, 2)], "b"),
        ([("a", None, 12), ("b", "x", 9)], "a"),
        ([], ""),
    ],
)
def test_connections_that_hold_too_much(holdings, gone) -> None:
    """Ten for each principal, twenty for all: the largest of those above it have to go."""
    found = find_heavy(holdings, per_principal_max=10, in_all_max=20)

    left = [each for each in holdings if each[0] not in {connection for connection, _ in found}]
    assert len(found) == len(gone)
    if found:
        sizes = {name: size for name, _, size in holdings}
        assert {sizes[connection] for connection, _ in found} == {sizes[name] for name in gone}
    assert sum(size for _, _, size in left) <= 20
    assert all("buffered_bytes" in reason for _, reason in found)
