"""Errors of the advice: what is in its way, and the cure, in one line."""

from __future__ import annotations

from typing import Final

from keylane.client import errors as e
from keylane.errors import GroupDenied, KeylaneError

ACLS: Final = "kafka-acls --bootstrap-server HOST:PORT --add --allow-principal User:NAME"


class AdviceFailed(KeylaneError):
    """No advice can be given; the text says why, and what to do."""


class NothingToRead(AdviceFailed):
    """The topic has no record in what is looked at."""


def with_cure(error: KeylaneError, *, topic: str, group: str | None) -> AdviceFailed:
    """Return the error as one line that ends in what to do."""
    if isinstance(error, AdviceFailed):
        return error
    cures: dict[type[KeylaneError], str] = {
        e.ClusterUnreachable: "check --bootstrap; brokers with TLS or a login need --config",
        e.AuthenticationFailed: "check the login_* keys of --config and the password",
        e.TopicUnknown: "check the name: kafka-topics --list prints those that there are",
        e.TopicDenied: f"allow it: {ACLS} --operation Read --topic {topic}",
        GroupDenied: f"allow it: {ACLS} --operation Describe --group {group}, or omit --group",
        e.Disconnected: "the broker is away or does not answer: try again when it is back",
        e.CoordinatorUnavailable: "the brokers have no coordinator for the group yet: try again",
        e.RecordsCorrupt: "lanes would stop there, too: read it with kafka-dump-log",
    }
    cure = next((text for kind, text in cures.items() if isinstance(error, kind)), None)
    text = " ".join(str(error).split())
    return AdviceFailed(text if cure is None else f"{text}; {cure}")
