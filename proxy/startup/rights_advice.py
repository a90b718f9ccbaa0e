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


class AclSource(Protocol):
    """The source of ACLs; `Cluster` is one."""

    async def request(self, entity: Any) -> Any:
        """Ask any broker. Raises: UpstreamLost."""


class AclsUnknown(Exception):
    """Brokers do not list the ACLs; the text says why."""


def own_principals(config: SecurityConfig) -> frozenset[str]:
    """Return keylane's principal, as brokers make it of a user name by default, if it has one."""
    return frozenset({f"User:{config.login_username}"} if config.login_username else ())


async def ask_open_rights(brokers: AclSource, principals: Collection[str]) -> list[OpenRight]:
    """Return rights that others have. Raises: AclsUnknown, UpstreamLost."""
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
