"""Messages of nodes through their group: bytes of JoinGroup and SyncGroup.

Source: `keylane.assignor.protocol` (Kafka's consumer protocol), so that Kafka's own tools show the
owners; the rest is user data: JSON, in SyncGroup deflated (RFC 1950), since every member gets all.

`seals` has checked before that a node sent it. It may still be of a newer keylane or, where nodes
have no secret, of another program: it is read within bounds, unknown fields are left alone, and
what does not fit is NodeInvalid.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from keylane.assignor.protocol import (
    Assignment,
    Subscription,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from keylane.config.node import NODE_NUMBER_MAX
from keylane.errors import FrameInvalid, NodeInvalid
from keylane.offsets.records.journal import TOPIC_NAME
from keylane.proxy.topics.node_values import (
    NO_GENERATION,
    NO_NODE,
    Hello,
    Membership,
    NodeInfo,
    NodeRule,
    OwnershipClaim,
)

FORMAT: Final = 1
"""Format; it goes up only when older nodes would misread a message."""
SUBSCRIPTION_VERSION: Final = 2
"""Version with owned partitions and their generation (KIP-792)."""
ASSIGNMENT_VERSION: Final = 0
JSON_BYTES_MAX: Final = 4 << 20
"""Bound after inflation; the group's one record in Kafka is bounded to 1 MiB."""
BROKERS_MAX: Final = 10_000
RULES_MAX: Final = 10_000
PINS_MAX: Final = 10_000
PARTITIONS_MAX: Final = 100_000
INT32_MAX: Final = 2**31 - 1

Int32 = Annotated[int, Field(ge=0, le=INT32_MAX)]
Number = Annotated[int, Field(ge=0, le=NODE_NUMBER_MAX)]
Text = Annotated[str, Field(max_length=1024)]
Place = tuple[
    Annotated[str, Field(min_length=1, max_length=255)], Annotated[int, Field(ge=1, le=65_535)]
]


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class _Rule(_Model):
    topic: Text
    lanes: Annotated[int, Field(ge=1, le=INT32_MAX)]
    fingerprint: Text = ""
    hash: Text = "xxh64"


class _Node(_Model):
    number: Number
    bootstrap: Place
    brokers: Annotated[dict[Int32, Place], Field(max_length=BROKERS_MAX)] = {}
    rules: Annotated[tuple[_Rule, ...], Field(max_length=RULES_MAX)] = ()
    lane_name_pattern: Text = ""
    pinned: Annotated[dict[Text, Int32], Field(max_length=PINS_MAX)] = {}
    control: Text = ""
    version: Text = ""
    lone: bool = False
    is_draining: bool = False
    process: Text = ""
    journal: Int32 = 0

    @classmethod
    def of(cls, node: NodeInfo) -> _Node:
        """Return a node's message without checks: it is our own."""
        said = {name: getattr(node, name) for name in cls.model_fields}
        said["rules"] = tuple(_Rule.model_construct(**asdict(rule)) for rule in node.rules)
        said["brokers"], said["pinned"] = dict(node.brokers), dict(node.pinned)
        return cls.model_construct(**said)

    def value(self) -> NodeInfo:
        rules = tuple(NodeRule(**dict(rule)) for rule in self.rules)
        return NodeInfo(**{**dict(self), "rules": rules})


class _Hello(_Model):
    format: Literal[1]
    node: _Node
    ic_partition_count: Annotated[int, Field(ge=1, le=PARTITIONS_MAX)]
    since: Annotated[int, Field(ge=NO_GENERATION, le=INT32_MAX)] = NO_GENERATION


class _Verdict(_Model):
    format: Literal[1]
    generation_id: Int32
    nodes: Annotated[tuple[_Node, ...], Field(max_length=NODE_NUMBER_MAX + 1)] = ()
    owners: Annotated[
        tuple[Annotated[int, Field(ge=NO_NODE, le=NODE_NUMBER_MAX)], ...],
        Field(max_length=PARTITIONS_MAX),
    ] = ()
    refused: Annotated[str, Field(max_length=4096)] = ""


def write_hello(hello: Hello) -> bytes:
    """Return the metadata of JoinGroup."""
    said = _Hello.model_construct(
        format=FORMAT,
        node=_Node.of(hello.node),
        ic_partition_count=hello.ic_partition_count,
        since=hello.since,
    )
    subscription = Subscription(
        version=SUBSCRIPTION_VERSION,
        topics=(TOPIC_NAME,),
        user_data=_json(said),
        owned=tuple((TOPIC_NAME, p) for p in sorted(hello.claim.partitions)),
        generation_id=hello.claim.generation_id,
    )
    return write_subscription(subscription)


def read_hello(metadata: bytes, member_id: str) -> Hello:
    """Return a member's message from JoinGroup. Raises: NodeInvalid."""
    try:
        subscription = read_subscription(metadata)
    except FrameInvalid as error:
        raise NodeInvalid(f"member {member_id}: its subscription: {error}") from None
    said = _read(_Hello, subscription.user_data, f"member {member_id}: its subscription")
    claim = OwnershipClaim(
        generation_id=max(subscription.generation_id, NO_GENERATION),
        partitions=frozenset(p for topic, p in subscription.owned if topic == TOPIC_NAME),
    )
    return Hello(
        node=said.node.value(),
        ic_partition_count=said.ic_partition_count,
        since=said.since,
        claim=claim,
    )


def write_membership(membership: Membership, number: int) -> bytes:
    """Return the assignment of the node with this number."""
    said = _Verdict.model_construct(
        format=FORMAT,
        generation_id=membership.generation_id,
        nodes=tuple(_Node.of(node) for node in membership.nodes),
        owners=membership.owners,
    )
    return _write_verdict(said, sorted(membership.owned_by(number)))


def write_refusal(generation_id: int, reason: str) -> bytes:
    """Return the assignment of a member that is not let in."""
    said = _Verdict.model_construct(format=FORMAT, generation_id=generation_id, refused=reason)
    return _write_verdict(said, ())


def read_verdict(assignment: bytes, *, generation_id: int, number: int) -> Membership | str:
    """Return the leader's word to node `number`: the nodes of this generation, or why it is none.

    Raises: NodeInvalid; the text names no member, which the caller knows.
    """
    try:
        read = read_assignment(assignment)
        text = _inflate(read.user_data)
    except FrameInvalid as error:
        raise NodeInvalid(f"the leader's assignment: {error}") from None
    said = _read(_Verdict, text, "the leader's assignment")
    if said.generation_id != generation_id:
        raise NodeInvalid(
            f"the leader's assignment is of generation {said.generation_id}, not {generation_id}"
        )
    if said.refused:
        return str(said.refused)
    membership = Membership(
        generation_id=generation_id,
        nodes=tuple(node.value() for node in said.nodes),
        owners=said.owners,
    )
    _check(membership, read, number)
    return membership


def _check(membership: Membership, assignment: Assignment, number: int) -> None:
    """Check that the two parts of an assignment agree, else two nodes may serve one group."""
    numbers = [node.number for node in membership.nodes]
    if numbers != sorted(set(numbers)):
        raise NodeInvalid(f"the leader's assignment: nodes {numbers} are not ascending")
    if number not in numbers:
        raise NodeInvalid(f"the leader's assignment: node {number} is not among {numbers}")
    if strangers := set(membership.owners) - {*numbers, NO_NODE}:
        raise NodeInvalid(f"the leader's assignment: owners {sorted(strangers)} are no nodes")
    given = {p for topic, p in assignment.lanes if topic == TOPIC_NAME}
    if given != membership.owned_by(number):
        raise NodeInvalid("the leader's assignment: partitions and owners do not agree")


def _write_verdict(said: _Verdict, partitions: Iterable[int]) -> bytes:
    lanes = [(TOPIC_NAME, partition) for partition in partitions]
    return write_assignment(
        lanes, version=ASSIGNMENT_VERSION, user_data=zlib.compress(_json(said), 6)
    )


def _json(model: _Model) -> bytes:
    return model.model_dump_json(exclude_defaults=True).encode()


def _inflate(data: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(data, JSON_BYTES_MAX)
    except zlib.error as error:
        raise FrameInvalid(f"user data: {error}") from None
    if not inflater.eof:
        raise FrameInvalid(f"user data is cut, or longer than {JSON_BYTES_MAX} bytes")
    return text


def _read(model: type[Any], text: bytes, what: str) -> Any:
    if len(text) > JSON_BYTES_MAX:
        raise NodeInvalid(f"{what}: {len(text)} bytes of user data, at most {JSON_BYTES_MAX}")
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "user data"
        raise NodeInvalid(f"{what}: {place}: {first['msg']}") from None
