"""Share sessions and acknowledgements of groups in key order, beside those of a broker."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.integration.share_stage import Member, Scene, ShareStage
from tests.integration.share_wire import (
    ACCEPT,
    GAP,
    RECORD_LIMIT,
    REJECT,
    RELEASE,
    Acks,
    Answer,
    Part,
    ShareClient,
    wait_until,
)

pytestmark = pytest.mark.timeout(400)  # kernels may have to be compiled first
BAD_STATE, NO_SESSION, BAD_EPOCH, INVALID = 121, 122, 123, 42
KEYS = tuple(f"k{number}" for number in range(20))
Story = Callable[[Scene, str], dict[str, Any]]


@pytest.fixture
def both_sides(scene, share_stage: ShareStage) -> Callable[[Story], tuple[Any, Any]]:
    """Run a story at the broker and through keylane, with a topic and a group for each."""

    def run(story: Story) -> tuple[Any, Any]:
        sides = [
            (scene(), bootstrap)
            for bootstrap in (share_stage.broker.bootstrap, share_stage.bootstrap)
        ]
        with ThreadPoolExecutor(len(sides)) as pool:
            direct, proxied = [each.result() for each in [pool.submit(story, *s) for s in sides]]
        return direct, proxied

    return run


def join_both(client: ShareClient, topics: list[str]) -> None:
    """Join until the partitions of both topics are assigned: a broker may see one of them first."""
    wait_until(lambda: len(client.join(topics)) == len(topics), "a partition of each topic")


def second(shown: Scene, member: Member, bootstrap: str) -> Member:
    """Return another member of the group; it has not joined."""
    return shown.again(member.topic_id, ShareClient(bootstrap, shown.group))


FORMS = {
    "beyond": 42,
    "of another member": 121,
    "one good, one bad": 121,
    "overlapping": 42,
    "descending": 42,
    "backwards": 42,
    "below 0": 42,
    "more types than offsets": 42,
    "no type": 42,
    "type 5": 42,
    "type -1": 42,
    "type 4 without the flag": 42,
    "GAP": 0,
    "below the window": 0,
    "a type for each": 0,
    "the rest": 0,
    "twice": 0,
}
"""Error codes of acknowledgements."""


def forms(shown: Scene, bootstrap: str) -> dict[str, Any]:
    shown.write(*KEYS)
    member = shown.join(bootstrap)
    other = second(shown, member, bootstrap)
    assert member.take(6, mode=RECORD_LIMIT) == dict.fromkeys(range(6), 1)
    assert other.take(2, mode=RECORD_LIMIT) == {6: 1, 7: 1}
    rows: dict[str, Acks] = {
        "beyond": [(500, 501, [ACCEPT])],
        "of another member": [(6, 7, [ACCEPT])],
        "one good, one bad": [(0, 0, [ACCEPT]), (7, 7, [ACCEPT])],
        "overlapping": [(1, 3, [ACCEPT]), (2, 4, [ACCEPT])],
        "descending": [(3, 4, [ACCEPT]), (0, 1, [ACCEPT])],
        "backwards": [(3, 2, [ACCEPT])],
        "below 0": [(-5, -1, [ACCEPT])],
        "more types than offsets": [(0, 1, [ACCEPT] * 3)],
        "no type": [(0, 1, [])],
        "type 5": [(0, 1, [5])],
        "type -1": [(0, 1, [-1])],
        "type 4 without the flag": [(0, 1, [4])],
        "GAP": [(0, 0, [GAP])],
        "below the window": [(0, 0, [ACCEPT])],
        "a type for each": [(1, 3, [ACCEPT, REJECT, GAP])],
        "the rest": [(4, 5, [ACCEPT])],
        "twice": [(4, 5, [ACCEPT])],
    }
    return {row: member.ack_ranges(*acks) for row, acks in rows.items()}


def test_acknowledgements_of_every_form(both_sides) -> None:
    """Bad ranges, types and offsets have the broker's codes, and refuse the good ones beside."""
    direct, proxied = both_sides(forms)

    assert proxied == direct == FORMS


SESSIONS = {
    "epoch 0 with outcomes": (INVALID, 0, 0),
    "no session": (NO_SESSION, 0, 0),
    "no session to close": (NO_SESSION, 0, 0),
    "ShareAcknowledge at epoch 0": (BAD_EPOCH, 0, 0),
    "a jump": (BAD_EPOCH, 0, 0),
    "the epoch of before": (BAD_EPOCH, 0, 0),
    "the right one after all": (0, 0, 0),
    "no member id": (INVALID, 0, 0),
    "a long member id": (INVALID, 0, 0),
    "outcomes of a partition that is not there": (0, 3, 0),
    "outcomes of a topic that is not there": (0, 100, 0),
    "a fetch of a partition that is not there": (0, 3, 0),
    "outcomes in it": (0, 3, 3),
}


def sessions(shown: Scene, bootstrap: str) -> dict[str, Any]:
    shown.write(*KEYS)
    member = shown.join(bootstrap)
    other = second(shown, member, bootstrap)
    member.take(1, mode=RECORD_LIMIT)
    epoch, topic_id = member.client.session_epoch, member.topic_id
    accept = [(0, 0, [ACCEPT])]

    def asked(client: ShareClient, *, epoch: int) -> Answer:
        return client.acknowledge(topic_id, acks=accept, epoch=epoch)

    rows = {
        "epoch 0 with outcomes": other.fetch(acks=accept),
        "no session": other.fetch(epoch=3),
        "no session to close": other.fetch(epoch=-1),
        "ShareAcknowledge at epoch 0": asked(member.client, epoch=0),
        "a jump": asked(member.client, epoch=epoch + 1),
        "the epoch of before": asked(member.client, epoch=epoch - 1),
        "the right one after all": asked(member.client, epoch=epoch),
    }
    for row, member_id in (("no member id", ""), ("a long member id", "m" * 37)):
        other.client.member_id = member_id
        rows[row] = other.fetch(max_wait_ms=0)
    client, nowhere = member.client, (topic_id, 9)
    rows["outcomes of a partition that is not there"] = client.acknowledge(*nowhere, acks=accept)
    rows["outcomes of a topic that is not there"] = client.acknowledge(
        uuid.UUID(int=7), acks=accept
    )
    codes = {row: answer.codes for row, answer in rows.items()}
    for row, acks in (("a fetch of a partition that is not there", ()), ("outcomes in it", accept)):
        part = client.fetch(*nowhere, acks=acks, max_wait_ms=0).parts.get(nowhere, Part())
        codes[row] = (0, part.error, part.ack_error)
    return codes


def test_epochs_and_places_that_are_not_there(both_sides) -> None:
    """Wrong epochs, member ids, partitions and topics have the broker's codes."""
    direct, proxied = both_sides(sessions)

    assert direct == SESSIONS
    assert proxied == direct


ENDS = {
    "held": {0: 1, 1: 1, 2: 1},
    "after epoch 0 again": {0: 2, 1: 2, 2: 2},
    "final fetch": 0,
    "after a final fetch": {1: 3, 2: 3},
    "final acknowledgement": 0,
    "after a final acknowledgement": {2: 4},
    "after the connection": {2: 5},
}


def test_what_a_session_held_comes_again_when_it_ends(scene) -> None:
    """Epoch 0, the final epoch and a lost connection give back all that was not acknowledged.

    A broker keeps locks over epoch 0 until they expire; keylane has an order to keep.
    """
    shown = scene()
    shown.write(*KEYS[:3])
    member, other, last = shown.join_many(3)
    rows: dict[str, Any] = {"held": member.take(3)}

    member.client.session_epoch = 0
    rows["after epoch 0 again"] = member.take(3)
    rows["final fetch"] = member.client.fetch(
        member.topic_id, acks=[(0, 0, [ACCEPT])], epoch=-1,
        max_wait_ms=0, min_bytes=0, max_bytes=0, max_records=0,
    ).part.ack_error  # fmt: skip
    member.client.session_epoch = 0
    rows["after a final fetch"] = member.take(2)
    rows["final acknowledgement"] = member.ack(1, epoch=-1)
    rows["after a final acknowledgement"] = other.take(1)
    other.crash()
    rows["after the connection"] = last.take(1)

    assert rows == ENDS


def forgets(shown: Scene, bootstrap: str) -> dict[str, Any]:
    shown.write(*KEYS[:3])
    member = shown.join(bootstrap)
    place = member.topic_id, 0
    held = member.take(2, mode=RECORD_LIMIT)
    forgotten = member.client.fetch_all({}, forgotten=[place], max_wait_ms=100)
    other = second(shown, member, bootstrap)
    found = other.take(1)
    return {
        "held": held,
        "forgotten": (forgotten.codes, forgotten.acquired),
        "to another": found,
        "no more": other.gets_nothing(),
        "late outcome": member.ack(0, 1),
    }


def test_a_partition_that_is_forgotten_brings_no_more_and_takes_outcomes(both_sides) -> None:
    """A member finishes what it holds of a forgotten partition, and gets no more of it."""
    direct, proxied = both_sides(forgets)

    assert direct == {
        "held": {0: 1, 1: 1},
        "forgotten": ((0, 0, 0), ()),
        "to another": {2: 1},
        "no more": True,
        "late outcome": 0,
    }
    assert proxied == direct


def test_a_session_of_plain_and_ordered_topics(scene, share_stage) -> None:
    """One session brings records of both kinds over many epochs, and takes outcomes of both."""
    shown = scene("mixed")
    plain = share_stage.topic("plain")
    other = Scene(share_stage, plain, shown.group)
    for each in (shown, other):
        each.write("a", "a", "b", "a")
    client = ShareClient(share_stage.bootstrap, shown.group)
    join_both(client, [shown.topic, plain])
    ids = {topic: client.topic_id(topic) for topic in (shown.topic, plain)}
    places = {topic: (topic_id, 0) for topic, topic_id in ids.items()}
    got: dict[str, list[int]] = {shown.topic: [], plain: []}
    acks: dict[Any, Any] = dict.fromkeys(places.values(), ())

    with client:
        while sum(map(len, got.values())) < 8:
            answer = client.fetch_all(acks, max_records=3, mode=RECORD_LIMIT)
            assert answer.error == 0, answer
            acks = dict.fromkeys(places.values(), ())
            for topic, place in places.items():
                part = answer.parts.get(place)
                if part is not None:
                    assert (part.error, part.ack_error) == (0, 0)
                    got[topic] += part.counts
                    acks[place] = [(a, b, [ACCEPT]) for a, b, _ in part.acquired]
        assert client.acknowledge_all(acks).error == 0
        epoch = client.session_epoch
        shown.write("c", "d")
        other.write("c", "d")
        forgotten = client.fetch_all({}, forgotten=[places[plain]], max_records=3)
        assert forgotten.parts.keys() <= {places[shown.topic]}
        left = forgotten.part.counts or client.acquire(ids[shown.topic]).part.counts
        client.close()

    assert {topic: sorted(offsets) for topic, offsets in got.items()} == {
        shown.topic: [0, 1, 2, 3],
        plain: [0, 1, 2, 3],
    }
    assert got[shown.topic].index(0) < got[shown.topic].index(1) < got[shown.topic].index(3)
    assert epoch >= 5
    assert left.keys() <= {4, 5}
    after = shown.join()
    assert after.take(2).keys() == {4, 5}
    assert other.join().take(2) == {4: 1, 5: 1}


def test_two_ordered_topics_in_one_session(scene, share_stage) -> None:
    """One answer has records of two ordered topics, and one request acknowledges both."""
    shown = scene()
    beside = Scene(share_stage, share_stage.topic(), shown.group)
    for each in (shown, beside):
        each.write("a", "b")
    client = ShareClient(share_stage.bootstrap, shown.group)
    join_both(client, [shown.topic, beside.topic])
    places = [(client.topic_id(topic), 0) for topic in (shown.topic, beside.topic)]
    seen: set[tuple[Any, int]] = set()

    def fetch() -> bool:
        answer = client.fetch_all(dict.fromkeys(places, ()))
        seen.update((at, offset) for at, part in answer.parts.items() for offset in part.counts)
        return len(seen) == 4

    with client:
        wait_until(fetch, "four records")
        answer = client.acknowledge_all({place: [(0, 1, [ACCEPT])] for place in places})
        client.close()

    assert [part.error for part in answer.parts.values()] == [0, 0]
    shown.wait_for_lag(0)
    beside.wait_for_lag(0)


def test_a_released_offset_is_a_member_and_its_outcome(scene) -> None:
    """A member may release one record and accept its neighbour in one range of types."""
    shown = scene()
    shown.write("a", "b", "c")
    member = shown.join()
    member.take(3)

    code = member.ack_ranges((0, 2, [ACCEPT, RELEASE, REJECT]))

    assert code == 0
    assert member.take(1) == {1: 2}
    assert member.ack(1) == 0
    shown.wait_for_lag(0)
