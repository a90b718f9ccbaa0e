"""Names by which the members of a group mean its topics: one name for each topic of the broker.

Source: docs/decisions/024, docs/decisions/025.

To an assignor `orders`, `orders.lanes-8` and `orders.lanes-16` are three topics, and it deals out
each in full. A group that goes by two of them has each key at two members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from keylane.assignor.model import NO_GENERATION
from keylane.bounded import CostBoundedDict

GROUPS_MAX: Final = 10_000
"""Groups that are remembered; the longest unseen are forgotten first."""
NAMES_MAX: Final = 1_000_000
"""Names of all members, and offsets seen, of all groups: some 100 MB at most."""

Names = frozenset[str]
"""Topics that one member subscribes to."""
NO_NAMES: Final[Names] = frozenset()
PhysicalName = Callable[[str], str]
Place = tuple[str, int]
"""Topic of the broker, partition."""


@dataclass(frozen=True, slots=True)
class Clash:
    """Two names of one topic in a group."""

    topic: str
    """Name at the broker."""
    name: str
    """Name by which the group goes on."""
    other: str
    """Name by which the topic must not be read beside that."""


@dataclass(slots=True)
class Join:
    """A JoinGroup that the broker has not answered yet."""

    identity: str
    names: Names


@dataclass(slots=True)
class _Group:
    members: dict[str, Names] = field(default_factory=dict)
    """Names by `identity_of`."""
    joins: list[Join] = field(default_factory=list)
    is_complete: bool = False
    """No member of the group is missing in `members`."""
    ids: frozenset[str] = frozenset()
    """Member ids of the last generation that was seen."""
    began_here: bool = False
    """The group was empty once since this process looks at it, before the members of now."""
    is_brokers: bool = False
    """The broker deals out the group's partitions (KIP-848)."""
    refused: frozenset[str] = frozenset()
    """Member ids of the last generation that go by another name than the rest."""
    chosen: Mapping[str, str] = field(default_factory=dict)
    """Names by which the last generation goes, by topic of the broker."""
    logged: set[tuple[str, str]] = field(default_factory=set)
    seen: set[Place] = field(default_factory=set)
    """Places where the coordinator was seen to have an offset of the group."""
    names_count: int = 0
    """Sum over the members."""
    led_here: tuple[int, str] = (NO_GENERATION, "")
    """The newest generation whose leader is behind keylane, and that leader."""
    leader: tuple[int, str] = (NO_GENERATION, "")
    """The newest generation that a follower was answered, and its leader."""
    direct_count: int = 0
    """Members that take partitions of lane topics, in the last generation that was seen."""

    @property
    def cost(self) -> int:
        return 1 + self.names_count + len(self.seen)

    def put_all(self, members: Mapping[str, Names]) -> None:
        self.members, self.names_count = dict(members), sum(map(len, members.values()))

    def put(self, identity: str, names: Names) -> None:
        self.names_count += len(names) - len(self.members.get(identity, NO_NAMES))
        self.members[identity] = names


_UNKNOWN: Final = _Group()


class GroupNames:
    """Groups that have lanes, with the names that their members subscribe to."""

    def __init__(self, *, groups_max: int = GROUPS_MAX, names_max: int = NAMES_MAX) -> None:
        self._groups: CostBoundedDict[str, _Group] = CostBoundedDict(
            _Group, cost_max=names_max, size_max=groups_max
        )

    def __contains__(self, group: str) -> bool:
        return group in self._groups

    def is_complete(self, group: str) -> bool:
        """Return whether the names of all members of the group are known."""
        return self._groups.get(group, _UNKNOWN).is_complete

    def note_seen(self, group: str, place: Place) -> None:
        """Note that the coordinator has an offset of the group there, which will not expire."""
        known = self._groups.get(group, _UNKNOWN)
        if not known.began_here and place not in known.seen:
            with self._groups.changed(group) as changed:
                changed.seen.add(place)

    def may_have_expired(self, group: str, place: Place) -> bool:
        """Return whether an offset that is missing may have expired under members that are there.

        It has not under members that came to an empty group since this process looks at it, and
        not where it was seen before.
        """
        known = self._groups.get(group, _UNKNOWN)
        return not (known.began_here or place in known.seen)

    def names_of(self, group: str) -> Names:
        """Return the names of all members that are known."""
        return NO_NAMES.union(*self._groups.get(group, _UNKNOWN).members.values())

    def is_refused(self, group: str, member_id: str) -> bool:
        """Return whether a member was left out of the group's last generation."""
        return member_id in self._groups.get(group, _UNKNOWN).refused

    def is_brokers(self, group: str) -> bool:
        """Return whether the broker was last seen to deal out the group's partitions."""
        return self._groups.get(group, _UNKNOWN).is_brokers

    def note_brokers(self, group: str, *, is_brokers: bool) -> None:
        """Note which side deals out the group's partitions, by an answer."""
        with self._groups.changed(group) as known:
            known.is_brokers = is_brokers

    def is_led_here(self, group: str, generation_id: int) -> bool:
        """Return whether the generation's leader is known to be behind keylane."""
        return self._groups.get(group, _UNKNOWN).led_here[0] == generation_id

    def note_led_here(self, group: str, generation_id: int, leader_id: str) -> None:
        """Note that a generation's leader is behind keylane."""
        with self._groups.changed(group) as known:
            known.led_here = generation_id, leader_id

    def note_leader(self, group: str, generation_id: int, leader_id: str) -> None:
        """Note the leader in the answer to a follower.

        A group that was deleted begins with the first generation again, and with another leader.
        """
        if group in self._groups:
            with self._groups.changed(group) as known:
                known.leader = generation_id, leader_id
                if known.led_here[0] == generation_id and known.led_here[1] != leader_id:
                    known.led_here = NO_GENERATION, ""

    def leader(self, group: str, generation_id: int) -> str | None:
        """Return the leader of a generation, by an answer to a follower; None: not known."""
        of, leader_id = self._groups.get(group, _UNKNOWN).leader
        return leader_id if of == generation_id else None

    def note_direct(self, group: str, count: int) -> bool:
        """Note the number of members that take partitions; return whether it has changed."""
        if count == self._groups.get(group, _UNKNOWN).direct_count:
            return False
        with self._groups.changed(group) as known:
            known.direct_count = count
        return True

    def begin_join(self, group: str, identity: str, names: Names) -> Join:
        """Note a member's JoinGroup that is passed on."""
        join = Join(identity, names)
        with self._groups.changed(group) as known:
            known.joins.append(join)
        return join

    def end_join(self, group: str, join: Join, identity: str | None = None) -> None:
        """Note that the coordinator has answered it, or its connection has ended.

        identity: its name as a member from now on; None: it is not known to be one.
        """
        with self._groups.changed(group) as known:
            known.joins = [one for one in known.joins if one is not join]
            if identity is not None:
                known.put(identity, join.names)

    def note_generation(
        self,
        group: str,
        members: Mapping[str, Names],
        chosen: Mapping[str, str],
        ids: Iterable[str],
        refused: Iterable[str] = (),
    ) -> None:
        """Note every member of a generation, as its leader was answered.

        members: by identity. ids: their member ids. A coordinator gives no id twice, so a
        generation that has none of the one before may have begun with an empty group.
        """
        with self._groups.changed(group) as known:
            now = frozenset(ids)
            known.chosen = dict(chosen)
            if known.ids and known.ids.isdisjoint(now):
                known.began_here, known.seen = True, set()
            known.ids, known.refused = now, frozenset(refused)
            known.put_all(members)
            known.is_complete = True

    def note_members(self, group: str, members: Mapping[str, Names]) -> None:
        """Note every member of a group that the coordinator showed as stable."""
        with self._groups.changed(group) as known:
            known.put_all(members)
            known.is_complete = True

    def note_empty(self, group: str) -> None:
        """Note that the coordinator showed the group without members."""
        with self._groups.changed(group) as known:
            known.put_all({})
            known.is_complete = True
            known.ids, known.refused, known.began_here = frozenset(), frozenset(), True
            known.chosen, known.seen = {}, set()

    def keep_only(self, group: str, identities: Collection[str]) -> bool:
        """Forget former members; return whether the names of each of these members are known."""
        with self._groups.changed(group) as known:
            known.put_all({name: n for name, n in known.members.items() if name in identities})
            joining = {join.identity for join in known.joins}
            return all(name in known.members or name in joining for name in identities)

    def find_clash(
        self, group: str, identity: str, names: Names, physical_name: PhysicalName
    ) -> Clash | None:
        """Return why a member may not join with these names; None: it may.

        The group goes by the names of its other members. Where these differ already, as in a group
        that is older than this rule, the majority counts.
        """
        known = self._groups.get(group)
        if known is None:
            return None
        held = dict(known.members)
        held |= {join.identity: join.names for join in known.joins if join.identity != identity}
        before = held.pop(identity, NO_NAMES)
        of_others = {physical_name(name) for others in held.values() for name in others}
        chosen = choose_names([*held.values(), before], physical_name)
        running = {topic: name for topic, name in chosen.items() if topic in of_others}
        return first_clash(names, running, physical_name)

    def chosen(self, group: str) -> Mapping[str, str]:
        """Return the names by which the last generation goes, by topic of the broker."""
        return self._groups.get(group, _UNKNOWN).chosen

    def log_once(self, group: str, clash: Clash) -> bool:
        """Return whether this clash of the group is new."""
        with self._groups.changed(group) as known:
            pair = (clash.name, clash.other)
            is_new = pair not in known.logged
            known.logged.add(pair)
            return is_new

    def forget_where(self, is_lost: Callable[[str], bool]) -> None:
        """Forget groups that another node serves: knowledge of them here grows old."""
        for group in [group for group in self._groups if is_lost(group)]:
            self._groups.drop(group)

    def check(self) -> None:
        """Assert the invariants; tests call it after every step."""
        for known in self._groups.values():
            assert known.names_count == sum(map(len, known.members.values()))
        self._groups.check()


def choose_names(
    held: Iterable[Names],
    physical_name: PhysicalName,
    favoured: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the name to go by, by topic of the broker: the favoured one where a member has it.

    Else that of most members; of equal ones the first by name, so that every node chooses alike.
    """
    counts: dict[str, Counter[str]] = {}
    for names in held:
        for name in names:
            counts.setdefault(physical_name(name), Counter())[name] += 1
    chosen = {}
    for topic, by_name in counts.items():
        wanted = (favoured or {}).get(topic)
        if wanted not in by_name:
            wanted = min(by_name, key=lambda name: (-by_name[name], name))
        chosen[topic] = str(wanted)
    return chosen


def first_clash(
    names: Names, chosen: Mapping[str, str], physical_name: PhysicalName
) -> Clash | None:
    """Return the first name, in order, by which a member means a topic with another name."""
    for name in sorted(names):
        topic = physical_name(name)
        going = chosen.get(topic, name)
        if going != name:
            return Clash(topic, going, name)
    return None


def own_clash(names: Names, physical_name: PhysicalName) -> Clash | None:
    """Return two names of one topic in the subscription of one member."""
    return first_clash(names, choose_names([names], physical_name), physical_name)


def clashes_of(
    members: Mapping[str, Names], chosen: Mapping[str, str], physical_name: PhysicalName
) -> Iterator[tuple[str, Clash]]:
    """Yield members that go by another name than their group: (identity, why)."""
    for identity, names in members.items():
        clash = first_clash(names, chosen, physical_name)
        if clash is not None:
            yield identity, clash
