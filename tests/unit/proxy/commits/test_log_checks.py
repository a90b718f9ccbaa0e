"""Loaded states against the logs of now: by epoch, and only what no member committed."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable

import numpy as np
import pytest

from keylane.keyrange.key_split import even_split
from keylane.offsets.lineage import FRESH_S, EpochEnd, EpochStart, Lineages
from keylane.offsets.records.journal import StateKey
from keylane.offsets.scan import ScanIndex
from keylane.offsets.state import OffsetState
from keylane.offsets.table import OffsetTable
from keylane.proxy.commits.log_checks import RETRY_S, LogChecks
from keylane.proxy.commits.log_ends import SILENT, Question

FOUR = even_split(4)
KEY = StateKey("group", uuid.UUID(int=7), 3)
PLACE = (KEY.topic_id, KEY.partition)
SEEN = EpochStart(5, 12_000)


def concluded_state() -> OffsetState:
    """Lanes 0 to 2 said 25,000; lane 3 said 101 and counts as 25,000."""
    scan = ScanIndex(FOUR)
    state = OffsetState(committed=None, topic_name="orders")
    scan.add(0, 25_000, np.array([24_997, 24_998, 24_999, 100], np.int64))
    for lane, offset in enumerate((25_000, 25_000, 25_000, 101)):
        state.commit_keys((FOUR.key_range(lane),), offset, scan=scan)
    return state


class World:
    """A table with one loaded state, and the leader of its partition."""

    def __init__(self, state: OffsetState, seen: EpochStart | None) -> None:
        table = OffsetTable(partition_count=1)
        table.put(KEY, state)
        if seen is not None:
            table.note_epoch(KEY, seen)
        self.table = OffsetTable(partition_count=1)
        for offset, record in enumerate(table.records(KEY, now_ms=1)):
            self.table.apply(record.partition, offset, record.key, record.value)
        self.table.finish_load()
        self.asked: list[Question] = []
        self.answer: EpochEnd | None = None
        self.now_s = 100.0
        self.lineages = Lineages()
        self.checks = LogChecks(self._ask, self.lineages, clock=lambda: self.now_s)
        self.checks.note_unsure(self.table.items())

    async def _ask(self, questions: Iterable[Question]) -> dict[Question, EpochEnd]:
        asked = list(questions)
        self.asked += asked
        return {} if self.answer is None else dict.fromkeys(asked, self.answer)

    def look(self) -> None:
        """Somebody asks where the group stands."""
        self.checks.note_asked(KEY.group, self.table)

    def open(self) -> list[int]:
        """A call of the group: where its lanes stand."""
        self.checks.note_led(self.table.items())
        if self.checks.waits(KEY.group):
            asyncio.run(self.checks.repair(KEY.group, self.table))
        state = self.table.get(KEY)
        assert state is not None
        state.check()
        return [state.position_of(FOUR.key_range(lane)).offset for lane in range(4)]


@pytest.mark.parametrize(
    ("seen", "answer", "last_lane"),
    [
        (SEEN, EpochEnd(5, 25_000), 25_000),
        (SEEN, EpochEnd(5, 30_000), 25_000),
        (SEEN, EpochEnd(5, 15_000), 15_000),
        (SEEN, EpochEnd(5, 0), 101),
        (SEEN, EpochEnd(3, 9_000), 9_000),
        (SEEN, EpochEnd(3, 14_000), 12_000),
        (None, EpochEnd(9, 20_000), 20_000),
        (None, EpochEnd(9, 40_000), 25_000),
        (SEEN, SILENT, 25_000),
    ],
)
def test_a_state_is_cut_where_its_epoch_ends(
    seen: EpochStart | None, answer: EpochEnd, last_lane: int
) -> None:
    """The log was cut while no keylane ran; without an epoch at least its end counts."""
    world = World(concluded_state(), seen)
    world.answer = answer

    lanes = world.open()

    assert lanes == [25_000, 25_000, 25_000, last_lane]
    assert world.asked == [Question("orders", *PLACE, -1 if seen is None else 5)]
    world.open()
    assert len(world.asked) == 1, "a leader is asked once"


def test_a_leader_that_is_away_is_asked_again_later() -> None:
    """Calls go on meanwhile, on what members said; not every one of them waits."""
    world = World(concluded_state(), SEEN)

    world.open()
    world.open()
    unsure = world.checks.is_unchecked(KEY)
    world.now_s += RETRY_S
    world.answer = EpochEnd(5, 15_000)
    lanes = world.open()

    assert unsure and not world.checks.is_unchecked(KEY)
    assert lanes[3] == 15_000
    assert len(world.asked) == 2


def test_a_state_that_says_only_what_members_said_is_not_checked() -> None:
    """It costs no request, however many there are."""
    state = OffsetState(committed=500, topic_name="orders")

    world = World(state, None)

    assert not world.checks.waits(KEY.group)
    assert world.open() == [500] * 4


def test_a_cut_is_applied_before_the_group_is_served_again() -> None:
    """Also while its leader is away, and the lowest of several cuts counts."""
    world = World(concluded_state(), SEEN)
    world.open()

    world.checks.note_cut([KEY], 16_000)
    world.checks.note_cut([KEY], 15_000)
    world.checks.note_cut([KEY], 17_000)
    lanes = world.open()

    assert lanes[3] == 15_000


@pytest.mark.parametrize(("compared", "asked"), [(7, 1), (8, 0)])
def test_a_new_leader_is_asked_before_the_group_is_served_again(compared: int, asked: int) -> None:
    """Clients ask for offsets before anybody reads; what a reader has compared is not asked."""
    world = World(concluded_state(), SEEN)
    world.answer = EpochEnd(5, 25_000)
    world.open()
    world.asked.clear()
    world.answer = EpochEnd(5, 15_000)

    world.lineages.of(PLACE).leader_epoch = compared
    world.checks.note_leader(PLACE, 8)
    lanes = world.open()

    assert len(world.asked) == asked
    assert lanes[3] == (15_000 if asked else 25_000)


def test_what_was_checked_is_compared_with_later_leaders() -> None:
    """A reader that has read nothing itself finds a cut below the state."""
    world = World(concluded_state(), SEEN)
    world.answer = EpochEnd(5, 25_000)

    world.open()

    lineage = world.lineages.of(PLACE)
    assert (lineage.newest, lineage.end, lineage.before(25_000)) == (5, 25_000, SEEN)


def test_a_state_that_is_gone_is_no_longer_waited_for() -> None:
    """Deleted, or of a partition of the journal that another node serves now."""
    for forget in ("forget", "forget_where"):
        world = World(concluded_state(), SEEN)
        world.checks.note_cut([KEY], 10)
        world.checks.forget(KEY) if forget == "forget" else world.checks.forget_where(
            lambda group: group == KEY.group
        )

        assert not world.checks.waits(KEY.group)


def test_a_log_without_a_reader_is_compared_when_a_group_is_asked_for() -> None:
    """It was cut, and no metadata has named the new leader; once in a while that is asked."""
    world = World(concluded_state(), SEEN)
    world.answer = EpochEnd(5, 25_000)
    assert world.open() == [25_000] * 4
    world.answer = EpochEnd(5, 20_000)
    asked = len(world.asked)
    assert world.open() == [25_000] * 4, "a commit goes by what is known"

    world.now_s += FRESH_S
    world.look()
    found = world.open()
    world.look()
    world.open()

    assert found == [25_000, 25_000, 25_000, 20_000]
    assert len(world.asked) == asked + 1
    world.now_s += 2 * FRESH_S
    world.look()
    world.open()
    assert len(world.asked) == asked + 2


def test_a_log_that_is_read_is_not_compared_when_a_group_is_asked_for() -> None:
    """Its reader does so as soon as it meets another leader."""
    world = World(concluded_state(), SEEN)
    world.answer = EpochEnd(5, 25_000)
    world.open()
    asked = len(world.asked)
    world.now_s += 100
    world.lineages.of(PLACE).known_s = world.now_s - FRESH_S

    world.look()
    world.open()

    assert len(world.asked) == asked
