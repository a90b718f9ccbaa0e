"""FindCoordinator v0-6, DescribeCluster v0-2, ApiVersions v0-4: clients stay with keylane."""

from __future__ import annotations

from typing import Any

import pytest

from keylane.errors import FrameInvalid
from keylane.proxy.apis import ROUTES, route_of
from keylane.wire.messages import read_response
from tests.transcript.entities import plain
from tests.transcript.fake import FakeContext, call, check, make_request, serve, versions

FIND, CLUSTER, API_VERSIONS = 10, 60, 18


@pytest.mark.parametrize("version", versions(FIND))
async def test_the_coordinator_is_reached_through_keylane(version) -> None:
    """librdkafka connects to what stands here."""
    context = FakeContext()
    asked: dict[str, Any]
    answer: dict[str, Any]
    expected: dict[str, Any]
    found = {"node_id": 2, "host": "kafka2", "port": 9092, "error_code": 0}
    own = {**found, "host": "lane.example", "port": 20_002}
    if version >= 4:
        asked = {"coordinator_keys": ["g", "h"]}
        none = {"node_id": -1, "host": "", "port": -1, "error_code": 15}
        answer = {"coordinators": [{"key": "g", **found}, {"key": "h", **none}]}
        expected = {"coordinators": [{"key": "g", **own}, {"key": "h", **none}]}
    else:
        asked, answer, expected = {"key": "g"}, found, own
    context.expect(FIND, asked, answer, version=version)

    seen = await call(context, FIND, version, asked)

    check(expected, seen)
    assert context.world.brokers == [2]


@pytest.mark.parametrize("version", versions(FIND))
async def test_no_coordinator(version) -> None:
    """An error has no address to replace."""
    context = FakeContext()
    none = {"node_id": -1, "host": "", "port": -1, "error_code": 15}
    answer = {"coordinators": [{"key": "g", **none}]} if version >= 4 else none
    context.expect(FIND, None, answer)

    check(answer, await call(context, FIND, version, {}))
    assert context.world.brokers == []


@pytest.mark.parametrize("version", versions(CLUSTER))
async def test_brokers_of_the_cluster(version) -> None:
    """Every broker's address is keylane's, rack and id stay."""
    context = FakeContext()
    brokers = [{"broker_id": n, "host": f"kafka{n}", "port": 9092, "rack": "r"} for n in (1, 2)]
    context.expect(CLUSTER, None, {"brokers": brokers, "cluster_id": "c"}, version=version)

    seen = await call(context, CLUSTER, version, {"endpoint_type": 1})

    own = [{**b, "host": "lane.example", "port": 20_000 + n} for n, b in enumerate(brokers, 1)]
    check({"brokers": own, "cluster_id": "c"}, seen)
    assert context.world.brokers == [1, 2]


@pytest.mark.parametrize("version", range(1, 3))
async def test_controllers_stay_where_they_are(version) -> None:
    """They are asked for with endpoint type 2; no client connects to them."""
    context = FakeContext()
    answer = {
        "endpoint_type": 2,
        "brokers": [{"broker_id": 1, "host": "controller", "port": 9093}],
    }
    context.expect(CLUSTER, {"endpoint_type": 2}, answer)

    check(answer, await call(context, CLUSTER, version, {"endpoint_type": 2}))
    assert context.world.brokers == []


OFFER = [
    {"api_key": 1, "min_version": 4, "max_version": 18},
    {"api_key": 3, "min_version": 0, "max_version": 5},
    {"api_key": 4, "min_version": 0, "max_version": 7},
    {"api_key": 76, "min_version": 0, "max_version": 0},
    {"api_key": 18, "min_version": 0, "max_version": 4},
    {"api_key": 4711, "min_version": 0, "max_version": 1},
]
CLAMPED = [
    {"api_key": 1, "min_version": 4, "max_version": 17},
    {"api_key": 3, "min_version": 0, "max_version": 5},
    {"api_key": 18, "min_version": 0, "max_version": 4},
]


@pytest.mark.parametrize("version", versions(API_VERSIONS))
async def test_versions_are_clamped_both_ways(version) -> None:
    """Unknown keys, keys between brokers, and ranges without overlap are hidden."""
    context = FakeContext()
    context.expect(API_VERSIONS, None, {"api_keys": OFFER, "error_code": 0}, version=version)

    seen = await call(context, API_VERSIONS, version, {})

    check({"api_keys": CLAMPED, "error_code": 0}, seen)


@pytest.mark.parametrize(("low", "seen_low"), [(0, 0), (1, 1)])
async def test_versions_that_librdkafka_takes_for_features_are_offered(low, seen_low) -> None:
    """Produce v0 means compression to librdkafka 2.3, SaslHandshake v0 a handshake at all."""
    context = FakeContext()
    offer = [{"api_key": key, "min_version": low, "max_version": 9} for key in (0, 17)]
    context.expect(API_VERSIONS, None, {"api_keys": offer})

    seen = await call(context, API_VERSIONS, 3, {})

    found = [(one["api_key"], one["min_version"], one["max_version"]) for one in seen["api_keys"]]
    assert found == [(0, seen_low, 9), (17, seen_low, 1)]
    for key in (0, 17):
        with pytest.raises(FrameInvalid, match="v0 is not served"):
            route_of(make_request(key, 0, b""))


@pytest.mark.parametrize("version", range(3, 5))
async def test_features_of_the_cluster_stay(version) -> None:
    """Clients look at `group.version` and `transaction.version` there, and keylane's own at one."""
    context = FakeContext()
    features = {
        "supported_features": [{"name": "group.version", "min_version": 0, "max_version": 1}],
        "finalized_features_epoch": 9,
        "finalized_features": [
            {"name": "group.version", "max_version_level": 1, "min_version_level": 1}
        ],
    }
    context.expect(API_VERSIONS, None, {"api_keys": OFFER, **features})

    own = {"name": "keylane.ranges", "min_version": 1, "max_version": 1}
    both = [{"name": "group.version", "min_version": 0, "max_version": 1}, own]
    expected = features | {"supported_features": both}
    check(expected, await call(context, API_VERSIONS, version, {}))


@pytest.mark.parametrize(
    ("name", "software_version", "is_librdkafka"),
    [
        ("librdkafka", "2.16.0", True),
        ("confluent-kafka-python", "2.16.1-rdkafka-2.16.0", True),
        ("apache-kafka-java", "4.3.1", False),
        ("aiokafka", "0.14.0", False),
    ],
)
async def test_librdkafka_is_known_by_its_name(name, software_version, is_librdkafka) -> None:
    """It takes an empty batch for a fetch size that is too small, so fetches must know it."""
    context = FakeContext()
    context.expect(API_VERSIONS, None, {"api_keys": OFFER}, version=3)
    software = {"client_software_name": name, "client_software_version": software_version}

    await call(context, API_VERSIONS, 3, software)

    assert context.is_librdkafka is is_librdkafka


@pytest.mark.parametrize("version", [5, 99, 32767])
async def test_a_client_from_the_future_gets_what_there_is(version) -> None:
    """In v0 with UNSUPPORTED_VERSION, and without the broker, which may answer it only once."""
    context = FakeContext()
    request = make_request(API_VERSIONS, version, b"\xff\x00whatever")

    frame = await serve(context, request)

    seen = plain(read_response(API_VERSIONS, 0, memoryview(frame)[8:]))
    own = {"api_key": API_VERSIONS, "min_version": 0, "max_version": 4}
    assert seen == {"api_keys": [own], "error_code": 35}


@pytest.mark.parametrize("version", range(1, 5))
async def test_a_broker_from_the_past(version) -> None:
    """It answers in v0 that it does not know the version; the client asks again."""
    context = FakeContext()
    count = len(OFFER).to_bytes(4)
    keys = [
        [entry[field] for field in ("api_key", "min_version", "max_version")] for entry in OFFER
    ]
    body = b"".join(number.to_bytes(2) for key in keys for number in key)
    context.expect(API_VERSIONS, None, (35).to_bytes(2) + count + body)

    frame = await serve(context, make_request(API_VERSIONS, version, {}))

    seen = plain(read_response(API_VERSIONS, 0, memoryview(frame)[8:]))
    check({"api_keys": CLAMPED, "error_code": 35}, seen)


def test_the_table_names_each_key_once_with_sound_versions() -> None:
    """What ApiVersions is clamped to."""
    assert all(0 <= route.version_min <= route.version_max for route in ROUTES.values())
    assert all(key == route.api_key for key, route in ROUTES.items())
    assert len({route.name for route in ROUTES.values()}) == len(ROUTES)
