"""keylane/errors.py: every error has a Kafka code that clients know, and says where."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from keylane import errors
from keylane.errors import BatchCorrupt, BatchUnsupported, KeylaneError, reason_of

KINDS: list[type[KeylaneError]] = [kind for kind in vars(errors).values() if isinstance(kind, type)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_code_is_one_of_kafkas(kind: type[KeylaneError]) -> None:
    """Each class is a KeylaneError whose code Kafka's own table knows."""
    assert issubclass(kind, KeylaneError)
    assert ErrorCode(kind.error_code)


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.retriable], ids=lambda kind: kind.__name__
)
def test_what_we_call_retriable_is_so_for_kafka(kind: type[KeylaneError]) -> None:
    """A client retries on a retriable code only, so ours must agree with Kafka's."""
    assert ErrorCode(kind.error_code).retriable


def test_corrupt_batch_says_where() -> None:
    """The text holds the byte position and the reason; both can be read from the error too."""
    error = BatchCorrupt("crc 1, expected 2", position=61)

    assert str(error) == "corrupt batch at byte 61: crc 1, expected 2"
    assert (error.reason, error.position) == ("crc 1, expected 2", 61)


def test_unsupported_batch_is_not_retried() -> None:
    """An intact batch that cannot be split stays so: unlike a corrupt one it is final."""
    error = BatchUnsupported("magic 1", position=0)

    assert isinstance(error, BatchCorrupt)
    assert not error.retriable


def test_the_reason_of_a_file_leaves_the_path_out() -> None:
    """The caller names it, once."""
    with pytest.raises(OSError, match="No such file") as refused:
        Path("/no/such/file").read_text()

    assert reason_of(refused.value) == "No such file or directory"


def test_the_reason_of_a_port_leaves_the_address_out() -> None:
    """As asyncio words it, of one address and of many."""
    bound = OSError(98, "error while attempting to bind on address ('::1', 1): address in use")
    both = OSError("Multiple exceptions: [Errno 111] Connect call failed, [Errno 111] Connect")

    assert reason_of(bound) == "address in use"
    assert reason_of(both) == "connection refused"
    with pytest.raises(ConnectionRefusedError) as refused:
        socket.create_connection(("127.0.0.1", 1))
    assert reason_of(refused.value) == "connection refused"


def test_another_error_has_its_text() -> None:
    """One that has no words of a system."""
    assert reason_of(ValueError("embedded null byte")) == "embedded null byte"
