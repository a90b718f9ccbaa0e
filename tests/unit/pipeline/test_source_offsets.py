"""pipeline/source.py and listener.py: the arithmetic of offsets, without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.errors import ConfigInvalid, KafkaUnavailable
from keylane.pipeline import listener as listener_module
from keylane.pipeline.listener import LaneProgressListener, physical_minima
from keylane.pipeline.source import SourceOptions, limit_offsets
from keylane.pipeline.source_lanes import TopicBounds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 1000)), min_size=1, max_size=6)


@given(logs=LOGS, most=st.one_of(st.none(), st.integers(1, 2000)))
def test_a_batch_takes_its_limit_and_never_passes_an_end(
    logs: list[tuple[int, int]], most: int | None
) -> None:
    """All that lags, or exactly the limit; partitions that lag most are not left behind."""
    begun = {place: start for place, (start, _) in enumerate(logs)}
    ends = {place: start + lag for place, (start, lag) in enumerate(logs)}

    found = limit_offsets(begun, begun, ends, most)

    total = sum(lag for _, lag in logs)
    assert all(begun[place] <= found[place] <= ends[place] for place in begun)
    taken = sum(found.values()) - sum(begun.values())
    assert taken == (total if most is None else min(most, total))


def test_a_new_partition_starts_at_its_log_start_and_nothing_goes_back() -> None:
    """Partition 1 came later; partition 0 was made anew and stays for its reader to fail."""
    found = limit_offsets({0: 100}, {0: 0, 1: 7}, {0: 20, 1: 9}, None)

    assert found == {0: 100, 1: 9}


def test_a_listener_commits_the_least_of_a_partitions_lanes() -> None:
    """Four lanes of two partitions, by lane name or by the count of a topic's own name."""
    offsets = {"0": 9, "1": 20, "2": 5, "3": 30}

    assert physical_minima(json.dumps({"orders.lanes-2": offsets})) == {"orders": {0: 5, 1: 20}}
    assert physical_minima(json.dumps({"own": offsets}), {"own": 2}) == {"own": {0: 5, 1: 20}}
    assert physical_minima('{"plain":{"0":3}}') == {"plain": {0: 3}}
    assert [physical_minima(text) for text in (None, "-", "7", '{"a":{"b":"c"}}')] == [{}] * 4


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topic": "t"}, "bootstrap is missing"),
        ({"bootstrap": "b"}, "topic is missing"),
        ({"bootstrap": "b", "topic": "t", "lanes": "0"}, "lanes: expected"),
        ({"bootstrap": "b", "topic": "t", "maxrecordspertrigger": "-1"}, "maxRecordsPerTrigger"),
    ],
)
def test_options_that_cannot_be_used_are_named(options: dict[str, str], text: str) -> None:
    """Before anything is connected."""
    with pytest.raises(ConfigInvalid, match=text):
        SourceOptions.read(options)


def options(**more: str) -> SourceOptions:
    return SourceOptions.read({"bootstrap": "b", "topic": "orders", **more})


def test_an_end_behind_the_log_is_refused_and_one_inside_is_taken() -> None:
    """A task would wait for records that may never come, or leave them out."""
    bounds = TopicBounds(starts={0: 5, 1: 0}, ends={0: 20, 1: 7})

    assert options().place("endingOffsets", '{"0": 20}', bounds) == {0: 20, 1: 7}
    assert options().place("startingOffsets", '{"0": 90}', bounds) == {0: 90, 1: 0}
    with pytest.raises(ConfigInvalid, match="partition 1 of orders ends at 7, before 8"):
        options().place("endingOffsets", '{"0": 6, "1": 8}', bounds)


def test_a_lanes_file_counts_anew_for_each_batch(tmp_path: Path) -> None:
    """The tasks of a batch have the count that stands there; what is no count names the file."""
    path = tmp_path / "lanes"
    found = options(lanesFile=str(path), lanes="9")
    tasks = []

    for text in ("2\n", "5"):
        path.write_text(text)
        tasks.append(found.tasks({0: 0, 1: 0}, {0: 3, 1: 0}))

    lanes = [[(each.value.view, each.value.index) for each in batch] for batch in tasks]
    assert lanes == [
        [("orders.lanes-2", 2 * lane) for lane in range(2)],
        [("orders.lanes-5", 2 * lane) for lane in range(5)],
    ]
    path.write_text("many")
    with pytest.raises(ConfigInvalid, match=f"lanesFile {path}: expected a number from 1 to 1024"):
        found.lane_count()
    path.unlink()
    with pytest.raises(ConfigInvalid, match=f"lanesFile {path}: "):
        found.lane_count()


class Admin:
    """An admin client whose commits fail now and then."""

    def __init__(self, *_of: object) -> None:
        self.is_closed = False
        self.committed: list[tuple[str, dict[int, int]]] = []
        self.fails = False

    def commit(self, _group: str, topic: str, offsets: dict[int, int]) -> None:
        if self.fails:
            raise KafkaUnavailable("no coordinator")
        self.committed.append((topic, offsets))

    def close(self) -> None:
        self.is_closed = True


def test_a_listener_goes_on_behind_a_commit_that_failed(monkeypatch, caplog) -> None:
    """The next batch's commit covers it; a batch without offsets commits nothing."""
    monkeypatch.setattr(listener_module, "SparkAdmin", Admin)
    listener = LaneProgressListener(cast("SparkSession", None), "b", "spark", lanes={"own": 2})
    admin = cast("Admin", listener._admin)

    admin.fails = True
    listener.take('{"own": {"0": 5, "1": 4}}')
    admin.fails = False
    listener.take('{"own": {"0": 9, "1": 8}}')
    listener.take(None)
    listener.close()

    assert admin.committed == [("own", {0: 8})] and admin.is_closed
    assert (listener.commit_count, listener.failure_count) == (1, 1)
    assert "topic=own group=spark reason=no coordinator" in caplog.text
