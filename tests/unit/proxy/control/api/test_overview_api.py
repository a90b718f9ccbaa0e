"""proxy/control/api/overview.py: cluster, groups, history and events over HTTP."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import aiohttp
import pytest

from keylane.proxy.control.watch.history import MemberSample, Pair
from keylane.proxy.control.watch.summary import GroupSummary
from keylane.proxy.runtime.event_log import Kind, Severity
from tests.reference.control_port import ControlPort, control_port


async def ask(port: ControlPort, path: str) -> tuple[int, Any]:
    """The status and the document."""
    async with aiohttp.ClientSession() as session, session.get(f"{port.url}{path}") as answer:
        return answer.status, await answer.json(content_type=None)


async def test_the_cluster_is_shown() -> None:
    """With its brokers and what is missing."""
    async with control_port() as port:
        port.overview.change(missing="groups on lanes: no topic")
        status, found = await ask(port, "/cluster")

    assert (status, found["node"]["cluster_id"]) == (200, "cluster")
    assert found["brokers"][0]["address"] == "kafka:9092"
    assert [problem["code"] for problem in found["problems"]] == ["not-serving"]


async def test_groups_are_listed() -> None:
    """Those that brokers list, with what was sampled."""
    async with control_port() as port:
        port.overview.listed += [("billing", "Classic", "Stable"), ("queue", "Share", "Empty")]
        port.overview.summaries["billing"] = GroupSummary(
            group="billing", kind="lanes", protocol=None, state="Stable", lag=3
        )
        status, found = await ask(port, "/groups")

    assert status == 200
    assert [(one["group"], one["kind"], one["lag"]) for one in found["groups"]] == [
        ("billing", "lanes", 3),
        ("queue", "share", None),
    ]


async def test_history_is_of_a_group_or_a_topic_or_both() -> None:
    """Sixty points each."""
    async with control_port() as port:
        overview = port.overview
        sample = {"m": MemberSample("label", 4, 1)}
        overview.history.note_group("billing", overview.now_ms, Pair(4, 1), sample)
        overview.history.note_topic("orders", overview.now_ms, Pair(100, 2))
        _, group = await ask(port, "/history?group=billing")
        _, both = await ask(port, "/history?group=billing&topic=orders")
        unknown_status, unknown = await ask(port, "/history?group=absent&topic=absent")

    assert (group["group"]["lag"][-1], group["topic"]) == (4, None)
    assert (unknown_status, unknown["group"], unknown["topic"]) == (200, None, None)
    assert group["members"][0]["label"] == "label"
    assert both["topic"]["bytes_per_s"][-1] == 100 and len(both["group"]["lag"]) == 60


async def test_history_is_the_text_of_its_report() -> None:
    """Letter by letter that of a deep copy: members, nulls, and a name beyond ASCII."""
    async with control_port() as port:
        overview = port.overview
        samples = {f"m{n}": MemberSample("größe", None if n else 4, n / 3) for n in range(3)}
        overview.history.note_group("billing", overview.now_ms, Pair(4, None), samples)
        overview.history.note_topic("orders", overview.now_ms, Pair(100, 2))
        url = f"{port.url}/history?group=billing&topic=orders"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            text, kind = await answer.text(), answer.content_type

    report = overview.history.find(overview.now_ms, group="billing", topic="orders")
    assert len(report.members) == 3 and report.topic is not None
    assert (text, kind) == (json.dumps(asdict(report)), "application/json")


@pytest.mark.parametrize(
    ("path", "status", "field"),
    [
        ("/history", 422, "group"),
        ("/history?topic=a%20b", 400, "topic"),
        ("/history?nonsense=1", 400, "nonsense"),
        ("/events?limit=0", 400, "limit"),
        ("/events?after=x", 400, "after"),
        ("/events?limit=1&limit=2", 400, "limit"),
    ],
)
async def test_wrong_parameters_are_named(path, status, field) -> None:
    """In the words of the other errors."""
    async with control_port() as port:
        found_status, found = await ask(port, path)

    assert (found_status, found["field"]) == (status, field)


async def test_events_are_read_on() -> None:
    """By the id of the last one; those of a group apart."""
    async with control_port() as port:
        log = port.overview.event_log
        log.note(Kind.NODE, "Node 1 joined.")
        log.note(Kind.JOIN, "a joined group g.", group="g", member="a", severity=Severity.INFO)
        _, first = await ask(port, "/events?limit=1")
        _, rest = await ask(port, f"/events?after={first['last_id'] - 1}")
        _, own = await ask(port, "/events?group=g")
        log.note(Kind.ERROR, "x", severity=Severity.ERROR)
        _, later = await ask(port, f"/events?after={first['last_id']}")

    (event,) = first["events"]
    assert event == {
        "id": first["last_id"],
        "at_ms": port.overview.now_ms,
        "kind": "join",
        "severity": "info",
        "group": "g",
        "topic": None,
        "member": "a",
        "text": "a joined group g.",
    }
    assert first["events"] == rest["events"] == own["events"]
    assert [event["kind"] for event in later["events"]] == ["error"]
