"""One generation dealt out: the lanes of each member, in the place of the client's plan.

In:    the members of the generation, as its leader got them, and the loads of lanes.
Out:   `Planned`, and the leader's assignments with these lanes in them.

Source: KIP-429 (cooperative), KIP-345 (static members), docs/decisions/012.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from keylane.assignor.checks import find_faults
from keylane.assignor.cooperative import find_withheld, first_step
from keylane.assignor.model import NO_GENERATION, Lane, LaneTopic, Member
from keylane.assignor.protocol import (
    TOPIC_BYTES_MIN,
    Subscription,
    read_assignment,
    read_subscription,
    write_assignment,
)
from keylane.assignor.sticky import plan_sticky
from keylane.errors import FrameInvalid
from keylane.proxy.groups.assignors import COOPERATIVE_STICKY, EAGER, STICKY
from keylane.proxy.groups.direct_members import WholeTopics, collapse
from keylane.proxy.groups.group_plans import (
    NOTHING_HELD,
    Joined,
    JoinedMember,
    LanesBefore,
    Planned,
)
from keylane.wire.primitives import Reader

GENERATION: Final = struct.Struct(">i")
FAULTS_SHOWN: Final = 3
UUID_SUFFIX: Final = "-00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deal:
    """The input of a plan."""

    joined: Joined
    subscriptions: Sequence[Subscription]
    """Subscriptions, one per member, in order."""
    topics: tuple[LaneTopic, ...]
    loads: Mapping[Lane, float]
    previous: Planned | None
    held: LanesBefore = NOTHING_HELD
    """The last lanes of members."""
    loners: frozenset[str] = frozenset()
    """Member ids that take whole partitions only."""
    whole: WholeTopics = field(default_factory=dict)
    """Topics of a group with direct members, each of whose partitions is at one member."""

    @property
    def signature(self) -> tuple[object, ...]:
        """Return the members and topics that a target is for."""
        members = zip(self.joined.members, self.subscriptions, strict=True)
        return (
            self.topics,
            tuple(sorted((one.member_id, *sorted(said.topics)) for one, said in members)),
            self.loners,
        )


class PlanRefused(Exception):
    """A plan with an overlap or a gap: a mistake of keylane, which must not reach a group."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("; ".join(faults[:FAULTS_SHOWN]))


def read_subscriptions(members: Iterable[JoinedMember]) -> list[Subscription]:
    """Return the subscription of each member. Raises: FrameInvalid."""
    return [read_subscription(member.metadata) for member in members]


def client_of(member: JoinedMember) -> str:
    """Return a member's name for switches: its instance id, else its client id.

    A leader does not learn client ids. But a broker makes member ids of them, with a UUID behind
    (GroupMetadata.generateMemberId), since clients no longer may (KIP-394).
    """
    return member.instance_id or member.member_id[: -len(UUID_SUFFIX)]


def deal_out(deal: Deal) -> Planned:
    """Plan one generation. Raises: PlanRefused."""
    signature, previous = deal.signature, deal.previous
    if previous is not None and previous.signature != signature:
        previous = None  # of other members, or other topics
    if previous is not None and previous.generation_id == deal.joined.generation_id:
        return previous  # the leader asks again: the broker may have its first request
    claimed = members_of(deal)
    if previous is not None and previous.withheld_count:
        target, moved_count = dict(previous.target), 0
    else:
        members = _with_history(claimed, deal)
        target = plan_sticky(members, deal.topics, deal.loads)
        moved_count = _count_moved(target, members, deal)
    _check(find_faults(target, claimed, deal.topics))
    given = target
    if deal.joined.protocol_name not in EAGER:
        given = first_step(target, claimed, deal.topics)
    withheld = find_withheld(target, given)
    _check(find_faults(given, claimed, deal.topics, withheld=withheld))
    lanes = {one.identity: given.get(one.member_id, ()) for one in deal.joined.members}
    held = _held_before(claimed, deal)
    return Planned(
        generation_id=deal.joined.generation_id,
        lanes=lanes,
        target=target,
        signature=signature,
        withheld_count=len(withheld),
        moved_count=moved_count,
        gained=_without(lanes, held),
        lost=_without({name: held.get(name, ()) for name in lanes}, lanes),
    )


def _held_before(claimed: Sequence[Member], deal: Deal) -> Mapping[str, tuple[Lane, ...]]:
    """Return former lanes by identity; by the members' word after a restart."""
    if deal.held is not NOTHING_HELD:
        return deal.held.lanes
    return {
        one.identity: member.owned for one, member in zip(deal.joined.members, claimed, strict=True)
    }


def _without(
    lanes: Mapping[str, tuple[Lane, ...]], others: Mapping[str, tuple[Lane, ...]]
) -> dict[str, tuple[Lane, ...]]:
    """Return lanes by name that are not in `others` under the same name; no name is left out."""
    found = {}
    for name, mine in lanes.items():
        theirs = set(others.get(name, ()))
        rest = tuple(lane for lane in mine if lane not in theirs)
        if rest:
            found[name] = rest
    return found


def _check(faults: Sequence[str]) -> None:
    if faults:
        raise PlanRefused(faults)


def members_of(deal: Deal) -> list[Member]:
    """Return the members with the lanes that they hold now, by their own word."""
    protocol = deal.joined.protocol_name
    counts = {topic.name: topic.index_count for topic in deal.topics}
    return [
        Member(
            member_id=one.member_id,
            topics=frozenset(said.topics),
            owned=() if protocol in EAGER else _existing(said.owned, counts),
            generation_id=_generation_of(said, protocol),
            instance_id=one.instance_id,
            rack=said.rack,
            shares=one.member_id not in deal.loners,
        )
        for one, said in zip(deal.joined.members, deal.subscriptions, strict=True)
    ]


def _generation_of(said: Subscription, protocol: str) -> int:
    """Return the generation of the owned lanes."""
    is_old = said.generation_id == NO_GENERATION and protocol == COOPERATIVE_STICKY
    if is_old and len(said.user_data) >= GENERATION.size:
        # Before version 2 it stood at the end of the assignor's user data (KIP-429).
        return int(GENERATION.unpack(said.user_data[-GENERATION.size :])[0])
    return said.generation_id


def owners_of(deal: Deal, held: LanesBefore) -> list[Member]:
    """Return the members with the lanes of a generation that is over."""
    return [
        replace(member, owned=held.lanes.get(one.identity, ()), generation_id=held.generation_id)
        for one, member in zip(deal.joined.members, members_of(deal), strict=True)
    ]


def _existing(lanes: Iterable[Lane], counts: Mapping[str, int]) -> tuple[Lane, ...]:
    return tuple((topic, index) for topic, index in lanes if 0 <= index < counts.get(topic, 0))


def _with_history(claimed: Sequence[Member], deal: Deal) -> list[Member]:
    """Give members without a lane their last lanes to own: lanes stay put.

    These are all members of an eager protocol, and a static member that was started again. The own
    word of members of the sticky assignor comes before keylane's memory.
    """
    held = {lane for member in claimed for lane in member.owned}
    counts = {topic.name: topic.index_count for topic in deal.topics}
    members = []
    for joined, said, member in zip(deal.joined.members, deal.subscriptions, claimed, strict=True):
        if not member.owned:
            lanes: tuple[Lane, ...] = ()
            generation_id = NO_GENERATION
            if deal.joined.protocol_name == STICKY:
                lanes, generation_id = read_sticky_data(said.user_data)
            if not lanes:
                lanes = deal.held.lanes.get(joined.identity, ())
                generation_id = deal.held.generation_id
            owned = tuple(lane for lane in _existing(lanes, counts) if lane not in held)
            member = replace(member, owned=owned, generation_id=generation_id)
        members.append(member)
    return members


def read_sticky_data(data: bytes) -> tuple[tuple[Lane, ...], int]:
    """Return the lanes of a member of the eager `sticky` assignor, and their generation.

    Return none when they cannot be read: a group plans without them as well.
    Source: Kafka's StickyAssignor, user data versions 0 and 1; aiokafka's and kafka-python's.
    """
    lanes: list[Lane] = []
    try:
        reader = Reader(data, flexible=False)
        for _ in range(reader.count(TOPIC_BYTES_MIN) if data else 0):
            topic = reader.string()
            lanes += [(topic, reader.int32()) for _ in range(reader.count(4))]
        return tuple(lanes), reader.int32() if reader.remaining else NO_GENERATION
    except FrameInvalid:
        return (), NO_GENERATION


def _count_moved(
    target: Mapping[str, Sequence[Lane]], members: Sequence[Member], deal: Deal
) -> int:
    """Return the number of lanes that go to another member than before, as far as known."""
    names = {one.member_id: one.identity for one in deal.joined.members}
    owners = {lane: name for name, lanes in deal.held.lanes.items() for lane in lanes}
    owners |= {lane: names[one.member_id] for one in members for lane in one.owned}
    return sum(
        owners.get(lane, names[member_id]) != names[member_id]
        for member_id, lanes in target.items()
        for lane in lanes
    )


def merge(assignments: Sequence[Any], deal: Deal, planned: Planned) -> list[tuple[str, bytes]]:
    """Return (member id, assignment) of each member: planned lanes and the client's plain topics.

    Direct members get partitions in the place of lanes. A member that is not known here keeps its
    plain topics. Raises: FrameInvalid.
    """
    lane_topics = {topic.name for topic in deal.topics} | deal.whole.keys()
    sent = {str(entry.member_id): bytes(entry.assignment) for entry in assignments}
    given: dict[str, Sequence[Lane]] = {}
    for one in deal.joined.members:
        lanes = planned.lanes.get(one.identity, ())
        given[one.member_id] = collapse(lanes, deal.whole) if one.is_direct else lanes
    merged = []
    for member_id in dict.fromkeys((*sent, *given)):
        # A leader may leave out members that get nothing.
        said = read_assignment(sent[member_id]) if sent.get(member_id) else None
        kept = [lane for lane in (said.lanes if said else ()) if lane[0] not in lane_topics]
        both = sorted((*kept, *given.get(member_id, ())))
        if said is not None:
            assignment = write_assignment(both, version=said.version, user_data=said.user_data)
        else:
            assignment = write_assignment(both, version=0) if both else b""
        merged.append((member_id, assignment))
    return merged
