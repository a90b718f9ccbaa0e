"""A share group by its coordinator's words, with the windows of this node."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kio.index import load_response_schema

from keylane.config.share_rules import ShareRule
from keylane.errors import UpstreamLost
from keylane.proxy.control.shares.describe import DescribedShares, ShareDescriber
from keylane.proxy.topics.placement import Placement
from keylane.wire.header import ApiKey
from tests.reference.share_windows import SharedGroups, topic_id_of
from tests.transcript.entities import build, plain

NOT_FOUND, DENIED, UNKNOWN = 69, 30, 3
VERSIONS: dict[int, int] = {ApiKey.SHARE_GROUP_DESCRIBE: 1, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: 1}
MEMBER = {
    "member_id": "m1",
    "client_id": "worker",
    "client_host": "/10.0.0.7",
    "assignment": {
        "topic_partitions": [
            {"topic_id": topic_id_of("orders"), "topic_name": "orders", "partitions": [0, 1]}
        ]
    },
}
DESCRIBED = {
    "group_id": "g",
    "group_state": "Stable",
    "group_epoch": 4,
    "assignor_name": "simple",
    "members": [MEMBER],
}


class FakeCluster:
    """Answers for the coordinator of all groups."""

    def __init__(self, described: dict[str, Any], *topics: dict[str, Any], **offsets: Any) -> None:
        self.answers: dict[int, dict[str, Any]] = {
            ApiKey.SHARE_GROUP_DESCRIBE: {"groups": [described]},
            ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: {
                "groups": [{"group_id": "g", "topics": list(topics), **offsets}]
            },
        }
        self.versions: dict[int, int] = VERSIONS.copy()
        self.asked: list[Any] = []
        names = {"orders", "shop"}
        topics_known = {name: SimpleNamespace(topic_id=topic_id_of(name)) for name in names}
        self.registry = SimpleNamespace(topics=topics_known, count_of=lambda _: 4)
        self.leaders = {(topic_id_of("orders"), 1): (5, 9)}

    async def coordinator_of(self, _group: str) -> int:
        return 3

    async def versions_of(self, _node_id: int) -> dict[int, int]:
        return self.versions

    async def ask_broker(self, node_id: int, entity: Any) -> Any:
        api_key, version = int(entity.__api_key__), int(entity.__version__)
        self.asked.append((node_id, api_key, version, plain(entity)))
        return build(load_response_schema(api_key, version), self.answers[api_key])


def topic(name: str, *entries: tuple[int, int, int, int]) -> dict[str, Any]:
    """Partition, start offset, lag and error code of each."""
    names = ("partition_index", "start_offset", "lag", "error_code")
    partitions = [dict(zip(names, entry, strict=True)) for entry in entries]
    return {"topic_name": name, "topic_id": topic_id_of(name), "partitions": partitions}


async def describe(
    cluster: FakeCluster, shared: SharedGroups, placement: Placement | None = None
) -> DescribedShares | None:
    describer = ShareDescriber(
        cluster,  # type: ignore[arg-type]
        shared.ordered,
        placement or Placement(),
    )
    return await describer.describe("g")


async def test_an_ordered_group_is_shown_with_its_windows() -> None:
    """Offsets by the coordinator, all else by the window; a key is shown by its hash."""
    shared = SharedGroups(ShareRule(group="g", topics="orders", look_ahead=10))
    opened = shared.open(leader=(2, 7), now_s=112.5)
    opened.hold(77, 77, 8, first=40)
    opened.hand_out(1)
    opened.delivery_limit = 1
    cluster = FakeCluster(DESCRIBED, topic("orders", (0, 40, 3, 0), (1, 0, 9, 0)))

    found = await describe(cluster, shared)

    assert found is not None
    assert (found.state, found.assignor, found.coordinator, found.epoch) == (
        *("Stable", "simple", 3, 4),
    )
    report = found.report
    (member,) = report.members
    assert (member.client_id, member.host, member.partition_count) == ("worker", "/10.0.0.7", 2)
    first, second = report.partitions
    assert report.is_ordered and first.is_ordered
    assert (first.partition, first.leader, first.start_offset, first.lag) == (0, 2, 40, 3)
    window = first.window
    assert window is not None
    assert (window.ready, window.in_flight, window.waiting, window.members) == (1, 1, 1, 1)
    assert (window.oldest_offset, window.oldest_s, window.end_offset) == (40, 12.5, 42)
    assert (window.span, window.look_ahead, window.last_attempts) == (3, 10, 3)
    assert (window.handed_out, window.redelivered, window.is_settled) == (1, 0, True)
    (key,) = window.hottest_keys
    assert (key.hash, key.records, key.oldest_offset, key.held_s) == ("77", 2, 40, 12.5)
    assert (second.leader, second.window, second.node) == (5, None, None)


async def test_a_group_without_a_rule_has_offsets_alone() -> None:
    """A partition that nothing was written of yet, and one with an error, have none."""
    cluster = FakeCluster(
        DESCRIBED, topic("shop", (0, -1, -1, 0), (1, 7, 2, 0), (2, 0, 0, UNKNOWN))
    )

    found = await describe(cluster, SharedGroups(ShareRule(group="other")))

    assert found is not None
    assert not found.report.is_ordered
    assert [
        (each.partition, each.start_offset, each.lag, each.is_ordered, each.leader)
        for each in found.report.partitions
    ] == [(0, None, None, False, None), (1, 7, 2, False, None)]


async def test_a_window_that_is_not_served_names_its_error() -> None:
    """An empty window has no oldest record; one the coordinator does not know is shown too."""
    shared = SharedGroups()
    shared.open(error_code=2, leader=None)

    found = await describe(FakeCluster(DESCRIBED, error_code=UNKNOWN), shared)

    assert found is not None
    (only,) = found.report.partitions
    assert only.window is not None
    assert (only.window.error, only.window.is_settled) == ("CORRUPT_MESSAGE", False)
    assert (only.window.oldest_offset, only.window.oldest_s, only.window.end_offset) == (None,) * 3
    assert (only.lag, only.leader) == (None, None)


async def test_a_window_at_another_node_is_named() -> None:
    """The control port of the node that clients of the partition are sent to."""
    placement = Placement()
    placement.node_of_partition = lambda *_: 1  # type: ignore[method-assign]
    placement.control_of = "http://node-{}:9100".format  # type: ignore[method-assign]
    shared = SharedGroups(ShareRule(group="g", topics="orders"))
    cluster = FakeCluster(DESCRIBED, topic("orders", (0, 4, 1, 0)), topic("shop", (0, 4, 1, 0)))

    found = await describe(cluster, shared, placement)

    assert found is not None
    assert [each.node for each in found.report.partitions] == ["http://node-1:9100", None]


async def test_brokers_that_do_not_say_the_lag() -> None:
    """The version before it is asked for the start offsets (Kafka 4.1)."""
    cluster = FakeCluster(DESCRIBED)
    cluster.versions[ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS] = 0
    asked = topic("orders", (0, 40, 3, 0))
    del asked["partitions"][0]["lag"]
    cluster.answers[ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS]["groups"][0]["topics"] = [asked]

    found = await describe(cluster, SharedGroups())

    assert found is not None
    assert [(each.start_offset, each.lag) for each in found.report.partitions] == [(40, None)]
    assert cluster.asked[-1][2] == 0


@pytest.mark.parametrize("version", [-1, 0])
async def test_brokers_without_share_groups_are_not_asked(version) -> None:
    """No group is one; an early access version has other fields."""
    cluster = FakeCluster(DESCRIBED)
    cluster.versions = {ApiKey.SHARE_GROUP_DESCRIBE: version} if version >= 0 else {}

    assert await describe(cluster, SharedGroups()) is None
    assert cluster.asked == []


async def test_a_group_that_is_no_share_group() -> None:
    """The coordinator does not know it as one; a refusal is no such answer."""
    shared = SharedGroups()

    assert await describe(FakeCluster(DESCRIBED | {"error_code": NOT_FOUND}), shared) is None
    with pytest.raises(UpstreamLost, match="group_authorization_failed"):
        await describe(FakeCluster(DESCRIBED | {"error_code": DENIED}), shared)


def test_open_groups_are_known() -> None:
    """By the partitions that are open here."""
    shared = SharedGroups()
    shared.open("g2"), shared.open("g1"), shared.open("g1", partition=1)
    describer = ShareDescriber(
        FakeCluster(DESCRIBED),  # type: ignore[arg-type]
        shared.ordered,
        Placement(),
    )

    assert describer.groups() == ["g1", "g2"]
    assert describer.is_open("g1")
    assert not describer.is_open("g3")
