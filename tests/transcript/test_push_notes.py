"""Notes beside pushes that count on what was scanned."""

from __future__ import annotations

import numpy as np

from tests.transcript.fake import ORDERS, FakeContext
from tests.transcript.test_offset_commit import COMMIT, codes, commit, no_history, topic


def note_at(position: int, said: str = "") -> str:
    """Beside a push that a scan has led on to."""
    return f'{{"keylane":1,"topic":"{ORDERS.hex}","at":{position},"lanes":[]{said}}}\0'


async def scanned_to_100(context: FakeContext) -> None:
    """Lane 0 has its last record at 30, the others have none."""
    no_history(context, 0)
    lasts = np.array([30, -1, -1, -1], np.int64)
    context.groups.scan(context.lanes("orders"), 0).add(0, 100, lasts)


async def test_a_push_beyond_what_members_said_has_a_note() -> None:
    """The journal may not come to know of it: then the next node does by its metadata.

    What the member said stands there too: 31 for lane 0 of 4, 69 below the push.
    """
    context = FakeContext()
    await scanned_to_100(context)
    said = ',"said":[[4,0,-69,-1,"m"]]'
    pushed = {"committed_offset": 100, "committed_metadata": note_at(100, said)}
    context.expect(
        COMMIT,
        {"topics": [{"name": "orders", "partitions": [pushed]}]},
        {"topics": [codes(8, {0: 0})]},
    )

    assert set((await commit(context, 8, topic("orders", {0: 31}))).values()) == {0}


async def test_brokers_that_take_no_metadata_get_no_notes() -> None:
    """`offset.metadata.max.bytes` is lower than notes are long: the client commits again.

    First what members said is left out, as it may be that alone which is too long.
    """
    context = FakeContext()
    await scanned_to_100(context)
    context.expect(COMMIT, None, {"topics": [codes(8, {0: 12}), codes(8, {0: 0}, "plain")]})
    entries = topic("orders", {0: 31}), topic("plain", {0: 1})
    assert await commit(context, 8, *entries) == {("orders", 0): 14, ("plain", 0): 0}
    for metadata, code, answered in ((note_at(100), 12, 14), ("", 0, 0)):
        no_history(context, 0)
        pushed = {"committed_offset": 100, "committed_metadata": metadata}
        context.expect(
            COMMIT,
            {"topics": [{"name": "orders", "partitions": [pushed]}]},
            {"topics": [codes(8, {0: code})]},
        )

        assert await commit(context, 8, topic("orders", {0: 31})) == {("orders", 0): answered}
