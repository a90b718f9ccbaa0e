"""A group in one line, for lists of groups. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from keylane.proxy.control.describe import GroupReport

LANES: Final = "lanes"
SHARE: Final = "share"
PLAIN: Final = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    """One group of the cluster. None: not known at this node."""

    group: str
    kind: str | None
    """`lanes`, `share` or `plain`."""
    protocol: str | None
    """`classic`, `consumer`, `share` or `streams`; of other classic groups their protocol type."""
    state: str | None
    member_count: int | None = None
    lane_count: int | None = None
    topics: tuple[str, ...] | None = None
    lag: int | None = None
    lag_is_exact: bool = False
    lag_s: float | None = None
    lag_s_is_exact: bool = False
    last_commit_ms: int | None = None
    bytes_per_s: float | None = None
    records_per_s: float | None = None
    consumed_per_s: float | None = None
    balance: float | None = None
    stuck_members: int | None = None
    refusal: str | None = None
    node: str | None = None
    """Control address of another node that serves the group."""
    is_old: bool = False
    """True: it cannot be looked at now, and this is how it was at `as_of_ms`."""
    as_of_ms: int | None = None
    """Time of its figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsReport:
    """All groups of the cluster."""

    at_ms: int
    groups: tuple[GroupSummary, ...] = field(default=())
    left_out: int = 0


def summarize(report: GroupReport, at_ms: int) -> GroupSummary:
    """Return a report in one line."""
    if report.share is not None:
        lags = [each.lag for each in report.share.partitions]
        known = [lag for lag in lags if lag is not None]
        return GroupSummary(
            group=report.group,
            kind=SHARE,
            protocol=SHARE,
            state=report.state,
            member_count=len(report.share.members),
            topics=tuple(sorted({each.topic for each in report.share.partitions})),
            lag=sum(known) if known else None,
            lag_is_exact=bool(known) and len(known) == len(lags),
            as_of_ms=at_ms,
        )
    return GroupSummary(
        group=report.group,
        kind=LANES if report.lanes else PLAIN,
        protocol=None,
        state=report.state,
        member_count=len(report.members),
        lane_count=len(report.lanes),
        topics=tuple(sorted({lane.topic for lane in report.lanes})),
        lag=report.lag,
        lag_is_exact=report.lag_is_exact,
        lag_s=report.lag_s,
        lag_s_is_exact=report.lag_s_is_exact,
        last_commit_ms=report.last_commit_ms,
        bytes_per_s=report.bytes_per_s,
        records_per_s=report.records_per_s,
        consumed_per_s=report.consumed_per_s,
        balance=None if report.balance is None else report.balance.busiest,
        stuck_members=sum(member.is_stuck for member in report.members),
        refusal=report.refusal,
        as_of_ms=at_ms,
    )
