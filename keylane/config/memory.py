"""Keys that bound memory: one for the process, and one for each of its parts.

Source: names of Kafka's own broker configs where one exists; docs/decisions/035.
"""

from __future__ import annotations

from pydantic import Field

from keylane.config.security import SecurityConfig


class MemoryConfig(SecurityConfig):
    """Bounds of the bytes that a process holds."""

    memory_max: int | None = Field(
        default=None,
        ge=1024**2,
        description="Bytes that the process may use; with `workers`, all of them together. When "
        "left out, 15/16 of the limit of its cgroup (a container's), or half of the machine's "
        "memory if there is no limit. The bounds below are lowered until all fit in it, but for "
        "those that are set. If those do not fit, the start is refused.",
    )
    cache_bytes_max: int = Field(
        default=200 * 1024**2,
        ge=0,
        description="`max.bytes.key.range.cache`: records that wait for their lane.",
    )
    filtering_bytes_max: int = Field(
        default=100 * 1024**2,
        ge=1024**2,
        description="`max.bytes.fetcher.filtering`: data being decompressed.",
    )
    batch_bytes_max: int = Field(
        default=1024**3,
        ge=1024**2,
        description="Bound of one record batch, decompressed or on the wire, of a topic that is "
        "read as lanes. A larger batch is refused: its lanes stop there.",
    )
    request_bytes_max: int = Field(
        default=100 * 1024**2,
        ge=1024,
        description="Largest request from a client; Kafka's `socket.request.max.bytes`.",
    )
    response_bytes_max: int = Field(
        default=1024**3, ge=1024**2, description="Largest answer taken from a broker."
    )
    fetch_answer_bytes_max: int = Field(
        default=8 * 1024**2,
        ge=1024,
        description="Record bytes in one answer to a lane fetch; clients ask for up to 50 MiB. A "
        "larger first batch is sent alone, as by a broker.",
    )
    lane_name_lanes_max: int = Field(
        default=131_072,
        ge=1024,
        description="Lanes of the partitions that all clients read under lane names, and "
        "outputs of those that they read by key ranges named in fetches. A partition "
        "counts as 16 at least, for its connections. One principal (without a login one address) "
        "has three quarters of the bound: 1,000 partitions in up to 98 lanes. At the bound a new "
        "partition replaces the one with the oldest request, if that is 10 s old; otherwise its "
        "reads are refused. Lanes of topics with lanes under their own name do not count.",
    )
    read_bytes_max: int = Field(
        default=4 * 1024**2, ge=1024, description="Upstream bytes of one read of a partition."
    )
