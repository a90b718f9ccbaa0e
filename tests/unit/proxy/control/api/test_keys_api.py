"""proxy/control/api/keys.py: topics with lanes, and the place of a key; keys are never logged."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from yarl import URL

from keylane.assignor.protocol import write_assignment
from keylane.config.node import LaneRule
from keylane.errors import UpstreamLost
from keylane.keyrange.hash import key_hash
from keylane.keyrange.lane import LaneLayout
from tests.reference.control_port import control_port
from tests.reference.murmur2 import default_partition, to_positive

RULES = (
    LaneRule(topic="orders", lanes=4, hash="murmur2"),
    LaneRule(topic="shop", lanes=4),
)


def described(*members: tuple[str, list[tuple[str, int]]]) -> Any:
    """Return a broker's description of a group: member ids with their lanes."""
    return SimpleNamespace(
        protocol_type="consumer",
        members=[
            SimpleNamespace(
                member_id=member_id,
                client_id=f"client-{member_id}",
                client_host="/10.0.0.7",
                member_metadata=b"",
                group_instance_id=None,
                member_assignment=write_assignment(lanes, version=0),
            )
            for member_id, lanes in members
        ],
    )


async def ask(url: str, path: str) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession(requote_redirect_url=False) as session,
        session.get(f"{url}{path}", headers={"Accept": "application/json"}) as answer,
    ):
        return answer.status, await answer.json(content_type=None)


async def test_a_key_by_murmur2_has_its_place_and_member() -> None:
    """Partition and lane are the partitioner's, of as many partitions as lane indexes."""
    index = default_partition(b"abc", 12)
    async with control_port(lanes=RULES) as port:
        port.groups["billing"] = described(
            ("m1", [("orders", n) for n in range(12) if n != index]), ("m2", [("orders", index)])
        )

        status, found = await ask(port.url, "/topics/orders/keys/abc")

    assert status == 200
    assert found | {"point": "", "groups": []} == {
        "topic": "orders",
        "partition_count": 3,
        "hash": "murmur2",
        "point": "",
        "partition": default_partition(b"abc", 3),
        "partitioner": "default",
        "partitioner_hash": to_positive(b"abc"),
        "lane": index // 3,
        "lane_index": index,
        "groups": [],
        "groups_left_out": 0,
    }
    assert LaneLayout(3, 4, hash="murmur2").key_range(0, index // 3).contains(int(found["point"]))
    assert found["groups"] == [
        {
            "group": "billing",
            "topic": "orders",
            "lane_index": index,
            "member_id": "m2",
            "client_id": "client-m2",
            "host": "/10.0.0.7",
        }
    ]


async def test_a_group_under_a_lane_name_has_the_keys_lane_there() -> None:
    """It reads the same topic in eight lanes; an idle one is shown, another topic's is not."""
    index = default_partition(b"abc", 24)
    async with control_port(lanes=RULES) as port:
        port.groups["eight"] = described(("m1", [("orders.lanes-8", index)]))
        port.groups["idle"] = described()
        port.groups["stranger"] = described(("m9", [("shop", 0)]))

        _, found = await ask(port.url, "/topics/orders/keys/abc")

    shown = [
        (each["group"], each["topic"], each["lane_index"], each["member_id"])
        for each in found["groups"]
    ]
    assert shown == [
        ("eight", "orders.lanes-8", index, "m1"),
        ("idle", "orders", default_partition(b"abc", 12), None),
    ]


@pytest.mark.parametrize(
    ("quoted", "key"),
    [
        ("abc", b"abc"),
        ("a%2Fb%3Fc%25", b"a/b?c%"),
        ("%FF%00%01", b"\xff\0\1"),
        ("gr%C3%B6%C3%9Fe", "größe".encode()),
    ],
)
async def test_a_key_is_its_bytes(quoted: str, key: bytes) -> None:
    """Percent-encoded: text, signs of an address, and what is no text."""
    async with control_port(lanes=RULES) as port, aiohttp.ClientSession() as session:
        url = URL(f"{port.url}/topics/shop/keys/{quoted}", encoded=True)
        async with session.get(url) as answer:
            found = await answer.json()

    assert found["hash"] == "xxh64"
    assert found["point"] == str(key_hash(key))
    assert found["partitioner_hash"] == to_positive(key)
    assert found["lane"] == LaneLayout(2, 4).key_split(0).output_at(key_hash(key))


async def test_a_topic_without_lanes_has_a_partition_for_the_key() -> None:
    """Its own name means partitions; under a lane name it has lanes."""
    async with control_port(lanes=RULES) as port:
        _, plain = await ask(port.url, "/topics/quiet/keys/abc")
        _, lanes = await ask(port.url, "/topics/quiet.lanes-4/keys/abc")

    assert (plain["partition"], plain["lane"], plain["lane_index"]) == (0, None, None)
    assert lanes["lane_index"] == LaneLayout(1, 4).key_split(0).output_at(key_hash(b"abc"))


async def test_names_that_cannot_be_asked_are_refused() -> None:
    """Unknown ones, illegal ones, and lane names that have no place in the topic's hash."""
    async with control_port(lanes=RULES) as port:
        answers = [
            await ask(port.url, f"/topics/{name}/keys/secret")
            for name in ("nix", "b%20d", "orders.lanes-6")
        ]

    assert [status for status, _ in answers] == [404, 400, 409]
    assert [problem["field"] for _, problem in answers] == ["topic"] * 3
    assert not any("secret" in str(problem) for _, problem in answers)


async def test_a_key_is_in_no_log_line(caplog: pytest.LogCaptureFixture) -> None:
    """Neither when a broker is away, nor when keylane makes a mistake."""
    async with control_port(lanes=RULES) as port:
        with caplog.at_level(logging.DEBUG):
            port.groups["billing"] = UpstreamLost("no broker can be reached")
            away, _ = await ask(port.url, "/topics/orders/keys/ada-1815")
            port.groups["billing"] = RuntimeError("a mistake")
            mistake, problem = await ask(port.url, "/topics/orders/keys/ada-1815")

    assert (away, mistake) == (503, 500)
    # A word like "secret" may stand in what asyncio logs of another test's leftovers.
    assert "ada-1815" not in caplog.text + str(problem)
    assert "path=/topics/{topic}/keys/{key}" in caplog.text


async def test_topics_with_lanes_are_listed() -> None:
    """With their hash, and the first record of each partition that breaks its promise."""
    async with control_port(lanes=RULES) as port:
        port.misplaced = {1: 40, 2: 7}

        status, found = await ask(port.url, "/topics")

    orders, shop = found["topics"]
    assert status == 200
    assert orders == {
        "topic": "orders",
        "partition_count": 3,
        "lane_count": 4,
        "hash": "murmur2",
        "misplaced": [
            {"topic": "orders", "partition": 1, "offset": 40},
            {"topic": "orders", "partition": 2, "offset": 7},
        ],
        "bytes_per_s": None,
        "records_per_s": None,
        "group_count": 0,
    }
    assert (shop["topic"], shop["hash"]) == ("shop", "xxh64")


async def test_groups_of_all_topics_are_counted_at_once() -> None:
    """Two have offsets of both topics; one has only joined."""
    async with control_port(lanes=RULES) as port:
        port.groups.update({name: described() for name in ("a", "b", "stranger")})

        _, found = await ask(port.url, "/topics")

    assert [topic["group_count"] for topic in found["topics"]] == [2, 2]
    assert port.counted == 1


async def test_more_groups_than_are_asked_are_counted() -> None:
    """Each group that is asked is a request to its coordinator."""
    async with control_port(lanes=RULES) as port:
        port.groups.update({f"g{number}": described() for number in range(103)})

        _, found = await ask(port.url, "/topics/orders/keys/abc")

    assert (len(found["groups"]), found["groups_left_out"]) == (100, 3)
