"""Cost of heartbeats of a consumer group (KIP-848) on lanes, by the number of its members.

    python -m bench.micro.heartbeats [MEMBERS ...]

A thousand members take a minute and a half to gather: each that joins has lanes planned.
The broker and the journal are objects of this process. Settled: nothing changes, as in almost all
heartbeats of a group's life. Relayed: a group without lanes, where topics with lanes are there.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from kio.index import load_response_schema

from keylane.config.node import LaneRule
from keylane.wire.header import ApiKey, read_request_header
from keylane.wire.messages import write_message
from tests.reference.response_frame import write_response
from tests.transcript.entities import build
from tests.transcript.fake import ORDERS, PLAIN, FakeContext, make_request, serve

MEMBERS: Final = (10, 100)
LANES: Final = 1_000
"""Per partition, of two."""
ROUNDS: Final = 3
BEATS: Final = 600
VERSION: Final = 1


class Bench(FakeContext):
    """A broker that takes every heartbeat."""

    def __init__(self) -> None:
        super().__init__(LaneRule(topic="orders", lanes=LANES))
        self.members: list[str] = []
        self.joining = ""
        self.broker_s = 0.0

    def answer_frame(self, frame: bytes) -> bytes:
        """Answer at once."""
        began_s = time.process_time()
        header = read_request_header(frame, 4)
        values: dict[str, Any] = {"error_code": 0, "member_epoch": 1, "heartbeat_interval": 5000}
        if header.api_key == ApiKey.CONSUMER_GROUP_DESCRIBE:
            empty: dict[str, list[Any]] = {"topic_partitions": []}
            listed = [
                {"member_id": name, "subscribed_topic_names": ["orders"]}
                | {"assignment": empty, "target_assignment": empty}
                for name in self.members
            ]
            values = {"groups": [{"group_id": "g", "group_state": "Stable", "members": listed}]}
        if header.api_key == ApiKey.CONSUMER_GROUP_HEARTBEAT and self.joining:
            self.members.append(self.joining)
            self.joining = ""
        if header.api_key == ApiKey.DESCRIBE_GROUPS:
            values = {"groups": [{"group_id": "g", "group_state": "Dead"}]}
        schema = load_response_schema(header.api_key, header.api_version)
        body = write_message(build(schema, values))
        parts = write_response(header.api_key, header.api_version, header.correlation_id, [body])
        self.broker_s += time.process_time() - began_s
        return b"".join(parts)

    async def beat(self, group: str, member: str, epoch: int, **values: Any) -> None:
        """One heartbeat of a member."""
        said = {"group_id": group, "member_id": member, "member_epoch": epoch, **values}
        await serve(self, make_request(ApiKey.CONSUMER_GROUP_HEARTBEAT, VERSION, said))
        self.world.aside.clear()
        self.events.clear()
        self.groups.journal.clear()

    async def settle(self, count: int) -> None:
        """Have so many members join and confirm their lanes."""
        joining = {"rebalance_timeout": 300_000, "topic_partitions": []}
        for number in range(count):
            names = {"subscribed_topic_names": ["orders"]}
            self.joining = f"m{number}"
            await self.beat("g", self.joining, 0, **joining, **names)
        group = self.consumer_groups.find("g")
        assert group is not None, "it was begun"
        for _ in range(4):
            self.world.now_s += 10
            for name in self.members:
                lanes = sorted(index for _, index in group.members[name].given)
                owned = [{"topic_id": ORDERS, "partitions": lanes}]
                await self.beat("g", name, 1, topic_partitions=owned)
        assert group.is_settled


async def settled_us(count: int) -> float:
    """Microseconds of a heartbeat in a group that is settled."""
    bench = Bench()
    await bench.settle(count)
    return await _timed(bench, "g", bench.members)


async def relayed_us() -> float:
    """Microseconds of a heartbeat of a group without lanes."""
    bench = Bench()
    bench.registry.learn("plain", PLAIN, 3)
    return await _timed(bench, "plain-group", ["m"])


async def _timed(bench: Bench, group: str, members: list[str]) -> float:
    found = []
    for _ in range(ROUNDS):
        bench.broker_s, began_s = 0.0, time.process_time()
        for number in range(BEATS):
            await bench.beat(group, members[number % len(members)], 1)
        found.append((time.process_time() - began_s - bench.broker_s) / BEATS)
    return min(found) * 1e6


def main(sizes: Sequence[int]) -> None:
    """Print a line for each size."""
    print(f"heartbeat of a group without lanes: {asyncio.run(relayed_us()):.0f} us")
    for count in sizes or MEMBERS:
        cost_us = asyncio.run(settled_us(count))
        share = cost_us * 1e-6 * count / 5 * 100
        print(
            f"heartbeat of a settled group, {count:5} members, {2 * LANES} lanes: {cost_us:.0f} us,"
            f" {share:.1f} % of a core at one in 5 s"
        )


if __name__ == "__main__":
    main([int(each) for each in sys.argv[1:]])
