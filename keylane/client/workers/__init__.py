"""Workers over a consumer: many records at once, in the order of each key.

`Workers` is the entry: the same handler runs over lanes, over plain Kafka (both by `Consumer`), or
over a share group (by `ShareSource`).
"""

from keylane.client.workers.errors import HandlerInvalid, ProcessDied, WorkFailed, WorkTimedOut
from keylane.client.workers.exactly_once import ExactlyOnce
from keylane.client.workers.letters import DeadLetters
from keylane.client.workers.retry import Retry
from keylane.client.workers.run import Workers
from keylane.client.workers.settings import WorkerOptions, WorkerSettings
from keylane.client.workers.share_source import ShareSource
from keylane.client.workers.source import Source
from keylane.client.workers.transactions import Output

__all__ = [
    "DeadLetters",
    "ExactlyOnce",
    "HandlerInvalid",
    "Output",
    "ProcessDied",
    "Retry",
    "ShareSource",
    "Source",
    "WorkFailed",
    "WorkTimedOut",
    "WorkerOptions",
    "WorkerSettings",
    "Workers",
]
