"""The two steps of a cooperative rebalance: a lane moves only after its owner gave it up.

Source: KIP-429; the order of claims of KIP-792.
"""

from __future__ import annotations

from collections.abc import Sequence

from keylane.assignor.model import Lane, LaneTopic, Member, Plan, find_owners


def first_step(target: Plan, members: Sequence[Member], topics: Sequence[LaneTopic] = ()) -> Plan:
    """Take out of `target` every lane that a living member other than its new owner still reads.

    The member that has a lane and keeps it never stops reading it. Two members that claim one
    lane in the same generation both have to give it up. With `topics`, a member that does not
    share gets the lanes of a partition all at once: none while another still reads one of them.
    The same holds for all members in a topic that is not split.

    When nothing is withheld the result equals `target`; after every member took this step and
    joined again, the next call withholds nothing of the same target.
    """
    claims: dict[Lane, set[str]] = {}
    for member in members:
        for lane in member.owned:
            claims.setdefault(lane, set()).add(member.member_id)
    owners = find_owners(members)
    by_id = {member.member_id: member for member in members}
    step: Plan = {}
    for member_id, lanes in target.items():
        free = [lane for lane in lanes if _may_take(member_id, lane, claims, owners)]
        receiver = by_id.get(member_id)
        if receiver is not None and len(free) < len(lanes):
            free = _whole_partitions(free, lanes, receiver, topics)
        step[member_id] = tuple(free)
    return step


def find_withheld(target: Plan, step: Plan) -> frozenset[Lane]:
    """The lanes that `step` leaves for the next rebalance."""
    given = {lane for lanes in step.values() for lane in lanes}
    return frozenset(lane for lanes in target.values() for lane in lanes if lane not in given)


def _may_take(
    member_id: str,
    lane: Lane,
    claims: dict[Lane, set[str]],
    owners: dict[Lane, list[Member]],
) -> bool:
    """Return whether no other member has the lane."""
    newest = [owner.member_id for owner in owners.get(lane, ())]
    return newest == [member_id] or not claims.get(lane, set()) - {member_id}


def _whole_partitions(
    free: list[Lane], lanes: tuple[Lane, ...], member: Member, topics: Sequence[LaneTopic]
) -> list[Lane]:
    """Return lanes of `free` that the member may have: its own, and those of whole partitions."""
    counts = {topic.name: topic.partition_count for topic in topics if not member.may_share(topic)}
    if not counts:
        return free
    owned = set(member.owned)
    free_set = set(free)
    waiting = {
        (name, index % counts[name])
        for name, index in lanes
        if name in counts and (name, index) not in free_set
    }
    return [
        (name, index)
        for name, index in free
        if (name, index) in owned
        or name not in counts
        or (name, index % counts[name]) not in waiting
    ]
