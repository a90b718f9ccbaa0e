"""Bounds that follow from one: they fit in it, grow with it, and leave the defaults alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.config.node import ProxyConfig
from keylane.errors import ConfigInvalid
from keylane.proxy.runtime.memory_plan import (
    GIB,
    MIB,
    PARTS,
    PROCESS_BYTES,
    MemoryPlan,
    plan_memory,
    share_of_worker,
)

DEFAULTS = ProxyConfig(bootstrap="k:1")
PLENTY = 64 * GIB
LEAST = 469 * MIB
"""Nothing is given, on two processors."""

keys = st.fixed_dictionaries(
    {},
    optional={
        "connections_max": st.integers(1, 20_000),
        "cache_bytes_max": st.integers(0, GIB),
        "filtering_bytes_max": st.integers(MIB, GIB),
        "buffered_bytes_max": st.integers(MIB, 4 * GIB),
        "buffered_bytes_per_principal_max": st.integers(MIB, 4 * GIB),
        "batch_bytes_max": st.integers(MIB, 2 * GIB),
        "filter_threads": st.integers(0, 64),
        "read_bytes_max": st.integers(1024, 16 * MIB),
    },
)
sizes = st.integers(MIB, 16 * GIB)


def plan(values: dict[str, Any], memory_max: int, processors: int = 2) -> MemoryPlan | None:
    """The plan; None where it is refused."""
    config = ProxyConfig(bootstrap="k:1", **values)
    try:
        return plan_memory(config, memory_max, processors=processors)
    except ConfigInvalid:
        return None


@given(keys, sizes, st.integers(1, 128))
def test_the_parts_fit(values: dict[str, Any], memory_max: int, processors: int) -> None:
    """Whatever is given: what all parts cost together is never more than there is."""
    found = plan(values, memory_max, processors)
    if found is None:
        return
    assert sum(found.costs.values()) <= memory_max
    assert found.costs["process"] == PROCESS_BYTES
    assert found.costs.keys() == {"process", *PARTS}


@given(keys, sizes)
def test_what_is_given_stands(values: dict[str, Any], memory_max: int) -> None:
    """A key that was given is used as it is; 0 threads are as many as there are processors."""
    found = plan(values, memory_max)
    if found is None:
        return
    config = found.applied_to(ProxyConfig(bootstrap="k:1", **values))
    for key, value in values.items():
        if value or key != "filter_threads":
            assert getattr(config, key) == value
    assert config.memory_max == memory_max


@given(keys, sizes, st.integers(0, 4 * GIB))
def test_more_memory_is_never_less_room(values: dict[str, Any], memory_max: int, more: int) -> None:
    """No bound is lower with more; what fits, fits with more."""
    small, large = plan(values, memory_max), plan(values, memory_max + more)
    if small is None:
        return
    assert large is not None
    assert all(large.bounds[key] >= value for key, value in small.bounds.items())
    assert large.login_bytes_max >= small.login_bytes_max


@given(st.integers(LEAST, 16 * GIB))
def test_bounds_fit_each_other(memory_max: int) -> None:
    """A batch fits in what one client may have in buffers, a request with its growth too."""
    found = plan({}, memory_max)
    assert found is not None
    bounds = found.bounds
    assert all(bounds[key] >= part.floor for key, part in PARTS.items() if key in bounds)
    per_principal = bounds["buffered_bytes_per_principal_max"]
    assert bounds["batch_bytes_max"] <= per_principal <= bounds["buffered_bytes_max"]
    assert bounds["request_bytes_max"] * 3 // 2 <= per_principal
    assert bounds["fetch_answer_bytes_max"] <= per_principal
    assert bounds["read_bytes_max"] <= bounds["filtering_bytes_max"] // 4


def test_plenty_leaves_the_defaults() -> None:
    """As they are in the table of keys."""
    found = plan({}, PLENTY)
    assert found is not None
    for key, value in found.bounds.items():
        if key != "filter_threads":
            assert value == getattr(DEFAULTS, key), key


def test_too_little_is_refused_with_the_sum() -> None:
    """What is needed, and what would fit; a byte more than that is refused as well."""
    with pytest.raises(ConfigInvalid, match=r"memory_max: 468 MiB are too little.*= 469 MiB"):
        plan_memory(DEFAULTS, LEAST - MIB, processors=2)
    assert plan({}, LEAST) is not None
    config = ProxyConfig(bootstrap="k:1", cache_bytes_max=GIB)
    with pytest.raises(ConfigInvalid) as caught:
        plan_memory(config, GIB, processors=2)
    assert "1280 MiB for cache_bytes_max 1024 MiB" in str(caught.value)
    assert "or lower cache_bytes_max to 452 MiB" in str(caught.value)
    assert plan({"cache_bytes_max": 452 * MIB}, GIB) is not None
    assert plan({"cache_bytes_max": 453 * MIB}, GIB) is None


def test_a_batch_that_no_buffer_holds_is_refused() -> None:
    """It would be decompressed again and again for a client that is closed each time."""
    values: dict[str, Any] = {
        "batch_bytes_max": 64 * MIB,
        "buffered_bytes_per_principal_max": 32 * MIB,
    }
    with pytest.raises(ConfigInvalid, match="batch_bytes_max: a batch of 64 MiB"):
        plan_memory(ProxyConfig(bootstrap="k:1", **values), PLENTY, processors=2)


@given(sizes, st.integers(2, 64))
def test_workers_share(memory_max: int, workers: int) -> None:
    """All of them and their parent together use no more than there is."""
    assert share_of_worker(memory_max, workers) * workers <= memory_max
