"""A node that died and came back: waited for before it joins, so that only its own groups wait.

Source: Kafka protocol guide (DescribeGroups); docs/decisions/020.

A JoinGroup makes the coordinator wait for every member that it counts, and it counts a dead one
for a session time-out. So a node that joins beside its dead self stops the commits of all groups
for that long. One that looks first, and joins when the coordinator has given the dead one up,
stops no other: those have taken over by then, as after any crash.
This makes no node safe; `lease` does. It may join at any time, and does so when it
has waited for longer than a dead one can stay: then the leader of the group decides.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from kio.schema.errors import ErrorCode

from keylane.proxy.nodes.gate.verdicts import Received

log = logging.getLogger("keylane.nodes")

LOOK_PAUSE_S: Final = 0.2
PATIENCE_SHARE: Final = 1.2
"""Of the session time-out. A member that stays longer lives, or had more from a fail-over."""
PATIENCE_S: Final = 1.0
"""On top: the other nodes learn within a heartbeat that they have to join."""
STABLE: Final = "Stable"
"""All have joined, and their metadata is shown; in no other state it is."""
COMPLETING: Final = "CompletingRebalance"
"""All have joined, and the leader makes its plan; a member that joins now makes all join again."""


class Predecessor:
    """Decides whether to wait for a member with our number. Use: `is_awaited`, then `forget`."""

    def __init__(self, session_timeout_s: float) -> None:
        self._patience_s = PATIENCE_SHARE * session_timeout_s + PATIENCE_S
        self._until_s: float | None = None
        """Until when we wait; None: no node was in the way yet."""
        self._is_logged = False

    def is_awaited(self, described: Any, received: Received, number: int, now_s: float) -> bool:
        """Return whether to look again instead of joining; `described` is of DescribeGroups.

        received: the nodes among its members; what does not prove to be one is not waited for.
        """
        place = _place_of(received, number)
        # In PREPARING all wait already, for the dead one too: to join costs nothing.
        if described.error_code != ErrorCode.none or (
            place is None and described.group_state != COMPLETING
        ):
            return False
        if self._until_s is None:
            self._until_s = now_s + self._patience_s
        if now_s >= self._until_s:
            return False
        if place is not None and not self._is_logged:
            self._is_logged = True
            log.warning(
                "another node with this number is waited for node=%d place=%s seconds_max=%.0f",
                number, place, self._until_s - now_s,
            )  # fmt: skip
        return True

    def forget(self) -> None:
        """We have joined: the next one is waited for anew."""
        self._until_s, self._is_logged = None, False


def _place_of(received: Received, number: int) -> str | None:
    """Return where the node with a number says that it is reached; None: none has it."""
    for hello in received.hellos.values():
        if hello.node.number == number and not hello.node.lone:
            return "{}:{}".format(*hello.node.bootstrap)
    return None
