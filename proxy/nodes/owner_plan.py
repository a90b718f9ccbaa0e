"""Owners of the partitions of `__individual_commit_offsets`: balanced, with few moves.

Source: docs/decisions/020.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from keylane.offsets.records.journal import TOPIC_NAME
from keylane.proxy.topics.node_values import NO_GENERATION, NO_NODE, Hello, NodeInfo, OwnershipClaim


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """Members that are nodes of the new generation, and those that are not."""

    members: Mapping[int, str]
    """Member id by node number, ascending."""
    refused: Mapping[str, str]
    """Reason by member id."""


def admit(hellos: Mapping[str, Hello], *, leader: str = "") -> Admitted:
    """Let in the node that was there first; one with a number that is taken stays out.

    So does one that sees another number of IC partitions: it would look for a group's offsets
    elsewhere than the others do. Beside a node without a number there is no other; of lone nodes
    that are new, the leader joined first. `hellos` is by member id, as is `leader`.
    """
    members: dict[int, str] = {}
    refused: dict[str, str] = {}
    oldest: Hello | None = None
    for member_id in sorted(
        hellos, key=lambda key: (*_turn(hellos[key], is_leader=key == leader), key)
    ):
        hello = hellos[member_id]
        oldest = oldest or hello
        taken = members.get(hello.node.number)
        if oldest is not hello and (oldest.node.lone or hello.node.lone):
            refused[member_id] = _refuse_beside(hello.node, oldest.node)
        elif taken is not None:
            refused[member_id] = (
                f"node: {hello.node.number} is the number of the node at "
                f"{hellos[taken].node.place}; this one, at {hello.node.place}, needs another"
            )
        elif hello.ic_partition_count != oldest.ic_partition_count:
            refused[member_id] = (
                f"the node at {hello.node.place} sees {hello.ic_partition_count} partitions of "
                f"{TOPIC_NAME}, the node at {oldest.node.place} sees {oldest.ic_partition_count}"
            )
        else:
            members[hello.node.number] = member_id
    return Admitted(members=dict(sorted(members.items())), refused=refused)


def _turn(hello: Hello, *, is_leader: bool) -> tuple[bool, int, bool]:
    """Sort key of members: the lowest is let in first."""
    is_new = hello.since == NO_GENERATION
    return is_new, hello.since, not (hello.node.lone and is_leader)


def _refuse_beside(node: NodeInfo, oldest: NodeInfo) -> str:
    """Return why a node is not let in beside an older one, where one of them has no number."""
    if oldest.lone:
        return (
            f"node: the node at {oldest.place} has no number and has to be the only one; stop "
            f"it, or give it and this one, at {node.place}, a number each"
        )
    return (
        f"node: the node at {oldest.place} is in front of this cluster already; give this one, "
        f"at {node.place}, a number, or stop the others"
    )


def plan_owners(claims: Mapping[int, OwnershipClaim], partition_count: int) -> tuple[int, ...]:
    """Return the number of the owner of each partition. Raises: ValueError (there is no node).

    `claims` has every node that is to serve, by number. Each gets `partition_count` divided by
    their count, some one more. A node keeps what it has up to its share; a node that left gives
    only its own away; a node that is new gets its share from those that have most.
    """
    if not claims:
        raise ValueError("a plan needs a node")
    held = _held(claims, partition_count)
    share, rest = divmod(partition_count, len(claims))
    # The node that has most keeps one more: nothing moves that need not.
    by_size = sorted(held, key=lambda number: (-len(held[number]), number))
    shares = {number: share + (place < rest) for place, number in enumerate(by_size)}
    owners = [NO_NODE] * partition_count
    for number, partitions in held.items():
        for partition in partitions[: shares[number]]:
            owners[partition] = number
    return _fill(owners, {number: shares[number] - len(held[number]) for number in sorted(held)})


def _held(claims: Mapping[int, OwnershipClaim], partition_count: int) -> dict[int, list[int]]:
    """Partitions that each node had, ascending; of two that claim one, the later generation's."""
    newest = sorted(claims, key=lambda number: (-claims[number].generation_id, number))
    held: dict[int, list[int]] = {}
    taken: set[int] = set()
    for number in newest:
        known = (p for p in claims[number].partitions if 0 <= p < partition_count)
        held[number] = sorted(set(known) - taken)
        taken.update(held[number])
    return held


def _fill(owners: Sequence[int], room: Mapping[int, int]) -> tuple[int, ...]:
    """Give partitions without an owner to nodes with room, in turn: no run goes to one."""
    turns: Iterable[int] = (
        number
        for turn in range(max(room.values(), default=0))
        for number, places in room.items()
        if turn < places
    )
    waiting = iter(turns)
    return tuple(owner if owner != NO_NODE else next(waiting) for owner in owners)
