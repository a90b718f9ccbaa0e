"""A group at a fake broker: members that join, the leader's sync, the members' parts."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from keylane.assignor.marks import LaneCounts, mark
from keylane.assignor.protocol import add_hidden_names, read_names
from keylane.config.node import GroupRule, LaneRule
from tests.transcript.consumer_protocol import assignment, lanes_of
from tests.transcript.entities import Values
from tests.transcript.fake import FakeContext, call

JOIN, SYNC = 11, 14
COOPERATIVE = "cooperative-sticky"
GROUP = "billing-eu"
ORDERS_LANES = [("orders", index) for index in range(8)]


class Coordinator:
    """A group of `FakeContext`: the leader gets the members that join, its sync is recorded."""

    def __init__(self, context: FakeContext, *, join_version: int = 5, sync_version: int = 3):
        self.context, self.generation_id = context, 0
        self.join_version, self.sync_version = join_version, sync_version
        context.group_names.note_empty(GROUP)  # so that the broker need not be asked

    async def join(
        self,
        members: dict[str, bytes],
        *,
        protocol: str = "range",
        leader: str = "",
        instances: dict[str, str] | None = None,
        protocol_type: str = "consumer",
        direct: Collection[str] = (),
    ) -> None:
        """A new generation; the first member leads. direct: members at the broker's own address."""
        self.generation_id += 1
        self.members, leader = members, leader or next(iter(members))
        instances = instances or {}
        values: Values = {
            "group_id": GROUP,
            "member_id": leader,
            "protocol_type": protocol_type,
            "protocols": [{"name": protocol, "metadata": members[leader]}],
        }
        answer: Values = {
            "error_code": 0,
            "generation_id": self.generation_id,
            "protocol_type": protocol_type,
            "protocol_name": protocol,
            "leader": leader,
            "member_id": leader,
            "members": [
                {
                    "member_id": name,
                    "metadata": metadata
                    if name in direct or protocol_type != "consumer"
                    else as_stored(metadata, self.context, protocol),
                    "group_instance_id": instances.get(name),
                }
                for name, metadata in members.items()
            ],
        }
        wants = {key: value for key, value in values.items() if key != "protocols"}
        self.context.expect(JOIN, wants if self.join_version > 4 else None, answer)
        reported = await call(self.context, JOIN, self.join_version, values)
        assert reported["members"], "the leader gets the members"

    async def sync(
        self, sent: dict[str, bytes] | None = None, *, generation_id: int | None = None
    ) -> dict[str, bytes]:
        """The leader syncs; what the broker got, by member."""
        if sent is None:
            sent = {name: assignment(()) for name in self.members}
        values = {
            "group_id": GROUP,
            "member_id": next(iter(self.members)),
            "generation_id": self.generation_id if generation_id is None else generation_id,
            "assignments": [{"member_id": name, "assignment": raw} for name, raw in sent.items()],
        }
        self.context.expect(SYNC, None, {"error_code": 0, "assignment": b"theirs"})
        answer = await call(self.context, SYNC, self.sync_version, values)
        assert answer["assignment"] == b"theirs", "the broker's answer passes"
        return {
            entry["member_id"]: entry["assignment"]
            for entry in self.context.world.sent[-1]["assignments"]
        }

    async def deal(self, members: dict[str, bytes], **how: Any) -> dict[str, list[Any]]:
        """Join and sync; the lanes of each member."""
        await self.join(members, **how)
        return {name: lanes_of(raw)[0] for name, raw in (await self.sync()).items()}


def as_stored(metadata: bytes, context: FakeContext, protocol: str = "range") -> bytes:
    """The subscription of a member behind keylane, as its broker has it."""
    registry = context.registry
    names = read_names(metadata) or ()
    if not any(registry.rule_of(name) is not None for name in names):
        return metadata
    shown = add_hidden_names(metadata, registry.physical_name)
    counts = {}
    for name in names:
        view = registry.view(name)
        if view is not None:
            counts[name] = LaneCounts(view.topic, view.layout.partition_count)
    return mark(metadata if shown is None else shown, protocol, counts.get)


def world(*groups: GroupRule, **config: Any) -> FakeContext:
    rules = groups or (GroupRule(group="billing-*", assignor="key-range"),)
    return FakeContext(LaneRule(topic="orders", lanes=4), groups=rules, **config)


def all_of(dealt: dict[str, list[Any]]) -> list[Any]:
    return sorted(lane for lanes in dealt.values() for lane in lanes)


def partitions_of(lanes: Iterable[tuple[str, int]]) -> set[int]:
    return {index % 2 for _, index in lanes}


async def kept(group: Coordinator, **how: Any) -> bool:
    """Whether the client's assignment passes as it is."""
    sent = {name: assignment([("orders", number)]) for number, name in enumerate(group.members)}
    return await group.sync(sent, **how) == sent
