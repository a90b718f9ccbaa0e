"""proxy/control/api: assignments over HTTP; whatever is wrong is named with its place."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import pytest

from keylane.errors import SettingsUnsaved
from keylane.keyrange.space import HASH_MAX, KeyRange
from keylane.proxy.control.api import requests as requests_module
from keylane.proxy.topics import range_table
from keylane.proxy.topics.switches import Switches
from tests.reference.control_port import ControlPort, control_port

MIDDLE = HASH_MAX // 2
LOW, HIGH = ["0", str(MIDDLE)], [str(MIDDLE + 1), str(HASH_MAX)]


class Client:
    """Calls a port; an answer is (status, body)."""

    def __init__(self, port: ControlPort, session: aiohttp.ClientSession) -> None:
        self.port, self.session = port, session
        self.headers: Mapping[str, str] = {}

    async def call(
        self, method: str, path: str, body: Any = None, *, version: int | str | None = None,
        data: Any = None, content_type: str = "application/json",
    ) -> tuple[int, Any]:  # fmt: skip
        headers = {}
        if version is not None:
            headers["If-Match"] = version if isinstance(version, str) else f'"{version}"'
        if body is not None:
            data = json.dumps(body).encode()
        if data is not None:
            headers["Content-Type"] = content_type
        url = self.port.url + path
        async with self.session.request(method, url, data=data, headers=headers) as answer:
            self.headers = answer.headers
            text = await answer.text()
            if answer.status >= 400:
                assert answer.content_type == "application/problem+json", text
                problem = json.loads(text)
                assert problem["status"] == answer.status and problem["detail"]
                return answer.status, problem
            return answer.status, json.loads(text) if text else None

    async def put(self, assignments: dict[str, Any], **how: Any) -> tuple[int, Any]:
        return await self.call("PUT", "/assignments", {"assignments": assignments}, **how)

    async def patch(self, assignments: dict[str, Any], **how: Any) -> tuple[int, Any]:
        return await self.call("PATCH", "/assignments", {"assignments": assignments}, **how)


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """A separate port for each test; orders has 3 partitions, shop 2, quiet 1."""
    async with control_port() as port, aiohttp.ClientSession() as session:
        yield Client(port, session)


def part(topic: str = "orders", partition: int = 0, *ranges: Any) -> dict[str, Any]:
    return {"topic": topic, "partition": partition, "ranges": list(ranges)}


async def test_halves_by_one_call_and_a_take_over_by_another(client: Client) -> None:
    """Two clients get halves at once; a third takes over a dead one's half at once."""
    status, reported = await client.put(
        {"a": [part("orders", 0, LOW)], "b": [part("orders", 0, HIGH)]}
    )

    assert (status, reported["version"], client.headers["ETag"]) == (200, 1, '"1"')
    assert reported == (await client.call("GET", "/assignments"))[1]
    table = client.port.assignments.table
    assert table.owners("orders", 0) == (
        ("a", (KeyRange(0, MIDDLE),)),
        ("b", (KeyRange(MIDDLE + 1, HASH_MAX),)),
    )

    status, reported = await client.patch({"a": None, "c": [part("orders", 0, LOW)]}, version=1)

    assert (status, reported["version"]) == (200, 2)
    assert reported["assignments"].keys() == {"b", "c"}
    assert client.port.assignments.table.owners("orders", 0)[1] == ("c", (KeyRange(0, MIDDLE),))


async def test_one_client_is_set_read_and_deleted(client: Client, caplog: Any) -> None:
    """No range is the whole partition; ranges may be numbers, and come back merged."""
    caplog.set_level(logging.INFO, "keylane.control")
    parts = [part("orders", 2), part("orders", 1, [5, 9], ["0", "4"])]

    status, reported = await client.call("PUT", "/assignments/pod%2F1", {"assignment": parts})

    assert status == 200
    assert reported == {
        "version": 1,
        "client_id": "pod/1",
        "assignment": [
            {"topic": "orders", "partition": 1, "ranges": [["0", "9"]]},
            {"topic": "orders", "partition": 2, "ranges": [["0", str(HASH_MAX)]]},
        ],
    }
    assert (await client.call("GET", "/assignments/pod%2F1"))[1] == reported
    assert "assignments changed by=127.0.0.1 version=1 names='pod/1'" in caplog.text
    assert "orders" not in caplog.text, "contents are not logged"
    assert await client.call("DELETE", "/assignments/pod%2F1", version=1) == (204, None)
    status, problem = await client.call("GET", "/assignments/pod%2F1")
    assert (status, problem["field"]) == (404, "client_id")
    assert (await client.call("DELETE", "/assignments/pod%2F1", version=2))[0] == 404


async def test_all_are_replaced_and_all_are_deleted(client: Client) -> None:
    """PUT leaves nothing of before, nor does DELETE; an empty table needs no version."""
    await client.put({"a": [part()], "b": [part("orders", 1)]})

    status, reported = await client.put({"c": [part()]}, version="*")

    assert status == 200 and reported["assignments"].keys() == {"c"}
    assert (await client.call("DELETE", "/assignments", version=2))[0] == 204
    assert client.port.assignments.table.version == 3
    assert (await client.call("DELETE", "/assignments"))[0] == 204
    assert (await client.put({"d": [part()]}))[1]["version"] == 4


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/assignments", {"assignments": {}}),
        ("PATCH", "/assignments", {"assignments": {}}),
        ("DELETE", "/assignments", None),
        ("PUT", "/assignments/a", {"assignment": []}),
        ("DELETE", "/assignments/a", None),
    ],
)
async def test_what_is_there_is_changed_by_version_only(
    client: Client, method: str, path: str, body: Any
) -> None:
    """428 without If-Match, 412 with another version (also a weak one), 400 for nonsense."""
    await client.put({"a": [part()]})

    assert (await client.call(method, path, body))[0] == 428
    assert client.headers["ETag"] == '"1"'
    for stale in (0, 2, 'W/"1"', '"x", "y"', "17"):
        status, problem = await client.call(method, path, body, version=stale)
        assert (status, problem["field"]) == (412, "If-Match")
    status, problem = await client.call(method, path, body, version="nonsense")
    assert (status, problem["field"]) == (400, "If-Match")
    assert client.port.assignments.table.version == 1
    assert (await client.call(method, path, body, version='"7", "1"'))[0] in (200, 204)


async def test_a_version_that_another_node_made_meanwhile_counts(client: Client) -> None:
    """The version is compared with the newest table, under the store's lock, not with ours."""
    await client.put({"a": [part()]})
    holder = client.port.assignments

    def elsewhere() -> None:
        holder.table = holder.table.with_clients({"z": {"orders": {1: []}}})

    client.port.store.before_change = elsewhere

    status, _ = await client.patch({"a": None}, version=1)

    assert status == 412
    assert client.headers["ETag"] == '"2"'
    assert holder.table.clients.keys() == {"a", "z"}


@pytest.mark.parametrize("other_is_in_the_body", [True, False])
async def test_an_overlap_is_refused_with_its_place(
    client: Client, *, other_is_in_the_body: bool
) -> None:
    """409 names the entry in the body, and the client that has these keys."""
    bad = [part("shop", 1), part("orders", 0, ["0", "5"], ["90", "110"])]
    other = [part("orders", 0, ["100", "200"])]
    if other_is_in_the_body:
        status, problem = await client.put({"a/b": bad, "b": other})
    else:
        await client.put({"b": other})
        status, problem = await client.patch({"a/b": bad}, version=1)

    assert status == 409
    assert problem["field"] == "/assignments/a~1b/1/ranges"
    assert problem["conflict"] == {
        "client_id": "b", "topic": "orders", "partition": 0, "range": ["100", "200"],
    }  # fmt: skip
    assert "[90, 110] of client 'a/b' overlaps [100, 200] of client 'b'" in problem["detail"]
    assert "a/b" not in client.port.assignments.table.clients, "nothing of the set is taken"


@pytest.mark.parametrize(
    ("parts", "status", "field"),
    [
        ([part("nix", 0)], 422, "/0/topic"),
        ([part(), part("__consumer_offsets", 0)], 422, "/1/topic"),
        ([part("orders.lanes-4", 0)], 422, "/0/topic"),
        ([part("..", 0)], 422, "/0/topic"),
        ([part("orders", 3)], 422, "/0/partition"),
        ([part(), part()], 422, "/1/partition"),
        ([part("orders", 0, ["1", "2"], ["9", "8"])], 422, "/0/ranges/1"),
        ([part("orders", 0, ["0", str(HASH_MAX + 1)])], 422, "/0/ranges/0/1"),
        ([part("orders", 0, [0, HASH_MAX + 1])], 400, "/0/ranges/0/1"),
        ([part("orders", 0, [-1, 5])], 400, "/0/ranges/0/0"),
        ([part("orders", 0, ["-1", 5])], 400, "/0/ranges/0/0"),
        ([part("orders", 0, ["01", 5])], 400, "/0/ranges/0/0"),
        ([part("orders", 0, [1.5, 5])], 400, "/0/ranges/0/0"),
        ([part("orders", 0, [True, 5])], 400, "/0/ranges/0/0"),
        ([part("orders", 0, [None, 5])], 400, "/0/ranges/0/0"),
        ([part("orders", 0, ["1"])], 400, "/0/ranges/0"),
        ([part("orders", 0, ["1", "2", "3"])], 400, "/0/ranges/0"),
        ([part("orders", -1)], 400, "/0/partition"),
        ([part("orders", 2**31)], 400, "/0/partition"),
        ([{"topic": "orders", "partition": "0", "ranges": []}], 400, "/0/partition"),
        ([{"topic": "orders", "partition": 0}], 400, "/0/ranges"),
        ([{**part(), "extra": 1}], 400, "/0/extra"),
        ([part("no topic", 0)], 400, "/0/topic"),
        ([7], 400, "/0"),
        ("text", 400, ""),
        (None, 400, ""),
    ],
)
async def test_bad_input_names_its_place(
    client: Client, parts: Any, status: int, field: str
) -> None:
    """400 where the body does not fit the schema, 422 where it makes no sense; nothing changes."""
    many = await client.put({"a": parts})
    one = await client.call("PUT", "/assignments/a", {"assignment": parts})

    assert (many[0], many[1]["field"]) == (status, "/assignments/a" + field)
    assert (one[0], one[1]["field"]) == (status, "/assignment" + field)
    assert client.port.assignments.table.version == 0


@pytest.mark.parametrize(
    ("data", "status", "field"),
    [
        (b"", 400, ""),
        (b"{", 400, ""),
        (b"\xff\xfe", 400, ""),
        (b"[" * 100_000, 400, ""),
        (b'{"assignments": NaN}', 400, ""),
        (b'{"assignments": ' + b"9" * 10_000 + b"}", 400, ""),
        (b'{"assignments": {"a": [], "a": []}}', 400, ""),
        (b"[]", 400, ""),
        (b"{}", 400, "/assignments"),
        (b'{"assignments": {"": []}}', 400, "/assignments/"),
        (b'{"assignments": {}, "wait": true}', 400, "/wait"),
        (b'{"assignments": {"a\\u0007": []}}', 422, "/assignments/a\x07"),
        (b'{"assignments": {"\\ud800": []}}', 400, "/assignments/\ufffd\ufffd\ufffd"),
    ],
)
async def test_bodies_that_are_no_assignments(
    client: Client, data: bytes, status: int, field: str
) -> None:
    """No JSON, a name that stands twice, a missing or unknown member."""
    got, problem = await client.call("PUT", "/assignments", data=data)

    assert got == status
    assert problem.get("field") == field


async def test_a_legal_client_id_in_the_path(client: Client) -> None:
    """Up to 249 printable characters; more do not fit, others make no sense."""
    body: dict[str, Any] = {"assignment": []}

    assert (await client.call("PUT", "/assignments/" + "x" * 249, body))[0] == 200
    status, problem = await client.call("PUT", "/assignments/" + "x" * 250, body, version="*")
    assert (status, problem["field"]) == (400, "client_id")
    status, problem = await client.call("PUT", "/assignments/a%07", body, version="*")
    assert status == 422


async def test_media_types_methods_and_paths(client: Client) -> None:
    """415, 405 with what is allowed, 404: problem documents all."""
    status, problem = await client.call(
        "PUT", "/assignments", data=b"{}", content_type="text/plain"
    )
    assert (status, problem["field"]) == (415, "Content-Type")
    assert (await client.call("POST", "/assignments", {}))[0] == 405
    assert client.headers["Allow"] == "DELETE,GET,PATCH,PUT"
    assert (await client.call("POST", "/healthz", {}))[0] == 405
    assert (await client.call("GET", "/nothing"))[0] == 404
    assert (await client.call("GET", "/groups/unknown"))[0] == 404
    assert (await client.call("GET", "/groups/unreachable"))[0] == 503
    assert (await client.call("GET", "/groups/billing"))[1]["state"] == "Stable"


async def test_a_body_that_is_too_large(client: Client) -> None:
    """413 for more than 4 MiB; what fits is looked at."""
    blank = b" " * 4 * 1024**2

    assert (await client.call("PUT", "/assignments", data=io.BytesIO(blank + b" ")))[0] == 413
    assert (await client.call("PUT", "/assignments", data=io.BytesIO(blank)))[0] == 400


async def test_a_body_that_does_not_come_is_not_waited_for(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """408 after the time-out, while the client still holds its body back."""
    monkeypatch.setattr(requests_module, "BODY_TIMEOUT_S", 0.01)
    is_answered = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"{"
        await is_answered.wait()

    status, _ = await client.call("PUT", "/assignments", data=body())

    is_answered.set()
    assert status == 408


@pytest.mark.parametrize(("is_unknown", "outcome"), [(False, "unchanged"), (True, "unknown")])
async def test_what_kafka_does_not_take_is_answered(
    client: Client, *, is_unknown: bool, outcome: str
) -> None:
    """503 says whether the table is unchanged, or has to be read again."""
    client.port.store.failure = SettingsUnsaved("no answer in time", is_unknown=is_unknown)

    for status, problem in (
        await client.put({"a": [part()]}),
        await client.call("PUT", "/switches", {}),
    ):
        assert (status, problem["outcome"]) == (503, outcome)
        assert client.headers["Retry-After"] == "1"


async def test_a_cluster_that_cannot_be_asked(client: Client) -> None:
    """503 while the topic's partitions are unknown; a mistake of ours is a 500 without a trace."""
    client.port.topics.is_down = True
    assert (await client.put({"a": [part()]}))[0] == 503
    client.port.topics.is_down = False
    client.port.store.failure = RuntimeError("secret")
    status, problem = await client.put({"a": [part()]})
    assert status == 500 and "secret" not in json.dumps(problem)


async def test_bounds_of_the_table(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """More clients or ranges than have room: 422, with the place where there is one."""
    monkeypatch.setattr(range_table, "CLIENTS_MAX", 1)
    status, problem = await client.put({"a": [], "b": []})
    assert (status, problem["field"]) == (422, "")
    assert "2 clients, at most 1" in problem["detail"]
    monkeypatch.setattr(range_table, "PARTITION_RANGES_MAX", 1)
    status, problem = await client.put({"a": [part("shop", 1), part("orders", 1, LOW, HIGH)]})
    assert (status, problem["field"]) == (422, "/assignments/a/1")


async def test_parts_of_a_topic_need_its_permission(client: Client) -> None:
    """A topic without lanes refuses ranges until it is switched on; whole ones pass."""
    status, problem = await client.put({"a": [part("quiet", 0, LOW)]})

    assert (status, problem["field"]) == (409, "/assignments/a/0/ranges")
    assert "accept.range.fetch of topic quiet is off" in problem["detail"]
    assert (await client.put({"a": [part("quiet", 0)]}))[0] == 200
    await client.call("PUT", "/switches/topics/quiet", {"accept.range.fetch": True})
    assert (await client.put({"a": [part("quiet", 0, LOW)]}, version="*"))[0] == 200


async def test_parts_for_a_client_need_its_permission(client: Client) -> None:
    """A client that does not share gets whole partitions only."""
    client.port.switches.current = Switches(version=1, clients={"a": False})

    status, problem = await client.call(
        "PUT", "/assignments/a", {"assignment": [part("orders", 0, LOW)]}
    )

    assert (status, problem["field"]) == (409, "/assignment/0/ranges")
    assert "allow.individual.commit of client 'a' is off" in problem["detail"]
    assert (await client.call("PUT", "/assignments/a", {"assignment": [part()]}))[0] == 200


async def test_a_client_that_leaves_in_the_middle_of_its_body(caplog) -> None:
    """No error of ours: nothing of it is logged as one."""
    gc.collect()  # asyncio logs what the garbage of other tests was about: here, not below
    caplog.clear()
    async with control_port() as port:
        host, _, number = port.url.removeprefix("http://").rpartition(":")
        _, writer = await asyncio.open_connection(host, int(number))
        head = "PUT /assignments HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: 1000\r\n\r\n{{".encode())
        await writer.drain()
        writer.transport.abort()
        # A request behind it, answered, shows that the first one has ended.
        async with aiohttp.ClientSession() as session, session.get(f"{port.url}/healthz") as answer:
            assert answer.status == 200

    assert [each.message for each in caplog.records if each.levelno >= logging.WARNING] == []
