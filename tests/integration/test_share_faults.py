"""Share groups in key order while keylane, the broker and members come and go; Kafka's tools."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from keylane.embedded import run_java_tool
from keylane.wire.header import ApiKey
from tests.integration.conftest import PATIENCE_ARGS
from tests.integration.flow import beside
from tests.integration.share_stage import TAKEOVER_PAUSE_MS, Member, Scene, ShareStage
from tests.integration.share_wire import RECORD_LIMIT, PlainWire, call, wait_until

pytestmark = pytest.mark.timeout(400)  # kernels may have to be compiled first
NON_EMPTY: Final = 68
NOT_HERE: Final = (
    "records of a share group are not at keylane: members beside it hold them, or a transaction is "
    "open group={} "
)
OUT_OF_SYNC: Final = "The state machine of the coordinator is out of sync"
"""In the log of a broker that comes back with an old state of a group (docs/guarantees.md)."""
LONG_LOCK_MS: Final = 120_000
"""Of records that a direct member holds as long as a test lasts."""
KEYS = tuple(f"k{number}" for number in range(10))


def restart(stage: ShareStage) -> None:
    """Stop keylane, which gives back what it holds; start it again."""
    stage.proxy.restart()


def kill(stage: ShareStage) -> None:
    """Kill -9 keylane, start it again."""
    stage.proxy.kill()
    stage.proxy.start()


@pytest.mark.parametrize("how", [restart, kill])
def test_records_in_flight_and_held_come_again_in_order_after_a_restart(
    how: Callable[[ShareStage], None], scene, share_stage
) -> None:
    """Ten records that were out and twenty behind them come once more, each key in its order."""
    shown = scene()
    shown.write(*KEYS, *KEYS, *KEYS)
    member = shown.join()
    assert member.take(10) == dict.fromkeys(range(10), 1)
    assert member.ack(0) == 0

    how(share_stage)
    again = shown.again(member.topic_id)
    found: dict[int, int] = {}
    while len(found) < 29:
        part = again.take(1, max_records=500)
        assert all(offset < 10 or offset - 10 in {0, *found} for offset in part)
        assert again.ack(*part) == 0
        found |= part

    assert found == dict.fromkeys(range(1, 30), 2)
    shown.wait_for_lag(0)


def test_a_record_at_a_member_waits_after_a_kill_of_keylane(scene, share_stage) -> None:
    """The member may be at work yet: its key waits for the rule's pause, another key does not."""
    shown = scene("quiet")
    shown.write("a", "a", "z")
    member = shown.join()
    assert member.take(2) == {0: 1, 2: 1}
    assert member.ack(2) == 0

    share_stage.proxy.kill()
    shown.write("b")
    started_s = time.monotonic()
    share_stage.proxy.start()
    again, other = shown.again(member.topic_id), shown.again(member.topic_id)
    # It waits until keylane hands out anything: the lowest record, if no key had to wait.
    free = again.take(1, max_wait_ms=30_000)
    held = other.take(1)
    held_s = time.monotonic() - started_s

    assert (free, held) == ({3: 1}, {0: 2})
    assert held_s >= TAKEOVER_PAUSE_MS / 1000
    assert [again.ack(*free), other.ack(*held)] == [0, 0]
    assert other.take(1) == {1: 2}


def drain(member: Member, count: int, done: dict[int, int]) -> None:
    """Accept records until so many are done."""
    while len(done) < count:
        found = member.fetch(max_wait_ms=300).part.counts
        if found and member.ack(*found) == 0:
            done |= found


def test_records_come_again_in_order_after_a_kill_of_the_broker(scene, share_stage) -> None:
    """The broker is killed with two keys at members: all comes again, each key in its order."""
    shown = scene()
    shown.write("a", "b", "a", "b", "a")
    first, second = shown.join_many(2)
    assert first.take(1) == {0: 1}
    assert second.take(1) == {1: 1}
    assert second.ack(1) == 0

    share_stage.broker.kill()
    share_stage.broker.start()
    again = shown.again(first.topic_id)
    order: list[int] = []
    while not {0, 2, 3, 4} <= set(order):
        found = again.take(1)
        assert again.ack(*found) == 0
        order += found

    of_a, of_b = ([offset for offset in order if offset % 2 == key] for key in (0, 1))
    assert of_a == [0, 2, 4]
    assert of_b == [3] or (of_b == [1, 3] and has_lost_state(share_stage))
    shown.wait_for_lag(0)


def has_lost_state(stage: ShareStage) -> bool:
    """Return whether the broker says that it came back with an old state, as Kafka 4.3 may."""
    (node,) = stage.broker.nodes
    return OUT_OF_SYNC in node.settings.log_path.read_text(errors="replace")


def test_members_beside_keylane_lose_nothing_and_are_noticed(scene, share_stage) -> None:
    """A direct member of the same group holds records: the rest goes on, and the log says so."""
    shown = scene(share_record_lock_duration_ms=LONG_LOCK_MS)
    shown.write(*KEYS)
    direct = shown.join(share_stage.broker.bootstrap)
    taken = direct.take(4, mode=RECORD_LIMIT)
    assert direct.ack(0) == 0
    shown.write(*KEYS)
    member = shown.again(direct.topic_id)

    done: dict[int, int] = {}
    drain(member, 16, done)

    assert done == dict.fromkeys(range(4, 20), 1)
    share_stage.proxy.wait_for_log(NOT_HERE.format(shown.group))
    assert direct.ack(*taken) == 0
    shown.wait_for_lag(0)


def test_members_beside_keylane_are_noticed_in_a_group_that_is_new(scene, share_stage) -> None:
    """Nothing was written of the group when keylane began: it knows with the first outcome."""
    shown = scene(share_record_lock_duration_ms=LONG_LOCK_MS)
    shown.write(*KEYS)
    direct = shown.join(share_stage.broker.bootstrap)
    taken = direct.take(4, mode=RECORD_LIMIT)
    member = shown.again(direct.topic_id)

    done: dict[int, int] = {}
    drain(member, 6, done)

    assert done == dict.fromkeys(range(4, 10), 1)
    wait_until(lambda: NOT_HERE.format(shown.group) in share_stage.proxy.log, "the log line")
    assert direct.ack(*taken) == 0
    shown.wait_for_lag(0)


def test_a_new_group_has_no_strangers(scene, share_stage) -> None:
    """Its first outcomes prove that keylane holds all."""
    shown = scene()
    shown.write(*KEYS)
    member = shown.join()

    done: dict[int, int] = {}
    drain(member, 10, done)
    shown.write(*KEYS)
    drain(member, 20, done)

    shown.wait_for_lag(0)
    assert NOT_HERE.format(shown.group) not in share_stage.proxy.log


def test_the_tools_of_a_group_that_runs_and_of_one_that_has_ended(scene, share_stage) -> None:
    """Lag and offsets are the broker's; they are changed right after the last member has left."""
    shown = scene()
    shown.write(*KEYS)
    member = shown.join()
    assert member.ack(*member.take(3, mode=RECORD_LIMIT)) == 0

    def stay(stopping: threading.Event) -> None:
        while not stopping.wait(1):  # the tools may take longer than a session lasts
            member.client.heartbeat()

    with beside(stay), ThreadPoolExecutor(2) as pool:
        tool = "kafka-share-groups"
        server = ("--bootstrap-server", share_stage.bootstrap)
        base = (*server, "--group", shown.group, *PATIENCE_ARGS)
        described, refused = pool.map(
            lambda args: run_java_tool(tool, *base, *args, check=False),
            (
                ("--describe", "--offsets"),
                ("--reset-offsets", "--topic", shown.topic, "--to-earliest", "--execute"),
            ),
        )
    codes = [alter(shown), delete_offsets(shown)]
    member.close()
    codes += [alter(shown)]
    again = shown.join()
    counts = again.take(10)
    again.close()
    codes += [delete_offsets(shown), delete(shown)]

    (row,) = [line.split() for line in described.stdout.splitlines() if shown.topic in line]
    assert (row[0], row[1], row[-1]) == (shown.group, shown.topic, "7")
    assert f"Share group '{shown.group}' is not empty" in refused.stderr
    assert codes == [NON_EMPTY, NON_EMPTY, 0, 0, 0]
    assert counts == dict.fromkeys(range(10), 1)


def alter(shown: Scene) -> int:
    """Set the start offset to 0 through keylane; return the error code."""
    partitions = [{"partition_index": 0, "start_offset": 0}]
    with PlainWire(shown.stage.bootstrap) as wire:
        answer = call(
            wire, ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, group_id=shown.group,
            topics=[{"topic_name": shown.topic, "partitions": partitions}],
        )  # fmt: skip
    if answer.error_code:
        return int(answer.error_code)
    return int(answer.responses[0].partitions[0].error_code)


def delete_offsets(shown: Scene) -> int:
    """Delete the offsets of the topic through keylane; return the error code."""
    with PlainWire(shown.stage.bootstrap) as wire:
        answer = call(
            wire, ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, group_id=shown.group,
            topics=[{"topic_name": shown.topic}],
        )  # fmt: skip
    return int(answer.error_code or answer.responses[0].error_code)


def delete(shown: Scene) -> int:
    """Delete the group through keylane; return the error code."""
    with PlainWire(shown.stage.bootstrap) as wire:
        answer = call(wire, ApiKey.DELETE_GROUPS, 2, groups_names=[shown.group])
    return int(answer.results[0].error_code)
