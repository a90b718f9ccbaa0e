"""pipeline/simulate without Spark: what may be asked, lanes of members, what is shown of it."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from keylane.advise.keys import SampledLanes
from keylane.assignor.range_plan import RangePlan, write_plan
from keylane.cli.main import main
from keylane.errors import ConfigInvalid
from keylane.pipeline.simulate.deals import deal, deal_whole
from keylane.pipeline.simulate.model import (
    KeyMeans,
    KeyResult,
    MemberResult,
    RecordFacts,
    ScenarioResult,
    SimulatedGroup,
    Simulation,
    SimulationRequest,
    Waits,
    Way,
    WorkModel,
    cheapest_within,
    layouts_of,
    list_scenarios,
)
from keylane.pipeline.simulate.picture import draw, write_picture
from keylane.pipeline.simulate.report import (
    advise,
    duration,
    figure,
    render,
    write_json,
    write_keys,
    write_members,
)

WORK = WorkModel(base_ms=5)
PLAN = RangePlan(topic="orders", lane_count=2, cuts=((9,), (5,)), epoch=0)
ASKED = ["spark", "simulate", "--bootstrap", "nowhere:1", "--topic", "orders"]


def waits(p99_ms: float) -> Waits:
    """Queueing times."""
    return Waits(mean_ms=1.5, p50_ms=0, p95_ms=12, p99_ms=p99_ms, max_ms=12_345)


def result(number: int, way: Way, members: int, lanes: int, *, p99_ms: float) -> ScenarioResult:
    """A group that does 1,000 records of 5 ms in 4 s; its last member has nothing."""
    work_ms = 5000 / max(members - 1, 1)
    working = [
        MemberResult(
            member=member,
            lanes=1,
            records=1000 // max(members - 1, 1),
            work_ms=work_ms,
            utilisation=work_ms / 4000,
            waits=waits(p99_ms),
        )
        for member in range(max(members - 1, 1))
    ]
    idle = [
        MemberResult(member=member, lanes=0, records=0, work_ms=0, utilisation=0, waits=None)
        for member in range(len(working), members)
    ]
    return ScenarioResult(
        scenario=SimulatedGroup(number, way, members, lanes, min(number, 1)),
        records=1000,
        work_ms=5000,
        span_ms=4000,
        busiest_ms=work_ms,
        parallel=1,
        waits=waits(p99_ms),
        key_means=KeyMeans(keys=7, p50_ms=1, p95_ms=2, p99_ms=3, max_ms=4),
        members=(*working, *idle),
        heavy=(
            KeyResult(
                partition=1, key_hash=2**60, records=100, work_share=0.1, waits=waits(p99_ms)
            ),
        ),
    )


def simulation(request: SimulationRequest | None = None) -> Simulation:
    """Today's way, and two members' numbers on lanes."""
    return Simulation(
        topic="orders",
        request=request or SimulationRequest(members=(3, 5), lanes=(16,), work=WORK),
        facts=RecordFacts(
            partition_count=2,
            records=1000,
            bytes=71_000,
            first_us=1_000_000,
            last_us=3_000_000,
            raised=4,
            raised_max_us=12_000,
            work_us=5_000_000,
        ),
        results=(
            result(0, "today", 2, 1, p99_ms=900),
            result(1, "keylane", 3, 16, p99_ms=80),
            result(2, "keylane", 5, 16, p99_ms=20),
        ),
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--members", "8,x", "--lanes", "4"], "--members 8,x: expected numbers such as 8,32"),
        (["--members", "8,8", "--lanes", "4"], "--members: expected different numbers"),
        (["--members", "0", "--lanes", "4"], "--members: expected different numbers from 1"),
        (["--members", "8", "--lanes", "4000"], "--lanes: expected different numbers from 1"),
        (["--members", "8", "--lanes", "4", "--work-ms", "nan"], "--work-ms: expected 0 to"),
        (["--members", "8", "--lanes", "4", "--rate", "0"], "--rate: expected 1e-09 to"),
        (["--members", "8", "--lanes", "4", "--price", "-1"], "--price: expected 0 to"),
        (["--members", "8", "--lanes", "4", "--heavy", "0"], "--heavy: expected 1 to"),
        (["--members", "8", "--lanes", "4", "--sigma", "1"], "--sigma: needs --work-spread"),
        (["--members", "8", "--lanes", "4", "--seed", "1"], "--seed: needs --work-spread"),
        (
            ["--members", "8", "--lanes", "4", "--arrivals", "backlog", "--rate", "9"],
            "--rate: a backlog has no rate",
        ),
        (
            ["--members", ",".join(map(str, range(1, 20))), "--lanes", "1,2,3,4"],
            "more than 64 pairs",
        ),
    ],
)
def test_a_wrong_request_is_one_line(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before Spark starts: exit status 2, the option, and what is expected."""
    given = [*ASKED, *([] if "--work-ms" in arguments else ["--work-ms", "5"]), *arguments]

    code = main(given)

    lines = capsys.readouterr().err.splitlines()
    assert (code, len(lines)) == (2, 1)
    assert text in lines[0]


def test_work_has_to_be_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither time nor measured times; a spread of measured times; a plan of another topic."""
    counts = ["--members", "8", "--lanes", "4"]
    (tmp_path / "plan.json").write_bytes(write_plan(PLAN))
    plan = ["--members", "8", "--plan", str(tmp_path / "plan.json"), "--work-ms", "5"]

    codes = [
        main([*ASKED, *counts]),
        main([*ASKED, *counts, "--work-from", "times", "--seed", "3"]),
        main([*ASKED[:-1], "other", *plan]),
        main([*ASKED, *counts, "--plan", "plan.json"]),
    ]

    lines = capsys.readouterr().err.splitlines()
    assert codes == [2] * 4
    assert "--work-ms is missing" in lines[0]
    assert "--seed: needs --work-ms" in lines[1]
    assert "is of topic orders, not other" in lines[2]
    assert "--plan: cannot stand beside --lanes" in lines[3]


def test_scenarios_are_todays_and_each_pair() -> None:
    """A plain group has no more working members than partitions; a plan's lanes are its own."""
    request = SimulationRequest(members=(8, 2, 3), lanes=(16, 4), work=WORK)
    layouts = layouts_of(request, 3)

    found = list_scenarios(request, layouts)

    assert [(one.way, one.members, one.lanes) for one in found] == [
        ("today", 2, 1), ("today", 3, 1),
        *(("keylane", members, 16) for members in (2, 3, 8)),
        *(("keylane", members, 4) for members in (2, 3, 8)),
    ]  # fmt: skip
    assert [one.number for one in found] == list(range(8))
    whole, planned = layouts_of(SimulationRequest(members=(2,), plan=PLAN, work=WORK), 2)
    assert (whole.lane_count, planned.key_split(1).cuts) == (1, (5,))
    with pytest.raises(ConfigInvalid, match="has 2 partitions, the topic has 3"):
        layouts_of(SimulationRequest(members=(2,), plan=PLAN, work=WORK), 3)
    many = SimulationRequest(members=tuple(range(1, 21)), lanes=(1024,), work=WORK)
    with pytest.raises(ConfigInvalid, match="lanes in all scenarios together"):
        list_scenarios(many, layouts_of(many, 100))
    with pytest.raises(ConfigInvalid, match="needs members"):
        SimulationRequest(members=(2,), work=WORK)


def test_lanes_are_dealt_out_as_in_groups() -> None:
    """By load, finely, before it is known, and by Kafka's own; every lane is at one member."""
    weights = np.ones((2, 8))
    weights[0, :4] = 40, 20, 10, 10
    lanes = SampledLanes(weights, 100 * weights, np.zeros_like(weights))

    def busiest(assignor) -> float:
        owners = deal(assignor, lanes, 4)
        assert owners.shape == (2, 8) and set(owners.ravel()) <= set(range(4))
        return float(np.bincount(owners.ravel(), weights.ravel()).max())

    loads = {name: busiest(name) for name in ("key-range", "consumer", "unmeasured", "range")}

    assert loads["key-range"] == loads["consumer"] == 40
    assert loads["unmeasured"] > 40
    assert loads["range"] == 62  # lane index = lane * 2 + partition: lanes 0 and 1 of both
    assert deal("roundrobin", lanes, 3)[:, :3].tolist() == [[0, 2, 1], [1, 0, 2]]
    assert deal_whole(5, 2).ravel().tolist() == [0, 0, 0, 1, 1]


def test_the_table_has_a_row_per_scenario() -> None:
    """Head, limit, late records, prices; numbers with the digits that count."""
    lines = render(simulation(), price=0.5).splitlines()

    assert lines[0] == (
        "orders: 2 partitions, 1,000 records of 71.0 bytes, 7 keys, produced in 2.00 s (500/s)"
    )
    assert "5.00 ms per record, 5.00 s in all; 10.0% is of one key" in lines[1]
    assert "no group does more than 10.0 times one member's work" in lines[1]
    assert "4 records stand behind later ones, by 0.01 s at most" in lines[2]
    assert re.split(r"\s{2,}", lines[-1]) == [
        "keylane", "5", "16", "250", "800", "1.50", "0", "12.0", "20.0", "12,345", "3.00",
        "1.25 x mean", "25% (0%-31%)", "4.00 s", "0.01", "0.00278",
    ]  # fmt: skip
    assert len(lines) == 4 + 1 + 3
    assert (figure(99.94), figure(0.004), duration(36_000_000)) == ("99.9", "0.00", "10.0 h")
    backlog = SimulationRequest(members=(3,), lanes=(16,), work=WORK, arrivals="backlog")
    assert "all records are there at the start" in render(simulation(backlog))
    paced = SimulationRequest(members=(3,), lanes=(16,), work=WORK, rate=2e3)
    assert "arrivals: at 2000 records/s" in render(simulation(paced))


def test_the_cheapest_that_is_enough_is_named() -> None:
    """Fewest members on lanes; today's way does not count."""
    found = cheapest_within(simulation(), 100)

    assert found is not None and found.scenario.members == 3
    line, is_met = advise(simulation(), 20)
    assert is_met
    assert line == "enough: 5 members on 16 lanes per partition, with a p99 of 20.0 ms"
    assert advise(simulation(), 1) == (
        "enough: no scenario on lanes has a p99 within 1.00 ms",
        False,
    )


def test_files_have_all_figures() -> None:
    """JSON with hashes as text; a row per member, idle ones too; a row per heavy key."""
    planned = SimulationRequest(members=(3,), plan=PLAN, work=None)

    document = json.loads(write_json(simulation(planned), price=2))
    members = pq.read_table(io.BytesIO(write_members(simulation()))).to_pylist()
    keys = pq.read_table(io.BytesIO(write_keys(simulation()))).to_pylist()

    assert (document["format"], document["version"]) == ("keylane-simulation", 1)
    assert document["request"]["plan"] == PLAN.plan_id
    assert document["records"]["rate"] == 500
    assert document["scenarios"][1]["heavy"][0]["key_hash"] == str(2**60)
    assert document["scenarios"][1]["price"] == pytest.approx(2 * 3 * 4 / 3600)
    assert len(members) == 2 + 3 + 5
    assert (members[-1]["members"], members[-1]["member"], members[-1]["p99_ms"]) == (5, 4, None)
    assert [key["key_hash"] for key in keys] == [2**60] * 3


@pytest.mark.parametrize(("kind", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_the_picture_is_drawn(kind: str, start: bytes) -> None:
    """A line per number of lanes, and today's; the same bytes each time."""
    picture = draw(simulation())

    lines = [line.get_label() for line in picture.axes[0].get_lines()]
    assert lines == ["16 lanes", "today", "arriving"]
    drawn = write_picture(picture, kind)
    assert drawn.startswith(start)
    assert write_picture(draw(simulation()), kind) == drawn


def test_a_group_without_work_is_not_divided_by() -> None:
    """Work of no time: rates have no bound, and JSON has none."""
    free = simulation()
    nothing = ScenarioResult(
        scenario=free.results[1].scenario,
        records=2,
        work_ms=0,
        span_ms=0,
        busiest_ms=0,
        parallel=1,
        waits=waits(0),
        key_means=None,
        members=free.results[1].members,
        heavy=(),
    )
    idle = Simulation(topic="orders", request=free.request, facts=free.facts, results=(nothing,))

    (row,) = json.loads(write_json(idle))["scenarios"]

    assert (row["records_per_s"], row["capacity_records_per_s"]) == (None, None)
    assert (row["imbalance"], row["utilisation"], row["key_mean_wait"]) == (1, 1, None)
    assert "inf" in render(idle)
