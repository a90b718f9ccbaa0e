"""A node that died and came back: waited for before it joins, so that only its own groups wait.

Source: Kafka protocol guide (DescribeGroups); docs/decisions/020.

A JoinGroup makes the coordinator wait for every member that it counts, and it counts a dead one
for a session time-out. So a node that joins beside its dead self stops the commits of all groups
for that long. One that looks first, and joins when the coordinator has given the dead one up,
stops no other: those have taken over by then, as after any crash.
This makes no node safe; `lease` does. It may join at any time, and does so when it has waited for
longer than a dead one can stay: then the leader of the group decides.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from kio.schema.errors import ErrorCode

from keylane.proxy.nodes.gate.verdicts import Received
from keylane.proxy.nodes.lease import patience_s

log = logging.getLogger("keylane.nodes")

LOOK_PAUSE_S: Final = 0.2
STABLE: Final = "Stable"
"""State of a group whose members have joined; in no other one is their metadata shown."""
COMPLETING: Final = "CompletingRebalance"
"""State in which the leader makes its plan; a member that joins now makes the others join again."""


class Predecessor:
    """Decides whether to wait for a member with our number. Use: `is_awaited`, then `forget`."""

    def __init__(self, session_timeout_s: float) -> None:
        self._patience_s = patience_s(session_timeout_s)
        self._until_s: float | None = None
        """End of the wait; None: no node was in the way yet."""
        self._is_logged = False

    def is_awaited(self, described: Any, received: Received, number: int, now_s: float) -> bool:
        """Return whether to look again instead of joining; `described` is of DescribeGroups.

        received: the nodes among its members; what does not prove to be one is not waited for.
        """
        nodes = (hello.node for hello in received.hellos.values())
        places = (node.place for node in nodes if node.number == number and not node.lone)
        place = next(places, None)
        # In PREPARING the members wait already, for the dead one too: to join costs nothing.
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
        """Forget the wait, since this node has joined: the next one is waited for anew."""
        self._until_s, self._is_logged = None, False
