"""Errors of the workers; each names the place of its record and never what the record holds."""

from __future__ import annotations

from keylane.client.values import ConsumerRecord
from keylane.errors import KeylaneError


def place_of(record: ConsumerRecord) -> str:
    """Return the place of a record, for texts."""
    return f"topic={record.topic} partition={record.partition} offset={record.offset}"


class WorkFailed(KeylaneError):
    """A record's work has failed for good, and there is no topic for dead letters.

    The record is not done, so the group's committed offset stays at it or below. `__cause__` is
    what the handler raised last.
    """

    def __init__(self, record: ConsumerRecord, attempts: int) -> None:
        super().__init__(f"the work has failed attempts={attempts} {place_of(record)}")
        self.topic: str = record.topic
        self.partition: int = record.partition
        self.offset: int = record.offset
        self.attempts: int = attempts


class WorkTimedOut(KeylaneError):
    """An attempt took longer than `timeout_s`; one more may be in time."""

    retriable = True

    def __init__(self, record: ConsumerRecord, timeout_s: float) -> None:
        super().__init__(f"the work took longer than {timeout_s:g} s {place_of(record)}")


class ProcessDied(KeylaneError):
    """The process that worked on the record has ended: killed, out of memory, or by a fault."""

    retriable = True

    def __init__(self, record: ConsumerRecord, exit_code: int | None) -> None:
        super().__init__(f"the process has died exit_code={exit_code} {place_of(record)}")
        self.exit_code: int | None = exit_code


class HandlerInvalid(KeylaneError):
    """The handler cannot be run by the chosen executor; the text says why."""

    error_code = 40  # INVALID_CONFIG
