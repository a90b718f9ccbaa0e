"""Every error keylane raises on purpose, with the Kafka code a client is answered with.

Source: Kafka protocol guide, "Error Codes".
"""

from __future__ import annotations

from errno import ECONNREFUSED
from typing import ClassVar


class KeylaneError(Exception):
    """Root of all errors that keylane raises on purpose; its text is fit to show a user."""

    error_code: ClassVar[int] = -1
    """Kafka error code that a client is answered with (-1 is UNKNOWN_SERVER_ERROR)."""
    retriable: ClassVar[bool] = False
    """True: doing the same again may work."""


class ConfigInvalid(KeylaneError):
    """The configuration cannot be used; the text names the key. The operator's fault."""

    error_code = 40  # INVALID_CONFIG


class PackageMissing(KeylaneError):
    """A command needs a package that belongs to an extra; the text names what to install."""


class FrameInvalid(KeylaneError):
    """Bytes from downstream are not a Kafka request; the connection is closed."""

    error_code = 42  # INVALID_REQUEST


class BatchCorrupt(KeylaneError):
    """Bytes from upstream are not a valid v2 batch. Upstream's fault, worth a retry."""

    error_code = 2  # CORRUPT_MESSAGE
    retriable = True

    def __init__(self, reason: str, *, position: int) -> None:
        super().__init__(f"corrupt batch at byte {position}: {reason}")
        self.reason, self.position = reason, position


class BatchUnsupported(BatchCorrupt):
    """A batch that is intact but that keylane cannot split: magic 0 or 1, or too large."""

    error_code = 43  # UNSUPPORTED_FOR_MESSAGE_FORMAT
    retriable = False

    def __init__(self, reason: str, *, position: int, plain_bytes: int = 0) -> None:
        """plain_bytes: what the batch declares to become, 0 where it declares nothing."""
        super().__init__(reason, position=position)
        self.plain_bytes = plain_bytes


class UpstreamLost(KeylaneError):
    """A broker closed the connection, could not be reached, or answered nonsense."""

    error_code = 13  # NETWORK_EXCEPTION
    retriable = True


class AnswerTooLarge(UpstreamLost):
    """A broker's answer has more bytes than there is room for; none of them was taken."""

    retriable = False

    def __init__(self, size_bytes: int) -> None:
        super().__init__(f"an answer of {size_bytes} bytes")
        self.size_bytes = size_bytes


class BrokerUnreachable(UpstreamLost):
    """No connection to a broker can be made: it is away, or does not show a good certificate."""


class TopicNotReady(UpstreamLost):
    """A broker knows a topic without its details: it was made, or lost its leader, just now.

    `topic_error_code` is Kafka's code for the topic.
    """

    def __init__(self, text: str, *, topic_error_code: int) -> None:
        super().__init__(text)
        self.topic_error_code = topic_error_code


class LoginRefused(UpstreamLost):
    """A broker does not let keylane itself in, or its secret cannot be read; never holds it."""

    error_code = 58  # SASL_AUTHENTICATION_FAILED
    retriable = False


class RightMissing(UpstreamLost):
    """Brokers do not let keylane itself do what it has to; what lacks is named. May be granted."""


class ShareRefused(UpstreamLost):
    """Brokers do not serve keylane's own share session; what lacks is named. May be granted."""

    error_code = 30  # GROUP_AUTHORIZATION_FAILED
    retriable = False


class NotCoordinator(KeylaneError):
    """Another node serves the group's offsets, or is about to; the client looks for it anew."""

    error_code = 16  # NOT_COORDINATOR
    retriable = True


class GroupBusy(NotCoordinator):
    """The group's offsets are not free, or not loaded, in time; the client asks again."""

    error_code = 14  # COORDINATOR_LOAD_IN_PROGRESS


class GroupDenied(KeylaneError):
    """The broker does not let the client's own principal do this with the group."""

    error_code = 30  # GROUP_AUTHORIZATION_FAILED


class ActionRefused(KeylaneError):
    """An action of an operator that cannot be done now, and has changed nothing; says why."""

    error_code = 42  # INVALID_REQUEST


class ActionInvalid(KeylaneError):
    """An action of an operator that makes no sense; `field` names the place in its body."""

    error_code = 42  # INVALID_REQUEST

    def __init__(self, reason: str, *, field: str = "") -> None:
        super().__init__(reason)
        self.field = field


class ActionUnknown(UpstreamLost):
    """Kafka may have taken what an operator asked for, or may yet; it can be read again."""


class PatternUnreadable(KeylaneError):
    """A subscribed pattern cannot be compared with topics at a cost that is bounded."""

    error_code = 128  # INVALID_REGULAR_EXPRESSION


class JournalInvalid(KeylaneError):
    """A record of the individual commit journal cannot be read; the text says where."""

    error_code = 56  # KAFKA_STORAGE_ERROR


class KafkaUnavailable(KeylaneError):
    """The embedded Kafka cannot be resolved or started; the text says why, with its log."""


class SparkUnavailable(KeylaneError):
    """Spark cannot be started: pyspark, Java or the Kafka jars are missing; the text says which."""


class JobFailed(KeylaneError):
    """A Spark job failed after it had started; the text is Spark's own first line."""


class StorageFailed(KeylaneError):
    """A file system of Spark's fails or refuses; the text names the file and the cause."""


class AssignmentInvalid(KeylaneError):
    """A standalone assignment breaks a bound; the text names client, topic and partition."""

    error_code = 42  # INVALID_REQUEST

    def __init__(
        self,
        reason: str,
        *,
        client_id: str | None = None,
        topic: str | None = None,
        partition: int | None = None,
    ) -> None:
        named = (("client", client_id), ("topic", topic), ("partition", partition))
        place = " ".join(f"{name} {value!r}" for name, value in named if value is not None)
        super().__init__(f"{place}: {reason}" if place else reason)
        self.client_id, self.topic, self.partition = client_id, topic, partition


class RangesOverlap(KeylaneError):
    """Two clients would read the same keys of one partition."""

    error_code = 42  # INVALID_REQUEST

    def __init__(
        self,
        *,
        client_id: str,
        key_range: tuple[int, int],
        other_client_id: str,
        other_range: tuple[int, int],
        topic: str,
        partition: int,
    ) -> None:
        super().__init__(
            f"topic {topic} partition {partition}: [{key_range[0]}, {key_range[1]}] of client"
            f" {client_id!r} overlaps [{other_range[0]}, {other_range[1]}] of client"
            f" {other_client_id!r}"
        )
        self.client_id, self.key_range = client_id, key_range
        self.other_client_id, self.other_range = other_client_id, other_range
        self.topic, self.partition = topic, partition


class AuditUnwritten(KeylaneError):
    """Reports of processed records are not in the audit topic; do not commit these records."""

    error_code = 7  # REQUEST_TIMED_OUT
    retriable = True


class SettingsInvalid(KeylaneError):
    """A record of the settings topic cannot be read; the text says what of it."""

    error_code = 56  # KAFKA_STORAGE_ERROR


class ScansInvalid(KeylaneError):
    """A record of the scans topic cannot be read; the text says what of it."""

    error_code = 56  # KAFKA_STORAGE_ERROR


class NodeInvalid(KeylaneError):
    """A message of a node about itself cannot be read; the text names its member id."""

    error_code = 56  # KAFKA_STORAGE_ERROR


class SettingsUnsaved(KeylaneError):
    """A change of the settings was not acknowledged by Kafka."""

    error_code = 13  # NETWORK_EXCEPTION
    retriable = True

    def __init__(self, reason: str, *, is_unknown: bool) -> None:
        outcome = "whether it was written is not known" if is_unknown else "nothing has changed"
        super().__init__(f"{reason}; {outcome}")
        self.is_unknown = is_unknown


class ControlRefused(KeylaneError):
    """A control port refused a request, or gave no answer; the text is its answer, or the cause."""

    error_code = 42  # INVALID_REQUEST


def reason_of(error: OSError | ValueError) -> str:
    """Return what was wrong, without number and path: the caller names the place, once."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    if isinstance(error, ConnectionRefusedError) or f"[Errno {ECONNREFUSED}]" in text:
        return "connection refused"  # asyncio lists the addresses of a name
    # asyncio repeats the address: "error while attempting to bind on address (...): in use".
    return text.rpartition("): ")[2] if text.startswith("error while attempting") else text
