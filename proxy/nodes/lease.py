"""The lease of this node: the partitions that it may serve, while no other node can have them.

Source: KIP-62 (session and rebalance time-out), KIP-394; docs/decisions/020.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Final

LEASE_SHARE: Final = 0.8
"""Share of the session time-out. The rest is for clocks that run unevenly, and for a slow write
between the question and the socket."""
PATIENCE_SHARE: Final = 1.2
"""Share of the session time-out. A member that stays longer lives, or a fail-over renewed it."""
PATIENCE_S: Final = 1.0
"""On top: the other nodes learn within a heartbeat that they have to join."""
NOT_HELD: Final = -1
NEVER: Final = float("-inf")


def lease_clock() -> float:
    """Return seconds that go on while the process is stopped, on Linux also while it is suspended.

    A lease has to end in that time, too.
    """
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def patience_s(session_timeout_s: float) -> float:
    """Seconds in which a dead member is out of the group, and any lease of it is over."""
    return PATIENCE_SHARE * session_timeout_s + PATIENCE_S


class Lease:
    """Partitions of one member of the nodes' group, and since when without a break.

    ```
              suspend (JoinGroup is sent)           synced
      lost  ─────────────────────────────▶ joining ────────▶ held, while now < its end
        ▲                                     ▲  │             │        ▲ │
        │                                     └──┼─ suspend ───┘        └─┘ renewed
        └──────────── lose (expelled) ───────────┴─────────────┘
    ```

    Theory: two nodes never hold a partition at once. Say that B holds p in generation g. The
    coordinator answered B's SyncGroup of g, so it had made g; and one leader gives p to one member
    of g. Node A, which held p before, was a member of a generation before g. The coordinator makes
    a generation only when each member of the one before has

    1. joined again. A holds nothing from before it sends JoinGroup until a SyncGroup is answered
       that it sent afterwards, so it is of g or later. Whether A notices g late, after B has
       started, changes nothing: in between A holds nothing, and then what g gives it. A JoinGroup
       that was given up may arrive later, so A leaves for good before it joins anew.
    2. left. A holds nothing from before it sends LeaveGroup.
    3. been silent for its session time-out; or, with a rebalance under way, notified of it for its
       rebalance time-out, which is the same, without joining. Both are counted by the coordinator
       from after it took in A's last request that it answered well, since it answers none well
       from the start of a rebalance. A counts 0.8 of that from before it sent that request, so it
       stops first, unless A's clock runs slower than the coordinator's by a fifth.
    4. been put out by C, a node that cannot verify it, while A's lease is good (033). C was a
       member then, by a heartbeat of a tenth of a session ago at most, gives nothing away for a
       session, and does not leave. So nothing is given away without C before A's lease is over.

    An A that hangs counts on, since its clock does; when it wakes up it asks before it acts.

    A coordinator that fails over has stored a generation before it answers any SyncGroup of it,
    and gives every member a whole session time-out anew. What is not covered: an administrator's
    removal of a live member, two such as C that put each other out with it, a LeaveGroup that
    arrives when its sender is no member any more, a broker that was deposed as coordinator and
    still answers, and the lost tail of an unclean election. Then the journal's transactional ids
    are what fences (decision 020), not this lease.

    Terms: what is ours in generations g and g + 1 of one member id was no other's in between,
    whatever number of JoinGroups it took. If we missed a generation, another node may have had it.
    """

    def __init__(self, session_timeout_s: float) -> None:
        self._lease_s = LEASE_SHARE * session_timeout_s
        self._good_until_s = NEVER
        self._terms: Mapping[int, int] = {}
        """Terms by partition of ours; those of the last sync also while we join again."""
        self._next_term = 0
        self.breaks = 0
        """Times at which another node may have had all of it in between."""
        self.generation_id = NOT_HELD
        """Generation of the last sync as this member; -1: none, or we are no member any more."""
        self.is_assumed = False
        """True: something is held that no generation has given yet."""
        self.is_joining = True
        """True: nothing is held since JoinGroup was sent, or we are no member."""
        self.is_draining = False
        """True: what was begun may end; nothing is begun, as `suspend` or `lose` comes next."""

    @property
    def partitions(self) -> frozenset[int]:
        """Return what the last sync gave us, held now or not."""
        return frozenset(self._terms)

    def is_good(self, now_s: float) -> bool:
        """Return whether what the last sync gave us is ours for sure."""
        return not self.is_joining and now_s < self._good_until_s

    def has_time(self, now_s: float) -> bool:
        """Return whether the time of the lease is not over, also while JoinGroup is under way."""
        return now_s < self._good_until_s

    def holds(self, partition: int, now_s: float) -> bool:
        """Return whether the partition is ours for sure."""
        return partition in self._terms and self.is_good(now_s)

    def takes_on(self, partition: int, now_s: float) -> bool:
        """Return whether something may be begun for the partition."""
        return not self.is_draining and self.holds(partition, now_s)

    def term(self, partition: int) -> int:
        """Return a number that is the same while ownership is unbroken; -1: not of the last sync.

        It stays while we join again, and after the lease has lapsed: work that was begun before
        may end then, since the journal decides if it counts.
        """
        return self._terms.get(partition, NOT_HELD)

    def drain(self) -> None:
        """Begin nothing more: JoinGroup or LeaveGroup is sent as soon as what was begun has ended.

        Until then what is held is held as before: the coordinator waits for that request.
        """
        self.is_draining = True

    def suspend(self) -> None:
        """Hold nothing: JoinGroup is about to be sent."""
        self.is_joining, self.is_assumed, self.is_draining = True, False, False

    def lose(self) -> None:
        """Hold nothing, and begin new terms: others may have been given all of it."""
        self.is_joining, self.is_assumed, self.is_draining = True, False, False
        self._good_until_s = NEVER
        self._terms, self.generation_id = {}, NOT_HELD

    def synced(self, generation_id: int, partitions: Iterable[int], *, sent_s: float) -> None:
        """Hold what SyncGroup gave; `sent_s` is when the request was sent."""
        # A member that lost an answer is handed the generation that it has.
        unbroken = generation_id - self.generation_id in {0, 1}
        is_known = self.is_assumed or (self.generation_id != NOT_HELD and unbroken)
        before = self._terms if is_known else {}
        self.breaks += not is_known
        self.is_assumed = False
        self._next_term += 1
        self._terms = {p: before.get(p, self._next_term) for p in partitions}
        self.generation_id = generation_id
        self._good_until_s = sent_s + self._lease_s
        self.is_joining = False

    def assume(self, partitions: Iterable[int], *, sent_s: float) -> None:
        """Hold before the first generation is made: the coordinator counts no other member.

        It said so to a request of `sent_s`, when it had our JoinGroup. No other node is given
        anything before it has answered that JoinGroup, as in a generation of ours.
        """
        if not self.is_assumed:
            self._next_term += 1
            self._terms = dict.fromkeys(partitions, self._next_term)
        self.is_assumed, self.is_joining = True, False
        self._good_until_s = sent_s + self._lease_s

    def renewed(self, *, sent_s: float) -> None:
        """Go on: a heartbeat of this generation, sent at `sent_s`, was answered well."""
        if not self.is_joining:
            self._good_until_s = max(self._good_until_s, sent_s + self._lease_s)
