"""Share groups at one broker: share sessions, fetches that wait, acknowledgements.

Source: Apache Kafka 4.3, `KafkaApis.handleShareFetchRequest`, `SharePartitionManager`,
`ShareSessionCache` (a connection ends the session that it has opened last), `DelayedShareFetch`
(goes on when its session was replaced), `ShareSessionContext`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from keylane.share.sessions import next_epoch
from keylane.wire.parts import KeyedTopic, NodeEndpoint
from keylane.wire.share import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    RENEW,
    AckBatch,
    ShareAcknowledgeRequest,
    ShareAnswer,
    ShareFetchRequest,
    ShareResponse,
    read_share_acknowledge_request,
    read_share_fetch_request,
    write_share_acknowledge_response,
    write_share_fetch_response,
)
from tests.simulation.cluster import Partition
from tests.simulation.share_acquire import AcquiringWindow
from tests.simulation.share_store import NOT_LEADER, UNKNOWN_SERVER_ERROR, Place, ShareStore
from tests.simulation.share_window import ACTIVE, EMPTY, FENCED, INVALID_REQUEST

if TYPE_CHECKING:
    from tests.simulation.broker import Broker

SHARE_FETCH, SHARE_ACKNOWLEDGE = 78, 79
UNKNOWN_TOPIC, UNKNOWN_TOPIC_ID = 3, 100
SESSION_NOT_FOUND, INVALID_EPOCH = 122, 123
DISCONNECT_S = 0.004
PORT = 9092
next_of = attrgetter("next_offset")
Answer = Callable[[list[Any]], None]
Answers = dict[Place, ShareAnswer]


@dataclass(eq=False)
class _Session:
    group: str
    member: str
    epoch: int
    places: dict[Place, None]
    owner: _Owner


@dataclass(eq=False)
class _Owner:
    """A connection's part in the session that it has opened last."""

    key: tuple[str, str]
    is_stale: bool = False


@dataclass(eq=False)
class _Pending:
    """A request, until both its outcomes and its fetch are over."""

    left: int
    done: Callable[[], None]
    answers: Answers = field(default_factory=dict)
    codes: dict[Place, tuple[int, str | None]] = field(default_factory=dict)

    def over(self) -> None:
        self.left -= 1
        if not self.left:
            self.done()


class ShareBroker:
    """One broker's part."""

    def __init__(self, broker: Broker, store: ShareStore) -> None:
        self._broker, self._store = broker, store
        self._cluster, self._world = broker.cluster, broker.world
        self._sessions: dict[tuple[str, str], _Session] = {}
        self._owners: dict[Any, _Owner] = {}
        self._windows: dict[Place, AcquiringWindow] = {}
        self._life = 0
        """Number of the process."""
        self._cluster.on_elected.append(self._on_elected)

    # Time, as far as the process lives and is not stopped.
    def later(self, seconds: float, do: Callable[[], None]) -> None:
        """Have something done in this life of the broker."""
        life = self._life

        def due() -> None:
            if life != self._life:
                return
            if self._broker.is_hung:
                self._broker.held.append(due)
            else:
                do()

        if seconds:
            self._world.after(seconds, due)
        else:
            due()

    def crash(self) -> None:
        """Forget all, as a process that dies does."""
        self._life += 1
        for window in self._windows.values():
            window.state = FENCED
        self._sessions.clear()
        self._owners.clear()
        self._windows.clear()

    def connection_lost(self, connection: Any) -> None:
        """End the session that a connection has opened last."""
        self.later(DISCONNECT_S, lambda: self._disconnect(connection))

    def _disconnect(self, connection: Any) -> None:
        owner = self._owners.pop(connection, None)
        if owner is None:
            return
        if not owner.is_stale:
            self._release_session(owner.key)
        group = owner.key[0]
        if not any(key[0] == group for key in self._sessions):
            for place in [each for each in self._windows if each[0] == group]:
                self._remove(place)

    def _on_elected(self, partition: Partition) -> None:
        for place, window in list(self._windows.items()):
            if window.partition is partition and partition.leader_id != self._broker.broker_id:
                self._remove(place)

    def _remove(self, place: Place) -> None:
        self._windows.pop(place).fence()

    # Sessions.
    def _open(self, connection: Any, key: tuple[str, str], places: Sequence[Place]) -> None:
        self._drop(key)
        if connection not in self._owners:
            # keylane opens each session twice: the first one has released what was locked.
            for place in places:
                opened = self._store.ledger.opened[place]
                opened.append((self._world.now_s, connection.end.peer.host))
        owner = self._owners[connection] = _Owner(key)
        self._sessions[key] = _Session(*key, 1, dict.fromkeys(places), owner)

    def _drop(self, key: tuple[str, str]) -> _Session | None:
        session = self._sessions.pop(key, None)
        if session is not None:
            session.owner.is_stale = True
        return session

    def _release_session(self, key: tuple[str, str]) -> None:
        session = self._drop(key)
        for place in () if session is None else session.places:
            window = self._windows.get(place)
            if window is not None:
                window.release(key[1])
                window.wake()

    # Requests.
    def handle(
        self, connection: Any, key: int, version: int, frame: bytes, at: int, answer: Answer
    ) -> None:
        """Answer ShareFetch or ShareAcknowledge."""
        if key == SHARE_FETCH:
            fetch = read_share_fetch_request(frame, at, version)
            self._fetch(connection, fetch, version, answer)
        else:
            acknowledge = read_share_acknowledge_request(frame, at, version)
            self._acknowledge(acknowledge, version, answer)

    def _place(self, group: str, topic_id: bytes | None, index: int) -> tuple[Place, int]:
        found = self._broker.partition_of(None, topic_id, index)
        if isinstance(found, int):
            return (group, "", index), found
        return (group, found.topic, index), 0

    def _fetch(
        self, connection: Any, request: ShareFetchRequest, version: int, answer: Answer
    ) -> None:
        key = request.group, request.member_id
        named: dict[Place, tuple[AckBatch, ...]] = {}
        for topic in request.topics:
            for entry in topic.partitions:
                place, _ = self._place(request.group, topic.topic_id, entry.partition)
                named[place] = entry.acks

        def refuse(code: int) -> None:
            answer(list(write_share_fetch_response(ShareResponse(error_code=code))))

        amounts = request.max_wait_ms, request.min_bytes, request.max_bytes, request.max_records
        if request.is_renewal and any(amounts):
            refuse(INVALID_REQUEST)
            return
        session = self._sessions.get(key)
        places = self._enter(connection, request, named)
        if isinstance(places, int):
            refuse(places)
            return
        is_later = request.epoch not in (INITIAL_EPOCH, FINAL_EPOCH)
        expected = next_epoch(request.epoch) if is_later else None

        def done() -> None:
            if expected is not None and session is not None and session.epoch != expected:
                refuse(INVALID_EPOCH)
            else:
                response = self._response(pending, is_all=expected is None)
                answer(list(write_share_fetch_response(response)))
            if request.epoch == FINAL_EPOCH:
                self._release_session(key)

        pending = _Pending(2, done)
        self._take_acks(request, named, pending, version)
        if request.is_renewal:
            pending.over()
        else:
            self._begin_fetch(request, places, pending)

    def _enter(
        self,
        connection: Any,
        request: ShareFetchRequest,
        named: dict[Place, tuple[AckBatch, ...]],
    ) -> list[Place] | int:
        """Open or go on with a session: return the partitions to be fetched, or an error."""
        key = request.group, request.member_id
        session = self._sessions.get(key)
        if request.epoch == INITIAL_EPOCH:
            if any(named.values()):
                return INVALID_REQUEST
            self._open(connection, key, tuple(named))
            return list(named)
        if session is None:
            return SESSION_NOT_FOUND
        if request.epoch == FINAL_EPOCH:
            return []
        if session.epoch != request.epoch:
            return INVALID_EPOCH
        session.places.update(dict.fromkeys(named))
        for gone in request.forgotten:
            for index in gone.partitions:
                session.places.pop(self._place(request.group, gone.topic_id, index)[0], None)
        session.epoch = next_epoch(session.epoch)
        return list(session.places)

    def _begin_fetch(
        self, request: ShareFetchRequest, places: Sequence[Place], pending: _Pending
    ) -> None:
        if not places or not request.max_records or not request.max_bytes:
            pending.over()
            return
        windows: dict[Place, AcquiringWindow] = {}
        for place in places:
            window = self._window(place)
            if isinstance(window, int):
                pending.answers[place] = ShareAnswer(place[2], window)
            else:
                windows[place] = window
        if not windows:
            pending.over()
            return
        _Fetch(self, request, windows, pending).begin()

    def _window(self, place: Place) -> AcquiringWindow | int:
        """Return a window, which may be loading, or an error code."""
        window = self._windows.get(place)
        if window is not None and window.state != FENCED:
            return window
        topic = self._cluster.topics.get(place[1])
        if topic is None or place[2] >= len(topic.partitions):
            return UNKNOWN_TOPIC if place[1] else UNKNOWN_TOPIC_ID
        partition = topic.partitions[place[2]]
        if partition.leader_id != self._broker.broker_id:
            return NOT_LEADER
        window = self._windows[place] = AcquiringWindow(
            place, partition, self._store, self.later, lambda: self._world.now_s
        )
        return window

    def load(self, place: Place, window: AcquiringWindow) -> None:
        """Have a new window read its state."""

        def loaded(code: int) -> None:
            if code and self._windows.get(place) is window:
                window.error_code = code
                del self._windows[place]

        if window.state == EMPTY and place in self._store.initialised:
            window.load(loaded)

    def _acknowledge(self, request: ShareAcknowledgeRequest, version: int, answer: Answer) -> None:
        key = request.group, request.member_id

        def respond(response: ShareResponse) -> None:
            answer(list(write_share_acknowledge_response(response, version)))

        session = self._sessions.get(key)
        code = 0
        if request.epoch == INITIAL_EPOCH:
            code = INVALID_EPOCH
        elif session is None:
            code = SESSION_NOT_FOUND
        elif request.epoch not in (FINAL_EPOCH, session.epoch):
            code = INVALID_EPOCH
        if code or session is None:
            respond(ShareResponse(error_code=code))
            return
        if request.epoch != FINAL_EPOCH:
            session.epoch = next_epoch(session.epoch)
        named = {
            self._place(request.group, topic.topic_id, entry.partition)[0]: entry.acks
            for topic in request.topics
            for entry in topic.partitions
        }

        def done() -> None:
            if request.epoch == FINAL_EPOCH:
                self._release_session(key)
            for place, (found, message) in pending.codes.items():
                pending.answers[place] = ShareAnswer(place[2], found, message)
            pending.codes = {}
            respond(self._response(pending, is_all=True))

        pending = _Pending(1, done)
        self._take_acks(request, named, pending, version)

    def _take_acks(
        self,
        request: ShareFetchRequest | ShareAcknowledgeRequest,
        named: dict[Place, tuple[AckBatch, ...]],
        pending: _Pending,
        version: int,
    ) -> None:
        wanted = {place: acks for place, acks in named.items() if acks}
        pending.left += len(wanted)

        def judged(place: Place, code: int, message: str | None) -> None:
            pending.codes[place] = code, message
            pending.over()

        for place, acks in wanted.items():
            has_renewal = any(RENEW in each.types for each in acks)
            window = self._windows.get(place)
            if has_renewal and not (request.is_renewal and version >= 2):
                judged(place, INVALID_REQUEST, None)
            elif window is None:
                judged(place, UNKNOWN_TOPIC, None)
            else:
                window.acknowledge(request.member_id, acks, partial(self._judge, place, judged))
                window.wake()
        pending.over()

    def _judge(
        self,
        place: Place,
        judged: Callable[[Place, int, str | None], None],
        code: int,
        message: str | None,
    ) -> None:
        if code == NOT_LEADER and place in self._windows:
            self._remove(place)
        judged(place, code, message)

    def _response(self, pending: _Pending, *, is_all: bool) -> ShareResponse:
        answers = {
            place: each
            for place, each in pending.answers.items()
            if is_all or each.error_code or each.acquired
        }
        for place, (code, message) in pending.codes.items():
            known = answers.get(place, ShareAnswer(place[2], records=()))
            answers[place] = known._replace(ack_error_code=code, ack_error_message=message)
        endpoints: dict[int, NodeEndpoint] = {}
        by_topic: dict[bytes, list[ShareAnswer]] = {}
        for place, each in list(answers.items()):
            topic = self._cluster.topics.get(place[1])
            if topic is None:
                continue
            if NOT_LEADER in (each.error_code, each.ack_error_code):
                partition = topic.partitions[place[2]]
                leader = partition.leader_id
                if leader > 0:
                    endpoints[leader] = NodeEndpoint(leader, f"kafka{leader}", PORT, None)
                answers[place] = each._replace(leader_id=leader, leader_epoch=partition.epoch)
            by_topic.setdefault(topic.topic_id.bytes, []).append(answers[place])
        groups = {place[0] for place in answers}
        lock_s = min((self._store.times_of(each).lock_s for each in groups), default=4.0)
        return ShareResponse(
            lock_ms=int(1000 * lock_s),
            topics=tuple(KeyedTopic(None, id_, tuple(each)) for id_, each in by_topic.items()),
            endpoints=tuple(endpoints.values()),
        )

    def read_log(self, window: AcquiringWindow, offset: int, bytes_max: int) -> tuple[int, int]:
        """Return the batches of the log from an offset on, as a slice."""
        log = window.partition.log
        first = last = bisect_right(log.batches, offset, key=next_of)
        size = 0
        while last < len(log.batches) and (last == first or size < bytes_max):
            size += len(log.wires[last])
            last += 1
        return first, last


class _Fetch:
    """A fetch that waits until there is something, or its time is over."""

    def __init__(
        self,
        shares: ShareBroker,
        request: ShareFetchRequest,
        windows: dict[Place, AcquiringWindow],
        pending: _Pending,
    ) -> None:
        self._shares, self._request = shares, request
        self._windows, self._pending = windows, pending
        self._is_over = False

    def begin(self) -> None:
        """Try at once, then at every change."""
        for place, window in self._windows.items():
            self._shares.load(place, window)
        self._attempt()
        if not self._is_over:
            self._shares.later(max(0.0005, self._request.max_wait_ms / 1000), self._end)

    def _attempt(self) -> None:
        if self._is_over:
            return
        has_error = any(window.error_code for window in self._windows.values())
        sizes = 0
        ready = [window for window in self._windows.values() if window.can_acquire]
        for window in ready:
            offset = window.next_offset()
            first, last = self._shares.read_log(window, offset, self._request.max_bytes)
            sizes += sum(map(len, window.partition.log.wires[first:last]))
        if has_error or (ready and sizes >= self._request.min_bytes):
            self._end()
            return
        for window in self._windows.values():
            window.watchers.append(self._woken)
            window.partition.waiters.append(self._woken)

    def _woken(self) -> None:
        self._shares.later(0, self._attempt)

    def _end(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        room = self._request.max_records
        for place, window in self._windows.items():
            if window.error_code:
                self._pending.answers[place] = ShareAnswer(place[2], window.error_code)
                continue
            if window.state == EMPTY:
                self._pending.answers[place] = ShareAnswer(place[2], UNKNOWN_SERVER_ERROR)
                continue
            if window.state != ACTIVE or not window.can_acquire:
                continue
            room -= self._acquire(place, window, room)
        self._pending.over()

    def _acquire(self, place: Place, window: AcquiringWindow, room: int) -> int:
        request, log = self._request, window.partition.log
        offset = window.next_offset()
        first, last = self._shares.read_log(window, offset, request.max_bytes)
        batches = log.batches[first:last]
        acquired = window.acquire(
            request.member_id, request.acquire_mode, request.batch_size, room, batches, offset
        )
        wires: Sequence[bytes] = ()
        if acquired:
            low, high = acquired[0].first, acquired[-1].last
            wires = [
                wire
                for batch, wire in zip(batches, log.wires[first:last], strict=True)
                if batch.next_offset > low and batch.base_offset <= high
            ]
        self._pending.answers[place] = ShareAnswer(
            place[2], records=wires, acquired=tuple(acquired)
        )
        return sum(each.last - each.first + 1 for each in acquired)
