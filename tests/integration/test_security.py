"""A broker with TLS, SASL and ACLs behind keylane with TLS: who gets in, and who gets what."""

from __future__ import annotations

import os
import re
import shutil
import signal
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka.admin import AdminClient

from keylane.embedded import EmbeddedKafka
from keylane.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    read_fetch_response,
    write_fetch_request,
)
from tests.integration.certificates import Authority
from tests.integration.conftest import make_topic_factory
from tests.integration.harness import produce
from tests.integration.keylane_process import KeylaneProcess
from tests.integration.raw import RawClient
from tests.integration.secured import (
    MECHANISMS,
    PASSWORDS,
    Login,
    Read,
    Reader,
    allow,
    broker_properties,
    make_confluent,
    make_users,
    poll_value,
    read_aiokafka,
    read_confluent,
    read_java,
    revoke,
    rule,
    token_of,
)
from tests.reference.batches import Batch, Record, write_batch

FETCHES = range(4, 18)
KEYS = ("ann", "ben", "cid", "dot", "eve", "fay")
OWN_TOPICS = ("__individual_commit_offsets", "__keylane_settings")
SERVICE_RULES = (
    rule("keylane", "READ"),
    *(
        rule("keylane", operation, name=name)
        for name in OWN_TOPICS
        for operation in ("CREATE", "WRITE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS")
    ),
    rule("keylane", "DESCRIBE_CONFIGS", name="__consumer_offsets"),
    rule("keylane", "DESCRIBE", "GROUP", "keylane"),
)
"""All that keylane's own principal needs; docs/security.md lists the same."""


class Stage:
    """The broker, an authority, and keylane in front of the broker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder / "ca")
        self.ca = self.authority.ca
        self.certificate = self.authority.issue("keylane")
        self.expired = self.authority.issue("expired", expired=True)
        keystore = self.authority.issue("broker")
        self.password_file = folder / "keylane-password"
        self.password_file.write_text(PASSWORDS["keylane"] + "\n")
        self.kafka = EmbeddedKafka(
            folder / "kafka",
            properties=broker_properties(self.authority, keystore, self.expired),
            listeners=dict.fromkeys(("SECURED", "MUTUAL", "EXPIRED"), "SASL_SSL"),
        )
        self.proxies: list[KeylaneProcess] = []

    def start(self) -> None:
        """Start the broker with users and ACLs, and the proxy that most tests share."""
        self.kafka.start()
        self.admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        make_users(self.admin)
        allow(self.admin, *SERVICE_RULES)
        for user in ("alice", "bob", "carol"):
            allow(self.admin, rule(user, "READ", "GROUP"))
        allow(self.admin, rule("alice", "READ"), rule("alice", "WRITE"), rule("bob", "DESCRIBE"))
        self.direct = self.kafka.bootstrap_of("SECURED")
        self.proxy = self.start_keylane(self.direct)

    def start_keylane(self, upstream: str, *settings: str) -> KeylaneProcess:
        """keylane with TLS on both sides and a login of its own, by the mechanism that expires."""
        common = (
            f"tls_certificate={self.certificate}",
            "upstream_tls=true",
            f"upstream_ca={self.ca}",
            "login_mechanism=SCRAM-SHA-512",
            "login_username=keylane",
            f"login_password_file={self.password_file}",
            "authorization_ttl_s=1",
        )
        args = [part for setting in (*common, *settings) for part in ("--set", setting)]
        log_path = self.folder / f"keylane-{len(self.proxies)}.log"
        proxy = KeylaneProcess(upstream, ["lanes4-*=4"], log_path=log_path, args=args)
        self.proxies.append(proxy)
        return proxy.start()

    def topic(self, test_name: str, rounds: int = 3) -> tuple[str, list[str]]:
        """A topic of two partitions and eight lanes, and the values in it."""
        name = make_topic_factory(self.admin, test_name)("lanes4", partitions=2)
        return name, produce(self.kafka.bootstrap, name, KEYS, rounds)

    def metric(self, name: str) -> float:
        """A number of the shared keylane, as it stands."""
        with urllib.request.urlopen(f"http://{self.proxy.control}/metrics") as answer:
            text = answer.read().decode()
        return float(re.findall(rf"^{name} (\S+)$", text, re.MULTILINE)[0])

    def login(self, mechanism: str, user: str, **changes: Any) -> Login:
        """See `Login.of`."""
        return Login.of(mechanism, user, self.ca, **changes)

    def stop(self) -> None:
        """End everything."""
        for proxy in self.proxies:
            proxy.stop()
        self.kafka.stop()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One secured broker and one keylane for all tests of this file."""
    built = Stage(tmp_path_factory.mktemp("secured"))
    try:
        built.start()
        yield built
    finally:
        built.stop()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_mechanism_works_with_every_client(stage, mechanism) -> None:
    """Java, librdkafka and aiokafka log in through keylane live and read all lanes of a topic."""
    topic, values = stage.topic(f"mechanism-{mechanism}")
    login = stage.login(mechanism, "alice")
    readers: dict[str, Reader] = {
        "confluent": read_confluent,
        "aiokafka": read_aiokafka,
        "java": partial(read_java, folder=stage.folder),
    }

    found = {
        name: reader(stage.proxy.bootstrap, topic, f"{name}-{mechanism}", login, len(values))
        for name, reader in readers.items()
    }

    for name, read in found.items():
        assert (sorted(read.values), read.error) == (sorted(values), ""), name


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_refused_login_ends_as_it_does_direct(stage, mechanism) -> None:
    """A wrong password and an expired token: the same codes, texts and exceptions as direct."""
    topic, _ = stage.topic(f"refused-{mechanism}", 1)
    wrong = {"password": "wrong", "token": token_of("alice", lifetime_s=-60)}
    login = stage.login(mechanism, "alice", **wrong)

    def raw(bootstrap: str) -> Any:
        with RawClient(bootstrap, stage.ca) as client:
            answers = client.login(login)
            told = [(int(each.error_code), each.error_message) for each in answers[1:]]
            return told, answers[-1].auth_bytes, client.is_closed()

    def confluent(bootstrap: str) -> Read:
        return read_confluent(bootstrap, topic, "g", login, 1)

    def aiokafka(bootstrap: str) -> Read:
        return read_aiokafka(bootstrap, topic, "g", login, 1)

    def java(bootstrap: str) -> Read:
        return read_java(bootstrap, topic, "g", login, 1, folder=stage.folder)

    asked = [raw, confluent]
    # aiokafka takes the reason of a refused token for success, Java's unsecured login makes its
    # own tokens; two mechanisms of each are enough of Java, which takes long to start.
    asked += [aiokafka] if mechanism != "OAUTHBEARER" else []
    asked += [java] if mechanism in ("PLAIN", "SCRAM-SHA-512") else []
    for ask in asked:
        proxied, direct = ask(stage.proxy.bootstrap), ask(stage.direct)

        assert proxied == direct
        assert direct[0][-1][0] == 58 if ask is raw else direct.error and not direct.values


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
    """Clients refuse it as the broker's own; a renewed one serves at once, nobody is dropped."""
    topic, values = stage.topic("expired", 1)
    login = stage.login("PLAIN", "alice")
    with RawClient(stage.proxy.bootstrap, stage.ca) as early:
        early.login(login)
        try:
            shutil.copy(stage.expired, stage.folder / "next.pem")
            (stage.folder / "next.pem").replace(stage.certificate)
            stage.proxy.wait_for_log("certificate read again key=tls_certificate")

            refusals = read_expired(stage, topic, login)
        finally:
            count = stage.proxy.log.count("certificate read again")
            stage.authority.issue("keylane")
            os.kill(stage.proxy.pid, signal.SIGHUP)
            stage.proxy.wait_for_log("certificate read again", count=count + 1)
        for proxied, direct in refusals:
            assert proxied == direct
            assert direct.error and not direct.values
        renewed = read_confluent(stage.proxy.bootstrap, topic, "late", login, len(values))
        assert sorted(renewed.values) == sorted(values)
        assert fetch_codes(early, topic, 12, [0]) == {0}
    with RawClient(stage.proxy.bootstrap, stage.ca) as late:
        assert late.certificate["serialNumber"] != early.certificate["serialNumber"]


def read_expired(stage: Stage, topic: str, login: Login) -> list[tuple[Read, Read]]:
    """What each client gets of keylane, and of the broker's listener that has expired."""
    direct = stage.kafka.bootstrap_of("EXPIRED")
    readers: list[Reader] = [
        read_confluent,
        read_aiokafka,
        partial(read_java, folder=stage.folder),
    ]
    return [
        (
            reader(stage.proxy.bootstrap, topic, "g", login, 1),
            reader(direct, topic, "g", login, 1),
        )
        for reader in readers
    ]


def fetch_codes(client: RawClient, topic: str, version: int, lanes: Sequence[int]) -> set[int]:
    """Fetch lanes from their start; the error codes that came."""
    topic_id = client.topic_id(topic) if version >= 13 else None
    entries = tuple(FetchPartition(lane, -1, 0, -1, -1, 1 << 20) for lane in lanes)
    request = FetchRequest(
        version=version,
        max_wait_ms=200,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        topics=(
            FetchTopic(name=None if topic_id else topic, topic_id=topic_id, partitions=entries),
        ),
    )
    body = client.call(1, version, write_fetch_request(request))
    answer = read_fetch_response(body, 0, version)
    return {entry.error_code for found in answer.topics for entry in found.partitions}


def fetch_for_ever(client: RawClient, topic: str) -> None:
    """Fetch until the connection ends."""
    while True:
        fetch_codes(client, topic, 12, range(8))


def holds_any(data: bytes, values: Sequence[str]) -> bool:
    """Whether a value of a record is in the bytes; lanes are sent uncompressed."""
    return any(value.encode() in data for value in values)


def test_who_may_not_read_gets_no_byte(stage) -> None:
    """Warm cache, every version of Fetch: only refusals, and no value anywhere in the bytes."""
    topic, values = stage.topic("no-byte", 20)
    with RawClient(stage.proxy.bootstrap, stage.ca) as alice:
        alice.login(stage.login("PLAIN", "alice"))
        assert fetch_codes(alice, topic, 12, [0, 1]) == {0}  # the other lanes' records wait now
        assert stage.metric("keylane_cache_bytes") > 0
        for user in ("bob", "carol"):
            with RawClient(stage.proxy.bootstrap, stage.ca) as client:
                client.login(stage.login("SCRAM-SHA-256", user))
                client.known[topic] = alice.topic_id(topic)

                codes = {
                    version: fetch_codes(client, topic, version, range(8)) for version in FETCHES
                }

                assert codes == {version: {29} for version in FETCHES}
                assert not holds_any(client.received, values)
        hits = stage.metric("keylane_cache_hits_total")
        assert fetch_codes(alice, topic, 17, range(8)) == {0}
        assert stage.metric("keylane_cache_hits_total") > hits
        assert holds_any(alice.received, values)


def test_a_revoked_right_ends(stage) -> None:
    """A reader that loses READ gets nothing once it is refused, on no connection and no lane."""
    topic, values = stage.topic("revoked", 20)
    right = rule("carol", "READ", name=topic)
    allow(stage.admin, right)
    with RawClient(stage.proxy.bootstrap, stage.ca) as carol:
        carol.login(stage.login("SCRAM-SHA-256", "carol"))
        topic_id = carol.topic_id(topic)
        assert fetch_codes(carol, topic, 12, [0]) == {0}
        assert holds_any(carol.received, values)
        revoke(stage.admin, right)
        while fetch_codes(carol, topic, 12, [0]) == {0}:
            pass  # until the broker knows, and authorization_ttl_s is over
        carol.received = b""
        with RawClient(stage.proxy.bootstrap, stage.ca) as again:
            again.login(stage.login("PLAIN", "carol"))
            again.known[topic] = topic_id

            codes = [fetch_codes(each, topic, 17, range(8)) for each in (carol, again)]

            assert codes == [{29}, {29}]
            assert not holds_any(carol.received + again.received, values)


@pytest.mark.parametrize("user", ["alice", "bob", "carol"])
def test_lane_apis_obey_the_clients_own_rights(stage, user) -> None:
    """Each API that names lanes answers the codes that the broker gives this user direct."""
    topic, _ = stage.topic(f"rights-{user}", 1)
    found: list[dict[str, set[int]]] = []
    for bootstrap in (stage.proxy.bootstrap, stage.direct):
        with RawClient(bootstrap, stage.ca) as client:
            client.login(stage.login("PLAIN", user))

            found.append({name: client.codes(*ask) for name, ask in questions(topic, user)})

    assert found[0] == found[1]
    assert (found[1]["Produce"] == {0}) == (user == "alice")


def questions(topic: str, user: str) -> list[tuple[str, tuple[int, int, dict[str, Any]]]]:
    """Requests for partition 0, which as a lane index is its first lane, by name of the API."""

    def of(partition: dict[str, Any], *, index: str = "partition_index", name: str = "name") -> Any:
        return [{name: topic, "partitions": [{index: 0, **partition}]}]

    commit = {"committed_offset": 1, "committed_metadata": "", "committed_leader_epoch": -1}
    member = {"group_id": f"rights-{user}", "generation_id_or_member_epoch": -1, "member_id": ""}
    group = [{"group_id": f"rights-{user}", "topics": [{"name": topic, "partition_indexes": [0]}]}]
    batch = write_batch(Batch(0, (Record(0, b"k", user.encode()),)))
    return [
        ("ListOffsets", (2, 7, {"replica_id": -1, "topics": of({"timestamp": -1})})),
        ("ListOffsets again", (2, 7, {"replica_id": -1, "topics": of({"timestamp": -2})})),
        (
            "OffsetForLeaderEpoch",
            (
                23,
                4,
                {
                    "replica_id": -1,
                    "topics": of(
                        {"leader_epoch": 0, "current_leader_epoch": -1},
                        index="partition",
                        name="topic",
                    ),
                },
            ),
        ),
        ("OffsetCommit", (8, 8, {**member, "topics": of(commit)})),
        ("OffsetFetch", (9, 8, {"groups": group})),
        (
            "Produce",
            (
                0,
                9,
                {
                    "acks": -1,
                    "timeout": 10_000,
                    "topic_data": [
                        {"name": topic, "partition_data": [{"index": 0, "records": batch}]}
                    ],
                },
            ),
        ),
        ("OffsetDelete", (47, 0, {"group_id": f"rights-{user}", "topics": of({})})),
    ]


def test_logins_that_end(stage) -> None:
    """Who logs in again in time (KIP-368) goes on with lanes, on the same connection.

    A client that does not is closed, although lanes are served from memory; keylane itself does.
    """
    topic, values = stage.topic("reauth", 2)
    login = stage.login("SCRAM-SHA-512", "alice")
    opened_errors = stage.metric("keylane_upstream_errors_total")
    with (
        RawClient(stage.proxy.bootstrap, stage.ca) as careful,
        RawClient(stage.proxy.bootstrap, stage.ca) as careless,
    ):
        lifetime_s = careful.login(login)[-1].session_lifetime.total_seconds()
        careless.login(login)
        consumer, errors = make_confluent(stage.proxy.bootstrap, "reauth", login)
        consumer.subscribe([topic])
        seen = [poll_value(consumer) for _ in values]
        opened = stage.metric("keylane_sessions_opened_total")
        renewed_s = time.monotonic()
        until_s = renewed_s + 2.5 * lifetime_s
        number = 2
        while time.monotonic() < until_s:
            values += produce(stage.kafka.bootstrap, topic, KEYS, 1, first=number)
            number += 1
            seen += [poll_value(consumer) for _ in KEYS]
            if time.monotonic() > renewed_s + lifetime_s / 2:  # Kafka refuses a second in 1 s
                assert careful.login(login)[-1].error_code == 0
                renewed_s = time.monotonic()
            assert fetch_codes(careful, topic, 12, range(8)) == {0}
        with pytest.raises(ConnectionError):
            fetch_for_ever(careless, topic)
        consumer.close()

        assert (sorted(seen), errors) == (sorted(values), [])
        assert stage.metric("keylane_sessions_opened_total") == opened
        assert stage.metric("keylane_upstream_errors_total") == opened_errors


def test_mutual_tls_on_both_sides(stage) -> None:
    """A client needs a certificate to get in and a login to go on, as it would direct."""
    topic, values = stage.topic("mutual", 1)
    own = stage.authority.issue("keylane-client")
    alices = stage.authority.issue("alice")
    token = stage.folder / "token"
    token.write_text("control-token-0123456789")
    settings = (
        *(f"tls_client_ca={stage.ca}", f"upstream_certificate={own}"),
        *("control_tls=true", f"control_token_file={token}"),
    )
    proxy = stage.start_keylane(stage.kafka.bootstrap_of("MUTUAL"), *settings)

    refused = pytest.raises((ssl.SSLError, ConnectionError))
    with refused, RawClient(proxy.bootstrap, stage.ca) as client:
        client.login(stage.login("PLAIN", "alice"))
    for bootstrap in (proxy.bootstrap, stage.kafka.bootstrap_of("MUTUAL")):
        with RawClient(bootstrap, stage.ca, alices) as client, pytest.raises(ConnectionError):
            client.topic_id(topic)
    with RawClient(proxy.bootstrap, stage.ca, alices) as client:
        client.login(stage.login("SCRAM-SHA-256", "alice"))
        assert fetch_codes(client, topic, 17, range(8)) == {0}
        assert holds_any(client.received, values)
    asked = urllib.request.Request(f"https://{proxy.control}/metrics")
    trust = ssl.create_default_context(cafile=str(stage.ca))
    with pytest.raises(urllib.error.HTTPError, match="401") as refused_request:
        urllib.request.urlopen(asked, context=trust)  # noqa: S310 - our own
    refused_request.value.close()
    asked.add_header("Authorization", f"Bearer {token.read_text()}")
    with urllib.request.urlopen(asked, context=trust) as answer:  # noqa: S310 - our own
        assert b"keylane_sessions" in answer.read()


def test_no_secret_is_told(stage) -> None:
    """Neither log, metrics nor command line of keylane hold a password, a token or a record."""
    topic, values = stage.topic("secrets", 1)
    good, bad = stage.login("PLAIN", "alice"), stage.login("OAUTHBEARER", "bob", token="x.y.z")
    read_confluent(stage.proxy.bootstrap, topic, "secrets", good, len(values))
    with RawClient(stage.proxy.bootstrap, stage.ca) as client:
        client.login(bad)
    with urllib.request.urlopen(f"http://{stage.proxy.control}/metrics") as answer:
        texts = [answer.read().decode()]
    texts += [proxy.log for proxy in stage.proxies]
    texts += [" ".join(psutil.Process(proxy.pid).cmdline()) for proxy in stage.proxies]

    told = "\n".join(texts)

    assert "session_id=" in told, "there is a log"
    assert not [secret for secret in PASSWORDS.values() if secret in told]
    assert "x.y.z" not in told and "Bearer" not in told
    assert not holds_any(told.encode(), values)
