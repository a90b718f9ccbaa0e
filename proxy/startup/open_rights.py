"""Rights on what is keylane's own that others have: found in the ACLs of a cluster.

Source: Kafka documentation, "Authorization and ACLs"; KIP-290 (patterns): a DENY goes before any
ALLOW, of whatever pattern; docs/security.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from keylane.journal.openings import ALL as IC_ALL
from keylane.journal.openings import TRANSACTIONAL_ID_PREFIX
from keylane.offsets.records.journal import TOPIC_NAME as JOURNAL
from keylane.proxy.scans.records import TOPIC_NAME as SCANS
from keylane.proxy.topics.node_values import GROUP
from keylane.proxy.topics.settings_records import TOPIC_NAME as SETTINGS

TOPIC_TYPE, GROUP_TYPE, TRANSACTIONAL_TYPE = 2, 3, 5
LITERAL, PREFIXED = 3, 4
DENY, ALLOW = 2, 3
ANY_OPERATION, READ, WRITE, DELETE, ALTER, ALTER_CONFIGS = 2, 3, 4, 6, 7, 11
ALL_NAMES: Final = "*"
ALL_PRINCIPALS: Final = "User:*"
ALL_HOSTS: Final = "*"
SETTINGS_ID: Final = "keylane-settings"
OPERATION_NAMES: Final = {
    READ: "Read", WRITE: "Write", DELETE: "Delete", ALTER: "Alter", ALTER_CONFIGS: "AlterConfigs",
}  # fmt: skip
OPTIONS: Final = {
    TOPIC_TYPE: "--topic",
    GROUP_TYPE: "--group",
    TRANSACTIONAL_TYPE: "--transactional-id",
}


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
        """Whether an ACL is of it."""
        if acl.resource_type != self.resource_type:
            return False
        if acl.pattern_type == PREFIXED:
            return self.name.startswith(acl.name)
        return acl.pattern_type == LITERAL and acl.name in {self.name, ALL_NAMES}


TOPIC_OPERATIONS: Final = (WRITE, DELETE, ALTER, ALTER_CONFIGS)
OWN: Final = (
    Own(GROUP_TYPE, GROUP, (READ, DELETE)),
    *(Own(TOPIC_TYPE, name, TOPIC_OPERATIONS) for name in (JOURNAL, SETTINGS, SCANS)),
    *(
        Own(TRANSACTIONAL_TYPE, name, (WRITE,))
        for name in (SETTINGS_ID, IC_ALL, f"{TRANSACTIONAL_ID_PREFIX}0")
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
        """The command that ends it; of all principals the rule itself has to go."""
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
    """What others may do with keylane's own, in the order of `OWN`; each ACL once for each.

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
