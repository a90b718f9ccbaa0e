"""The Python consumer: records of any Kafka in the order of each key; through keylane also lanes.

Read, one record after the other:

    async with Consumer("orders", bootstrap_servers="keylane:19092", group_id="billing") as orders:
        async for record in orders:
            print(record.topic, record.partition, record.offset, record.key)

Work on many records at once, one of each key at a time:

    async with (
        Consumer("orders", bootstrap_servers="keylane:19092", group_id="billing") as orders,
        Workers(orders, handle, concurrency=64, retry=Retry(attempts=3)) as workers,
    ):
        await workers.run()  # until SIGTERM; then what is in progress ends, and is committed

Reading: `Consumer`, `RebalanceListener`, `TopicPartition`, `ConsumerRecord` and its `headers`,
`Records`, `Committed`, `KeyRange`. Options are the fields of `ConsumerSettings`.

Working: `Workers`, with `Retry` and `DeadLetters`; `ExactlyOnce`, whose handler returns `Output`s;
`ShareSource`, a share group in the place of a consumer. Options are those of `WorkerSettings`.

Errors: all are `KeylaneError`s. `error.retriable` says whether the same again may work;
`ConfigInvalid` names an option; `WorkFailed` ends a run of workers with the place of its record.

Units are in names: `_ms` milliseconds, `_s` seconds, `_bytes` bytes. Offsets of ranges are first
and last, both inclusive. Everything runs on one asyncio event loop, none of it is for threads.

docs/python.md leads from the installation to production. Names are loaded when they are first
used (PEP 562), so that an import of the package takes no time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from keylane.client.consumer import Consumer
    from keylane.client.errors import (
        AuthenticationFailed,
        BrokerRefused,
        ClusterUnreachable,
        ConsumerStopped,
        CoordinatorUnavailable,
        Disconnected,
        GroupDenied,
        GroupMissing,
        IndividualCommitNotAllowed,
        KeyRangesUnsupported,
        NotAssigned,
        OffsetMissing,
        OffsetOutOfRange,
        PartitionLost,
        RangeFetchNotAccepted,
        RangeFetchNotAllowed,
        RangesFull,
        RecordsCorrupt,
        RequestTimedOut,
        TopicDenied,
        TopicUnknown,
        VersionUnsupported,
    )
    from keylane.client.listener import RebalanceListener
    from keylane.client.raw_headers import headers
    from keylane.client.records import Records
    from keylane.client.settings import ConsumerSettings
    from keylane.client.values import Committed, ConsumerRecord, TopicPartition
    from keylane.client.workers.errors import HandlerInvalid, ProcessDied, WorkFailed, WorkTimedOut
    from keylane.client.workers.exactly_once import ExactlyOnce
    from keylane.client.workers.letters import DeadLetters
    from keylane.client.workers.retry import Retry
    from keylane.client.workers.run import Workers
    from keylane.client.workers.settings import WorkerSettings
    from keylane.client.workers.share_source import ShareSource
    from keylane.client.workers.transactions import Output
    from keylane.errors import ConfigInvalid, KeylaneError
    from keylane.keyrange.space import KeyRange

__all__ = (  # what is read, what is worked with, errors
    "AuthenticationFailed",
    "BrokerRefused",
    "ClusterUnreachable",
    "Committed",
    "ConfigInvalid",
    "Consumer",
    "ConsumerRecord",
    "ConsumerSettings",
    "ConsumerStopped",
    "CoordinatorUnavailable",
    "DeadLetters",
    "Disconnected",
    "ExactlyOnce",
    "GroupDenied",
    "GroupMissing",
    "HandlerInvalid",
    "IndividualCommitNotAllowed",
    "KeyRange",
    "KeyRangesUnsupported",
    "KeylaneError",
    "NotAssigned",
    "OffsetMissing",
    "OffsetOutOfRange",
    "Output",
    "PartitionLost",
    "ProcessDied",
    "RangeFetchNotAccepted",
    "RangeFetchNotAllowed",
    "RangesFull",
    "RebalanceListener",
    "Records",
    "RecordsCorrupt",
    "RequestTimedOut",
    "Retry",
    "ShareSource",
    "TopicDenied",
    "TopicPartition",
    "TopicUnknown",
    "VersionUnsupported",
    "WorkFailed",
    "WorkTimedOut",
    "WorkerSettings",
    "Workers",
    "headers",
)  # fmt: skip

_MODULES: Final = {
    "Committed": "keylane.client.values",
    "ConfigInvalid": "keylane.errors",
    "Consumer": "keylane.client.consumer",
    "ConsumerRecord": "keylane.client.values",
    "ConsumerSettings": "keylane.client.settings",
    "DeadLetters": "keylane.client.workers.letters",
    "ExactlyOnce": "keylane.client.workers.exactly_once",
    "HandlerInvalid": "keylane.client.workers.errors",
    "KeyRange": "keylane.keyrange.space",
    "KeylaneError": "keylane.errors",
    "Output": "keylane.client.workers.transactions",
    "ProcessDied": "keylane.client.workers.errors",
    "RebalanceListener": "keylane.client.listener",
    "Records": "keylane.client.records",
    "Retry": "keylane.client.workers.retry",
    "ShareSource": "keylane.client.workers.share_source",
    "TopicPartition": "keylane.client.values",
    "WorkFailed": "keylane.client.workers.errors",
    "WorkTimedOut": "keylane.client.workers.errors",
    "WorkerSettings": "keylane.client.workers.settings",
    "Workers": "keylane.client.workers.run",
    "headers": "keylane.client.raw_headers",
}
"""Other names are errors of the consumer."""
_ERRORS: Final = "keylane.client.errors"


if not TYPE_CHECKING:  # else a type checker would take any name for one that is there

    def __getattr__(name: str) -> Any:
        """Load a public name (PEP 562)."""
        from importlib import import_module  # noqa: PLC0415

        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(_MODULES.get(name, _ERRORS)), name)
        globals()[name] = found  # the next use does not come here
        return found


def __dir__() -> list[str]:
    """Public names and submodules that are loaded."""
    return sorted({*globals(), *__all__})
