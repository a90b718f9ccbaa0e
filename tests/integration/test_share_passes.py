"""Share groups of topics without a rule: each answer through keylane is that of the broker."""

from __future__ import annotations

import time
import uuid
from typing import Any

from keylane.wire.header import ApiKey
from tests.integration.share_sides import LOCK_MS, SHORT_LOCK_MS, Side, let_locks_expire
from tests.integration.share_wire import (
    ACCEPT,
    BATCH_OPTIMIZED,
    POLL_S,
    RECORD_LIMIT,
    REJECT,
    RELEASE,
    RENEW,
    Answer,
    PlainWire,
    ShareClient,
    alter_group,
    call,
)


def renew_for(client: ShareClient, topic_id: uuid.UUID, first: int, last: int, ms: int) -> None:
    """Renew locks until the broker applies a changed duration to them."""
    answer = None
    while answer is None or answer.lock_ms != ms:
        answer = client.acknowledge(topic_id, acks=[(first, last, [RENEW])], renew=True)
        assert answer.codes == (0, 0, 0), answer


STATE_CHANGES = {
    "0 start": ((), (-1, -1)),
    "1 fetch": (((100, 109, 1),), (-1, -1)),
    "2 accept 100-109": ((), (100, 0)),
    "3 fetch": (((110, 119, 1),), (100, 10)),
    "4 release 110": ((), (110, 10)),
    "5 accept 119": ((), (110, 9)),
    "6 fetch": (((110, 110, 2), (120, 120, 1)), (110, 10)),
    "7 locks of 111-112 expire": ((), (110, 10)),
    "8 accept 113-118": ((), (110, 4)),
    "9 fetch": (((111, 112, 2),), (110, 4)),
    "10 accept 110": ((), (110, 3)),
    "11 accept 111-112": ((), (111, 1)),
    "accept 120": ((), (120, 0)),
}
"""By row of KIP-932's table of state changes: what is acquired, start offset and lag.

The start offset that is persisted is up to one operation behind the one in memory, which is the
KIP's: a broker writes it with the next change of state. Before the first one there is none.
"""


def state_changes(side: Side) -> dict[str, Any]:
    for _ in range(10):
        side.write(10)
    client, topic_id = side.join()
    rows: dict[str, Any] = {}

    def note(row: str, answer: Answer) -> None:
        assert answer.codes == (0, 0, 0), (row, answer)
        rows[row] = (answer.acquired, side.offsets())

    def accept(row: str, first: int, last: int) -> None:
        note(row, client.acknowledge(topic_id, acks=[(first, last, [ACCEPT])]))

    with client:
        note("0 start", settled(client, topic_id))
        side.write(10)
        note("1 fetch", client.acquire(topic_id, count=10))
        accept("2 accept 100-109", 100, 109)
        side.write(10)
        note("3 fetch", client.acquire(topic_id, count=10))
        note("4 release 110", client.acknowledge(topic_id, acks=[(110, 110, [RELEASE])]))
        accept("5 accept 119", 119, 119)
        side.write(1)
        note("6 fetch", client.acquire(topic_id, count=2))
        side.configure(share_record_lock_duration_ms=SHORT_LOCK_MS)
        renew_for(client, topic_id, 111, 112, SHORT_LOCK_MS)
        side.configure(share_record_lock_duration_ms=LOCK_MS)
        let_locks_expire(SHORT_LOCK_MS)
        rows["7 locks of 111-112 expire"] = ((), side.offsets())
        accept("8 accept 113-118", 113, 118)
        note("9 fetch", client.acquire(topic_id, count=2))
        accept("10 accept 110", 110, 110)
        accept("11 accept 111-112", 111, 112)
        accept("accept 120", 120, 120)
        client.close()
    return rows


def settled(client: ShareClient, topic_id: uuid.UUID) -> Answer:
    """Fetch until the broker has a group's state, by which the group's start is fixed.

    Before that a fetch may be answered without an error, but then it does not name the partition.
    In a new session the first answer names each partition that was read.
    """
    while True:
        answer = client.fetch(topic_id, max_wait_ms=0, epoch=0)
        if answer.parts and answer.codes == (0, 0, 0):
            return answer
        assert answer.error == 0, answer
        time.sleep(POLL_S)  # it is made by heartbeats; pytest's timeout bounds it


def test_the_state_changes_of_the_kip(share_sides) -> None:
    """Row by row: acquired ranges with delivery counts, start offset and lag are as direct."""
    direct, proxied = share_sides.run(state_changes)

    assert proxied == direct == STATE_CHANGES


THREE_BATCHES = ((0, 4), (5, 9), (10, 14))
ACQUIRED = {
    (6, 2, BATCH_OPTIMIZED): (
        (((0, 4, 1), (5, 9, 1)), THREE_BATCHES[:2]),
        (((10, 14, 1),), THREE_BATCHES[2:]),
    ),
    (6, 2, RECORD_LIMIT): (
        (((0, 5, 1),), THREE_BATCHES[:2]),
        (((6, 9, 1), (10, 11, 1)), THREE_BATCHES[1:]),
    ),
    (6, 10, RECORD_LIMIT): (
        (((0, 5, 1),), THREE_BATCHES[:2]),
        (((6, 9, 1), (10, 11, 1)), THREE_BATCHES[1:]),
    ),
    (6, 6, RECORD_LIMIT): (
        (((0, 5, 1),), THREE_BATCHES[:2]),
        (((6, 9, 1), (10, 11, 1)), THREE_BATCHES[1:]),
    ),
    (3, 1, RECORD_LIMIT): (
        (((0, 2, 1),), THREE_BATCHES[:1]),
        (((3, 4, 1), (5, 5, 1)), THREE_BATCHES[:2]),
    ),
    (6, 500, BATCH_OPTIMIZED): (
        (((0, 9, 1),), THREE_BATCHES[:2]),
        (((10, 14, 1),), THREE_BATCHES[2:]),
    ),
}
"""By max records, batch size and acquire mode: ranges and batches of the first two fetches."""


def acquired(side: Side) -> dict[tuple[int, int, int], Any]:
    for _ in THREE_BATCHES:
        side.write(5)
    rows = {}
    for number, row in enumerate(ACQUIRED):
        max_records, batch_size, mode = row
        group = f"{side.group}-{number}"
        alter_group(side.bootstrap, group, share_auto_offset_reset="earliest")
        client, topic_id = side.join(group)
        options = {"max_records": max_records, "batch_size": batch_size, "mode": mode}
        with client:
            answers = [client.acquire(topic_id, **options) for _ in range(2)]
            client.close()
        rows[row] = tuple((answer.acquired, answer.part.batches) for answer in answers)
    return rows


def test_acquire_modes(share_sides) -> None:
    """KIP-1206: max records is exact in record_limit, and rounded up to batches else."""
    direct, proxied = share_sides.run(acquired)

    assert proxied == direct == ACQUIRED


NONE: tuple[int, int, int] = (0, 0, 0)
INVALID = 42
BAD_STATE, BAD_EPOCH = 121, 123
RENEWALS = {
    "RENEW, flag": (NONE, LOCK_MS, ()),
    "RENEW of one offset, ACCEPT of another": (NONE, LOCK_MS, ()),
    "RENEW, no flag": ((0, INVALID, 0), LOCK_MS, ()),
    "RENEW, v1": ((0, INVALID, 0), 0, ()),
    "type 5": ((0, INVALID, 0), LOCK_MS, ()),
    "fetch, flag, zeros": (NONE, LOCK_MS, ()),
    "fetch, flag, no zeros": ((INVALID, 0, 0), 0, ()),
    "fetch, no flag": ((0, 0, INVALID), LOCK_MS, ((5, 9, 1),)),
    "fetch, ACCEPT and RENEW": (NONE, LOCK_MS, ()),
    "beyond": ((0, INVALID, 0), LOCK_MS, ()),
    "of another member": ((0, BAD_STATE, 0), LOCK_MS, ()),
    "RENEW of another member's": ((0, BAD_STATE, 0), LOCK_MS, ()),
    "one bad of two": ((0, BAD_STATE, 0), LOCK_MS, ()),
    "behind the start": (NONE, LOCK_MS, ()),
    "another duration": (NONE, 20_000, ()),
    "RENEW switched off": ((0, BAD_STATE, 0), 20_000, ()),
    "ACCEPT while RENEW is off": (NONE, 20_000, ()),
    "wrong epoch": ((BAD_EPOCH, 0, 0), 0, ()),
}
"""By request: errors, duration of locks, and what is acquired."""


def renewals(side: Side) -> dict[str, Any]:
    for _ in range(4):
        side.write(5)
    client, topic_id = side.join()
    other, _ = side.join()
    rows: dict[str, Any] = {}

    def note(row: str, answer: Answer) -> None:
        texts = (answer.message, answer.part.message, answer.part.ack_message)
        shown = (answer.codes, answer.lock_ms, answer.acquired)
        rows[row] = (shown, [side.neutral(text) for text in texts])

    def acknowledge(row: str, first: int, last: int, kind: int, **options: Any) -> None:
        note(row, client.acknowledge(topic_id, acks=[(first, last, [kind])], **options))

    def fetch(row: str, *acks: tuple[int, int, list[int]], **options: Any) -> None:
        note(row, client.fetch(topic_id, acks=acks, **options))

    with client, other:
        assert client.acquire(topic_id, max_records=5, count=5).acquired == ((0, 4, 1),)
        acknowledge("RENEW, flag", 0, 4, RENEW, renew=True)
        note(
            "RENEW of one offset, ACCEPT of another",
            client.acknowledge(topic_id, acks=[(0, 0, [ACCEPT]), (2, 2, [RENEW])], renew=True),
        )
        acknowledge("RENEW, no flag", 1, 4, RENEW)
        acknowledge("RENEW, v1", 1, 4, RENEW, version=1)
        acknowledge("type 5", 1, 4, 5)
        fetch("fetch, flag, zeros", (1, 4, [RENEW]), renew=True)
        bounds = {"max_records": 5, "max_wait_ms": 500}
        fetch("fetch, flag, no zeros", (1, 4, [RENEW]), renew=True, **bounds)
        fetch("fetch, no flag", (1, 4, [RENEW]), max_records=5)
        fetch("fetch, ACCEPT and RENEW", (1, 1, [ACCEPT]), (2, 4, [RENEW]), renew=True)
        assert other.acquire(topic_id, max_records=5, count=5).acquired == ((10, 14, 1),)
        acknowledge("beyond", 500, 501, ACCEPT)
        acknowledge("of another member", 10, 14, ACCEPT)
        acknowledge("RENEW of another member's", 10, 14, RENEW, renew=True)
        note(
            "one bad of two",
            client.acknowledge(topic_id, acks=[(2, 2, [ACCEPT]), (10, 10, [ACCEPT])]),
        )
        acknowledge("behind the start", 0, 1, ACCEPT)
        side.configure(share_record_lock_duration_ms=20_000)
        renew_for(client, topic_id, 2, 4, 20_000)
        acknowledge("another duration", 2, 4, RENEW, renew=True)
        side.configure(share_renew_acknowledge_enable="false")
        while client.acknowledge(topic_id, acks=[(2, 4, [RENEW])], renew=True).part.error == 0:
            time.sleep(POLL_S)  # until the broker has applied it; pytest's timeout bounds it
        acknowledge("RENEW switched off", 2, 4, RENEW, renew=True)
        acknowledge("ACCEPT while RENEW is off", 2, 4, ACCEPT)
        acknowledge("wrong epoch", 5, 9, ACCEPT, epoch=77)
        client.close()
        other.close()
    return rows


def test_renewals_and_refused_acknowledgements(share_sides) -> None:
    """KIP-1222: errors, messages and durations of each request are as direct."""
    direct, proxied = share_sides.run(renewals, share_auto_offset_reset="earliest")

    assert proxied == direct
    assert {row: shown for row, (shown, _) in direct.items()} == RENEWALS
    assert "not enabled for the group" in direct["RENEW switched off"][1][1]


RELEASES = [
    ("acquired", dict.fromkeys(range(5), 1)),
    ("after RELEASE of 1 and REJECT of 2", {1: 2}),
    ("after RELEASE of 1 again", {1: 3}),
    ("after its third RELEASE", {}),
    ("after the member's session", {3: 2, 4: 2}),
    ("after the member's connection", {3: 3, 4: 3}),
]
"""Delivery counts by offset, with a limit of 3."""


def releases(side: Side) -> list[tuple[str, Any]]:
    side.write(5)
    rows: list[tuple[str, Any]] = []
    client, topic_id = side.join()

    def note(row: str, answer: Answer) -> None:
        rows.append((row, answer.part.counts))

    def release_one() -> None:
        client.acknowledge(topic_id, acks=[(1, 1, [RELEASE])])

    with client:
        note("acquired", client.acquire(topic_id, count=5))
        client.acknowledge(topic_id, acks=[(0, 2, [ACCEPT, RELEASE, REJECT])])
        note("after RELEASE of 1 and REJECT of 2", client.acquire(topic_id))
        release_one()
        note("after RELEASE of 1 again", client.acquire(topic_id))
        release_one()
        note("after its third RELEASE", client.fetch(topic_id))
        client.close()
    for row in ("session", "connection"):
        client, _ = side.join()
        note(f"after the member's {row}", client.acquire(topic_id, count=2))
        client.wire.close()
    return rows


def test_releases_count_deliveries(share_sides) -> None:
    """RELEASE, the end of a session and of a connection give records back, up to the limit."""
    direct, proxied = share_sides.run(
        releases, share_auto_offset_reset="earliest", share_delivery_count_limit=3
    )

    assert proxied == direct == RELEASES


ERRORS = {
    "a partition that is not there": (0, 3, 0),
    "a topic that is not there": (0, 100, 0),
    "ACKS at epoch 0": (42, 0, 0),
    "no session": (122, 0, 0),
    "a jump of the epoch": (123, 0, 0),
    "an epoch of before": (123, 0, 0),
    "ranges that descend": (0, 42, 0),
    "more types than offsets": (0, 42, 0),
    "a fetch of a partition that is not there": (0, 3, 0),
    "a fetch of a topic that is not there": (-1, 0, 0),
    "a fetch without a session": (122, 0, 0),
    "an empty member id": (42, 0, 0),
}


def errors(side: Side) -> dict[str, Any]:
    side.write(5)
    client, topic_id = side.join()
    nowhere = uuid.UUID(int=7)
    rows: dict[str, Any] = {}

    def note(row: str, answer: Answer) -> None:
        texts = (answer.message, answer.part.message, answer.part.ack_message)
        rows[row] = (answer.codes, [side.neutral(text) for text in texts])

    accept = [(0, 4, [ACCEPT])]
    with client, ShareClient(side.bootstrap, side.group) as stranger:
        client.acquire(topic_id, count=5)
        note("a partition that is not there", client.acknowledge(topic_id, 9, acks=accept))
        note("a topic that is not there", client.acknowledge(nowhere, acks=accept))
        note("ACKS at epoch 0", stranger.fetch(topic_id, acks=accept))
        note("no session", stranger.acknowledge(topic_id, acks=accept, epoch=1))
        note("a jump of the epoch", client.acknowledge(topic_id, acks=accept, epoch=99))
        note("an epoch of before", client.acknowledge(topic_id, acks=accept, epoch=1))
        descending = [(3, 4, [ACCEPT]), (0, 1, [ACCEPT])]
        note("ranges that descend", client.acknowledge(topic_id, acks=descending))
        too_many = [(0, 1, [ACCEPT] * 5)]
        note("more types than offsets", client.acknowledge(topic_id, acks=too_many))
        note("a fetch of a partition that is not there", client.fetch(topic_id, 9, max_wait_ms=0))
        note("a fetch of a topic that is not there", client.fetch(nowhere, max_wait_ms=0))
        note("a fetch without a session", stranger.fetch(topic_id, epoch=5))
        stranger.member_id = ""
        note("an empty member id", stranger.fetch(topic_id))
        client.close()
    return rows


def test_errors_of_sessions_and_acknowledgements(share_sides) -> None:
    """Error codes and their messages are as direct."""
    direct, proxied = share_sides.run(errors, share_auto_offset_reset="earliest")

    assert proxied == direct
    assert {row: codes for row, (codes, _) in direct.items()} == ERRORS


HEARTBEATS = {
    "an unknown member": 25,
    "an epoch of the future": 110,
    "no topics at the start": 42,
    "no member id": 42,
    "a topic that is not there": 0,
    "the end": 0,
    "after the end": 25,
}


def heartbeats(side: Side) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    client, _ = side.join()

    def note(row: str, answer: Any) -> None:
        rows[row] = (int(answer.error_code), neutral(answer.error_message))

    def neutral(text: str | None) -> str | None:
        for name in (client.member_id, stranger.member_id, f"({client.member_epoch})"):
            text = text and name and text.replace(name, "<own>")
        return side.neutral(text)

    with client, ShareClient(side.bootstrap, side.group) as stranger:
        note("an unknown member", stranger.heartbeat(epoch=3))
        note("an epoch of the future", client.heartbeat(epoch=1000))
        note("no topics at the start", stranger.heartbeat(epoch=0))
        stranger.member_id, member_id = "", stranger.member_id
        note("no member id", stranger.heartbeat([side.topic], epoch=0))
        stranger.member_id = member_id
        note("a topic that is not there", client.heartbeat([f"none-{side.topic}"]))
        last = client.member_epoch
        note("the end", client.heartbeat(epoch=-1))
        note("after the end", client.heartbeat(epoch=last))
    return rows


def test_errors_of_heartbeats(share_sides) -> None:
    """Error codes and their messages are as direct."""
    direct, proxied = share_sides.run(heartbeats)

    assert proxied == direct
    assert {row: code for row, (code, _) in direct.items()} == HEARTBEATS


def described(side: Side) -> list[Any]:
    """Return the group with a member, and without."""
    shown = []
    client, topic_id = side.join()
    with client, PlainWire(side.bootstrap) as wire:
        for _ in range(2):
            answer = call(
                wire, ApiKey.SHARE_GROUP_DESCRIBE, 1, group_ids=[side.group],
                include_authorized_operations=True,
            )  # fmt: skip
            (group,) = answer.groups
            shown.append((
                int(group.error_code), group.group_state, group.assignor_name,
                group.group_epoch - group.assignment_epoch, int(group.authorized_operations),
                [
                    (
                        member.member_id == client.member_id,
                        member.client_id,
                        [str(name) == side.topic for name in member.subscribed_topic_names],
                        [
                            (each.topic_id == topic_id, [int(i) for i in each.partitions])
                            for each in member.assignment.topic_partitions
                        ],
                    )
                    for member in group.members
                ],
            ))  # fmt: skip
            client.heartbeat(epoch=-1)
    return shown


def test_a_group_is_described_as_direct(share_sides) -> None:
    """Stable with its member's topics and partitions, then Empty."""
    direct, proxied = share_sides.run(described, partitions=2)

    assert proxied == direct
    (code, state, assignor, *_, members), (_, end, *_, none) = direct
    assert (code, state, assignor, end, none) == (0, "Stable", "simple", "Empty", [])
    assert members == [(True, "share-wire", [True], [(True, [0, 1])])]
