"""pipeline/source.py and listener.py: the arithmetic of offsets, without Spark."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.errors import ConfigInvalid
from keylane.pipeline.listener import physical_minima
from keylane.pipeline.source import SourceOptions, limit_offsets

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
