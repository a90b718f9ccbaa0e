"""Spark's progress as a consumer group's, so that lag tools and keylane see it.

Spark assigns by itself and commits nowhere, so that no tool knows how far it is. What a partition
has is the least of what its lanes have.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from keylane.errors import KafkaUnavailable
from keylane.pipeline.brokers import SparkAdmin
from keylane.pipeline.checkpoint import split_lane_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


class LaneProgressListener(StreamingQueryListener):
    """Commits each batch's end to `group`, which no consumer may be a member of.

    A commit that fails is logged and counted, and the next one makes up for it: the checkpoint is
    what Spark goes on from, the group is for others to look at.
    """

    def __init__(
        self,
        spark: SparkSession,
        bootstrap: str,
        group: str,
        *,
        lanes: Mapping[str, int] | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        """`bootstrap` are the brokers, or a proxy.

        `lanes`: lane counts of topics that are seen as lanes under their own name.
        """
        self._admin = SparkAdmin(spark, bootstrap, options)
        self._group, self._lanes = group, dict(lanes or {})
        self.commit_count = 0
        self.failure_count = 0

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Nothing is known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """A batch is done: its ends may be committed."""
        for source in event.progress.sources:
            self.take(source.endOffset)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Nothing new."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """The group keeps what it has."""

    def take(self, end_offset: str | None) -> None:
        """Commit the end of a batch, as a source's progress has it."""
        for topic, offsets in physical_minima(end_offset, self._lanes).items():
            try:
                self._admin.commit(self._group, topic, offsets)
            except KafkaUnavailable as error:
                self.failure_count += 1
                log.warning(
                    "Spark's progress is not committed, the next batch tries again"
                    " topic=%s group=%s reason=%s",
                    topic,
                    self._group,
                    error,
                )
            else:
                self.commit_count += 1

    def close(self) -> None:
        """End its connections, after `spark.streams.removeListener`."""
        self._admin.close()


def physical_minima(
    end_offset: str | None, lanes: Mapping[str, int] | None = None
) -> dict[str, dict[int, int]]:
    """Next offset by topic and physical partition: the least of a partition's lanes.

    `end_offset` is JSON topic -> partition -> offset, of Spark's Kafka source or of
    `format("keylane")`; what is none (another source, no batch yet) gives nothing.
    """
    try:
        topics: Any = json.loads(end_offset or "null")
    except ValueError:
        return {}
    found: dict[str, dict[int, int]] = {}
    for name, reported in topics.items() if isinstance(topics, dict) else ():
        if not isinstance(reported, dict) or not all(
            isinstance(at, int) for at in reported.values()
        ):
            continue
        topic, count = split_lane_name(name)
        count = count or (lanes or {}).get(name, 1)
        partitions = len(reported) // count
        least = found.setdefault(topic, {})
        for index, at in reported.items():
            partition = int(index) % partitions
            least[partition] = min(at, least.get(partition, at))
    return found
