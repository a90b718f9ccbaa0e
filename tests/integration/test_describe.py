"""`keylane describe` and the control port show a group's members, offsets and lag."""

from __future__ import annotations

import json
import re
import shlex
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from keylane.cli.main import main
from tests.integration.harness import Group, produce
from tests.integration.keylane_process import KeylaneProcess
from tests.integration.share_wire import wait_until
from tests.integration.test_group_handover import log_ends

KEYS = [f"key-{number}" for number in range(100)]
PAGE: Final = (Path(__file__).parents[2] / "docs" / "describe.md").read_text(encoding="utf-8")


def describe(proxy: KeylaneProcess, group: str, capsys: pytest.CaptureFixture[str]) -> Any:
    """The report as JSON."""
    where = ["--control", proxy.control, "--group", group]
    assert main(["describe", *where, "-o", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def describe_when(
    is_so: Callable[[Any], bool], proxy: KeylaneProcess, group: str, capsys: Any
) -> Any:
    """Ask until the report is so; return it."""

    def look() -> Any:
        report = describe(proxy, group, capsys)
        return report if is_so(report) else None

    return wait_until(look, f"a report of {group} that is so")


def now_ms() -> float:
    """The time of day, as commits have it."""
    return datetime.now(UTC).timestamp() * 1000


def test_a_running_group_is_described(kafka, keylane, topic, capsys) -> None:
    """Members with their lanes and moves, commits at the log end just now, no record left."""
    name = topic("lanes4", partitions=2)
    proxy = keylane("lanes4-*=4", args=("--assignor", "g-*=key-range"))
    started_ms = now_ms()
    with Group(proxy.bootstrap, name, f"g-{name}") as group:
        group.add("aiokafka", 2)
        group.wait_for_lanes(8)
        group.add("aiokafka")
        group.wait_for_lanes(8)
        values = produce(kafka, name, KEYS, rounds=20)
        group.wait_for_values(values)
        group.wait_for_commits()

        # aiokafka's members may join once more by themselves.
        report = describe_when(lambda found: found["state"] == "Stable", proxy, f"g-{name}", capsys)

    lanes, members = report["lanes"], report["members"]
    assert report["generation_id"] >= 2
    assert {member["client_id"] for member in members} == set(group.processes)
    assert sorted(member["lane_count"] for member in members) == [2, 3, 3]
    gained = [place for member in members for place in member["lanes_gained"]]
    lost = [place for member in members for place in member["lanes_lost"]]
    assert len(gained) in {0, 2}  # none where a client joins once more by itself
    assert sorted(map(str, gained)) == sorted(map(str, lost))
    assert [lane["lane_index"] for lane in lanes] == list(range(8))
    assert {(lane["lag"], lane["lag_is_exact"], lane["offset_lag"]) for lane in lanes} == {
        (0, True, 0)
    }
    assert {lane["committed"] for lane in lanes if lane["partition"] == 0} == {lanes[0]["log_end"]}
    assert all(started_ms < lane["committed_ms"] < now_ms() for lane in lanes)
    assert sum(lane["bytes_per_s"] for lane in lanes) > 0
    assert (lanes[0]["key_range"][0], lanes[-1]["key_range"][1]) == (0, 2**63 - 1)


def test_lag_is_counted_in_records(kafka, shared_keylane, topic, capsys, java) -> None:
    """1,000 records in 8 lanes: an estimate that adds up; exact once anyone has read them."""
    name = topic("lanes4", partitions=2)
    with Group(shared_keylane.bootstrap, name, f"g-{name}") as group:
        group.add("confluent", 2)
        group.wait_for_values(produce(kafka, name, KEYS, rounds=20))
        group.wait_for_commits()
    values = produce(kafka, name, KEYS, rounds=10, first=20)

    ends = log_ends(kafka, name, 2)
    before = describe_when(  # ends of logs may be those of a second ago
        lambda found: all(lane["log_end"] == ends[lane["partition"]] for lane in found["lanes"]),
        shared_keylane,
        f"g-{name}",
        capsys,
    )
    with Group(shared_keylane.bootstrap, name, f"other-{name}") as other:
        other.add("confluent")
        other.wait_for_values(values)
    after = describe(shared_keylane, f"g-{name}", capsys)
    reported = java.run(
        "kafka-consumer-groups",
        *("--bootstrap-server", shared_keylane.bootstrap, "--describe", "--group", f"g-{name}"),
    )

    assert sum(lane["lag"] for lane in before["lanes"]) == pytest.approx(1000, rel=0.1)
    wanted = set(values)
    true_lag = Counter(one.lane for one in other.seen.sightings if one.value in wanted)
    assert {lane["lane_index"]: lane["lag"] for lane in after["lanes"]} == true_lag
    assert all(lane["lag_is_exact"] for lane in after["lanes"])
    header = next(line.split() for line in reported.stdout.splitlines() if "LAG" in line)
    rows = [line.split() for line in reported.stdout.splitlines() if name in line.split()]
    kafkas = {int(row[header.index("PARTITION")]): int(row[header.index("LAG")]) for row in rows}
    assert kafkas == {lane["lane_index"]: lane["offset_lag"] for lane in after["lanes"]}
    assert all(true_lag[index] <= lag <= 1000 for index, lag in kafkas.items())


def test_the_page_shows_what_is_printed(kafka, shared_keylane, topic, capsys) -> None:
    """The command of docs/describe.md runs, with the columns that stand there."""
    name = topic("lanes4", partitions=2)
    page, _, of_keys = PAGE.partition("## The place of a key")
    assert of_keys
    ((command, shown),) = re.findall(r"```console\n\$ keylane (.*)\n((?:.*\n)+?)```", page)
    names = {"127.0.0.1:19090": shared_keylane.control, "billing": f"g-{name}"}

    with Group(shared_keylane.bootstrap, name, f"g-{name}") as group:
        group.add("confluent", 2)
        group.wait_for_lanes(8)
        group.wait_for_values(produce(kafka, name, KEYS, rounds=2))
        assert main([names.get(word, word) for word in shlex.split(command)]) == 0
        printed = capsys.readouterr().out
        report = describe(shared_keylane, f"g-{name}", capsys)

    heads = [line.split() for line in shown.splitlines() if line.isupper()]
    assert heads == [line.split() for line in printed.splitlines() if line.isupper()]
    assert len(heads) == 2
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", page, re.MULTILINE)
    fields = {name for row in rows for name in re.findall(r"\w+", row)}
    assert fields == {*report, *report["members"][0], *report["lanes"][0]}


def test_a_group_that_is_not_there(shared_keylane, capsys) -> None:
    """An unknown group and an unknown address: one line each and exit code 1."""
    assert main(["describe", "--control", shared_keylane.control, "--group", "absent"]) == 1
    assert main(["describe", "--control", "127.0.0.1:1", "--group", "x"]) == 1

    reported = capsys.readouterr().err
    assert "no group absent" in reported
    assert "nothing listens there" in reported
    assert "Traceback" not in reported


def test_the_control_port_knows_its_paths(shared_keylane) -> None:
    """Health answers ok, a path that is not there 404."""
    base = f"http://{shared_keylane.control}"

    with urllib.request.urlopen(f"{base}/healthz", timeout=60) as answer:  # noqa: S310
        assert answer.read() == b"ok\n"
    with pytest.raises(urllib.error.HTTPError, match="404") as missing:
        urllib.request.urlopen(f"{base}/nothing", timeout=60)  # noqa: S310
    missing.value.close()
