"""What topics are to client ids with key ranges: made from the table, followed when it changes."""

from __future__ import annotations

import uuid

import pytest

from keylane.keyrange.space import HASH_MAX, KeyRange
from keylane.proxy.topics import range_views as module
from keylane.proxy.topics.range_table import RangeTable, RangeTableHolder
from keylane.proxy.topics.range_views import RangeViews
from keylane.proxy.topics.registry import PhysicalTopic
from keylane.proxy.topics.view import View

TOPIC = PhysicalTopic(name="orders", topic_id=uuid.UUID(int=7), partition_count=4)
LOW, HIGH = KeyRange(0, 99), KeyRange(100, HASH_MAX)


def views(**clients: dict[int, list[KeyRange]]) -> tuple[RangeViews, RangeTableHolder]:
    """Views of a table in which these clients have ranges of orders."""
    holder = RangeTableHolder()
    made = RangeViews(holder)
    put(holder, **clients)
    return made, holder


def put(holder: RangeTableHolder, **clients: dict[int, list[KeyRange]]) -> None:
    """Another table in the place of the one that there is."""
    holder.table = RangeTable().with_clients({c: {"orders": p} for c, p in clients.items()})


def view_of(made: RangeViews, client_id: str) -> View:
    """The view of a client that has one."""
    found = made.view(client_id, TOPIC)
    assert found is not None
    return found


def test_a_view_has_the_clients_partitions_and_ranges() -> None:
    """An index is a partition; one that was not given is refused."""
    made, _ = views(a={0: [LOW], 3: []}, b={0: [HIGH]})

    view = view_of(made, "a")

    assert (view.name, view.view_id, view.is_renamed, view.lanes) == (
        "orders", TOPIC.topic_id, False, None,
    )  # fmt: skip
    assert view.reserve and list(view.indexes) == [0, 3]
    assert [view.error_of(index) for index in range(4)] == [0, 29, 29, 0]
    assert (view.partition_of(3), view.key_ranges(0)) == (3, (LOW,))
    assert view.key_ranges(3) == (KeyRange(0, HASH_MAX),)


def test_owners_of_a_partition_share_one_split() -> None:
    """Readers are kept by it: one upstream read serves all of them."""
    made, _ = views(a={0: [LOW]}, b={0: [HIGH]})

    one, other = view_of(made, "a"), view_of(made, "b")

    assert one.key_split(0) is other.key_split(0)
    assert (one.output_of(0), other.output_of(0)) == (0, 1)


def test_a_view_is_made_once_per_table() -> None:
    """And anew for the next table, which it may equal."""
    made, holder = views(a={0: [LOW]})
    view = view_of(made, "a")
    assert view_of(made, "a") is view and made.is_current(view)

    put(holder, a={0: [LOW]}, b={1: []})
    assert made.is_current(view)
    assert view_of(made, "a") is not view

    put(holder, a={0: [LOW]}, b={0: [HIGH]})
    assert not made.is_current(view)
    put(holder, b={0: [HIGH]})
    assert not made.is_current(view)


def test_a_client_without_ranges_reads_plain() -> None:
    """It has none in the topic, or at all; a client without an id never has any."""
    made, holder = views(a={0: [LOW]})

    assert made.view("b", TOPIC) is None
    assert [made.has_ranges(client) for client in ("a", "b", "", None)] == [
        True,
        False,
        False,
        False,
    ]
    holder.table = RangeTable().with_clients({"a": {"shop": {0: []}}})
    assert made.view("a", TOPIC) is None and made.has_ranges("a")


def test_refusals_are_logged_once_per_table_and_bounded(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that asks in a circle fills no log; a new table may have another reason."""
    monkeypatch.setattr(module, "LOGGED_MAX", 2)
    made, holder = views(a={0: [LOW]})

    def logged() -> list[str]:
        """Partitions in its lines: asyncio may log what another test has left, at any time."""
        own = [each.getMessage() for each in caplog.records if each.name == "keylane.ranges"]
        return [line.split("partition=")[1][0] for line in own]

    for partition in (1, 1, 2, 3):
        made.log_refusal(view_of(made, "a"), partition)
    assert logged() == ["1", "2"]
    put(holder, a={0: [HIGH]})
    made.log_refusal(view_of(made, "a"), 1)

    assert logged() == ["1", "2", "1"]
