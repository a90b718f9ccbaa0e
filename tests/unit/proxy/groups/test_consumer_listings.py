"""proxy/groups/consumer_group.py: members as the broker lists them, also of a group made anew."""

from __future__ import annotations

from keylane.proxy.groups.consumer_group import PASSED_MAX, ConsumerGroup
from keylane.proxy.groups.consumer_members import Listed
from tests.unit.proxy.groups.test_consumer_group import begun, says, settled


def listed(group: ConsumerGroup, *names: str, asked: tuple[int, int] | None = None) -> list[str]:
    """The broker lists members; return those that are gone."""
    found = [Listed(identity=name, member_id=name) for name in names]
    return group.note_listed(found, asked or (group.turn, group.epoch))


def test_joins_that_the_broker_refuses_take_no_memory_without_end() -> None:
    """Old ones are forgotten; one that is under way is not."""
    group = settled()
    group.begin_join("b")
    for number in range(PASSED_MAX):
        group.begin_join(f"refused-{number}")
        group.end_join(f"refused-{number}")

    passed = [
        group.has_passed([Listed(identity=name, member_id=name)])
        for name in ("b", "refused-0", f"refused-{PASSED_MAX - 1}")
    ]

    assert passed == [True, False, True]


# A group that was deleted or has expired, and was made anew.


def test_a_group_that_was_made_anew_begins_with_small_epochs() -> None:
    """Its members are asked for at the first join, and at each epoch from there on."""
    group = begun("a", "b")
    says(group, "a", 57)
    listed(group, "a", "b")
    before = group.is_list_due(0.0)

    says(group, "c", 1, is_join=True, group_epoch=57)
    at_join = group.is_list_due(0.0)
    gone = listed(group, "c")
    settled_down = group.is_list_due(0.0)
    says(group, "c", 2)

    assert [before, at_join, settled_down, group.is_list_due(0.0)] == [False, True, False, True]
    assert gone == ["a", "b"] and group.members.keys() == {"c"}


def test_a_static_member_of_a_group_that_was_made_anew() -> None:
    """It comes back under its name: the others are asked for all the same."""
    group = begun("a", "b")
    says(group, "a", 57)
    listed(group, "a", "b")

    says(group, "a", 1, is_join=True, group_epoch=57)

    assert group.is_list_due(0.0) and listed(group, "a") == ["b"]


def test_a_description_of_the_group_before() -> None:
    """It came after the new group's first join: the members are asked for once more."""
    group = begun("a", "b")
    says(group, "a", 57)
    asked = group.turn, group.epoch
    says(group, "c", 1, is_join=True, group_epoch=57)

    listed(group, "a", "b", "c", asked=asked)

    assert group.is_list_due(0.0)


def test_a_join_whose_answer_is_late_is_of_no_other_group() -> None:
    """Another member's join was answered before, with a newer epoch."""
    group = begun("a")
    says(group, "b", 3, is_join=True, group_epoch=1)

    says(group, "c", 2, is_join=True, group_epoch=1)

    assert group.epoch == 3
