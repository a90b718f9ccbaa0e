"""Requests that wait behind the one that is served."""

from __future__ import annotations

import pytest

from keylane.proxy.net.backlog import Backlog
from keylane.wire.header import ApiKey, write_request


def frame(api_key: int) -> bytes:
    return write_request(api_key, 4, 1, "c", b"")


@pytest.mark.parametrize(
    ("keys", "has_other"),
    [
        ((), False),
        ((ApiKey.FETCH, ApiKey.FETCH), False),
        ((ApiKey.LIST_OFFSETS,), True),
        ((ApiKey.FETCH, ApiKey.METADATA), True),
    ],
)
def test_only_other_requests_than_fetches_hurry_a_fetch(keys, has_other) -> None:
    """Two fetches on their way would end each other's wait again and again."""
    backlog = Backlog(frame(key) for key in keys)

    assert backlog.has_other_than_fetch is has_other


def test_a_frame_that_is_cut_off_is_no_fetch() -> None:
    """What is not even a header closes the connection when its turn comes."""
    assert Backlog([b"\x00\x00\x00\x01\x00"]).has_other_than_fetch
