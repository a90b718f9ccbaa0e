"""Headers as they stand in a batch, and those of dead letters."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.client.raw_headers import read_headers, write_headers
from keylane.client.workers.letters import DeadLetters, letter_headers
from keylane.errors import ConfigInvalid
from tests.reference.worker_source import P0, make_record


@given(st.lists(st.tuples(st.text(max_size=80), st.none() | st.binary(max_size=300))))
def test_headers_come_back(headers):
    """Reading undoes writing."""
    assert read_headers(write_headers(headers)) == headers


def test_bytes_of_headers():
    """A record with one header has the bytes of the protocol guide."""
    assert write_headers([("a", b"bc"), ("d", None)]) == b"\x04\x02a\x04bc\x02d\x01"
    assert read_headers(b"") == read_headers(b"\x00") == []


def test_headers_that_are_cut_off():
    """Bytes that end early are an error."""
    with pytest.raises(IndexError):
        read_headers(b"\x02\x02a")


def test_letter_keeps_the_headers_of_its_record():
    """The record's own headers come first; the message is bounded."""
    record = make_record(P0, 7, b"ada", headers=write_headers([("trace", b"x")]))

    headers = letter_headers(record, None, 3, ValueError("y" * 5_000))

    assert headers[0] == ("trace", b"x")
    assert dict(headers)["__dlq.errors.group"] == b""
    assert len(dict(headers)["__dlq.errors.message"] or b"") == 1_000


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("of the application's own")


@pytest.mark.parametrize(
    ("error", "message"),
    [(ValueError("user \ud83d"), b"ValueError: user ?"), (Mute(), b"Mute: no text, ValueError")],
)
def test_a_letter_takes_any_text(error, message):
    """Half of a pair of surrogates, from broken JSON, or no text at all: its key goes on."""
    headers = dict(letter_headers(make_record(P0, 7, b"ada"), None, 1, error))

    assert (headers["__dlq.errors.message"] or b"").startswith(message)


async def test_letter_by_an_aiokafka_producer():
    """A producer is awaited until brokers have the letter."""
    sent: list[Any] = []

    async def send_and_wait(topic: str, value: Any, *, key: Any, headers: Any) -> None:
        sent.append((topic, key, value, dict(headers)["__dlq.errors.offset"]))

    producer: Any = SimpleNamespace(send_and_wait=send_and_wait)
    record = make_record(P0, 7, b"ada", b"v")

    await DeadLetters("dead", producer).write(record, "billing", 1, OSError())

    assert sent == [("dead", b"ada", b"v", b"7")]


def test_letters_out_of_bounds():
    """An empty topic, and what is neither a callable nor a producer, are refused."""
    sender: Any = object()
    with pytest.raises(ConfigInvalid, match="topic"):
        DeadLetters("", sender)
    with pytest.raises(ConfigInvalid, match="send"):
        DeadLetters("dead", sender)
