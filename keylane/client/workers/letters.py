"""Dead letters: records whose work has failed for good, in a topic, with the reason in headers.

Source: KIP-1191 (names of headers). keylane's ordered share groups write the same ones.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from keylane.client.raw_headers import Headers, read_headers
from keylane.client.values import ConsumerRecord
from keylane.errors import ConfigInvalid

HEADER: Final = "__dlq.errors."
MESSAGE_CHARACTERS_MAX: Final = 1_000

Send = Callable[[str, bytes | None, bytes | None, Headers], Awaitable[Any]]
"""(topic, key, value, headers); the letter is written when it has been awaited."""


class LetterProducer(Protocol):
    """The part of aiokafka's producer that is used."""

    async def send_and_wait(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Any = None,
    ) -> Any:
        """Write a record, and wait until the brokers have it."""


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The topic for records whose attempts are over; the record is done when its letter is written.

    A letter has the record's key, value and headers, and headers with the reason. While letters
    cannot be written, their keys wait, and a warning says so. After a crash one may be there twice.
    """

    topic: str
    send: Send | LetterProducer
    """A callable (topic, key, value, headers) to await, or an aiokafka producer that is started."""

    def __post_init__(self) -> None:
        """Raises: ConfigInvalid."""
        if not self.topic:
            raise ConfigInvalid("dead_letters.topic: it is empty")
        if not callable(self.send) and not hasattr(self.send, "send_and_wait"):
            raise ConfigInvalid("dead_letters.send: neither a callable nor a producer")

    async def write(
        self, record: ConsumerRecord, group: str | None, attempts: int, error: Exception
    ) -> None:
        """Write the letter of a record. Raises what the sender raises."""
        headers = letter_headers(record, group, attempts, error)
        if callable(self.send):
            await self.send(self.topic, record.key, record.value, headers)
        else:
            await self.send.send_and_wait(self.topic, record.value, key=record.key, headers=headers)


def letter_headers(
    record: ConsumerRecord, group: str | None, attempts: int, error: Exception
) -> list[tuple[str, bytes | None]]:
    """Return the record's headers and those of the letter.

    The message has the error's type and text: whatever the text shows is in the topic, next to the
    record itself.
    """
    text = f"{type(error).__qualname__}: {_text_of(error)}"[:MESSAGE_CHARACTERS_MAX]
    values = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "group": group or "",
        "delivery.count": attempts,
        "message": text,
    }
    own = [(HEADER + name, str(value).encode(errors="replace")) for name, value in values.items()]
    return [*read_headers(record.raw_headers), *own]


def _text_of(error: Exception) -> str:
    """Return the error's text: a letter is written whatever its class makes of it."""
    try:
        return str(error)
    except Exception as cause:  # noqa: BLE001 - the handler's own class
        return f"no text, {type(cause).__qualname__} in __str__"
