"""Tasks of Kafka Streams: in every version, and bytes that are none."""

from __future__ import annotations

import struct

import pytest

from keylane.assignor.protocol import Assignment
from keylane.assignor.streams import Subtopology, read_subtopologies
from keylane.errors import FrameInvalid
from tests.transcript.consumer_protocol import task_data

LANES = (("orders", 0), ("orders", 1), ("rates", 1), ("app-repartition", 0))
TASKS = ((1, 0), (0, 0), (0, 1), (0, 1))
"""Of the same partitions in order: the repartition topic is the first of them."""


def given(user_data: bytes) -> Assignment:
    return Assignment(version=3, lanes=LANES, user_data=user_data)


@pytest.mark.parametrize("version", range(1, 12))
@pytest.mark.parametrize("topology", ["", "billing"])
def test_topics_of_a_subtopology_are_found(version, topology) -> None:
    """Tasks stand in the order of topic and partition, in whatever order partitions came."""
    topology = topology if version >= 10 else ""

    found = read_subtopologies(given(task_data(TASKS, version=version, topology=topology)))

    assert found == {
        Subtopology(topology, 0): {"orders", "rates"},
        Subtopology(topology, 1): {"app-repartition"},
    }


def test_a_subtopology_is_named_as_streams_logs_it() -> None:
    """A number, with the name of its topology where there is one; no name breaks a log line."""
    names = ("", "billing", "a\nb", "x" * 1_000)

    shown = [str(Subtopology(name, 3)) for name in names]

    assert shown == ["3", "billing__3", "a\\nb__3", "x" * 249 + "__3"]


def test_no_partitions_are_no_subtopologies() -> None:
    """A member that gets nothing, or an error of the leader, is nothing to be judged."""
    empty = Assignment(version=1, lanes=(), user_data=b"")

    assert read_subtopologies(empty) == {}


def test_a_newer_version_is_read_where_all_fits() -> None:
    """The first fields have been the same since version 3."""
    found = read_subtopologies(given(task_data(TASKS, version=12)))

    assert found[Subtopology("", 0)] == {"orders", "rates"}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        struct.pack(">i", 0),
        task_data(TASKS[:3]),
        task_data((*TASKS, (0, 5))),
        task_data(TASKS, end=b"")[:-1],
        task_data([(number, index + 1) for number, index in TASKS], version=12),
        struct.pack(">iii", 11, 11, 0x7FFF_FFFF),
        struct.pack(">iii", 11, 11, -1),
        struct.pack(">iiiiii", 11, 11, 1, 0, 0, 0x7FFF_FFFF),
        struct.pack(">iiiiii", 11, 11, 1, 0, 0, -2),
    ],
)
def test_other_bytes_are_refused(data) -> None:
    """Counts that lie, an end inside a task, and a newer version that does not fit."""
    with pytest.raises(FrameInvalid):
        read_subtopologies(given(data))
