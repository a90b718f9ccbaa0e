"""Rules for share groups whose records are handed out in the order of their keys.

Source: KIP-932; docs/decisions/048.
"""

from __future__ import annotations

import fnmatch
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from keylane.config.topic_rules import check_rule_topic, falls_under


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
