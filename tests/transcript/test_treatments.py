"""Every API of Kafka's message definitions is treated as the table says, and none is forgotten."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Final

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial._introspect import EntityField, EntityTupleField, classify_field

from keylane.proxy.apis import ROUTES
from keylane.proxy.apis.shared.treatments import NOT_SERVED, TREATMENTS
from keylane.wire.header import ApiKey
from tests.transcript.fake import FakeContext, make_request, serve

ELECT_LEADERS, LIST_REASSIGNMENTS, DESCRIBE_LOG_DIRS = 43, 46, 35
DESCRIBE_TRANSACTIONS, CONSUMER_GROUP_DESCRIBE = 65, 69
IN_BYTES: Final = {10, 11, 14, 15}
"""JoinGroup, SyncGroup, DescribeGroups name topics inside subscriptions and assignments,
FindCoordinator inside the key of a share group's partition."""
NAMING: Final = re.compile(r"topic|partition|resource_name")
"""What fields are called that name topics and partitions, or count them; beside TopicName."""
NUMBERS: Final = frozenset({"index", "count"})


def leaves(entity: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """(path, type) of all fields of a schema that are no entities themselves."""
    hints = typing.get_type_hints(entity)
    for field in fields(entity):
        kind = classify_field(field)
        if isinstance(kind, EntityField | EntityTupleField):
            yield from leaves(kind.type_, (*path, field.name))
        else:
            yield ".".join((*path, field.name)), str(hints[field.name])


def naming_fields(entity: Any) -> set[str]:
    """Fields that name topics or partitions, or count them."""
    return {
        path
        for path, hint in leaves(entity)
        if "TopicName" in hint
        or NAMING.search(path.rpartition(".")[2])
        or path.rpartition(".")[2] in NUMBERS
    }


def in_all_versions(api_key: int, load: Any) -> set[str]:
    route = ROUTES[api_key]
    versions = range(route.version_min, route.version_max + 1)
    return set().union(*(naming_fields(load(api_key, version)) for version in versions))


def test_every_api_is_served_or_named_as_not_served() -> None:
    """Of kio's index, which is made of Kafka's message definitions."""
    assert set(api_key_map) <= set(ROUTES) | set(NOT_SERVED)
    assert set(ROUTES) & set(NOT_SERVED) == set()
    assert max(ROUTES) <= max(api_key_map)


def test_every_route_has_the_name_of_its_api() -> None:
    """A number that was mistyped would be another API."""
    for key, name in api_key_map.items():
        assert ApiKey(key).schema_name.lower() == name.replace("_", ""), key


def test_every_version_is_one_of_the_api() -> None:
    """And is read by a schema."""
    for key, route in ROUTES.items():
        known = set(schema_name_map[api_key_map[key]])
        assert {route.version_min, route.version_max} <= known, route.name


@pytest.mark.parametrize("api_key", sorted(ROUTES), ids=lambda key: ROUTES[key].name)
def test_every_field_that_names_topics_or_partitions_is_declared(api_key) -> None:
    """A field that comes with a new version is looked at before it passes."""
    found = in_all_versions(api_key, load_request_schema)

    declared = TREATMENTS[api_key].fields if api_key in TREATMENTS else frozenset()

    assert set(declared) == found


@pytest.mark.parametrize("api_key", sorted(ROUTES), ids=lambda key: ROUTES[key].name)
def test_every_answer_that_names_topics_has_a_treatment(api_key) -> None:
    """And no API has one that names none."""
    answered = in_all_versions(api_key, load_response_schema)
    asked = in_all_versions(api_key, load_request_schema)

    names_topics = bool(answered | asked) or api_key in IN_BYTES

    assert (api_key in TREATMENTS) == names_topics


@pytest.mark.parametrize(
    ("api_key", "values"),
    [
        (DESCRIBE_LOG_DIRS, {"topics": None}),
        (ELECT_LEADERS, {"topic_partitions": None}),
        (LIST_REASSIGNMENTS, {"topics": None}),
        (DESCRIBE_TRANSACTIONS, {"transactional_ids": ["t"]}),
        (CONSUMER_GROUP_DESCRIBE, {"group_ids": ["g"]}),
    ],
)
async def test_answers_about_all_topics_are_not_read_without_rules(api_key, values) -> None:
    """Where no topic means lanes under its own name they pass as bytes, however large."""
    context = FakeContext()
    context.config = context.config.model_copy(update={"lanes": ()})
    context.expect(api_key, None, b"whatever")

    frame = await serve(context, make_request(api_key, ROUTES[api_key].version_max, values))

    assert frame.endswith(b"whatever")


def test_treatments_are_of_apis_that_are_served() -> None:
    """Each says something of lanes."""
    assert set(TREATMENTS) <= set(ROUTES)
    assert all(treatment.lanes and treatment.plain for treatment in TREATMENTS.values())
