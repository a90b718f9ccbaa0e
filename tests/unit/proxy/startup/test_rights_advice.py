"""proxy/startup/rights_advice.py: what brokers are asked, and what the log says."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from keylane.config.security import SecurityConfig
from keylane.errors import UpstreamLost
from keylane.proxy.startup.rights_advice import (
    ALLOW,
    DENY,
    LITERAL,
    NAMED_MAX,
    OWN,
    PREFIXED,
    READ,
    WRITE,
    advise,
    own_principals,
)

OWN_NAME = "User:keylane"


class Brokers:
    """Answers with the ACLs that were given, whatever it is asked."""

    def __init__(self, *acls: tuple[int, str, int, str, int, int], code: int = 0) -> None:
        self.acls, self.code = acls, ErrorCode(code)
        self.asked: list[Any] = []

    async def request(self, entity: Any) -> Any:
        self.asked.append(entity)
        resources = [
            SimpleNamespace(
                resource_type=kind,
                resource_name=name,
                pattern_type=pattern,
                acls=[
                    SimpleNamespace(
                        principal=client, host="*", operation=operation, permission_type=permission
                    )
                ],
            )
            for kind, name, pattern, client, operation, permission in self.acls
        ]
        return SimpleNamespace(error_code=self.code, resources=resources)


def lines(caplog: Any, level: int) -> list[str]:
    own = [record for record in caplog.records if record.name == "keylane.security"]
    return [record.getMessage() for record in own if record.levelno == level]


async def test_others_that_may_are_named_with_what_to_run(caplog) -> None:
    """One line for all of them; keylane itself, and denied principals, are not in it."""
    caplog.set_level(logging.INFO)
    brokers = Brokers(
        (3, "*", LITERAL, "User:alice", READ, ALLOW),
        (2, "__", PREFIXED, "User:bob", WRITE, ALLOW),
        (3, "__keylane_nodes", LITERAL, OWN_NAME, READ, ALLOW),
        (3, "*", LITERAL, "User:carol", READ, ALLOW),
        (3, "__keylane_nodes", LITERAL, "User:carol", READ, DENY),
        (5, "*", LITERAL, "User:*", WRITE, ALLOW),
    )

    await advise(brokers.request, {OWN_NAME})

    (reported,) = lines(caplog, logging.WARNING)
    deny = "kafka-acls --add --deny-principal 'User:alice' --operation Read --group __keylane_nodes"
    assert f"User:alice has Read on __keylane_nodes by the pattern *: {deny}" in reported
    assert "User:bob has Write on __keylane_settings by the pattern __*" in reported
    assert "kafka-acls --remove --allow-principal 'User:*' --transactional-id '*'" in reported
    assert "carol" not in reported and OWN_NAME not in reported
    assert len(lines(caplog, logging.INFO)) == 3
    assert [entity.resource_name_filter for entity in brokers.asked] == [own.name for own in OWN]


async def test_where_no_other_may_the_advice_remains(caplog) -> None:
    """A line for each kind of right, and one that all is as it should be."""
    caplog.set_level(logging.INFO)

    await advise(Brokers().request, {OWN_NAME})

    assert not lines(caplog, logging.WARNING)
    *advice, verdict = lines(caplog, logging.INFO)
    assert len(advice) == 3 and verdict == "the ACLs give none of these rights to others"


@pytest.mark.parametrize(
    ("code", "count", "text"),
    [(54, 1, "no authorizer"), (31, 4, "may not ask"), (35, 4, "may not ask")],
)
async def test_rights_that_cannot_be_listed(caplog, code: int, count: int, text: str) -> None:
    """One line says so, at INFO."""
    caplog.set_level(logging.INFO)

    await advise(Brokers(code=code).request, ())

    reported = lines(caplog, logging.INFO)
    assert len(reported) == count and text in reported[0] and not lines(caplog, logging.WARNING)


async def test_a_broker_that_is_gone_ends_nothing(caplog) -> None:
    """The node goes on."""
    caplog.set_level(logging.INFO)

    class Gone(Brokers):
        async def request(self, entity: Any) -> Any:
            raise UpstreamLost("gone")

    await advise(Gone().request, ())

    assert "reason=gone" in lines(caplog, logging.INFO)[0]


async def test_so_many_are_named_and_no_more(caplog) -> None:
    """The others are counted."""
    acls = [(3, "*", LITERAL, f"User:u{n}", READ, ALLOW) for n in range(NAMED_MAX + 5)]

    await advise(Brokers(*acls).request, {OWN_NAME})

    (reported,) = lines(caplog, logging.WARNING)
    assert reported.count("deny-principal") == NAMED_MAX and "and 5 more" in reported


def test_principals_of_keylane() -> None:
    """Its user name is one; a token or a certificate does not say."""
    config = SecurityConfig(login_mechanism="PLAIN", login_username="keylane")

    assert own_principals(config) == {OWN_NAME}
    assert own_principals(SecurityConfig()) == frozenset()
