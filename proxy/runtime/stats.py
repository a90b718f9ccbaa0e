"""Counters of the proxy: one plain object that every part adds to.

Source: Prometheus naming (`_total` for counters, the base unit last).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import accumulate
from typing import Any, Final, NamedTuple

from keylane.wire.share import ACCEPT, REJECT, RELEASE, RENEW, AckBatch

GAUGE: Final = "gauge"
COUNTER: Final = "counter"
HISTOGRAM: Final = "histogram"
STILL_S: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Up to Kafka's `max.poll.interval.ms` order of magnitude: a rebalance waits for members' polls."""
ACK_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Up to the time-out of an append."""
LABELS_MAX: Final = 100
"""Groups, and brokers, that are counted one by one (docs/decisions/018); the others share one."""
GROUP_CHARS_MAX: Final = 249
"""Kafka's bound of a topic name; a group id may be longer, and is cut."""
ACK_NAMES: Final[Mapping[int, str]] = {
    ACCEPT: "accept",
    RELEASE: "release",
    REJECT: "reject",
    RENEW: "renew",
}
OTHER_BROKERS: Final = "(other brokers)"
OTHER_GROUPS: Final = "(other groups)"
"""A label that no group's own name should be."""


class Sample(NamedTuple):
    """One number with its meaning; `labels` distinguish samples of one name."""

    name: str
    kind: str
    help: str
    labels: tuple[tuple[str, str], ...]
    value: float
    """Of a histogram the sum of all that was observed."""
    buckets: tuple[tuple[str, float], ...] = ()
    """(upper bound, how many were up to it), ascending, the last is `+Inf`; histograms only."""


class Histogram:
    """Counts of seconds up to each bound."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """`bounds` ascend."""
        self._bounds, self.sum = bounds, 0.0
        self._counts = [0] * (len(bounds) + 1)

    @property
    def count(self) -> int:
        """Return how many numbers were observed."""
        return sum(self._counts)

    def observe(self, seconds: float) -> None:
        """Count one."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self.sum += seconds

    def buckets(self) -> tuple[tuple[str, float], ...]:
        """Return them as `Sample` has them."""
        names = [*map(str, self._bounds), "+Inf"]
        totals = accumulate(self._counts)
        return tuple((name, float(total)) for name, total in zip(names, totals, strict=True))


def _gauge(text: str) -> Any:
    return field(default=0, metadata={"kind": GAUGE, "help": text})


def _counter(text: str) -> Any:
    return field(default=0, metadata={"kind": COUNTER, "help": text})


def _counters(label: str, text: str) -> Any:
    metadata = {"kind": COUNTER, "help": text, "label": label}
    return field(default_factory=Counter, metadata=metadata)


def _histogram(bounds: tuple[float, ...], text: str) -> Any:
    metadata = {"kind": HISTOGRAM, "help": text}
    return field(default_factory=partial(Histogram, bounds), metadata=metadata)


@dataclass(slots=True)
class ProxyStats:
    """Counters and gauges of one proxy process; the event loop's thread alone writes them.

    One exception: `kernel_seconds`, which `lanes.block_split` alone writes.
    """

    # Sessions and requests.
    sessions: int = _gauge("Client connections open now.")
    sessions_opened: int = _counter("Client connections accepted.")
    sessions_refused: int = _counter(
        "Client connections closed for invalid data, too much buffered data, not reading,"
        " or exceeding a limit."
    )
    sessions_turned_away: int = _counter(
        "Client connections closed because a broker that they need could not be reached."
    )
    sessions_failed: int = _counter(
        "Client connections closed for a fault in a broker's answer or in keylane itself."
    )
    sessions_heavy: int = _counter(
        "Client connections closed because their principal, or all together, held too many bytes."
    )
    tls_handshakes_failed: int = _counter("TLS handshakes of clients that did not succeed.")
    control_connections: int = _gauge("Connections of the control port open now.")
    control_connections_closed: Counter[str] = _counters(
        "reason", "Connections of the control port closed: too many, idle, or too slow."
    )
    accepts_failed: int = _counter(
        "Times that no connection could be accepted, for lack of files or memory."
    )
    requests: Counter[str] = _counters("api", "Requests by API name.")
    own_names_refused: Counter[str] = _counters(
        "api", "Changes of keylane's own topics and transactional ids refused."
    )
    requests_relayed: int = _counter("Requests passed on as bytes.")
    lane_fetches: int = _counter("Lanes asked for in fetch requests.")
    lane_fetches_empty: int = _counter("Lanes answered without a record after their wait.")

    loop_delay_seconds: float = _gauge("Delay of the event loop's last timer.")
    tasks: int = _gauge("Tasks in progress, at most a second ago.")

    # Cache.
    cache_bytes: int = _gauge("Bytes of slices in the cache, which wait for their lane.")
    cache_bytes_max: int = _gauge("Bound of cache_bytes.")
    cache_hits: int = _counter("Slices served from memory.")
    cache_misses: int = _counter("Times that a lane's slice had to be read again.")
    cache_evictions: int = _counter("Slices dropped to stay within the bound.")
    cache_sent: int = _counter("Slices dropped because they were sent.")

    # Memory (decision 035).
    memory_max_bytes: int = _gauge(
        "Bound of the process's memory, `process_resident_memory_bytes`."
    )
    batch_bytes_max: int = _gauge("Bound of one record batch of a topic with lanes.")
    buffered_bytes: int = _gauge("Bytes in buffers of client connections.")
    buffered_bytes_max: int = _gauge("Bound of buffered_bytes.")
    login_bytes: int = _gauge("Bytes in buffers of connections that have not logged in.")
    login_bytes_max: int = _gauge("Bound of login_bytes.")
    gathering_bytes: int = _gauge("Bytes of lane answers that wait for more.")

    # Reading and splitting.
    topics: int = _gauge("Topics of the cluster that this node knows, with lanes or without.")
    readers: int = _gauge("Partitions being read.")
    lane_name_readers: int = _gauge("Of readers, those under lane names that clients have chosen.")
    lane_name_lanes: int = _gauge(
        "Use of `lane_name_lanes_max` by these: their lanes, at least 16 for each."
    )
    readers_refused: int = _counter("Reads under lane names refused, since there were too many.")
    filtering_bytes: int = _gauge("Bytes of answers and records being split now.")
    filtering_bytes_max: int = _gauge("Bound of filtering_bytes.")
    upstream_fetches: int = _counter("Fetches sent to brokers for lanes.")
    upstream_tail_fetches: int = _counter(
        "Of upstream_fetches, those that read evicted slices again."
    )
    upstream_bytes: int = _counter("Record bytes received for lanes.")
    upstream_errors: int = _counter("Fetches for lanes that failed.")
    upstream_retries: int = _counter("Of upstream_fetches, those sent again over a new connection.")
    upstream_timeouts: Counter[str] = _counters(
        "broker", "keylane's own requests without an answer in time, by broker."
    )
    hedged_requests: int = _counter(
        "Times that a second broker was asked because the first one was slow."
    )
    listener_binds_failed: int = _counter("Times that no listener could be opened for a broker.")
    brokers_unlistened: int = _gauge("Brokers without a listener here: clients do not see them.")
    group_waits_refused: int = _counter(
        "Requests refused since their group's offsets were not free in time."
    )
    splits: int = _counter("Blocks decompressed and split.")
    decompressed_bytes: int = _counter("Plain bytes of the blocks split.")
    records: int = _counter("Records split.")
    kernel_seconds: float = _counter("CPU time of decompressing and splitting.")
    batches_corrupt: int = _counter("Batches that could not be split.")
    batches_refused: int = _counter(
        "Batches larger than `batch_bytes_max`, or of an old format, at which lanes stop."
    )
    blocks_misplaced: int = _counter(
        "Blocks of topics with `hash: murmur2` in which a record stands in another partition than "
        "Kafka's default partitioner has for its key."
    )
    logs_cut: int = _counter(
        "Times that records which were read are no longer in a partition's log."
    )

    # Groups (classic protocol).
    rebalances: int = _counter("Rounds of JoinGroup that began, of all groups.")
    rebalance_seconds: Histogram = _histogram(
        STILL_S, "Time from a round's first JoinGroup to each member's SyncGroup."
    )

    joins_refused: int = _counter(
        "JoinGroup and SyncGroup requests refused, as lanes would be read twice or not at all."
    )
    streams_refused: int = _counter(
        "SyncGroup requests of Kafka Streams refused, as a join would miss records."
    )

    # The key-range assignor.
    assignments_planned: int = _counter("Generations of groups whose lanes keylane assigned.")
    assignments_refused: int = _counter("Plans with a fault; the client's plan was kept.")
    assignments_unplanned: int = _counter("Generations whose members keylane did not know.")
    rebalances_asked: int = _counter(
        "Rebalances that keylane asked of a group, whose measured load was out of balance."
    )
    lanes_moved: int = _counter("Lanes that moved to another member.")
    lane_moves: Counter[str] = _counters(
        "reason", "Lanes that moved in groups of the consumer protocol, by reason."
    )
    members_late: int = _counter(
        "Members removed, as they did not confirm their lanes within their rebalance time-out."
    )
    members_bypassing: int = _counter(
        "Times that members of a group on lanes were seen that bypass keylane."
    )
    lanes_withheld: int = _counter("Lanes held back until their owner has given them up.")

    # Offsets.
    offsets_unstable_waits: int = _counter(
        "Times that an answer waited for a transaction with offsets of the group."
    )

    offsets_kept: int = _counter(
        "Times that an offset of a running group was kept after its broker had expired it."
    )
    offsets_refreshed: int = _counter("Stable offsets of running groups that were committed again.")
    commits_back: Counter[str] = _counters(
        "group", "Lanes that members committed lower than they stood, by group."
    )
    commits_left_over: Counter[str] = _counters(
        "group",
        "Lanes that such a commit left in place, since it was of an earlier turn, by group.",
    )

    states_forgotten: int = _counter(
        "Offset states forgotten, as Kafka has forgotten their groups, offsets or topics."
    )
    topics_forgotten: int = _counter("Topics forgotten, as no broker knows them any more.")
    journal_appends: int = _counter("Writes to the journal, `__individual_commit_offsets`.")
    journal_records: int = _counter("Records in writes to the journal.")
    journal_errors: int = _counter("Writes to the journal that were not acknowledged.")
    journal_seconds: Histogram = _histogram(
        ACK_S, "Time until a write to the journal was acknowledged, or failed."
    )

    node_generations: int = _counter(
        "Times that the nodes, with this one, agreed again on the owner of each group."
    )
    node_strangers: int = _counter(
        "Members of the nodes' group that did not prove to be nodes, and were removed."
    )

    # Share groups.
    share_acknowledgements: Counter[str] = _counters(
        "type",
        "Records that members of share groups have acknowledged, by type; of groups without a "
        "rule as they were asked, before the broker has judged it.",
    )

    # Answers to clients.
    lane_bytes: int = _counter("Record bytes sent to lanes.")

    def count_share_acks(self, batches: Iterable[AckBatch]) -> None:
        """Count acknowledgements of share groups by their types."""
        counts: dict[int, int] = {}
        for first, last, types in batches:
            each = last - first + 1 if len(types) == 1 else 1
            for kind in types:
                counts[kind] = counts.get(kind, 0) + each
        for kind, count in counts.items():
            if (name := ACK_NAMES.get(kind)) is not None:
                self.share_acknowledgements[name] += count

    def count_share_types(self, counts: Sequence[int]) -> None:
        """Count acknowledgements of share groups; counts: by type, from GAP on."""
        for kind, name in ACK_NAMES.items():
            if counts[kind]:
                self.share_acknowledgements[name] += counts[kind]

    def journaled(
        self,
        record_count: int,
        seconds: float,
        is_acknowledged: bool,  # noqa: FBT001 - as the journal reports it
    ) -> None:
        """Count a write to the journal."""
        self.journal_appends += 1
        self.journal_records += record_count
        self.journal_errors += not is_acknowledged
        self.journal_seconds.observe(seconds)

    def retried(self) -> None:
        """Count a fetch for lanes that is sent again over a new connection."""
        self.upstream_retries += 1

    def timed_out(self, broker: str) -> None:
        """Count a request of keylane's own that a broker has not answered in time."""
        _count(self.upstream_timeouts, broker, 1, OTHER_BROKERS)

    def stepped_back(self, group: str, lane_count: int) -> None:
        """Count lanes that a member of a group has committed lower than they stood."""
        _count(self.commits_back, group[:GROUP_CHARS_MAX], lane_count, OTHER_GROUPS)

    def stayed(self, group: str, lane_count: int) -> None:
        """Count lanes that such a commit of an earlier turn has not moved."""
        _count(self.commits_left_over, group[:GROUP_CHARS_MAX], lane_count, OTHER_GROUPS)

    def samples(self) -> Iterator[Sample]:
        """Yield every number once, in the order of the fields, with `keylane_` before its name."""
        for entry in fields(self):
            kind, text = entry.metadata["kind"], entry.metadata["help"]
            name = f"keylane_{entry.name}" + ("_total" if kind == COUNTER else "")
            value = getattr(self, entry.name)
            if isinstance(value, Histogram):
                yield Sample(name, kind, text, (), value.sum, value.buckets())
                continue
            if not isinstance(value, Counter):
                yield Sample(name, kind, text, (), value)
                continue
            for label_value in sorted(value):
                labels = ((entry.metadata["label"], label_value),)
                yield Sample(name, kind, text, labels, value[label_value])


def _count(counters: Counter[str], label: str, count: int, others: str) -> None:
    """Count under a label; the labels beyond the bound are counted as `others`."""
    if label not in counters and len(counters) >= LABELS_MAX:
        label = others
    counters[label] += count
