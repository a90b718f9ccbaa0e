"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup as values, and as kio's entities.

Source: Kafka protocol guide; JoinGroupRequest.json and its like; KIP-394 (a member id comes before
the join), KIP-345 (static members), KIP-814 (a leader that plans nothing).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta
from functools import cache
from importlib import import_module
from typing import Any, Final

from kio.index import load_request_schema

PROTOCOL_TYPE: Final = "consumer"
STRATEGY: Final = "cooperative-sticky"
"""Name of Kafka's CooperativeStickyAssignor, whose data the members of this client have, too."""
JOIN_KEY, HEARTBEAT_KEY, LEAVE_KEY, SYNC_KEY = 11, 12, 13, 14
VERSIONS_MAX: Final = {JOIN_KEY: 9, HEARTBEAT_KEY: 4, LEAVE_KEY: 5, SYNC_KEY: 5}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicJoin:
    """Join with a subscription; the answer comes as all members have joined."""

    group_id: str
    member_id: str
    instance_id: str | None
    session_timeout_s: float
    rebalance_timeout_s: float
    metadata: bytes
    api_key: int = JOIN_KEY


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicSync:
    """Ask for the assignment of a generation; its leader brings all of them."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation_id: int
    assignments: tuple[tuple[str, bytes], ...] = ()
    api_key: int = SYNC_KEY


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicBeat:
    """Heartbeat in a generation."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation_id: int
    api_key: int = HEARTBEAT_KEY


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicLeave:
    """Leave the group."""

    group_id: str
    member_id: str
    api_key: int = LEAVE_KEY


ClassicCall = ClassicJoin | ClassicSync | ClassicBeat | ClassicLeave


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicAnswer:
    """Answer to any of them; fields beyond the code are those of its kind."""

    code: int
    name: str = "NONE"
    message: str | None = None
    """Of a refusal that came otherwise; these answers have none."""
    member_id: str = ""
    generation_id: int = -1
    leader: str = ""
    skips_plan: bool = False
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    """Id, instance id, subscription of each member, for the leader."""
    assignment: bytes = b""


def call_entity(call: ClassicCall, version: int) -> Any:
    """Return kio's entity; what the version has no room for is left out."""
    schema = load_request_schema(call.api_key, version)
    common: dict[str, Any] = {"group_id": call.group_id, "member_id": call.member_id}
    if isinstance(call, ClassicLeave):
        entry = _nested(schema, "MemberIdentity")
        members = () if entry is None else (entry(member_id=call.member_id),)
        return _build(schema, common | {"members": members})
    common["group_instance_id"] = call.instance_id
    if isinstance(call, ClassicBeat):
        return _build(schema, common | {"generation_id": call.generation_id})
    common["protocol_type"] = PROTOCOL_TYPE
    if isinstance(call, ClassicSync):
        entry = _nested(schema, "SyncGroupRequestAssignment")
        assignments = tuple(entry(member_id=one, assignment=data) for one, data in call.assignments)
        own = {"generation_id": call.generation_id, "protocol_name": STRATEGY}
        return _build(schema, common | own | {"assignments": assignments})
    entry = _nested(schema, "JoinGroupRequestProtocol")
    own = {
        "session_timeout": timedelta(seconds=call.session_timeout_s),
        "rebalance_timeout": timedelta(seconds=call.rebalance_timeout_s),
        "protocols": (entry(name=STRATEGY, metadata=call.metadata),),
    }
    return _build(schema, common | own)


def read_call_answer(entity: Any) -> ClassicAnswer:
    """Return an answer's values."""
    return ClassicAnswer(
        code=int(entity.error_code),
        name=entity.error_code.name.upper(),
        member_id=getattr(entity, "member_id", ""),
        generation_id=int(getattr(entity, "generation_id", -1)),
        leader=getattr(entity, "leader", ""),
        skips_plan=getattr(entity, "skip_assignment", False),
        members=tuple(
            (one.member_id, getattr(one, "group_instance_id", None), one.metadata)
            for one in getattr(entity, "members", ())
            if hasattr(one, "metadata")
        ),
        assignment=getattr(entity, "assignment", b""),
    )


@cache
def _nested(schema: Any, name: str) -> Any:
    return getattr(import_module(schema.__module__), name, None)


def _build(schema: Any, values: dict[str, Any]) -> Any:
    known = {one.name for one in fields(schema)}
    return schema(**{name: value for name, value in values.items() if name in known})
