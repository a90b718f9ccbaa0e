"""The meaning of a topic and its partitions in each API: on plain topics, and on lanes.

Source: Kafka 4.3 message schemas. An API is here if its request or its answer names topics.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from keylane.wire.header import ApiKey

DIRECT: Final = "as direct"


@dataclass(frozen=True, slots=True)
class Treatment:
    """The treatment of topics by one API; "lane topic" is one that the client sees as lanes."""

    lanes: str
    """Treatment of lanes, under the topic's own name and under lane names."""
    fields: frozenset[str] = frozenset()
    """Fields of the request, in any version: topics, partitions, and counts of them."""
    plain: str = DIRECT


def _fields(*names: str) -> frozenset[str]:
    return frozenset(names)


def _topics(*names: str, under: str = "topics.") -> frozenset[str]:
    return frozenset(under + name for name in names)


PARTITIONS: Final = "partitions.partition_index"
TREATMENTS: Final = MappingProxyType(
    {
        ApiKey.PRODUCE: Treatment(
            "written to the lane's partition",
            _topics("name", "topic_id", "partition_data.index", under="topic_data."),
            "as direct, with keylane's addresses",
        ),
        ApiKey.FETCH: Treatment(
            "the lane's records, from keylane's reader",
            _topics("topic", "topic_id", "partitions.partition", "partitions.partition_max_bytes")
            | _topics("topic", "topic_id", "partitions", under="forgotten_topics_data."),
            "as direct, with keylane's addresses; key ranges for a client id that was given some",
        ),
        ApiKey.LIST_OFFSETS: Treatment("the partition's offsets", _topics("name", PARTITIONS)),
        ApiKey.METADATA: Treatment(
            "a partition per lane; a lane name has its own id",
            _topics("name", "topic_id")
            | _fields("allow_auto_topic_creation", "include_topic_authorized_operations"),
            "as direct, with keylane's addresses",
        ),
        ApiKey.OFFSET_COMMIT: Treatment(
            "the lane's own commit; the partition's stable offset goes to Kafka",
            _topics("name", "topic_id", PARTITIONS),
        ),
        ApiKey.OFFSET_FETCH: Treatment(
            "the lane's own position",
            _topics("name", "partition_indexes")
            | _topics("name", "topic_id", "partition_indexes", under="groups.topics."),
        ),
        ApiKey.FIND_COORDINATOR: Treatment(
            "a share group's partition is a whole one",
            plain="as direct, with keylane's addresses",
        ),
        ApiKey.JOIN_GROUP: Treatment(
            "members subscribe to topics and lane names alike, read for their plan"
        ),
        ApiKey.SYNC_GROUP: Treatment(
            "lanes are assigned as partitions, by the client or by keylane's plan"
        ),
        ApiKey.DESCRIBE_GROUPS: Treatment("lanes, as the group's leader assigned them"),
        ApiKey.CREATE_TOPICS: Treatment(
            "the count is of partitions, each of which shows as all of its lanes; a lane name is "
            "refused: INVALID_TOPIC_EXCEPTION with a reason",
            _topics("name", "num_partitions", "assignments.partition_index"),
        ),
        ApiKey.DELETE_TOPICS: Treatment(
            "deleted under its own name or by its own id; a lane name or its id is refused: "
            "POLICY_VIOLATION with a reason",
            _topics("name", "topic_id") | _fields("topic_names"),
        ),
        ApiKey.DELETE_RECORDS: Treatment(
            "cut at the lowest offset, if all lanes of a partition are named; else refused: "
            "POLICY_VIOLATION, and the reason is logged",
            _topics("name", PARTITIONS),
        ),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: Treatment(
            "the partition's epochs", _topics("topic", "partitions.partition")
        ),
        ApiKey.ADD_PARTITIONS_TO_TXN: Treatment(
            "the lane's partition is added",
            _topics("name", "partitions", under="v3_and_below_topics."),
        ),
        ApiKey.TXN_OFFSET_COMMIT: Treatment(
            "as OffsetCommit, when the transaction commits", _topics("name", PARTITIONS)
        ),
        ApiKey.DESCRIBE_ACLS: Treatment(
            "rules stand under topics' own names; a lane name has none",
            _fields("resource_name_filter"),
        ),
        ApiKey.CREATE_ACLS: Treatment(
            "a lane name is refused: INVALID_REQUEST with a reason",
            _fields("creations.resource_name"),
        ),
        ApiKey.DELETE_ACLS: Treatment("as DescribeAcls", _fields("filters.resource_name_filter")),
        ApiKey.DESCRIBE_CONFIGS: Treatment(
            "a lane name has its topic's configuration; throttled replicas are shown by lanes",
            _fields("resources.resource_name"),
        ),
        ApiKey.ALTER_CONFIGS: Treatment(
            "as IncrementalAlterConfigs", _fields("resources.resource_name")
        ),
        ApiKey.ALTER_REPLICA_LOG_DIRS: Treatment(
            "the lane's partition is moved; lanes of one partition that differ are refused: "
            "INVALID_REQUEST, and the reason is logged",
            _topics("name", "partitions", under="dirs.topics."),
        ),
        ApiKey.DESCRIBE_LOG_DIRS: Treatment(
            "the partition's folder; an equal part of its size", _topics("topic", "partitions")
        ),
        ApiKey.CREATE_PARTITIONS: Treatment(
            "refused: POLICY_VIOLATION with a reason", _topics("name", "count")
        ),
        ApiKey.ELECT_LEADERS: Treatment(
            "an election for the lane's partition",
            _topics("topic", "partitions", under="topic_partitions."),
        ),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: Treatment(
            "a lane name changes its topic's configuration; throttled replicas of lanes are those "
            "of their partitions",
            _fields("resources.resource_name"),
        ),
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: Treatment(
            "the lane's partition is moved; lanes of one partition that differ are refused: "
            "INVALID_REPLICA_ASSIGNMENT with a reason",
            _topics("name", PARTITIONS),
        ),
        ApiKey.LIST_PARTITION_REASSIGNMENTS: Treatment(
            "all lanes of a partition that is moved", _topics("name", "partition_indexes")
        ),
        ApiKey.OFFSET_DELETE: Treatment(
            "the group's offset of the lane is deleted", _topics("name", PARTITIONS)
        ),
        ApiKey.DESCRIBE_QUORUM: Treatment(
            "has only `__cluster_metadata`, which has no lanes", _topics("topic_name", PARTITIONS)
        ),
        ApiKey.DESCRIBE_PRODUCERS: Treatment(
            "the producers of the lane's partition", _topics("name", "partition_indexes")
        ),
        ApiKey.DESCRIBE_TRANSACTIONS: Treatment(
            "all lanes of a partition that was written to, under the topic's own name"
        ),
        ApiKey.CONSUMER_GROUP_HEARTBEAT: Treatment(
            "refused: INVALID_REQUEST with a reason",
            _topics("topic_id", "partitions", under="topic_partitions.")
            | _fields("subscribed_topic_names", "subscribed_topic_regex"),
        ),
        ApiKey.CONSUMER_GROUP_DESCRIBE: Treatment(
            "all lanes of a partition that a member has, under the topic's own name"
        ),
        ApiKey.LIST_CONFIG_RESOURCES: Treatment("topics under their own names"),
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: Treatment(
            "a partition per lane; pages are of partitions",
            _topics("name")
            | _fields("response_partition_limit", "cursor.topic_name", "cursor.partition_index"),
        ),
        ApiKey.SHARE_GROUP_HEARTBEAT: Treatment(
            "whole partitions under the topic's own name; a lane name is refused: INVALID_REQUEST "
            "with a reason",
            _fields("subscribed_topic_names"),
        ),
        ApiKey.SHARE_GROUP_DESCRIBE: Treatment("whole partitions under the topic's own name"),
        ApiKey.SHARE_FETCH: Treatment(
            "whole partitions by the topic's own id; that of a lane name is UNKNOWN_TOPIC_ID",
            _topics("topic_id", PARTITIONS)
            | _topics("topic_id", "partitions", under="forgotten_topics_data."),
        ),
        ApiKey.SHARE_ACKNOWLEDGE: Treatment("as ShareFetch", _topics("topic_id", PARTITIONS)),
        ApiKey.STREAMS_GROUP_HEARTBEAT: Treatment(
            "refused: INVALID_REQUEST with a reason",
            _topics(
                "source_topics",
                "source_topic_regex",
                "state_changelog_topics.name",
                "state_changelog_topics.partitions",
                "repartition_sink_topics",
                "repartition_source_topics.name",
                "repartition_source_topics.partitions",
                "copartition_groups.source_topics",
                "copartition_groups.source_topic_regex",
                "copartition_groups.repartition_source_topics",
                under="topology.subtopologies.",
            )
            | _fields(
                "active_tasks.partitions",
                "standby_tasks.partitions",
                "warmup_tasks.partitions",
                "task_offsets.partition",
                "task_end_offsets.partition",
            ),
        ),
        ApiKey.STREAMS_GROUP_DESCRIBE: Treatment(
            "tasks and whole partitions, as the broker computed them"
        ),
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: Treatment(
            "whole partitions under the topic's own name; a lane name is refused: "
            "POLICY_VIOLATION with a reason",
            _topics("topic_name", "partitions", under="groups.topics."),
        ),
        ApiKey.ALTER_SHARE_GROUP_OFFSETS: Treatment(
            "whole partitions under the topic's own name, also where all lanes are named alike; "
            "other lanes and lane names are refused: POLICY_VIOLATION with a reason",
            _topics("topic_name", PARTITIONS),
        ),
        ApiKey.DELETE_SHARE_GROUP_OFFSETS: Treatment(
            "under the topic's own name; a lane name is refused: POLICY_VIOLATION with a reason",
            _topics("topic_name"),
        ),
    }
)

_REPLICAS: Final = "brokers and controllers use it among themselves"
_SHARE_STATE: Final = "brokers use it to keep the state of share groups"
NOT_SERVED: Final = MappingProxyType(
    {
        ApiKey.LEADER_AND_ISR: "removed in Kafka 4.0",
        ApiKey.STOP_REPLICA: "removed in Kafka 4.0",
        ApiKey.UPDATE_METADATA: "removed in Kafka 4.0",
        ApiKey.CONTROLLED_SHUTDOWN: "removed in Kafka 4.0",
        ApiKey.WRITE_TXN_MARKERS: (
            "brokers use it to end transactions, and operators to end a hanging one: "
            "`kafka-transactions abort` needs a broker's own address"
        ),
        ApiKey.VOTE: _REPLICAS,
        ApiKey.BEGIN_QUORUM_EPOCH: _REPLICAS,
        ApiKey.END_QUORUM_EPOCH: _REPLICAS,
        ApiKey.ALTER_PARTITION: _REPLICAS,
        ApiKey.ENVELOPE: _REPLICAS,
        ApiKey.FETCH_SNAPSHOT: _REPLICAS,
        ApiKey.BROKER_REGISTRATION: _REPLICAS,
        ApiKey.BROKER_HEARTBEAT: _REPLICAS,
        ApiKey.ALLOCATE_PRODUCER_IDS: _REPLICAS,
        ApiKey.CONTROLLER_REGISTRATION: _REPLICAS,
        ApiKey.ASSIGN_REPLICAS_TO_DIRS: _REPLICAS,
        ApiKey.UPDATE_RAFT_VOTER: _REPLICAS,
        ApiKey.INITIALIZE_SHARE_GROUP_STATE: _SHARE_STATE,
        ApiKey.READ_SHARE_GROUP_STATE: _SHARE_STATE,
        ApiKey.WRITE_SHARE_GROUP_STATE: _SHARE_STATE,
        ApiKey.DELETE_SHARE_GROUP_STATE: _SHARE_STATE,
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: _SHARE_STATE,
    }
)
"""Reason by API key."""
