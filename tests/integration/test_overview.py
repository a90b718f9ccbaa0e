"""The control port shows the cluster, all groups, events and history of real groups."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from tests.integration.conftest import make_topic_factory
from tests.integration.harness import Group, produce
from tests.integration.keylane_process import PATIENCE, KeylaneProcess
from tests.integration.share_wire import ShareClient

KEYS = [f"key-{number}" for number in range(50)]


def get(proxy: KeylaneProcess, path: str) -> Any:
    """The answer of the control port."""
    url = f"http://{proxy.control}{path}"
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.load(answer)


def wait_for(
    proxy: KeylaneProcess, path: str, is_there: Callable[[Any], Any], *, timeout_s: float = 60
) -> Any:
    """Ask until `is_there` finds what is wanted in the answer; return what it found."""
    end_s = time.monotonic() + timeout_s * PATIENCE
    while True:
        answer = get(proxy, path)
        found = is_there(answer)
        if found:
            return found
        assert time.monotonic() < end_s, f"{path} never was as wanted: {answer}"
        time.sleep(0.3)  # documents are asked for again and again, as the page does: no event


def listed(group: str, **wanted: Any) -> Callable[[Any], Any]:
    """Return what finds a group in a list, once its fields are as wanted."""

    def find(answer: Any) -> Any:
        found = (one for one in answer["groups"] if one["group"] == group)
        return next((one for one in found if wanted.items() <= one.items()), None)

    return find


def of_kind(*kinds: str) -> Callable[[Any], Any]:
    """Return what finds the events once there is one of each kind."""

    def find(answer: Any) -> Any:
        events = answer["events"]
        return events if set(kinds) <= {event["kind"] for event in events} else None

    return find


@pytest.mark.parametrize("protocol", [pytest.param("classic", marks=pytest.mark.long), "consumer"])
def test_a_group_is_listed_with_its_events_and_history(protocol, kafka, keylane, topic) -> None:
    """Members that join and leave are events; what was done has a rate and a history."""
    name = topic("lanes4", partitions=2)
    proxy, options = keylane("lanes4-*=4"), {}
    if protocol == "consumer":
        options = {"protocol": protocol}
    with Group(proxy.bootstrap, name, f"g-{name}", **options) as group:
        group.add("confluent", 3)
        group.wait_for_lanes(8)
        group.wait_for_values(produce(kafka, name, KEYS, rounds=20))
        group.wait_for_commits()
        first = wait_for(
            proxy, "/groups", listed(f"g-{name}", lag=0, lag_s=0, member_count=3, state="Stable")
        )
        group.wait_for_values(produce(kafka, name, KEYS, rounds=20, first=20))
        history = wait_for(
            proxy,
            f"/history?group=g-{name}&topic={name}",
            # A step looks at the topic after the group.
            lambda found: (
                found
                if found["group"]
                and any(found["group"]["consumed_per_s"])
                and found["topic"]
                and any(found["topic"]["records_per_s"])
                else None
            ),
        )
        report = get(proxy, f"/groups/g-{name}")
        group.leave(group.living[0])
        events = wait_for(proxy, f"/events?group=g-{name}", of_kind("join", "leave", "rebalance"))
        topics = get(proxy, "/topics")["topics"]
        cluster = wait_for(proxy, "/cluster", lambda found: None if found["problems"] else found)

    assert (first["lane_count"], first["topics"], first["kind"]) == (8, [name], "lanes")
    assert (first["protocol"], first["stuck_members"], first["node"]) == (protocol, 0, None)
    assert report["assignor"] == "key-range"
    assert report["client_assignor"] not in ("", "key-range")
    assert report["balance"]["is_by_keylane"] and report["balance"]["busiest"] >= 1
    assert report["consumed_per_s"] == pytest.approx(
        sum(member["consumed_per_s"] for member in report["members"]), rel=0.1
    )
    assert not any(member["is_stuck"] for member in report["members"])
    assert len(history["members"]) == 3
    assert {len(series["lag"]) for series in history["members"]} == {60}
    assert any(history["topic"]["records_per_s"])
    assert len([event for event in events if event["kind"] == "join"]) == 3
    assert [event["id"] for event in events] == sorted(event["id"] for event in events)
    (shown,) = [one for one in topics if one["topic"] == name]
    assert shown["records_per_s"] > 0 and shown["group_count"] == 1
    assert cluster["kafka"]["is_reachable"]
    assert cluster["problems"] == []
    assert [(node["is_self"], node["state"]) for node in cluster["nodes"]] == [(True, "serving")]


@contextmanager
def stalled(proxy: KeylaneProcess, topic: str, **settings: str) -> Iterator[str]:
    """A member that has committed one record, and does nothing more; gives its group."""
    group = f"stalled-{settings.get('group.protocol', 'classic')}-{topic}"
    consumer = Consumer(
        {
            "bootstrap.servers": proxy.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **settings,
        }
    )
    try:
        consumer.subscribe([topic])
        while (message := consumer.poll(60)) is None or message.error() is not None:
            continue
        consumer.commit(message=message, asynchronous=False)
        yield group
    finally:
        consumer.close()


@pytest.mark.long
def test_a_member_that_does_nothing_is_stuck(kafka, keylane, topic) -> None:
    """After a minute with records that wait, by both protocols; one that works is not."""
    name = topic("lanes4", partitions=1)
    proxy = keylane("lanes4-*=4")
    produce(kafka, name, KEYS, rounds=20)
    with (
        stalled(proxy, name) as classic,
        stalled(proxy, name, **{"group.protocol": "consumer"}) as newer,
        Group(proxy.bootstrap, name, f"g-{name}") as working,
    ):
        working.add("confluent", 1)
        for group in (classic, newer):
            found = wait_for(proxy, "/groups", listed(group, stuck_members=1), timeout_s=120)
            assert found["lag"] > 0 and found["lag_s"] > 60
            (member,) = get(proxy, f"/groups/{group}")["members"]
            assert member["is_stuck"] and member["stuck_s"] >= 60
        wait_for(proxy, "/groups", listed(f"g-{name}", stuck_members=0, lag=0))


def test_kafka_goes_and_comes_back(own_broker, keylane) -> None:
    """A problem and events name it; groups stay as they were, marked as old, and come back."""
    admin = AdminClient({"bootstrap.servers": own_broker.bootstrap})
    name = make_topic_factory(admin, "away")("lanes4", partitions=1)
    proxy = keylane("lanes4-*=4", bootstrap=own_broker.bootstrap)
    with Group(proxy.bootstrap, name, f"g-{name}") as group:
        group.add("confluent", 1)
        group.wait_for_values(produce(own_broker.bootstrap, name, KEYS, rounds=2))
        group.wait_for_commits()
        wait_for(proxy, "/groups", listed(f"g-{name}", is_old=False, lag=0))

        own_broker.kill()
        (problem,) = wait_for(proxy, "/cluster", lambda found: found["problems"])
        old = wait_for(proxy, "/groups", listed(f"g-{name}", is_old=True))
        own_broker.start()
        wait_for(proxy, "/cluster", lambda found: not found["problems"], timeout_s=120)
        wait_for(proxy, "/groups", listed(f"g-{name}", is_old=False), timeout_s=120)
        events = get(proxy, "/events")["events"]

    assert (problem["code"], problem["severity"]) == ("kafka-away", "error")
    assert problem["since_ms"] <= old["as_of_ms"] + 600_000
    assert (old["lag"], old["member_count"]) == (0, 1)
    texts = [event["text"] for event in events if event["kind"] == "broker"]
    assert "is away" in texts[0] and "answers again" in texts[-1]


def test_all_groups_are_listed(kafka, shared_keylane, topic) -> None:
    """Groups on lanes, plain ones and share groups, each of its kind."""
    name, plain = topic("lanes4", partitions=1), topic(partitions=1)
    with (
        Group(shared_keylane.bootstrap, name, f"g-{name}") as lanes,
        Group(shared_keylane.bootstrap, plain, f"g-{plain}") as others,
        ShareClient(shared_keylane.bootstrap, f"s-{plain}") as member,
    ):
        member.join([plain])
        lanes.add("aiokafka", 1)
        others.add("aiokafka", 1)
        lanes.wait_for_lanes(4)
        others.wait_for_lanes(1)

        found = [
            wait_for(shared_keylane, "/groups", listed(group, **wanted))
            for group, wanted in (
                # A member that has no lanes yet may have been looked at: so they are waited for.
                (f"g-{name}", {"kind": "lanes", "member_count": 1, "lane_count": 4}),
                (f"g-{plain}", {"kind": "plain", "node": None}),
                (f"s-{plain}", {"kind": "share", "protocol": "share"}),
            )
        ]

    assert [each["kind"] for each in found] == ["lanes", "plain", "share"]
    assert found[0]["topics"] == [name] and found[0]["lane_count"] == 4
