"""One lane of a batch: where it ends, and what is not waited for, with a consumer that is played.

Kinds of timestamps are librdkafka's: 1 is the producer's.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

pytest.importorskip("pyspark")

from confluent_kafka import KafkaError, TopicPartition

from keylane.errors import UpstreamLost
from keylane.pipeline import source_consumer, source_lanes
from keylane.pipeline.source_lanes import STALL_S, LaneTask, read_lane

EOF, RESET = KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET


class Played:
    """A message of confluent-kafka, as far as it is read."""

    def __init__(self, offset: int, code: int | None = None, *, retriable: bool = False) -> None:
        self._offset = offset
        self._error = None if code is None else KafkaError(code, "played", retriable=retriable)

    def error(self) -> KafkaError | None:
        return self._error

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return None if self._offset % 2 else b"key"

    def value(self) -> bytes:
        return b"%d" % self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, 1000 + self._offset


class Script:
    """A consumer whose queue holds one row of messages at a time; an empty row is a time-out."""

    def __init__(self, rows: Sequence[Sequence[Played]]) -> None:
        self._rows, self._at_hand = list(rows), list[Played]()
        self.waits: list[float] = []
        """Seconds that `poll` may have waited, for each row."""
        self.consumed: list[float] = []
        self.assigned: list[tuple[str, int, int]] = []
        self.is_unassigned = self.is_closed = False

    def assign(self, parts: Sequence[TopicPartition]) -> None:
        self.assigned = [(part.topic, part.partition, part.offset) for part in parts]

    def poll(self, timeout: float) -> Played | None:
        assert not self._at_hand, "all that is at hand is taken before it is waited for more"
        self.waits.append(timeout)
        self._at_hand = list(self._rows.pop(0))
        return self._at_hand.pop(0) if self._at_hand else None

    def consume(self, count: int, timeout: float) -> list[Played]:
        self.consumed.append(timeout)
        taken, self._at_hand = self._at_hand[:count], self._at_hand[count:]
        return taken

    def unassign(self) -> None:
        self.is_unassigned = True

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def play(monkeypatch):
    """Have lanes read by a script."""

    def start(*rows: Sequence[Played]) -> Script:
        script = Script(rows)
        monkeypatch.setattr(source_consumer, "Consumer", lambda _settings: script)
        monkeypatch.setattr(source_lanes, "Message", Played)
        return script

    source_consumer.close_idle()
    yield start
    source_consumer.close_idle()


def task(start: int = 0, end: int = 10) -> LaneTask:
    return LaneTask(
        bootstrap="h:1", topic="orders", view="orders.lanes-4", partition=1, lane=2, index=5,
        view_partitions=8, start=start, end=end,
    )  # fmt: skip


def offsets_read(read: LaneTask) -> list[int]:
    return [offset for batch in read_lane(read) for offset in batch["offset"].to_pylist()]


def records(*offsets: int) -> list[Played]:
    return [Played(offset) for offset in offsets]


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([records(2, 5, 9)], [2, 5, 9]),  # the last offset of the range
        ([records(2, 5, 12, 13)], [2, 5]),  # the log goes on; the end is inside what came
        ([records(2, 5), records(10)], [2, 5]),
        ([[*records(2, 5), Played(10, EOF)]], [2, 5]),  # a gap at the end: others' records, markers
        ([records(2, 5), [Played(14, EOF)]], [2, 5]),
        ([[Played(10, EOF)]], []),  # a lane without a record
        ([records(12)], []),
    ],
)
def test_a_lane_ends_by_its_end_without_a_wait(play, rows, found) -> None:
    """Nothing is polled for behind the end, and what is at hand is taken without a time-out."""
    script = play(*rows)

    assert offsets_read(task()) == found

    assert len(script.waits) == len(rows) and set(script.consumed) == {0}
    assert min(script.waits) > STALL_S / 2
    assert script.assigned == [("orders.lanes-4", 5, 0)]
    assert script.is_unassigned and not script.is_closed


def test_a_log_end_before_the_end_is_no_end(play) -> None:
    """A new leader has less for a moment: ending there would leave records out."""
    play([*records(2), Played(4, EOF)], records(5, 9))

    assert offsets_read(task()) == [2, 5, 9]


def test_columns_are_those_of_the_schema(play) -> None:
    """Null key, kind of time as Spark counts it, the physical partition, the lane."""
    play(records(8, 9))

    (batch,) = read_lane(task())

    assert batch.schema == source_lanes.ARROW_SCHEMA
    last = batch.slice(1).to_pylist()[0]
    at = last.pop("timestamp")
    assert (round(at.timestamp() * 1000), at.tzinfo is not None) == (1009, True)
    assert last == {
        "key": None, "value": b"9", "topic": "orders", "partition": 1, "lane": 2, "offset": 9,
        "timestampType": 0,
    }  # fmt: skip


def test_a_log_that_was_cut_is_an_error_with_the_place(play) -> None:
    """It ends before the batch does, and no record comes: what was read is not all."""
    script = play([*records(2), Played(4, EOF)], [])

    with pytest.raises(UpstreamLost, match=r"lane 5 \(partition 1\).*offset 10; the log ends at 4"):
        offsets_read(task())
    assert script.is_closed


def test_records_that_are_gone_are_an_error_with_the_place(play) -> None:
    """Retention has deleted them, or the log was made anew: nothing is left out silently."""
    play(records(2), [Played(3, RESET)])

    with pytest.raises(UpstreamLost, match=r"lane 5 \(partition 1\): the records are gone"):
        offsets_read(task())


def test_a_stall_is_an_error_whatever_errors_pass(play) -> None:
    """What librdkafka tries again is waited for, and does not count as progress."""
    script = play([Played(-1, KafkaError._TRANSPORT, retriable=True)], [])

    with pytest.raises(UpstreamLost, match="no record in 120 s before offset 10"):
        offsets_read(task())
    assert script.waits[1] < script.waits[0]


def test_an_error_that_is_not_retried_ends_the_task(play) -> None:
    """Such as a right that is missing."""
    play([Played(-1, KafkaError.TOPIC_AUTHORIZATION_FAILED)])

    with pytest.raises(UpstreamLost, match="lane 5"):
        offsets_read(task())
