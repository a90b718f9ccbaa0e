"""Report of a share group: its members, its partitions, and the windows of ordered ones.

Source: KIP-932, KIP-1226 (lag); docs/decisions/048. Keys are shown by their hash alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from keylane.proxy.control.shares.windows import SharedWindow
from keylane.share.summary import HotKey


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareMemberReport:
    """One member, as its broker has it."""

    member_id: str
    client_id: str
    host: str
    partition_count: int
    """Partitions that the group's coordinator has assigned to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HotKeyReport:
    """A key with records that wait behind each other."""

    hash: str
    """XXH64 of the key, as a point of the hash space, in decimal digits."""
    records: int
    """Records of it that are held, the oldest one too."""
    oldest_offset: int
    held_s: float
    """Seconds since its oldest record was first acquired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowReport:
    """Records that keylane holds of a partition, at members and before them."""

    members: int
    """Members with a session of this partition."""
    ready: int
    in_flight: int
    """At members."""
    waiting: int
    """Behind another record of their key, or until a pause after a release is over."""
    unconfirmed: int
    """Decided by members, and not yet confirmed by the broker."""
    released: int
    """Given back, so that they come again or are archived."""
    last_attempts: int
    """Of all of these, records that are not delivered again after this attempt."""
    oldest_offset: int | None
    """None: nothing is held."""
    oldest_s: float | None
    """Seconds since the oldest record was first acquired."""
    end_offset: int | None
    """Highest offset that was acquired; None: nothing was."""
    span: int
    """Offsets from the oldest record to `end_offset`."""
    look_ahead: int
    handed_out: int
    """Records handed out since the window was opened, each as often as it was."""
    redelivered: int
    """Of these, records that had been delivered before."""
    is_settled: bool
    """False: nothing is handed out, as earlier records may not be here yet."""
    error: str | None
    """Name of the code that members get; None: they are served."""
    hottest_keys: tuple[HotKeyReport, ...]
    """Keys with most records, up to five; a key with one record is not among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePartitionReport:
    """One partition of the group."""

    topic: str
    partition: int
    leader: int | None
    """Broker id; None: not known."""
    start_offset: int | None
    """First offset that is not finished, as last written; None: nothing was written yet."""
    lag: int | None
    """Offsets that are not finished up to the log end; None: the broker does not say."""
    is_ordered: bool
    """True: a rule has keylane hand its records out in the order of keys."""
    node: str | None
    """Control port of another node that has its window; None: this node, or not known."""
    window: WindowReport | None
    """None: it is not ordered, or not open at this node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareReport:
    """A share group."""

    is_ordered: bool
    """True: a rule orders topics of it."""
    members: tuple[ShareMemberReport, ...]
    partitions: tuple[SharePartitionReport, ...]


def report_window(window: SharedWindow) -> WindowReport:
    """Return the report of an open partition."""
    summary = window.summary
    is_empty = summary.records == 0
    return WindowReport(
        members=summary.members,
        ready=summary.ready,
        in_flight=summary.in_flight,
        waiting=summary.waiting,
        unconfirmed=summary.unconfirmed,
        released=summary.released,
        last_attempts=summary.last_attempts,
        oldest_offset=None if is_empty else summary.oldest_offset,
        oldest_s=None if is_empty else round(summary.oldest_s, 3),
        end_offset=None if summary.end_offset < 0 else summary.end_offset,
        span=summary.span,
        look_ahead=window.look_ahead,
        handed_out=summary.handed_out,
        redelivered=summary.redelivered,
        is_settled=summary.is_settled,
        error=_name_of(window.error_code),
        hottest_keys=tuple(map(_report_key, summary.hottest)),
    )


def _name_of(error_code: int) -> str | None:
    return ErrorCode(error_code).name.upper() if error_code else None


def _report_key(key: HotKey) -> HotKeyReport:
    return HotKeyReport(
        hash=str(key.point),
        records=key.records,
        oldest_offset=key.oldest_offset,
        held_s=round(key.held_s, 3),
    )
