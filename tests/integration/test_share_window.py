"""Share groups in key order, record by record: which member gets what, and when."""

from __future__ import annotations

import time
import urllib.request
from math import ceil

import pytest

from keylane.share.pace import AHEAD_S, POLLS_MAX
from tests.integration.share_stage import SHORT_LOCK_MS, WINDOW, ShareStage
from tests.integration.share_wire import (
    ACCEPT,
    RECORD_LIMIT,
    REJECT,
    RELEASE,
    RENEW,
    Part,
    wait_until,
)

pytestmark = pytest.mark.timeout(400)  # kernels may have to be compiled first
BAD_STATE = 121
INVALID = 42


def test_a_key_is_at_one_member_at_a_time(scene) -> None:
    """Of three records of a and one of b, two members get the first a and the b, then nothing."""
    shown = scene()
    shown.write("a", "a", "b", "a")
    first, second = shown.join_many(2)

    found = first.take(1), second.take(1)

    assert found == ({0: 1}, {2: 1})
    assert first.gets_nothing() and second.gets_nothing()


@pytest.mark.parametrize("outcome", [ACCEPT, REJECT])
def test_the_next_record_of_a_key_comes_when_the_one_before_is_confirmed(outcome, scene) -> None:
    """With the answer to ACCEPT or REJECT of offset 0, offset 1 of its key can be had."""
    shown = scene()
    shown.write("a", "a", "b")
    first, second = shown.join_many(2)
    assert first.take(2) == {0: 1, 2: 1}

    code = first.ack(0, kind=outcome)

    assert code == 0
    assert second.take(1) == {1: 1}
    shown.wait_for_lag(2)


def test_an_outcome_in_a_fetch_frees_its_key_for_the_same_fetch(scene) -> None:
    """A fetch that accepts offset 0 waits for offset 1 of the same key, and gets it."""
    shown = scene()
    shown.write("a", "a")
    member = shown.join()
    member.take(1)

    answer = member.fetch(acks=[(0, 0, [ACCEPT])], max_wait_ms=60_000)

    assert (answer.codes, answer.acquired) == ((0, 0, 0), ((1, 1, 1),))


def test_a_released_record_comes_before_the_next_of_its_key(scene) -> None:
    """Offset 0 is released: another member gets it with count 2, and b, but never offset 1."""
    shown = scene()
    shown.write("a", "a", "b")
    first, second = shown.join_many(2)
    assert first.take(1) == {0: 1}

    code = first.ack(0, kind=RELEASE)

    assert code == 0
    assert second.take(2) == {2: 1, 0: 2}
    assert first.gets_nothing()
    assert second.ack(0, 2) == 0
    assert first.take(1) == {1: 1}


def test_a_member_that_does_not_answer_loses_its_record(scene) -> None:
    """After the lock of 4 s another member gets the record, and the late ACCEPT gets 121."""
    shown = scene(share_record_lock_duration_ms=SHORT_LOCK_MS)
    shown.write("a", "a", "b")
    slow, other = shown.join_many(2)
    assert slow.take(1) == {0: 1}
    assert other.take(1) == {2: 1}
    assert other.ack(2) == 0

    found = other.take(1)

    assert found == {0: 2}
    assert slow.ack(0) == BAD_STATE
    assert other.ack(0) == 0
    assert slow.take(1) == {1: 1}


def test_a_renewal_moves_the_deadline(scene) -> None:
    """Renewed for longer than a lock, a record stays at its member with count 1."""
    shown = scene(share_record_lock_duration_ms=SHORT_LOCK_MS)
    shown.write("a", "a")
    member, other = shown.join_many(2)
    assert member.take(1) == {0: 1}
    end_s = time.monotonic() + 1.5 * SHORT_LOCK_MS / 1000

    while time.monotonic() < end_s:
        assert member.ack(0, kind=RENEW, renew=True) == 0
        assert other.gets_nothing(max_wait_ms=SHORT_LOCK_MS // 4)

    assert member.ack(0) == 0
    assert other.take(1) == {1: 1}


def test_renewals_of_v1_and_of_a_fetch_that_wants_records_are_refused(scene) -> None:
    """RENEW in v1 or without the flag is 42 at the partition, with amounts 42 at the top."""
    shown = scene()
    shown.write("a", "b")
    member = shown.join()
    member.take(1)
    renew = [(0, 0, [RENEW])]

    codes = [
        member.ack(0, kind=RENEW, version=1),
        member.ack(0, kind=RENEW),
        member.fetch(acks=renew, max_wait_ms=0).codes,
        member.fetch(acks=renew, renew=True, max_wait_ms=5).codes,
        member.fetch(acks=renew, renew=True).codes,
        member.ack(0),
    ]

    assert codes == [INVALID, INVALID, (0, 0, INVALID), (INVALID, 0, 0), (0, 0, 0), 0]


def test_a_group_whose_renewal_is_switched_off_is_served_when_it_is_on_again(
    scene, share_stage
) -> None:
    """With `share.renew.acknowledge.enable` off members get -1; switched on, all records."""
    shown = scene(share_record_lock_duration_ms=SHORT_LOCK_MS)
    shown.write("a", "a", "b")
    first, second = shown.join_many(2)
    assert first.take(1) == {0: 1}

    shown.configure(share_renew_acknowledge_enable="false")
    wait_until(lambda: second.fetch().part.error == -1, "the refusal")
    shown.configure(share_renew_acknowledge_enable="true")
    done: list[int] = []

    def finish_some() -> bool:
        found = second.fetch(max_records=1).part.counts
        assert not found or second.ack(*found) == 0
        done.extend(found)
        return len(done) == 3

    wait_until(finish_some, "all records")
    assert done.index(0) < done.index(1)
    shown.wait_for_lag(0)
    share_stage.proxy.wait_for_log("share.renew.acknowledge.enable of the group")


def test_the_number_of_records_is_exact(scene) -> None:
    """Of 600 records 1, 3 and 500 are handed out as asked, ascending, and no other one is sent."""
    shown = scene()
    shown.write(*(f"k{number}" for number in range(300)), form="lz4")
    shown.write(*(f"k{number}" for number in range(300, 600)), form="zstd")
    member = shown.join()
    shapes = []

    for asked in (1, 3, 500):
        answer = member.client.acquire(member.topic_id, max_records=asked, mode=RECORD_LIMIT)
        shapes.append(answer.part)

    assert [sum(last - first + 1 for first, last, _ in part.acquired) for part in shapes] == [
        1,
        3,
        500,
    ]
    for part in shapes:
        assert [offset for offset, _ in part.records] == sorted(part.counts)
        assert list(part.acquired) == sorted(part.acquired)


def test_a_fast_member_gets_more_polls_in_batches_of_one_poll(scene) -> None:
    """In the mode `batch_optimized`: one poll of 10 at first, then twice as many, up to eight.

    A member that needs longer, as one does where the machine stalls, gets half a second of work.
    """
    shown = scene()
    shown.write(*(f"k{number}" for number in range(600)), form="lz4")
    member = shown.join()
    asked_s = 0.0

    def fetch() -> Part | None:
        nonlocal asked_s
        asked_s = time.monotonic()
        answer = member.fetch(max_records=10, max_wait_ms=0)
        assert answer.codes == (0, 0, 0), answer
        return answer.part if answer.acquired else None

    polls, least = 0, 1
    for most in (1, 2, 4, POLLS_MAX):
        before_s = asked_s
        part = wait_until(fetch, "records")
        if polls:  # it took no longer from the answer before to this request
            poll_s = (time.monotonic() - before_s) / polls
            least = min(2 * polls, POLLS_MAX, ceil(AHEAD_S / poll_s))
        offsets = [offset for offset, _ in part.records]
        polls = len(part.batches)
        assert least <= polls <= most
        assert len(offsets) == 10 * polls
        assert offsets == sorted(part.counts)
        assert member.ack(*offsets) == 0


def test_a_member_that_fetches_ahead_of_its_work_gets_one_poll_each_time(scene) -> None:
    """It has records yet when it asks for more: nothing says that it works fast."""
    shown = scene()
    shown.write(*(f"k{number}" for number in range(600)), form="lz4")
    member = shown.join()

    answers = [member.client.acquire(member.topic_id, max_records=10).part for _ in range(4)]

    assert [len(part.counts) for part in answers] == [10, 10, 10, 10]


def test_no_records_are_handed_out_where_none_are_asked_for(scene) -> None:
    """max_records 0 brings nothing, min_bytes 0 brings what is ready, and neither waits."""
    shown = scene()
    shown.write("a", "b")
    member, idle = shown.join_many(2)
    member.take(1)

    none = idle.fetch(max_records=0, max_wait_ms=60_000)
    some = idle.fetch(min_bytes=0, max_wait_ms=60_000)
    left = idle.fetch(min_bytes=0, max_wait_ms=60_000)

    assert none.acquired == ()
    assert some.acquired + left.acquired in ((), ((1, 1, 1),))


def test_an_idle_fetch_is_answered_after_its_wait(scene) -> None:
    """A fetch of an empty topic with 300 ms of wait is answered empty, not before."""
    shown = scene()
    member = shown.join()
    member.fetch(max_wait_ms=0)
    began_s = time.monotonic()

    answer = member.fetch(max_wait_ms=300)

    assert (answer.codes, answer.acquired) == ((0, 0, 0), ())
    assert time.monotonic() - began_s >= 0.29


def test_four_members_share_what_is_ready(scene) -> None:
    """Each gets a quarter of what is left, where half of what is at members counts as done.

    So the first of four that ask for 500 gets 50 of 200 keys. Those that are done get the rest.
    """
    shown = scene()
    members = shown.join_many(4)
    assert all(member.gets_nothing(max_wait_ms=0) for member in members)
    shown.write("first", *(f"k{number}" for number in range(200)))
    # The log's end is known when an outcome is confirmed: the fetch that has it brings no record.
    assert members[0].take(1) == {0: 1}
    assert members[0].ack(0) == 0

    found = [len(member.take(1, max_records=500)) for member in members]

    assert found == [50, 44, 39, 34]


def test_a_slow_member_starves_no_other(scene) -> None:
    """While one member holds what it got, another finishes all other keys."""
    shown = scene()
    keys = [f"k{number}" for number in range(40)]
    slow, quick = shown.join_many(2)
    slow.fetch(max_wait_ms=0)
    quick.fetch(max_wait_ms=0)
    shown.write(*keys, *keys)
    held = slow.take(1, max_records=500)
    left = 80 - 2 * len(held)

    done: set[int] = set()
    while len(done) < left:
        found = quick.take(1, max_records=500)
        assert quick.ack(*found) == 0
        done |= found.keys()

    assert not done & {offset % 40 for offset in held}
    assert quick.gets_nothing()


def test_a_hot_key_holds_up_no_other_until_the_window_is_full(scene) -> None:
    """With a window of 100, keys behind a record that waits go on to offset 99, then stop."""
    shown = scene("ahead")
    shown.write("hot", *(f"k{number}" for number in range(4 * WINDOW)))
    holder, member = shown.join_many(2)
    assert holder.take(1) == {0: 1}

    highest = 0
    while highest < WINDOW - 1:
        found = member.take(1, max_records=500)
        highest = max(found)
        assert member.ack(*found) == 0

    # The alert KeylaneShareWindowFull fires above 0.8, and stops when the key goes on.
    assert window_used(shown.stage, shown.group) > 0.9
    assert holder.ack(0) == 0
    while highest < 4 * WINDOW:
        found = member.take(1, max_records=500)
        highest = max(found)
        assert member.ack(*found) == 0
    shown.wait_for_lag(0)
    wait_until(lambda: window_used(shown.stage, shown.group) < 0.8, "room in the window")


def window_used(stage: ShareStage, group: str) -> float:
    """Return `keylane_share_window_used_ratio` of a group; 0: there is none."""
    with urllib.request.urlopen(f"http://{stage.proxy.control}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    head = f'keylane_share_window_used_ratio{{group="{group}"'
    return max((float(line.split()[-1]) for line in lines if line.startswith(head)), default=0.0)


def test_five_hundred_keys_over_two_partitions_finish_in_order(scene) -> None:
    """Three rounds of 500 keys in two partitions come once each, each key in its order."""
    shown = scene(partitions=2)
    keys = [f"k{number}" for number in range(250)]
    for partition in range(2):
        for _ in range(3):
            shown.write(*keys, partition=partition)
    members = shown.join_many(3)
    places = [(members[0].topic_id, index) for index in range(2)]
    seen: dict[tuple[int, int], list[int]] = {}
    done = 0

    while done < 1500:
        for member in members:
            answer = member.client.fetch_all(dict.fromkeys(places, ()), max_wait_ms=100)
            acks = {}
            for place, part in answer.parts.items():
                for offset in part.counts:
                    seen.setdefault((place[1], offset % 250), []).append(offset)
                    done += 1
                acks[place] = [(first, last, [ACCEPT]) for first, last, _ in part.acquired]
            if acks:
                assert member.client.acknowledge_all(acks).error == 0

    assert done == 1500
    assert all(offsets == sorted(set(offsets)) for offsets in seen.values())
