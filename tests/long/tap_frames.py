"""Reads the tap's frames: positions in requests and answers, commits, and offsets of fetches.

Source: OffsetCommit, OffsetFetch, ListOffsets, Fetch and Metadata messages of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from keylane.wire.fetch import read_fetch_request, read_fetch_response
from keylane.wire.header import (
    ApiKey,
    RequestHeader,
    read_request_header,
    response_body_position,
)
from keylane.wire.messages import read_request, read_response
from tests.long.chaos_history import (
    Answer,
    Commit,
    Event,
    Fetched,
    OutOfRange,
    Place,
    Reset,
)

WATCHED: Final = frozenset(
    {
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.METADATA,
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
    }
)
OFFSET_OUT_OF_RANGE: Final = 1
Lane = tuple[Place, Any]


@dataclass(slots=True)
class _Asked:
    header: RequestHeader
    body: Any
    at_s: float


@dataclass(slots=True)
class TapBook:
    """State that all connections share."""

    note: Callable[[str, Event], None]
    """Takes an event and its owner: a group, or a client id where the request names no group."""
    topic_of: Callable[[str], str | None]
    followed: frozenset[str] = frozenset()
    """Topics of which all offsets that members fetch from are noted."""
    names: dict[bytes, str] = field(default_factory=dict)
    """Topics by id, from metadata."""
    fetched: dict[tuple[str, Place], int] = field(default_factory=dict)
    """Offset of the latest Fetch since an answered position, by member and lane."""

    def open(self) -> TapConnection:
        """A new connection."""
        return TapConnection(self)

    def lanes(self, topics: Any) -> Iterator[Lane]:
        """Each watched lane of a message's topics, with its entry."""
        for topic in topics or ():
            name = getattr(topic, "name", None)
            if name is None:
                name = self.names.get(_id_bytes(topic.topic_id), "")
            known = self.topic_of(name)
            if known is None:
                continue
            for entry in topic.partitions:
                index = getattr(entry, "partition_index", None)
                yield Place(known, entry.partition if index is None else index), entry


class TapConnection:
    """Frames of one connection, in their order."""

    def __init__(self, book: TapBook) -> None:
        self._book = book
        self._pending: dict[int, _Asked] = {}

    def asked(self, frame: bytes, at_s: float) -> None:
        """A request. Raises: FrameInvalid."""
        header = read_request_header(frame)
        if header.api_key not in WATCHED:
            return
        if header.api_key == ApiKey.FETCH:
            body: Any = read_fetch_request(frame, header.body_position, header.api_version)
            self._note_fetch(header.client_id or "", body, at_s)
        else:
            rest = memoryview(frame)[header.body_position :]
            body = read_request(header.api_key, header.api_version, rest)
        if header.api_key == ApiKey.LIST_OFFSETS:
            for place, _ in self._book.lanes(body.topics):
                member = header.client_id or ""
                self._book.note(member, Reset(member, place, at_s))
        self._pending[header.correlation_id] = _Asked(header, body, at_s)

    def answered(self, frame: bytes, at_s: float) -> None:
        """An answer. Raises: FrameInvalid."""
        asked = self._pending.pop(int.from_bytes(frame[:4], signed=True), None)
        if asked is None:
            return
        key, version = asked.header.api_key, asked.header.api_version
        if key == ApiKey.FETCH:
            self._note_fetch_answer(asked, frame, at_s)
            return
        rest = memoryview(frame)[response_body_position(key, version) :]
        body = read_response(key, version, rest)
        if key == ApiKey.METADATA:
            for topic in body.topics:
                if topic.name and getattr(topic, "topic_id", None) is not None:
                    self._book.names[_id_bytes(topic.topic_id)] = topic.name
        elif key == ApiKey.OFFSET_COMMIT:
            errors = {
                place: int(entry.error_code) for place, entry in self._book.lanes(body.topics)
            }
            self._note_commit(asked, at_s, errors)
        elif key == ApiKey.OFFSET_FETCH:
            self._note_positions(asked, body, at_s)

    def closed(self) -> None:
        """No more answers come."""
        for asked in self._pending.values():
            if asked.header.api_key == ApiKey.OFFSET_COMMIT:
                self._note_commit(asked, None, {})
        self._pending.clear()

    def _note_commit(self, asked: _Asked, at_s: float | None, errors: dict[Place, int]) -> None:
        body = asked.body
        for place, entry in self._book.lanes(body.topics):
            commit = Commit(
                member=asked.header.client_id or "",
                place=place,
                offset=entry.committed_offset,
                generation=body.generation_id_or_member_epoch,
                asked_s=asked.at_s,
            )
            if at_s is not None:
                commit = Commit(
                    commit.member,
                    place,
                    commit.offset,
                    commit.generation,
                    asked.at_s,
                    at_s,
                    errors.get(place, -1),
                )
            self._book.note(body.group_id, commit)

    def _note_positions(self, asked: _Asked, body: Any, at_s: float) -> None:
        if hasattr(body, "groups"):
            found = [(each.group_id, each.error_code, each.topics) for each in body.groups]
        else:
            code = getattr(body, "error_code", 0)
            found = [(asked.body.group_id, code, body.topics)]
        member = asked.header.client_id or ""
        for group, code, topics in found:
            if int(code) != 0:
                continue
            for place, entry in self._book.lanes(topics):
                if int(entry.error_code) == 0:
                    self._book.fetched.pop((member, place), None)
                    offset = entry.committed_offset
                    self._book.note(group, Answer(member, place, offset, asked.at_s, at_s))

    def _note_fetch(self, member: str, body: Any, at_s: float) -> None:
        fetched = self._book.fetched
        for place, entry in self._book.lanes(body.topics):
            last = fetched.get((member, place))
            offset = entry.fetch_offset
            is_first = last is None or offset < last
            if is_first or (offset != last and place.topic in self._book.followed):
                self._book.note(member, Fetched(member, place, offset, at_s, is_first))
            fetched[member, place] = entry.fetch_offset

    def _note_fetch_answer(self, asked: _Asked, frame: bytes, at_s: float) -> None:
        key, version = asked.header.api_key, asked.header.api_version
        body = read_fetch_response(frame, response_body_position(key, version), version)
        offsets = {
            place: entry.fetch_offset for place, entry in self._book.lanes(asked.body.topics)
        }
        member = asked.header.client_id or ""
        for place, entry in self._book.lanes(body.topics):
            if entry.error_code == OFFSET_OUT_OF_RANGE:
                offset = offsets.get(place, -1)
                self._book.note(member, OutOfRange(member, place, offset, at_s))


def _id_bytes(topic_id: Any) -> bytes:
    """Return the bytes of a topic id of either codec."""
    if topic_id is None:
        return bytes(16)
    return bytes(topic_id) if isinstance(topic_id, bytes | memoryview) else topic_id.bytes
