"""One bound of memory, and what each part of the process may use of it.

Source: decision 035, with the measurements behind the numbers here.

Theory. A part costs its bound times what one byte of it takes at its worst (`COSTS`). The parts
and the process itself together never exceed `memory_max`. Bounds that were given stand. Each of
the others has at least its floor; what is left is poured into them by their weights, until each
has its default. So more memory never makes a bound lower, and plenty of it leaves the defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, NamedTuple

from keylane.config.node import ProxyConfig
from keylane.errors import ConfigInvalid

KIB: Final = 1024
MIB: Final = 1024**2
GIB: Final = 1024**3

PROCESS_BYTES: Final = 320 * MIB
"""The idle process (150 MiB were measured), what the allocator keeps (64 MiB, see `heap`), what is
remembered of groups that join (64 MiB), and room for states of offsets."""
SUPERVISOR_BYTES: Final = 64 * MIB
"""The parent of workers."""
LARGE_BATCH_COST: Final = 4
"""A batch on the wire, decompressed, split into lanes, and the tables of the split: at most 3.3
times its plain size were measured."""
BLOCK_BYTES: Final = 8 * MIB
"""Plain bytes of one block at most."""
SPLITTING_BLOCKS: Final = 2
"""Plain sizes of a block that a thread holds while it splits one, beside the one that the gate
counts."""
GATHERING_PART: Final = 4
"""Answers gathered from lanes may be this part of `buffered_bytes_max`, beside it."""
LOGIN_KEY: Final = "before a login"
THREADS_KEY: Final = "filter_threads"


class _Part(NamedTuple):
    """A bound; its cost is in bytes per unit of it."""

    floor: int
    default: int
    cost: Fraction
    weight: int


PARTS: Final[Mapping[str, _Part]] = {
    "connections_max": _Part(100, 10_000, Fraction(100 * KIB), 10),
    "cache_bytes_max": _Part(8 * MIB, 200 * MIB, Fraction(5, 4), 20),
    "filtering_bytes_max": _Part(16 * MIB, 100 * MIB, Fraction(5, 4), 12),
    "batch_bytes_max": _Part(8 * MIB, GIB, Fraction(LARGE_BATCH_COST), 28),
    # A quarter for what allocators add, and a quarter for answers that are being gathered.
    "buffered_bytes_max": _Part(32 * MIB, 2 * GIB, Fraction(3, 2), 22),
    # A lane that is read: its claim, runs and scan (1.2 KiB were measured), and its part of two
    # connections and of the tables of a partition, which counts as 16 lanes at least.
    "lane_name_lanes_max": _Part(4_096, 131_072, Fraction(2 * KIB), 8),
    THREADS_KEY: _Part(1, 0, Fraction(SPLITTING_BLOCKS * BLOCK_BYTES), 5),
    LOGIN_KEY: _Part(4 * MIB, 64 * MIB, Fraction(5, 4), 3),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Memory that each part may use."""

    memory_max: int
    bounds: Mapping[str, int]
    """By key: the bounds that the process goes by, given or derived."""
    login_bytes_max: int
    """Bytes of connections that have not logged in, where a login is required."""
    costs: Mapping[str, int]
    """By part: what its bound costs at most; the process itself among them."""

    def applied_to(self, config: ProxyConfig) -> ProxyConfig:
        """The configuration with all bounds."""
        return config.model_copy(update={"memory_max": self.memory_max, **self.bounds})

    def fields(self) -> str:
        """For the log: all bounds as `key=value`."""
        pairs = {"memory_max": self.memory_max, "process_bytes": PROCESS_BYTES}
        pairs |= {**self.bounds, "login_bytes_max": self.login_bytes_max}
        return " ".join(f"{key}={value}" for key, value in pairs.items())


def plan_memory(config: ProxyConfig, memory_max: int, *, processors: int) -> MemoryPlan:
    """Share out `memory_max`. Raises: ConfigInvalid, with the arithmetic, where it is too little.

    processors: what `filter_threads` is when it is left out.
    """
    given = _given(config)
    parts = {key: part for key, part in PARTS.items() if key not in given}
    if THREADS_KEY in parts:
        parts[THREADS_KEY] = parts[THREADS_KEY]._replace(default=max(1, processors))
    needed = PROCESS_BYTES + sum(_cost(key, value) for key, value in given.items())
    floors = sum(_cost(key, part.floor) for key, part in parts.items())
    if needed + floors > memory_max:
        raise ConfigInvalid(_too_little(memory_max, given, floors))
    bounds = {**given, **_pour(parts, memory_max - needed - floors)}
    costs = {key: _cost(key, bounds[key]) for key in PARTS}
    login_bytes_max = bounds.pop(LOGIN_KEY)
    bounds |= _dependent(config, bounds)
    return MemoryPlan(
        memory_max=memory_max,
        bounds={key: bounds[key] for key in sorted(bounds)},
        login_bytes_max=login_bytes_max,
        costs={"process": PROCESS_BYTES, **costs},
    )


def share_of_worker(memory_max: int, workers: int) -> int:
    """Return the memory of each of several workers: the parent needs some itself."""
    return max(0, memory_max - SUPERVISOR_BYTES) // workers


def _given(config: ProxyConfig) -> dict[str, int]:
    """Return the bounds that were given, by part."""
    keys = PARTS.keys() & config.model_fields_set
    given = {key: int(getattr(config, key)) for key in PARTS if key in keys}
    if not given.get(THREADS_KEY):
        given.pop(THREADS_KEY, None)  # 0: as if it were left out
    if "buffered_bytes_max" not in given and "buffered_bytes_per_principal_max" in (
        config.model_fields_set
    ):
        # No bound of all is below that of one principal.
        default = PARTS["buffered_bytes_max"].default
        if config.buffered_bytes_per_principal_max > default:
            given["buffered_bytes_max"] = config.buffered_bytes_per_principal_max
    return given


def _pour(parts: Mapping[str, _Part], rest: int) -> dict[str, int]:
    """Each part's floor, and by weight as much of `rest` as there is up to its default."""
    level, weights = Fraction(0), sum(part.weight for part in parts.values())
    steps = sorted((_cost_to_fill(part) / part.weight, part.weight) for part in parts.values())
    left = Fraction(rest)
    for filled_at, weight in steps:
        if (filled_at - level) * weights > left:
            break
        left -= (filled_at - level) * weights
        level, weights = filled_at, weights - weight
    if weights:
        level += left / weights
    return {
        key: min(part.default, part.floor + int(level * part.weight / part.cost))
        if part.default > part.floor
        else part.floor
        for key, part in parts.items()
    }


def _cost_to_fill(part: _Part) -> Fraction:
    return max(0, part.default - part.floor) * part.cost


def _cost(key: str, value: int) -> int:
    """Bytes, rounded up."""
    cost = PARTS[key].cost
    return -(-value * cost.numerator // cost.denominator)


def _dependent(config: ProxyConfig, bounds: Mapping[str, int]) -> dict[str, int]:
    """Return bounds within a part, which have no cost beside it."""
    buffered, batch = bounds["buffered_bytes_max"], bounds["batch_bytes_max"]
    filtering = bounds["filtering_bytes_max"]
    is_given = config.model_fields_set.__contains__
    found = {}
    per_principal = config.buffered_bytes_per_principal_max
    if not is_given("buffered_bytes_per_principal_max"):
        least = min(batch, buffered) if is_given("batch_bytes_max") else 0
        per_principal = max(min(per_principal, buffered // 2), least)
        found["buffered_bytes_per_principal_max"] = per_principal
    if not is_given("batch_bytes_max"):
        # Its answer has to fit in what waits for one client.
        found["batch_bytes_max"] = max(MIB, min(batch, per_principal, buffered))
    elif batch > min(per_principal, buffered):
        raise ConfigInvalid(
            f"batch_bytes_max: a batch of {_mib(batch)} does not fit in the buffers that it is "
            f"answered from, buffered_bytes_per_principal_max {_mib(per_principal)} and "
            f"buffered_bytes_max {_mib(buffered)}; raise these or lower it"
        )
    lowered = {
        # While its buffer grows, the one before is there as well.
        "request_bytes_max": per_principal * 3 // 5,
        "response_bytes_max": buffered,
        "fetch_answer_bytes_max": buffered // 16,
        "read_bytes_max": filtering // 8,
    }
    for key, bound in lowered.items():
        if not is_given(key):
            found[key] = min(getattr(config, key), max(bound, 64 * KIB))
    return found


def _too_little(memory_max: int, given: Mapping[str, int], floors: int) -> str:
    """Return the error text: the sum, and bounds that would fit."""
    terms = [f"{_mib(PROCESS_BYTES)} for the process"]
    terms += [
        f"{_mib(_cost(key, value))} for {key} {_shown(key, value)}" for key, value in given.items()
    ]
    if floors:
        terms.append(f"at least {_mib(floors)} for all other bounds")
    total = PROCESS_BYTES + floors + sum(_cost(key, value) for key, value in given.items())
    text = (
        f"memory_max: {_mib(memory_max)} are too little: {' + '.join(terms)} = {_mib(total)}; "
        f"raise memory_max, or the container's limit, to {_mib(total)}"
    )
    if not given:
        return text
    largest = max(given, key=lambda key: _cost(key, given[key]))
    room = memory_max - total + _cost(largest, given[largest])
    fits = int(room / PARTS[largest].cost)
    if fits < PARTS[largest].floor:
        return f"{text}, or lower {', '.join(sorted(given))}"
    return f"{text}, or lower {largest} to {_shown(largest, fits)}"


def _shown(key: str, value: int) -> str:
    return str(value) if not key.endswith("bytes_max") else f"{value // MIB} MiB"


def _mib(size_bytes: int) -> str:
    return f"{-(-size_bytes // MIB)} MiB"
