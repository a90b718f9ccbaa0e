"""Kafka's own Java programs: kafka-topics, the console consumer, VerifiableConsumer and others."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from keylane.embedded.java import find_java
from keylane.embedded.resolve import resolve_class_path

TOOL_CLASSES: Final = MappingProxyType(
    {
        "kafka-acls": "org.apache.kafka.tools.AclCommand",
        "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
        "kafka-configs": "kafka.admin.ConfigCommand",
        "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
        "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
        "kafka-console-share-consumer": "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
        "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
        "kafka-client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
        "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
        "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
        "kafka-dump-log": "org.apache.kafka.tools.DumpLogSegments",
        "kafka-features": "org.apache.kafka.tools.FeatureCommand",
        "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
        "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
        "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
        "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
        "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
        "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
        "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
        "kafka-share-consumer-perf-test": "org.apache.kafka.tools.ShareConsumerPerformance",
        "kafka-share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
        "kafka-storage": "kafka.tools.StorageTool",
        "kafka-streams-groups": "org.apache.kafka.tools.streams.StreamsGroupCommand",
        "kafka-topics": "org.apache.kafka.tools.TopicCommand",
        "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
        "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
        "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
        "kafka-verifiable-share-consumer": "org.apache.kafka.tools.VerifiableShareConsumer",
    }
)
"""The class behind each script in Kafka's `bin` folder."""

TOOL_JVM_ARGS: Final = (
    # A tool lives for seconds: starting fast matters more than running fast.
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-Xmx256m",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)


def java_command(
    class_path: str, name: str, *args: str, jvm_args: Sequence[str] = TOOL_JVM_ARGS
) -> list[str]:
    """Command line that runs `name`, a key of `TOOL_CLASSES` or a class name, with `args`."""
    main_class = TOOL_CLASSES.get(name, name)
    return [str(find_java()), *jvm_args, "-cp", class_path, main_class, *args]


def run_java_tool(
    name: str,
    *args: str | Path,
    stdin: str = "",
    timeout_s: float = 120.0,
    jvm_args: Sequence[str] = TOOL_JVM_ARGS,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a tool to its end; `name` is a script of Kafka's `bin` folder or a class name.

    Raises:
        subprocess.CalledProcessError: it failed and `check` is set; its `stderr` says why.
        subprocess.TimeoutExpired: it ran longer than `timeout_s` and was killed.
    """
    command = java_command(resolve_class_path(), name, *map(str, args), jvm_args=jvm_args)
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if check and done.returncode != 0:
        error = subprocess.CalledProcessError(done.returncode, name, done.stdout, done.stderr)
        error.add_note(f"{name}: {done.stdout}{done.stderr}")
        raise error
    return done


def start_java_tool(
    name: str, *args: str | Path, jvm_args: Sequence[str] = TOOL_JVM_ARGS
) -> subprocess.Popen[str]:
    """Start a tool with pipes on stdin and stdout; the caller reads its output and ends it.

    Its stderr is the caller's own: a pipe without a reader would stop the tool once full.
    """
    command = java_command(resolve_class_path(), name, *map(str, args), jvm_args=jvm_args)
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,  # by lines: VerifiableConsumer and the console tools speak in lines
    )
