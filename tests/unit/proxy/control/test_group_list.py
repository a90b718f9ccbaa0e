"""proxy/control/group_list.py: all groups, those that are not known here by what brokers say."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from kio.schema.errors import ErrorCode

from keylane.errors import UpstreamLost
from keylane.proxy.control import group_list
from keylane.proxy.control.group_list import GroupLister, ListedGroup, merge
from keylane.proxy.control.watch.summary import GroupSummary
from keylane.proxy.topics.node_values import GROUP as NODES_GROUP

SAMPLED = GroupSummary(
    group="lanes", kind="lanes", protocol=None, state="Empty", member_count=2, lag=7, as_of_ms=90
)


class Known:
    """A node that has sampled one group, serves another on lanes, and knows a third elsewhere."""

    def summaries(self) -> Mapping[str, GroupSummary]:
        return {"lanes": SAMPLED}

    def lane_groups(self) -> frozenset[str]:
        return frozenset({"lanes", "new"})

    def node_of(self, group: str) -> str | None:
        return "http://node-2" if group.startswith("far") else None


def listed(group: str, protocol: str = "classic", at_ms: int = 100) -> tuple[ListedGroup, int]:
    return ListedGroup(group, protocol, "Stable"), at_ms


def test_groups_are_of_their_kind() -> None:
    """Those on lanes come first; of those elsewhere only what brokers say is known."""
    names = ("plain", "far", "lanes", "new", NODES_GROUP)
    said = {name: listed(name) for name in names}
    said |= {"queue": listed("queue", "share"), "far-queue": listed("far-queue", "share")}

    report = merge(said, Known(), 200, asked_ms=100)

    assert [(one.group, one.kind, one.node) for one in report.groups] == [
        ("lanes", "lanes", None),
        ("new", "lanes", None),
        ("far-queue", "share", "http://node-2"),
        ("queue", "share", None),
        ("far", None, "http://node-2"),
        ("plain", "plain", None),
    ]
    first = report.groups[0]
    assert (first.state, first.protocol, first.lag, first.member_count) == (
        "Stable", "classic", 7, 2,
    )  # fmt: skip
    assert not any(one.is_old for one in report.groups)
    assert (report.at_ms, report.left_out) == (200, 0)


def test_groups_of_a_broker_that_is_away_are_old() -> None:
    """With the time of their figures; a group that only a sample knows, too."""
    report = merge({"plain": listed("plain", at_ms=50)}, Known(), 200, asked_ms=100)

    assert [(one.group, one.is_old, one.as_of_ms) for one in report.groups] == [
        ("lanes", True, 90),
        ("plain", True, 50),
    ]


def test_the_answer_is_bounded(monkeypatch) -> None:
    """What is beyond is counted."""
    monkeypatch.setattr(group_list, "GROUPS_MAX", 3)
    said = {f"p{number}": listed(f"p{number}") for number in range(9)}

    report = merge(said, Known(), 200, asked_ms=100)

    assert (len(report.groups), report.left_out) == (3, 7)


class FakeCluster:
    """Two brokers; what is asked is counted."""

    def __init__(self) -> None:
        self.brokers = {1: None, 2: None}
        self.away: set[int] = set()
        self.hung: set[int] = set()
        self.asked: list[int] = []
        self.version = 5

    async def versions_of(self, _node_id: int) -> Mapping[int, int]:
        return {16: self.version}

    async def ask_broker(self, node_id: int, _request: Any) -> Any:
        self.asked.append(node_id)
        if node_id in self.away:
            raise UpstreamLost("away")
        if node_id in self.hung:
            raise TimeoutError
        entry = SimpleNamespace(
            group_id=f"g{node_id}", protocol_type="consumer", group_state="Stable"
        )
        other = SimpleNamespace(
            group_id=f"connect-{node_id}", protocol_type="connect", group_state="Empty"
        )
        return SimpleNamespace(error_code=ErrorCode.none, groups=[entry, other])


def lister(cluster: Any, now_ms: list[int]) -> GroupLister:
    return GroupLister(cluster, Known(), lambda: now_ms[0])


async def test_callers_share_a_round() -> None:
    """Ten pages cost a question per broker."""
    cluster = FakeCluster()
    groups = lister(cluster, [1_000])

    reports = await asyncio.gather(*(groups.list() for _ in range(10)))

    assert sorted(cluster.asked) == [1, 2]
    names = {one.group: one.protocol for one in reports[0].groups}
    assert names["g1"] == "classic" and names["connect-2"] == "connect"
    assert all(report == reports[0] for report in reports)


async def test_what_a_broker_said_stays_while_it_is_away(monkeypatch) -> None:
    """Marked as old, and no longer than ten minutes while another one answers."""
    monkeypatch.setattr(group_list, "FRESH_S", -1.0)
    cluster, now_ms = FakeCluster(), [1_000]
    groups = lister(cluster, now_ms)
    await groups.list()
    cluster.away.add(2)
    now_ms[0] = 2_000

    old = {one.group: one.is_old for one in (await groups.list()).groups}
    now_ms[0] += group_list.KEPT_MS
    gone = {one.group for one in (await groups.list()).groups}
    cluster.away.add(1)
    now_ms[0] += 10 * group_list.KEPT_MS
    dark = {one.group: one.is_old for one in (await groups.list()).groups}

    assert (old["g1"], old["g2"]) == (False, True)
    assert "g1" in gone and "g2" not in gone
    assert dark["g1"]


async def test_a_broker_that_hangs_is_left_alone_for_a_while(monkeypatch) -> None:
    """Its groups are listed as old, and only the first caller waits for it."""
    monkeypatch.setattr(group_list, "FRESH_S", -1.0)
    cluster, now_ms = FakeCluster(), [1_000]
    groups = lister(cluster, now_ms)
    await groups.list()
    cluster.hung.add(2)

    asked, old = [], []
    for _ in range(3):
        now_ms[0] += 1_000
        cluster.asked.clear()
        old.append({one.group: one.is_old for one in (await groups.list()).groups})
        asked.append(sorted(cluster.asked))

    assert asked == [[1, 2], [1], [1]]
    assert [(each["g1"], each["g2"]) for each in old] == [(False, True)] * 3


async def test_a_broker_that_hung_is_asked_again(monkeypatch) -> None:
    """Once its time is over."""
    monkeypatch.setattr(group_list, "FRESH_S", -1.0)
    monkeypatch.setattr(group_list, "SILENT_S", -1.0)
    cluster, now_ms = FakeCluster(), [1_000]
    groups = lister(cluster, now_ms)
    cluster.hung.add(2)
    await groups.list()
    cluster.hung.clear()

    found = {one.group: one.is_old for one in (await groups.list()).groups}

    assert not found["g2"]


async def test_old_brokers_are_asked_in_their_version() -> None:
    """They know neither states nor types."""
    for version in (0, 3, 4):
        cluster = FakeCluster()
        cluster.version = version
        assert (await lister(cluster, [1]).list()).groups
