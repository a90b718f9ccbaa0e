"""A consumer in a group: what comes, what is asked back, what is lost; the group is a fake."""

from __future__ import annotations

import asyncio

import pytest

from keylane.client import errors as e
from keylane.client.listener import Parts, Ranges, RebalanceListener
from keylane.client.records import Records
from keylane.client.values import TopicPartition
from keylane.keyrange.space import HASH_MAX, KeyRange
from keylane.tasks import spawn
from keylane.wire import extensions as x
from keylane.wire.extensions import LaneRange
from keylane.wire.primitives import read_tags
from tests.reference.batches import Batch, Record
from tests.reference.client_node import FakeCluster
from tests.unit.client.conftest import Stage, StageFactory

A, B, C = (TopicPartition("t", number) for number in range(3))
LOW, HIGH = KeyRange(0, HASH_MAX // 2), KeyRange(HASH_MAX // 2 + 1, HASH_MAX)
HOUR_MS = 3_600_000
"""Of a poll that something else ends, however long the machine takes for it."""


class Noting(RebalanceListener):
    """Notes its calls; without ranges."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Parts]] = []

    async def on_partitions_assigned(self, parts: Parts) -> None:
        self.calls.append(("assigned", parts))

    async def on_partitions_revoked(self, parts: Parts) -> None:
        self.calls.append(("revoked", parts))


class NotingRanges(RebalanceListener):
    """Notes its calls, with ranges."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Ranges]] = []

    async def on_partitions_with_ranges_assigned(self, ranges: Ranges) -> None:
        self.calls.append(("assigned", ranges))

    async def on_partitions_with_ranges_revoked(self, ranges: Ranges) -> None:
        self.calls.append(("revoked", ranges))

    async def on_partitions_with_ranges_lost(self, ranges: Ranges) -> None:
        self.calls.append(("lost", ranges))


def log(*, has_ranges: bool = False) -> FakeCluster:
    cluster = FakeCluster(has_ranges=has_ranges)
    for part in (A, B, C):
        cluster.append(part, Batch(0, tuple(Record(i, b"k") for i in range(10))))
    return cluster


async def poll_until(here: Stage, *parts: TopicPartition) -> set[TopicPartition]:
    """Poll until each of these has given records; return the parts that have."""
    found: set[TopicPartition] = set()
    while not found.issuperset(parts):
        found.update(await here.consumer.getmany(timeout_ms=5_000))
    return found


async def poll_that_waits(here: Stage, timeout_ms: int) -> asyncio.Task[Records]:
    """Begin a poll, and return it once it has begun."""
    polls = here.session.metrics.polls
    polling = spawn(here.consumer.getmany(timeout_ms=timeout_ms), "poll")
    while here.session.metrics.polls == polls:  # noqa: ASYNC110 - a number has no event
        await asyncio.sleep(0)
    return polling


def stop_clock(here: Stage) -> None:
    """Let the pause before a member gives way once more never end: it is a second."""
    here.session.committer._now_s = lambda: 0.0


async def test_what_is_asked_back_is_committed_announced_and_released(
    stage: StageFactory,
) -> None:
    """In this order, as the next poll begins; the other partition goes on."""
    cluster, listener = log(), Noting()
    here = await stage(
        cluster, "t", group_id="g", listener=listener, auto_commit_interval_ms=3_600_000
    )
    here.group.assign({A: None, B: None})
    await poll_until(here, A, B)

    here.group.ask_back(A)
    assert here.consumer.to_be_revoked() == {A}
    await here.consumer.getmany(timeout_ms=0)

    assert [(part, entry.committed_offset) for part, entry in cluster.commits] == [(A, 10)]
    assert listener.calls == [("assigned", frozenset({A, B})), ("revoked", frozenset({A}))]
    assert here.group.released == [{A}]
    assert here.consumer.assignment() == {B}
    assert here.consumer.to_be_revoked() == frozenset()


async def test_a_poll_returns_early_when_something_is_asked_back(stage: StageFactory) -> None:
    """So that the application can finish, or delay; no further record of it comes."""
    cluster = log()
    here = await stage(cluster, "t", group_id="g")
    here.group.assign({A: None})
    await poll_until(here, A)

    polling = await poll_that_waits(here, HOUR_MS)
    here.group.ask_back(A)
    cluster.append(A, Batch(10, (Record(0, b"k"),)))

    assert not (await polling).count
    assert here.consumer.to_be_revoked() == {A}


async def test_a_delayed_revoke_waits_for_one_poll_more(stage: StageFactory) -> None:
    """And the application may go on to delay it."""
    here = await stage(log(), "t", group_id="g")
    here.group.assign({A: None})
    await poll_until(here, A)
    here.group.ask_back(A)

    for _ in range(3):
        assert here.consumer.delay_revoke([A])
        await here.consumer.getmany(timeout_ms=0)
        assert not here.group.released
        assert here.consumer.to_be_revoked() == {A}
    await here.consumer.getmany(timeout_ms=0)

    assert here.group.released == [{A}]


async def test_a_lost_partition_cannot_be_committed(stage: StageFactory) -> None:
    """Its records are not given, a delay is refused, the listener is notified."""
    cluster, listener = log(), Noting()
    here = await stage(
        cluster, "t", group_id="g", listener=listener, enable_auto_commit=False,
        max_poll_records=4,
    )  # fmt: skip
    here.group.assign({A: None})
    records = list((await here.consumer.getmany(timeout_ms=HOUR_MS)).all())
    here.group.ask_back(A)
    here.group.lose(A)

    assert here.consumer.lost() == {A}
    assert not here.consumer.delay_revoke([A])
    for what in (records, {A: 4}):
        with pytest.raises(e.PartitionLost):
            await here.consumer.commit(what)
    assert not (await here.consumer.getmany(timeout_ms=50)).count
    assert listener.calls == [("assigned", frozenset({A})), ("revoked", frozenset({A}))]
    assert not cluster.commits
    assert not here.group.released


async def test_same_poll_gives_up_within_the_poll(stage: StageFactory) -> None:
    """`revoke_completion` "same-poll": no other call is needed."""
    listener = Noting()
    here = await stage(log(), "t", group_id="g", listener=listener, revoke_completion="same-poll")
    here.group.assign({A: None})
    await poll_until(here, A)
    polling = await poll_that_waits(here, HOUR_MS)

    here.group.ask_back(A)
    while not here.group.released:  # noqa: ASYNC110 -- of a fake
        await asyncio.sleep(0)

    assert not polling.done()
    assert listener.calls == [("assigned", frozenset({A})), ("revoked", frozenset({A}))]
    here.group.assign({B: None})  # its records end the poll
    assert (await polling).count


async def test_lanes_are_shown_as_ranges_of_the_brokers_partitions(stage: StageFactory) -> None:
    """Two lanes of partition 0 are one range; records keep the lane index."""
    listener = NotingRanges()
    here = await stage(log(has_ranges=True), "t", group_id="g", listener=listener)
    lanes = {A: LaneRange(0, LOW), C: LaneRange(0, HIGH), B: None}

    here.group.assign(lanes)
    await poll_until(here, A, B, C)
    here.group.ask_back(C)
    revoked = here.consumer.to_be_revoked_ranges()
    assert here.consumer.delay_revoke_ranges({A: [HIGH]})
    assert here.consumer.to_be_revoked() == frozenset()
    await here.consumer.getmany(timeout_ms=0)
    assert here.consumer.to_be_revoked_ranges() == {A: (HIGH,)}
    await here.consumer.getmany(timeout_ms=0)
    here.group.lose(A, B)
    assert here.consumer.lost_ranges() == {A: (LOW,), B: ()}
    assert not here.consumer.delay_revoke_ranges({A: [LOW]})
    await here.consumer.getmany(timeout_ms=0)

    assert revoked == {A: (HIGH,)}
    assert listener.calls == [
        ("assigned", {A: (KeyRange(0, HASH_MAX),), B: ()}),
        ("revoked", {A: (HIGH,)}),
        ("lost", {A: (LOW,), B: ()}),
    ]


async def test_a_consumer_may_refuse_ranges_of_keys(stage: StageFactory) -> None:
    """`allow_individual_commit` False: a part of a partition is not read, and is an error later."""
    here = await stage(
        log(), "t", group_id="g", allow_individual_commit=False, max_poll_interval_ms=20
    )

    here.group.assign({A: LaneRange(0, LOW)})
    assert (await here.consumer.getmany(timeout_ms=100)).count == 0

    with pytest.raises(e.RangeFetchNotAccepted, match="topics t: the group assigns ranges"):
        await here.consumer.getmany(timeout_ms=5_000)


async def test_lanes_that_are_a_whole_partition_are_no_ranges(stage: StageFactory) -> None:
    """They come one by one from members that shared it, and are read once all are there."""
    here = await stage(log(), "t", group_id="g", allow_individual_commit=False)

    here.group.assign({A: LaneRange(0, LOW)})
    assert (await here.consumer.getmany(timeout_ms=100)).count == 0
    here.group.assign({C: LaneRange(0, HIGH)})

    await poll_until(here, A, C)
    assert here.consumer.key_ranges() == {A: (KeyRange(0, HASH_MAX),)}


async def test_a_whole_partition_does_not_wait_for_another_one(stage: StageFactory) -> None:
    """Its lanes are read while a member that shared the other partition still has some of that."""
    listener = Noting()
    here = await stage(log(), "t", group_id="g", allow_individual_commit=False, listener=listener)

    here.group.assign({A: LaneRange(0, LOW), B: LaneRange(1, LOW), C: LaneRange(0, HIGH)})

    assert await poll_until(here, A, C) == {A, C}
    assert listener.calls == [("assigned", frozenset({A, C}))]
    here.group.lose(B)
    assert (await here.consumer.getmany(timeout_ms=50)).count == 0
    assert listener.calls == [("assigned", frozenset({A, C}))], "what was not announced"


NO_ROOM = e.REBALANCE_IN_PROGRESS, e.MAX_INDIVIDUAL_COMMIT_REACHED
"""Code and draft error of a commit beyond the cap."""


async def stage_with_a(stage: StageFactory) -> tuple[FakeCluster, Stage]:
    """A member through keylane that has read all of A."""
    cluster = log(has_ranges=True)
    here = await stage(cluster, "t", group_id="g", enable_auto_commit=False, retry_backoff_ms=1)
    here.group.assign({A: None})
    await poll_until(here, A)
    return cluster, here


async def test_a_commit_without_room_gives_way(stage: StageFactory) -> None:
    """Draft error 92 beside REBALANCE_IN_PROGRESS: join anew, and commit nothing of it again."""
    cluster, here = await stage_with_a(stage)
    cluster.commit_codes.append(NO_ROOM)

    with pytest.raises(e.PartitionLost, match="no room"):
        await here.consumer.commit()

    assert cluster.members == [("m", 1)]
    assert here.group.rejoins == 1


async def test_a_commit_between_two_generations_is_sent_again(stage: StageFactory) -> None:
    """The coordinator has the next generation, the member not yet: nothing is lost by that."""
    cluster = log()
    here = await stage(cluster, "t", group_id="g", enable_auto_commit=False, retry_backoff_ms=1)
    here.group.assign({A: None})
    await poll_until(here, A)
    here.group.is_moving = True
    cluster.commit_codes.extend([(e.ILLEGAL_GENERATION, 0)] * 2)

    await here.consumer.commit()

    assert here.group.rejoins == 0
    assert [entry.committed_offset for _, entry in cluster.commits] == [10]


async def test_ranges_that_join_within_the_pause_need_no_way(stage: StageFactory) -> None:
    """Record 0 ends after the refusal: the next request has one range, and there is room."""
    cluster = log(has_ranges=True)
    here = await stage(cluster, "t", group_id="g", enable_auto_commit=False, retry_backoff_ms=1)
    stop_clock(here)
    here.group.assign({A: None})
    records = list((await here.consumer.getmany(timeout_ms=HOUR_MS)).all())
    here.consumer.mark_done(*records[1::2])
    cluster.commit_codes.append(NO_ROOM)
    with pytest.raises(e.PartitionLost, match="no room"):
        await here.consumer.commit()
    cluster.commit_codes.extend([NO_ROOM] * 2)
    waiting = spawn(here.consumer.commit(), "commit")
    while len(cluster.commit_codes) > 1:  # noqa: ASYNC110 - a list has no event
        await asyncio.sleep(0)
    here.consumer.mark_done(*records)
    await waiting

    assert here.group.rejoins == 1
    _, entry = cluster.commits[-1]
    assert x.read_pairs(read_tags(entry.tags)[x.OFFSET_RANGES]) == ((0, 9),)


async def test_a_member_does_not_give_way_again_at_once(stage: StageFactory) -> None:
    """Each time is a rebalance: the next commit waits for room instead, for a second first."""
    cluster, here = await stage_with_a(stage)
    stop_clock(here)
    cluster.commit_codes.extend([NO_ROOM] * 3)
    with pytest.raises(e.PartitionLost, match="no room"):
        await here.consumer.commit()

    await here.consumer.commit()

    assert here.group.rejoins == 1
    assert not cluster.commit_codes and cluster.commits


@pytest.mark.parametrize("comes_back", [True, False])
async def test_a_commit_that_gave_way_is_not_sent_again(
    stage: StageFactory, comes_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition was lost, and may be here once more: its records are read again first."""
    cluster, here = await stage_with_a(stage)
    cluster.commit_codes.extend([NO_ROOM] * 3)

    async def give_way() -> None:
        here.group.rejoins += 1
        here.group.lose(A)
        if comes_back:
            here.group.assign({A: None})

    monkeypatch.setattr(here.group, "give_way", give_way)
    with pytest.raises(e.PartitionLost):
        await here.consumer.commit()

    assert here.group.rejoins == 1
    assert len(cluster.members) == 1


async def test_a_member_that_the_group_does_not_know_joins_again(stage: StageFactory) -> None:
    """The commit fails: what was read may come again elsewhere."""
    cluster = log()
    here = await stage(cluster, "t", group_id="g", enable_auto_commit=False)
    here.group.assign({A: None})
    await poll_until(here, A)
    cluster.commit_codes.append((e.UNKNOWN_MEMBER_ID, 0))

    with pytest.raises(e.PartitionLost):
        await here.consumer.commit()
    await asyncio.sleep(0)  # the rejoin is a task

    assert here.group.rejoins == 1


async def test_an_error_of_the_group_ends_a_poll(stage: StageFactory) -> None:
    """Such as a group that this client may not join."""
    here = await stage(log(), "t", group_id="g")
    here.group.assignments.on_group_error(e.GroupDenied("group g"))

    with pytest.raises(e.GroupDenied):
        await here.consumer.getmany(timeout_ms=5_000)


async def test_a_subscription_changes_and_ends(stage: StageFactory) -> None:
    """Other topics, a pattern, none; the group is left at the end, and commits go before."""
    cluster = log()
    here = await stage(cluster, "t", group_id="g", auto_commit_interval_ms=3_600_000)
    group = here.group
    await here.consumer.subscribe(pattern="t.*")
    assert group.wish == (frozenset(), "t.*")
    group.assign({A: None})
    await poll_until(here, A)

    await here.consumer.stop()

    assert group.has_left
    assert [entry.committed_offset for _, entry in cluster.commits] == [10]


async def test_a_consumer_without_a_group_reads_whole_topics(stage: StageFactory) -> None:
    """All partitions of what it subscribes to; a topic that no broker knows is named."""
    here = await stage(log(), "t")

    assert await poll_until(here, A, B, C) == {A, B, C}
    with pytest.raises(e.TopicUnknown, match="nowhere"):
        await stage(FakeCluster(), "nowhere")
