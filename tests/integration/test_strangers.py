"""Harm by a client before its login, and without rights: as little as direct."""

from __future__ import annotations

import select
import struct
import uuid
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.sasl_authenticate.v1.request import SaslAuthenticateRequest
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest

from keylane.embedded import run_java_tool
from keylane.wire.messages import write_message
from tests.integration.raw import RawClient
from tests.integration.secured import allow, revoke, rule
from tests.integration.secured_stage import Stage
from tests.integration.share_wire import wait_until
from tests.reference.batches import Batch, Record, write_batch
from tests.transcript.entities import build, plain

PRODUCE, OFFSET_COMMIT, OFFSET_FETCH, HEARTBEAT_848 = 0, 8, 9, 68
LOADING, GROUP_DENIED = 14, 30
BEFORE_LOGIN_MAX = 20


@pytest.mark.parametrize(
    ("mechanism", "token"),
    [
        ("OAUTHBEARER", b"n,,\x01auth=Bearer aaaa.bbbb.\x01\x01"),
        ("SCRAM-SHA-256", b"n,,n=alice,r=abcdefgh"),
    ],
)
def test_an_answer_on_the_way_of_a_login_opens_nothing(stage, mechanism, token) -> None:
    """A refused bearer token and a SCRAM challenge have no error code: requests stay small."""
    with RawClient(stage.proxy.bootstrap, stage.ca) as client:
        assert client.ask(SaslHandshakeRequest(mechanism=mechanism)).error_code == 0
        answer = client.ask(SaslAuthenticateRequest(auth_bytes=token))
        assert answer.error_code == 0 and answer.auth_bytes

        client.send_bytes(struct.pack(">i", 512 * 1024 + 1))

        assert client.is_closed()


@pytest.mark.parametrize(
    "bound",
    [
        "connections_before_login_max",
        "connections_max",
        pytest.param("connections_per_address_max", marks=pytest.mark.long),
    ],
)
def test_silent_connections_make_room_and_have_little_time(stage, bound) -> None:
    """The one that is silent longest goes; in the end all of them, with one line about it."""
    proxy = stage.start_keylane(
        stage.direct,
        f"{bound}={BEFORE_LOGIN_MAX}",
        "login_timeout_s=10",
        "beside_others=true",
    )
    topic, _ = stage.topic("silent", 1)
    silent = [RawClient(proxy.bootstrap, stage.ca) for _ in range(2 * BEFORE_LOGIN_MAX)]
    try:
        with RawClient(proxy.bootstrap, stage.ca) as alice:
            alice.login(stage.login("PLAIN", "alice"))
            assert alice.fetch_codes(topic, 12, range(8)) == {0}

            assert all(client.is_closed() for client in silent)

            assert alice.fetch_codes(topic, 12, range(8)) == {0}
    finally:
        for client in silent:
            client.__exit__()
    proxy.wait_for_log("connections closed without a login count=")
    proxy.stop()


def commit_of(topic: str, group: str, *, offset: int = 1, index: int = 0) -> dict[str, Any]:
    entry = {
        "partition_index": index,
        "committed_offset": offset,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    return {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": topic, "partitions": [entry]}],
    }


def body_of(api_key: int, version: int, values: dict[str, Any]) -> bytes:
    return write_message(build(load_request_schema(api_key, version), values))


def throttle(stage: Stage, user: str, *, is_on: bool) -> None:
    """Give a user a quota that is over at the first batch, or take it away."""
    key = "producer_byte_rate"
    change = ("--add-config", f"{key}=1024") if is_on else ("--delete-config", key)
    run_java_tool(
        "kafka-configs",
        *("--bootstrap-server", stage.kafka.bootstrap, "--alter", *change),
        *("--entity-type", "users", "--entity-name", user),
    )


def mute(client: RawClient, topic: str) -> None:
    """Produce what is far beyond the quota: the broker answers, and reads no more for minutes.

    The quota is in force a moment after it was set. Until then nothing is muted.
    """
    batch = write_batch(Batch(0, tuple(Record(i, b"k", b"x" * 1000) for i in range(600))))
    entry = {"index": 0, "records": batch}
    asked = {"acks": 1, "timeout": 1000, "topic_data": [{"name": topic, "partition_data": [entry]}]}
    request = build(load_request_schema(PRODUCE, 7), {**asked, "transactional_id": None})
    wait_until(lambda: client.ask(request).throttle_time.total_seconds() > 60, "the quota")


def has_answer(client: RawClient) -> bool:
    return bool(select.select([client.fileno()], [], [], 0)[0])


def test_a_stranger_that_its_broker_has_muted_holds_no_lock(stage) -> None:
    """A stranger without the right to the group is refused before it takes the lock."""
    topic, junk = stage.topic("lock", 1)[0], stage.plain_topic("junk")
    group = f"victim-{uuid.uuid4()}"
    throttle(stage, "dave", is_on=True)
    try:
        with (
            RawClient(stage.proxy.bootstrap, stage.ca) as alice,
            RawClient(stage.proxy.bootstrap, stage.ca) as dave,
        ):
            alice.login(stage.login("PLAIN", "alice"))
            dave.login(stage.login("PLAIN", "dave"))
            assert alice.codes(OFFSET_COMMIT, 7, commit_of(topic, group)) == {0}
            assert dave.codes(OFFSET_COMMIT, 7, commit_of(topic, group)) == {GROUP_DENIED}
            mute(dave, junk)
            dave.send(OFFSET_COMMIT, 7, body_of(OFFSET_COMMIT, 7, commit_of(topic, group)))

            assert alice.codes(OFFSET_COMMIT, 7, commit_of(topic, group, offset=2)) == {0}

            assert not has_answer(dave)
    finally:
        throttle(stage, "dave", is_on=False)


def test_a_member_that_its_broker_has_muted_holds_the_lock_for_seconds(stage) -> None:
    """A member's connection ends, and the group goes on."""
    # Rights are remembered for a second at the shared one, and then asked for without the lock.
    proxy = stage.start_keylane(stage.direct, "authorization_ttl_s=300", "beside_others=true")
    topic, junk = stage.topic("held", 1)[0], stage.plain_topic("junk")
    group = f"shared-{uuid.uuid4()}"
    may_write = [rule("carol", "WRITE", name=junk), rule("carol", "READ", name=topic)]
    allow(stage.admin, *may_write)
    throttle(stage, "carol", is_on=True)
    try:
        with (
            RawClient(proxy.bootstrap, stage.ca) as alice,
            RawClient(proxy.bootstrap, stage.ca) as carol,
        ):
            alice.login(stage.login("PLAIN", "alice"))
            carol.login(stage.login("PLAIN", "carol"))
            # The rights of both are remembered, so that the lock is taken at once.
            assert carol.codes(OFFSET_COMMIT, 7, commit_of(topic, group)) == {0}
            mute(carol, junk)
            carol.send(OFFSET_COMMIT, 7, body_of(OFFSET_COMMIT, 7, commit_of(topic, group)))

            found = alice.codes(OFFSET_COMMIT, 7, commit_of(topic, group, offset=2))
            if found == {LOADING}:  # both have 10 s, and its own began hardly later
                found = alice.codes(OFFSET_COMMIT, 7, commit_of(topic, group, offset=2))

            assert found == {0}
            assert carol.is_closed()
    finally:
        throttle(stage, "carol", is_on=False)
        revoke(stage.admin, *may_write)
        proxy.stop()


def test_lane_names_of_a_stranger_are_in_no_answer_to_a_group(stage) -> None:
    """Its commits are refused as direct, whatever topic they name, and leave nothing."""
    topic, _ = stage.topic("names", 1)
    group = f"named-{uuid.uuid4()}"
    names = [topic, f"{topic}.lanes-8", "no-such-topic", "no-such-topic.lanes-8"]
    with (
        RawClient(stage.proxy.bootstrap, stage.ca) as alice,
        RawClient(stage.proxy.bootstrap, stage.ca) as dave,
        RawClient(stage.direct, stage.ca) as direct,
    ):
        alice.login(stage.login("PLAIN", "alice"))
        dave.login(stage.login("PLAIN", "dave"))
        direct.login(stage.login("PLAIN", "dave"))
        assert alice.codes(OFFSET_COMMIT, 7, commit_of(topic, group)) == {0}

        for name in names:
            asked = commit_of(name, group)
            assert dave.codes(OFFSET_COMMIT, 7, asked) == {GROUP_DENIED}
            assert direct.codes(OFFSET_COMMIT, 7, asked) == {GROUP_DENIED}

        every = {"group_id": group, "topics": None, "require_stable": False}
        answer = plain(alice.ask(build(load_request_schema(OFFSET_FETCH, 7), every)))
    assert [entry["name"] for entry in answer["topics"]] == [topic]


def test_a_pattern_that_takes_long_is_not_compared(stage) -> None:
    """A stranger gets the broker's answer; a member learns that the pattern is not read."""
    topic, _ = stage.topic("pattern", 1)
    with RawClient(stage.proxy.bootstrap, stage.ca) as client:
        client.login(stage.login("PLAIN", "alice"))
        assert client.fetch_codes(topic, 12, range(8)) == {0}, "keylane knows of its lanes now"
    asked = {
        "group_id": f"modern-{uuid.uuid4()}",
        "member_id": str(uuid.uuid4()),
        "member_epoch": 0,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": 60_000,
        "subscribed_topic_names": [],
        "subscribed_topic_regex": r"(?i)" + r"\pL" * 340,
        "server_assignor": None,
        "topic_partitions": [],
    }
    found = {}
    for user in ("dave", "alice"):
        for name, bootstrap in (("proxied", stage.proxy.bootstrap), ("direct", stage.direct)):
            with RawClient(bootstrap, stage.ca) as client:
                client.login(stage.login("PLAIN", user))
                found[user, name] = client.codes(HEARTBEAT_848, 1, asked)

    assert found["dave", "proxied"] == found["dave", "direct"] == {GROUP_DENIED}
    assert found["alice", "proxied"] == {128}
