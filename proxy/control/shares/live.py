"""Ordered share groups on the live page: what holds a key up, and how full each window is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Final

from keylane.proxy.control.describe import GroupReport
from keylane.proxy.control.shares.report import SharePartitionReport, ShareReport

PARTITIONS_MAX: Final = 100
"""Partitions of a group that are shown, those that need a look first; some 40 kB."""


def shares_of(reports: Iterable[GroupReport]) -> list[dict[str, Any]]:
    """Return what the page is sent of share groups, in their order."""
    return [_group(report, report.share) for report in reports if report.share is not None]


def _group(report: GroupReport, share: ShareReport) -> dict[str, Any]:
    ordered = [each for each in share.partitions if each.is_ordered]
    ordered.sort(key=_urgency, reverse=True)
    lags = [each.lag for each in ordered if each.lag is not None]
    return {
        "name": report.group,
        "state": report.state,
        "members": len(share.members),
        "lag": sum(lags) if lags else None,
        "partitions": [_partition(each) for each in ordered[:PARTITIONS_MAX]],
        "partitions_left_out": max(0, len(ordered) - PARTITIONS_MAX),
    }


def _urgency(partition: SharePartitionReport) -> tuple[bool, bool, float, float]:
    window = partition.window
    if window is None:
        return False, False, 0.0, 0.0
    is_stopped = window.error is not None or not window.is_settled
    return True, is_stopped, window.span / window.look_ahead, window.oldest_s or 0.0


def _partition(partition: SharePartitionReport) -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "lag": partition.lag,
        "node": partition.node,
        "window": None if partition.window is None else asdict(partition.window),
    }
