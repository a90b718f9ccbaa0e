"""Clients' waits for answers, against the bounds of docs/guarantees.md.

Source: docs/guarantees.md, "A broker hangs"; docs/decisions/040.

A wait ends with the answer or the connection, not with the client's patience. A request that the
connection's own broker answers may take as long as that broker, as direct.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.simulation.cluster import Held

FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 1, 2, 3, 8, 9, 10
JOIN, HEARTBEAT, LEAVE, SYNC, TXN_OFFSET_COMMIT = 11, 12, 13, 14, 28
DELETE_GROUPS, OFFSET_DELETE, CONSUMER_HEARTBEAT = 42, 47, 68
UNDER_LOCK = {OFFSET_COMMIT, OFFSET_FETCH, TXN_OFFSET_COMMIT}
PUSHES = {OFFSET_COMMIT, TXN_OFFSET_COMMIT}
WRITTEN = {DELETE_GROUPS, OFFSET_DELETE, CONSUMER_HEARTBEAT}
"""Written to the journal as commits are."""
AS_DIRECT = {JOIN, SYNC}
"""The coordinator holds them while others join."""
LOCK_S = LOAD_S = 10.0
HELD_S = 10.0
JOURNAL_S = 30.0
RIGHT_S = 10.0
FETCH_GRACE_S = 5.0
OTHER_S = 15.0
"""Metadata has 10 s, and comes from another broker after one."""
SLACK_S = 2.0
LONG_S = 1.0
"""Seconds below which a wait is not remembered."""
BOOTSTRAP_PORT = 9000
AND = " and "


@dataclass(frozen=True)
class Wait:
    """One request of a client."""

    client: str
    group: str
    connection: int
    """Number of the connection, unique in the run."""
    host: str
    port: int
    api_key: int
    asked_s: float
    ended_s: float
    is_answered: bool

    @property
    def seconds(self) -> float:
        return self.ended_s - self.asked_s


@dataclass
class Troubles:
    """Hosts that hang, are dead or slow, and pairs of hosts that are cut off, with times."""

    known: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))

    def note(self, name: str, begin_s: float, seconds: float) -> None:
        """Note trouble of a host, or of two: see `between`."""
        self.known[name].append((begin_s, begin_s + seconds))

    def touch(self, names: Iterable[str], begin_s: float, end_s: float) -> bool:
        """Return whether any of these had trouble then, or a moment before."""
        return any(
            first_s < end_s and last_s + SLACK_S > begin_s
            for name in names
            for first_s, last_s in self.known.get(name, ())
        )

    def end_s(self, now_s: float, is_meant: Callable[[Sequence[str]], bool]) -> float:
        """When those of a kind are over that are there now.

        is_meant: of the host that has trouble, or of the two.
        """
        return max(
            (
                last_s
                for name, spans in self.known.items()
                if is_meant(name.split(AND))
                for first_s, last_s in spans
                if first_s <= now_s < last_s
            ),
            default=now_s,
        )


def between(first: str, second: str) -> str:
    """The name of what lies between two hosts."""
    return AND.join(sorted((first, second)))


@dataclass
class Waits:
    """The waits of a run."""

    brokers: Sequence[str]
    is_right_kept: bool = False
    """Whether rights that were asked for once are remembered for all of the run."""
    fetch_wait_s: float = 0.5
    all: list[Wait] = field(default_factory=list)
    troubles: Troubles = field(default_factory=Troubles)
    connections: int = 0
    _answered: set[int] = field(default_factory=set)
    """Connections on which a fetch was answered."""
    _firsts: set[Wait] = field(default_factory=set)
    """Waits on connections without an answered fetch before them."""

    def note(self, wait: Wait) -> None:
        """Remember what took long."""
        if wait.seconds > LONG_S:
            self.all.append(wait)
            if wait.connection not in self._answered:
                self._firsts.add(wait)
        # After that long it was refused for a right that is not known yet.
        if wait.is_answered and wait.api_key == FETCH and wait.seconds < RIGHT_S - SLACK_S:
            self._answered.add(wait.connection)

    def breaches(self, held: Sequence[Held]) -> Iterator[str]:
        """Yield waits that were too long, the longest of a kind."""
        late = [wait for wait in self.all if wait.seconds > self._bound_s(wait)]
        if late:
            longest = max(late, key=lambda each: each.seconds)
            yield f"waits: {longest} in {self._bound_s(longest):g} s"
        yield from self._side_by_side()
        for each in held:
            seconds = each.ended_s - each.asked_s
            is_cut = self.troubles.touch(
                (each.host, between(each.host, each.broker)), each.asked_s, each.ended_s
            )
            if each.api_key in PUSHES and seconds > HELD_S + SLACK_S and not is_cut:
                yield f"held: {each}, for which a group's lock is held"
                return

    def _hosts_of(self, wait: Wait) -> list[str]:
        """Return what lies on the way of a request as far as the node."""
        member = wait.client
        return [member, wait.host, between(member, wait.host)]

    def _own_brokers(self, wait: Wait) -> Sequence[str]:
        """The broker that the connection is paired with; any, where it is not known."""
        number = wait.port - BOOTSTRAP_PORT - 1
        return [f"kafka{number}"] if number > 0 else self.brokers

    def _has_trouble(self, wait: Wait, hosts: Iterable[str]) -> bool:
        names = [name for host in hosts for name in (host, between(wait.host, host))]
        return self.troubles.touch(names, wait.asked_s, wait.ended_s)

    def _bound_s(self, wait: Wait) -> float:
        """Return how long it may take; inf: as long as direct."""
        if wait.seconds <= self.fetch_wait_s + FETCH_GRACE_S + SLACK_S:
            return wait.seconds
        if self.troubles.touch(self._hosts_of(wait), wait.asked_s, wait.ended_s):
            return float("inf")
        own = self._has_trouble(wait, self._own_brokers(wait))
        if wait.api_key == FETCH:
            is_first = wait in self._firsts
            is_asked = is_first or not self.is_right_kept
            if is_first and own:
                return float("inf")
            return self.fetch_wait_s + FETCH_GRACE_S + RIGHT_S * is_asked + SLACK_S
        before = [each for each in self._before(wait) if each.api_key != FETCH]
        if own or any(each.api_key in AS_DIRECT for each in (wait, *before)):
            return float("inf")
        return sum(self._own_bound_s(each) for each in (wait, *before)) + SLACK_S

    def _own_bound_s(self, wait: Wait) -> float:
        """Return the bound without earlier requests on its connection."""
        if wait.api_key not in UNDER_LOCK | WRITTEN:
            return OTHER_S
        is_away = self._has_trouble(wait, self.brokers)
        return LOAD_S + LOCK_S + HELD_S + 2 * JOURNAL_S * is_away

    def _before(self, wait: Wait) -> list[Wait]:
        """Return what was not answered on the connection when it was asked.

        Of two requests of one moment the first one is answered first, as all on a connection.
        """
        asked = wait.asked_s, self.all.index(wait)
        return [
            each
            for number, each in enumerate(self.all)
            if each.connection == wait.connection
            and (each.asked_s, number) < asked
            and wait.asked_s < each.ended_s
        ]

    def _turn_s(self, wait: Wait) -> float:
        """When all that stands before it on its connection was answered: it waits itself then."""
        return max((wait.asked_s, *(each.ended_s for each in self._before(wait))))

    def _side_by_side(self) -> Iterator[str]:
        """Two requests of a group wait at a node, of which one at most has the group's lock."""
        long = [
            each
            for each in self.all
            if each.api_key in UNDER_LOCK and each.seconds > LOAD_S + LOCK_S + SLACK_S
        ]
        for number, one in enumerate(long):
            for other in long[number + 1 :]:
                is_same = (one.group, one.host) == (other.group, other.host)
                begin_s = max(self._turn_s(one), self._turn_s(other))
                end_s = min(one.ended_s, other.ended_s)
                if not is_same or one.connection == other.connection:
                    continue
                if end_s - begin_s > LOAD_S + LOCK_S + SLACK_S and not any(
                    self.troubles.touch(self._hosts_of(each), begin_s, end_s)
                    or self._has_trouble(each, self._own_brokers(each))
                    for each in (one, other)
                ):
                    yield f"waits: {one} and {other} of one group, side by side"
                    return
