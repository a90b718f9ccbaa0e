"""A log that is cut while pushes are under way: what was concluded beyond the cut counts no more.

Lane 3 has said 101 and counts as 200, since a scan found its last record at 100; the others have
said 200. The log is cut at 120.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest

from keylane.errors import UpstreamLost
from keylane.offsets.lineage import EpochEnd
from keylane.proxy.commits.log_checks import AskEnds
from keylane.proxy.commits.log_ends import Question
from keylane.wire.header import read_request_header
from tests.reference.crash_world import COMMIT, Died, Kafka, Node
from tests.transcript.crashing_node import (
    AFTER_INTENT,
    LANES,
    at_1000,
    commit,
    fault,
    offsets,
    offsets_and_codes,
    started,
    transact,
)
from tests.transcript.fake import ORDERS

ENDS = {0: 200, 1: 200, 2: 200, 3: 101}
AN_HOUR_S = 3600.0


async def node_with_a_scan(kafka: Kafka) -> Node:
    """Of `[0, 200)`: lane 3 has nothing behind 100."""
    node = await started(kafka)
    scan = node.offsets.scan_of(node.lanes("orders"), 0)
    scan.add(0, 200, np.array([197, 198, 199, 100], np.int64))
    node.offsets.lineages.of((ORDERS, 0)).known_s = math.inf  # it is read all the time
    return node


def ends_at(end: int) -> AskEnds:
    """What leaders say of the last epoch."""

    async def ask(questions: Iterable[Question]) -> dict[Question, EpochEnd]:
        return dict.fromkeys(questions, EpochEnd(0, end))

    return ask


def ends_of_epochs(ends: dict[int, int]) -> AskEnds:
    """What leaders say of each."""

    async def ask(questions: Iterable[Question]) -> dict[Question, EpochEnd]:
        return {each: EpochEnd(each.epoch, ends[each.epoch]) for each in questions}

    return ask


async def silent(_questions: Iterable[Question]) -> dict[Question, EpochEnd]:
    """Leaders that do not answer in time."""
    return {}


def is_cut_at_120(node: Node) -> None:
    node.offsets._checks._ask = ends_at(120)


def is_led_anew(node: Node, leaders: AskEnds) -> None:
    """Another node reads under the new leader; that is a contradiction, as none was compared."""
    node.offsets._checks._ask = leaders
    node.offsets.note_leader((ORDERS, 0), 1)
    node.scan(199, 200, 1, is_own=False)


async def test_a_cut_takes_back_what_a_transaction_had_counted_on() -> None:
    """Its note stays in Kafka's metadata, and is read again at each look."""
    node = await node_with_a_scan(Kafka())
    for lane, offset in ENDS.items():
        assert await transact(node, {lane: offset}) == [0]
    assert await offsets(node) == [200] * LANES

    node.offsets.on_truncated(ORDERS, 0, 120)

    assert await offsets(node) == [200, 200, 200, 120]


async def test_a_clean_election_takes_back_nothing_that_a_transaction_has_counted_on() -> None:
    """Another node reads on under the new leader, whose log has all that was read before."""
    kafka, leaders = Kafka(), ends_of_epochs({0: 200, 1: 300})
    node = await node_with_a_scan(kafka)
    lineage = node.offsets.lineages.of((ORDERS, 0))
    lineage.note(200, ((0, 0),))
    assert await transact(node, ENDS) == [0] * LANES
    is_led_anew(node, leaders)
    node.offsets.scan_of(node.lanes("orders"), 0).add(200, 300, np.array([297, 298, 299, -1]))
    lineage.note(300, ((1, 200),))

    assert await transact(node, dict.fromkeys(range(3), 300)) == [0] * 3

    assert kafka.offset == 300
    node = await started(kafka)
    node.offsets._checks._ask = leaders
    assert [await offsets(node) for _ in range(2)][-1] == [300] * LANES


async def test_a_silent_leader_holds_up_no_commit_behind_a_transaction_of_another_log() -> None:
    """What members commit counts meanwhile, and at the next node, which the leader answers."""
    kafka = Kafka()
    node = await node_with_a_scan(kafka)
    node.offsets.lineages.of((ORDERS, 0)).note(200, ((0, 0),))
    assert await transact(node, ENDS) == [0] * LANES
    is_led_anew(node, silent)

    assert await transact(node, dict.fromkeys(range(3), 300)) == [0] * 3

    node = await started(kafka)
    node.offsets._checks._ask = ends_of_epochs({0: 200, 1: 300})
    assert (await offsets(node))[:3] == [300] * 3


@pytest.mark.parametrize("dies", [False, True])
async def test_a_silent_leader_leads_no_lane_on_by_what_others_scan_of_its_log(dies) -> None:
    """The state is of the log before, as far as is known, and its epoch ends where that does.

    Once the leader answers, nothing has to go back: the lanes stand where Kafka's own offset does.
    The node that has the scan counts on it then.
    """
    kafka = Kafka()
    node = await node_with_a_scan(kafka)
    node.offsets.lineages.of((ORDERS, 0)).note(200, ((0, 0),))
    assert await commit(node, ENDS) == [0] * LANES
    is_led_anew(node, silent)
    node.offsets.scan_of(node.lanes("orders"), 0).add(200, 300, np.array([297, 298, 299, -1]))

    assert await commit(node, dict.fromkeys(range(3), 300)) == [0] * 3

    assert kafka.offset == 200
    if dies:
        node = await started(kafka)
    node.offsets._checks._ask = ends_of_epochs({0: 200, 1: 300})
    node.offsets._checks._retry_s.clear()  # the leader is asked again in a while
    assert [await offsets(node) for _ in range(2)][-1] == [300, 300, 300, 200]
    assert await commit(node, {0: 300}) == [0]
    assert kafka.offset == (200 if dies else 300)


async def test_a_log_that_is_cut_under_a_transaction_of_a_dead_node() -> None:
    """The next node reads the note, and asks the leader how far that may count."""
    kafka = Kafka()
    node = await node_with_a_scan(kafka)
    for lane, offset in ENDS.items():
        assert await transact(node, {lane: offset}) == [0]
    node = await started(kafka)
    is_cut_at_120(node)

    found = [await offsets(node) for _ in range(2)]

    assert all(each[:3] == [200] * 3 and each[3] <= 120 for each in found)


@pytest.mark.parametrize("dies", [False, True])
async def test_a_step_back_without_an_answer_does_not_bring_back_what_was_cut(dies) -> None:
    """Its intent holds positions from before the cut; the node lives, or another one comes."""
    kafka = Kafka()
    node = await node_with_a_scan(kafka)
    assert await commit(node, ENDS) == [0] * LANES
    kafka.begin(fault(AFTER_INTENT, dies=dies))
    with pytest.raises(Died if dies else UpstreamLost):
        await commit(node, {0: 50})
    kafka.begin(None)
    if dies:
        node = await started(kafka)
    else:
        node.offsets.on_truncated(ORDERS, 0, 120)
    is_cut_at_120(node)

    found = [await offsets(node) for _ in range(2)]

    assert all(each[0] <= 50 and each[3] <= 120 for each in found)
    assert found[-1][:3] == [50, 200, 200]


BEHIND_ALL = {0: 180, 1: 150, 2: 200, 3: 101}
"""A later commit pushes 200: lane 3 was led on to there, and said no more than 101."""


async def pushed_without_journal(kafka: Kafka, *, dies: bool) -> Node:
    """Kafka has the push of the last commit, and the journal knows nothing of it."""
    node = await node_with_a_scan(kafka)
    assert await commit(node, BEHIND_ALL) == [0] * LANES
    kafka.begin(fault(1, is_done=False, dies=dies))
    if dies:
        with pytest.raises(Died):
            await commit(node, {0: 200, 1: 200})
    else:
        assert await commit(node, {0: 200, 1: 200}) == [15] * 2
    kafka.begin(None)
    assert kafka.offset == 200
    return await started(kafka)


@pytest.mark.parametrize("dies", [False, True])
async def test_a_push_that_the_journal_lacks_is_no_word_of_lanes_that_were_led_on(dies) -> None:
    """The log is cut before anybody looks: lane 3 has said 101, and goes on from the cut.

    Lanes 0 and 1 have said 200 with the push, which stays as it does at Kafka.
    """
    node = await pushed_without_journal(Kafka(), dies=dies)
    is_cut_at_120(node)

    found = [await offsets(node) for _ in range(2)]

    assert all(each[3] <= 120 for each in found)
    assert found[-1] == [200, 200, 200, 120]


async def test_a_push_that_the_journal_lacks_counts_in_the_log_that_it_was_made_in() -> None:
    """Nothing was cut: all that it stands for is done."""
    node = await pushed_without_journal(Kafka(), dies=True)
    node.offsets._checks._ask = ends_at(200)

    assert await offsets(node) == [200, 200, 200, 101]  # said for sure, until the leader is asked
    assert await offsets(node) == [200] * LANES


async def test_a_log_cut_after_a_push_that_the_journal_lacks_was_found() -> None:
    """A reader sees the cut: lane 3 goes back to it, and so it does from the journal."""
    node = await pushed_without_journal(Kafka(), dies=True)
    node.offsets._checks._ask = ends_at(200)
    assert [await offsets(node) for _ in range(2)][-1] == [200] * LANES

    node.offsets.on_truncated(ORDERS, 0, 120)

    assert await offsets(node) == [200, 200, 200, 120]
    node = await started(node.kafka)
    is_cut_at_120(node)
    assert await offsets(node) == [200, 200, 200, 120]


async def test_a_member_that_goes_on_is_no_step_back_after_a_push_that_the_journal_lacks() -> None:
    """Lane 3 commits 110, behind its own 101 and before the push: Kafka's offset stays."""
    node = await pushed_without_journal(Kafka(), dies=True)
    node.offsets._checks._ask = ends_at(200)
    assert [await offsets(node) for _ in range(2)][-1] == [200] * LANES

    assert await commit(node, {3: 110}) == [0]

    assert node.kafka.offset == 200 and await offsets(node) == [200] * LANES
    assert not node.stats.commits_back


@pytest.mark.parametrize("dies", [False, True])
async def test_a_member_goes_back_behind_a_commit_that_was_not_answered(dies) -> None:
    """Lane 1 has said 150, then 200 in a push that the journal lacks, and commits 160."""
    node = await pushed_without_journal(Kafka(), dies=dies)
    node.offsets._checks._ask = ends_at(200)
    assert [await offsets(node) for _ in range(2)][-1] == [200] * LANES

    assert await commit(node, {1: 160}) == [0]

    assert node.kafka.offset == 160 and await offsets(node) == [200, 160, 200, 200]
    assert node.stats.commits_back
    node = await started(node.kafka)
    node.offsets._checks._ask = ends_at(200)
    assert [await offsets(node) for _ in range(2)][-1] == [200, 160, 200, 200]


async def journal_lost() -> Node:
    """Kafka has the group's offset, which counts on a scan, and the journal is gone."""
    node = await node_with_a_scan(Kafka())
    node.offsets.lineages.of((ORDERS, 0)).note(200, ((0, 0),))
    assert await commit(node, ENDS) == [0] * LANES
    assert node.kafka.offset == 200
    node.kafka.log.clear()
    return await started(node.kafka)


@pytest.mark.parametrize(("end", "begin"), [(120, 120), (200, 200), (250, 200)])
async def test_an_offset_alone_counts_as_far_as_its_log_goes(end, begin) -> None:
    """What members said of it is not known; behind a cut are other records."""
    node = await journal_lost()
    node.offsets._checks._ask = ends_at(end)

    assert await offsets(node) == [begin] * LANES
    assert await commit(node, {3: 260}) == [0]
    assert node.kafka.offset == begin and await offsets(node) == [*[begin] * 3, 260]


async def test_an_offset_alone_waits_for_the_leader_of_its_partition() -> None:
    """Which part of it is sure is not known: lanes are refused, and answered when it has said."""
    node = await journal_lost()

    node.offsets._checks._ask = silent
    refused = await offsets_and_codes(node)
    assert all(offset == -1 and code != 0 for offset, code in refused)
    assert await commit(node, {3: 260}) != [0] and node.kafka.offset == 200

    is_cut_at_120(node)
    assert await offsets(node) == [120] * LANES


async def first_push_without_journal(kafka: Kafka, *, dies: bool) -> Node:
    """Kafka has the push of a group's first commit, and the journal no record of the commit."""
    node = await node_with_a_scan(kafka)
    kafka.begin(fault(AFTER_INTENT, dies=dies))
    with pytest.raises(Died if dies else UpstreamLost):
        await commit(node, ENDS)
    kafka.begin(None)
    return await started(kafka) if dies else node


@pytest.mark.parametrize("dies", [False, True])
async def test_a_first_push_that_the_journal_lacks_is_no_word_of_other_lanes(dies) -> None:
    """Lane 3 goes on below what Kafka's own offset says, which is no step back."""
    node = await first_push_without_journal(Kafka(), dies=dies)
    node.offsets._checks._ask = ends_at(200)
    assert [await offsets(node) for _ in range(2)][-1] == [200] * LANES

    assert await commit(node, {3: 110}) == [0]

    assert node.kafka.offset == 200 and await offsets(node) == [200] * LANES
    assert not node.stats.commits_back


async def test_a_cut_takes_back_what_a_first_push_had_counted_on() -> None:
    """The journal has nothing else of the group: lane 3 has said 101, and goes on from the cut."""
    node = await first_push_without_journal(Kafka(), dies=True)
    is_cut_at_120(node)

    found = [await offsets(node) for _ in range(2)]

    assert found[-1] == [200, 200, 200, 120]


async def test_what_an_intent_brings_is_compared_with_the_log_that_it_is_of() -> None:
    """Lane 1 has no record in the old log, and may have one anywhere in the new, as long a one."""
    kafka = Kafka(end=10)
    node = await started(kafka)
    node.read(0, 10)
    kafka.begin(fault(AFTER_INTENT, is_done=False, is_late=True, dies=False))
    assert await commit(node, {1: 5}) == [15]
    kafka.begin(None)
    kafka.arrive(*kafka.late.pop())
    kafka.epoch += 1
    node = await started(kafka)

    found = [await offsets(node) for _ in range(2)]

    assert [each[1] for each in found] == [5, 5]


async def test_offset_and_metadata_that_are_put_back_are_a_reset() -> None:
    """A tool has kept both, and restores them: all lanes go back."""
    kafka = Kafka()
    node = await node_with_a_scan(kafka)
    assert await commit(node, BEHIND_ALL) == [0] * LANES
    kept = kafka.offset, kafka.metadata
    assert kept[0] == 150
    assert await commit(node, {0: 210, 1: 210, 2: 210, 3: 210}) == [0] * LANES

    kafka.arrive(*kept)

    assert await offsets(node) == [150] * LANES


async def test_a_cut_during_the_first_commit_of_a_group() -> None:
    """No table has its state yet."""
    node = await node_with_a_scan(Kafka())
    answer_frame = node.answer_frame

    def answered_after_a_cut(frame: bytes) -> bytes:
        answer = answer_frame(frame)
        if read_request_header(frame, 4).api_key == COMMIT:
            node.offsets.on_truncated(ORDERS, 0, 120)
        return answer

    node.answer_frame = answered_after_a_cut  # type: ignore[method-assign]
    assert await commit(node, ENDS) == [0] * LANES
    node.answer_frame = answer_frame  # type: ignore[method-assign]

    assert await offsets(node) == [200, 200, 200, 120]


async def test_transactions_go_on_after_a_reset_whose_answer_was_lost() -> None:
    """The reset was asked for again, and stands where the lost one would put it."""
    kafka, node = await at_1000()
    reset = dict.fromkeys(range(LANES), 500)
    kafka.begin(fault(AFTER_INTENT, dies=False))
    with pytest.raises(UpstreamLost):
        await commit(node, reset, "")
    kafka.begin(None)
    assert await commit(node, reset, "") == [0] * LANES
    codes = []

    for _ in range(3):
        node.world.now_s += AN_HOUR_S
        codes.append(await transact(node, dict.fromkeys(range(LANES), 510)))

    assert codes[-2:] == [[0] * LANES] * 2


async def test_a_journal_that_is_loaded_anew_knows_of_pushes_without_an_answer() -> None:
    """A lone node loads it after a failed append, and once a day."""
    kafka, node = await at_1000()
    kafka.begin(fault(0, is_done=False, is_late=True, dies=False))
    assert await commit(node, dict.fromkeys(range(LANES), 1010)) != [0] * LANES
    kafka.begin(None)
    table = kafka.loaded()
    node.offsets.load(table)
    node.offsets.pushes.forget_where(lambda _: True)
    assert await commit(node, dict.fromkeys(range(LANES), 1020)) == [0] * LANES
    assert await commit(node, {0: 1500, 1: 1500, 2: 1500}) == [0] * 3

    kafka.arrive(*kafka.late.pop())

    assert await offsets(node) == [1500, 1500, 1500, 1020]
