"""Every command that asks a node or a cluster, once, against a real node and a real Kafka."""

from __future__ import annotations

import json
from typing import Any

import pytest

from keylane.cli.main import main
from tests.integration.harness import Group, produce
from tests.integration.share_wire import wait_until

KEYS = [f"key-{number}" for number in range(50)]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command to its end; its exit code, stdout and stderr."""

    def call(*argv: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(list(argv))
        return code, *capsys.readouterr()

    return call


def has_members(document: Any, group: str, count: int) -> bool:
    """Return whether the node has seen so many members: it looks at groups now and then."""
    groups = document("groups", "--sort", "lag")["groups"]
    return (group, count) in {(each["group"], each["member_count"]) for each in groups}


def test_commands_of_a_group(kafka, keylane, topic, run) -> None:
    """Lists, events, a rebalance, a refused reset; without members the reset counts."""
    name = topic("lanes4", partitions=2)
    group = f"g-{name}"
    proxy = keylane("lanes4-*=4")
    where = ["--control", proxy.control]

    def document(*argv: str) -> Any:
        code, out, err = run(*argv, *where, "-o", "json")
        assert (code, err) == (0, "")
        return json.loads(out)

    with Group(proxy.bootstrap, name, group) as members:
        members.add("confluent", 2)
        members.wait_for_lanes(8)
        members.wait_for_values(produce(kafka, name, KEYS, rounds=4))
        members.wait_for_commits()

        wait_until(lambda: has_members(document, group, 2), f"two members of {group}")
        topics = {each["topic"]: each for each in document("topics")["topics"]}
        cluster = document("nodes")
        # Groups of other tests may end meanwhile: each is a line on stderr.
        described = run("describe", "--all-groups", "--sort", "lag-s", *where, "-o", "json")
        preview = document("rebalance", "--group", group)
        refused = run("reset-offsets", "--group", group, "--all-topics", "--to-earliest", *where)
        tables = [
            run(*argv, *where)
            for argv in (
                ("groups",),
                ("topics",),
                ("nodes",),
                ("events",),
                ("describe", "--group", group, "--sort", "name"),
                ("rebalance", "--group", group),
            )
        ]

    assert topics[name]["lane_count"] == 4
    assert cluster["node"]["cluster_id"] and cluster["brokers"][0]["is_reachable"]
    assert described[0] == 0
    assert group in {each["group"] for each in json.loads(described[1])}
    assert (preview["dry_run"], preview["group"]) == (True, group)
    assert refused[0] == 1
    assert refused[2].startswith("keylane reset-offsets: ") and refused[2].count("\n") == 1
    for code, out, err in tables:
        assert (code, err) == (0, "")
        assert len(out.splitlines()) > 1

    reset = ["reset-offsets", "--group", group, "--topic", name, "--to-earliest"]
    planned = document(*reset)
    done = document(*reset, "--execute")

    assert [part["to_offset"] for part in planned["partitions"]] == [0, 0]
    assert [part["to_offset"] for part in done["partitions"]] == [0, 0]
    assert any("reset" in each["text"] for each in document("events")["events"])


def test_an_only_node_is_not_drained(shared_keylane, run) -> None:
    """The control port's own words on one line, exit code 1."""
    where = ["--control", shared_keylane.control]

    code, out, err = run("drain", "--node", "0", *where)

    assert (code, out) == (1, "")
    assert err.startswith("keylane drain: ") and err.count("\n") == 1


def test_the_configuration_of_a_node(shared_keylane, run) -> None:
    """Bootstrap and lanes are in force, each from its flag."""
    code, out, err = run("config", "--changed", "--control", shared_keylane.control, "-o", "json")

    keys = {each["key"]: each for each in json.loads(out)["keys"]}
    assert (code, err) == (0, "")
    assert keys["bootstrap"]["place"] == "--bootstrap"
    assert keys["lanes"]["source"] == "flag"


def test_a_cluster_is_checked(kafka, topic, run) -> None:
    """Brokers answer, nothing lacks, a rule has its topic and another has none."""
    name = topic("checked", partitions=2)
    args = ["--bootstrap", kafka, "--lanes", f"{name}=16", "--lanes", "no-such-topic=2"]

    code, out, err = run("check", *args, "--set", "listen=127.0.0.1:0")

    assert (code, err) == (0, "")
    lines = [line.split(maxsplit=2) for line in out.splitlines()]
    assert ["ok", "right", "keylane's principal has its rights"] in lines
    assert ["ok", "rule", f"{name}: 2 partitions x 16 lanes"] in lines
    assert ["warning", "rule", "no-such-topic: matches no topic"] in lines


def test_what_is_no_control_port_is_one_line(kafka, shared_keylane, run) -> None:
    """A broker, and keylane's own listener of Kafka clients."""
    for address in (kafka, shared_keylane.bootstrap):
        code, out, err = run("groups", "--control", address)

        assert (code, out) == (1, "")
        assert err.startswith(f"keylane groups: {address}: no HTTP answer")
        assert err.count("\n") == 1


def test_an_unknown_group_is_one_line(shared_keylane, run) -> None:
    """Its name, and no document around it."""
    code, out, err = run("describe", "--group", "absent", "--control", shared_keylane.control)

    assert (code, out) == (1, "")
    assert err == "keylane describe: there is no group absent\n"
