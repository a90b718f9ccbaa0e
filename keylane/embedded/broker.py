"""A real Kafka cluster on this machine, for the demo, tests and benchmarks."""

from __future__ import annotations

import base64
import select
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Self

from keylane.embedded.folder_lock import FolderLock
from keylane.embedded.node import (
    ADDRESS,
    ClientListener,
    KafkaNode,
    NodeSettings,
    build_properties,
)
from keylane.embedded.ports import find_free_port
from keylane.embedded.resolve import resolve_class_path
from keylane.errors import KafkaUnavailable, reason_of

READY_TIMEOUT_S: Final = 90.0
"""A start takes 4 s here; a busy machine with two cores may need several times that."""

HEAP_MB: Final = 512
"""Enough for a demo; Kafka's own default of 1 GB is for real load."""


class EmbeddedKafka:
    """A cluster of `node_count` nodes, each a broker and a controller, all on 127.0.0.1.

    Ports stay the same for the life of the object, so clients find a node again after `kill`
    and `start`. Data stays in `folder`; the object never deletes it. From `start` to `stop` or
    `kill` no other process may use it. Usable as a context manager, and from any thread, one
    call at a time.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        port: int = 0,
        node_count: int = 1,
        properties: Mapping[str, str] | None = None,
        listeners: Mapping[str, str] | None = None,
        heap_mb: int = HEAP_MB,
    ) -> None:
        """Plan the cluster; `port` is the first node's (0: a free one), `properties` win.

        `listeners` are further ones, protocols by name: {"SECURED": "SASL_SSL"}.
        """
        self.folder = Path(folder).absolute()
        self._lock = FolderLock(self.folder)
        self.properties = dict(properties or {})
        self._heap_mb = heap_mb
        self._settings = [
            NodeSettings(
                node_id=node_id,
                folder=self.folder / f"node-{node_id}",
                port=(port if node_id == 1 and port else find_free_port()),
                controller_port=find_free_port(),
                listeners=tuple(
                    ClientListener(name, protocol, find_free_port())
                    for name, protocol in (listeners or {}).items()
                ),
            )
            for node_id in range(1, node_count + 1)
        ]
        self.nodes: list[KafkaNode] = []

    @property
    def bootstrap(self) -> str:
        """`host:port,...` of all nodes."""
        return ",".join(settings.address for settings in self._settings)

    def bootstrap_of(self, listener: str) -> str:
        """`host:port,...` of all nodes, on one of the further listeners."""
        return ",".join(
            f"{ADDRESS}:{each.port}"
            for settings in self._settings
            for each in settings.listeners
            if each.name == listener
        )

    def start(self) -> Self:
        """Start the nodes that do not run, and wait until all of them serve.

        Raises:
            KafkaUnavailable: the folder is in use, no Java, no jars, or a node that did not come
                up (with its log).
        """
        self._lock.hold()
        try:
            self._prepare()
            stopped = [node for node in self.nodes if not node.running]
            for node in stopped:
                node.launch()
            deadline_s = time.monotonic() + READY_TIMEOUT_S
            for node in stopped:
                node.await_ready(deadline_s)
        except BaseException:  # KafkaUnavailable or Ctrl-C: leave nothing running
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """Clean stop of every node; what was acknowledged is on disk. Safe to call twice."""
        with ThreadPoolExecutor(len(self._settings)) as pool:
            # Together: the last controller of a quorum would otherwise wait for the others.
            list(pool.map(KafkaNode.stop, self.nodes))
        self._lock.release()

    def kill(self) -> None:
        """kill -9 of every node; `start` brings them back on the same data and ports."""
        for node in self.nodes:
            node.kill()
        self._lock.release()

    def wait_any(self) -> KafkaNode:
        """Block until a node ends by itself; returns it. For a foreground command."""
        by_events = {node.events_fd: node for node in self.nodes}
        while True:
            for fd in select.select(list(by_events), [], [])[0]:
                if by_events[fd].has_ended():
                    return by_events[fd]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _prepare(self) -> None:
        """Resolve the jars and format the folders; nothing to do from the second start on."""
        if self.nodes:
            return
        class_path = resolve_class_path()
        nodes = [
            KafkaNode(settings, class_path=class_path, heap_mb=self._heap_mb, lock=self._lock)
            for settings in self._settings
        ]
        cluster_id = self._cluster_id()
        for node in nodes:
            text = build_properties(node.settings, self._settings, self.properties)
            node.format(text, cluster_id=cluster_id)
        self.nodes = nodes

    def _cluster_id(self) -> str:
        """The id in the folder, or a new one: 16 bytes in base64, as Kafka writes them."""
        try:
            path = self.folder / "cluster-id"
            if not path.exists():
                text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
                path.write_text(text)
            return path.read_text()
        except OSError as error:
            raise KafkaUnavailable(f"data folder {error.filename}: {reason_of(error)}") from error
