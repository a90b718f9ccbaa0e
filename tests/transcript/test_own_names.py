"""Keylane's own topics and transactional ids change only by clients that may alter the cluster."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

import pytest

from keylane.config.own_names import JOURNAL_TOPIC, OWN_TOPICS, SCANS_TOPIC, SETTINGS_TOPIC
from keylane.errors import FrameInvalid
from tests.transcript.entities import plain
from tests.transcript.fake import (
    PLAIN,
    FakeContext,
    call,
    check,
    is_relayed,
    make_request,
    serve,
    versions,
)

PRODUCE, CREATE, DELETE, RECORDS, INIT, ADD = 0, 19, 20, 21, 22, 24
OFFSETS, END, COMMIT, ALTER, GROW, INCREMENT = 25, 26, 28, 33, 37, 44
DENIED, ID_DENIED, NOT_ATTEMPTED = 29, 53, 55
OWN = sorted(OWN_TOPICS)
OWN_ID = uuid.UUID(int=4711)


def stranger() -> FakeContext:
    """A client that may do what it likes with topics, and nothing with the cluster."""
    context = FakeContext()
    context.world.may_alter_cluster = False
    for number, name in enumerate(OWN):
        context.registry.learn(name, uuid.UUID(int=OWN_ID.int + number), 1)
    return context


def named(api_key: int, version: int, names: Iterable[str]) -> dict[str, Any]:
    """A request that names these topics."""
    if api_key == CREATE:
        return {
            "topics": [
                {"name": n, "num_partitions": 1, "replication_factor": 1, "assignments": []}
                for n in names
            ],
            "timeout": 1000,
        }
    if api_key == DELETE and version < 6:
        return {"topic_names": list(names), "timeout": 1000}
    if api_key == DELETE:
        return {"topics": [{"name": n, "topic_id": None} for n in names], "timeout": 1000}
    if api_key == RECORDS:
        return {
            "topics": [
                {"name": n, "partitions": [{"partition_index": 0, "offset": 5}]} for n in names
            ]
        }
    if api_key == GROW:
        topics = [{"name": n, "count": 9, "assignments": []} for n in names]
        return {"topics": topics, "timeout": 1000}
    return {"resources": [{"resource_type": 2, "resource_name": n, "configs": []} for n in names]}


def answered(api_key: int, codes: dict[str, int]) -> dict[str, Any]:
    """The answer with a code for each."""
    if api_key == RECORDS:
        return {
            "topics": [
                {
                    "name": name,
                    "partitions": [{"partition_index": 0, "low_watermark": -1, "error_code": code}],
                }
                for name, code in codes.items()
            ]
        }
    if api_key in {ALTER, INCREMENT}:
        results = [
            {"error_code": code, "resource_type": 2, "resource_name": name}
            for name, code in codes.items()
        ]
        return {"responses": results}
    field = {CREATE: "topics", DELETE: "responses", GROW: "results"}[api_key]
    return {field: [{"name": name, "error_code": code} for name, code in codes.items()]}


CHANGES = [
    (key, version)
    for key in (CREATE, DELETE, RECORDS, ALTER, GROW, INCREMENT)
    for version in versions(key)
]


@pytest.mark.parametrize(("api_key", "version"), CHANGES)
async def test_a_change_is_refused_and_the_others_go_on(api_key: int, version: int) -> None:
    """In the order of the request; the broker sees the other topics only."""
    context = stranger()
    names = ["plain", OWN[0], "other", OWN[1]]
    context.expect(
        api_key,
        named(api_key, version, ["plain", "other"]),
        answered(api_key, {"plain": 0, "other": 3}),
        version=version,
    )

    found = await call(context, api_key, version, named(api_key, version, names))

    check(answered(api_key, {"plain": 0, OWN[0]: DENIED, "other": 3, OWN[1]: DENIED}), found)
    assert list(context.stats.own_names_refused.values()) == [2]
    context.finish()


@pytest.mark.parametrize(("api_key", "version"), CHANGES)
async def test_nothing_is_asked_where_all_is_refused(api_key: int, version: int) -> None:
    """The broker never sees the request."""
    context = stranger()

    found = await call(context, api_key, version, named(api_key, version, OWN))

    check(answered(api_key, dict.fromkeys(OWN, DENIED)), found)


@pytest.mark.parametrize(("api_key", "version"), CHANGES)
async def test_a_client_that_may_alter_the_cluster_is_let_through(
    api_key: int, version: int
) -> None:
    """As is everybody where brokers have no authorizer. Others are not even looked up."""
    context = stranger()
    context.world.may_alter_cluster = True
    asked = make_request(api_key, version, named(api_key, version, OWN))
    context.expect(api_key, bytes(asked.body), answered(api_key, dict.fromkeys(OWN, 0)))

    found = asked.decode_answer(await serve(context, asked))

    check(answered(api_key, dict.fromkeys(OWN, 0)), plain(found))
    context.events.clear()
    other = make_request(api_key, version, named(api_key, version, ["plain"]))
    context.expect(api_key, bytes(other.body), answered(api_key, {"plain": 0}))
    await serve(context, other)

    assert "may alter the cluster" not in context.events
    context.finish()


async def test_a_topic_is_not_deleted_by_its_id_either() -> None:
    """The name is not given, as a broker gives none to a client that may not see it."""
    context = stranger()
    wanted = {
        "topics": [{"name": None, "topic_id": each} for each in (PLAIN, OWN_ID)],
        "timeout": 1000,
    }
    context.expect(
        DELETE,
        {"topics": [{"name": None, "topic_id": PLAIN}]},
        {"responses": [{"name": "plain", "topic_id": PLAIN, "error_code": 0}]},
    )

    found = await call(context, DELETE, 6, wanted)

    assert [(each["name"], each["error_code"]) for each in found["responses"]] == [
        ("plain", 0),
        (None, DENIED),
    ]
    context.finish()


async def test_a_broker_of_that_name_is_no_topic() -> None:
    """Configurations of other kinds pass."""
    context = stranger()
    wanted = {"resources": [{"resource_type": 4, "resource_name": "1", "configs": []}]}
    context.expect(
        INCREMENT,
        wanted,
        {"responses": [{"error_code": 0, "resource_type": 4, "resource_name": "1"}]},
    )

    await call(context, INCREMENT, 1, wanted)

    context.finish()


# -- records -----------------------------------------------------------------------------


def produce(version: int, names: dict[str, uuid.UUID], *, acks: int = -1) -> dict[str, Any]:
    """A batch for partition 0 of each."""
    topics = [
        {"name": name, "topic_id": topic_id, "partition_data": [{"index": 0, "records": b"abc"}]}
        for name, topic_id in names.items()
    ]
    return {"acks": acks, "timeout": 1000, "topic_data": topics}


def key_of(version: int, name: str, topic_id: uuid.UUID) -> dict[str, Any]:
    return {"topic_id": topic_id} if version >= 13 else {"name": name}


@pytest.mark.parametrize("version", versions(PRODUCE))
async def test_records_are_refused_and_those_of_other_topics_go_on(version: int) -> None:
    """By name, and by id; in the order of the request."""
    context = stranger()
    ids = {OWN[0]: OWN_ID, "plain": PLAIN, OWN[1]: uuid.UUID(int=OWN_ID.int + 1)}
    context.expect(
        PRODUCE,
        {"topic_data": [key_of(version, "plain", PLAIN)]},
        {
            "responses": [
                {
                    **key_of(version, "plain", PLAIN),
                    "partition_responses": [{"index": 0, "base_offset": 7, "error_code": 0}],
                }
            ]
        },
    )

    found = await call(context, PRODUCE, version, produce(version, ids))

    codes = [each["partition_responses"][0]["error_code"] for each in found["responses"]]
    assert codes == [DENIED, 0, DENIED]
    for each, (name, topic_id) in zip(found["responses"], ids.items(), strict=True):
        check(key_of(version, name, topic_id), each)
    context.finish()


@pytest.mark.parametrize("version", versions(PRODUCE))
async def test_records_of_a_client_that_may_alter_the_cluster_pass_as_bytes(version: int) -> None:
    """So does a batch for another topic, without a question."""
    context = stranger()
    context.world.may_alter_cluster = True
    asked = make_request(PRODUCE, version, produce(version, {OWN[0]: OWN_ID}))
    context.expect(PRODUCE, bytes(asked.body), {"responses": []})
    other = make_request(PRODUCE, version, produce(version, {"plain": PLAIN}))

    assert is_relayed(context, other) and not is_relayed(context, asked)
    await serve(context, asked)

    context.finish()


async def test_records_without_an_answer_end_the_connection() -> None:
    """As at a broker: there is no other way to say it."""
    context = stranger()
    asked = make_request(PRODUCE, 9, produce(9, {SETTINGS_TOPIC: OWN_ID}, acks=0))

    with pytest.raises(FrameInvalid, match="acks=0"):
        await serve(context, asked)


# -- transactions ------------------------------------------------------------------------

IDS = ["keylane-settings", "keylane-ic-0", "keylane-ic-all"]


def transaction(api_key: int, version: int, transactional_id: str | None) -> dict[str, Any]:
    """A request with this id."""
    member = {"producer_id": 5, "producer_epoch": 1}
    if api_key == INIT:
        return {"transactional_id": transactional_id, "transaction_timeout": 1000, **member}
    if api_key == ADD:
        return {
            "v3_and_below_transactional_id": transactional_id,
            "v3_and_below_producer_id": 5,
            "v3_and_below_producer_epoch": 1,
            "v3_and_below_topics": [{"name": "plain", "partitions": [0, 1]}],
        }
    if api_key == OFFSETS:
        return {"transactional_id": transactional_id, "group_id": "g", **member}
    if api_key == END:
        return {"transactional_id": transactional_id, "committed": True, **member}
    offset = {
        "partition_index": 0,
        "committed_offset": 3,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    return {
        "transactional_id": transactional_id,
        "group_id": "g",
        **member,
        "topics": [{"name": "plain", "partitions": [offset]}],
    }


def codes_of(found: dict[str, Any]) -> set[int]:
    """All error codes of an answer."""
    if "error_code" in found:
        return {found["error_code"]}
    topics = found.get("topics") or found["results_by_topic_v3_and_below"]
    return {
        code
        for topic in topics
        for entry in topic.get("partitions") or topic["results_by_partition"]
        for name, code in entry.items()
        if name.endswith("error_code")
    }


TRANSACTIONS = [(key, v) for key in (INIT, ADD, OFFSETS, END, COMMIT) for v in versions(key)]


@pytest.mark.parametrize("transactional_id", IDS)
@pytest.mark.parametrize(("api_key", "version"), TRANSACTIONS)
async def test_an_own_transactional_id_is_refused(
    api_key: int, version: int, transactional_id: str
) -> None:
    """Its next epoch would lock a node out of its journal."""
    context = stranger()

    found = await call(context, api_key, version, transaction(api_key, version, transactional_id))

    assert codes_of(found) == {ID_DENIED}
    assert context.events == ["may alter the cluster"]


@pytest.mark.parametrize("transactional_id", ["app", "keylane-settings-2", "keylane-", "x" * 200])
@pytest.mark.parametrize(("api_key", "version"), TRANSACTIONS)
async def test_other_ids_are_not_looked_up(
    api_key: int, version: int, transactional_id: str
) -> None:
    """They pass as they did: those that relay do so as bytes."""
    context = stranger()
    asked = make_request(api_key, version, transaction(api_key, version, transactional_id))
    context.expect(api_key, None, None)

    if api_key in {INIT, OFFSETS} and not transactional_id.startswith("keylane-"):
        assert is_relayed(context, asked)
    if api_key != COMMIT:
        context.world.steps.clear()
        context.expect(api_key, bytes(asked.body), {})
        await serve(context, asked)
        context.finish()
    assert "may alter the cluster" not in context.events


async def test_a_producer_without_an_id_is_relayed() -> None:
    """Idempotent producers ask for a number alone."""
    for version in versions(INIT):
        asked = make_request(INIT, version, transaction(INIT, version, None))
        assert is_relayed(stranger(), asked)


@pytest.mark.parametrize("version", versions(ADD))
async def test_own_topics_get_into_no_transaction(version: int) -> None:
    """None of the partitions is added then, as at a broker."""
    context = stranger()
    wanted = transaction(ADD, version, "app")
    wanted["v3_and_below_topics"].append({"name": JOURNAL_TOPIC, "partitions": [0]})
    wanted["v3_and_below_topics"].append({"name": SCANS_TOPIC, "partitions": [0]})

    found = await call(context, ADD, version, wanted)

    codes = [
        {each["partition_error_code"] for each in topic["results_by_partition"]}
        for topic in found["results_by_topic_v3_and_below"]
    ]
    assert codes == [{NOT_ATTEMPTED}, {DENIED}, {DENIED}]
