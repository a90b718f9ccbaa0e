"""Requests of share groups without a rule: they pass as bytes, and their outcomes are counted."""

from __future__ import annotations

from typing import Any, cast

import pytest

from keylane.config.share_rules import ShareRule
from keylane.proxy.apis.share.plain_acks import COUNTED_BYTES_MAX
from keylane.proxy.share.groups import OrderedGroups
from keylane.proxy.share.kit import ShareKit
from tests.transcript.fake import PLAIN, FakeContext, is_relayed, make_request, serve

FETCH, ACKNOWLEDGE = 78, 79
DONE: dict[str, Any] = {"error_code": 0}


def wanted(*acks: tuple[int, int, list[int]], **more: Any) -> dict[str, Any]:
    """A request of one partition."""
    batches = [
        {"first_offset": first, "last_offset": last, "acknowledge_types": types}
        for first, last, types in acks
    ]
    entry = {"partition_index": 0, "acknowledgement_batches": batches}
    topics = [{"topic_id": PLAIN, "partitions": [entry]}]
    member = {"group_id": "g", "member_id": "m", "share_session_epoch": 3}
    return member | {"topics": topics, **more}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("api_key", [FETCH, ACKNOWLEDGE])
@pytest.mark.parametrize("has_rules", [False, True])
async def test_outcomes_are_counted_and_the_request_is_not_touched(
    api_key, version, has_rules
) -> None:
    """By type, with a rule for other groups or without any; byte for byte the same request."""
    context = FakeContext()
    if has_rules:
        rules = (ShareRule(group="other"),)
        context.ordered = OrderedGroups(cast("ShareKit", None), rules)
    asked = make_request(api_key, version, wanted((4, 9, [1]), (12, 14, [1, 2, 3])))
    context.expect(api_key, bytes(asked.body), DONE)

    await serve(context, asked)

    assert context.stats.share_acknowledgements == {"accept": 7, "release": 1, "reject": 1}


def test_a_request_that_cannot_be_read_passes() -> None:
    """The broker judges it: what keylane would like to count is no reason to refuse it."""
    context = FakeContext()
    whole = make_request(ACKNOWLEDGE, 2, wanted((4, 9, [1])))
    asked = make_request(ACKNOWLEDGE, 2, bytes(whole.body)[:-20])

    assert is_relayed(context, asked)
    assert not context.stats.share_acknowledgements


async def test_a_request_of_very_many_batches_passes_uncounted() -> None:
    """Its bytes are bounded by what may be read in the loop's own thread."""
    context = FakeContext()
    batches = [(2 * number, 2 * number, [1]) for number in range(COUNTED_BYTES_MAX // 18)]
    asked = make_request(ACKNOWLEDGE, 2, wanted(*batches))
    context.expect(ACKNOWLEDGE, bytes(asked.body), DONE)

    await serve(context, asked)

    assert not context.stats.share_acknowledgements
