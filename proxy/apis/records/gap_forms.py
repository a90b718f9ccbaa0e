"""The form in which a client is moved past offsets without a record of its lane.

librdkafka says in ApiVersions what it is. kafka-go does not, and programs choose its client id, so
it is recognized by its fetches: in v5 and v10 it asks for one partition, with the same limit for
the partition and for the answer, and gives 0 as a follower's log start, for which all others give
-1. Any other client may get its form, too: each skips records from before the offset that it asked
for.

Source: kafka-go 0.4.51, `writeFetchRequestV10`, `(*Conn).ReadBatchWith` and `(*Batch).readMessage`.
"""

from __future__ import annotations

from typing import Final

from keylane.cache.lane_values import GapForm
from keylane.wire.fetch import FetchRequest

KAFKA_GO_VERSIONS: Final = (5, 10)
SESSIONLESS_EPOCH: Final = -1
CONSUMER: Final = -1
"""The replica id of a client that is no broker."""
PASSED_BYTES_MAX: Final = 1 << 20
"""Of an answer that is looked through for empty batches: kafka-go's own limit by default."""
EARLIER_PART: Final = 16
EARLIER_MS_MAX: Final = 500


def gap_form_of(wanted: FetchRequest, *, is_librdkafka: bool) -> GapForm:
    """Return the form for the client that sent a request."""
    if is_librdkafka:
        return GapForm.CONTROL
    return GapForm.PASSED if _is_of_kafka_go(wanted) else GapForm.EMPTY


def wait_for_passed(max_wait_ms: int) -> int:
    """Return how long its answer may wait.

    kafka-go takes an answer that comes after the wait for one without data, whatever is in it, and
    does not move. A position that stays behind would fall before the log's start.
    """
    return max_wait_ms - min(max_wait_ms // EARLIER_PART, EARLIER_MS_MAX)


def _is_of_kafka_go(wanted: FetchRequest) -> bool:
    if wanted.version not in KAFKA_GO_VERSIONS or len(wanted.topics) != 1:
        return False
    partitions = wanted.topics[0].partitions
    return (
        len(partitions) == 1
        and partitions[0].log_start_offset == 0
        and partitions[0].partition_max_bytes == wanted.max_bytes
        and wanted.session_epoch == SESSIONLESS_EPOCH
        and wanted.replica_id == CONSUMER
    )
