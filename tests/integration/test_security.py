"""A broker with TLS, SASL and ACLs behind keylane with TLS: rights of clients to lanes."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from functools import partial
from typing import Any

import pytest
from kio.schema.init_producer_id.v4.request import InitProducerIdRequest

from tests.integration.raw import RawClient
from tests.integration.secured import (
    MECHANISMS,
    SECRETS,
    USERS,
    Reader,
    read_aiokafka,
    read_confluent,
    read_java,
)
from tests.reference.batches import Batch, Record, write_batch
from tests.transcript.entities import build

FETCHES = range(4, 18)
RECORDS_MS = 30_000
"""Time for a first record: keylane connects to the broker, and asks it for the client's rights."""
PASSING = {14, 15, 16, 51, 88}
"""Codes on which clients ask again: a coordinator loads or moves, a transaction is being ended."""


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


def test_a_client_without_read_gets_no_byte(stage) -> None:
    """Refusals only, and no value in any byte, with a warm cache and every version of Fetch."""
    topic, values = stage.topic("no-byte", 20)
    with RawClient(stage.proxy.bootstrap, stage.ca) as alice:
        alice.login(stage.login("PLAIN", "alice"))
        # The other lanes' records wait then.
        assert alice.fetch_codes(topic, 12, [0, 1], max_wait_ms=RECORDS_MS) == {0}
        assert stage.metric("keylane_cache_bytes") > 0
        for user in ("bob", "carol"):
            with RawClient(stage.proxy.bootstrap, stage.ca) as client:
                client.login(stage.login("SCRAM-SHA-256", user))
                client.known[topic] = alice.topic_id(topic)

                codes = {
                    version: client.fetch_codes(topic, version, range(8)) for version in FETCHES
                }

                assert codes == {version: {29} for version in FETCHES}
                assert not client.holds_any(values)
        hits = stage.metric("keylane_cache_hits_total")
        assert alice.fetch_codes(topic, 17, range(8)) == {0}
        assert stage.metric("keylane_cache_hits_total") > hits
        assert alice.holds_any(values)


@pytest.mark.parametrize("user", USERS)
def test_lane_apis_obey_the_clients_own_rights(stage, user) -> None:
    """Each API that names lanes answers the codes that the broker gives this user direct."""
    topic, _ = stage.topic(f"rights-{user}", 1)
    found: list[dict[str, set[int]]] = []
    for bootstrap in (stage.proxy.bootstrap, stage.direct):
        with RawClient(bootstrap, stage.ca) as client:
            client.login(stage.login("PLAIN", user))

            found.append({name: settled(client, *ask) for name, ask in questions(topic, user)})

    assert found[0] == found[1]
    assert (found[1]["Produce"] == {0}) == (user in {"alice", "dave"})
    assert (found[1]["OffsetCommit"] == {0}) == (user == "alice")


def settled(client: RawClient, api_key: int, version: int, values: dict[str, Any]) -> set[int]:
    """Ask as clients do, until the answer does not say to ask again; its error codes."""
    while (codes := client.codes(api_key, version, values)) & PASSING:
        pass
    return codes


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


@pytest.mark.parametrize("user", USERS)
def test_offsets_in_a_transaction_obey_the_clients_own_rights(stage, user) -> None:
    """READ on the topic, READ on the group, WRITE on the transactional id: each as direct."""
    topic, _ = stage.topic(f"transaction-{user}", 1)
    found = []
    for bootstrap in (stage.proxy.bootstrap, stage.direct):
        with RawClient(bootstrap, stage.ca) as client:
            client.login(stage.login("PLAIN", user))

            found.append(commit_in_transactions(client, topic, user))

    assert found[0][f"{user}s-own"] == found[1][f"{user}s-own"]
    # Without the group a producer cannot even name it; TxnOffsetCommit is asked all the same.
    lacking = {"alice": (0, 0), "bob": (0, 29), "carol": (0, 29), "dave": (30, 30)}
    assert found[1][f"{user}s-own"] == tuple({code} for code in lacking[user])
    # Of two rights that are missing keylane names the topic's, Kafka the transactional id's.
    assert found[1]["somebody-elses"] == ({53}, {53})
    assert found[0]["somebody-elses"] in [({53}, {53}), ({53}, {lacking[user][1]})]


def commit_in_transactions(
    client: RawClient, topic: str, user: str
) -> dict[str, tuple[set[int], set[int]]]:
    """Codes of AddOffsetsToTxn and TxnOffsetCommit, in the user's own transactions and another."""
    own = f"{user}s-own"
    begun = {"transactional_id": own, "transaction_timeout": 60_000, "producer_id": -1}
    for key, key_type in ((own, 1), (f"transaction-{user}", 0)):
        found_at = {"key_type": key_type, "coordinator_keys": [key]}
        while client.codes(10, 4, found_at) == {15}:
            pass  # until the broker has made its topic, as clients do
    while True:
        answer = client.ask(build(InitProducerIdRequest, {**begun, "producer_epoch": -1}))
        if answer.error_code not in {14, 15, 16, 51}:  # 51: the one before is being ended
            break
    found = {}
    for name in (own, "somebody-elses"):
        writer = {
            "transactional_id": name,
            "producer_id": int(answer.producer_id),
            "producer_epoch": int(answer.producer_epoch),
        }
        group = f"transaction-{user}"
        entry = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
        topics = [{"name": topic, "partitions": [{**entry, "committed_leader_epoch": -1}]}]
        member = {"generation_id": -1, "member_id": "", "group_instance_id": None}
        added = settled(client, 25, 3, {**writer, "group_id": group})
        wanted = {**writer, **member, "group_id": group, "topics": topics}
        found[name] = added, settled(client, 28, 3, wanted)
        if name == own:
            client.codes(26, 3, {**writer, "committed": False})
    return found


def test_mutual_tls_on_both_sides(stage) -> None:
    """A client needs a certificate to get in and a login to go on, as it would direct."""
    topic, values = stage.topic("mutual", 1)
    alices = stage.authority.issue("alice")
    proxy = stage.strict

    refused = pytest.raises((ssl.SSLError, ConnectionError))
    with refused, RawClient(proxy.bootstrap, stage.ca) as client:
        client.login(stage.login("PLAIN", "alice"))
    for bootstrap in (proxy.bootstrap, stage.kafka.bootstrap_of("MUTUAL")):
        with RawClient(bootstrap, stage.ca, alices) as client, pytest.raises(ConnectionError):
            client.topic_id(topic)
    with RawClient(proxy.bootstrap, stage.ca, alices) as client:
        client.login(stage.login("SCRAM-SHA-256", "alice"))
        assert client.fetch_codes(topic, 17, range(8), max_wait_ms=RECORDS_MS) == {0}
        assert client.holds_any(values)
    asked = urllib.request.Request(f"https://{proxy.control}/metrics")
    trust = ssl.create_default_context(cafile=str(stage.ca))
    with pytest.raises(urllib.error.HTTPError, match="401") as refused_request:
        urllib.request.urlopen(asked, context=trust)  # noqa: S310 - our own
    refused_request.value.close()
    assert "keylane_sessions" in stage.metrics(proxy)


def test_no_secret_is_shown(stage) -> None:
    """Neither log, metrics nor command line of keylane hold a password, a token or a record.

    The fixture looks again when all tests have run.
    """
    topic, values = stage.topic("secrets", 1)
    good, bad = stage.login("PLAIN", "alice"), stage.login("OAUTHBEARER", "bob", token="x.y.z")
    SECRETS.add("x.y.z")
    read_confluent(stage.proxy.bootstrap, topic, "secrets", good, len(values))
    for refused in (bad, stage.login("SCRAM-SHA-256", "alice", password="Wrong-one-1")):
        with RawClient(stage.proxy.bootstrap, stage.ca) as client:
            client.login(refused)

    assert stage.leaks() == []
    stage.values.add("session_id=")
    try:
        assert "session_id= in log 0" in stage.leaks(), "what is there is found"
    finally:
        stage.values.remove("session_id=")
