"""Notes beside stable positions in Kafka, as the metadata of the group's own offset.

Source: KIP-98 and KIP-447 (TxnOffsetCommit carries metadata per partition); docs/decisions/042.

Kafka makes offset and metadata of a TxnOffsetCommit visible together, and only when the
transaction commits. So the positions of lanes are exactly as transactional as the offset is.
The text is JSON:

    {"keylane":1,"topic":"<topic id>","at":<stable position>,"lanes":[[count,lane,offset],...]}

Beside a push of keylane's own there are no lanes, as the journal has them: the note says that the
position may stand beyond what members said. The lanes that the push was made for stand as `"said"`,
in the form of `"lanes"`, unless they are too many: should the journal never come to know of the
push, what a member said of its lane is kept apart from where a scan has led it. Of which log that
was concluded is said by `"epoch":[<leader epoch>,<first offset seen of it>]`, where it is known.
Which owner of the group has pushed it, and when, is said by `"pusher":[<producer id>,<epoch>,
<seconds since 1970>]`. Where members said all of it, there is nothing more, and the first number
is 2: a keylane from before that passes it over. A zero byte follows the text.
Where keys have another hash than XXH64, its tag stands as `"hash"`.
A key range that is no lane of equal ranges stands as two hexadecimal texts in the place of count
and lane. `offset` counts from `at`; the leader epoch, the client's own metadata, and offset ranges
above it as `[[first,last],...]`, which count from `at` as well, follow where there are any. A note
that does not fit the offset and topic it stands beside was copied there by some tool, and does not
count.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from keylane.keyrange.key_split import even_split
from keylane.keyrange.space import HASH_MAX, LANE_COUNT_MAX, KeyRange
from keylane.offsets.intervals import Range
from keylane.offsets.lineage import EpochStart
from keylane.offsets.scan import ScanIndex
from keylane.offsets.state import OffsetState
from keylane.offsets.values import (
    NO_LEADER_EPOCH,
    OFFSET_MAX,
    RANGE_LAST_MAX,
    CommitError,
    CommitOutcome,
    OwnerEpoch,
    Position,
    Pusher,
)

PREFIX: Final = '{"keylane":1,'
SAID_PREFIX: Final = '{"keylane":2,'
END: Final = "\0"
"""librdkafka's admin calls read metadata up to a zero byte, and go on behind it where there is none
(2.16, which copies them without one): half of all reads had more in them, and some raised."""
LEADER_EPOCH_MAX: Final = 2**31 - 1
OWNER_EPOCH_MAX: Final = 2**15 - 1
SAID_LANES_MAX: Final = 200
SAID_CHARS_MAX: Final = 3_840
"""A note beyond either goes without what was said: brokers take 4,096 characters by default, and
members may commit as many as metadata of a lane."""


@dataclass(frozen=True, slots=True)
class LaneCommit:
    """One lane's commit: all its records before `offset` are done."""

    key_range: KeyRange
    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str | None = None
    ranges: tuple[Range, ...] = ()
    """Offsets above it that are done as well, ascending."""

    @property
    def position(self) -> Position:
        """Return the position of the lane by it."""
        return Position(
            self.offset, self.offset, committed=True,
            metadata=self.metadata, leader_epoch=self.leader_epoch,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class LaneNote:
    """Note beside a stable position."""

    position: int
    commits: tuple[LaneCommit, ...]
    """Of a transaction."""
    seen: EpochStart | None = None
    """The leader epoch before the furthest conclusion of the state; None: it is not known."""
    pusher: Pusher | None = None
    """None: it is not known, or a transaction of a member has pushed it."""
    is_said: bool = False
    """Members said all of it: of positions the offset alone says as much."""
    said: tuple[LaneCommit, ...] = ()
    """Commits of members with the push, outside a transaction."""

    @property
    def is_push(self) -> bool:
        """True: it stands beside a push of keylane itself, outside a transaction."""
        return not self.commits


def write_note(topic_id: uuid.UUID, note: LaneNote, hash_tag: str = "") -> str:
    """Encode a note; about 12 characters per lane. What was said is left out where it is long.

    hash_tag: of the `KeyHash` of the lanes.
    """
    lanes = [_entry(commit, note.position) for commit in note.commits]
    fields = {"keylane": 1, "topic": topic_id.hex, "at": note.position, "lanes": lanes}
    if hash_tag:
        fields["hash"] = hash_tag
    if note.seen is not None:
        fields["epoch"] = note.seen
    if note.pusher is not None:
        fields["pusher"] = [*note.pusher.owner, note.pusher.at_s]
    if 0 < len(note.said) <= SAID_LANES_MAX:
        said = [_entry(commit, note.position) for commit in note.said]
        text = _text(fields | {"said": said})
        if len(text) <= SAID_CHARS_MAX:
            return text
    return _text(fields)


def said_note(topic_id: uuid.UUID, position: int, pusher: Pusher | None) -> str:
    """Return the note of a push of members' own positions, as most are; "": none is needed."""
    if pusher is None:
        return ""
    (producer_id, epoch), at_s = pusher
    return (
        f'{SAID_PREFIX}"topic":"{topic_id.hex}","at":{position},'
        f'"pusher":[{producer_id},{epoch},{at_s}]}}{END}'
    )


def read_note(
    text: str | None, topic_id: uuid.UUID, committed: int | None, hash_tag: str = ""
) -> LaneNote | None:
    """Decode the metadata of a group offset; None: it is no note, or not of this offset.

    Nor is it one where its lanes are of another key hash: the offset alone counts then.
    """
    if text is None or not text.startswith((PREFIX, SAID_PREFIX)):
        return None
    try:
        fields = json.loads(text.removesuffix(END))
        position = fields["at"]
        if fields["topic"] != topic_id.hex or type(position) is not int or position != committed:
            return None
        pusher = _pusher(fields.get("pusher"))
        if text.startswith(SAID_PREFIX):
            return LaneNote(position, (), pusher=pusher, is_said=True)
        if fields.get("hash", "") != hash_tag:
            return None
        commits, said = (
            tuple(_commit(entry, position) for entry in entries)
            for entries in (fields["lanes"], fields.get("said", ()))
        )
        return LaneNote(position, commits, _seen(fields.get("epoch")), pusher, said=said)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def apply_commit(state: OffsetState, commit: LaneCommit, scan: ScanIndex) -> CommitOutcome:
    """Commit one lane to a state."""
    outcome = state.commit_keys(
        (commit.key_range,), commit.offset, commit.metadata, commit.leader_epoch, scan
    )
    if commit.ranges and outcome.error is CommitError.NONE:
        return state.commit_ranges(commit.ranges, (commit.key_range,), scan)
    return outcome


def apply_note(state: OffsetState, note: LaneNote, scan: ScanIndex) -> None:
    """Bring a state from before a transaction to where it stands after.

    Doing it again changes nothing, as long as the lanes do not overlap.

    Lanes without records were counted on to the stable position by a scan that this process may
    not have done: Kafka's offset stands for it all the same. It does so once: a log that was cut
    since takes it back.
    """
    for said in note.said:
        state.raise_to(said.position, said.key_range)
    for commit in note.commits:
        apply_commit(state, commit, scan)
    state.settle(scan)
    if state.pushed != note.position:
        state.conclude(note.position)
    state.mark_pushed(note.position)


def merged(earlier: Iterable[LaneCommit], later: Iterable[LaneCommit]) -> tuple[LaneCommit, ...]:
    """Return the commits of one transaction: of each lane the last, in the order of arrival."""
    commits: dict[KeyRange, LaneCommit] = {}
    for commit in (*earlier, *later):
        commits.pop(commit.key_range, None)
        commits[commit.key_range] = commit
    return tuple(commits.values())


def _text(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")) + END


def _numbers(entry: Any, *largest: int) -> list[int]:
    """Return an entry's numbers, each from 0 to its largest. Raises: ValueError, TypeError."""
    for number, most in zip(entry, largest, strict=True):
        if type(number) is not int or not 0 <= number <= most:
            raise ValueError("no number, or out of bounds")
    return list(entry)


def _seen(entry: Any) -> EpochStart | None:
    """Raises: ValueError, TypeError."""
    return None if entry is None else EpochStart(*_numbers(entry, LEADER_EPOCH_MAX, OFFSET_MAX))


def _pusher(entry: Any) -> Pusher | None:
    """Raises: ValueError, TypeError."""
    if entry is None:
        return None
    producer_id, epoch, at_s = _numbers(entry, OFFSET_MAX, OWNER_EPOCH_MAX, OFFSET_MAX)
    return Pusher(OwnerEpoch(producer_id, epoch), at_s)


def _entry(commit: LaneCommit, position: int) -> list[Any]:
    key_range = commit.key_range
    lane = _even_lane(key_range)
    place = lane if lane is not None else (f"{key_range.lo:x}", f"{key_range.hi:x}")
    entry: list[Any] = [*place, commit.offset - position]
    if commit.leader_epoch != NO_LEADER_EPOCH or commit.metadata or commit.ranges:
        entry.append(commit.leader_epoch)
    if commit.metadata or commit.ranges:
        entry.append(commit.metadata or "")
    if commit.ranges:
        entry.append([[first - position, last - position] for first, last in commit.ranges])
    return entry


def _commit(entry: Any, position: int) -> LaneCommit:
    """Raises: ValueError, TypeError."""
    low, high, distance, *rest = entry
    leader_epoch = rest.pop(0) if rest else NO_LEADER_EPOCH
    metadata = rest.pop(0) if rest else None
    ranges = _ranges(rest.pop(0), position) if rest else ()
    numbers = (distance, leader_epoch)
    if any(type(number) is not int for number in numbers):
        raise ValueError("not a number")
    if rest or (metadata is not None and not isinstance(metadata, str)):
        raise ValueError("no text, or more than that")
    is_sound = (
        0 <= position + distance <= OFFSET_MAX
        and NO_LEADER_EPOCH <= leader_epoch <= LEADER_EPOCH_MAX
    )
    if not is_sound:
        raise ValueError("out of bounds")
    return LaneCommit(
        key_range=_key_range(low, high),
        offset=position + distance,
        leader_epoch=leader_epoch,
        metadata=(metadata or None) if ranges else metadata,
        ranges=ranges,
    )


def _ranges(entries: Any, position: int) -> tuple[Range, ...]:
    """Raises: ValueError, TypeError."""
    found = tuple((position + first, position + last) for first, last in entries)
    if any(type(number) is not int for bounds in found for number in bounds):
        raise ValueError("not a number")
    if any(not 0 <= first <= last <= RANGE_LAST_MAX for first, last in found):
        raise ValueError("out of bounds")
    return found


@lru_cache(maxsize=4096)
def _even_lane(key_range: KeyRange) -> tuple[int, int] | None:
    """Return (count, lane) of a lane of equal ranges, which is shorter. None: it is none."""
    count = round(HASH_MAX / (key_range.hi - key_range.lo + 1))
    if not 1 <= count <= LANE_COUNT_MAX:
        return None
    lane = min(round(key_range.lo * count / HASH_MAX), count - 1)
    return (count, lane) if even_split(count).key_range(lane) == key_range else None


def _key_range(low: Any, high: Any) -> KeyRange:
    """Return that of a count and lane, or of two bounds. Raises: ValueError, TypeError."""
    if isinstance(low, str):
        if not len(low) <= 16 >= len(high):
            raise ValueError("out of bounds")
        return KeyRange(int(low, 16), int(high, 16))
    if type(low) is not int or type(high) is not int or not 1 <= low <= LANE_COUNT_MAX:
        raise ValueError("no lane")
    return even_split(low).key_range(high)
