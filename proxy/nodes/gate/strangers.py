"""Members of the nodes' group that did not prove to be nodes: when a node puts them out.

Source: docs/decisions/033.

Nodes that have agreed before are *established*: a member beside them that does not verify came
later, holds nothing, and is put out at once. A new node cannot distinguish a squatter from nodes
with another secret by their messages, since both may write anything. It can by their acts:

- nodes put out what they cannot verify within seconds. So a new node that is put out again and
  again by such members has the wrong secret, and gives up;
- one that is left alone for longer than a session lasts is beside a squatter. It then puts out
  what it cannot verify, and serves when it has led the group for as long again: a lease of a node
  with another secret is over by then.

A new node does not count that time across generations that another one leads: each leader may be a
node that has just begun to serve, and needs its seconds to put us out.

A member that a new node puts out may still hold a lease, if it is a node that hung and learns of it
late. A third node that finds the group empty cannot know that. So for the time of that lease, the
node that did it gives nothing away in any generation, and does not leave the group: if it ends, the
coordinator counts it until its session is over, and lets others wait for that. It was a member at
that moment for sure, by a heartbeat that is not old. A leader puts out members of its generation:
they have joined again, so they hold nothing from before, and it gave them nothing.

A message that no keylane can have written, such as the metadata of a plain consumer, has its member
put out at once by every node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from keylane.proxy.nodes.lease import LEASE_SHARE, patience_s

EXPELLED_MAX: Final = 2
"""Times that a node is put out before its secret counts as wrong; once may be a lost session."""
PAUSE_S_MIN: Final = 0.5
PAUSE_S_MAX: Final = 5.0
PAUSE_SHARE: Final = 0.4
"""Share of the session time-out at most: nodes act well within the patience of a new one."""
QUIET_S: Final = 60.0
"""After this time the pause begins anew."""
FRESH_SHARE: Final = 0.1
"""Share of the session time-out: the age at most of the last heartbeat of a node that puts out a
leader, so that its own session outlasts the other's lease."""
KNOWN_MAX: Final = 10_000


class Strangers:
    """One node's knowledge of strangers, and measures. Invariant: at most KNOWN_MAX are kept."""

    def __init__(self, session_timeout_s: float) -> None:
        self._session_s = session_timeout_s
        self._patience_s = patience_s(session_timeout_s)
        self._pause_s_max = min(PAUSE_S_MAX, PAUSE_SHARE * session_timeout_s)
        self._pause_s = PAUSE_S_MIN
        self._next_s = self._last_s = float("-inf")
        self._known: dict[str, bool] = {}
        """Members of the last generation or look; True: a keylane may have written its message."""
        self._together_since_s: float | None = None
        """Time when we saw one that may be a node before we joined, or became a member beside it,
        in this generation if it leads; None: since we agreed, or were put out, there was none."""
        self._leading_since_s: float | None = None
        """Time when we first led the group, as the member that we are; None: we do not."""
        self._expelled = 0
        self._leases_until_s = float("-inf")
        """End of the time in which a member that we put out may hold something."""

    @property
    def known(self) -> Mapping[str, bool]:
        """Members of the last generation or look that do not verify."""
        return self._known

    def see(self, found: Mapping[str, bool]) -> None:
        """Note members of the group that do not verify; True: a keylane may have written it."""
        self._known = dict(list(found.items())[:KNOWN_MAX])

    def join(self, found: Mapping[str, bool], now_s: float, *, is_leader: bool) -> None:
        """Join a generation with these members that do not verify."""
        self.see(found)
        if any(found.values()):
            if not is_leader:
                self._together_since_s = None
            self.be_beside(now_s)
        if not is_leader:
            self._leading_since_s = None
        elif self._leading_since_s is None:
            self._leading_since_s = now_s

    def be_beside(self, now_s: float) -> None:
        """Note that members are in the group that may be nodes."""
        if self._together_since_s is None:
            self._together_since_s = now_s

    def agree(self) -> None:
        """Note that we are one of the nodes: strangers are beside us, not before us."""
        self._together_since_s = None
        self._expelled = 0

    def leave(self) -> None:
        """Note that we are no member any more."""
        self._leading_since_s = None
        self._known = {}

    def note_expelled(self) -> bool:
        """Note that we were put out; True: our secret has to be the wrong one."""
        is_beside, self._together_since_s = self._together_since_s is not None, None
        if not is_beside:
            return False
        self._expelled += 1
        if self._expelled < EXPELLED_MAX:
            return False
        self._expelled = 0
        return True

    def withholds(self, now_s: float, *, is_established: bool) -> bool:
        """Return whether a leader must give nothing away yet: another one may hold it."""
        if self.guard_s(now_s):
            return True
        if is_established or self._together_since_s is None:
            return False
        since_s = self._leading_since_s
        return since_s is None or now_s < since_s + self._patience_s

    def due(self, now_s: float, *, is_established: bool, contact_s: float | None) -> list[str]:
        """Return members to put out now; call `expect_leases` before, `note_put_out` behind.

        contact_s: time of the last request that shows that we are a member of their generation;
        None: we are not. Only members put out one that may be a node.
        """
        if now_s < self._next_s:
            return []
        is_new_follower = not is_established and self._leading_since_s is None
        share = FRESH_SHARE if is_new_follower else LEASE_SHARE
        is_member = contact_s is not None and now_s <= contact_s + share * self._session_s
        since_s = self._together_since_s
        is_patient = since_s is not None and now_s >= since_s + self._patience_s
        is_all = is_member and (is_established or is_patient)
        return [member_id for member_id, is_like in self._known.items() if is_all or not is_like]

    def expect_leases(self, due: Iterable[str], now_s: float, *, is_established: bool) -> None:
        """Note the time until which members that are about to be put out may hold something."""
        is_leader = self._leading_since_s is not None
        if not (is_established or is_leader) and any(self._known[each] for each in due):
            self._leases_until_s = now_s + self._session_s

    def guard_s(self, now_s: float) -> float:
        """Return the seconds in which a member that we put out may hold something."""
        return max(0.0, self._leases_until_s - now_s)

    def note_put_out(self, now_s: float) -> None:
        """Let the next ones wait, longer each time: some were put out."""
        if now_s > self._last_s + QUIET_S:
            self._pause_s = PAUSE_S_MIN
        self._last_s = now_s
        self._next_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, self._pause_s_max)

    def pause_s(self, now_s: float) -> float:
        """Return the seconds in which none is put out."""
        return max(0.0, self._next_s - now_s)
