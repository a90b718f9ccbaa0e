"""All groups of the cluster: listed by the brokers, with what this node's samples know of them.

Source: ListGroups (KIP-518 states, KIP-848 types).

Cost: a question to each broker, at most once in FRESH_S for all that ask; no question for a group.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from kio.index import load_request_schema

from keylane.errors import KeylaneError
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.control.holders import CONSUMER
from keylane.proxy.control.watch.summary import LANES, PLAIN, SHARE, GroupsReport, GroupSummary
from keylane.proxy.topics.node_values import GROUP as NODES_GROUP
from keylane.tasks import spawn
from keylane.wire.header import ApiKey

log = logging.getLogger("keylane.control")

FRESH_S: Final = 1.5
"""Age up to which a list counts: viewers ask each second or two."""
BROKERS_AT_ONCE: Final = 8
ANSWER_S_MAX: Final = 5.0
SILENT_S: Final = 30.0
"""Time for which a broker that did not answer in time is not asked again: all callers wait for it.
Six times ANSWER_S_MAX, so that a page that asks on and on waits for a seventh of the time."""
VERSION_MAX: Final = 5
"""The first one with types of groups."""
STATES_VERSION: Final = 4
GROUPS_MAX: Final = 5_000
"""Groups in one answer, some 500 bytes each."""
KEPT_MS: Final = 600_000
"""Time for which the groups of a broker that is away are listed, while others answer."""
CLASSIC: Final = "classic"


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group as its coordinator lists it."""

    group: str
    protocol: str
    state: str | None


@dataclass(frozen=True, slots=True)
class _Said:
    at_ms: int
    groups: tuple[ListedGroup, ...]


class Knowledge(Protocol):
    """Facts of groups at this node."""

    def summaries(self) -> Mapping[str, GroupSummary]:
        """Return the last look at each group that is sampled."""

    def lane_groups(self) -> frozenset[str]:
        """Return the groups on lanes that are known here."""

    def node_of(self, group: str) -> str | None:
        """Return the control address of another node that serves a group; None: none does."""


class GroupLister:
    """Lists groups. Invariant: one round of questions is under way at most."""

    def __init__(self, cluster: Cluster, knowledge: Knowledge, now_ms: Callable[[], int]) -> None:
        """now_ms: gives the time in ms since 1970."""
        self._cluster, self._knowledge, self._now_ms = cluster, knowledge, now_ms
        self._said: dict[int, _Said] = {}
        """By broker; of one that is away the last that it said."""
        self._silent_until_s: dict[int, float] = {}
        """By broker that did not answer in time."""
        self._asked_s, self._asked_ms = float("-inf"), 0
        """Begin of the last round."""
        self._asking: asyncio.Task[None] | None = None

    async def list(self) -> GroupsReport:
        """Return all groups, those of brokers that are away as they were."""
        if time.monotonic() - self._asked_s > FRESH_S:
            if self._asking is None:
                self._asking = spawn(self._ask_all(), "list of groups")
            await asyncio.shield(self._asking)
        said = sorted(self._said.values(), key=lambda each: each.at_ms)
        listed = {each.group: (each, one.at_ms) for one in said for each in one.groups}
        return merge(listed, self._knowledge, self._now_ms(), asked_ms=self._asked_ms)

    async def _ask_all(self) -> None:
        gate = asyncio.Semaphore(BROKERS_AT_ONCE)
        self._asked_ms = self._now_ms()

        async def ask(node_id: int) -> None:
            async with gate:
                await self._ask(node_id)

        try:
            await asyncio.gather(*map(ask, list(self._cluster.brokers)))
        finally:
            self._asked_s, self._asking = time.monotonic(), None
        if any(said.at_ms == self._asked_ms for said in self._said.values()):
            oldest_ms = self._asked_ms - KEPT_MS
            self._said = {k: said for k, said in self._said.items() if said.at_ms >= oldest_ms}

    async def _ask(self, node_id: int) -> None:
        if time.monotonic() < self._silent_until_s.get(node_id, 0.0):
            return  # its groups stay as it last listed them
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                spoken = (await self._cluster.versions_of(node_id)).get(ApiKey.LIST_GROUPS, 0)
                version = min(spoken, VERSION_MAX)
                answer = await self._cluster.ask_broker(node_id, _request(version))
        except TimeoutError:
            log.debug("groups are not listed: no answer in time broker=%d", node_id)
            self._silent_until_s[node_id] = time.monotonic() + SILENT_S
            return
        except (KeylaneError, OSError) as error:
            log.debug("groups are not listed broker=%d reason=%s", node_id, error)
            return
        if int(answer.error_code) != 0:
            log.debug("groups are not listed broker=%d error=%s", node_id, answer.error_code.name)
            return
        self._said[node_id] = _Said(self._asked_ms, tuple(map(_listed, answer.groups)))


def _request(version: int) -> Any:
    schema: Any = load_request_schema(ApiKey.LIST_GROUPS, version)
    if version < STATES_VERSION:
        return schema()
    filters = {"states_filter": ()} if version == STATES_VERSION else {
        "states_filter": (), "types_filter": ()
    }  # fmt: skip
    return schema(**filters)


def _listed(entry: Any) -> ListedGroup:
    """Read a kio entry of ListGroups."""
    kind = str(getattr(entry, "group_type", "") or "").lower()
    protocol_type = str(entry.protocol_type)
    if kind in ("", CLASSIC) and protocol_type not in ("", CONSUMER):
        protocol = protocol_type
    else:
        protocol = kind or CLASSIC
    return ListedGroup(
        str(entry.group_id), protocol, str(getattr(entry, "group_state", "")) or None
    )


def merge(
    listed: Mapping[str, tuple[ListedGroup, int]],
    knowledge: Knowledge,
    now_ms: int,
    *,
    asked_ms: int,
) -> GroupsReport:
    """Return all groups, those on lanes first, by name.

    listed: with the time of the round in which a broker said so. asked_ms: that of the last round.
    """
    known, on_lanes = knowledge.summaries(), knowledge.lane_groups()
    found = []
    for group in sorted({*listed, *known}):
        if group == NODES_GROUP:
            continue  # keylane's own
        entry, at_ms = listed.get(group, (None, 0))
        node = knowledge.node_of(group)
        summary = known.get(group) if node is None else None
        if summary is None:
            summary = _unsampled(group, entry, node, is_on_lanes=group in on_lanes)
        is_old = entry is None or at_ms < asked_ms
        found.append(
            replace(
                summary,
                kind=LANES if group in on_lanes and node is None else summary.kind,
                protocol=summary.protocol if entry is None else entry.protocol,
                state=summary.state if entry is None or entry.state is None else entry.state,
                is_old=is_old,
                as_of_ms=summary.as_of_ms or (at_ms if is_old else None),
            )
        )
    found.sort(key=lambda each: (_rank(each.kind), each.group))
    return GroupsReport(
        at_ms=now_ms,
        groups=tuple(found[:GROUPS_MAX]),
        left_out=max(0, len(found) - GROUPS_MAX),
    )


def _unsampled(
    group: str, entry: ListedGroup | None, node: str | None, *, is_on_lanes: bool
) -> GroupSummary:
    """Return what is known of a group that was not sampled here."""
    is_share = entry is not None and entry.protocol == SHARE
    kind: str | None = SHARE if is_share else PLAIN
    if node is not None and not is_share:
        kind = None  # the other node has its offsets
    if is_on_lanes and node is None:
        kind = LANES
    return GroupSummary(
        group=group,
        kind=kind,
        protocol=None if entry is None else entry.protocol,
        state=None if entry is None else entry.state,
        node=node,
    )


def _rank(kind: str | None) -> int:
    order: Sequence[str | None] = (LANES, SHARE, None, PLAIN)
    return order.index(kind)
