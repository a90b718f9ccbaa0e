"""The Python consumer: reads lanes and ranges of keys through keylane, partitions of any Kafka.

`Consumer` is the entry. The names below are loaded when they are first used, so that an import of
the package takes no time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keylane.client.consumer import Consumer
    from keylane.client.listener import RebalanceListener
    from keylane.client.values import Committed, ConsumerRecord, TopicPartition

__all__ = ("Committed", "Consumer", "ConsumerRecord", "RebalanceListener", "TopicPartition")

_MODULES = {
    "Committed": "values",
    "Consumer": "consumer",
    "ConsumerRecord": "values",
    "RebalanceListener": "listener",
    "TopicPartition": "values",
}


def __getattr__(name: str) -> Any:
    """Load a public name (PEP 562)."""
    from importlib import import_module  # noqa: PLC0415

    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
