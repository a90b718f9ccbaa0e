"""POST /groups/NAME/rebalance in front of a real Kafka: a group with skewed keys is evened out."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections import Counter
from typing import Any

import pytest

from tests.integration.harness import Group, produce
from tests.integration.keylane_process import KeylaneProcess

PARTITIONS, LANES, MEMBERS = 2, 16, 4
LANE_COUNT = PARTITIONS * LANES
NEVER = {"KEYLANE_LOAD_REBALANCE_INTERVAL_S": "100000"}
"""No look at the load comes by itself within a day."""
KEYS = [f"key-{rank}" for rank in range(1, 200) for _ in range(max(1, 200 // rank))]
OTHERS = [f"other-{rank}" for rank in range(1, 200) for _ in range(max(1, 800 // rank))]


def ask(proxy: KeylaneProcess, group: str, query: str = "") -> tuple[int, dict[str, Any]]:
    """Ask for a rebalance; the status and the document."""
    request = urllib.request.Request(
        f"http://{proxy.control}/groups/{group}/rebalance{query}", method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - http
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def events_of(proxy: KeylaneProcess, group: str) -> str:
    """Texts of the actions on a group."""
    url = f"http://{proxy.control}/events?group={group}"
    with urllib.request.urlopen(url, timeout=60) as answer:
        events = json.loads(answer.read())["events"]
    return "\n".join(each["text"] for each in events if each["kind"] == "action")


def wait_for_all(group: Group, values: list[str]) -> None:
    """Wait until as many records were seen: many have the same value."""
    wanted = f"{len(values)} records"
    group.wait(lambda seen: len(seen.sightings) >= len(values), timeout_s=120, what=wanted)


def owners_of(group: Group) -> dict[int, str]:
    """Return the member of each lane, as members report them."""
    return {lane: member for member, lanes in group.seen.lanes.items() for lane in lanes}


@pytest.mark.timeout(420)
@pytest.mark.parametrize(
    "options",
    [{"assignor": "roundrobin"}, {"protocol": "consumer"}],
    ids=["classic", "consumer protocol"],
)
def test_a_group_is_evened_out_when_it_is_asked(kafka, keylane, topic, options) -> None:
    """The preview moves nothing; then these lanes go to these members, and no record is lost."""
    name = topic("uneven", partitions=PARTITIONS)
    group_id = f"g-{name}"
    proxy = keylane(f"uneven-*={LANES}", environment=NEVER)
    with Group(proxy.bootstrap, name, group_id, session_timeout_ms=30_000, **options) as group:
        group.add("confluent", MEMBERS)
        group.wait_for_lanes(LANE_COUNT, timeout_s=120)
        if "protocol" in options:  # lanes that go to the last member may be at others for a while
            group.wait_for_even_lanes(LANE_COUNT // MEMBERS)
        values = produce(kafka, name, KEYS, rounds=4, codecs=["lz4"])
        wait_for_all(group, values)
        group.wait_for_commits()

        before = owners_of(group)
        status, shown = ask(proxy, group_id, "?dry_run=true")
        assert status == 200, shown
        assert (shown["dry_run"], shown["is_asked"], shown["reason"]) == (True, False, None)
        assert shown["balance"] > shown["balance_after"] and shown["moves"]
        assert all(move["bytes_per_s"] > 0 for move in shown["moves"])
        assert owners_of(group) == before
        status, asked = ask(proxy, group_id)
        assert (status, asked["is_asked"]) == (200, True)

        # The load turns round before the group has joined again: the answer still holds.
        values += produce(kafka, name, OTHERS, rounds=4, codecs=["lz4"])
        receivers = {move["lane_index"]: move["to_member"] for move in asked["moves"]}
        group.wait(
            lambda _: (
                len(now := owners_of(group)) == LANE_COUNT
                and all(now[lane] != before[lane] for lane in receivers)
            ),
            timeout_s=120,
            what="the lanes move",
        )
        wait_for_all(group, values)
        values += produce(kafka, name, KEYS, rounds=4, first=4, codecs=["lz4"])
        wait_for_all(group, values)
        group.wait_for_commits()
        after = owners_of(group)

    assert {lane for lane, owner in after.items() if owner != before[lane]} == receivers.keys()
    found = {(member_id, after[lane]) for lane, member_id in receivers.items()}
    assert len(found) == len(set(receivers.values()))
    assert Counter(group.seen.values()) == Counter(values)
    group.seen.assert_first_sightings_in_order()
    assert "asked for a rebalance" in events_of(proxy, group_id)
    proxy.wait_for_log(f"rebalance asked for by=an unnamed client at 127.0.0.1 group={group_id}")


def test_what_is_not_keylanes_to_move(kafka, keylane, topic) -> None:
    """A rule, an assignor of the client's own and an unknown group are named as the reason."""
    name = topic("unmoved", partitions=1)
    proxy = keylane("unmoved-*=4", args=("--assignor", "g-*=client"))
    with Group(proxy.bootstrap, name, f"g-{name}", assignor="roundrobin") as group:
        group.add("confluent", 1)
        group.wait_for_lanes(4)

        status, found = ask(proxy, f"g-{name}")
        assert (status, found["is_asked"], found["moves"]) == (200, False, [])
        assert found["reason"] == "a rule with `assignor: client` leaves its lanes to its clients"

    status, problem = ask(proxy, "no-such-group")
    assert (status, problem["detail"]) == (404, "there is no group no-such-group")
