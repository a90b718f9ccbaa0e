"""Share groups as the live page gets them: the partitions that need a look first."""

from __future__ import annotations

from typing import Any

from keylane.proxy.control.describe import GroupReport
from keylane.proxy.control.shares import live
from keylane.proxy.control.shares.live import shares_of
from keylane.proxy.control.shares.report import (
    ShareMemberReport,
    SharePartitionReport,
    ShareReport,
    WindowReport,
)

MEMBER = ShareMemberReport(member_id="m", client_id="c", host="/h", partition_count=1)


def window(**values: Any) -> WindowReport:
    zero = dict.fromkeys(
        (
            *("members", "ready", "in_flight", "waiting", "unconfirmed", "released", "span"),
            *("last_attempts", "handed_out", "redelivered"),
        ),
        0,
    )
    some: dict[str, Any] = {
        "oldest_offset": None,
        "oldest_s": None,
        "end_offset": None,
        "look_ahead": 100,
        "is_settled": True,
        "error": None,
        "hottest_keys": (),
    }
    return WindowReport(**{**zero, **some, **values})


def partition(number: int, shown: WindowReport | None, **values: Any) -> SharePartitionReport:
    some: dict[str, Any] = {
        "topic": "orders",
        "leader": 1,
        "start_offset": 0,
        "lag": 10,
        "is_ordered": True,
        "node": None,
        **values,
    }
    return SharePartitionReport(partition=number, window=shown, **some)


def report(*partitions: SharePartitionReport) -> GroupReport:
    share = ShareReport(is_ordered=True, members=(MEMBER, MEMBER), partitions=partitions)
    return GroupReport(
        group="g",
        state="Stable",
        assignor="simple",
        coordinator=1,
        generation_id=2,
        members=(),
        lanes=(),
        share=share,
    )


def test_what_needs_a_look_comes_first() -> None:
    """Stopped, then full, then old, then well; what is elsewhere comes last, plain topics never."""
    partitions = (
        partition(0, None, lag=None),
        partition(1, window(span=1)),
        partition(2, window(span=1, oldest_s=5.0)),
        partition(3, window(span=90)),
        partition(4, window(is_settled=False)),
        partition(5, window(error="CORRUPT_MESSAGE", span=3)),
        partition(6, None, is_ordered=False),
    )

    (shown,) = shares_of([report(*partitions)])

    assert [each["partition"] for each in shown["partitions"]] == [5, 4, 3, 2, 1, 0]
    assert (shown["members"], shown["lag"], shown["partitions_left_out"]) == (2, 50, 0)
    assert shown["partitions"][2]["window"]["span"] == 90
    assert shown["partitions"][-1]["window"] is None


def test_the_number_of_partitions_is_bounded(monkeypatch) -> None:
    """The others are counted; a lag that is not known at all is none."""
    monkeypatch.setattr(live, "PARTITIONS_MAX", 2)

    (shown,) = shares_of([report(*(partition(n, window(), lag=None) for n in range(5)))])

    assert [each["partition"] for each in shown["partitions"]] == [0, 1]
    assert (shown["partitions_left_out"], shown["lag"]) == (3, None)
