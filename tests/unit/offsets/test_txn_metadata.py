"""What a transaction commits of lanes, or a push counts on, as metadata of Kafka's offset."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.keyrange.key_split import even_split
from keylane.keyrange.space import HASH_MAX, KeyRange
from keylane.offsets.lineage import EpochStart
from keylane.offsets.scan import ScanIndex
from keylane.offsets.state import OffsetState
from keylane.offsets.txn_metadata import (
    PREFIX,
    LaneCommit,
    LaneNote,
    apply_note,
    merged,
    read_note,
    said_note,
    write_note,
)
from keylane.offsets.values import OwnerEpoch, Pusher

TOPIC = uuid.UUID(int=0xA1)
OTHER = uuid.UUID(int=0xB2)
PUSHER = Pusher(OwnerEpoch(1000, 3), 1_700_000_000)
PUSHERS_THAT_ARE_NONE = [
    "7", "[7,1]", "[-1,0,0]", "[7,32768,0]", "[7,0,-1]", '["7",0,0]', "[true,0,0]", "{}",
]  # fmt: skip


def commit(lane: int, offset: int, *, count: int = 4, **fields) -> LaneCommit:
    return LaneCommit(key_range=even_split(count).key_range(lane), offset=offset, **fields)


def scan(count: int = 4) -> ScanIndex:
    return ScanIndex(even_split(count))


@st.composite
def lane_commits(draw: st.DrawFn, lane_count: int | None = None) -> tuple[LaneCommit, ...]:
    """Of any key ranges, or of lanes of one layout."""
    commits = []
    for _ in range(draw(st.integers(0, 6))):
        count = lane_count or draw(st.integers(1, 1024))
        key_range = even_split(count).key_range(draw(st.integers(0, count - 1)))
        if lane_count is None and draw(st.booleans()):
            bounds = draw(st.tuples(st.integers(0, HASH_MAX), st.integers(0, HASH_MAX)))
            key_range = KeyRange(min(bounds), max(bounds))
        text = draw(st.none() | st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
        commits.append(
            LaneCommit(
                key_range=key_range,
                offset=draw(st.integers(0, 2**63 - 1)),
                leader_epoch=draw(st.integers(-1, 2**31 - 1)),
                metadata=text,
            )
        )
    return tuple(commits)


@st.composite
def notes(draw: st.DrawFn, lane_count: int | None = None) -> LaneNote:
    """Any note of a transaction or a push."""
    commits, said = draw(lane_commits(lane_count)), draw(lane_commits(lane_count))
    epochs = st.builds(EpochStart, st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))
    owners = st.builds(OwnerEpoch, st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1))
    pushers = st.builds(Pusher, owners, st.integers(0, 2**63 - 1))
    seen, pusher = draw(st.none() | epochs), draw(st.none() | pushers)
    return LaneNote(draw(st.integers(0, 2**63 - 1)), commits, seen, pusher, said=said)


@given(notes())
def test_a_note_is_read_as_it_was_written(note: LaneNote) -> None:
    """Every field comes back."""
    text = write_note(TOPIC, note)
    assert read_note(text, TOPIC, note.position) == note
    assert text.endswith("\0") and read_note(text[:-1], TOPIC, note.position) == note


def test_a_note_of_lanes_by_another_hash_does_not_count() -> None:
    """Its key ranges mean other keys: what it stands beside is then the offset alone."""
    note = LaneNote(10, (commit(1, 12),))
    plain, hashed = write_note(TOPIC, note), write_note(TOPIC, note, "murmur2/3/1")

    read = [
        [read_note(text, TOPIC, 10, tag) is not None for tag in ("", "murmur2/3/1", "murmur2/4/1")]
        for text in (plain, hashed)
    ]

    assert read == [[True, False, False], [False, True, False]]


def test_a_note_is_short() -> None:
    """256 lanes fit into the 4096 characters that a broker takes by default."""
    note = LaneNote(10**12, tuple(commit(lane, 10**12 + 999, count=256) for lane in range(256)))

    assert len(write_note(TOPIC, note)) < 4096


def test_what_was_said_is_left_out_of_a_note_where_it_is_long() -> None:
    """200 lanes still fit into what a broker takes; without, the note stands for as much."""
    said = tuple(commit(lane, 10**12 + 99, count=1024, leader_epoch=3) for lane in range(201))
    long = LaneCommit(said[0].key_range, 10**12, metadata="m" * 4000)
    some, many, much = (LaneNote(10**12, (), said=each) for each in (said[:200], said, (long,)))

    assert read_note(write_note(TOPIC, some), TOPIC, 10**12) == some
    assert len(write_note(TOPIC, some)) < 4096
    short = write_note(TOPIC, LaneNote(10**12, ()))
    assert write_note(TOPIC, many) == write_note(TOPIC, much) == short


def test_a_push_of_what_members_said_says_no_more_than_its_pusher() -> None:
    """All lanes were committed so far; a keylane that does not know pushers finds no note."""
    text = said_note(TOPIC, 10, PUSHER)

    assert read_note(text, TOPIC, 10) == LaneNote(10, (), pusher=PUSHER, is_said=True)
    assert not text.startswith(PREFIX) and text.endswith("\0") and len(text) < 120
    assert said_note(TOPIC, 10, None) == ""


@pytest.mark.parametrize("epoch", ["7", "[7]", "[-1,0]", "[7,-1]", '["7",0]', "[true,0]", "{}"])
def test_an_epoch_that_is_none_makes_no_note(epoch: str) -> None:
    """Anybody can write metadata."""
    text = f'{{"keylane":1,"topic":"{TOPIC.hex}","at":7,"lanes":[],"epoch":{epoch}}}'

    assert read_note(text, TOPIC, 7) is None


@pytest.mark.parametrize("pusher", PUSHERS_THAT_ARE_NONE)
@pytest.mark.parametrize("version", [1, 2])
def test_a_pusher_that_is_none_makes_no_note(pusher: str, version: int) -> None:
    """Anybody can write metadata."""
    text = f'{{"keylane":{version},"topic":"{TOPIC.hex}","at":7,"lanes":[],"pusher":{pusher}}}'

    assert read_note(text, TOPIC, 7) is None


def test_a_note_beside_another_offset_or_topic_is_nobodys() -> None:
    """A tool that copies offsets with their metadata copies no positions."""
    text = write_note(TOPIC, LaneNote(7, (commit(0, 9),)))

    assert read_note(text, TOPIC, 7) is not None
    assert read_note(text, TOPIC, 8) is None
    assert read_note(text, OTHER, 7) is None
    assert read_note(text, TOPIC, None) is None


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "m",
        '{"keylane":2}',
        '{"keylane":1,',
        '{"keylane":1,"topic":"t"}',
        '{"keylane":1,"topic":3,"at":7,"lanes":[]}',
        *(
            '{"keylane":1,"topic":"000000000000000000000000000000a1","at":7,"lanes":' + lanes + "}"
            for lanes in (
                "3", "null", "[3]", "[[]]", "[[4]]", "[[4,0]]", "[[4,4,0]]", "[[0,0,0]]",
                "[[2000,0,0]]", "[[4,-1,0]]", "[[4,0,-8]]", "[[4,0,1e3]]", "[[4,0,true]]",
                "[[4,0,9223372036854775807]]", "[[4,0,1,-2]]", "[[4,0,1,2147483648]]",
                '[[4,0,1,"m"]]', "[[4,0,1,1,1]]", '[[4,0,1,1,"m",1]]', "[" * 100_000,
                '[["0","x",0]]', '[["5","4",0]]', '[["0","8000000000000000",0]]', '[["0",4,0]]',
                '[[4,"0",0]]', '[["00000000000000000","1",0]]', '[["-1","1",0]]', "[[true,0,0]]",
            )
        ),
    ],
)  # fmt: skip
def test_nonsense_is_no_note(text: str | None) -> None:
    """Clients write what they like into their metadata."""
    assert read_note(text, TOPIC, 7) is None


@pytest.mark.parametrize("said", ["3", "null", "[3]", "[[4,0]]", "[[4,4,0]]", "[[4,0,-8]]"])
def test_nonsense_that_was_said_makes_no_note(said: str) -> None:
    """As with the lanes of a transaction."""
    text = f'{{"keylane":1,"topic":"{TOPIC.hex}","at":7,"lanes":[],"said":{said}}}'

    assert read_note(text, TOPIC, 7) is None


def test_a_key_range_that_is_no_even_lane_stands_as_its_bounds() -> None:
    """A plan's lane, or what a client id was given; an even lane stays as short as it was."""
    cut = LaneCommit(key_range=KeyRange(10, 255), offset=9)
    text = write_note(TOPIC, LaneNote(7, (cut, commit(3, 8))))

    assert '"lanes":[["a","ff",2],[4,3,1]]' in text
    note = read_note(text, TOPIC, 7)
    assert note is not None and note.commits == (cut, commit(3, 8))


def test_later_commits_of_a_lane_replace_earlier_ones() -> None:
    """One entry per lane and lane count, in the order in which they were said last."""
    first = (commit(0, 5), commit(1, 6))
    second = (commit(0, 9), commit(0, 7, count=8))

    assert merged(first, second) == (commit(1, 6), commit(0, 9), commit(0, 7, count=8))


def test_a_state_stands_as_if_the_lanes_had_committed() -> None:
    """Applied to what was before; a second time it changes nothing."""
    state = OffsetState(committed=100)
    direct = state.copy()
    for lane, offset in ((0, 120), (2, 110)):
        direct.commit_keys((even_split(4).key_range(lane),), offset, f"m{lane}", 3)
    direct.mark_pushed(100)
    note = LaneNote(
        100,
        tuple(
            commit(lane, offset, metadata=f"m{lane}", leader_epoch=3)
            for lane, offset in ((0, 120), (2, 110))
        ),
    )

    apply_note(state, note, scan())
    once = state.copy()
    apply_note(state, note, scan())

    assert once == direct == state
    state.check()


def test_lanes_without_records_stand_at_the_stable_position() -> None:
    """A scan had counted them on; the one that applies the note knows nothing of it."""
    state = OffsetState(committed=100)

    apply_note(state, LaneNote(120, (commit(0, 120),)), scan())

    assert state.stable_position == state.pushed == 120
    assert [p.counted for _, _, p in state.positions()] == [120, 120]


def test_lanes_that_never_committed_go_on_below_a_push_that_counts_them() -> None:
    """What a member says of them later is no step back, as where they start was assumed."""
    state = OffsetState(committed=None, base=10)

    apply_note(state, LaneNote(120, ()), scan())
    outcome = state.commit_keys((even_split(4).key_range(0),), 30)

    assert outcome.back_from is None
    assert state.stable_position == state.pushed == 120


def test_a_member_goes_back_behind_what_it_said_with_a_push() -> None:
    """The journal lacks the push: lane 0 had said 120 with it, and lane 1 was led on from 105."""
    state = OffsetState(committed=100)
    state.commit_keys((even_split(4).key_range(1),), 105)

    apply_note(state, LaneNote(120, (), said=(commit(0, 120, leader_epoch=3),)), scan())

    assert [state.position_of(even_split(4).key_range(lane)).offset for lane in (0, 1)] == [120] * 2
    assert state.position_of(even_split(4).key_range(0)).leader_epoch == 3
    assert state.commit_keys((even_split(4).key_range(1),), 110).back_from is None
    assert state.commit_keys((even_split(4).key_range(0),), 110).back_from == 120
    assert state.stable_position == 110


def test_what_was_said_with_a_push_takes_no_lane_back() -> None:
    """It is older than what the state says of the lane."""
    state = OffsetState(committed=100)
    state.commit_keys((even_split(4).key_range(0),), 150, "m", 4)

    apply_note(state, LaneNote(120, (), said=(commit(0, 120, leader_epoch=3),)), scan())

    here = state.position_of(even_split(4).key_range(0))
    assert (here.offset, here.metadata, here.leader_epoch) == (150, "m", 4)


@given(notes(lane_count=3), notes(lane_count=4))
def test_applying_a_note_again_changes_nothing(before: LaneNote, note: LaneNote) -> None:
    """Whatever was there before, also when lanes go back; its lanes do not overlap."""
    commits = merged((), note.commits)  # of a transaction; what was said comes with a push
    note = LaneNote(note.position, commits, said=() if commits else note.said)
    state = OffsetState(committed=before.position)
    apply_note(state, before, scan())
    apply_note(state, note, scan())
    once = state.copy()

    apply_note(state, note, scan())

    assert state == once
    state.check()
