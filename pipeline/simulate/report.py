"""The answer of a simulation: a table for people, JSON and Parquet for programs."""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from keylane.pipeline.simulate.model import (
    RecordFacts,
    ScenarioResult,
    Simulation,
    SimulationRequest,
    Waits,
    cheapest_within,
)

FORMAT: Final = "keylane-simulation"
VERSION: Final = 1
COLUMNS: Final = (
    "way",
    "members",
    "lanes",
    "records/s",
    "at most/s",
    "mean ms",
    "p50",
    "p95",
    "p99",
    "max",
    "key p99",
    "busiest",
    "used",
    "done in",
    "hours",
)
_WAITS: Final = ("mean_ms", "p50_ms", "p95_ms", "p99_ms", "max_ms")


def render(simulation: Simulation, price: float | None = None) -> str:
    """Return the answer as text; price: of a member for an hour."""
    columns = COLUMNS if price is None else (*COLUMNS, "price")
    rows = [columns, *(_row(one, price) for one in simulation.results)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(columns))]
    lines = [*_head(simulation), ""]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells))
    return "\n".join(lines)


def advise(simulation: Simulation, wait_ms: float) -> tuple[str, bool]:
    """Name the cheapest scenario whose p99 is within `wait_ms` in a line; and if there is one."""
    found = cheapest_within(simulation, wait_ms)
    if found is None:
        return f"enough: no scenario on lanes has a p99 within {figure(wait_ms)} ms", False
    scenario, p99 = found.scenario, figure(found.waits.p99_ms)
    place = f"{scenario.members} members on {scenario.lanes} lanes per partition"
    return f"enough: {place}, with a p99 of {p99} ms", True


def write_json(simulation: Simulation, price: float | None = None) -> bytes:
    """Everything but the records, as JSON. Hashes are decimal strings, as in a plan."""
    request = asdict(simulation.request)
    plan = simulation.request.plan
    request["plan"] = None if plan is None else plan.plan_id
    document = {
        "format": FORMAT,
        "version": VERSION,
        "topic": simulation.topic,
        "request": request,
        "records": asdict(simulation.facts) | {"rate": simulation.facts.rate},
        "scenarios": [_document(one, price) for one in simulation.results],
    }
    return json.dumps(document, indent=1, allow_nan=False).encode() + b"\n"


def write_members(simulation: Simulation) -> bytes:
    """A Parquet file with a row per scenario and member; waits are null without a record."""
    rows = [
        {
            **_scenario(result),
            "member": one.member,
            "assigned_lanes": one.lanes,
            "records": one.records,
            "work_ms": one.work_ms,
            "utilisation": one.utilisation,
            **_waits(one.waits),
        }
        for result in simulation.results
        for one in result.members
    ]
    counts = {"member": pa.int32(), "assigned_lanes": pa.int32(), "records": pa.int64()}
    return _parquet(rows, {**counts, "work_ms": pa.float64(), "utilisation": pa.float64()})


def write_keys(simulation: Simulation) -> bytes:
    """A Parquet file with a row per scenario and heavy key."""
    rows = [
        {
            **_scenario(result),
            "partition": one.partition,
            "key_hash": one.key_hash,
            "records": one.records,
            "work_share": one.work_share,
            **_waits(one.waits),
        }
        for result in simulation.results
        for one in result.heavy
    ]
    counts = {"partition": pa.int32(), "key_hash": pa.int64(), "records": pa.int64()}
    return _parquet(rows, {**counts, "work_share": pa.float64()})


def figure(value: float) -> str:
    """A number with three digits that count, and all digits in front of the point."""
    digits = 0 if value >= 100 or value == 0 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}"


def money(value: float) -> str:
    """A price with cents, and three digits where it is less than one."""
    return f"{value:,.2f}" if value >= 1 else f"{value:.3g}"


def duration(ms: float) -> str:
    """A time in seconds, or in hours if it is long."""
    return f"{figure(ms / 1000)} s" if ms < 36_000_000 else f"{figure(ms / 3_600_000)} h"


def _head(simulation: Simulation) -> list[str]:
    facts, request = simulation.facts, simulation.request
    span_ms = (facts.last_us - facts.first_us) / 1000
    rate = (
        "" if facts.rate is None else f", produced in {duration(span_ms)} ({figure(facts.rate)}/s)"
    )
    size, work = figure(facts.bytes / facts.records), figure(facts.work_us / facts.records / 1000)
    means = simulation.results[0].key_means
    keys = 0 if means is None else means.keys
    topic = (
        f"{simulation.topic}: {facts.partition_count} partitions, {facts.records:,} records of"
        f" {size} bytes, {keys:,} keys{rate}"
    )
    total = duration(facts.work_us / 1000)
    worked = f"work: {work} ms per record, {total} in all{_limit(simulation)}"
    return [topic, worked, _arrivals(facts, request)]


def _limit(simulation: Simulation) -> str:
    heavy = simulation.results[0].heavy
    if not heavy or not heavy[0].work_share:
        return ""
    share, hottest = heavy[0].work_share, heavy[0]
    return (
        f"; {share:.1%} is of one key (hash {hottest.key_hash}, partition {hottest.partition}):"
        f" no group does more than {1 / share:.1f} times one member's work"
    )


def _arrivals(facts: RecordFacts, request: SimulationRequest) -> str:
    if request.arrivals == "backlog":
        return "arrivals: all records are there at the start"
    pace = "as they were produced" if request.rate is None else f"at {request.rate:g} records/s"
    late = ""
    if facts.raised:
        late = (
            f"; {facts.raised:,} records stand behind later ones, by"
            f" {duration(facts.raised_max_us / 1000)} at most, and take their times"
        )
    return f"arrivals: {pace}{late}"


def _row(one: ScenarioResult, price: float | None) -> tuple[str, ...]:
    used = [member.utilisation for member in one.members]
    waits = (
        one.waits.mean_ms,
        one.waits.p50_ms,
        one.waits.p95_ms,
        one.waits.p99_ms,
        one.waits.max_ms,
    )
    row = (
        one.scenario.way,
        str(one.scenario.members),
        str(one.scenario.lanes),
        figure(one.rate),
        figure(one.capacity),
        *map(figure, waits),
        "-" if one.key_means is None else figure(one.key_means.p99_ms),
        f"{one.imbalance:.2f} x mean",
        f"{one.utilisation:.0%} ({min(used):.0%}-{max(used):.0%})",
        duration(one.span_ms),
        f"{one.member_hours:,.2f}",
    )
    return row if price is None else (*row, money(price * one.member_hours))


def _document(one: ScenarioResult, price: float | None) -> dict[str, Any]:
    return {
        **_scenario(one),
        "records": one.records,
        "records_per_s": _finite(one.rate),
        "capacity_records_per_s": _finite(one.capacity),
        "work_ms": one.work_ms,
        "span_ms": one.span_ms,
        "imbalance": one.imbalance,
        "utilisation": one.utilisation,
        "member_hours": one.member_hours,
        "price": None if price is None else price * one.member_hours,
        "wait": asdict(one.waits),
        "key_mean_wait": None if one.key_means is None else asdict(one.key_means),
        "members_utilisation": [member.utilisation for member in one.members],
        "heavy": [asdict(key) | {"key_hash": str(key.key_hash)} for key in one.heavy],
    }


def _scenario(one: ScenarioResult) -> dict[str, Any]:
    scenario = one.scenario
    return {"way": scenario.way, "members": scenario.members, "lanes": scenario.lanes}


def _finite(value: float) -> float | None:
    return None if value == float("inf") else value


def _waits(waits: Waits | None) -> dict[str, float | None]:
    return dict.fromkeys(_WAITS) if waits is None else asdict(waits)


def _parquet(rows: list[dict[str, Any]], own: dict[str, pa.DataType]) -> bytes:
    names = {"way": pa.string(), "members": pa.int32(), "lanes": pa.int32()}
    schema = pa.schema({**names, **own, **dict.fromkeys(_WAITS, pa.float64())})
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema), sink)
    return sink.getvalue()
