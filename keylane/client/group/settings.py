"""Settings of a membership, and a member's identity in requests.

Source: Kafka's consumer configuration, whose defaults these are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from keylane.errors import ConfigInvalid

PROTOCOLS: Final = ("auto", "consumer", "classic")
RETRY_S_MIN: Final = 0.1
"""Kafka's retry.backoff.ms."""
RETRY_S_MAX: Final = 1.0
"""Kafka's retry.backoff.max.ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """A member's settings."""

    group_id: str
    group_protocol: str = "auto"
    """"consumer" (KIP-848), "classic", or "auto": the first where the coordinator has it."""
    topics: frozenset[str] = frozenset()
    pattern: str | None = None
    """A regular expression of topic names: RE2, which the broker reads, with the consumer protocol;
    Python's `re` with the classic one. The whole name has to match."""
    instance_id: str | None = None
    """Static membership (KIP-345)."""
    rack: str | None = None
    session_timeout_s: float = 45.0
    """The member gives up all it has when the coordinator did not answer for this time. The
    consumer protocol has the broker's own limit besides, 45 s unless configured there."""
    heartbeat_interval_s: float = 3.0
    """Of the classic protocol; the other one's is in the coordinator's answers."""
    rebalance_timeout_s: float = 300.0
    """max.poll.interval.ms: time between polls, and time to give up what is asked back."""
    metadata_max_age_s: float = 300.0
    """Time between looks at partition counts and at topics that match, of the classic protocol."""
    allow_individual_commit: bool = True
    """False: the member takes whole partitions only, and says so as it joins."""
    server_assignor: str | None = None
    """Of the consumer protocol; None is the group's."""

    def __post_init__(self) -> None:
        if not self.group_id:
            raise ConfigInvalid("group_id: a group needs a name")
        if self.group_protocol not in PROTOCOLS:
            raise ConfigInvalid(f"group_protocol: {self.group_protocol!r} is none of {PROTOCOLS}")
        for name in ("session_timeout_s", "heartbeat_interval_s", "rebalance_timeout_s"):
            if getattr(self, name) <= 0:
                raise ConfigInvalid(f"{name}: must be positive, got {getattr(self, name)}")


class MemberIdentity(NamedTuple):
    """A member as OffsetCommit and other requests name it."""

    group_id: str
    member_id: str
    """Empty: it has none yet."""
    epoch_or_generation: int
    """Member epoch (KIP-848) or generation; -1: it is no member now."""
    instance_id: str | None = None
    is_moving: bool = False
    """True: the group may have a next generation, which this member does not know yet."""


class GroupTopics(NamedTuple):
    """Topics that a member wants; neither: it is in no group."""

    topics: frozenset[str] = frozenset()
    pattern: str | None = None

    @property
    def is_empty(self) -> bool:
        """True: nothing is wanted."""
        return not self.topics and self.pattern is None
