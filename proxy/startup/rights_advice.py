"""Rights of others to what only nodes should do: asked for at a start, and logged.

Source: KIP-140 (DescribeAcls); docs/security.md.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from itertools import islice
from typing import Any, Final, Protocol

from kio.schema.describe_acls.v2.request import DescribeAclsRequest
from kio.schema.errors import ErrorCode
from kio.static.primitive import i8

from keylane.config.security import SecurityConfig
from keylane.errors import FrameInvalid, UpstreamLost
from keylane.proxy.startup.open_rights import OWN, Acl, OpenRight, find_open_rights

log = logging.getLogger("keylane.security")

ANY: Final = i8(1)
MATCHING: Final = i8(2)
"""Of patterns: the name itself, prefixes of it, and the wildcard."""
ACLS_MAX: Final = 100_000
"""That are looked at; a cluster has some thousands."""
NAMED_MAX: Final = 20
"""In the log line."""
ADVICE: Final = (
    (
        "others need to be denied Read and Delete on the group __keylane_nodes: a member of it may "
        "act in a node's name"
    ),
    (
        "others need to be denied Write, Delete, Alter and AlterConfigs on the topics "
        "__individual_commit_offsets, __keylane_settings and __keylane_scans: a record in them "
        "moves offsets"
    ),
    (
        "others need to be denied Write on transactional ids that begin with keylane-ic- and on "
        "keylane-settings: an epoch of them locks nodes out"
    ),
)


class AclSource(Protocol):
    """The source of ACLs; `Cluster` is one."""

    async def request(self, entity: Any) -> Any:
        """Ask any broker. Raises: UpstreamLost."""


class AclsUnknown(Exception):
    """Brokers do not list the ACLs; the text says why."""


def own_principals(config: SecurityConfig) -> frozenset[str]:
    """keylane's principal as brokers' default builder makes it of a user name; else unknown."""
    return frozenset({f"User:{config.login_username}"} if config.login_username else ())


async def ask_open_rights(brokers: AclSource, principals: Collection[str]) -> list[OpenRight]:
    """Rights that others have. Raises: AclsUnknown, UpstreamLost."""
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
        answer = await brokers.request(request)
        if answer.error_code != ErrorCode.none:
            raise AclsUnknown(answer.error_code.name.upper())
        acls.update(islice(_acls_of(answer), ACLS_MAX - len(acls)))
    return find_open_rights(acls, principals=principals)


async def advise(brokers: AclSource, principals: Collection[str]) -> None:
    """Log rights that are to be denied to others, and their principals. Never ends a node."""
    found: list[OpenRight] | None = None
    try:
        found = await ask_open_rights(brokers, principals)
    except AclsUnknown as error:
        if str(error) == ErrorCode.security_disabled.name.upper():
            log.info("brokers have no authorizer, so any client may act as a node reason=%s", error)
            return
        log.info(
            "rights of others are not known, keylane's principal may not ask for them reason=%s "
            "remedy=allow it Describe on the cluster, or look at them by hand",
            error,
        )
    except (UpstreamLost, FrameInvalid) as error:
        log.info("rights of others are not known reason=%s", error)
    for line in ADVICE:
        log.info("%s", line)
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
