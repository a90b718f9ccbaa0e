"""Ends of logins, certificates, rights and room behind keylane: as direct, within the bounds."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import time
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Producer
from kio.index import load_request_schema

from keylane.config.node import split_address
from keylane.embedded import run_java_tool, start_java_tool
from tests.integration.raw import RawClient
from tests.integration.secured import (
    MECHANISMS,
    Login,
    Read,
    Reader,
    allow,
    java_properties,
    make_confluent,
    poll_value,
    read_aiokafka,
    read_confluent,
    read_java,
    revoke,
    rule,
    write_properties,
)
from tests.integration.secured_stage import KEYS, Stage
from tests.transcript.entities import build

TTL_S = 1.0
"""`authorization_ttl_s` of the stage."""
READ_AGAIN = "certificate read again key=tls_certificate"
RECORDS_MS = 30_000
"""Time for a first record: keylane connects to the broker, and asks it for the client's rights."""


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_refused_login_ends_as_it_does_direct(stage, mechanism) -> None:
    """A wrong password and an expired token: the same codes, texts and exceptions as direct."""
    topic, _ = stage.topic(f"refused-{mechanism}", 1)
    login = stage.login(mechanism, "alice", password="Wrong-one-1", lifetime_s=-60.0)

    def raw(bootstrap: str) -> Any:
        with RawClient(bootstrap, stage.ca) as client:
            answers = client.login(login)
            reported = [(int(each.error_code), each.error_message) for each in answers[1:]]
            return reported, answers[-1].auth_bytes, client.is_closed()

    assert raw(stage.proxy.bootstrap) == raw(stage.direct)
    assert raw(stage.direct)[0][-1][0] == 58
    for proxied, direct in read_pairs(stage, (stage.proxy.bootstrap, stage.direct), topic, login):
        assert proxied == direct
        assert direct.error and not direct.values


def read_pairs(
    stage: Stage, bootstraps: tuple[str, str], topic: str, login: Login
) -> list[tuple[Read, Read]]:
    """Return what each client gets through keylane, and direct."""
    readers: list[Reader] = [
        read_confluent,
        read_aiokafka,
        partial(read_java, folder=stage.folder),
    ]
    proxied, direct = bootstraps
    return [
        (reader(proxied, topic, "g", login, 1), reader(direct, topic, "g", login, 1))
        for reader in readers
    ]


def test_an_unknown_mechanism_is_refused_as_direct(stage) -> None:
    """The same code and the broker's own list of mechanisms."""
    login = stage.login("GSSAPI", "alice")
    answers = []
    for bootstrap in (stage.proxy.bootstrap, stage.direct):
        with RawClient(bootstrap, stage.ca) as client:
            answers.append(client.login(login))

    assert answers[0] == answers[1]
    assert int(answers[0][0].error_code) == 33


def test_an_expired_certificate_and_its_renewal(stage) -> None:
    """Clients refuse it as the broker's own; a renewed one serves at once, no client is dropped."""
    topic, values = stage.topic("expired", 1)
    login = stage.login("PLAIN", "alice")
    count = stage.proxy.log.count(READ_AGAIN)
    with RawClient(stage.proxy.bootstrap, stage.ca) as early:
        early.login(login)
        try:
            shutil.copy(stage.expired, stage.folder / "next.pem")
            (stage.folder / "next.pem").replace(stage.certificate)
            stage.proxy.wait_for_log(READ_AGAIN, count=count + 1)

            refusals = read_pairs(
                stage, (stage.proxy.bootstrap, stage.kafka.bootstrap_of("EXPIRED")), topic, login
            )
        finally:
            count = stage.proxy.log.count(READ_AGAIN)
            stage.authority.issue("keylane")
            os.kill(stage.proxy.pid, signal.SIGHUP)
            stage.proxy.wait_for_log(READ_AGAIN, count=count + 1)
        for proxied, direct in refusals:
            assert proxied == direct
            assert direct.error and not direct.values
        renewed = read_confluent(stage.proxy.bootstrap, topic, "late", login, len(values))
        assert sorted(renewed.values) == sorted(values)
        assert early.fetch_codes(topic, 12, [0]) == {0}
    with RawClient(stage.proxy.bootstrap, stage.ca) as late:
        assert late.certificate["serialNumber"] != early.certificate["serialNumber"]


def test_an_expired_client_certificate(stage) -> None:
    """Each client gets a broker's error and gives up at once; keylane logs the certificate."""
    topic, _ = stage.topic("client-certificate", 1)
    old = stage.authority.issue("alice-of-old", expired=True)
    login = stage.login("PLAIN", "alice", certificate=old)
    failed = stage.metric("keylane_tls_handshakes_failed_total", stage.strict)
    config = write_properties(stage.folder / "old.properties", java_properties(login))

    for bootstrap in (stage.strict.bootstrap, stage.kafka.bootstrap_of("MUTUAL")):
        reported = (
            read_confluent(bootstrap, topic, "g", login, 1),
            read_aiokafka(bootstrap, topic, "g", login, 1),
        )
        java = run_java_tool(
            "kafka-console-consumer",
            *("--bootstrap-server", bootstrap, "--topic", topic, "--command-config", config),
            *("--max-messages", "1", "--timeout-ms", "60000"),
            check=False,
        )

        # OpenSSL says what is wrong with it, Java does not.
        assert reported[0].error in {"alert certificate expired", "alert certificate unknown"}
        assert reported[1].error == "KafkaConnectionError"
        assert "SslAuthenticationException" in java.stderr
        assert not reported[0].values + reported[1].values + java.stdout.split()
    assert stage.metric("keylane_tls_handshakes_failed_total", stage.strict) > failed
    stage.strict.wait_for_log("reason=certificate has expired")


def test_a_session_begins_after_the_handshake(stage) -> None:
    """A peer that is silent or speaks no TLS is no session; it is counted and logged."""
    opened = stage.metric("keylane_sessions_opened_total")
    failed = stage.metric("keylane_tls_handshakes_failed_total")
    address = split_address(stage.proxy.bootstrap)
    with socket.create_connection(address) as silent, socket.create_connection(address) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        while plain.recv(1024):
            pass  # an alert, and the end
        host, port = plain.getsockname()
        stage.proxy.wait_for_log(f"TLS handshake failed peer={host}:{port} reason=http request")
        with RawClient(stage.proxy.bootstrap, stage.ca) as client:
            client.login(stage.login("PLAIN", "alice"))

            assert stage.metric("keylane_sessions_opened_total") == opened + 1
            # A client of an earlier test may have left in its handshake.
            assert stage.metric("keylane_tls_handshakes_failed_total") > failed
        assert silent.getsockname()[1] != port


def test_a_revoked_right_ends(stage) -> None:
    """From `authorization_ttl_s` after the broker knows: with a warm cache, and in a long poll."""
    topic, values = stage.topic("revoked", 20)
    right = rule("carol", "READ", name=topic)
    allow(stage.admin, right)
    with (
        RawClient(stage.proxy.bootstrap, stage.ca) as carol,
        RawClient(stage.proxy.bootstrap, stage.ca) as waiting,
        RawClient(stage.direct, stage.ca) as direct,
    ):
        for client in (carol, waiting, direct):
            client.login(stage.login("SCRAM-SHA-256", "carol"))
        while direct.fetch_codes(topic, 12, [0]) != {0}:
            pass  # until the broker knows
        topic_id = carol.topic_id(topic)
        # The other lanes' records wait then.
        assert carol.fetch_codes(topic, 12, [0, 1], max_wait_ms=RECORDS_MS) == {0}
        assert carol.holds_any(values)
        waiting.ask_lanes(
            topic, 12, [0, 2, 4, 6], offset=log_end(waiting, topic), max_wait_ms=60_000
        )
        revoke(stage.admin, right)
        while direct.fetch_codes(topic, 12, [0]) == {0}:
            pass  # until the broker knows
        known_s, carol.received = time.monotonic(), b""
        asked_s = known_s
        while asked_s <= known_s + TTL_S:
            asked_s = time.monotonic()
            codes = carol.fetch_codes(topic, 12, range(8))
        assert codes == {29}
        carol.received = waiting.received = b""
        late = stage.produce(topic, 1, first=100)

        assert waiting.lane_codes(12) == {29}
        with RawClient(stage.proxy.bootstrap, stage.ca) as again:
            again.login(stage.login("PLAIN", "carol"))
            again.known[topic] = carol.known[topic] = topic_id
            for client in (carol, again):
                assert client.fetch_codes(topic, 17, range(8)) == {29}
            for client in (carol, waiting, again):
                assert not client.holds_any(values + late)


def test_a_java_member_whose_right_is_revoked(stage, capfd) -> None:
    """It ends with the exception of direct Kafka, and has seen nothing of what came later."""
    topic, values = stage.topic("java-revoked", 2)
    right = rule("carol", "READ", name=topic)
    allow(stage.admin, right)
    login = stage.login("SCRAM-SHA-256", "carol")
    config = write_properties(stage.folder / "revoked.properties", java_properties(login))
    process = start_java_tool(
        "kafka-console-consumer",
        *("--bootstrap-server", stage.proxy.bootstrap, "--topic", topic, "--group", "revoked"),
        *("--command-config", config),
    )
    with process, RawClient(stage.proxy.bootstrap, stage.ca) as judge:
        assert process.stdout is not None
        judge.login(login)
        seen = [process.stdout.readline().strip() for _ in values]
        revoke(stage.admin, right)
        while judge.fetch_codes(topic, 12, [0]) == {0}:
            pass  # until the broker knows, and this connection is refused
        known_s = time.monotonic()
        while time.monotonic() <= known_s + TTL_S:
            judge.fetch_codes(topic, 12, [0])
        late = stage.produce(topic, 1, first=100)

        rest = process.stdout.read()

    assert sorted(seen) == sorted(values)
    assert not set(rest.split()) & set(late)
    assert "TopicAuthorizationException" in capfd.readouterr().err


@pytest.mark.long
def test_logins_that_end(stage) -> None:
    """A client that logs in again in time (KIP-368) goes on with lanes, on the same connection.

    A client that does not is closed, although lanes are served from memory; keylane itself does.
    """
    (topic, values), proxy = stage.topic("reauth", 2), stage.renewing
    login = stage.login("SCRAM-SHA-512", "alice")
    opened_errors = stage.metric("keylane_upstream_errors_total", proxy)
    with (
        RawClient(proxy.bootstrap, stage.ca) as careful,
        RawClient(proxy.bootstrap, stage.ca) as careless,
    ):
        lifetime_s = careful.login(login)[-1].session_lifetime.total_seconds()
        careless.login(login)
        consumer, errors = make_confluent(proxy.bootstrap, "reauth", login)
        consumer.subscribe([topic])
        seen = [poll_value(consumer) for _ in values]
        opened = stage.metric("keylane_sessions_opened_total", proxy)
        renewed_s = time.monotonic()
        until_s = renewed_s + 2.5 * lifetime_s
        number = 2
        while time.monotonic() < until_s:
            values += stage.produce(topic, 1, first=number)
            number += 1
            seen += [poll_value(consumer) for _ in KEYS]
            if time.monotonic() > renewed_s + lifetime_s / 4:  # Kafka refuses a second in 1 s
                renewed_s = time.monotonic()
                assert careful.login(login)[-1].error_code == 0
            assert careful.fetch_codes(topic, 12, range(8)) == {0}
        with pytest.raises(ConnectionError):
            careless.fetch_until_closed(topic)
        consumer.close()

        assert (sorted(seen), errors) == (sorted(values), [])
        assert stage.metric("keylane_sessions_opened_total", proxy) == opened
        assert stage.metric("keylane_upstream_errors_total", proxy) == opened_errors


def test_room_of_a_principal(stage) -> None:
    """Connections, groups and bytes that wait: one too many is refused, others are not touched."""
    topic, _ = stage.topic("room", 1)
    mine = stage.authority.issue("roomy")

    def connect(user: str, **options: int) -> RawClient:
        client = RawClient(stage.strict.bootstrap, stage.ca, mine, **options)
        try:
            client.login(stage.login("PLAIN", user))
        except ConnectionError:
            client.__exit__()
            raise
        return client

    def commit(client: RawClient, group: str) -> set[int]:
        member = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": ""}
        entry = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
        topics = [{"name": topic, "partitions": [{**entry, "committed_leader_epoch": -1}]}]
        return client.codes(8, 8, {**member, "topics": topics})

    wait_for_room(stage)
    with connect("alice") as first, connect("alice") as second, connect("alice"):
        with pytest.raises(ConnectionError):
            connect("alice")
        with connect("bob") as bob:
            assert bob.topic_id(topic)
        found = [
            commit(each, group) for each, group in zip((first, second, first), "aba", strict=True)
        ]
        assert found == [{0}, {44}, {0}]
    wait_for_room(stage)
    with connect("alice") as again:
        assert commit(again, "b") == {44}, "a new connection does not begin anew"


def test_answers_that_are_not_read(stage) -> None:
    """A principal whose connections hold too much loses the largest; another goes on."""
    topic, other = stage.topic("slow", 0)[0], stage.topic("quick", 1)[0]
    producer, noise = Producer({"bootstrap.servers": stage.kafka.bootstrap}), random.Random(1)
    for number in range(120):
        producer.produce(topic, noise.randbytes(200_000), key=str(number))
    assert producer.flush(60) == 0
    mine = stage.authority.issue("slow")
    wait_for_room(stage)
    with (
        RawClient(stage.strict.bootstrap, stage.ca, mine, receive_bytes=4096) as slow,
        RawClient(stage.strict.bootstrap, stage.ca, mine) as quick,
    ):
        for client in (slow, quick):
            client.login(stage.login("PLAIN", "alice"))
        for _ in range(8):  # the system takes some MiB
            slow.ask_lanes(topic, 12, range(8), min_bytes=6 << 20, max_wait_ms=20_000)
        stage.strict.wait_for_log("buffered_bytes_per_principal_max 1048576 is reached")

        assert quick.fetch_codes(other, 12, range(8)) == {0}
        with pytest.raises(ConnectionError):
            answers_of(slow, 8)
    assert stage.metric("keylane_sessions_heavy_total", stage.strict) == 1


def wait_for_room(stage: Stage) -> None:
    """Wait until the strict keylane knows that the connections of before are gone."""
    while stage.metric("keylane_sessions", stage.strict):
        pass


def answers_of(client: RawClient, count: int) -> list[set[int]]:
    """The codes of so many answers to fetches. Raises: ConnectionError."""
    return [client.lane_codes(12) for _ in range(count)]


def log_end(client: RawClient, topic: str) -> int:
    """The end of the topic's first partition."""
    topics = [{"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
    schema = load_request_schema(2, 7)
    answer = client.ask(build(schema, {"replica_id": -1, "isolation_level": 0, "topics": topics}))
    return int(answer.topics[0].partitions[0].offset)
