"""A broker and a keylane with rules for share groups in key order, once for their tests.

The name of a group says which rule it falls under: `RULES`.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from confluent_kafka.admin import AdminClient

from keylane.embedded import EmbeddedKafka
from tests.integration.conftest import make_topic_factory
from tests.integration.keylane_process import KeylaneProcess
from tests.integration.share_sides import append
from tests.integration.share_wire import (
    ACCEPT,
    Acks,
    Answer,
    ShareClient,
    alter_group,
    share_offsets,
    wait_until,
)
from tests.reference.batches import Batch, Record

PROPERTIES: Final = {
    "log.retention.ms": "-1",
    "auto.create.topics.enable": "false",
    "group.share.min.heartbeat.interval.ms": "500",
    "group.share.heartbeat.interval.ms": "500",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.max.record.lock.duration.ms": "600000",
    "group.share.partition.max.record.locks": "4000",
    "group.share.max.partition.max.record.locks": "10000",
    "log.cleaner.backoff.ms": "200",
}
LETTERS, LATE_LETTERS = "letters", "late-letters"
"""Topics for dead letters; no test makes the second one before it needs it."""
PAUSE_MS: Final = 3000
TAKEOVER_PAUSE_MS: Final = 3000
WINDOW: Final = 100
SHORT_LOCK_MS: Final = 4000
"""Short for a test, but a renewal at half of it may wait for a proof that takes a second."""
RULES: Final[tuple[dict[str, Any], ...]] = (
    {"group": "mixed*", "topics": "orders*"},
    {"group": "ahead*", "look_ahead": WINDOW},
    {"group": "several*", "several_per_key": 3},
    {"group": "pause*", "redelivery_pause_ms": PAUSE_MS},
    {"group": "letters*", "dead_letter": LETTERS},
    {"group": "late*", "dead_letter": LATE_LETTERS},
    {"group": "early*", "confirm": "received"},
    {"group": "quiet*", "takeover_pause_ms": TAKEOVER_PAUSE_MS},
    {"group": "order*"},
)
_numbers = itertools.count(1)


class Member:
    """A member by hand on partition 0 of one topic; its session begins with its first fetch."""

    def __init__(self, client: ShareClient, topic_id: UUID) -> None:
        self.client, self.topic_id = client, topic_id

    def fetch(self, *, acks: Acks = (), **options: Any) -> Answer:
        """Fetch once; options are those of `ShareClient.fetch`."""
        return self.client.fetch(self.topic_id, acks=acks, **options)

    def take(self, count: int = 1, **options: Any) -> dict[int, int]:
        """Fetch until so many records are there: their delivery counts by offset."""
        found: dict[int, int] = {}

        def fetch() -> bool:
            answer = self.fetch(**{"max_records": count - len(found), **options})
            assert answer.codes == (0, 0, 0), answer
            found.update(answer.part.counts)
            return len(found) >= count

        wait_until(fetch, f"{count} records")
        return found

    def ack(self, *offsets: int, kind: int = ACCEPT, **options: Any) -> int:
        """Acknowledge offsets; return the partition's error code."""
        acks = [(offset, offset, [kind]) for offset in sorted(offsets)]
        return self.ack_ranges(*acks, **options)

    def ack_ranges(self, *acks: tuple[int, int, Sequence[int]], **options: Any) -> int:
        """Acknowledge ranges; return the partition's error code."""
        answer = self.client.acknowledge(self.topic_id, acks=acks, **options)
        assert answer.error == 0, answer
        return answer.part.error

    def gets_nothing(self, **options: Any) -> bool:
        """Return whether a fetch that waits a little brings nothing."""
        answer = self.fetch(**{"max_wait_ms": 250, **options})
        assert answer.codes == (0, 0, 0), answer
        return not answer.acquired

    def close(self) -> None:
        """End the session, leave the group."""
        self.client.close()

    def crash(self) -> None:
        """End the connection without a word."""
        self.client.wire.close()


class Scene:
    """One topic with a group in key order."""

    def __init__(self, stage: ShareStage, topic: str, group: str) -> None:
        self.stage, self.topic, self.group = stage, topic, group
        self._members: list[Member] = []

    def write(self, *keys: str | None, partition: int = 0, form: str = "none") -> int:
        """Append one batch with a record per key; return the offset of the first."""
        records = tuple(
            Record(number, key=None if key is None else key.encode(), value=b"v%d" % number)
            for number, key in enumerate(keys)
        )
        now_ms = time.clock_gettime_ns(time.CLOCK_REALTIME) // 1_000_000
        batch = Batch(0, records, form=form, base_timestamp=now_ms, max_timestamp=now_ms)
        return append(self.stage.broker.bootstrap, self.topic, batch, partition=partition)

    def join(self, bootstrap: str = "") -> Member:
        """Return a new member, which has heartbeated until it had partitions."""
        client = ShareClient(bootstrap or self.stage.bootstrap, self.group)
        client.join([self.topic])
        return self.again(client.topic_id(self.topic), client)

    def again(self, topic_id: UUID, client: ShareClient | None = None) -> Member:
        """Return a member that does not join: brokers let it fetch all the same."""
        member = Member(client or ShareClient(self.stage.bootstrap, self.group), topic_id)
        self._members.append(member)
        return member

    def join_many(self, count: int) -> list[Member]:
        """Return members; only the first one has heartbeated, which is enough to fetch."""
        first = self.join()
        return [first, *(self.again(first.topic_id) for _ in range(count - 1))]

    def offsets(self, partition: int = 0) -> tuple[int, int]:
        """Return the start offset and the lag, as persisted at the broker; -1: not known yet."""
        known = share_offsets(self.stage.broker.bootstrap, self.group)
        return known.get((self.topic, partition), (-1, -1))

    def wait_for_lag(self, lag: int) -> None:
        """Wait until the broker has persisted that so many offsets are not finished."""
        wait_until(lambda: self.offsets()[1] == lag, f"lag {lag}")

    def configure(self, **configs: str | int) -> None:
        """Set configs of the group."""
        alter_group(self.stage.broker.bootstrap, self.group, **configs)

    def end(self) -> None:
        """Close all members, as far as they are not."""
        for member in self._members:
            with suppress(OSError, ValueError):
                member.client.wire.close()


class ShareStage:
    """The broker, keylane with `RULES`, topics and groups."""

    def __init__(self, folder: Path) -> None:
        self.broker = EmbeddedKafka(folder / "kafka", properties=PROPERTIES)
        self._folder = folder

    def start(self) -> None:
        """Start both."""
        self.broker.start()
        self.admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        self._topic = make_topic_factory(self.admin, "share")
        self.proxy = KeylaneProcess(
            self.broker.bootstrap,
            (),
            log_path=self._folder / "keylane.log",
            args=("--set", f"share_groups={json.dumps(RULES)}"),
        ).start()

    def stop(self) -> None:
        """End both."""
        if hasattr(self, "proxy"):
            self.proxy.stop()
        self.broker.stop()

    @property
    def bootstrap(self) -> str:
        """Address of keylane."""
        return self.proxy.bootstrap

    def topic(
        self, label: str = "orders", *, partitions: int = 1, config: dict[str, str] | None = None
    ) -> str:
        """Make a topic."""
        return self._topic(label, partitions=partitions, config=config)

    def scene(
        self,
        rule: str = "order",
        *,
        partitions: int = 1,
        config: dict[str, str] | None = None,
        **group_configs: str | int,
    ) -> Scene:
        """Make a topic and a group that reads it from its beginning."""
        topic = self.topic(partitions=partitions, config=config)
        group = f"{rule}-{next(_numbers)}"
        scene = Scene(self, topic, group)
        scene.configure(share_auto_offset_reset="earliest", **group_configs)
        return scene
