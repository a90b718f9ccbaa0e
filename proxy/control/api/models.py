"""Values of the control port, as pydantic models: read at the edge, described in OpenAPI."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StringConstraints,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from keylane.config.node import NODE_NUMBER_MAX
from keylane.keyrange.space import HASH_MAX
from keylane.proxy.topics.range_table import CLIENT_ID_MAX

EXACT_FLOAT_MAX: Final = 2**53
DECIMAL: Final = re.compile(r"0|[1-9][0-9]{0,18}")
TOPIC_PATTERN: Final = r"^[a-zA-Z0-9._-]{1,249}$"
PARTITION_MAX: Final = 2**31 - 1


def _read_integer(value: Any) -> Any:
    """JSON knows one kind of number: 3.0 is an integer, true is not."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= EXACT_FLOAT_MAX:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise PydanticCustomError("integer", "expected an integer")
    return value


def _read_hash(value: Any) -> Any:
    if isinstance(value, str):
        if DECIMAL.fullmatch(value) is None:
            raise ValueError("expected a decimal number without sign or leading zeros")
        return int(value)
    number = _read_integer(value)
    if not 0 <= number <= HASH_MAX:
        raise ValueError("expected 0 to 2^63-1")
    return number


Hash = Annotated[
    int,
    BeforeValidator(_read_hash),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": f"^({DECIMAL.pattern})$"},
                {"type": "integer", "minimum": 0, "maximum": HASH_MAX},
            ],
            "description": "A point of the hash space, 0 to 2^63-1. As a string it survives readers"
            " that take numbers for doubles.",
        }
    ),
]
HashText = Annotated[str, StringConstraints(pattern=f"^({DECIMAL.pattern})$")]
ClientId = Annotated[str, StringConstraints(min_length=1, max_length=CLIENT_ID_MAX)]
GroupName = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
NodeNumber = Annotated[int, Field(ge=0, le=NODE_NUMBER_MAX, description="Of a node: its `node`.")]
KeyText = Annotated[
    str,
    StringConstraints(min_length=1),
    Field(description="Bytes of a record's key, percent-encoded: text as UTF-8."),
]
Topic = Annotated[str, StringConstraints(pattern=TOPIC_PATTERN)]
Partition = Annotated[
    int,
    BeforeValidator(_read_integer),
    Field(ge=0, le=PARTITION_MAX),
    WithJsonSchema(
        {
            "type": "integer",
            "minimum": 0,
            "maximum": PARTITION_MAX,
            "description": "Of the topic as the brokers have it, from 0.",
        }
    ),
]
# pydantic would say of names what they may look like, and not that others are refused.
TopicFlags = Annotated[
    dict[Topic, StrictBool],
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"pattern": TOPIC_PATTERN},
            "additionalProperties": {"type": "boolean"},
        }
    ),
]
Version = Annotated[int, Field(ge=0, description="Counts the changes; also the ETag.")]


class Strict(BaseModel):
    """A body, or a part of one."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Part(Strict):
    """Key ranges of one partition."""

    topic: Topic
    partition: Partition
    ranges: Annotated[
        list[Annotated[list[Hash], Field(min_length=2, max_length=2)]],
        Field(
            description="Pairs of first and last hash, both inclusive; none is the whole"
            " partition.",
        ),
    ]


Parts = list[Part]
"""Number of have room says `RangeTable`, beside the bound on the body."""


class AssignmentsIn(Strict):
    """Assignments by client id: all that there are."""

    assignments: dict[ClientId, Parts]


class AssignmentsPatch(Strict):
    """Assignments by client id: null deletes, clients that are not named stay."""

    assignments: dict[ClientId, Parts | None]


class AssignmentIn(Strict):
    """The assignment of one client."""

    assignment: Parts


class PartOut(BaseModel):
    """Key ranges of one partition: sorted, disjoint, merged."""

    topic: str
    partition: int
    ranges: list[Annotated[list[HashText], Field(min_length=2, max_length=2)]]


class AssignmentsOut(BaseModel):
    """All assignments in one version."""

    version: Version
    assignments: dict[str, list[PartOut]]


class AssignmentOut(BaseModel):
    """The assignment of one client, in a version of the whole table."""

    version: Version
    client_id: str
    assignment: list[PartOut]


class SwitchesIn(Strict):
    """All switches that are set; what is left out is as configured."""

    accept_individual_commit: Annotated[
        StrictBool | None,
        Field(
            alias="accept.individual.commit",
            description="Whether commits of lanes and key ranges are taken; null: as configured.",
        ),
    ] = None
    accept_range_fetch: Annotated[
        TopicFlags,
        Field(
            alias="accept.range.fetch",
            description="By topic: whether parts of its partitions may be fetched.",
        ),
    ] = Field(default_factory=dict)
    allow_individual_commit: Annotated[
        dict[ClientId, StrictBool],
        Field(
            alias="allow.individual.commit",
            description="By client id: whether it takes parts of partitions, or whole ones only.",
        ),
    ] = Field(default_factory=dict)


class Configured(BaseModel):
    """Start values of the configuration."""

    accept_individual_commit: bool = Field(alias="accept.individual.commit")


class SwitchesOut(BaseModel):
    """All switches that are set, in one version."""

    version: Version
    accept_individual_commit: bool | None = Field(alias="accept.individual.commit")
    accept_range_fetch: dict[str, bool] = Field(alias="accept.range.fetch")
    allow_individual_commit: dict[str, bool] = Field(alias="allow.individual.commit")
    configured: Configured


class TopicSwitchIn(Strict):
    """The switch of one topic; null: as configured."""

    accept_range_fetch: StrictBool | None = Field(alias="accept.range.fetch")


class TopicSwitchOut(BaseModel):
    """The switch of one topic as it stands."""

    version: Version
    topic: str
    accept_range_fetch: bool = Field(alias="accept.range.fetch")
    is_set: bool = Field(description="False: it is as configured.")


class ClientSwitchIn(Strict):
    """The switch of one client; null: as configured."""

    allow_individual_commit: StrictBool | None = Field(alias="allow.individual.commit")


class ClientSwitchOut(BaseModel):
    """The switch of one client as it stands."""

    version: Version
    client_id: str
    allow_individual_commit: bool = Field(alias="allow.individual.commit")
    is_set: bool = Field(description="False: it is as configured.")


class FieldError(BaseModel):
    """One thing that is wrong with a body."""

    field: str
    detail: str


class Conflict(BaseModel):
    """Place where key ranges of two clients meet."""

    client_id: str
    topic: str
    partition: int
    range: Annotated[list[HashText], Field(min_length=2, max_length=2)]


class ProblemOut(BaseModel):
    """A problem document (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    field: str | None = Field(
        default=None, description="JSON pointer into the body, or the name of a parameter."
    )
    errors: list[FieldError] | None = Field(default=None, description="All that is wrong with it.")
    conflict: Conflict | None = Field(default=None, description="The client that has these keys.")
    outcome: str | None = Field(
        default=None,
        description="After 503: `unchanged`, or `unknown` when it has to be read again.",
    )
