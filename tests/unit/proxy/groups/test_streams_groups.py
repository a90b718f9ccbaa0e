"""Groups of Kafka Streams that were refused: logged once, remembered within a bound."""

from __future__ import annotations

from keylane.proxy.groups.streams_groups import StreamsGroups


def test_a_refusal_is_new_once() -> None:
    """Until the group is let in, or refused for another reason."""
    groups = StreamsGroups()

    news = [groups.note_refused("g", reason) for reason in ("a", "a", "b")]
    known = groups.refusal_of("g")
    groups.note_let_in("g")

    assert news == [True, False, True]
    assert (known, groups.refusal_of("g")) == ("b", None)
    assert groups.note_refused("g", "b")


def test_groups_are_bounded() -> None:
    """A client may name any number of groups."""
    groups = StreamsGroups(groups_max=2)

    for group in "abc":
        groups.note_joined(group)
        groups.note_refused(group, "why")

    assert [group in groups for group in "abc"] == [False, True, True]
    assert [groups.refusal_of(group) for group in "abc"] == [None, "why", "why"]
