"""Answers of brokers about groups, their offsets and transactions, at their coordinators.

Source: Apache Kafka 4.3, `GroupCoordinatorService`, `OffsetMetadataManager`,
`TransactionCoordinator`; KIP-98, KIP-447.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.reference.consumer_coordinator import EPOCHS_FROM, STALE_MEMBER_EPOCH, Part
from tests.reference.group_coordinator import ILLEGAL_GENERATION
from tests.simulation.broker_members import (
    CONSUMER_DESCRIBE,
    CONSUMER_HEARTBEAT,
    STORE_S,
    Reply,
    consumer_describe,
    consumer_heartbeat,
)
from tests.simulation.cluster import Committed, Transaction

if TYPE_CHECKING:
    from tests.simulation.broker import Broker

OFFSET_COMMIT, OFFSET_FETCH, JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE_GROUPS = (
    8,
    9,
    11,
    12,
    13,
    14,
    15,
)
INIT_PRODUCER_ID, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT, OFFSET_DELETE = 22, 25, 26, 28, 47
DELETE_GROUPS = 42
GROUP_VERSIONS = {
    OFFSET_COMMIT: (2, 9), OFFSET_FETCH: (1, 9), JOIN: (0, 7), HEARTBEAT: (0, 4), LEAVE: (3, 4),
    SYNC: (0, 5), DESCRIBE_GROUPS: (0, 5), INIT_PRODUCER_ID: (0, 4), ADD_OFFSETS: (0, 3),
    END_TXN: (0, 3), TXN_OFFSET_COMMIT: (0, 3), OFFSET_DELETE: (0, 0), DELETE_GROUPS: (0, 2),
    CONSUMER_HEARTBEAT: (0, 1), CONSUMER_DESCRIBE: (0, 1),
}  # fmt: skip
LOADING, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, UNSTABLE = 14, 15, 16, 88
INVALID_EPOCH, INVALID_TXN_STATE, CONCURRENT, NON_EMPTY_TOPIC, FENCED = 47, 48, 51, 86, 90
NON_EMPTY_GROUP, NO_SUCH_GROUP = 68, 69
MARKERS_S_MAX = 0.02
INCONSISTENT_PROTOCOL = 23


def group_error(broker: Broker, group: str) -> int:
    """Return the error of a broker that does not coordinate the group; 0: it does."""
    if broker.cluster.coordinator(group) != broker.broker_id:
        return NOT_COORDINATOR
    return LOADING if broker.cluster.group(group).twin.is_loading else 0


def grouped(key: int, broker: Broker, request: Any, reply: Reply) -> None:
    """Return the answer of the group's own coordinator."""
    name = str(request.group_id)
    code = group_error(broker, name)
    if not code and key == JOIN and broker.cluster.group(name).consumer.members:
        code = INCONSISTENT_PROTOCOL
    if code:
        reply({"error_code": code})
        return

    def replied(values: dict[str, Any]) -> None:
        if key in (JOIN, SYNC):
            values = {"protocol_type": "consumer", **values}
        if key == JOIN:
            values = {"protocol_name": str(request.protocols[0].name), **values}
        reply(values)

    broker.cluster.group(name).twin.handle(key, request, replied)


def describe_groups(broker: Broker, request: Any, reply: Reply) -> None:
    described: list[dict[str, Any]] = []
    for name in map(str, request.groups):
        code = group_error(broker, name)
        if code:
            described.append({"group_id": name, "error_code": code})
        elif (group := broker.cluster.group(name)).is_unknown or group.consumer.is_known:
            described.append({"group_id": name, "group_state": "Dead"})
        else:
            known: list[dict[str, Any]] = []
            group.twin.handle(DESCRIBE_GROUPS, request, known.append)
            described.append({"group_id": name, "protocol_type": "consumer", **known[0]})
    reply({"groups": described})


def offset_commit(broker: Broker, request: Any, reply: Reply) -> None:
    """Take offsets of a member, or of no member where the group has none."""
    name = str(request.group_id)
    member_id = str(getattr(request, "member_id", ""))
    group = broker.cluster.group(name)
    generation = int(getattr(request, "generation_id_or_member_epoch", -1))
    code, judge = group.refusal(member_id, generation, int(request.__version__))
    topics, written = judge_offsets(broker, request, group_error(broker, name) or code, judge)
    if not written:
        reply({"topics": topics})
        return
    if broker.late_commits:
        broker.late_commits -= 1
        write_late(broker, name, written)
        for topic in topics:
            for entry in topic["partitions"]:
                entry["error_code"] = entry["error_code"] or COORDINATOR_NOT_AVAILABLE
        broker.world.after(STORE_S, lambda: reply({"topics": topics}))
        return

    def store() -> None:
        for (topic, index), committed in written.items():
            broker.cluster.commit(name, topic, index, committed)
        reply({"topics": topics})

    if member_id in group.twin.members:
        group.twin._restart_session(member_id)
    broker.world.after(STORE_S, store)


def judge_offsets(
    broker: Broker, request: Any, code: int, judge: Callable[[Part], int]
) -> tuple[list[dict[str, Any]], dict[tuple[str, int], Committed]]:
    """The answer, and what is to be written, of offsets that are refused with `code`; 0: taken.

    judge: the error of one partition, where the request is taken.
    """
    topics, written = [], {}
    for topic in request.topics:
        entries = []
        for each in topic.partitions:
            name, index = str(topic.name), int(each.partition_index)
            place = broker.partition_of(name, None, index)
            own = code or (place if isinstance(place, int) else 0)
            if not own:
                own = judge((broker.cluster.topics[name].topic_id, index))
            entries.append({"partition_index": index, "error_code": own})
            if not own:
                written[name, index] = Committed(
                    int(each.committed_offset),
                    each.committed_metadata or "",
                    int(getattr(each, "committed_leader_epoch", -1)),
                )
        topics.append({"name": topic.name, "partitions": entries})
    return topics, written


def write_late(broker: Broker, name: str, written: dict[tuple[str, int], Committed]) -> None:
    """Have offsets count some time after they were answered with an error."""
    cluster, offsets = broker.cluster, broker.cluster.group(name).offsets
    late_s = broker.world.rng.uniform(0.01, 3.0)
    broker.world.report(f"{broker.host}: a commit of {name} is written {late_s:.2f} s late")
    stood = {place: offsets.get(place) for place in written}
    for place, committed in written.items():
        before = stood[place]
        if before is None or before.offset != committed.offset:
            cluster.failed[name, *place].add(committed.offset)

    cluster.late_commits += 1

    def write() -> None:
        cluster.late_commits -= 1
        # It stands in the log before all that was taken since, which counts.
        for place, committed in written.items():
            if offsets.get(place) is stood[place]:
                cluster.commit(name, *place, committed)
                cluster.unacknowledged.add((name, *place))

    broker.world.after(late_s, write)


def offset_fetch(broker: Broker, request: Any, reply: Reply) -> None:
    """Answer OffsetFetch for one group; from v8 on for many."""
    is_stable = bool(getattr(request, "require_stable", False))
    if hasattr(request, "groups"):
        reply({"groups": [
            {"group_id": each.group_id,
             **(_refused_question(broker, each)
                or _offsets_of(broker, str(each.group_id), each.topics, is_stable=is_stable))}
            for each in request.groups
        ]})  # fmt: skip
    else:
        name = str(request.group_id)
        reply(_offsets_of(broker, name, request.topics, is_stable=is_stable))


def _refused_question(broker: Broker, wanted: Any) -> dict[str, Any] | None:
    """Return the answer to a member that may not ask; None: it may."""
    name = str(wanted.group_id)
    group = broker.cluster.group(name)
    if not group.consumer.is_known or group_error(broker, name):
        return None
    member_id, epoch = getattr(wanted, "member_id", None), getattr(wanted, "member_epoch", -1)
    code = group.consumer.fetch_refusal(member_id, int(epoch))
    return {"error_code": code, "topics": []} if code else None


def _offsets_of(broker: Broker, name: str, wanted: Any, *, is_stable: bool) -> dict[str, Any]:
    """The answer about one group; `wanted` is None for all that it has."""
    code = group_error(broker, name)
    if code:
        return {"error_code": code, "topics": []}
    group = broker.cluster.group(name)
    places: dict[str, list[int]] = {}
    if wanted is None:
        for topic, index in group.offsets:
            places.setdefault(topic, []).append(index)
    else:
        for each in wanted:
            places[str(each.name)] = [int(index) for index in each.partition_indexes]
    pending = {place for held in group.pending.values() for place in held}
    topics = []
    for topic, indexes in places.items():
        entries = []
        for index in indexes:
            found = group.offsets.get((topic, index))
            entry: dict[str, Any] = {"partition_index": index, "committed_offset": -1}
            entry |= {"committed_leader_epoch": -1, "metadata": ""}
            if is_stable and (topic, index) in pending:
                entry["error_code"] = UNSTABLE
            elif found is not None:
                entry |= {
                    "committed_offset": found.offset,
                    "committed_leader_epoch": found.leader_epoch,
                    "metadata": found.metadata,
                }
            entries.append(entry)
        topics.append({"name": topic, "partitions": entries})
    return {"topics": topics}


def offset_delete(broker: Broker, request: Any, reply: Reply) -> None:
    name = str(request.group_id)
    code = group_error(broker, name)
    if code:
        reply({"error_code": code})
        return
    group = broker.cluster.group(name)
    topics = []
    for topic in request.topics:
        entries = []
        for each in topic.partitions:
            index = int(each.partition_index)
            if not group.has_members:
                group.offsets.pop((str(topic.name), index), None)
            code = NON_EMPTY_TOPIC if group.has_members else 0
            entries.append({"partition_index": index, "error_code": code})
        topics.append({"name": topic.name, "partitions": entries})
    reply({"topics": topics})


def delete_groups(broker: Broker, request: Any, reply: Reply) -> None:
    """Groups without members are forgotten, offsets and all."""
    results = []
    for name in map(str, request.groups_names):
        code = group_error(broker, name)
        group = broker.cluster.group(name)
        if not code and group.has_members:
            code = NON_EMPTY_GROUP
        elif not code and group.is_unknown:
            code = NO_SUCH_GROUP
        if not code:
            broker.cluster.delete_group(name)
            broker.world.report(f"kafka: group {name} is deleted")
        results.append({"group_id": name, "error_code": code})
    broker.world.after(STORE_S, lambda: reply({"results": results}))


# Transactions.
def init_producer_id(broker: Broker, request: Any, reply: Reply) -> None:
    """A producer id; of a transactional id its next epoch, which ends what was open before."""
    name = request.transactional_id
    cluster = broker.cluster
    if name is not None and cluster.coordinator(str(name)) != broker.broker_id:
        reply({"error_code": NOT_COORDINATOR, "producer_id": -1, "producer_epoch": -1})
        return
    known = None if name is None else cluster.transactions.get(str(name))
    if known is not None and known.is_ending:
        reply({"error_code": CONCURRENT, "producer_id": -1, "producer_epoch": -1})
        return
    if known is not None and known.groups:
        cluster.end_transaction(str(name), commit=False)
    producer_id, epoch = cluster.next_epoch(None if name is None else str(name))
    if name is not None:
        timeout_s = request.transaction_timeout.total_seconds()
        cluster.transactions[str(name)] = Transaction(producer_id, epoch, timeout_s)
    reply({"producer_id": producer_id, "producer_epoch": epoch})


def transaction_of(broker: Broker, request: Any) -> Transaction | int:
    """The producer's own, or an error code."""
    name = str(request.transactional_id)
    if broker.cluster.coordinator(name) != broker.broker_id:
        return NOT_COORDINATOR
    found = broker.cluster.transactions.get(name)
    stated = int(request.producer_id), int(request.producer_epoch)
    if found is None or stated != (found.producer_id, found.epoch):
        return FENCED
    return CONCURRENT if found.is_ending else found


def add_offsets(broker: Broker, request: Any, reply: Reply) -> None:
    """AddOffsetsToTxn."""
    found = transaction_of(broker, request)
    if isinstance(found, int):
        reply({"error_code": found})
        return
    if not found.groups:
        found.number += 1
        broker.world.after(
            found.timeout_s,
            partial(time_out, broker, str(request.transactional_id), found, found.number),
        )
    found.groups.add(str(request.group_id))
    broker.world.after(STORE_S, lambda: reply({}))


def time_out(broker: Broker, name: str, transaction: Transaction, number: int) -> None:
    """Abort a transaction whose producer has not ended it, and fence the producer."""
    is_open = bool(transaction.groups) and not transaction.is_ending
    if is_open and transaction.number == number:
        broker.cluster.next_epoch(name)
        transaction.epoch += 1
        broker.world.report(f"kafka: transaction of {name} has timed out")
        broker.cluster.end_transaction(name, commit=False)


def end_txn(broker: Broker, request: Any, reply: Reply) -> None:
    """EndTxn: decided at once, visible when the markers are there."""
    found = transaction_of(broker, request)
    if isinstance(found, int):
        reply({"error_code": found})
        return
    if not found.groups:
        reply({"error_code": INVALID_TXN_STATE})
        return
    found.is_ending = True
    name, is_commit = str(request.transactional_id), bool(request.committed)
    broker.world.report(
        f"kafka: transaction of {name} is {'committed' if is_commit else 'aborted'}"
    )
    broker.cluster.note_decided(name, commit=is_commit)
    markers_s = broker.world.rng.uniform(0.0, MARKERS_S_MAX)
    broker.world.after(markers_s, partial(broker.cluster.end_transaction, name, commit=is_commit))
    broker.world.after(STORE_S, lambda: reply({}))


def txn_offset_commit(broker: Broker, request: Any, reply: Reply) -> None:
    """Offsets that count when the transaction is committed."""
    name, group_name = str(request.transactional_id), str(request.group_id)
    code = group_error(broker, group_name)
    group = broker.cluster.group(group_name)
    known = broker.cluster.transactions.get(name)
    stated = int(request.producer_id), int(request.producer_epoch)
    if not code and (known is None or stated != (known.producer_id, known.epoch)):
        code = INVALID_EPOCH
    if not code and known is not None and group_name not in known.groups:
        code = INVALID_TXN_STATE
    generation = int(getattr(request, "generation_id", -1))
    member_id = str(getattr(request, "member_id", ""))
    refused, judge = group.refusal(member_id, generation, EPOCHS_FROM)
    refused = ILLEGAL_GENERATION if refused == STALE_MEMBER_EPOCH else refused
    topics, written = judge_offsets(broker, request, code or refused, judge)
    for place, committed in written.items():
        said = f"kafka: {name} has {place[0]}-{place[1]} at {committed.offset} pending"
        broker.world.report(said)
        group.pending.setdefault(stated[0], {})[place] = committed
    broker.world.after(STORE_S, lambda: reply({"topics": topics}))


Handler = Callable[["Broker", Any, Reply], None]
GROUP_HANDLERS: dict[int, Handler] = {
    OFFSET_COMMIT: offset_commit,
    OFFSET_FETCH: offset_fetch,
    OFFSET_DELETE: offset_delete,
    DELETE_GROUPS: delete_groups,
    DESCRIBE_GROUPS: describe_groups,
    INIT_PRODUCER_ID: init_producer_id,
    ADD_OFFSETS: add_offsets,
    END_TXN: end_txn,
    TXN_OFFSET_COMMIT: txn_offset_commit,
    JOIN: partial(grouped, JOIN),
    SYNC: partial(grouped, SYNC),
    HEARTBEAT: partial(grouped, HEARTBEAT),
    LEAVE: partial(grouped, LEAVE),
    CONSUMER_HEARTBEAT: partial(consumer_heartbeat, group_error=group_error),
    CONSUMER_DESCRIBE: partial(consumer_describe, group_error=group_error),
}
