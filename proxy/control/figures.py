"""Figures of members and groups, put together from those of their lanes. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from keylane.proxy.groups.balance import evenness


class LaneFigures(Protocol):
    """The figures of a lane: a part of `LaneReport`."""

    @property
    def committed_ms(self) -> int | None:
        """Time of its last commit."""

    @property
    def lag(self) -> int | None:
        """None: without a commit."""

    @property
    def lag_is_exact(self) -> bool:
        """False: an estimate, or none."""

    @property
    def lag_s(self) -> float | None:
        """Seconds since the first record that is not done came."""

    @property
    def lag_s_is_exact(self) -> bool:
        """False: an estimate, a lower bound, or none."""

    @property
    def bytes_per_s(self) -> float | None:
        """Flow in."""

    @property
    def records_per_s(self) -> float | None:
        """Flow in."""

    @property
    def consumed_per_s(self) -> float | None:
        """Records that are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of some lanes together."""

    lag: int | None
    """None: no lane has a commit."""
    lag_is_exact: bool
    lag_s: float | None
    lag_s_is_exact: bool
    last_commit_ms: int | None
    bytes_per_s: float
    records_per_s: float
    consumed_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceReport:
    """Evenness of the load of members."""

    busiest: float
    """Load of the busiest member by the mean of all: 1.0 is even."""
    is_by_keylane: bool
    """True: keylane deals out the group's lanes; else its clients' assignor does."""


def figures_of(lanes: Collection[LaneFigures]) -> Figures:
    """Return the figures of lanes together; those without a commit have no lag."""
    ages = [lane.lag_s for lane in lanes if lane.lag_s is not None]
    oldest = max(ages, default=None)
    oldest_lanes = [lane for lane in lanes if lane.lag_s == oldest]
    lags = [lane.lag for lane in lanes if lane.lag is not None]
    rates = [lane.consumed_per_s for lane in lanes if lane.consumed_per_s is not None]
    return Figures(
        lag=sum(lags) if lags else None,
        lag_is_exact=all(lane.lag_is_exact for lane in lanes),
        lag_s=oldest,
        lag_s_is_exact=oldest is not None and all(lane.lag_s_is_exact for lane in oldest_lanes),
        last_commit_ms=max(
            (lane.committed_ms for lane in lanes if lane.committed_ms is not None), default=None
        ),
        bytes_per_s=sum(lane.bytes_per_s or 0.0 for lane in lanes),
        records_per_s=sum(lane.records_per_s or 0.0 for lane in lanes),
        consumed_per_s=sum(rates) if rates else None,
    )


def balance_report(loads: Iterable[float], *, is_by_keylane: bool) -> BalanceReport | None:
    """Return the balance of members by their loads; None: there is no load, or no member."""
    busiest = evenness(loads)
    return None if busiest is None else BalanceReport(
        busiest=round(busiest, 3), is_by_keylane=is_by_keylane
    )  # fmt: skip
