"""Which key has its turn next: the one with most records behind it, and none waits without end."""

from __future__ import annotations

import gc
from collections.abc import Callable

from keylane.client.workers.queue import Work, WorkQueues
from tests.reference.worker_source import P0, make_record

WORKERS = 8


def rounds_of(queues: WorkQueues, between: Callable[[], None] = lambda: None) -> list[set[bytes]]:
    """Work until all is done, eight records at a time: the keys of each round."""
    rounds = []
    while queues.queued_count:
        works = [work for _ in range(WORKERS) if (work := queues.take()) is not None]
        rounds.append({work.key or b"" for work in works})
        for work in works:
            queues.finished(work)
        between()
    return rounds


def test_a_hot_key_is_at_work_all_the_time() -> None:
    """50 records of one key and 400 of a hundred others take 57 rounds, as few as 450 / 8 need.

    With keys in turn the hot one would have one round in thirteen, and be alone at the end.
    """
    keys = [b"hot"] * 50 + [b"%d" % (number % 100) for number in range(400)]
    queues = WorkQueues()
    queues.add(make_record(P0, offset, key) for offset, key in enumerate(keys))

    rounds = rounds_of(queues)

    assert len(rounds) == 57
    assert all(b"hot" in keys for keys in rounds[:45])


def test_keys_end_together() -> None:
    """Of 40 keys with 1 to 40 records all workers have some until the last round but one."""
    keys = [b"%d" % key for key in range(40) for _ in range(key + 1)]
    queues = WorkQueues()
    queues.add(make_record(P0, offset, key) for offset, key in enumerate(keys))

    rounds = rounds_of(queues)

    assert [len(keys) for keys in rounds[:-1]] == [WORKERS] * (len(keys) // WORKERS)


def test_records_that_were_worked_on_are_let_go() -> None:
    """A key that goes ahead may leave an entry in the queue of turns: as many as wait, at most."""
    before = count_works()
    queues = WorkQueues(passed_max=10_000)
    queues.press({P0: 1_000})
    queues.add(make_record(P0, offset, b"rare-%d" % offset) for offset in range(8))
    queues.add([make_record(P0, 8, b"hot")])

    for offset in range(9, 2_009, 20):
        queues.add(make_record(P0, offset + number, b"hot") for number in range(20))
        for _ in range(20):
            work = queues.take()
            assert work is not None and work.key == b"hot"
            queues.finished(work)

    assert count_works() - before <= 2 * (8 + 1) + 1


def count_works() -> int:
    """Works in memory."""
    return sum(type(each) is Work for each in gc.get_objects())


def test_a_rare_key_is_passed_by_so_many_records_at_most() -> None:
    """Nine hot keys that never end leave the tenth its turn, after `passed_max` records."""
    queues, offset, added = WorkQueues(passed_max=100), 0, 0

    def add_hot() -> None:
        nonlocal offset, added
        room = 300 - queues.queued_count if added < 3000 else 0
        hot = [b"hot-%d" % ((offset + number) % 9) for number in range(room)]
        queues.add(make_record(P0, offset + number, key) for number, key in enumerate(hot))
        offset, added = offset + room, added + room

    add_hot()
    queues.add([make_record(P0, offset, b"rare")])
    offset += 1

    rounds = rounds_of(queues, add_hot)

    (found,) = (number for number, keys in enumerate(rounds) if b"rare" in keys)
    assert found * WORKERS <= 9 + WORKERS + 100
