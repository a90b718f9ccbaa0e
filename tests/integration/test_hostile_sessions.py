"""Fetch sessions (KIP-227) and share sessions (KIP-932) of others, and arrays without measure."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from typing import Any, Final

import pytest
from kio.index import load_request_schema

from keylane.wire.header import write_request
from keylane.wire.messages import write_message
from tests.integration.harness import produce
from tests.integration.share_wire import STARTING, alter_group
from tests.integration.test_hostile_listener import resident_bytes
from tests.long.attack_client import AttackClient
from tests.transcript.entities import build

FETCH, METADATA, SHARE_HEARTBEAT, SHARE_FETCH, SHARE_ACKNOWLEDGE = 1, 3, 76, 78, 79
FETCH_SESSION_ID_NOT_FOUND: Final = 70
INVALID_FETCH_SESSION_EPOCH: Final = 71
SHARE_SESSION_NOT_FOUND: Final = 122
INVALID_SHARE_SESSION_EPOCH: Final = 123
BROKER_SESSIONS_MAX: Final = 1000
"""`max.incremental.fetch.session.cache.slots` by default."""
SESSIONS: Final = 1500
FORGOTTEN: Final = 20_000
GROWTH_BYTES_MAX: Final = 48 << 20
TIMEOUT_S: Final = 60.0
FINAL_EPOCH: Final = -1
KEYS: Final = ("ann", "ben", "cid")


def fetch(
    topic: str, session_id: int, epoch: int, *, forgotten: Iterable[int] = (), names: bool = True
) -> dict[str, Any]:
    """Fetch v11 of partition 0, or of what the session has."""
    entry = {
        "partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20,
        "current_leader_epoch": -1, "last_fetched_epoch": -1, "log_start_offset": -1,
    }  # fmt: skip
    gone = [{"topic": topic, "partitions": tuple(forgotten)}]
    return {
        "replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "rack_id": "",
        "session_id": session_id, "session_epoch": epoch, "isolation_level": 0,
        "topics": [{"topic": topic, "partitions": [entry]}] if names else [],
        "forgotten_topics_data": gone if gone[0]["partitions"] else [],
    }  # fmt: skip


def fetch_story(bootstrap: str, topic: str) -> list[int]:
    """Error codes of what clients do to each other's sessions."""
    codes = []
    with (
        AttackClient(bootstrap, timeout_s=TIMEOUT_S) as owner,
        AttackClient(bootstrap, timeout_s=TIMEOUT_S) as other,
    ):

        def ask(client: AttackClient, session_id: int, epoch: int, **changes: Any) -> int:
            answer = client.ask(FETCH, 11, fetch(topic, session_id, epoch, **changes))
            codes.append(int(answer.error_code))
            return int(answer.session_id)

        session = ask(owner, 0, 0)
        assert session != 0
        ask(owner, session, 1, names=False)
        ask(owner, session, 7)  # too far
        ask(other, session, 2, names=False)  # in the owner's place
        ask(other, session ^ 0x5555, 1)  # an unknown session
        ask(owner, session, -(2**31))
        ask(owner, session, 3, forgotten=range(FORGOTTEN))
        ask(other, session, -1)  # closes the session, and asks for everything
        ask(owner, session, 4, names=False)
    return codes


def test_fetch_sessions_of_others_end_as_direct(kafka, shared_keylane, topic) -> None:
    """Ids of others, epochs that jump, a flood of forgotten partitions: each code as direct."""
    name = topic()
    produce(kafka, name, KEYS, 1)

    proxied = fetch_story(shared_keylane.bootstrap, name)

    assert proxied == fetch_story(kafka, name)
    assert {FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH} <= set(proxied)


def test_lanes_have_no_fetch_sessions_to_steal(kafka, shared_keylane, topic) -> None:
    """Fetches of lanes get session 0; a made-up id is not found, and costs nothing."""
    name = topic("lanes4", partitions=1)
    produce(kafka, name, KEYS, 1)
    with AttackClient(shared_keylane.bootstrap, timeout_s=TIMEOUT_S) as client:
        opened = client.ask(FETCH, 11, fetch(name, 0, 0))
        flood = client.ask(FETCH, 11, fetch(name, 0, -1, forgotten=range(FORGOTTEN)))

        invented = [client.ask(FETCH, 11, fetch(name, number, 1)) for number in range(1, 200)]

    assert (int(opened.error_code), int(opened.session_id)) == (0, 0)
    assert (int(flood.error_code), int(flood.session_id)) == (0, 0)
    assert {int(answer.error_code) for answer in invented} == {FETCH_SESSION_ID_NOT_FOUND}


def test_sessions_are_bounded_by_the_broker(kafka, shared_keylane, topic) -> None:
    """More sessions than a broker has room for: it says so, and keylane keeps none of them."""
    name = topic()
    produce(kafka, name, KEYS, 1)
    before = resident_bytes(shared_keylane.pid)
    with AttackClient(shared_keylane.bootstrap, timeout_s=TIMEOUT_S) as client:
        answers = [client.ask(FETCH, 11, fetch(name, 0, 0)) for _ in range(SESSIONS)]
        for session in {answer.session_id for answer in answers} - {0}:
            # The broker's slots are for other tests as well, and stay taken for two minutes.
            client.ask(FETCH, 11, fetch(name, session, FINAL_EPOCH, names=False))

    assert {int(answer.error_code) for answer in answers} == {0}
    assert sum(answer.session_id != 0 for answer in answers) <= BROKER_SESSIONS_MAX
    assert resident_bytes(shared_keylane.pid) - before < GROWTH_BYTES_MAX


class ShareMember:
    """A member of a share group by hand, with its own connection."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self.client = AttackClient(bootstrap, timeout_s=TIMEOUT_S)
        self.id, self.group, self.topic = str(uuid.uuid4()), group, topic
        asked = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
        (found,) = self.client.ask(METADATA, 12, asked).topics
        self.topic_id = found.topic_id
        self.epoch = 0

    def join(self) -> None:
        """Heartbeat until the partition is assigned. Raises: AssertionError."""
        epoch, deadline_s = 0, time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline_s:
            answer = self.heartbeat(epoch)
            # The group may be the first one of its coordinator, which loads then.
            assert answer.error_code in (0, *STARTING), answer
            if answer.error_code == 0:
                epoch = int(answer.member_epoch)
                if answer.assignment is not None and answer.assignment.topic_partitions:
                    return
            time.sleep(0.2)  # the broker assigns when it likes; the deadline bounds it
        raise AssertionError("no partition was assigned")

    def heartbeat(self, epoch: int) -> Any:
        """One, at an epoch."""
        values = {"group_id": self.group, "member_id": self.id, "member_epoch": epoch,
                  "rack_id": None, "subscribed_topic_names": [self.topic]}  # fmt: skip
        return self.client.ask(SHARE_HEARTBEAT, 1, values)

    def fetch(self, epoch: int, *acknowledged: tuple[int, int, int], wait_ms: int = 200) -> Any:
        """ShareFetch at a session's epoch; acknowledged: (first, last, type)."""
        part = {"partition_index": 0, "acknowledgement_batches": batches(acknowledged)}
        values = {
            "group_id": self.group, "member_id": self.id, "share_session_epoch": epoch,
            "max_wait": wait_ms, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 500,
            "batch_size": 500, "forgotten_topics_data": [],
            "topics": [{"topic_id": self.topic_id, "partitions": [part]}],
        }  # fmt: skip
        return self.client.ask(SHARE_FETCH, 1, values)

    def acknowledge(self, epoch: int, *acknowledged: tuple[int, int, int]) -> Any:
        """ShareAcknowledge."""
        part = {"partition_index": 0, "acknowledgement_batches": batches(acknowledged)}
        topics = [{"topic_id": self.topic_id, "partitions": [part]}]
        values = {"group_id": self.group, "member_id": self.id, "share_session_epoch": epoch,
                  "topics": topics}  # fmt: skip
        return self.client.ask(SHARE_ACKNOWLEDGE, 1, values)

    def acquire(self) -> tuple[int, int]:
        """Fetch until records are acquired: the first and the last. Raises: AssertionError."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline_s:
            answer = self.fetch(self.epoch)
            assert answer.error_code == 0, answer
            self.epoch += 1
            for found in answer.responses:
                for part in found.partitions:
                    if part.acquired_records:
                        return (
                            int(part.acquired_records[0].first_offset),
                            int(part.acquired_records[-1].last_offset),
                        )
        raise AssertionError("nothing was acquired")


def batches(acknowledged: Iterable[tuple[int, int, int]]) -> list[dict[str, Any]]:
    """Return batches in the form of ShareFetch and ShareAcknowledge."""
    return [
        {"first_offset": first, "last_offset": last, "acknowledge_types": [kind]}
        for first, last, kind in acknowledged
    ]


def codes_of(answer: Any) -> list[int]:
    """The error codes of an answer, in order."""
    parts = [part for topic in answer.responses for part in topic.partitions]
    codes = [int(answer.error_code)]
    for part in parts:
        codes.append(int(part.error_code))
        codes.append(int(getattr(part, "acknowledge_error_code", 0)))
    return codes


def share_story(bootstrap: str, kafka: str, group: str, topic: str) -> dict[str, list[int]]:
    """Return the answers to a member that attacks the sessions and records of another, by name."""
    # The broker may look for the end of the log only after there are records in it.
    alter_group(kafka, group, share_auto_offset_reset="earliest")
    owner, thief = (ShareMember(bootstrap, group, topic) for _ in range(2))
    with owner.client, thief.client:
        owner.join()
        assert codes_of(owner.fetch(0, wait_ms=0))[0] == 0
        owner.epoch = 1
        produce(kafka, topic, KEYS, 3)
        first, last = owner.acquire()
        said = {
            "no session": thief.fetch(5),
            "acknowledges before a session": thief.acknowledge(0, (first, last, 1)),
            "another session": thief.fetch(0, wait_ms=0),
            "another's records": thief.acknowledge(1, (first, last, 1)),
            "a jump": owner.fetch(owner.epoch + 9),
            "backwards": owner.fetch(0x7FFFFFFF),
            "beyond the end": owner.acknowledge(owner.epoch, (2**62, 2**62 + 5, 1)),
            "turned round": owner.acknowledge(owner.epoch + 1, (last, first, 1)),
            "unknown type": owner.acknowledge(owner.epoch + 2, (first, last, 77)),
            "last and none": owner.acknowledge(FINAL_EPOCH),
            "after the last": owner.acknowledge(owner.epoch, (first, last, 1)),
        }
    return {name: codes_of(answer) for name, answer in said.items()}


def test_share_sessions_of_others_end_as_direct(kafka, shared_keylane, topic) -> None:
    """Epochs that jump, records that another has: the broker's codes, with and without keylane."""
    names = topic(), topic()

    proxied = share_story(shared_keylane.bootstrap, kafka, f"share-{names[0]}", names[0])
    direct = share_story(kafka, kafka, f"share-{names[1]}", names[1])

    assert proxied == direct
    assert proxied["no session"][0] == SHARE_SESSION_NOT_FOUND
    assert proxied["a jump"][0] == INVALID_SHARE_SESSION_EPOCH
    assert any(proxied["another's records"])


@pytest.mark.parametrize("api_key", [SHARE_HEARTBEAT, SHARE_FETCH, SHARE_ACKNOWLEDGE])
def test_counts_beyond_the_bytes_close_the_connection(shared_keylane, api_key) -> None:
    """An array that claims two billion entries ends the connection, and takes no memory."""
    before = resident_bytes(shared_keylane.pid)
    body = write_message(build(load_request_schema(api_key, 1), {}))
    # Behind its fields stand the array (of compact form) and the tags: the count is overwritten.
    body = body[:-2] + b"\xff\xff\xff\xff\x0f" + b"\0"

    for _ in range(20):
        with AttackClient(shared_keylane.bootstrap, timeout_s=TIMEOUT_S) as client:
            client.write(write_request(api_key, 1, 5, "raw", body))
            with pytest.raises(ConnectionError):
                client.receive(api_key, 1)

    assert resident_bytes(shared_keylane.pid) - before < GROWTH_BYTES_MAX
    with AttackClient(shared_keylane.bootstrap, timeout_s=TIMEOUT_S) as client:
        assert client.ask(18, 0, {}).error_code == 0


def test_a_thousand_unknown_topics_are_the_brokers_to_refuse(kafka, shared_keylane, topic) -> None:
    """ShareAcknowledge of topics that are not there: answered as direct, nothing is kept."""
    name = topic()
    before = resident_bytes(shared_keylane.pid)
    part = {"partition_index": 0, "acknowledgement_batches": batches([(0, 2**62, 1)] * 5)}
    topics = [
        {"topic_id": uuid.UUID(int=number), "partitions": [part]} for number in range(1, 1001)
    ]
    values = {"group_id": f"flood-{name}", "member_id": str(uuid.uuid4()), "topics": topics,
              "share_session_epoch": 1}  # fmt: skip
    said = []
    for bootstrap in (shared_keylane.bootstrap, kafka):
        with AttackClient(bootstrap, timeout_s=TIMEOUT_S) as client:
            said.append(codes_of(client.ask(SHARE_ACKNOWLEDGE, 1, values)))

    assert said[0] == said[1]
    assert any(said[0])
    assert resident_bytes(shared_keylane.pid) - before < GROWTH_BYTES_MAX
