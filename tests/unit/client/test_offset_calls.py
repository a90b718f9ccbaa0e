"""Commits as requests: how entries are dealt to them, and what they carry."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from keylane.client.offset_calls import (
    NO_OFFSET,
    CommitEntry,
    LoneMember,
    read_commit,
    split_entries,
    write_commit,
)
from keylane.client.values import TopicPartition
from keylane.keyrange.space import KeyRange
from keylane.wire import extensions as x
from keylane.wire.entities import error_code
from keylane.wire.offset_commit import (
    CommitAnswer,
    CommitResponse,
    NamedTopic,
    read_commit_request,
    write_commit_response,
)
from keylane.wire.primitives import read_tags, write_tags

PART = TopicPartition("t", 3)


@given(sizes=st.lists(st.integers(0, 12), max_size=8), ranges_max=st.integers(1, 7))
def test_no_request_has_too_many_ranges_and_none_is_missing(
    sizes: list[int], ranges_max: int
) -> None:
    """Entries keep their order; an entry without ranges is a plain commit."""
    entries = [
        CommitEntry(
            TopicPartition("t", number),
            NO_OFFSET if size else 5,
            tuple((number * 100 + 2 * i, number * 100 + 2 * i) for i in range(size)),
        )
        for number, size in enumerate(sizes)
    ]

    requests = list(split_entries(entries, ranges_max))

    assert all(sum(len(each.ranges) for each in request) <= ranges_max for request in requests)
    assert all(len({each.part for each in request}) == len(request) for request in requests)
    sent = [one for request in requests for each in request for one in each.ranges]
    assert sent == [one for each in entries for one in each.ranges]
    plain = [each for request in requests for each in request if not each.ranges]
    assert plain == [each for each in entries if not each.ranges]


def test_a_commit_has_its_member_ranges_and_keys() -> None:
    """One entry with all there is; the answer's codes and stable offset come back."""
    member = LoneMember("g", "m", 4, "i")
    entry = CommitEntry(PART, NO_OFFSET, ((1, 2), (4, 9)), (KeyRange(5, 6),))

    request = read_commit_request(write_commit(member, [entry], 9), 9)

    assert request[:3] == ("g", 4, "m")
    assert request.group_instance_id == "i"
    own = read_tags(request.topics[0].partitions[0].tags)
    assert x.read_pairs(own[x.OFFSET_RANGES]) == ((1, 2), (4, 9))
    assert x.read_key_ranges(own[x.KEY_RANGES]) == (KeyRange(5, 6),)

    tags = write_tags({x.DRAFT_ERROR: x.write_int16(91), x.STABLE_OFFSET: x.write_int64(7)})
    answer = CommitResponse((NamedTopic("t", (CommitAnswer(3, error_code(42), tags),)),))
    found = read_commit(memoryview(write_commit_response(answer, 9)), 9)
    assert found == {PART: (42, 91, 7)}
