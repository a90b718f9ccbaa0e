"""A node that lacks a right does not start, and says which."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from keylane.errors import ConfigInvalid, LoginRefused, UpstreamLost
from keylane.proxy.startup.node_rights import expect_rights

READ, WRITE, DESCRIBE = 1 << 3, 1 << 4, 1 << 8
ALL = READ | WRITE | DESCRIBE


class Brokers:
    """Implements `Brokers`: what a principal may do."""

    def __init__(self, journal: int = ALL, scans: int = ALL) -> None:
        self.operations = {"__individual_commit_offsets": journal, "__keylane_scans": scans}
        self.found = self.given = self.reported = ErrorCode.none
        self.loss: UpstreamLost | None = None
        self.ids: list[str] = []

    async def request(self, entity: Any) -> Any:
        if hasattr(entity, "key"):
            return SimpleNamespace(error_code=self.found, node_id=1, host="b", port=1)
        topics = [
            SimpleNamespace(
                name=topic.name,
                error_code=self.reported,
                topic_authorized_operations=self.operations[topic.name],
            )
            for topic in entity.topics
        ]
        return SimpleNamespace(topics=topics)

    async def ask_broker(self, node_id: int, entity: Any) -> Any:
        if self.loss is not None:
            raise self.loss
        self.ids.append(entity.transactional_id)
        return SimpleNamespace(error_code=self.given, producer_id=1, producer_epoch=0)

    async def learn_brokers(self, brokers: Any) -> None:
        pass


async def test_a_login_with_all_rights_starts() -> None:
    """The probe is an id that no node writes with; a right that is not named counts as granted."""
    brokers = Brokers(journal=-(2**31))

    await expect_rights(brokers)

    assert brokers.ids == ["keylane-ic-probe"]


@pytest.mark.parametrize(
    ("rights", "lacking"),
    [
        ({"journal": READ | DESCRIBE}, r"WRITE on the topic __individual_commit_offsets"),
        ({"journal": DESCRIBE}, r"READ and WRITE on the topic __individual_commit_offsets"),
        ({"scans": WRITE}, r"READ on the topic __keylane_scans"),
    ],
)
async def test_a_topic_that_may_not_be_used(rights: dict[str, int], lacking: str) -> None:
    """Operation and topic are named."""
    with pytest.raises(ConfigInvalid, match=lacking):
        await expect_rights(Brokers(**rights))


@pytest.mark.parametrize("is_found", [False, True])
async def test_ids_that_may_not_be_written_with(is_found: bool) -> None:
    """Refused with DESCRIBE missing, or with WRITE."""
    brokers, refused = Brokers(), ErrorCode.transactional_id_authorization_failed
    brokers.found, brokers.given = (ErrorCode.none, refused) if is_found else (refused, refused)

    with pytest.raises(
        ConfigInvalid, match="WRITE on transactional ids with the prefix keylane-ic-"
    ):
        await expect_rights(brokers)


async def test_a_topic_that_may_not_even_be_seen() -> None:
    """Brokers name no operations then, only the refusal."""
    brokers = Brokers(journal=-(2**31))
    brokers.reported = ErrorCode.topic_authorization_failed

    with pytest.raises(ConfigInvalid, match="READ and WRITE on the topic __individual_commit"):
        await expect_rights(brokers)


@pytest.mark.parametrize("is_away", [False, True])
async def test_a_broker_that_fails_otherwise_is_no_missing_right(is_away: bool, caplog) -> None:
    """A coordinator that is about to move does not end a start; a line reports it."""
    brokers = Brokers()
    brokers.given = ErrorCode.invalid_transaction_timeout
    brokers.loss = UpstreamLost("b:1: connection refused") if is_away else None

    await expect_rights(brokers)

    (reported,) = [each.getMessage() for each in caplog.records]
    assert ("connection refused" if is_away else "invalid_transaction_timeout") in reported


async def test_a_login_that_is_refused_is_reported() -> None:
    """It will not be taken later either."""
    brokers = Brokers()
    brokers.loss = LoginRefused("b:1: wrong password")

    with pytest.raises(LoginRefused, match="wrong password"):
        await expect_rights(brokers)
