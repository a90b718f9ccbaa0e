"""Memory and time per connection, per lane and per partition; a group of 10,000 lanes."""

from __future__ import annotations

import socket
import struct
import time
from typing import Final

import psutil
from confluent_kafka.admin import AdminClient

from bench.end_to_end.drain import Drain, find_leader
from bench.end_to_end.stage import MB, create_topic, fill_topic
from bench.side_by_side.lineup import Lineup, progress
from bench.side_by_side.outcome import Outcome
from bench.side_by_side.usage import Meter
from keylane.wire.header import ApiKey, write_request

CONNECTIONS: Final = 2000
LANES: Final = 10_000
LANE_PARTITIONS: Final = 10
READ_PARTITIONS: Final = 50
READ_LANES: Final = 16
IDLE_S: Final = 5.0
RSS_IDLE_MB_MAX: Final = 200
SIZE: Final = struct.Struct(">i")


def run(lineup: Lineup) -> Outcome:
    """Measure one after the other; each row says what was added to the row before."""
    outcome = Outcome("footprint", "Memory and cost of size", ("what", "figure"))
    lineup.keylane.restart()
    idle_mb = rss_mb(lineup)
    outcome.rows.append(("RSS when ready", f"{idle_mb:.0f} MB"))
    outcome.target("RSS idle MB", idle_mb, at_most=RSS_IDLE_MB_MAX)
    measure_connections(lineup, outcome)
    lineup.keylane.restart()
    measure_metadata(lineup, outcome)
    lineup.keylane.restart()
    measure_partitions(lineup, outcome)
    return outcome


def rss_mb(lineup: Lineup) -> float:
    """Resident memory of keylane."""
    return float(psutil.Process(lineup.keylane.pid).memory_info().rss / MB)


def measure_connections(lineup: Lineup, outcome: Outcome) -> None:
    """Open many, each paired with one to the broker, and leave them alone."""
    progress(f"footprint: {CONNECTIONS} connections")
    before_mb = rss_mb(lineup)
    host, port = lineup.keylane.bootstrap.split(":")
    request = write_request(ApiKey.API_VERSIONS, 0, 1, "bench", b"")
    started_s = time.perf_counter()
    sockets = [socket.create_connection((host, int(port)), 30) for _ in range(CONNECTIONS)]
    try:
        for each in sockets:
            each.sendall(request)
        for each in sockets:
            (size,) = SIZE.unpack(each.recv(4, socket.MSG_WAITALL))
            each.recv(size, socket.MSG_WAITALL)
        seconds = time.perf_counter() - started_s
        added_kb = (rss_mb(lineup) - before_mb) * 1000 / CONNECTIONS
        with Meter(lineup.pids) as meter:
            time.sleep(IDLE_S)
        percent = 100 * meter.usage["keylane"].cpu_s / IDLE_S
    finally:
        for each in sockets:
            each.close()
    outcome.rows += [
        (f"per connection, of {CONNECTIONS:,} idle", f"{added_kb:.1f} KB"),
        ("opening one, with its first answer", f"{1000 * seconds / CONNECTIONS:.2f} ms"),
        (f"CPU of {CONNECTIONS:,} idle connections", f"{percent:.1f}% of a core"),
    ]
    outcome.keep("connections", kb_each=[added_kb], cpu_percent=[percent])


def measure_metadata(lineup: Lineup, outcome: Outcome) -> None:
    """Ask for the metadata of 1,000 and of 10,000 lanes."""
    progress(f"footprint: metadata of {LANES} lanes")
    create_topic(lineup.stage, "wide", LANE_PARTITIONS)
    before_mb = rss_mb(lineup)
    for lanes in (LANES // 10, LANES):
        client = AdminClient({"bootstrap.servers": lineup.keylane.bootstrap})
        name = f"wide.lanes-{lanes // LANE_PARTITIONS}"
        found = client.list_topics(name, timeout=30).topics[name]
        times_ms = []
        with Meter(lineup.pids) as meter:
            for _ in range(5):
                started_s = time.perf_counter()
                found = client.list_topics(name, timeout=30).topics[name]
                times_ms.append(1000 * (time.perf_counter() - started_s))
        assert len(found.partitions) == lanes, f"{name} has {len(found.partitions)} lanes"
        cpu_ms = 1000 * meter.usage["keylane"].cpu_s / len(times_ms)
        outcome.rows.append(
            (f"metadata of {lanes:,} lanes", f"{min(times_ms):.1f} ms, proxy CPU {cpu_ms:.1f} ms")
        )
        outcome.keep(f"metadata of {lanes}", ms=times_ms)
    outcome.rows.append(("RSS after that", f"{before_mb:.0f} MB, then {rss_mb(lineup):.0f} MB"))


def measure_partitions(lineup: Lineup, outcome: Outcome) -> None:
    """Read many partitions through few and through many lanes, and see what stays."""
    progress(f"footprint: {READ_PARTITIONS} partitions")
    topic = fill_topic(
        lineup.stage, "many", codec="none", record_bytes=100, megabytes=1, batch_bytes=16_384,
        partitions=READ_PARTITIONS,
    )  # fmt: skip
    figures = []
    for lanes in (1, READ_LANES):
        name = f"many.lanes-{lanes}"
        count = READ_PARTITIONS * lanes
        ends = {index: topic.ends[index % READ_PARTITIONS] for index in range(count)}
        before_mb = rss_mb(lineup)
        drain = Drain(
            find_leader(lineup.keylane.bootstrap, name), name, dict.fromkeys(ends, 0), ends
        )
        drain.drain(60)
        drain.close()
        figures.append((rss_mb(lineup) - before_mb) * 1000)
    per_lane_kb = max(0.0, (figures[1] - figures[0]) / (READ_PARTITIONS * (READ_LANES - 1)))
    outcome.rows += [
        (
            f"per partition, of {READ_PARTITIONS} read once",
            f"{figures[0] / READ_PARTITIONS:.0f} KB",
        ),
        (f"per lane, of {READ_PARTITIONS * READ_LANES} read once", f"{per_lane_kb:.1f} KB"),
    ]
    outcome.keep("partitions", added_kb=figures)
