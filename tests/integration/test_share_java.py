"""Stock share consumers on topics without a rule: each call through keylane ends as direct."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import ShareConsumer

from tests.integration.harness import produce
from tests.integration.share_sides import LOCK_MS, SHORT_LOCK_MS, Side, let_locks_expire
from tests.integration.share_wire import wait_until
from tests.share.member import DrivenMember, Drivers

EXPLICIT = {"share_acknowledgement_mode": "explicit"}
LEFT_OVER = "All records must be acknowledged"
Open = Callable[..., DrivenMember]
Facts = list[tuple[str, Any]]
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def drivers(kafka) -> Iterator[Drivers]:
    """One Java process for all consumers of this module, of both sides."""
    with Drivers(kafka) as running:
        yield running


@pytest.fixture
def consumer(drivers) -> Open:
    """Factory of consumers of a side's topic and group."""

    def open_one(side: Side, **settings: object) -> DrivenMember:
        name = f"{side.group}-{next(_numbers)}"
        return drivers.open(name, side.group, side.topic, side.bootstrap, **settings)

    return open_one


def counts(offsets: Sequence[int], count: int = 1) -> list[tuple[int, int]]:
    """Offsets with the delivery count that all of them have, as `DrivenMember.poll` gives them."""
    return [(offset, count) for offset in offsets]


def poll_for(member: DrivenMember, count: int) -> list[tuple[int, int]]:
    """Poll until so many records have come; as `DrivenMember.poll`, by offset."""
    found: list[tuple[int, int]] = []
    while len(found) < count:
        found += member.poll_until()
    return sorted(found)


def error_of(member: DrivenMember, command: str, *words: str) -> tuple[str, bool]:
    """Return the exception of a call, and whether it is about records without acknowledgement."""
    report = member.call(command, *words)
    return report.get("error", ""), str(report.get("message", "")).startswith(LEFT_OVER)


def all_results(member: DrivenMember) -> dict[int, str]:
    """Return the result of the last callback of each offset."""
    return {offset: result for offsets, result in member.callbacks() for offset in offsets}


EARLIEST = {"share_auto_offset_reset": "earliest"}


@pytest.mark.parametrize("commit", ["commitSync", "commitAsync"])
def test_explicit_commits(commit, share_sides, consumer) -> None:
    """Acknowledged records are sent, the others stay acquired and hold up the next poll."""

    def story(side: Side) -> Facts:
        side.write(10)
        member = consumer(side, **EXPLICIT)
        facts: Facts = [("first", member.poll_until())]
        member.ack(range(5))
        facts.append((commit, member.call(commit).get("results")))
        wait_until(lambda: side.offsets()[1] == 5, "the commit")
        facts.append(("poll", error_of(member, "poll", "300")))
        member.ack(range(5, 10))
        facts.append(("next", member.poll(300)))
        member.call("close")
        facts.append(("results", all_results(member)))
        facts.append(("lag", side.offsets()[1]))
        return facts

    direct, proxied = share_sides.run(story, **EARLIEST)

    assert proxied == direct
    assert direct == [
        ("first", counts(range(10))),
        (commit, {"0": "ok"} if commit == "commitSync" else None),
        ("poll", ("IllegalStateException", True)),
        ("next", []),
        ("results", dict.fromkeys(range(10), "ok")),
        ("lag", 0),
    ]


def test_an_explicit_poll_sends(share_sides, consumer) -> None:
    """A poll sends what was acknowledged in any order; an error of it is in the callback alone."""

    def story(side: Side) -> Facts:
        side.write(5)
        side.configure(share_record_lock_duration_ms=SHORT_LOCK_MS)
        member = consumer(side, **EXPLICIT)
        facts: Facts = [("first", member.poll_until())]
        # The next locks are long: the acknowledgement that is in time must not be late.
        side.configure(share_record_lock_duration_ms=LOCK_MS)
        let_locks_expire(SHORT_LOCK_MS)
        member.ack([4, 3, 0, 1, 2])
        facts.append(("again", member.poll_until()))
        facts.append(("too late", all_results(member)))
        member.ack(range(5), "REJECT")
        facts.append(("in time", member.poll(300)))
        member.call("close")
        facts += [("results", all_results(member)), ("lag", side.offsets()[1])]
        return facts

    direct, proxied = share_sides.run(story, **EARLIEST)

    assert proxied == direct
    assert direct == [
        ("first", counts(range(5))),
        ("again", counts(range(5), 2)),
        ("too late", dict.fromkeys(range(5), "InvalidRecordStateException")),
        ("in time", []),
        ("results", dict.fromkeys(range(5), "ok")),
        ("lag", 0),
    ]


def test_a_commit_that_is_too_late_reports_it(share_sides, consumer) -> None:
    """commitSync gives the partition's error back, and RENEW after the end has it in a callback."""

    def story(side: Side) -> Facts:
        side.write(2)
        side.configure(share_record_lock_duration_ms=SHORT_LOCK_MS)
        member = consumer(side, **EXPLICIT)
        facts: Facts = [("first", member.poll_until())]
        let_locks_expire(SHORT_LOCK_MS)
        member.ack([0], "RENEW")
        member.ack([1])
        facts.append(("commitSync", member.call("commitSync")["results"]))
        member.call("close")
        facts += [("results", all_results(member)), ("lag", side.offsets()[1])]
        return facts

    direct, proxied = share_sides.run(story, **EARLIEST)

    assert proxied == direct
    assert direct == [
        ("first", counts(range(2))),
        ("commitSync", {"0": "InvalidRecordStateException"}),
        ("results", dict.fromkeys(range(2), "InvalidRecordStateException")),
        ("lag", 2),
    ]


def test_an_explicit_close(share_sides, consumer) -> None:
    """What was acknowledged is sent, the rest is released to the next consumer."""

    def story(side: Side) -> Facts:
        side.write(6)
        member = consumer(side, **EXPLICIT)
        facts: Facts = [("first", member.poll_until())]
        member.ack([0, 1])
        member.ack([2], "RELEASE")
        member.call("close")
        facts.append(("results", all_results(member)))
        other = consumer(side)
        # A broker answers the close before it has released the rest.
        facts.append(("other", poll_for(other, 4)))
        other.call("close")
        return facts

    direct, proxied = share_sides.run(story, **EARLIEST)

    assert proxied == direct
    assert direct == [
        ("first", counts(range(6))),
        ("results", dict.fromkeys(range(3), "ok")),
        ("other", counts(range(2, 6), 2)),
    ]


@pytest.mark.parametrize("call", ["commitSync", "commitAsync", "poll"])
def test_implicit_acknowledgements(call, share_sides, consumer) -> None:
    """A commit, and the next poll, accept all that was delivered."""

    def story(side: Side) -> Facts:
        side.write(10)
        member = consumer(side)
        facts: Facts = [("first", member.poll_until())]
        facts.append(("ack", error_of(member, "ack", "0", "ACCEPT")))
        facts.append(
            (call, member.poll(300) if call == "poll" else member.call(call).get("results"))
        )
        wait_until(lambda: side.offsets()[1] == 0, "all are accepted")
        member.call("close")
        facts.append(("results", all_results(member)))
        return facts

    direct, proxied = share_sides.run(story, **EARLIEST)

    assert proxied == direct
    assert direct == [
        ("first", counts(range(10))),
        ("ack", ("IllegalStateException", False)),
        (call, {"commitSync": {"0": "ok"}, "commitAsync": None, "poll": []}[call]),
        ("results", dict.fromkeys(range(10), "ok")),
    ]


def test_an_implicit_close(share_sides, consumer) -> None:
    """Nothing is acknowledged: the next consumer gets all, with delivery count 2."""

    def story(side: Side) -> Facts:
        side.write(4)
        member = consumer(side)
        facts: Facts = [("first", member.poll_until())]
        member.call("close")
        facts.append(("results", all_results(member)))
        other = consumer(side)
        facts.append(("other", other.poll_until()))
        other.call("close")
        return facts

    direct, proxied = share_sides.run(story, **EARLIEST)

    assert proxied == direct
    assert direct == [
        ("first", counts(range(4))),
        ("results", {}),
        ("other", counts(range(4), 2)),
    ]


def test_renewed_records_come_by_poll(share_sides, consumer) -> None:
    """KIP-1222 at the client: a poll sends the renewal, and the next one has the record again."""

    def story(side: Side) -> Facts:
        for _ in range(3):
            side.write(5)
        member = consumer(side, max_poll_records=6, **EXPLICIT)
        facts: Facts = [("lock", member.call("lock")["lockTimeoutMs"])]
        facts.append(("A", member.poll_until()))
        facts.append(("lock", member.call("lock")["lockTimeoutMs"]))
        member.ack(0, "RENEW")
        member.ack(range(1, 10))
        facts += [("B", member.poll()), ("C", member.poll_until())]
        member.ack(0, "RENEW")
        facts += [("D", member.poll()), ("E", member.poll_until())]
        member.ack(0)
        facts.append(("F", member.poll_until()))
        member.ack(range(10, 15))
        member.call("close")
        facts.append(("results", all_results(member)))
        return facts

    direct, proxied = share_sides.run(story, **EARLIEST)

    assert proxied == direct
    assert direct == [
        ("lock", None),
        ("A", counts(range(10))),
        ("lock", LOCK_MS),
        ("B", []),
        ("C", [(0, 1)]),
        ("D", []),
        ("E", [(0, 1)]),
        ("F", counts(range(10, 15))),
        ("results", dict.fromkeys(range(15), "ok")),
    ]


def test_a_record_limit_is_exact(share_sides, consumer) -> None:
    """KIP-1206 at the client: polls of 6 from batches of 5; the mode is in any case of letters."""

    def story(side: Side) -> Facts:
        for _ in range(3):
            side.write(5)
        member = consumer(side, max_poll_records=6, share_acquire_mode="Record_Limit")
        facts: Facts = [(f"poll {number}", member.poll_until()) for number in range(3)]
        member.call("close")
        return facts

    direct, proxied = share_sides.run(story, **EARLIEST)

    assert proxied == direct
    assert direct == [
        ("poll 0", counts(range(6))),
        ("poll 1", counts(range(6, 12))),
        ("poll 2", counts(range(12, 15))),
    ]


def test_the_example_programs(share_sides, consumer) -> None:
    """KIP-932's programs: a batch at once, each record by itself, and an end at the first error."""

    def story(side: Side) -> Facts:
        implicit = consumer(side)
        side.write(3)
        facts: Facts = [("batch", implicit.poll_until())]
        facts.append(("commit", implicit.call("commitSync")["results"]))
        implicit.call("close")
        side.write(6)
        each = consumer(side, **EXPLICIT)
        facts.append(("each", each.poll_until()))
        each.ack([3, 5, 7])
        each.ack([4, 6, 8], "REJECT")
        facts.append(("commit", each.call("commitSync")["results"]))
        facts.append(("nothing left", each.poll(300)))
        facts.append(("empty commit", each.call("commitSync")["results"]))
        side.write(6)
        facts.append(("until an error", each.poll_until()))
        each.ack([9, 10])
        each.ack(11, "REJECT")
        each.ack([12, 13, 14], "RENEW")  # a client of 4.3 has no other way to keep them
        facts.append(("commit", each.call("commitSync")["results"]))
        facts.append(("the rest", each.poll()))
        each.ack([12, 13, 14])
        facts.append(("commit", each.call("commitSync")["results"]))
        each.call("close")
        facts.append(("lag", side.offsets()[1]))
        return facts

    direct, proxied = share_sides.run(story, **EARLIEST)

    ok = {"0": "ok"}
    assert proxied == direct
    assert direct == [
        ("batch", counts(range(3))),
        ("commit", ok),
        ("each", counts(range(3, 9))),
        ("commit", ok),
        ("nothing left", []),
        ("empty commit", {}),
        ("until an error", counts(range(9, 15))),
        ("commit", ok),
        ("the rest", counts(range(12, 15))),
        ("commit", ok),
        ("lag", 0),
    ]


def test_a_librdkafka_share_consumer(share_sides) -> None:
    """confluent-kafka's share consumer reads every record of two partitions once."""

    def story(side: Side) -> list[str]:
        values = produce(side.bootstrap, side.topic, [f"key-{n}" for n in range(20)], rounds=10)
        consumer = ShareConsumer({"bootstrap.servers": side.bootstrap, "group.id": side.group})
        got: list[str] = []
        try:
            consumer.subscribe([side.topic])

            def is_complete() -> bool:
                for message in consumer.poll(0.5):
                    assert message.error() is None, message.error()
                    got.append(str(message.value() or b"", "utf-8"))
                return len(got) >= len(values)

            wait_until(is_complete, f"{len(values)} records")
            consumer.commit_sync()
        finally:
            consumer.close()
        assert sorted(got) == sorted(values)
        return sorted(got)

    direct, proxied = share_sides.run(story, partitions=2, **EARLIEST)

    assert proxied == direct
