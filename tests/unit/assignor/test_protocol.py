"""assignor/protocol.py: the consumer protocol's bytes, as Kafka's own clients write them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.protocol import (
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
)

from keylane.assignor.protocol import (
    MESSAGE_BYTES_MAX,
    VERSION_MAX,
    Assignment,
    Subscription,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from keylane.errors import FrameInvalid

FULL = Subscription(
    version=3,
    topics=("orders", "payments"),
    user_data=b"\x00\x01",
    owned=(("orders", 3), ("orders", 0), ("payments", 7)),
    generation_id=12,
    rack="eu-1a",
)
FULL_BYTES = (
    b"\x00\x03"
    b"\x00\x00\x00\x02\x00\x06orders\x00\x08payments"
    b"\x00\x00\x00\x02\x00\x01"
    b"\x00\x00\x00\x02"
    b"\x00\x06orders\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00\x00"
    b"\x00\x08payments\x00\x00\x00\x01\x00\x00\x00\x07"
    b"\x00\x00\x00\x0c"
    b"\x00\x05eu-1a"
)


def test_a_version_3_subscription_is_read_whole() -> None:
    """Topics, user data, owned lanes in their order, generation and rack come out as written."""
    assert read_subscription(FULL_BYTES) == FULL
    assert write_subscription(FULL) == FULL_BYTES


@pytest.mark.parametrize("version", range(VERSION_MAX + 1))
def test_a_version_says_only_what_it_knows(version: int) -> None:
    """Version 0 has no owned lanes, 1 no generation, 2 no rack."""
    said = Subscription(
        version=version,
        topics=FULL.topics,
        user_data=FULL.user_data,
        owned=FULL.owned if version >= 1 else (),
        generation_id=FULL.generation_id if version >= 2 else -1,
        rack=FULL.rack if version >= 3 else None,
    )

    assert read_subscription(write_subscription(said)) == said


def test_a_newer_version_is_read_as_the_newest_known_one() -> None:
    """Version 9 with unknown bytes behind gives what version 3 would."""
    assert read_subscription(b"\x00\x09" + FULL_BYTES[2:] + b"later") == FULL


def test_missing_fields_at_the_end_count_as_not_said() -> None:
    """A client that announces version 1 and writes version 0 owns nothing."""
    plain = write_subscription(Subscription(version=0, topics=("orders",)))

    assert read_subscription(b"\x00\x01" + plain[2:]) == Subscription(version=1, topics=("orders",))


def test_null_user_data_and_owned_lanes_are_read() -> None:
    """librdkafka and Java write null user data as size -1."""
    data = b"\x00\x01\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff\x00\x00\x00\x00"

    assert read_subscription(data) == Subscription(version=1, topics=("t",))


@pytest.mark.parametrize("size", range(len(FULL_BYTES)))
def test_a_cut_subscription_is_refused_or_ends_at_a_field(size: int) -> None:
    """No cut raises anything but FrameInvalid, and none invents lanes."""
    try:
        said = read_subscription(FULL_BYTES[:size])
    except FrameInvalid:
        return

    assert said.topics == FULL.topics
    assert said.owned in {(), FULL.owned}


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\x00\x00\x00\x00",
        b"\x00\x00\x7f\xff\xff\xff",
        b"\x00\x00\xff\xff\xff\xff",
        b"\x00\x00\x00\x00\x00\x01\xff\xff",
        b"\x00\x01\x00\x00\x00\x00\xff\xff\xff\xff\x7f\xff\xff\xff",
        b"\x00\x00\x00\x00\x00\x01\x00\x01\xff",
    ],
)
def test_lying_lengths_are_refused(data: bytes) -> None:
    """A negative version, a count beyond the bytes, a null array or name, bad UTF-8."""
    with pytest.raises(FrameInvalid):
        read_subscription(data)


@pytest.mark.parametrize("data", [b"\x00", b"\x00\x00", b"\x00\x00\x7f\xff\xff\xff", b"\xff\xfe"])
def test_a_bad_assignment_is_refused(data: bytes) -> None:
    """A cut one, a lying count, a negative version."""
    with pytest.raises(FrameInvalid):
        read_assignment(data)


@pytest.mark.parametrize("read", [read_subscription, read_assignment])
def test_a_huge_message_is_refused_unread(read: Callable[[bytes], object]) -> None:
    """Beyond a million lanes nothing is taken apart."""
    with pytest.raises(FrameInvalid, match="at most"):
        read(bytes(MESSAGE_BYTES_MAX + 1))


def test_an_assignment_comes_back_as_written() -> None:
    """Lanes in the order given, one entry per topic, user data as it is."""
    data = write_assignment((("b", 2), ("a", 1), ("b", 0)), version=1, user_data=b"x")

    assert read_assignment(data) == Assignment(
        version=1, lanes=(("b", 2), ("b", 0), ("a", 1)), user_data=b"x"
    )


def test_no_bytes_are_no_lanes() -> None:
    """A member that the leader left out is handed empty bytes by the coordinator."""
    assert read_assignment(b"").lanes == ()


def test_an_unknown_version_is_not_written() -> None:
    """Version 4 does not exist yet."""
    with pytest.raises(ValueError, match="version 4"):
        write_assignment((), version=4)


def test_a_stock_client_reads_and_writes_the_same_bytes() -> None:
    """aiokafka's own codec agrees on version 0, in both directions."""
    metadata = RoundRobinPartitionAssignor.metadata({"orders"})
    theirs = ConsumerProtocolMemberMetadata(metadata.version, ["orders"], b"").encode()
    ours = write_assignment((("orders", 3), ("orders", 5)), version=0)

    decoded = ConsumerProtocolMemberAssignment.decode(ours)

    assert read_subscription(theirs).topics == ("orders",)
    assert decoded.version == 0 and decoded.assignment == [("orders", [3, 5])]
