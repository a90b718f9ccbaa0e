"""`keylane describe` shows share groups: ordered ones with their windows, others with their lag."""

from __future__ import annotations

import json
import re
import urllib.request
import uuid
from pathlib import Path
from typing import Any, Final

import pytest

from keylane.cli.main import main
from keylane.keyrange.hash import key_hash
from keylane.wire.header import ApiKey
from tests.integration.keylane_process import KeylaneProcess
from tests.integration.share_sides import TIMESTAMP_MS
from tests.integration.share_wire import (
    ACCEPT,
    RECORD_LIMIT,
    PlainWire,
    ShareClient,
    alter_group,
    call,
    wait_until,
)
from tests.reference.batches import Batch, Record, write_batch

PAGE: Final = (Path(__file__).parents[2] / "docs" / "describe.md").read_text(encoding="utf-8")
HOT, COLD = b"hot", b"cold"
WINDOW: Final = {
    "members": 1,
    "ready": 0,
    "in_flight": 1,
    "waiting": 2,
    "unconfirmed": 0,
    "released": 0,
    "last_attempts": 0,
    "oldest_offset": 0,
    "end_offset": 3,
    "span": 4,
    "look_ahead": 2000,
    "handed_out": 2,
    "redelivered": 0,
    "is_settled": True,
    "error": None,
}
"""One record at its member, two behind it, and a finished one of another key between them."""


def write_keys(bootstrap: str, topic: str, *keys: bytes) -> None:
    """Append a record for each of these keys, in one batch."""
    records = tuple(Record(number, key=key, value=b"v") for number, key in enumerate(keys))
    batch = Batch(0, records, base_timestamp=TIMESTAMP_MS, max_timestamp=TIMESTAMP_MS)
    part = {"index": 0, "records": write_batch(batch)}
    data = [{"name": topic, "partition_data": [part]}]

    def write() -> Any:
        with PlainWire(bootstrap) as wire:
            answer = call(wire, ApiKey.PRODUCE, 12, acks=-1, timeout=30_000, topic_data=data)
        (found,) = answer.responses[0].partition_responses
        return found if found.error_code == 0 else None

    wait_until(write, "a leader that takes the batch")


def run(proxy: KeylaneProcess, *args: str) -> None:
    """Run `keylane describe`."""
    assert main(["describe", "--control", proxy.control, *args]) == 0


def describe(proxy: KeylaneProcess, group: str, capsys: pytest.CaptureFixture[str]) -> Any:
    """The report as JSON."""
    run(proxy, "--group", group, "-o", "json")
    return json.loads(capsys.readouterr().out)


def stay(member: ShareClient, topic: str) -> None:
    """Have the group count a member, which is put out 10 s after its last heartbeat."""
    if member.heartbeat().error_code != 0:  # the machine stood still, and it was put out
        member.member_epoch = 0
        member.join([topic])


def with_progress(
    proxy: KeylaneProcess, member: ShareClient, topic: str, capsys: pytest.CaptureFixture[str]
) -> tuple[Any, Any]:
    """The report and its only partition, as soon as the coordinator has offsets of it."""

    def look() -> Any:
        stay(member, topic)
        report = describe(proxy, member.group, capsys)
        (partition,) = report["share"]["partitions"]
        return (report, partition) if partition["start_offset"] is not None else None

    found: tuple[Any, Any] = wait_until(look, "offsets of the group at its coordinator")
    return found


def take(client: ShareClient, topic_id: uuid.UUID, count: int) -> None:
    """Take so many records, and accept the last one of them."""
    acquired = client.acquire(topic_id, count=count, max_records=count, mode=RECORD_LIMIT).acquired
    last = acquired[-1][1]
    answer = client.acknowledge(topic_id, acks=[(last, last, [ACCEPT])])
    assert answer.codes == (0, 0, 0), answer


def live_shares(proxy: KeylaneProcess) -> Any:
    """Share groups as the live page gets them."""
    with urllib.request.urlopen(f"http://{proxy.control}/page/events", timeout=60) as stream:
        shares: Any = []
        while not shares:  # of a broker that is slow to answer the first state says nothing
            while stream.readline() != b"event: state\n":
                pass
            shares = json.loads(stream.readline().removeprefix(b"data: "))["shares"]
        return shares


def check_page(printed: str, fields: set[str]) -> None:
    """The columns that are printed, and all fields of the JSON, stand on the page."""
    page = PAGE.partition("## Share groups")[2]
    shown = page.partition("```console")[2].partition("```")[0]
    heads = [line.split() for line in shown.splitlines() if line.isupper()]
    assert heads == [line.split() for line in printed.splitlines() if line.isupper()]
    assert fields <= set(re.findall(r"`(\w+)`", page))


def test_share_groups_are_described(kafka, keylane, topic, capsys) -> None:
    """Two records of a key wait behind one at a member; a group without a rule is beside it."""
    name = topic("plain")
    ordered, plain = f"g-{name}", f"other-{name}"
    for group in (ordered, plain):
        alter_group(kafka, group, **{"share.auto.offset.reset": "earliest"})
    write_keys(kafka, name, HOT, COLD, HOT, HOT)
    proxy = keylane(args=["--share-order", "g*=key"])
    with (
        ShareClient(proxy.bootstrap, ordered) as member,
        ShareClient(proxy.bootstrap, plain) as other,
    ):
        topic_id = member.topic_id(name)
        for client in (member, other):
            client.join([name])
            take(client, topic_id, 2)

        report, partition = with_progress(proxy, member, name, capsys)
        _, unordered = with_progress(proxy, other, name, capsys)
        stay(member, name)
        run(proxy, "--group", ordered)
        printed = capsys.readouterr().out
        assert main(["describe", "--control", proxy.control, "--group", "g-absent"]) == 1
        assert "no group g-absent" in capsys.readouterr().err
        stay(member, name)
        (shown,) = live_shares(proxy)
        with urllib.request.urlopen(f"http://{proxy.control}/metrics", timeout=60) as answer:
            metrics = answer.read().decode()

    assert (report["state"], report["members"], report["lanes"]) == ("Stable", [], [])
    assert [one["partition_count"] for one in report["share"]["members"]] == [1]
    window = partition.pop("window")
    assert partition == {
        "topic": name,
        "partition": 0,
        "leader": 1,
        "start_offset": 0,
        "lag": 3,
        "is_ordered": True,
        "node": None,
    }
    (key,) = window["hottest_keys"]
    assert (key["hash"], key["records"], key["oldest_offset"]) == (str(key_hash(HOT)), 3, 0)
    assert window["oldest_s"] >= key["held_s"] > 0
    assert window == WINDOW | {"oldest_s": window["oldest_s"], "hottest_keys": [key]}
    assert unordered == partition | {"is_ordered": False, "window": None}
    assert (shown["name"], shown["members"], shown["lag"]) == (ordered, 1, 3)
    assert shown["partitions"][0]["window"]["hottest_keys"][0]["hash"] == key["hash"]
    check_page(printed, {*partition, "window", *window, *key})
    assert HOT.decode() not in printed
    labels = f'{{group="{ordered}",topic="{name}"}}'
    for line in (
        f"keylane_share_records_in_flight{labels} 1.0",
        f"keylane_share_handed_out_total{labels} 2.0",
        f"keylane_share_members{labels} 1.0",
        'keylane_share_acknowledgements_total{type="accept"} 2.0',
    ):
        assert line in metrics
