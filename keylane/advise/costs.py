"""Costs of keylane for a topic: processor time, memory, network, from measured unit costs.

Each constant names the table of docs/performance.md that it is from. All were measured on two
cores that broker, clients and keylane shared, so they are good for an order of magnitude.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from keylane.config.memory import MemoryConfig

CPU_S_PER_BYTE: Final = 1.49e-9
"""Fan-out, 16 members: 1.55 s per GB of records of 1,000 B and 2.07 s of 100 B are 1.49 ns for each
byte and 58 ns for each record."""
CPU_S_PER_RECORD: Final = 58e-9
MEMBER_CPU_SHARE: Final = 3.5e-3
"""10 ms of work per record, K=8: 35 us for each of 800 records/s, which are 3.5 ms in each second
for each member that polls, beats and commits."""
NODE_S_PER_BYTE: Final = 1.83e-9
"""Fan-out, 16 members: 522 MB/s of records of 1,000 B and 367 MB/s of 100 B through one node are
1.83 ns for each byte and 90 ns for each record."""
NODE_S_PER_RECORD: Final = 90e-9
DIRECT_S_PER_BYTE: Final = 0.92e-9
"""Fan-out, direct: 1,014 MB/s of 1,000 B and 616 MB/s of 100 B by one reader without any work."""
DIRECT_S_PER_RECORD: Final = 71e-9
READY_BYTES: Final = 149_000_000
"""Memory and cost of size: RSS when ready."""
CONNECTION_BYTES: Final = 12_500
PARTITION_BYTES: Final = 20_000
LANE_BYTES: Final = 1_400
CONNECTIONS_PER_MEMBER: Final = 2
CACHE_FACTOR: Final = 1.25
"""docs/operations.md, memory: what the cache costs for each byte of its bound."""
ADDED_LATENCY_MS: Final = 0.5
"""Low rate, 16 lanes: p50 over direct."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Costs of one node that serves the group."""

    records_per_s: float
    """The rate that they are for."""
    cpu_cores: float
    memory_bytes: int
    """With members that keep up with each other."""
    memory_bytes_max: int
    """While one is stuck, and the cache is full."""
    from_brokers_bytes_per_s: float
    """As brokers store them: what the group reads today, too."""
    to_members_bytes_per_s: float
    """Lanes go out uncompressed."""
    latency_ms: float


def find_costs(
    records_per_s: float,
    *,
    record_bytes: float,
    wire_bytes: float,
    partitions: int,
    lanes: int,
    members: int,
) -> Costs:
    """Return the costs at a rate; record_bytes: plain size of a record, wire_bytes: as stored."""
    per_record = CPU_S_PER_RECORD + CPU_S_PER_BYTE * record_bytes
    memory = (
        READY_BYTES
        + members * CONNECTIONS_PER_MEMBER * CONNECTION_BYTES
        + partitions * (PARTITION_BYTES + lanes * LANE_BYTES)
    )
    cache = MemoryConfig.model_fields["cache_bytes_max"].default
    return Costs(
        records_per_s=records_per_s,
        cpu_cores=records_per_s * per_record + members * MEMBER_CPU_SHARE,
        memory_bytes=memory,
        memory_bytes_max=memory + int(cache * CACHE_FACTOR),
        from_brokers_bytes_per_s=records_per_s * wire_bytes,
        to_members_bytes_per_s=records_per_s * record_bytes,
        latency_ms=ADDED_LATENCY_MS,
    )


def node_records_per_s(record_bytes: float) -> float:
    """Return what one node can pass on, of records without any work."""
    return 1 / (NODE_S_PER_RECORD + NODE_S_PER_BYTE * record_bytes)


def reader_s_per_record(record_bytes: float) -> float:
    """Return the time that a direct reader takes for a record beside its work."""
    return DIRECT_S_PER_RECORD + DIRECT_S_PER_BYTE * record_bytes
