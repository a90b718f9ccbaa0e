"""A range plan: where each partition is cut into lanes, made from measured load.

A cut is the first hash of the next lane; ranges are inclusive at both ends, the first starts at 0
and the last ends at 2^63-1. Cuts are decimal strings, because numbers beyond 2^53 do not survive
every JSON reader.

With the scope `topic` all partitions are cut alike, and the cuts stand once, under `*`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from keylane.assignor.model import Lane
from keylane.errors import ConfigInvalid
from keylane.keyrange.key_split import LaneCuts
from keylane.keyrange.lane import LaneLayout
from keylane.keyrange.space import HASH_MAX, LANE_COUNT_MAX

PLAN_FORMAT: Final = "keylane-range-plan"
PLAN_VERSION: Final = 1
PLAN_BYTES_MAX: Final = 64 << 20
"""Beyond what 2,000 partitions of 1,024 lanes take."""
PARTITIONS_MAX: Final = 100_000
HASH_FORM: Final = {"name": "xxh64", "seed": 42, "shift": 1, "null_key": "offset"}
"""The hash that the cuts are of; keylane has no other."""
ALL_PARTITIONS: Final = "*"
REQUIRED: Final = frozenset(
    {"format", "version", "topic", "partitions", "lanes", "hash", "scope", "cuts", "epoch"}
)
OPTIONAL: Final = frozenset({"prior", "predicted", "profiled"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RangePlan:
    """Cuts of every partition of one topic; epochs of one lane count follow each other."""

    topic: str
    lane_count: int
    cuts: tuple[tuple[int, ...], ...]
    """First hashes of lanes 1 to lane_count - 1, by partition."""
    epoch: int
    prior: str | None = None
    """Id of the plan that this one follows."""
    is_cut_alike: bool = False
    """Scope `topic`: all partitions have the same cuts."""
    predicted: tuple[tuple[float, ...], ...] = ()
    """Bytes of each lane, by partition, as the profile has them; empty where it has none."""
    profiled: tuple[tuple[int, int], ...] = ()
    """First offset and the one behind the last that were profiled, by partition."""

    @property
    def partition_count(self) -> int:
        """Partitions of the topic."""
        return len(self.cuts)

    def layout(self) -> LaneLayout:
        """Return the lanes that the plan cuts. Raises: ValueError, the cuts do not fit together."""
        return LaneLayout(self.partition_count, self.lane_count, LaneCuts.of(self.cuts))

    def loads(self) -> dict[Lane, float]:
        """Predicted load by lane index; empty where the plan has none."""
        return {
            (self.topic, lane * self.partition_count + partition): weight
            for partition, weights in enumerate(self.predicted)
            for lane, weight in enumerate(weights)
        }

    @property
    def plan_id(self) -> str:
        """SHA-256 of the plan's canonical form, in hexadecimal."""
        return hashlib.sha256(write_plan(self)).hexdigest()


def write_plan(plan: RangePlan) -> bytes:
    """The canonical form: keys in order, no spaces, cuts as decimal strings."""
    cuts = {str(place): [str(cut) for cut in row] for place, row in enumerate(plan.cuts)}
    if plan.is_cut_alike:
        cuts = {ALL_PARTITIONS: cuts["0"]}
    document: dict[str, Any] = {
        "format": PLAN_FORMAT,
        "version": PLAN_VERSION,
        "topic": plan.topic,
        "partitions": plan.partition_count,
        "lanes": plan.lane_count,
        "hash": HASH_FORM,
        "scope": "topic" if plan.is_cut_alike else "partition",
        "cuts": cuts,
        "epoch": plan.epoch,
    }
    if plan.prior is not None:
        document["prior"] = plan.prior
    if plan.predicted:
        document["predicted"] = {str(p): list(row) for p, row in enumerate(plan.predicted)}
    if plan.profiled:
        document["profiled"] = {str(p): list(row) for p, row in enumerate(plan.profiled)}
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def read_plan(data: bytes) -> RangePlan:
    """Read and check a plan file.

    Raises:
        ConfigInvalid: too large, no JSON, or a field is wrong; the text names the place.
    """
    document = _parse(data)
    _check_keys(document)
    if document["hash"] != HASH_FORM:
        raise ConfigInvalid(f"plan: hash: expected {json.dumps(HASH_FORM)}")
    scope = document["scope"]
    if scope not in ("partition", "topic"):
        raise ConfigInvalid("plan: scope: expected partition or topic")
    count = read_integer(document["partitions"], "plan: partitions", 1, PARTITIONS_MAX)
    lane_count = read_integer(document["lanes"], "plan: lanes", 1, LANE_COUNT_MAX)
    keys = [ALL_PARTITIONS] if scope == "topic" else [str(place) for place in range(count)]
    rows = _rows(document["cuts"], "cuts", keys, lane_count - 1, read_cut)
    for key, row in zip(keys, rows, strict=True):
        if any(low >= high for low, high in pairwise(row)):
            raise ConfigInvalid(f"plan: cuts.{key}: must ascend, every lane needs a hash")
    partitions = [str(place) for place in range(count)]
    predicted = document.get("predicted", {})
    profiled = document.get("profiled", {})
    return RangePlan(
        topic=read_text(document["topic"], "plan: topic"),
        lane_count=lane_count,
        cuts=rows * count if scope == "topic" else rows,
        epoch=read_integer(document["epoch"], "plan: epoch", 0, HASH_MAX),
        prior=None
        if document.get("prior") is None
        else read_text(document["prior"], "plan: prior"),
        is_cut_alike=scope == "topic",
        predicted=_rows(predicted, "predicted", partitions, lane_count, _read_weight)
        if predicted != {}
        else (),
        profiled=_read_profiled(profiled, partitions) if profiled != {} else (),
    )


def _parse(data: bytes) -> dict[str, Any]:
    if len(data) > PLAN_BYTES_MAX:
        raise ConfigInvalid(f"plan: {len(data)} bytes, at most {PLAN_BYTES_MAX}")
    try:
        document = json.loads(
            data, object_pairs_hook=_without_twins, parse_constant=_refuse_constant
        )
    except ConfigInvalid:
        raise
    except (ValueError, RecursionError) as error:  # what is not UTF-8 is a ValueError, too
        raise ConfigInvalid(f"plan: no JSON: {str(error)[:200]}") from None
    if not isinstance(document, dict):
        raise ConfigInvalid("plan: expected an object")
    return document


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twin = next(name for name in names if names.count(name) > 1)
        raise ConfigInvalid(f"plan: {twin[:80]}: stands twice")
    return found


def _refuse_constant(name: str) -> float:
    raise ConfigInvalid(f"plan: {name} is no number of JSON")


def _check_keys(document: Mapping[str, Any]) -> None:
    for name in sorted(REQUIRED - document.keys()):
        raise ConfigInvalid(f"plan: {name}: missing")
    for name in sorted(document.keys() - REQUIRED - OPTIONAL):
        raise ConfigInvalid(f"plan: {name[:80]}: unknown field")
    if document["format"] != PLAN_FORMAT:
        raise ConfigInvalid(f"plan: format: expected {PLAN_FORMAT}")
    if type(document["version"]) is not int or document["version"] != PLAN_VERSION:
        raise ConfigInvalid(f"plan: version: expected {PLAN_VERSION}")


def _rows(
    value: Any, name: str, keys: list[str], length: int, read: Callable[[Any, str], Any]
) -> tuple[tuple[Any, ...], ...]:
    """One list of `length` values per key, all of them and no others."""
    if not isinstance(value, dict):
        raise ConfigInvalid(f"plan: {name}: expected an object")
    for key in keys:
        if key not in value:
            raise ConfigInvalid(f"plan: {name}.{key}: missing")
    if len(value) != len(keys):
        key = min(value.keys() - set(keys))
        raise ConfigInvalid(f"plan: {name}.{key[:80]}: no such partition")
    rows = []
    for key in keys:
        row = value[key]
        if not isinstance(row, list) or len(row) != length:
            raise ConfigInvalid(f"plan: {name}.{key}: expected a list of {length}")
        rows.append(
            tuple(read(item, f"plan: {name}.{key}.{place}") for place, item in enumerate(row))
        )
    return tuple(rows)


def _read_profiled(value: Any, partitions: list[str]) -> tuple[tuple[int, int], ...]:
    rows = _rows(value, "profiled", partitions, 2, read_integer)
    for key, (start, end) in zip(partitions, rows, strict=True):
        if start > end:
            raise ConfigInvalid(f"plan: profiled.{key}: ends before it starts")
    return rows


def _read_weight(value: Any, place: str) -> float:
    if type(value) not in {int, float} or not 0 <= value <= HASH_MAX or math.isnan(value):
        raise ConfigInvalid(f"{place}: expected bytes, 0 or more")
    number: int | float = value
    return number


def read_integer(value: Any, place: str, low: int = 0, high: int = HASH_MAX) -> int:
    """Return an integer of a document. Raises: ConfigInvalid, with its place."""
    if type(value) is not int or not low <= value <= high:
        raise ConfigInvalid(f"{place}: expected an integer from {low} to {high}")
    return value


def read_cut(value: Any, place: str, low: int = 1) -> int:
    """Return a hash, a decimal string in a document. Raises: ConfigInvalid, with its place."""
    if not isinstance(value, str) or not value.isascii() or not value.isdigit() or len(value) > 19:
        raise ConfigInvalid(f"{place}: expected a decimal string")
    return read_integer(int(value), place, low)


def read_text(value: Any, place: str) -> str:
    """Return a name of a document. Raises: ConfigInvalid, with its place."""
    if not isinstance(value, str) or not 1 <= len(value) <= 249:  # 249: Kafka's topic names
        raise ConfigInvalid(f"{place}: expected a text of 1 to 249 letters")
    return value
