"""proxy/control/watch/history.py: rings of sixty points, null where there was no sample."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from keylane.proxy.control.watch.history import POINTS, STEP_S, History, MemberSample, Pair

START_MS = 1_700_000_000_000
STEP_MS = STEP_S * 1000


def test_samples_stand_at_their_steps() -> None:
    """The newest point is last; those without a sample are null."""
    history = History()
    history.note_group("g", START_MS, Pair(5, 1.5), {"m": MemberSample("label", 5, 1.5)})
    history.note_group("g", START_MS + 3 * STEP_MS, Pair(7, None), {})
    history.check()

    found = history.find(START_MS + 4 * STEP_MS, group="g")

    assert found.group is not None
    assert found.group.lag[-5:] == [5, None, None, 7, None]
    assert found.group.consumed_per_s[-5:] == [1.5, None, None, None, None]
    assert found.group.lag[:-5] == [None] * (POINTS - 5)
    (member,) = found.members
    assert (member.member_id, member.label, member.lag[-5]) == ("m", "label", 5)
    assert (found.step_s, found.points) == (STEP_S, POINTS)
    assert found.from_ms == START_MS // STEP_MS * STEP_MS - (POINTS - 5) * STEP_MS
    assert found.topic is None


def test_what_was_not_sampled_is_not_known() -> None:
    """Neither a group nor a topic."""
    found = History().find(START_MS, group="g", topic="t")

    assert (found.group, found.topic, found.members) == (None, None, ())


def test_a_member_that_is_gone_for_ten_minutes_is_forgotten() -> None:
    """Members come and go with each deployment."""
    history = History()
    history.note_group("g", START_MS, Pair(1, 1), {"old": MemberSample("a", 1, 1)})
    later_ms = START_MS + POINTS * STEP_MS
    history.note_group("g", later_ms, Pair(2, 2), {"new": MemberSample("b", 2, 2)})

    assert [one.member_id for one in history.find(later_ms, group="g").members] == ["new"]


def test_memory_is_bounded() -> None:
    """By members of all groups, and by topics."""
    history = History(members_max=10, topics_max=2)
    members = {str(number): MemberSample("m", 1, 1) for number in range(5)}
    for name in ("a", "b", "c"):
        history.note_group(name, START_MS, Pair(1, 1), members)
        history.note_topic(name, START_MS, Pair(1, 1))
        history.check()

    found = history.find(START_MS, group="a", topic="a")
    assert (found.group, found.topic) == (None, None)
    assert history.find(START_MS, topic="c").topic is not None


@given(st.dictionaries(st.integers(0, 300), st.integers(0, 99), max_size=80), st.integers(0, 400))
def test_a_ring_has_the_samples_of_its_last_steps(samples, until) -> None:
    """As a dict of all samples has them."""
    history, newest = History(), max(samples, default=0)
    for step in sorted(samples):
        history.note_topic("t", step * STEP_MS, Pair(samples[step], None))
    until = max(until, newest)

    found = history.find(until * STEP_MS, topic="t").topic

    if found is not None:
        # A ring has nothing before the last POINTS steps that it has taken.
        steps = range(until - POINTS + 1, until + 1)
        assert found.bytes_per_s == [
            samples.get(step) if step > newest - POINTS else None for step in steps
        ]
        assert found.records_per_s == [None] * POINTS
