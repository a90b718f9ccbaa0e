"""The parts that all partitions of ordered share groups have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.lanes.split_io import ReaderKit
from keylane.proxy.share.broker_session import SharedPlace
from keylane.proxy.share.dead_letters import LetterWriter
from keylane.proxy.share.handovers import HandOvers
from keylane.proxy.share.held_bytes import HeldBytes
from keylane.proxy.share.lease_view import LeaseView


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareKit:
    """The parts that all partitions share."""

    cluster: Cluster
    reader_kit: ReaderKit
    held_bytes: HeldBytes
    letters: LetterWriter
    clock: Callable[[], float]
    is_here: Callable[[SharedPlace], bool]
    """Returns whether members of a partition are sent to this node."""
    lease: LeaseView = field(default_factory=LeaseView)
    is_known: Callable[[str], bool] = lambda _topic: True
    """Returns whether it is known how many partitions a topic has, and so their places."""
    hand_overs: HandOvers | None = None
    """None: there are never other nodes."""
