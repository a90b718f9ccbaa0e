"""Members of other languages on lanes: they come, leave, and are killed with keylane."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.clients.builds import CLIENTS
from tests.clients.checker import judge, read_log
from tests.clients.members import ClientGroup
from tests.integration.flow import steady_flow
from tests.integration.harness import Sighting, reported_at_s
from tests.integration.test_group_handover import log_ends, stable_offsets

PARTITIONS, LANES = 2, 4
SETTLE_S = 60
"""Twice what a member takes whose commits, heartbeats and joins all fail once."""


@pytest.mark.parametrize(
    ("client", "protocol"),
    [
        ("franz-go", "classic"),
        ("sarama", "classic"),
        ("kafka-go", "classic"),
        ("kafkajs", "classic"),
        pytest.param("franz-go", "consumer", marks=pytest.mark.long),
        pytest.param("confluent-js", "classic", marks=pytest.mark.long),
    ],
)
def test_six_members_share_two_partitions(
    client, protocol, member_of, kafka, keylane, topic, java, tmp_path
) -> None:
    """One leaves, two join, one is killed together with keylane: nothing is lost or unordered."""
    command = member_of(client)
    name = topic("orders", partitions=PARTITIONS)
    group_id = f"g-{name}"
    proxy = keylane(f"orders-*={LANES}")
    with ClientGroup(command, proxy.bootstrap, name, group_id, protocol=protocol) as group:
        group.log_folder = tmp_path
        first = group.add(client, 6)
        with steady_flow(kafka, name, 300):
            group.wait_for_lanes(PARTITIONS * LANES, timeout_s=SETTLE_S)
            group.wait(
                lambda seen: seen.busy() == set(first), timeout_s=SETTLE_S, what="work for six"
            )
            group.leave(first[0])
            group.add(client, 2)
            group.wait_for_lanes(PARTITIONS * LANES, timeout_s=SETTLE_S)
            group.wait_for_more(500, timeout_s=SETTLE_S)
            group.kill(first[1])
            proxy.kill()
            proxy.start()
            group.wait_for_lanes(PARTITIONS * LANES, timeout_s=SETTLE_S)
            group.wait_for_more(500, timeout_s=SETTLE_S)
        ends = log_ends(kafka, name, PARTITIONS)
        log = read_log(kafka, name, ends)
        group.wait_for_values((value for _, value in log.values()), timeout_s=SETTLE_S)
        group.wait_for_commits(timeout_s=SETTLE_S)
    # Without members: at the broker the tool asks for the ends of all that members hold, lanes too.
    described = java.run(
        "kafka-consumer-groups",
        *("--bootstrap-server", kafka, "--describe", "--group", group_id, "--offsets"),
    )

    verdict = judge(
        log, group.seen.sightings, group.commits, group.assignments, partitions=PARTITIONS
    )
    print(f"{client} {protocol}: {verdict}")
    assert verdict.is_clean, f"{verdict}\n{lane_story(verdict.again, group)}"
    assert stable_offsets(kafka, group_id, name, PARTITIONS) == ends
    assert lags(described.stdout) == [0] * PARTITIONS, described.stdout


@pytest.mark.parametrize("client", CLIENTS)
def test_lanes_with_many_gaps_are_read_once(
    client, member_of, kafka, keylane, topic, tmp_path
) -> None:
    """Each record is a batch, so that most of a lane is gaps: one member gets each record once."""
    command = member_of(client)
    name = topic("orders", partitions=PARTITIONS)
    proxy = keylane(f"orders-*={LANES}")
    with ClientGroup(command, proxy.bootstrap, name, f"g-{name}") as group:
        group.log_folder = tmp_path
        group.add(client)
        with steady_flow(kafka, name, 200, **{"batch.num.messages": 1}) as values:
            group.wait_for_more(1500, timeout_s=SETTLE_S)
        group.wait_for_values(values, timeout_s=SETTLE_S)
        group.wait_for_commits(timeout_s=SETTLE_S)

    assert group.seen.values() == dict.fromkeys(values, 1)


def lags(described: str) -> list[int]:
    """Return the lag of each partition by Kafka's tool."""
    header, *rows = [line.split() for line in described.splitlines() if len(line.split()) > 5]
    return [int(row[header.index("LAG")]) for row in rows]


def lane_story(found: Sequence[Sighting], group: ClientGroup) -> str:
    """Return what happened to the lane of a finding before it: a line for each report."""
    if not found:
        return ""
    lane, until_s = found[0].lane, found[0].at_s
    lines = [
        (each.at_s, f"{each.member} saw {each.offset}")
        for each in group.seen.sightings
        if each.lane == lane
    ]
    lines += [
        (each.at_s, f"{each.member} committed {each.offset}")
        for each in group.commits
        if each.lane == lane
    ]
    lines += [
        (reported_at_s(reported), f"{member} {reported}") for member, reported in group.seen.events
    ]
    before = sorted(line for line in lines if until_s - 5 < line[0] <= until_s)
    return "\n".join(f"{at_s:.3f} {text}" for at_s, text in before[-60:])
