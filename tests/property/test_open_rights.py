"""Rights of others on keylane's own: as a naive authorizer would give them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from keylane.proxy.startup.rights_advice import (
    ALLOW,
    ALTER,
    ANY_OPERATION,
    DELETE,
    DENY,
    GROUP_TYPE,
    LITERAL,
    OWN,
    PREFIXED,
    READ,
    TOPIC_TYPE,
    TRANSACTIONAL_TYPE,
    WRITE,
    Acl,
    find_open_rights,
)

KEYLANE, ALICE, BOB, ALL = "User:keylane", "User:alice", "User:bob", "User:*"
NAMES = sorted(
    {own.name for own in OWN}
    | {"*", "orders", "__", "__keylane", "keylane-ic-", "__keylane_nodesX"}
)
ACLS = st.builds(
    Acl,
    resource_type=st.sampled_from([TOPIC_TYPE, GROUP_TYPE, TRANSACTIONAL_TYPE]),
    name=st.sampled_from(NAMES),
    pattern_type=st.sampled_from([LITERAL, PREFIXED]),
    principal=st.sampled_from([KEYLANE, ALICE, BOB, ALL]),
    host=st.sampled_from(["*", "10.0.0.1"]),
    operation=st.sampled_from([ANY_OPERATION, READ, WRITE, DELETE, ALTER, 8]),
    permission=st.sampled_from([DENY, ALLOW]),
)


def covers(acl: Acl, kind: int, name: str, principal: str, host: str, operation: int) -> bool:
    """Whether an ACL speaks of one request, as Kafka's documentation has it."""
    by_name = acl.name in (name, "*") if acl.pattern_type == LITERAL else name.startswith(acl.name)
    return (
        acl.resource_type == kind
        and by_name
        and acl.principal in (principal, ALL)
        and acl.host in (host, "*")
        and acl.operation in (operation, ANY_OPERATION)
    )


def may(acls: list[Acl], kind: int, name: str, principal: str, host: str, operation: int) -> bool:
    """A naive authorizer."""
    speaking = [acl for acl in acls if covers(acl, kind, name, principal, host, operation)]
    return any(acl.permission == ALLOW for acl in speaking) and not any(
        acl.permission == DENY for acl in speaking
    )


@given(acls=st.lists(ACLS, max_size=12))
def test_principals_that_may_are_named_and_others_are_not(acls: list[Acl]) -> None:
    """Each right of a user from a host, by the very rule that gives it, or by that of all users."""
    found = find_open_rights(acls, principals={KEYLANE})

    named = {
        (right.own.resource_type, right.own.name, right.acl.principal, right.acl.host, operation)
        for right in found
        for operation in right.operations
    }
    for own in OWN:
        for operation in own.operations:
            for principal in (ALICE, BOB):
                for host in ("10.0.0.1", "10.0.0.2"):
                    request = (own.resource_type, own.name, principal, host, operation)
                    shown = any(
                        (own.resource_type, own.name, client, where, operation) in named
                        for client in (principal, ALL)
                        for where in (host, "*")
                    )
                    if may(acls, *request):
                        assert shown, request
    assert not any(right.acl.principal == KEYLANE for right in found)
    for right in found:
        # By a principal without a rule that denies it: the user, or any other one.
        client = right.acl.principal if right.acl.principal != ALL else "User:somebody"
        where = right.acl.host if right.acl.host != "*" else "10.9.9.9"
        for operation in right.operations:
            assert may(acls, right.own.resource_type, right.own.name, client, where, operation)


@given(acls=st.lists(ACLS, max_size=12), more=ACLS)
def test_a_deny_opens_nothing_and_an_allow_closes_nothing(acls: list[Acl], more: Acl) -> None:
    """What is found grows with ALLOWs and shrinks with DENYs."""

    def rights(of: list[Acl]) -> set[tuple[object, ...]]:
        found = find_open_rights(of, principals={KEYLANE})
        return {(one.own, one.acl, operation) for one in found for operation in one.operations}

    before, after = rights(acls), rights([*acls, more])

    assert before <= after if more.permission == ALLOW else after <= before
