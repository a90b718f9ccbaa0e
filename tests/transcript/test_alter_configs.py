"""AlterConfigs v0-2, IncrementalAlterConfigs v0-1, DescribeConfigs v1-4 of lanes."""

from __future__ import annotations

from typing import Any

import pytest

from keylane.proxy.apis.admin.configs import translated
from tests.transcript.fake import FakeContext, call, check, make_request, serve, versions
from tests.transcript.test_nodes import among_nodes

DESCRIBE, ALTER, INCREMENTAL = 32, 33, 44
THROTTLED = "leader.replication.throttled.replicas"
RETENTION = "retention.ms"
ALTERING = [(key, version) for key in (ALTER, INCREMENTAL) for version in versions(key)]


def resources(*topics: tuple[str, str, str | None]) -> dict[str, Any]:
    return {
        "resources": [
            {"resource_type": 2, "resource_name": name, "configs": [{"name": key, "value": value}]}
            for name, key, value in topics
        ]
    }


def responses(*names: str, error_code: int = 0) -> dict[str, Any]:
    return {
        "responses": [
            {"resource_type": 2, "resource_name": name, "error_code": error_code} for name in names
        ]
    }


@pytest.mark.parametrize(("api_key", "version"), ALTERING)
async def test_a_lane_name_has_its_topics_configuration(api_key, version) -> None:
    """To change, as DescribeConfigs reads it; the answer names what was asked for."""
    context = FakeContext()
    context.expect(
        api_key,
        resources(("orders", RETENTION, "5"), ("plain", RETENTION, "6")),
        responses("orders", "plain"),
        version=version,
    )
    asked = resources(("orders.lanes-8", RETENTION, "5"), ("plain", RETENTION, "6"))

    check(responses("orders.lanes-8", "plain"), await call(context, api_key, version, asked))


async def test_a_topic_by_two_names_is_named_twice() -> None:
    """The broker says what it says of that, and each name gets its answer."""
    context = FakeContext()
    twice = resources(("orders", RETENTION, "5"), ("orders", RETENTION, "6"))
    context.expect(INCREMENTAL, twice, responses("orders", "orders", error_code=42))
    asked = resources(("orders.lanes-8", RETENTION, "5"), ("orders", RETENTION, "6"))

    found = await call(context, INCREMENTAL, 1, asked)

    check(responses("orders.lanes-8", "orders", error_code=42), found)


@pytest.mark.parametrize(("api_key", "version"), ALTERING)
async def test_throttled_lanes_are_throttled_partitions(api_key, version) -> None:
    """kafka-reassign-partitions --throttle names each lane; plain topics and * stay."""
    context = FakeContext()
    context.expect(
        api_key,
        resources(("orders", THROTTLED, "0:1,1:2"), ("plain", THROTTLED, "2:1,2:1")),
        responses("orders", "plain"),
        version=version,
    )
    asked = resources(("orders", THROTTLED, "0:1,3:2,2:1"), ("plain", THROTTLED, "2:1,2:1"))

    await call(context, api_key, version, asked)


async def test_throttled_replicas_among_many_nodes() -> None:
    """By the ids of any pair, of plain topics too."""
    context = among_nodes()
    context.expect(INCREMENTAL, resources(("plain", THROTTLED, "2:1")), responses("plain"))

    await call(context, INCREMENTAL, 1, resources(("plain", THROTTLED, "2:1000001")))


@pytest.mark.parametrize(("api_key", "version"), ALTERING)
@pytest.mark.parametrize("value", ["*", None, "", "0:1,x"])
async def test_own_names_pass_as_they_are(api_key, version, value) -> None:
    """Byte for byte, where no lane is named."""
    context = FakeContext()
    asked = make_request(
        api_key, version, resources(("orders", RETENTION, "5"), ("orders", THROTTLED, value))
    )
    context.expect(api_key, bytes(asked.body), responses("orders"))

    await serve(context, asked)


@pytest.mark.parametrize("version", versions(DESCRIBE))
async def test_throttled_partitions_are_shown_as_lanes(version) -> None:
    """Under the own name, and under a lane name by its count."""
    context = FakeContext()

    def results(*topics: tuple[str, str]) -> dict[str, Any]:
        return {
            "results": [
                {
                    "resource_type": 2,
                    "resource_name": name,
                    "configs": [{"name": THROTTLED, "value": v}],
                }
                for name, v in topics
            ]
        }

    both = ("orders", "1:2"), ("shop", "0:1")
    context.expect(DESCRIBE, None, results(*both), version=version)
    asked = [
        {"resource_type": 2, "resource_name": name, "configuration_keys": None}
        for name in ("orders", "shop.lanes-3")
    ]

    found = await call(context, DESCRIBE, version, {"resources": asked})

    check(results(("orders", "1:2,3:2,5:2,7:2"), ("shop.lanes-3", "0:1,1:1,2:1")), found)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("1:2", "11:2"), ("1:2,1:2,3:4", "11:2,13:4"), ("1:2, 3:4", "1:2, 3:4"), ("1:-2", "1:-2"),
     ("1:99999999999", "1:99999999999"), ("1:2:3", "1:2:3"), ("1:\u0662", "1:\u0662")],
)  # fmt: skip
def test_what_is_no_list_of_replicas_stays(value, expected) -> None:
    """The broker judges it."""
    assert translated(value, lambda pair: [(pair[0] + 10, pair[1])]) == expected
