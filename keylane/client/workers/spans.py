"""OpenTelemetry: a span per record, below the producer's span that its headers name.

Source: OpenTelemetry semantic conventions for messaging with Kafka; W3C Trace Context. Without the
package, or without a tracer provider, there are no spans and they cost nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

from keylane.client.raw_headers import read_headers
from keylane.client.values import ConsumerRecord
from keylane.client.workers.executors import Attempt


def with_spans(call: Attempt, group: str | None) -> Attempt:
    """Return `call` within a span, or `call` itself where there are no spans."""
    try:
        trace = importlib.import_module("opentelemetry.trace")
        propagate = importlib.import_module("opentelemetry.propagate")
    except ImportError:
        return call
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider):
        return call  # none was set
    tracer = provider.get_tracer("keylane.workers")
    kind = trace.SpanKind.CONSUMER

    async def traced(record: ConsumerRecord) -> Any:
        carrier = {
            name.lower(): value.decode("ascii", errors="replace")
            for name, value in read_headers(record.raw_headers)
            if value is not None
        }
        with tracer.start_as_current_span(
            f"process {record.topic}",
            context=propagate.extract(carrier),
            kind=kind,
            attributes=attributes_of(record, group),
        ):
            return await call(record)

    return traced


def attributes_of(record: ConsumerRecord, group: str | None) -> dict[str, str | int]:
    """Return a span's attributes: the place of the record, nothing of what it holds."""
    attributes: dict[str, str | int] = {
        "messaging.system": "kafka",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": record.topic,
        "messaging.destination.partition.id": str(record.partition),
        "messaging.kafka.offset": record.offset,
    }
    if group is not None:
        attributes["messaging.consumer.group.name"] = group
    return attributes
