"""Share groups at their coordinator: heartbeats, offsets, configuration.

Source: Apache Kafka 4.3, `GroupMetadataManager.shareGroupHeartbeat`,
`GroupCoordinatorService.describeShareGroupOffsets`; KIP-932, KIP-1226.
What is simpler here: each member is assigned all partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.simulation.broker_groups import group_error
from tests.simulation.broker_members import STORE_S, Reply
from tests.simulation.share_store import ShareMembership, ShareStore

if TYPE_CHECKING:
    from tests.simulation.broker import Broker

SHARE_HEARTBEAT, DESCRIBE_SHARE_OFFSETS = 76, 90
GROUP_RESOURCE = 32
UNKNOWN_TOPIC, UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH = 3, 25, 110
JOIN_EPOCH, LEAVE_EPOCH = 0, -1
HEARTBEAT_MS = 1000
SESSION_S = 10.0


def share_heartbeat(store: ShareStore, broker: Broker, request: Any, reply: Reply) -> None:
    """Answer ShareGroupHeartbeat."""
    name, member_id, epoch = (
        str(request.group_id), str(request.member_id), int(request.member_epoch),
    )  # fmt: skip
    now_s = broker.world.now_s
    members = store.members[name]
    for each in [each for each, known in members.items() if known.seen_s < now_s - SESSION_S]:
        del members[each]
    code = group_error(broker, name)
    known = members.get(member_id)
    if not code and epoch == LEAVE_EPOCH:
        members.pop(member_id, None)
    elif not code and epoch == JOIN_EPOCH:
        topics = [str(each) for each in request.subscribed_topic_names or ()]
        known = members[member_id] = ShareMembership(1, topics, now_s)
        store.initialise(name, topics)
    elif not code and known is None:
        code = UNKNOWN_MEMBER_ID
    elif not code and known is not None and epoch != known.epoch:
        code = FENCED_MEMBER_EPOCH
    values: dict[str, Any] = {"member_id": member_id, "member_epoch": epoch}
    if code:
        values["error_code"] = code
    elif known is not None and epoch != LEAVE_EPOCH:
        known.seen_s = now_s
        found = [broker.cluster.topics[each] for each in known.topics]
        values |= {
            "member_epoch": known.epoch,
            "heartbeat_interval": HEARTBEAT_MS,
            "assignment": {
                "topic_partitions": [
                    {"topic_id": each.topic_id, "partitions": list(range(len(each.partitions)))}
                    for each in found
                ]
            },
        }
    broker.world.after(STORE_S, lambda: reply(values))


def describe_share_offsets(store: ShareStore, broker: Broker, request: Any, reply: Reply) -> None:
    """Answer DescribeShareGroupOffsets."""
    groups = []
    for group in request.groups:
        name = str(group.group_id)
        code = group_error(broker, name)
        topics = []
        for topic in () if code else group.topics or ():
            found = broker.cluster.topics.get(str(topic.topic_name))
            entries = []
            for index in map(int, topic.partitions):
                if found is None or index >= len(found.partitions):
                    entries.append({
                        "partition_index": index, "start_offset": -1, "leader_epoch": 0,
                        "error_code": UNKNOWN_TOPIC,
                    })  # fmt: skip
                    continue
                start, lag = store.progress((name, found.name, index))
                entries.append({
                    "partition_index": index, "start_offset": start, "leader_epoch": 0, "lag": lag,
                })  # fmt: skip
            topics.append({
                "topic_name": str(topic.topic_name), "partitions": entries,
                "topic_id": None if found is None else found.topic_id,
            })  # fmt: skip
        groups.append({"group_id": name, "topics": topics, "error_code": code})
    broker.world.after(STORE_S, lambda: reply({"groups": groups}))


def group_configs(store: ShareStore, group: str) -> dict[str, str]:
    """Return the settings of a share group."""
    times = store.times_of(group)
    return {
        "share.delivery.count.limit": str(times.deliveries),
        "share.renew.acknowledge.enable": "true",
        "share.record.lock.duration.ms": str(int(1000 * times.lock_s)),
        "share.partition.max.record.locks": str(times.locks),
    }
