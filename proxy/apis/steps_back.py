"""Commits of members that go back: seeks on purpose, and repeats that a client causes.

In:    drafts that Kafka and the journal have taken.  Out: log lines, and a count by group.
Pure:  the outside world is the `Context` argument.
Source: docs/clients.md (librdkafka 2.16 commits a lower offset after some re-assignments).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from keylane.proxy.apis.context import Context
from keylane.proxy.apis.lane_offsets import Draft

log = logging.getLogger("keylane.offsets")

LINES_MAX: Final = 16
"""Of one commit; further lanes of it are counted, and told in one line."""


def note_steps_back(group: str, member_id: str, taken: Iterable[Draft], context: Context) -> None:
    """Members have committed lanes lower than they stood, and it counts."""
    steps = [(draft.view.name, *step) for draft in taken for step in draft.steps_back]
    if not steps:
        return
    context.stats.stepped_back(group, len(steps))
    for topic, index, before, after in steps[:LINES_MAX]:
        log.warning(
            "a member has committed a lower offset, from which its lane is read again"
            " group=%s topic=%s lane=%d from=%d to=%d member_id=%s",
            group, topic, index, before, after, member_id,
        )  # fmt: skip
    if len(steps) > LINES_MAX:
        log.warning(
            "members have committed lower offsets group=%s further_lanes=%d member_id=%s",
            group, len(steps) - LINES_MAX, member_id,
        )  # fmt: skip
