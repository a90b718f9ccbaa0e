"""Members of a KIP-848 group in the broker's words.

Source: ConsumerGroupDescribe (KIP-848). A broker refuses the description of a group to a client
that may not DESCRIBE each of its topics, so keylane's own login is asked then (Kafka 4.3,
`KafkaApis.handleConsumerGroupDescribe`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from kio.schema.consumer_group_describe.v0.request import ConsumerGroupDescribeRequest
from kio.schema.errors import ErrorCode
from kio.schema.types import GroupId

from keylane.errors import KeylaneError, UpstreamLost
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.groups.consumer_members import Listed
from keylane.proxy.groups.group_plans import identity_of

log = logging.getLogger("keylane.groups")

DENIALS: Final = (ErrorCode.topic_authorization_failed, ErrorCode.group_authorization_failed)


class Listing(NamedTuple):
    """The broker's description."""

    is_there: bool
    """False: the broker has no KIP-848 group of this name, or it has no members."""
    members: Sequence[Listed] = ()


async def list_members(group: str, context: Context) -> Listing | None:
    """Return the group's members; None: the broker does not show them."""
    question = ConsumerGroupDescribeRequest(
        group_ids=(GroupId(group),), include_authorized_operations=False
    )
    found = _only(await context.ask(question))
    if found.error_code in DENIALS:
        try:
            found = _only(await context.ask_coordinator(group, question))
        except KeylaneError as error:
            log.info("group not described group=%s reason=%s", group, error)
            return None
    if found.error_code == ErrorCode.group_id_not_found:
        return Listing(is_there=False)
    if found.error_code != ErrorCode.none:
        log.warning(
            "group not described: lanes of members that are gone stay where they are group=%s "
            "error=%s remedy=allow DESCRIBE on the group and its topics to keylane's principal",
            group, found.error_code.name,
        )  # fmt: skip
        return None
    topics = _lane_topics(group, context)
    return Listing(bool(found.members), [_listed(member, topics) for member in found.members])


def _lane_topics(group: str, context: Context) -> frozenset[str]:
    """Return the broker's names of lane topics that members of the group read here."""
    known = context.consumer_groups.find(group)
    members = () if known is None else known.members.values()
    names = (name for member in members for name in member.subscribed.names)
    return frozenset(map(context.registry.physical_name, names))


def _only(answer: Any) -> Any:
    """Return the one group of an answer. Raises: UpstreamLost."""
    if len(answer.groups) != 1:
        raise UpstreamLost(f"ConsumerGroupDescribe has {len(answer.groups)} groups, 1 was asked")
    return answer.groups[0]


def _listed(member: Any, lane_topics: frozenset[str]) -> Listed:
    topics = [
        topic
        for assignment in (member.assignment, member.target_assignment)
        for topic in assignment.topic_partitions
    ]
    parts = ((topic.topic_id, int(index)) for topic in topics for index in topic.partitions)
    read = {*map(str, member.subscribed_topic_names), *(str(topic.topic_name) for topic in topics)}
    member_id = str(member.member_id)
    return Listed(
        identity=identity_of(member_id, member.instance_id),
        member_id=member_id,
        parts=frozenset(part for part in parts if part[0] is not None),
        reads_lanes=bool(member.subscribed_topic_regex or read & lane_topics),
    )
