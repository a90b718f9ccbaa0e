"""A real Kafka from packages: no download by hand, no Java needed on the machine."""

from __future__ import annotations

from keylane.embedded.broker import EmbeddedKafka
from keylane.embedded.java import find_java, run_java_tool, start_java_tool
from keylane.embedded.resolve import KAFKA_VERSION, resolve_class_path

__all__ = (
    "KAFKA_VERSION",
    "EmbeddedKafka",
    "find_java",
    "resolve_class_path",
    "run_java_tool",
    "start_java_tool",
)
