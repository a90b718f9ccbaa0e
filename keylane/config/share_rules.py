"""Rules for share groups whose records are handed out in the order of their keys.

Source: KIP-932; docs/decisions/048.
"""

from __future__ import annotations

import fnmatch
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from keylane.config.topic_rules import LEGAL_TOPIC, check_rule_topic, falls_under

TAKEOVER_PAUSE_MS_MAX: Final = 600_000
"""Work that takes longer should renew its locks; Kafka's longest lock by default is a minute."""


class ShareRule(BaseModel):
    """Share groups whose id matches `group`, on topics that match `topics`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    group: str = Field(min_length=1, description="Share group id, or a glob such as `billing-*`.")
    topics: str = Field(
        default="*",
        description="Topic name, or a glob. Other topics of the group are served by the brokers, "
        "without an order.",
    )
    order: Literal["key"] = Field(
        default="key",
        description="`key`: a key is at one member at a time, and its records finish in order.",
    )
    look_ahead: int = Field(
        default=2000,
        ge=1,
        le=10_000,
        description="Records per partition that keylane holds, at members and before them. One key "
        "that is not finished holds up no other key until so many records wait behind it. The "
        "brokers' bound is `share.partition.max.record.locks` of the group.",
    )

    several_per_key: int = Field(
        default=1,
        ge=1,
        le=500,
        description="Records of one key that a member may get at once, in order. More than 1 is "
        "for hot keys whose members acknowledge all that they got (implicit mode): a record that "
        "is released there comes again after later ones of its key that were accepted.",
    )
    confirm: Literal["written", "received"] = Field(
        default="written",
        description="When a record that a member has finished counts as finished. `written`: when "
        "the broker has written that. `received`: when keylane has it, which then repeats it to "
        "the broker until it is written: keys go on sooner, and polls are answered sooner, by the "
        "10 ms or so that a write takes. A crash of keylane may bring back records of which "
        "members have been answered in the last moment, one second at most; nothing is lost. "
        "Requests that commit (`commitSync`, `commitAsync`) are answered when it is written.",
    )
    redelivery_pause_ms: int = Field(
        default=0,
        ge=0,
        description="Pause before a released record is handed out again, doubled with each "
        "delivery up to the duration of the lock; its key waits, others go on. 0: none.",
    )
    takeover_pause_ms: int = Field(
        default=0,
        ge=0,
        le=TAKEOVER_PAUSE_MS_MAX,
        description="Pause after a start, or after another node was lost, before records are "
        "handed out that had been acquired before: members that got them from the former process "
        "may be at work yet. Keys of such records wait, others go on. 0: none.",
    )
    dead_letter: str | None = Field(
        default=None,
        description="Topic for records that are rejected, or released at their last delivery but "
        "one (the last one is kept for a crash): with headers of KIP-1191, written before the "
        "record ends. Needs DESCRIBE_CONFIGS on the group.",
    )

    @field_validator("dead_letter")
    @classmethod
    def _dead_letter_is_legal(cls, value: str | None) -> str | None:
        if value is not None and not LEGAL_TOPIC.fullmatch(value):
            raise ValueError("not a legal topic name")
        return value

    @property
    def takeover_pause_s(self) -> float:
        """Return the seconds for which records of a former process wait."""
        return self.takeover_pause_ms / 1000

    def pause_s(self, delivery_count: int) -> float:
        """Return the seconds before a record is handed out again after so many deliveries."""
        return self.redelivery_pause_ms / 1000 * 2.0 ** min(max(delivery_count - 1, 0), 30)

    @field_validator("topics")
    @classmethod
    def _topics_are_legal(cls, value: str) -> str:
        return check_rule_topic(value)

    def matches_group(self, group: str) -> bool:
        """Return whether the group falls under this rule."""
        return fnmatch.fnmatchcase(group, self.group)

    def matches(self, group: str, topic: str) -> bool:
        """Return whether the group's topic falls under this rule."""
        return self.matches_group(group) and falls_under(topic, self.topics)
