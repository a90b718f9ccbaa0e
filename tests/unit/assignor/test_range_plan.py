"""assignor/range_plan.py: a plan file is read whole, or refused with the place that is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from keylane.assignor import range_plan as plan_module
from keylane.assignor.range_plan import RangePlan, read_plan, write_plan
from keylane.errors import ConfigInvalid
from keylane.keyrange.space import HASH_MAX, KeyRange

HALF = 2**62
PLAN = RangePlan(
    topic="orders",
    lane_count=3,
    cuts=((100, HALF), (7, 8)),
    epoch=4,
    prior="ab12",
    predicted=((10, 20.5, 30), (1, 2, 3)),
    profiled=((0, 500), (20, 20)),
)


def document(**changes: Any) -> bytes:
    """The plan's JSON with fields replaced; `...` leaves a field out."""
    fields = {**json.loads(write_plan(PLAN)), **changes}
    return json.dumps({name: value for name, value in fields.items() if value is not ...}).encode()


def test_a_plan_comes_back_as_written() -> None:
    """Every field, and the same id from the same content."""
    again = read_plan(write_plan(PLAN))

    assert again == PLAN
    assert again.plan_id == PLAN.plan_id and len(PLAN.plan_id) == 64


def test_cuts_are_decimal_strings_in_the_file() -> None:
    """2^62 would lose its last digits in a double."""
    assert json.loads(write_plan(PLAN))["cuts"]["0"] == ["100", str(HALF)]


def test_a_cut_is_the_first_hash_of_the_next_lane() -> None:
    """Ranges are inclusive, from 0 to 2^63-1."""
    ranges = [PLAN.layout().key_range(0, lane) for lane in range(3)]

    assert ranges == [KeyRange(0, 99), KeyRange(100, HALF - 1), KeyRange(HALF, HASH_MAX)]
    assert PLAN.layout().key_range(1, 1) == KeyRange(7, 7)


@pytest.mark.parametrize(("partition", "lane"), [(2, 0), (-1, 0), (0, 3), (0, -1)])
def test_a_lane_that_is_not_there_is_refused(partition: int, lane: int) -> None:
    """Two partitions of three lanes have no others."""
    with pytest.raises(ValueError, match=r"no (lane|interval)"):
        PLAN.layout().key_range(partition, lane)


def test_predicted_bytes_are_loads_by_lane_index() -> None:
    """Lane 2 of partition 1 of 2 has the index 5."""
    loads = PLAN.loads()

    assert loads["orders", 5] == 3
    assert loads["orders", 2] == 20.5
    assert len(loads) == 6


def test_one_row_of_cuts_may_stand_for_all_partitions() -> None:
    """With the scope topic the cuts stand under `*`, and come back so."""
    data = document(scope="topic", cuts={"*": ["5", "6"]})

    plan = read_plan(data)

    assert plan.cuts == ((5, 6), (5, 6))
    assert read_plan(write_plan(plan)) == plan


def test_optional_fields_may_be_missing() -> None:
    """Without prior, predicted and profiled a plan has no loads."""
    plan = read_plan(document(prior=..., predicted=..., profiled=...))

    assert (plan.prior, plan.predicted, plan.profiled, plan.loads()) == (None, (), (), {})


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"format": "other"}, "format"),
        ({"version": 2}, "version"),
        ({"version": True}, "version"),
        ({"topic": ...}, "topic: missing"),
        ({"topic": ""}, "topic"),
        ({"topic": 7}, "topic"),
        ({"partitions": 0}, "partitions"),
        ({"partitions": 10**9}, "partitions"),
        ({"partitions": 3}, "cuts.2: missing"),
        ({"partitions": 1}, "cuts.1: no such partition"),
        ({"lanes": 2000}, "lanes"),
        ({"lanes": "3"}, "lanes"),
        ({"lanes": 4}, "cuts.0: expected a list of 3"),
        ({"hash": {"name": "murmur3"}}, "hash"),
        ({"scope": "world"}, "scope"),
        ({"scope": ["partition"]}, "scope"),
        ({"scope": "topic"}, r"cuts.\*: missing"),
        ({"cuts": []}, "cuts: expected an object"),
        ({"cuts": {"0": ["1", "2"], "1": "12"}}, "cuts.1"),
        ({"cuts": {"0": ["1", "2"], "1": ["2", "2"]}}, "cuts.1: must ascend"),
        ({"cuts": {"0": ["0", "2"], "1": ["1", "2"]}}, "cuts.0.0"),
        ({"cuts": {"0": ["1", str(2**63)], "1": ["1", "2"]}}, "cuts.0.1"),
        ({"cuts": {"0": ["1", 2], "1": ["1", "2"]}}, "cuts.0.1: expected a decimal string"),
        ({"cuts": {"0": ["-1", "2"], "1": ["1", "2"]}}, "cuts.0.0"),
        ({"cuts": {"0": ["1", "9" * 5000], "1": ["1", "2"]}}, "cuts.0.1"),
        ({"cuts": {"0": ["1", "\u0662"], "1": ["1", "2"]}}, "cuts.0.1"),
        ({"epoch": -1}, "epoch"),
        ({"prior": 5}, "prior"),
        ({"predicted": {"0": [1, 2, 3]}}, "predicted.1: missing"),
        ({"predicted": {"0": [1, 2, 3], "1": [1, 2, -3]}}, "predicted.1.2"),
        ({"predicted": {"0": [1, 2, 3], "1": [1, 2, True]}}, "predicted.1.2"),
        ({"predicted": []}, "predicted"),
        ({"profiled": {"0": [5, 4], "1": [0, 0]}}, "profiled.0: ends before"),
        ({"extra": 1}, "extra: unknown field"),
    ],
)
def test_each_wrong_field_is_named(changes: dict[str, Any], place: str) -> None:
    """The text says which field, partition and place is wrong."""
    with pytest.raises(ConfigInvalid, match=f"plan: {place}"):
        read_plan(document(**changes))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"7",
        b"[" * 100_000,
        b'{"a": 1, "a": 2}',
        b'{"a": NaN}',
        b'{"a": ' + b"9" * 10_000 + b"}",
    ],
)
def test_hostile_text_is_refused(data: bytes) -> None:
    """No JSON, not an object, too deep, twins, NaN, endless numbers."""
    with pytest.raises(ConfigInvalid, match="plan: "):
        read_plan(data)


def test_a_huge_file_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is on bytes, before anything is parsed."""
    monkeypatch.setattr(plan_module, "PLAN_BYTES_MAX", 10)

    with pytest.raises(ConfigInvalid, match="at most 10"):
        read_plan(write_plan(PLAN))
