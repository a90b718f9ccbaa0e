"""Names by which members of a group mean its topics: one each, and the running one goes on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from keylane.proxy.groups.group_names import (
    Clash,
    GroupNames,
    choose_names,
    clashes_of,
    own_clash,
)

G = "g"
PLACE = ("t", 0)
FOUR, EIGHT, PLAIN = (frozenset({name}) for name in ("t.lanes-4", "t.lanes-8", "t"))


def physical(name: str) -> str:
    """As the default pattern says it."""
    return name.split(".lanes-", maxsplit=1)[0]


def clash(names: GroupNames, identity: str, said: frozenset[str]) -> Clash | None:
    """Why the member may not join."""
    return names.find_clash(G, identity, said, physical)


def test_a_newcomer_by_another_name_is_refused() -> None:
    """Another count, and the plain topic; the same name and other topics are let in."""
    names = GroupNames()
    names.note_members(G, {"a": FOUR})

    assert clash(names, "b", EIGHT) == Clash("t", "t.lanes-4", "t.lanes-8")
    assert clash(names, "b", PLAIN) == Clash("t", "t.lanes-4", "t")
    assert clash(names, "b", FOUR | {"u"}) is None
    assert clash(names, "b", frozenset({"u.lanes-8"})) is None


def test_a_member_that_is_alone_may_change_its_name() -> None:
    """No other member reads; with others it may not, however the names sort."""
    names = GroupNames()
    names.note_members(G, {"a": EIGHT})
    alone = clash(names, "a", FOUR)
    names.note_members(G, {"a": EIGHT, "b": EIGHT})

    beside = clash(names, "a", FOUR)

    assert alone is None
    assert beside == Clash("t", "t.lanes-8", "t.lanes-4")


def test_a_join_that_is_under_way_counts() -> None:
    """The first one that was passed on goes on; when it fails, the other may join."""
    names = GroupNames()
    names.note_empty(G)
    join = names.begin_join(G, "new 1", EIGHT)
    during = clash(names, "new 2", FOUR)
    names.end_join(G, join)

    after = clash(names, "new 2", FOUR)

    assert during == Clash("t", "t.lanes-8", "t.lanes-4")
    assert after is None


def test_a_follower_that_joined_counts() -> None:
    """Under the id that the coordinator gave it."""
    names = GroupNames()
    names.note_empty(G)
    names.end_join(G, names.begin_join(G, "new 1", EIGHT), "b")

    assert clash(names, "c", FOUR) is not None
    assert names.keep_only(G, {"b"})
    assert not names.keep_only(G, {"b", "unseen"})


def test_of_two_running_names_one_goes_on() -> None:
    """A group that is older than the rule: most members count, then the name, at every rejoin."""
    names = GroupNames()
    names.note_members(G, {"a": EIGHT, "b": FOUR})
    pair = [clash(names, "a", EIGHT), clash(names, "b", FOUR)]
    names.note_members(G, {"a": EIGHT, "b": FOUR, "c": EIGHT})

    three = [clash(names, name, said) for name, said in (("a", EIGHT), ("b", FOUR), ("c", EIGHT))]

    assert [found is None for found in pair] == [False, True]
    assert [found is None for found in three] == [True, False, True]


def test_the_name_of_the_generation_before_is_favoured() -> None:
    """One running member is not outvoted by two that came in past this node."""
    members = {"a": EIGHT, "b": FOUR, "c": FOUR}

    chosen = choose_names(members.values(), physical, {"t": "t.lanes-8", "gone": "gone"})

    assert chosen == {"t": "t.lanes-8"}
    assert {name for name, _ in clashes_of(members, chosen, physical)} == {"b", "c"}


def test_one_member_with_two_names_of_a_topic() -> None:
    """It would read everything twice by itself."""
    assert own_clash(FOUR | PLAIN, physical) == Clash("t", "t", "t.lanes-4")
    assert own_clash(FOUR | {"u.lanes-4", "v"}, physical) is None


def test_a_generation_of_new_members_began_with_an_empty_group() -> None:
    """Member ids are given once: with one in common the group was not empty in between."""
    names = GroupNames()
    assert names.may_have_expired(G, PLACE)
    names.note_generation(G, {"a": FOUR, "b": FOUR}, {}, ["a", "b"])
    names.note_generation(G, {"b": FOUR, "c": FOUR}, {}, ["b", "c"])
    overlapping = names.may_have_expired(G, PLACE)

    names.note_generation(G, {"d": FOUR}, {}, ["d"])

    assert overlapping
    assert not names.may_have_expired(G, PLACE)


def test_an_offset_that_was_seen_has_not_expired_later() -> None:
    """It is committed again in time, so that somebody has deleted it."""
    names = GroupNames()

    names.note_seen(G, PLACE)

    assert not names.may_have_expired(G, PLACE)
    assert names.may_have_expired(G, ("t", 1))


def test_the_refused_of_a_generation_are_those_of_the_newest() -> None:
    """A group that went empty refuses no member."""
    names = GroupNames()
    names.note_generation(G, {"a": FOUR}, {"t": "t.lanes-4"}, ["a", "b"], ["b"])
    before = names.is_refused(G, "a"), names.is_refused(G, "b"), dict(names.chosen(G))

    names.note_empty(G)

    assert before == (False, True, {"t": "t.lanes-4"})
    assert not names.is_refused(G, "b")
    assert dict(names.chosen(G)) == {}
    assert names.is_complete(G)
    assert clash(names, "c", EIGHT) is None


def test_a_group_that_another_node_serves_is_forgotten() -> None:
    """When it comes back, its name may be another: the coordinator is asked again."""
    names = GroupNames()
    for group in (G, "h"):
        names.note_members(group, {"a": FOUR})
    join = names.begin_join(G, "b", FOUR)

    names.forget_where(lambda group: group == G)
    names.end_join(G, join, "b")

    assert not names.is_complete(G)
    assert names.is_complete("h")
    names.check()


def test_a_clash_is_logged_once() -> None:
    """A client that joins again every second fills no log."""
    names = GroupNames()
    one, other = Clash("t", "t.lanes-4", "t.lanes-8"), Clash("t", "t.lanes-4", "t")

    assert [names.log_once(G, found) for found in (one, one, other)] == [True, False, True]


@given(st.dictionaries(st.text("abc", min_size=1), st.sampled_from([FOUR, EIGHT, PLAIN])))
def test_members_that_are_let_in_one_by_one_agree(members) -> None:
    """In whatever order they come: never two names of a topic in one group."""
    names = GroupNames()
    names.note_empty(G)

    for identity, said in members.items():
        if clash(names, identity, said) is None:
            names.end_join(G, names.begin_join(G, identity, said), identity)

    chosen = names.find_clash(G, "new", PLAIN, physical), names.find_clash(G, "new", FOUR, physical)
    assert not members or any(found is not None for found in chosen)
    joined = [said for said in (FOUR, EIGHT, PLAIN) if clash(names, "new", said) is None]
    assert len(joined) == (1 if members else 3)


class Bounds(RuleBasedStateMachine):
    """What is kept is bounded, and counted right."""

    def __init__(self) -> None:
        super().__init__()
        self.names = GroupNames(groups_max=3, names_max=6)

    @rule(group=st.sampled_from("ghijk"), count=st.integers(0, 4))
    def members(self, group: str, count: int) -> None:
        self.names.note_members(group, {str(number): FOUR for number in range(count)})

    @rule(group=st.sampled_from("ghijk"), is_member=st.booleans())
    def joins(self, group: str, is_member: bool) -> None:
        join = self.names.begin_join(group, "m", EIGHT)
        self.names.end_join(group, join, "m" if is_member else None)

    @rule(group=st.sampled_from("ghijk"), partition=st.integers(0, 3))
    def sees(self, group: str, partition: int) -> None:
        self.names.note_seen(group, ("t", partition))

    @rule(lost=st.sets(st.sampled_from("ghijk")))
    def forgets(self, lost: set[str]) -> None:
        self.names.forget_where(lost.__contains__)
        assert not any(group in self.names for group in lost)

    @rule(group=st.sampled_from("ghijk"))
    def empties(self, group: str) -> None:
        self.names.note_empty(group)
        assert group in self.names

    @invariant()
    def is_bounded(self) -> None:
        self.names.check()


TestBounds = Bounds.TestCase
