"""Members that join again while keylane makes up for what its restart left: none waits for it.

After a restart keylane commits, beside a member's heartbeat and over its connection, a stable
offset that may be late. The member may join again at once. The broker takes that commit when the
group's other members have joined, and those commit before they do.
"""

from __future__ import annotations

import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

from keylane.assignor.protocol import Subscription, write_subscription
from keylane.keyrange.lane import LaneLayout
from keylane.wire.header import ApiKey
from tests.integration.keylane_process import PATIENCE, KeylaneProcess
from tests.integration.share_wire import PlainWire, call, wait_until
from tests.integration.test_group_handover import stable_offsets
from tests.reference.broker_log import keys_of_lane

LANES: Final = 4
SESSION_MS: Final = 60_000


class Member:
    """A member of a classic group, by hand; each call is one request."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self.group, self.topic = group, topic
        self.member_id, self.generation_id = "", -1
        self.connect(bootstrap)

    def connect(self, bootstrap: str) -> None:
        """Connect, or connect again as the same member."""
        self._wire = PlainWire(bootstrap)

    def close(self) -> None:
        """End the connection, and not the membership."""
        self._wire.close()

    def join(self) -> Any:
        """Return the answer of JoinGroup, which waits for the others."""
        metadata = write_subscription(Subscription(version=0, topics=(self.topic,)))
        answer = call(
            self._wire, ApiKey.JOIN_GROUP, 2,
            group_id=self.group, session_timeout=SESSION_MS, rebalance_timeout=SESSION_MS,
            member_id=self.member_id, protocol_type="consumer",
            protocols=[{"name": "range", "metadata": metadata}],
        )  # fmt: skip
        self.member_id, self.generation_id = str(answer.member_id), int(answer.generation_id)
        return answer

    def sync(self, members: list[str]) -> int:
        """Return the error code of SyncGroup; members: of the leader's plan, which is keylane's."""
        plan = [{"member_id": member, "assignment": b""} for member in members]
        answer = self._call(ApiKey.SYNC_GROUP, 1, assignments=plan)
        return int(answer.error_code)

    def beat_and_join(self) -> Any:
        """Return the answer of JoinGroup, sent as soon as a heartbeat is answered."""
        assert int(self._call(ApiKey.HEARTBEAT, 1).error_code) == 0
        return self.join()

    def commit(self, positions: dict[int, int]) -> set[int]:
        """Return the error codes of a commit."""
        partitions = [
            {"partition_index": lane, "committed_offset": position, "committed_metadata": ""}
            for lane, position in positions.items()
        ]
        answer = call(
            self._wire, ApiKey.OFFSET_COMMIT, 6,
            group_id=self.group, member_id=self.member_id,
            generation_id_or_member_epoch=self.generation_id,
            topics=[{"name": self.topic, "partitions": partitions}],
        )  # fmt: skip
        return {int(each.error_code) for each in answer.topics[0].partitions}

    def _call(self, api_key: int, version: int, **values: Any) -> Any:
        return call(
            self._wire, api_key, version,
            group_id=self.group, member_id=self.member_id, generation_id=self.generation_id,
            **values,
        )  # fmt: skip


def join_both(leader: Member, other: Member, pool: ThreadPoolExecutor) -> None:
    """Have both join in one generation, and get their lanes."""
    assert int(leader.join().error_code) == 0
    joining = pool.submit(other.join)
    # The other one's request may come behind this: then the leader is alone once more.
    while len(members := leader.join().members) < 2:
        pass
    assert int(joining.result().error_code) == 0
    syncing = pool.submit(other.sync, [])
    assert leader.sync([str(member.member_id) for member in members]) == 0
    assert syncing.result() == 0


def has_passed_on_a_join(proxy: KeylaneProcess) -> bool:
    """Return whether one JoinGroup has come since its start."""
    with urllib.request.urlopen(f"http://{proxy.control}/metrics", timeout=60) as answer:
        return b'keylane_requests_total{api="JoinGroup"} 1.0\n' in answer.read()


def read_a_lane(bootstrap: str, topic: str) -> None:
    """Have keylane read the partition: it has nothing more for the first lane."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"other-{topic}"})
    try:
        consumer.assign([TopicPartition(topic, 1, 0)])
        message = consumer.poll(30.0 * PATIENCE)
        assert message is not None and message.error() is None
    finally:
        consumer.close()


def test_a_member_that_joins_behind_its_first_heartbeat_after_a_restart(
    kafka, keylane, topic
) -> None:
    """The leader joins; the other one commits, is answered, and joins: both are in the group."""
    name = topic("rejoin", partitions=1)
    layout = LaneLayout(1, LANES)
    producer = Producer({"bootstrap.servers": kafka})
    for lane in range(LANES):
        producer.produce(name, key=keys_of_lane(lane, layout)[0], value="v")
    assert producer.flush(30) == 0
    proxy = keylane(f"{name}={LANES}")
    group = f"g-{name}"
    leader, other = members = [Member(proxy.bootstrap, group, name) for _ in range(2)]
    with ThreadPoolExecutor(1) as pool:
        try:
            join_both(leader, other, pool)
            # No lane was read, so whether the first one has a record behind 1 is not known.
            assert leader.commit({0: 1, 1: LANES, 2: LANES, 3: LANES}) == {0}
            proxy.kill()
            proxy.start()
            for member in members:
                member.close()
                member.connect(proxy.bootstrap)
            read_a_lane(proxy.bootstrap, name)

            rejoined: Future[Any] = pool.submit(leader.beat_and_join)
            # Its heartbeat has begun the late commit, which has the group's lock by then.
            wait_until(lambda: has_passed_on_a_join(proxy), "a JoinGroup that is passed on")

            assert other.commit({3: LANES}) == {0}
            assert stable_offsets(kafka, group, name, 1) == [LANES], "lane 0 has nothing more"
            assert int(other.join().error_code) == 0
            assert int(rejoined.result().error_code) == 0
        finally:
            for member in members:
                member.close()
