"""Rights to groups and topics in share groups: refused through keylane as direct."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from keylane.wire.header import ApiKey
from tests.integration.raw import RawClient
from tests.integration.secured import allow, rule
from tests.integration.secured_stage import Stage
from tests.integration.share_wire import (
    ACCEPT,
    Answer,
    ShareClient,
    alter_group,
    call,
    share_offsets,
    wait_until,
)
from tests.transcript.entities import plain

pytestmark = pytest.mark.timeout(400)  # kernels may have to be compiled first
TOPIC_DENIED, GROUP_DENIED = 29, 30
PASSED: tuple[int, int, int] = (0, 0, 0)
NO_GROUP = (GROUP_DENIED, 0, 0)
NO_TOPIC = (0, TOPIC_DENIED, 0)
CALLS = ("heartbeat", "fetch", "acknowledge", "describe", "describe offsets", "alter", "delete")
TOPIC_KEPT = ([0, TOPIC_DENIED], [GROUP_DENIED])
ALL_DENIED = ([GROUP_DENIED], [GROUP_DENIED])
REFUSED = {
    "alice, READ of all": (0, PASSED, PASSED, [0], [0, 0], [0, 0], [GROUP_DENIED]),
    "bob, DESCRIBE of the topic": (0, NO_TOPIC, NO_TOPIC, [0], [0, 0], *TOPIC_KEPT),
    "carol, no right to the topic": (
        *(TOPIC_DENIED, NO_TOPIC, NO_TOPIC, [TOPIC_DENIED], [0, TOPIC_DENIED]),
        *TOPIC_KEPT,
    ),
    "dave, DESCRIBE of the group": (GROUP_DENIED, NO_GROUP, NO_GROUP, [0], [0, 0], *ALL_DENIED),
    "dave, no right to the group": (
        *(GROUP_DENIED, NO_GROUP, NO_GROUP, [GROUP_DENIED], [GROUP_DENIED]),
        *ALL_DENIED,
    ),
}
"""By user: error codes of `CALLS`."""
EPOCHS = re.compile(r"'(?:group|assignment|member)_epoch': \d+")
"""Of a description; a broker assigns beside its heartbeats, so their numbers differ by chance."""


@contextmanager
def member(stage: Stage, bootstrap: str, user: str, group: str) -> Iterator[ShareClient]:
    """A member that has logged in; it has joined nothing yet."""
    with RawClient(bootstrap, stage.ca) as wire:
        assert wire.login(stage.login("PLAIN", user))[-1].error_code == 0
        yield ShareClient(bootstrap, group, f"{user}-member", wire=wire)


def codes_of(value: Any) -> list[int]:
    """Error codes of an answer's plain values, from outside in."""
    if isinstance(value, list):
        return [code for item in value for code in codes_of(item)]
    if not isinstance(value, dict):
        return []
    own = [item for key, item in value.items() if key == "error_code"]
    return own + [code for item in value.values() for code in codes_of(item)]


def ask_all(client: ShareClient, topic: str, topic_id: Any, alice: ShareClient) -> dict[str, Any]:
    """Return codes and messages of every call that a share group has.

    The group has alice as a member until its offsets are changed.
    """
    group = client.group
    calls: dict[str, tuple[int, int, dict[str, Any]]] = {
        "describe": (ApiKey.SHARE_GROUP_DESCRIBE, 1, {"group_ids": [group]}),
        "describe offsets": (
            ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1,
            {"groups": [{"group_id": group, "topics": [{"topic_name": topic, "partitions": [0]}]}]},
        ),
        "alter": (
            ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0,
            {"group_id": group, "topics": [
                {"topic_name": topic, "partitions": [{"partition_index": 0, "start_offset": 0}]}
            ]},
        ),
        "delete": (
            ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0,
            {"group_id": group, "topics": [{"topic_name": topic}]},
        ),
    }  # fmt: skip
    answers: dict[str, Any] = {}
    beat = client.heartbeat([topic])
    answers["heartbeat"] = (int(beat.error_code), beat.error_message)
    # A fetch that is allowed waits for the records that alice has given back.
    fetched = client.fetch(topic_id, max_wait_ms=10_000)
    answers["fetch"] = (fetched.codes, messages(fetched))
    epoch = max(client.session_epoch, 1)
    done = client.acknowledge(topic_id, acks=[(0, 0, [ACCEPT])], epoch=epoch)
    answers["acknowledge"] = (done.codes, messages(done))
    client.heartbeat(epoch=-1)
    for name, (api_key, version, values) in calls.items():
        if name == "alter":
            alice.heartbeat(epoch=-1)
        answer = plain(call(client.wire, api_key, version, **values))
        answers[name] = (codes_of(answer), EPOCHS.sub("", str(answer)))
    return answers


def wait_until_given_back(stage: Stage, group: str, topic: str) -> None:
    """Wait until the end of a session is persisted: a broker answers it before."""
    wait_until(
        lambda: share_offsets(stage.kafka.bootstrap, group).get((topic, 0), (-1, -1))[0] == 0,
        "records are given back",
    )


def messages(answer: Answer) -> tuple[str | None, str | None, str | None]:
    return answer.message, answer.part.message, answer.part.ack_message


@pytest.mark.parametrize("user", REFUSED)
def test_rights_are_those_of_the_principal(user, stage) -> None:
    """Each call of a share group is allowed or refused through keylane as direct."""
    topic = stage.plain_topic("share")
    stage.produce(topic, 1)
    found, ids = {}, {}
    for side, bootstrap in (("direct", stage.direct), ("proxied", stage.proxy.bootstrap)):
        group = ids[side] = f"share-{side}-{topic}"
        alter_group(stage.kafka.bootstrap, group, share_auto_offset_reset="earliest")
        with member(stage, bootstrap, "alice", group) as alice:
            alice.join([topic])
            topic_id = alice.topic_id(topic)
            alice.acquire(topic_id)
            alice.acknowledge_all({}, epoch=-1)
            wait_until_given_back(stage, group, topic)
            if user == "dave, DESCRIBE of the group":
                allow(stage.admin, rule("dave", "DESCRIBE", "GROUP", group))
            name = user.partition(",")[0]
            with member(stage, bootstrap, name, group) as client:
                found[side] = ask_all(client, topic, topic_id, alice)

    shown = {side: str(answers).replace(ids[side], "<group>") for side, answers in found.items()}
    assert shown["proxied"] == shown["direct"]
    assert tuple(found["direct"][name][0] for name in CALLS) == REFUSED[user]


def test_a_group_in_key_order_hands_out_nothing_without_read(stage) -> None:
    """Without READ on the topic fetch and outcome get 29, without READ on the group 30."""
    topic = stage.plain_topic("ordered")
    stage.produce(topic, 2)
    group = f"ordered-{topic}"
    alter_group(stage.kafka.bootstrap, group, share_auto_offset_reset="earliest")
    allow(stage.admin, rule("keylane", "READ", "GROUP", group))
    allow(stage.admin, rule("keylane", "DESCRIBE_CONFIGS", "GROUP", group))
    rules = 'share_groups=[{"group": "ordered-*"}]'
    proxy = stage.start_keylane(stage.direct, "beside_others=true", rules)
    codes = {}

    with member(stage, proxy.bootstrap, "alice", group) as alice:
        alice.join([topic])
        topic_id = alice.topic_id(topic)
        found = alice.acquire(topic_id, max_records=1).part.counts
        for user in ("bob", "carol", "dave"):
            with member(stage, proxy.bootstrap, user, group) as client:
                fetched = client.fetch(topic_id, max_wait_ms=0)
                epoch = max(client.session_epoch, 1)
                done = client.acknowledge(topic_id, acks=[(0, 0, [ACCEPT])], epoch=epoch)
                codes[user] = (fetched.codes, fetched.part.records, done.codes)
        accepted = alice.acknowledge(topic_id, acks=[(0, 0, [ACCEPT])]).codes
    proxy.stop()

    assert (found, accepted) == ({0: 1}, PASSED)
    assert codes == {
        "bob": (NO_TOPIC, (), NO_TOPIC),
        "carol": (NO_TOPIC, (), NO_TOPIC),
        "dave": (NO_GROUP, (), NO_GROUP),
    }
