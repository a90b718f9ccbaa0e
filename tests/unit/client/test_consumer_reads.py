"""A consumer with partitions of its choice, on a fake node: what it asks, gives and commits."""

from __future__ import annotations

import pytest

from keylane.client import errors as e
from keylane.client.consumer import Consumer
from keylane.client.values import Committed, TopicPartition
from keylane.errors import ConfigInvalid
from keylane.keyrange.hash import key_hash
from keylane.keyrange.space import HASH_MAX, WHOLE, KeyRange
from keylane.wire import extensions as x
from keylane.wire.primitives import NO_TAGS, read_tags
from tests.reference.batches import Batch, Record, write_batch
from tests.reference.client_node import FakeCluster
from tests.unit.client.conftest import Stage, StageFactory

PART, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
LOW = KeyRange(0, HASH_MAX // 2)


def batch(base: int, count: int, *, form: str = "none") -> Batch:
    records = tuple(Record(i, b"k%d" % (base + i), b"v%d" % (base + i)) for i in range(count))
    return Batch(base, records, form=form)


async def read(stage: Stage, count: int, *parts: TopicPartition) -> list[int]:
    """Read so many records; return their offsets in order."""
    found: list[int] = []
    while len(found) < count:
        records = await stage.consumer.getmany(*parts, timeout_ms=5_000)
        assert records.count, "no record came"
        found += [record.offset for record in records.all()]
    return found


async def test_gaps_between_committed_ranges_are_read_and_committed(stage: StageFactory) -> None:
    """41, 42, 46, 47 and 50 are given, and committed as ranges, with the offset -1."""
    cluster = FakeCluster(has_ranges=True, stable=50)
    cluster.append(PART, batch(40, 11))
    cluster.starts[PART] = 40
    cluster.committed[PART] = Committed(41, ((43, 45), (48, 49)), 40)
    here = await stage(cluster, assign=[PART], group_id="g", enable_auto_commit=False)

    assert await read(here, 5) == [41, 42, 46, 47, 50]
    await here.consumer.commit()

    ((part, entry),) = cluster.commits
    ranges = x.read_pairs(read_tags(entry.tags)[x.OFFSET_RANGES])
    assert (part, entry.committed_offset) == (PART, -1)
    assert ranges == ((41, 42), (46, 47), (50, 50))
    assert await here.consumer.position(PART) == 51


async def test_kafka_gets_the_plain_offset_and_no_tag(stage: StageFactory) -> None:
    """Without the feature a commit is a stock one, as if nothing had ever been added."""
    cluster = FakeCluster()
    cluster.append(PART, batch(0, 10, form="lz4"))
    here = await stage(cluster, assign=[PART], group_id="g", enable_auto_commit=False)

    records = list((await here.consumer.getmany(timeout_ms=5_000)).all())
    here.consumer.mark_done(*records[:4], records[6])
    await here.consumer.commit()

    ((_, entry),) = cluster.commits
    assert (entry.committed_offset, entry.tags) == (4, NO_TAGS)
    assert cluster.members == [("", -1)]
    assert all(p.tags == NO_TAGS for f in cluster.fetches for t in f.topics for p in t.partitions)


async def test_ranges_of_keys_go_with_every_request(stage: StageFactory) -> None:
    """Fetch, OffsetFetch and OffsetCommit name the keys; records of other keys do not come."""
    cluster = FakeCluster(has_ranges=True)
    cluster.append(PART, batch(0, 40))
    here = await stage(cluster, assign={PART: [LOW]}, group_id="g", enable_auto_commit=False)
    expected = [i for i in range(40) if LOW.contains(key_hash(b"k%d" % i))]

    assert await read(here, len(expected)) == expected
    await here.consumer.commit()

    asked = cluster.fetches[0].topics[0].partitions[0]
    assert x.read_key_ranges(read_tags(asked.tags)[x.KEY_RANGES]) == (LOW,)
    section = cluster.offset_fetches[0].groups[0].topics[0].unknown_tags
    keys = x.read_partition_key_ranges(read_tags(section)[x.PARTITION_KEY_RANGES])
    assert keys == {0: (LOW,)}
    (_, first), (_, entry) = cluster.commits
    own = read_tags(first.tags)
    assert (first.committed_offset, x.read_key_ranges(own[x.KEY_RANGES])) == (0, (LOW,))
    own = read_tags(entry.tags)
    assert x.read_key_ranges(own[x.KEY_RANGES]) == (LOW,)
    assert x.read_pairs(own[x.OFFSET_RANGES]) == ((0, 39),)
    assert here.consumer.key_ranges() == {PART: (LOW,)}


async def test_ranges_of_keys_need_keylane(stage: StageFactory) -> None:
    """Against plain Kafka the consumer does not start."""
    cluster = FakeCluster()
    cluster.append(PART, batch(0, 1))

    with pytest.raises(e.KeyRangesUnsupported):
        await stage(cluster, assign={PART: [LOW]})


async def test_all_keys_need_no_keylane(stage: StageFactory) -> None:
    """A mapping without keys, or with all of them, is whole partitions, and so a stock fetch."""
    cluster = FakeCluster()
    for part in (PART, OTHER):
        cluster.append(part, batch(0, 3))
    here = await stage(cluster, assign={PART: [], OTHER: [KeyRange(0, HASH_MAX)]})

    assert sorted(await read(here, 6)) == [0, 0, 1, 1, 2, 2]
    assert here.consumer.key_ranges() == {PART: (), OTHER: ()}
    assert all(p.tags == NO_TAGS for f in cluster.fetches for t in f.topics for p in t.partitions)


async def test_no_keys_are_all_of_the_brokers_partition(stage: StageFactory) -> None:
    """Through keylane a request says so: the number alone would be a lane of a topic with lanes."""
    cluster = FakeCluster(has_ranges=True)
    cluster.append(PART, batch(0, 3))
    here = await stage(cluster, assign={PART: []}, group_id="g", enable_auto_commit=False)

    assert await read(here, 3) == [0, 1, 2]
    await here.consumer.commit()

    asked = cluster.fetches[0].topics[0].partitions[0]
    assert x.read_key_ranges(read_tags(asked.tags)[x.KEY_RANGES]) == WHOLE
    assert len(cluster.commits) == 2  # the start, and the records
    for _, entry in cluster.commits:
        assert x.read_key_ranges(read_tags(entry.tags)[x.KEY_RANGES]) == WHOLE


async def test_marked_records_are_committed_as_ranges(stage: StageFactory) -> None:
    """In any order, and the rest when it is done; the start goes before them, be it 0."""
    cluster = FakeCluster(has_ranges=True)
    cluster.append(PART, batch(0, 10))
    here = await stage(cluster, assign=[PART], group_id="g", enable_auto_commit=False)
    records = list((await here.consumer.getmany(timeout_ms=5_000)).all())

    await here.consumer.commit([records[3], records[7], records[4]])
    here.consumer.mark_done(records[5])
    await here.consumer.commit()

    (_, first), *rest = cluster.commits
    assert (first.committed_offset, first.tags) == (0, NO_TAGS)
    sent = [x.read_pairs(read_tags(entry.tags)[x.OFFSET_RANGES]) for _, entry in rest]
    assert sent == [((3, 4), (7, 7)), ((5, 5),)]


async def test_a_start_behind_the_first_record_is_committed_first(stage: StageFactory) -> None:
    """What stands before it is not for this group: the stable offset would stall there."""
    cluster = FakeCluster(has_ranges=True)
    cluster.append(PART, batch(40, 10))
    cluster.starts[PART] = 40
    here = await stage(cluster, assign=[PART], group_id="g", enable_auto_commit=False)

    assert await read(here, 10) == list(range(40, 50))
    await here.consumer.commit()
    await here.consumer.commit()

    assert [(entry.committed_offset, entry.tags != NO_TAGS) for _, entry in cluster.commits] == [
        (40, False),
        (-1, True),
    ]


@pytest.mark.parametrize("reset", ["earliest", "latest"])
async def test_ranges_of_a_group_without_an_offset_are_done(
    stage: StageFactory, reset: str
) -> None:
    """Records 1 to 6 and 8 are done, 0 is open: it comes, whatever `auto_offset_reset` says."""
    cluster = FakeCluster(has_ranges=True)
    cluster.append(PART, batch(0, 10))
    cluster.committed[PART] = Committed(-1, ((1, 6), (8, 8)), -1)
    here = await stage(
        cluster, assign=[PART], group_id="g", enable_auto_commit=False, auto_offset_reset=reset
    )

    assert await read(here, 3) == [0, 7, 9]
    committed = await here.consumer.committed(PART)
    assert committed is not None
    assert (committed.offset, committed.ranges) == (0, ((1, 6), (8, 8)))


async def test_too_many_ranges_without_a_group_are_an_error_at_once(stage: StageFactory) -> None:
    """Draft error 92: there is no member to make way for; the next commit may work."""
    cluster = FakeCluster(has_ranges=True)
    cluster.append(PART, batch(0, 10))
    here = await stage(cluster, assign=[PART], group_id="g", enable_auto_commit=False)
    records = list((await here.consumer.getmany(timeout_ms=5_000)).all())
    here.consumer.mark_done(*records[1::2])
    cluster.commit_codes.append((e.REBALANCE_IN_PROGRESS, e.MAX_INDIVIDUAL_COMMIT_REACHED))

    with pytest.raises(e.RangesFull, match="topic t partition 0") as refused:
        await here.consumer.commit()
    assert refused.value.retriable
    await here.consumer.commit()

    assert len(cluster.commits) == 2  # the start, and the ranges


@pytest.mark.parametrize("has_ranges", [True, False])
async def test_a_seek_is_committed_before_what_comes_of_it(
    stage: StageFactory, *, has_ranges: bool
) -> None:
    """Back or forward: a crash after it begins there, and not where the group was before."""
    cluster = FakeCluster(has_ranges=has_ranges)
    cluster.append(PART, batch(0, 50))
    cluster.committed[PART] = Committed(30, (), 29)
    here = await stage(cluster, assign=[PART], group_id="g", enable_auto_commit=False)
    assert (await read(here, 20))[0] == 30

    here.consumer.seek(PART, 10)
    await here.consumer.commit()
    assert (await read(here, 40))[0] == 10
    await here.consumer.commit()

    offsets = [entry.committed_offset for _, entry in cluster.commits]
    assert offsets == [10, -1] if has_ranges else [10, 50]


async def test_what_the_last_poll_gave_is_committed_on_the_timer(stage: StageFactory) -> None:
    """Auto commit: as the next poll begins, not before."""
    cluster = FakeCluster()
    cluster.append(PART, batch(0, 10))
    here = await stage(cluster, assign=[PART], group_id="g", auto_commit_interval_ms=3_600_000)
    await here.consumer.getmany(timeout_ms=5_000, max_records=4)
    assert here.session.fetcher.readings[PART].progress.plain_offset() == 0
    await here.consumer.getmany(timeout_ms=5_000, max_records=4)

    await here.consumer.stop()

    assert [entry.committed_offset for _, entry in cluster.commits] == [8]


async def test_an_error_leaves_what_the_last_poll_gave_undone(stage: StageFactory) -> None:
    """The record that failed comes again; what polls before it gave is committed."""
    cluster = FakeCluster()
    cluster.append(PART, batch(0, 10))
    here = await stage(cluster, assign=[PART], group_id="g", auto_commit_interval_ms=3_600_000)
    await here.consumer.getmany(timeout_ms=5_000, max_records=4)
    await here.consumer.getmany(timeout_ms=5_000, max_records=4)

    await here.consumer.__aexit__(RuntimeError, RuntimeError("of the work"), None)

    assert [entry.committed_offset for _, entry in cluster.commits] == [4]


async def test_many_ranges_do_not_wait_for_the_timer(stage: StageFactory) -> None:
    """More than `max_num_ranges_to_commit` have gathered."""
    cluster = FakeCluster(has_ranges=True)
    cluster.append(PART, batch(0, 30))
    here = await stage(
        cluster, assign=[PART], group_id="g", auto_commit_interval_ms=3_600_000,
        max_num_ranges_to_commit=5,
    )  # fmt: skip
    records = list((await here.consumer.getmany(timeout_ms=5_000)).all())

    here.consumer.mark_done(*records[::3])
    while not cluster.commits:
        await here.consumer.getmany(timeout_ms=20)

    ranges = x.read_pairs(read_tags(cluster.commits[1][1].tags)[x.OFFSET_RANGES])
    assert ranges == tuple((offset, offset) for offset in range(0, 30, 3))


async def test_a_group_that_allows_no_single_offsets_ends_it(stage: StageFactory) -> None:
    """Draft error 88: no second try."""
    cluster = FakeCluster(has_ranges=True)
    cluster.append(PART, batch(0, 3))
    here = await stage(cluster, assign=[PART], group_id="g", enable_auto_commit=False)
    await read(here, 3)
    cluster.commit_codes.append((42, e.INDIVIDUAL_COMMIT_NOT_ALLOWED))

    with pytest.raises(e.IndividualCommitNotAllowed):
        await here.consumer.commit()

    assert len(cluster.members) == 1


async def test_a_commit_that_is_too_old_moves_the_position(stage: StageFactory) -> None:
    """Draft error 91: the group is further, so is the consumer."""
    cluster = FakeCluster(has_ranges=True)
    cluster.append(PART, batch(0, 30))
    here = await stage(cluster, assign=[PART], group_id="g", enable_auto_commit=False)
    await here.consumer.getmany(timeout_ms=5_000, max_records=3)
    cluster.commit_codes.append((42, e.OFFSET_TOO_OLD))
    cluster.stable = 19

    await here.consumer.commit()

    assert await here.consumer.position(PART) == 20
    assert await read(here, 10) == list(range(20, 30))


async def test_a_group_that_allows_no_ranges_of_keys_is_reported(stage: StageFactory) -> None:
    """Draft error 89 of a fetch."""
    cluster = FakeCluster(has_ranges=True)
    cluster.append(PART, batch(0, 3))
    cluster.fetch_codes.append((42, e.RANGE_FETCH_NOT_ALLOWED))
    here = await stage(cluster, assign={PART: [LOW]})

    with pytest.raises(e.RangeFetchNotAllowed):
        await here.consumer.getmany(timeout_ms=5_000)


async def test_a_busy_coordinator_is_asked_again(stage: StageFactory) -> None:
    """Load in progress, then another coordinator, then the answer."""
    cluster = FakeCluster()
    cluster.append(PART, batch(0, 3))
    here = await stage(
        cluster, assign=[PART], group_id="g", enable_auto_commit=False, retry_backoff_ms=1
    )
    await read(here, 3)
    cluster.commit_codes.extend([(14, 0), (16, 0)])

    await here.consumer.commit()

    assert (len(cluster.commits), cluster.lost_coordinators) == (1, 1)


async def test_another_leader_is_looked_for(stage: StageFactory) -> None:
    """NOT_LEADER_OR_FOLLOWER: a look at the metadata, and another fetch."""
    cluster = FakeCluster()
    cluster.append(PART, batch(0, 3))
    cluster.fetch_codes.append((6, 0))
    here = await stage(cluster, assign=[PART], retry_backoff_ms=1)

    assert await read(here, 3) == [0, 1, 2]
    assert cluster.refreshes == 2  # with that of the start


@pytest.mark.parametrize(("policy", "first"), [("earliest", 5), ("latest", 8)])
async def test_an_offset_out_of_range_is_reset(
    stage: StageFactory, policy: str, first: int
) -> None:
    """As `auto_offset_reset` says."""
    cluster = FakeCluster()
    cluster.append(PART, batch(5, 3))
    cluster.starts[PART] = 5
    here = await stage(cluster, assign=[PART], auto_offset_reset=policy)
    here.consumer.seek(PART, 100)

    while policy == "latest" and await here.consumer.position(PART) == 100:
        assert not (await here.consumer.getmany(timeout_ms=10)).count
    cluster.append(PART, batch(8, 2))

    assert (await here.consumer.getone()).offset == first


async def test_an_offset_out_of_range_is_an_error_where_that_is_wanted(
    stage: StageFactory,
) -> None:
    """`auto_offset_reset` "none"; the offset is named."""
    cluster = FakeCluster()
    cluster.append(PART, batch(0, 3))
    here = await stage(cluster, assign=[PART], group_id="g", auto_offset_reset="none")

    with pytest.raises(e.OffsetMissing):
        await here.consumer.getmany(timeout_ms=5_000)
    here.consumer.seek(PART, 77)
    with pytest.raises(e.OffsetOutOfRange, match="topic t partition 0: no offset 77"):
        await here.consumer.getmany(timeout_ms=5_000)


async def test_a_corrupt_batch_is_named_and_passed_by_a_seek(stage: StageFactory) -> None:
    """Records before it come first."""
    cluster = FakeCluster()
    damaged = bytearray(write_batch(batch(3, 2)))
    damaged[-1] ^= 1
    cluster.append(PART, batch(0, 3), bytes(damaged), batch(5, 2))
    here = await stage(cluster, assign=[PART])

    assert await read(here, 3) == [0, 1, 2]
    cluster.logs[PART] = [bytes(damaged), batch(5, 2)]
    with pytest.raises(e.RecordsCorrupt, match="topic t partition 0 offset 3"):
        await here.consumer.getmany(timeout_ms=5_000)
    cluster.logs[PART] = [batch(5, 2)]
    here.consumer.seek(PART, 5)

    assert await read(here, 2) == [5, 6]


async def test_large_answers_are_read_in_a_thread_in_their_order(stage: StageFactory) -> None:
    """Far above what is read on the loop, two partitions, nothing missing or twice."""
    cluster = FakeCluster()
    for part in (PART, OTHER):
        cluster.append(
            part,
            *(
                Batch(base, tuple(Record(i, b"k", b"v" * 500) for i in range(100)), form=form)
                for base, form in zip(range(0, 2_000, 100), ("none", "zstd") * 10, strict=True)
            ),
        )
    here = await stage(cluster, assign=[PART, OTHER], max_partition_fetch_bytes=200_000)

    found: dict[TopicPartition, list[int]] = {PART: [], OTHER: []}
    while sum(map(len, found.values())) < 4_000:
        for part, records in (await here.consumer.getmany(timeout_ms=5_000)).items():
            found[part] += records.offsets.tolist()

    assert found == {PART: list(range(2_000)), OTHER: list(range(2_000))}


async def test_an_empty_batch_moves_the_position(stage: StageFactory) -> None:
    """Compacted away, or keys of others: no record comes, and the commit goes past it."""
    cluster = FakeCluster()
    cluster.append(PART, batch(0, 1), Batch(1, (), last_offset_delta=8))
    here = await stage(cluster, assign=[PART], group_id="g", enable_auto_commit=False)

    assert await read(here, 1) == [0]
    await here.consumer.commit()
    await here.consumer.getmany(timeout_ms=100)

    assert await here.consumer.position(PART) == 10


async def test_a_paused_partition_gives_nothing_until_it_is_resumed(stage: StageFactory) -> None:
    """The other one goes on; what was fetched before the pause is kept."""
    cluster = FakeCluster()
    cluster.append(PART, batch(0, 4))
    cluster.append(OTHER, batch(0, 4))
    here = await stage(cluster, assign=[PART, OTHER])
    here.consumer.pause(PART)

    assert await read(here, 4) == [0, 1, 2, 3]
    assert here.consumer.paused() == {PART}
    assert not (await here.consumer.getmany(timeout_ms=100)).count
    here.consumer.resume(PART)

    assert set(await here.consumer.getmany(timeout_ms=5_000)) == {PART}


async def test_records_one_by_one_and_by_iteration(stage: StageFactory) -> None:
    """`getone`, `async for`, from one partition and from any; what was given is done."""
    cluster = FakeCluster()
    cluster.append(PART, batch(0, 300))
    here = await stage(cluster, assign=[PART], group_id="g")
    found = [(await here.consumer.getone(PART)).offset for _ in range(270)]
    async for record in here.consumer:
        found.append(record.offset)
        if record.offset == 299:
            break

    assert found == list(range(300))
    await here.consumer.commit({PART: 300})
    assert cluster.commits[-1][1].committed_offset == 300


async def test_ends_of_the_log(stage: StageFactory) -> None:
    """Beginning, end, and seeks there; a partition that is not assigned is refused."""
    cluster = FakeCluster()
    cluster.append(PART, batch(5, 3))
    cluster.starts[PART] = 5
    here = await stage(cluster, assign=[PART])
    consumer = here.consumer

    assert await consumer.beginning_offsets([PART]) == {PART: 5}
    assert await consumer.end_offsets([PART]) == {PART: 8}
    consumer.seek_to_end(PART)
    assert await consumer.position(PART) == 8
    consumer.seek_to_beginning()
    assert await consumer.position(PART) == 5
    with pytest.raises(e.NotAssigned):
        consumer.seek(OTHER, 0)
    with pytest.raises(e.GroupMissing):
        await consumer.commit()


async def test_a_consumer_is_started_before_it_is_used() -> None:
    """And either subscribes or is assigned."""
    consumer = Consumer("t", group_id="g")
    with pytest.raises(e.ConsumerStopped):
        consumer.assignment()
    with pytest.raises(ConfigInvalid, match="subscribed"):
        consumer.assign([PART])
    with pytest.raises(ConfigInvalid, match="fetch_min_bytes"):
        Consumer(fetch_min_bytes=-1)
    with pytest.raises(ConfigInvalid, match="auto_offset_reset"):
        Consumer(auto_offset_reset="first")
