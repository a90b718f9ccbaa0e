"""What each API means by a topic and its partitions: on plain topics, and on lanes.

In:    Kafka 4.3's message schemas, read by people.  Out: a row per API, or why it is not served.
Source: Kafka 4.3 message schemas. An API is here if its request or its answer names topics.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

DIRECT: Final = "as direct"


@dataclass(frozen=True, slots=True)
class Treatment:
    """How one API treats topics; "lane topic" is one that the client sees as lanes."""

    lanes: str
    """Of lanes, under the topic's own name and under lane names."""
    fields: frozenset[str] = frozenset()
    """Of the request, in any version: topics, partitions, and counts of them."""
    plain: str = DIRECT


def _fields(*names: str) -> frozenset[str]:
    return frozenset(names)


def _topics(*names: str, under: str = "topics.") -> frozenset[str]:
    return frozenset(under + name for name in names)


PARTITIONS: Final = "partitions.partition_index"
TREATMENTS: Final = MappingProxyType(
    {
        0: Treatment(
            "written to the lane's partition",
            _topics("name", "topic_id", "partition_data.index", under="topic_data."),
            "as direct, with keylane's addresses",
        ),
        1: Treatment(
            "the lane's records, from keylane's reader",
            _topics("topic", "topic_id", "partitions.partition", "partitions.partition_max_bytes")
            | _topics("topic", "topic_id", "partitions", under="forgotten_topics_data."),
            "as direct, with keylane's addresses; key ranges for a client id that was given some",
        ),
        2: Treatment("the partition's offsets", _topics("name", PARTITIONS)),
        3: Treatment(
            "a partition per lane; a lane name has its own id",
            _topics("name", "topic_id")
            | _fields("allow_auto_topic_creation", "include_topic_authorized_operations"),
            "as direct, with keylane's addresses",
        ),
        8: Treatment(
            "the lane's own commit; the partition's stable offset goes to Kafka",
            _topics("name", "topic_id", PARTITIONS),
        ),
        9: Treatment(
            "the lane's own position",
            _topics("name", "partition_indexes")
            | _topics("name", "topic_id", "partition_indexes", under="groups.topics."),
        ),
        10: Treatment(
            "a share group's partition is a whole one",
            plain="as direct, with keylane's addresses",
        ),
        11: Treatment("members subscribe to topics and lane names alike, read for their plan"),
        14: Treatment("lanes are assigned as partitions, by the client or by keylane's plan"),
        15: Treatment("lanes, as the group's leader assigned them"),
        19: Treatment(
            "the count is of partitions, each of which shows as all of its lanes; a lane name is "
            "refused: INVALID_TOPIC_EXCEPTION with a reason",
            _topics("name", "num_partitions", "assignments.partition_index"),
        ),
        20: Treatment(
            "deleted under its own name or by its own id; a lane name or its id is refused: "
            "POLICY_VIOLATION with a reason",
            _topics("name", "topic_id") | _fields("topic_names"),
        ),
        21: Treatment(
            "cut at the lowest offset, if all lanes of a partition are named; else refused: "
            "POLICY_VIOLATION, and the reason is logged",
            _topics("name", PARTITIONS),
        ),
        23: Treatment("the partition's epochs", _topics("topic", "partitions.partition")),
        24: Treatment(
            "the lane's partition is added",
            _topics("name", "partitions", under="v3_and_below_topics."),
        ),
        28: Treatment("as OffsetCommit, when the transaction commits", _topics("name", PARTITIONS)),
        29: Treatment(
            "rules stand under topics' own names; a lane name has none",
            _fields("resource_name_filter"),
        ),
        30: Treatment(
            "a lane name is refused: INVALID_REQUEST with a reason",
            _fields("creations.resource_name"),
        ),
        31: Treatment("as DescribeAcls", _fields("filters.resource_name_filter")),
        32: Treatment(
            "a lane name has its topic's configuration; throttled replicas are shown by lanes",
            _fields("resources.resource_name"),
        ),
        33: Treatment("as IncrementalAlterConfigs", _fields("resources.resource_name")),
        34: Treatment(
            "the lane's partition is moved; lanes of one partition that differ are refused: "
            "INVALID_REQUEST, and the reason is logged",
            _topics("name", "partitions", under="dirs.topics."),
        ),
        35: Treatment(
            "the partition's folder; an equal part of its size", _topics("topic", "partitions")
        ),
        37: Treatment("refused: POLICY_VIOLATION with a reason", _topics("name", "count")),
        43: Treatment(
            "an election for the lane's partition",
            _topics("topic", "partitions", under="topic_partitions."),
        ),
        44: Treatment(
            "a lane name changes its topic's configuration; throttled replicas of lanes are those "
            "of their partitions",
            _fields("resources.resource_name"),
        ),
        45: Treatment(
            "the lane's partition is moved; lanes of one partition that differ are refused: "
            "INVALID_REPLICA_ASSIGNMENT with a reason",
            _topics("name", PARTITIONS),
        ),
        46: Treatment(
            "all lanes of a partition that is moved", _topics("name", "partition_indexes")
        ),
        47: Treatment("the group's offset of the lane is deleted", _topics("name", PARTITIONS)),
        55: Treatment(
            "has only `__cluster_metadata`, which has no lanes", _topics("topic_name", PARTITIONS)
        ),
        61: Treatment(
            "the producers of the lane's partition", _topics("name", "partition_indexes")
        ),
        65: Treatment("all lanes of a partition that was written to, under the topic's own name"),
        68: Treatment(
            "refused: INVALID_REQUEST with a reason",
            _topics("topic_id", "partitions", under="topic_partitions.")
            | _fields("subscribed_topic_names", "subscribed_topic_regex"),
        ),
        69: Treatment("all lanes of a partition that a member has, under the topic's own name"),
        74: Treatment("topics under their own names"),
        75: Treatment(
            "a partition per lane; pages are of partitions",
            _topics("name")
            | _fields("response_partition_limit", "cursor.topic_name", "cursor.partition_index"),
        ),
        76: Treatment(
            "whole partitions under the topic's own name; a lane name is refused: INVALID_REQUEST "
            "with a reason",
            _fields("subscribed_topic_names"),
        ),
        77: Treatment("whole partitions under the topic's own name"),
        78: Treatment(
            "whole partitions by the topic's own id; that of a lane name is UNKNOWN_TOPIC_ID",
            _topics("topic_id", PARTITIONS)
            | _topics("topic_id", "partitions", under="forgotten_topics_data."),
        ),
        79: Treatment("as ShareFetch", _topics("topic_id", PARTITIONS)),
        88: Treatment(
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
        89: Treatment("tasks and whole partitions, as the broker computed them"),
        90: Treatment(
            "whole partitions under the topic's own name; a lane name is refused: "
            "POLICY_VIOLATION with a reason",
            _topics("topic_name", "partitions", under="groups.topics."),
        ),
        91: Treatment(
            "whole partitions under the topic's own name, also where all lanes are named alike; "
            "other lanes and lane names are refused: POLICY_VIOLATION with a reason",
            _topics("topic_name", PARTITIONS),
        ),
        92: Treatment(
            "under the topic's own name; a lane name is refused: POLICY_VIOLATION with a reason",
            _topics("topic_name"),
        ),
    }
)

_REPLICAS: Final = "brokers and controllers use it among themselves"
_SHARE_STATE: Final = "brokers use it to keep the state of share groups"
NOT_SERVED: Final = MappingProxyType(
    {
        4: ("LeaderAndIsr", "removed in Kafka 4.0"),
        5: ("StopReplica", "removed in Kafka 4.0"),
        6: ("UpdateMetadata", "removed in Kafka 4.0"),
        7: ("ControlledShutdown", "removed in Kafka 4.0"),
        27: (
            "WriteTxnMarkers",
            (
                "brokers use it to end transactions, and operators to end a hanging one: "
                "`kafka-transactions abort` needs a broker's own address"
            ),
        ),
        52: ("Vote", _REPLICAS),
        53: ("BeginQuorumEpoch", _REPLICAS),
        54: ("EndQuorumEpoch", _REPLICAS),
        56: ("AlterPartition", _REPLICAS),
        58: ("Envelope", _REPLICAS),
        59: ("FetchSnapshot", _REPLICAS),
        62: ("BrokerRegistration", _REPLICAS),
        63: ("BrokerHeartbeat", _REPLICAS),
        67: ("AllocateProducerIds", _REPLICAS),
        70: ("ControllerRegistration", _REPLICAS),
        73: ("AssignReplicasToDirs", _REPLICAS),
        82: ("UpdateRaftVoter", _REPLICAS),
        83: ("InitializeShareGroupState", _SHARE_STATE),
        84: ("ReadShareGroupState", _SHARE_STATE),
        85: ("WriteShareGroupState", _SHARE_STATE),
        86: ("DeleteShareGroupState", _SHARE_STATE),
        87: ("ReadShareGroupStateSummary", _SHARE_STATE),
    }
)
"""By API key: its name, and why."""
