"""Metrics of ordered share groups, bounded in series."""

from __future__ import annotations

from functools import partial

from keylane.config.share_rules import ShareRule
from keylane.proxy.control.shares import gauges
from keylane.proxy.control.shares.gauges import ShareGauges
from keylane.proxy.control.shares.windows import look_at_windows
from keylane.wire.share import Acquired
from tests.reference.share_windows import CACHE_BYTES, SharedGroups


async def ask(shared: SharedGroups) -> dict[tuple[str, ...], float]:
    """All samples, by name without its prefix, and label values."""
    ordered = shared.ordered
    look = partial(look_at_windows, ordered)
    found = ShareGauges(look, ordered.sessions, ordered.tallies, ordered.held_bytes)
    await found.look()
    return {
        (sample.name.removeprefix("keylane_share_"), *(value for _, value in sample.labels)): (
            sample.value
        )
        for sample in found.samples()
    }


async def test_partitions_of_a_topic_add_up() -> None:
    """Records are added up; of the window and the age the largest counts."""
    shared = SharedGroups(ShareRule(group="g", look_ahead=10))
    first, second = shared.open(), shared.open(partition=1, now_s=160.0)
    first.hold(1, 1, 2)
    first.hand_out(1)
    second.hold(*[7] * 5, count=2)
    second.delivery_limit = 2
    second.dispatcher.is_settled = False
    shared.open(partition=2, error_code=2)

    found = await ask(shared)

    assert {key[0]: value for key, value in found.items() if key[1:] == ("g", "orders")} == {
        "partitions": 3,
        "partitions_unsettled": 2,
        "partitions_failed": 1,
        "members": 0,
        "records_held": 8,
        "records_ready": 2,
        "records_in_flight": 1,
        "records_waiting": 5,
        "records_unconfirmed": 0,
        "records_released": 0,
        "last_attempts": 5,
        "window_used_ratio": 0.5,
        "oldest_seconds": 60.0,
    }


async def test_a_member_with_two_sessions_is_one_member() -> None:
    """It has one at each broker; a session of another topic does not count."""
    shared = SharedGroups()
    places = [shared.open(partition=number).place for number in range(2)]
    other = shared.open(topic="shop").place
    shared.join("g", "m1", places)
    shared.join("g", "m1", places[:1], broker_id=2)
    shared.join("g", "m2", [places[1], other])

    found = await ask(shared)

    assert found["members", "g", "orders"] == 2
    assert found["members", "g", "shop"] == 1


async def test_only_those_furthest_behind_have_series(monkeypatch) -> None:
    """A stopped partition comes before a full window, and that before an old record."""
    monkeypatch.setattr(gauges, "SERIES_MAX", 3)
    shared = SharedGroups(ShareRule(group="*", look_ahead=10))
    for group, points, age_s, code in (
        ("old", 1, 900.0, 0), ("calm", 1, 0.0, 0), ("full", 9, 0.0, 0), ("failed", 0, 0.0, 2)
    ):  # fmt: skip
        shared.open(group, error_code=code, now_s=100.0 + age_s).hold(*range(points))

    found = await ask(shared)

    shown = [key[1] for key in found if key[0] == "window_used_ratio"]
    assert shown == ["failed", "full", "old"]
    assert found["series_left_out",] == 1


async def test_counters_do_not_go_back_when_a_window_is_closed() -> None:
    """They are counted as records are handed out, by delivery count."""
    shared = SharedGroups()
    place = shared.open().place
    shared.ordered.tallies.note(place, [Acquired(0, 4, 1), Acquired(7, 8, 3)])
    shared.ordered.tallies.note_hand_over("taken")
    shared.ordered._partitions.clear()

    found = await ask(shared)

    assert found["handed_out_total", "g", "orders"] == 7
    assert found["redelivered_total", "g", "orders"] == 2
    assert [found["hand_overs_total", step] for step in ("offered", "taken")] == [0, 1]
    assert ("partitions", "g", "orders") not in found


async def test_memory_is_counted_by_group_and_in_all(monkeypatch) -> None:
    """Of more groups than there are series for, those that hold most."""
    monkeypatch.setattr(gauges, "SERIES_MAX", 1)
    shared = SharedGroups()
    shared.ordered.held_bytes.by_group.update({"g": 500, "h": 20})

    found = await ask(shared)

    assert found["held_bytes",] == 520
    assert found["held_bytes_max",] == CACHE_BYTES // 2
    assert [key for key in found if key[0] == "group_held_bytes"] == [("group_held_bytes", "g")]
