"""Rights of others to what only nodes should do: asked for at a start, and logged.

Source: Kafka documentation, "Authorization and ACLs"; KIP-140 (DescribeAcls); KIP-290 (patterns):
a DENY goes before any ALLOW, of whatever pattern; docs/security.md.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from kio.schema.describe_acls.v2.request import DescribeAclsRequest
from kio.schema.errors import ErrorCode
from kio.static.primitive import i8

from keylane.config.own_names import (
    JOURNAL_ID_PREFIX,
    JOURNAL_TOPIC,
    SCANS_TOPIC,
    SETTINGS_ID,
    SETTINGS_TOPIC,
)
from keylane.config.security import SecurityConfig
from keylane.errors import FrameInvalid, UpstreamLost
from keylane.journal.openings import ALL as ALL_JOURNALS
from keylane.proxy.topics.node_values import GROUP

log = logging.getLogger("keylane.security")

TOPIC_TYPE, GROUP_TYPE, TRANSACTIONAL_TYPE = 2, 3, 5
LITERAL, PREFIXED = 3, 4
DENY, ALLOW = 2, 3
ANY_OPERATION, READ, WRITE, DELETE, ALTER, ALTER_CONFIGS = 2, 3, 4, 6, 7, 11
ALL_NAMES: Final = "*"
ALL_PRINCIPALS: Final = "User:*"
ALL_HOSTS: Final = "*"
OPERATION_NAMES: Final = {
    READ: "Read", WRITE: "Write", DELETE: "Delete", ALTER: "Alter", ALTER_CONFIGS: "AlterConfigs",
}  # fmt: skip
OPTIONS: Final = {
    TOPIC_TYPE: "--topic",
    GROUP_TYPE: "--group",
    TRANSACTIONAL_TYPE: "--transactional-id",
}
Ask = Callable[[Any], Awaitable[Any]]
"""Sends a request to any broker and gives its answer; may raise UpstreamLost."""
ANY: Final = i8(1)
MATCHING: Final = i8(2)
"""Kind of pattern that matches the name itself, its prefixes, and the wildcard."""
ACLS_MAX: Final = 100_000
"""ACLs that are looked at; a cluster has some thousands."""
NAMED_MAX: Final = 20
"""Rights named in the log line."""
ADVICE: Final = (
    ("group=__keylane_nodes operations=Read,Delete", "a member of it may act in a node's name"),
    (
        (
            "topics=__individual_commit_offsets,__keylane_settings,__keylane_scans"
            " operations=Write,Delete,Alter,AlterConfigs"
        ),
        "a record in them moves offsets",
    ),
    (
        "transactional_ids=keylane-ic-*,keylane-settings operations=Write",
        "an epoch of them locks nodes out",
    ),
)
"""Rights to deny to others, and why."""


@dataclass(frozen=True, slots=True, order=True)
class Acl:
    """One ACL; the numbers are Kafka's own."""

    resource_type: int
    name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


@dataclass(frozen=True, slots=True)
class Own:
    """One thing of keylane's own, and what no other principal may do with it."""

    resource_type: int
    name: str
    operations: tuple[int, ...]

    def falls_under(self, acl: Acl) -> bool:
        """Return whether an ACL is of it."""
        if acl.resource_type != self.resource_type:
            return False
        if acl.pattern_type == PREFIXED:
            return self.name.startswith(acl.name)
        return acl.pattern_type == LITERAL and acl.name in {self.name, ALL_NAMES}


TOPIC_OPERATIONS: Final = (WRITE, DELETE, ALTER, ALTER_CONFIGS)
OWN: Final = (
    Own(GROUP_TYPE, GROUP, (READ, DELETE)),
    *(
        Own(TOPIC_TYPE, name, TOPIC_OPERATIONS)
        for name in (JOURNAL_TOPIC, SETTINGS_TOPIC, SCANS_TOPIC)
    ),
    *(
        Own(TRANSACTIONAL_TYPE, name, (WRITE,))
        for name in (SETTINGS_ID, ALL_JOURNALS, f"{JOURNAL_ID_PREFIX}0")
    ),
)
"""Of the ids that begin with `keylane-ic-`, two stand for all."""


@dataclass(frozen=True, slots=True)
class OpenRight:
    """An ACL that gives another principal rights on something of keylane's own."""

    own: Own
    acl: Acl
    operations: tuple[int, ...]
    """Those that no DENY takes away."""

    def __str__(self) -> str:
        """Principal, pattern and operations."""
        pattern = self.acl.name + (ALL_NAMES if self.acl.pattern_type == PREFIXED else "")
        names = ",".join(OPERATION_NAMES[operation] for operation in self.operations)
        return f"{self.acl.principal} has {names} on {self.own.name} by the pattern {pattern}"

    def remedy(self) -> str:
        """Return the command that ends it; a right of all principals is removed, not denied."""
        operations = " ".join(f"--operation {OPERATION_NAMES[one]}" for one in self.operations)
        option = OPTIONS[self.own.resource_type]
        if self.acl.principal == ALL_PRINCIPALS:
            kind = " --resource-pattern-type prefixed" if self.acl.pattern_type == PREFIXED else ""
            return (
                f"kafka-acls --remove --allow-principal '{ALL_PRINCIPALS}' {option} "
                f"'{self.acl.name}'{kind} (a deny of {ALL_PRINCIPALS} would deny keylane as well)"
            )
        return (
            f"kafka-acls --add --deny-principal '{self.acl.principal}' {operations} {option} "
            f"{self.own.name}"
        )


def find_open_rights(acls: Iterable[Acl], *, principals: Collection[str]) -> list[OpenRight]:
    """Return rights of others on keylane's own, in the order of `OWN`; each ACL once for each.

    principals: keylane's own. Costs a look per ACL and thing.
    """
    known = sorted(set(acls))
    found: list[OpenRight] = []
    for own in OWN:
        here = [acl for acl in known if own.falls_under(acl)]
        denied = {
            (acl.principal, acl.host, acl.operation) for acl in here if acl.permission == DENY
        }
        for acl in here:
            if acl.permission != ALLOW or acl.principal in principals:
                continue
            open_ = tuple(one for one in own.operations if _is_open(acl, one, denied))
            if open_:
                found.append(OpenRight(own, acl, open_))
    return found


def _is_open(acl: Acl, operation: int, denied: Collection[tuple[str, str, int]]) -> bool:
    if acl.operation not in {operation, ANY_OPERATION}:
        return False
    return not any(
        (principal, host, one) in denied
        for principal in {acl.principal, ALL_PRINCIPALS}
        for host in {acl.host, ALL_HOSTS}
        for one in (operation, ANY_OPERATION)
    )


class AclsUnknown(Exception):
    """Brokers do not list the ACLs; the text says why."""


def own_principals(config: SecurityConfig) -> frozenset[str]:
    """Return the principal that brokers' default builder makes of keylane's user name, if known."""
    return frozenset({f"User:{config.login_username}"} if config.login_username else ())


async def ask_open_rights(ask: Ask, principals: Collection[str]) -> list[OpenRight]:
    """Return the rights that others have. Raises: AclsUnknown, UpstreamLost."""
    acls: set[Acl] = set()
    for own in OWN:
        request = DescribeAclsRequest(
            resource_type_filter=i8(own.resource_type),
            resource_name_filter=own.name,
            pattern_type_filter=MATCHING,
            principal_filter=None,
            host_filter=None,
            operation=ANY,
            permission_type=ANY,
        )
        answer = await ask(request)
        if answer.error_code != ErrorCode.none:
            raise AclsUnknown(answer.error_code.name.upper())
        acls.update(islice(_acls_of(answer), ACLS_MAX - len(acls)))
    return find_open_rights(acls, principals=principals)


async def advise(ask: Ask, principals: Collection[str]) -> None:
    """Log rights that are to be denied to others, and their principals. Never ends a node."""
    found: list[OpenRight] | None = None
    try:
        found = await ask_open_rights(ask, principals)
    except AclsUnknown as error:
        if str(error) == ErrorCode.security_disabled.name.upper():
            log.info("brokers have no authorizer, any client may act as a node reason=%s", error)
            return
        log.info(
            "rights of others are not known, keylane's principal may not ask for them reason=%s "
            "remedy=allow it Describe on the cluster, or look at them by hand",
            error,
        )
    except (UpstreamLost, FrameInvalid) as error:
        log.info("rights of others are not known reason=%s", error)
    for rights, reason in ADVICE:
        log.info("others need to be denied these rights %s reason=%s", rights, reason)
    if found == []:
        log.info("the ACLs give none of these rights to others")
    elif found:
        named = "; ".join(f"{right}: {right.remedy()}" for right in found[:NAMED_MAX])
        more = f"; and {len(found) - NAMED_MAX} more" if len(found) > NAMED_MAX else ""
        log.warning(
            "others have rights that only nodes should have%s count=%d rights=%s%s",
            "" if principals else " (keylane's own principal is not known, and may be among them)",
            len(found), named, more,
        )  # fmt: skip


def _acls_of(answer: Any) -> Any:
    for resource in answer.resources:
        for acl in resource.acls:
            yield Acl(
                resource_type=int(resource.resource_type),
                name=str(resource.resource_name),
                pattern_type=int(resource.pattern_type),
                principal=str(acl.principal),
                host=str(acl.host),
                operation=int(acl.operation),
                permission=int(acl.permission_type),
            )
