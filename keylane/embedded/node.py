"""One embedded Kafka node: format its folder, run it, kill it, run it again."""

from __future__ import annotations

import subprocess
from typing import Final

from keylane.embedded.child import ChildEnded, GuardedChild
from keylane.embedded.folder_lock import FolderLock
from keylane.embedded.settings import NodeSettings
from keylane.embedded.tools import java_command
from keylane.errors import KafkaUnavailable

READY_TEXT: Final = "Kafka Server started"
"""Last line of a start: printed once the broker is registered, unfenced and listening."""

SERVER_JVM_ARGS: Final = (
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-XX:MaxMetaspaceSize=256m",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=info",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
    "-Dorg.slf4j.simpleLogger.showThreadName=false",
)


class KafkaNode:
    """A node that can be started and ended many times on the same folder and ports."""

    def __init__(
        self, settings: NodeSettings, *, class_path: str, heap_mb: int, lock: FolderLock
    ) -> None:
        self.settings, self._class_path, self._lock = settings, class_path, lock
        jvm_args = (f"-Xmx{heap_mb}m", f"-Xms{heap_mb // 2}m", *SERVER_JVM_ARGS)
        config = str(settings.properties_path)
        self._child = GuardedChild(
            java_command(class_path, "kafka.Kafka", config, jvm_args=jvm_args),
            log_path=settings.log_path,
            ready_text=READY_TEXT,
        )

    @property
    def address(self) -> str:
        """`host:port` that clients connect to."""
        return self.settings.address

    @property
    def pid(self) -> int | None:
        """Process id of the broker while it runs."""
        return self._child.pid

    @property
    def running(self) -> bool:
        """Return whether the node's process is alive."""
        return self._child.running

    def format(self, properties: str, *, cluster_id: str) -> None:
        """Write server.properties and, the first time, the metadata of an empty node.

        Raises:
            KafkaUnavailable: Kafka's storage tool refused the properties.
        """
        self.settings.data_path.mkdir(parents=True, exist_ok=True)
        self.settings.properties_path.write_text(properties)
        if (self.settings.data_path / "meta.properties").exists():
            return
        config = str(self.settings.properties_path)
        command = java_command(
            self._class_path, "kafka-storage", "format", f"--cluster-id={cluster_id}", "-c", config
        )
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode != 0:
            raise KafkaUnavailable(f"cannot format {config}: {done.stdout}{done.stderr}")

    def launch(self) -> None:
        """Start the process; returns at once. `await_ready` says when it serves.

        Raises:
            KafkaUnavailable: another process has Kafka running on the folder.
        """
        self._child.launch(inherited=(self._lock.hold(),))

    def await_ready(self, deadline_s: float) -> None:
        """Wait until the node serves; `deadline_s` is in time.monotonic's terms.

        Raises:
            KafkaUnavailable: the node ended, or was not ready in time; its last lines follow.
        """
        try:
            self._child.await_ready(deadline_s)
        except ChildEnded as error:
            raise KafkaUnavailable(f"Kafka on {self.address}: {error}") from error

    def stop(self) -> None:
        """Clean stop: SIGTERM, and SIGKILL when that takes too long."""
        self._child.stop()

    def kill(self) -> None:
        """kill -9, as a machine that loses power would end it."""
        self._child.kill()

    @property
    def events_fd(self) -> int:
        """File descriptor that becomes readable when the running node ends."""
        return self._child.events_fd

    def has_ended(self) -> bool:
        """Read what `events_fd` has to say; True once the node is gone."""
        return self._child.has_ended()

    def log_tail(self) -> str:
        """The last lines of the node's log."""
        return self._child.log_tail()
