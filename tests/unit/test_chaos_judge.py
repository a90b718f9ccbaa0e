"""The judge of the chaos runs finds each kind of breach, and none where there is none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.long.chaos_history import (
    Answer,
    ClusterHistory,
    Commit,
    Cut,
    Delivery,
    Event,
    Fetched,
    GroupHistory,
    Log,
    OutOfRange,
    Place,
    Produced,
    Reset,
)
from tests.long.chaos_judge import Verdict, judge
from tests.long.commit_floor import CommitFloor

LANE = Place("t", 0)
KEY = "k"


def cluster(
    count: int = 10,
    *,
    start: int = 0,
    born_s: float = 0.0,
    lost: Iterable[Produced] = (),
    is_safe: bool = True,
    other_lane: Iterable[int] = (),
) -> ClusterHistory:
    """Offsets 0 to `count` of one partition, all of key k but those of another lane."""
    others = set(other_lane)
    records = {at: ("other", at) if at in others else (KEY, at) for at in range(start, count)}
    produced = [Produced("t", 0, at, *record, born_s) for at, record in records.items()]
    return ClusterHistory(
        produced=[*produced, *lost],
        logs={("t", 0): Log(start, records)},
        safe_topics=frozenset({"t"} if is_safe else ()),
    )


def run(kept: ClusterHistory, *events: Event) -> Verdict:
    history = GroupHistory(
        group="g",
        partitions={"t": 1},
        lane_of=lambda topic, partition, key: int(key == "other"),
        events=list(events),
    )
    return judge(kept, history)


def kinds(verdict: Verdict) -> set[str]:
    return {each.kind for each in verdict.breaches}


def notes(verdict: Verdict) -> set[str]:
    return {each.kind for each in verdict.notes}


def answer(at_s: float, offset: int, member: str = "a", *, until_s: float | None = None) -> Answer:
    return Answer(member, LANE, offset, at_s, at_s + 0.1 if until_s is None else until_s)


def commit(at_s: float, offset: int, member: str = "a", **more) -> Commit:
    return Commit(
        member=member,
        place=LANE,
        offset=offset,
        generation=more.pop("generation", 1),
        asked_s=at_s,
        answered_s=more.pop("answered_s", at_s + 0.1),
        **more,
    )


def handed(at_s: float, *offsets: int, member: str = "a", number: int | None = None) -> list[Event]:
    return [
        Delivery(member, LANE, at, KEY, at if number is None else number, at_s) for at in offsets
    ]


def test_a_handover_is_clean() -> None:
    """What one committed the next begins behind: nothing is found, all is counted."""
    verdict = run(
        cluster(10),
        answer(1, -1),
        Reset("a", LANE, 1.2),
        Fetched("a", LANE, 0, 1.3),
        *handed(2, 0, 1, 2, 3, 4),
        commit(3, 5),
        answer(4, 5, "b"),
        Fetched("b", LANE, 5, 4.3),
        *handed(5, 5, 6, 7, 8, 9, member="b"),
        commit(6, 10, "b"),
    )

    assert verdict.breaches == [] and verdict.notes == []
    assert verdict.counts["answers with a commit"] == 1 and verdict.counts["delivered"] == 10


def test_a_client_that_asks_for_the_log_start_twice_is_clean() -> None:
    """librdkafka sends ListOffsets again when the first answer is late, and then ignores it."""
    verdict = run(
        cluster(4),
        answer(1, -1),
        Reset("a", LANE, 1.2),
        *handed(2, 0, 1),
        Reset("a", LANE, 3),
        *handed(4, 2, 3),
    )

    assert verdict.breaches == [] and verdict.notes == []


def test_what_was_not_committed_comes_again() -> None:
    """A member that dies before its commit leaves its records to the next one."""
    verdict = run(
        cluster(3),
        answer(1, -1),
        *handed(2, 0, 1, 2),
        answer(4, -1, "b"),
        *handed(5, 0, 1, 2, member="b"),
    )

    assert verdict.breaches == []


def test_an_answer_that_was_sent_before_the_commit_ended_is_clean() -> None:
    """A commit that is under way may be seen or not."""
    verdict = run(
        cluster(3), answer(1, -1), *handed(2, 0, 1, 2), commit(3, 3), answer(3.05, -1, "b")
    )

    assert verdict.breaches == []


def test_a_refused_commit_asks_for_nothing() -> None:
    """ILLEGAL_GENERATION: the group never took it."""
    verdict = run(
        cluster(3), answer(1, -1), *handed(2, 0, 1, 2), commit(3, 3, error=22), answer(4, -1, "b")
    )

    assert verdict.breaches == []


def test_a_member_that_was_given_up_may_go_on_for_a_while() -> None:
    """It asked for its position before the others committed; as direct."""
    verdict = run(
        cluster(4),
        answer(1, -1),
        *handed(2, 0, 1),
        answer(3, -1, "b"),
        *handed(4, 0, 1, 2, 3, member="b"),
        commit(5, 4, "b"),
        *handed(6, 2, 3),
    )

    assert verdict.breaches == []


def test_a_lane_passes_what_is_not_its_own() -> None:
    """An answer may lie behind records of other lanes."""
    verdict = run(
        cluster(6, other_lane=[3, 4, 5]),
        answer(1, -1),
        *handed(2, 0, 1, 2),
        commit(3, 3),
        answer(4, 6, "b"),
        Answer("a", Place("t", 1), 0, 4, 4.1),
        *[Delivery("a", Place("t", 1), at, "other", at, 5) for at in (3, 4, 5)],
    )

    assert verdict.breaches == []


READ_ALL = (answer(1, -1), *handed(2, 0, 1, 2, 3), commit(3, 4))


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ([*READ_ALL, answer(4, 2, "b")], "below"),
        ([*READ_ALL, answer(4, -1, "b")], "below"),
        ([*READ_ALL, answer(4, 2, "b"), *handed(5, 2, 3, member="b")], "again"),
        ([answer(1, -1), *handed(2, 0, 1), commit(3, 2), answer(4, 4, "b")], "passes"),
        ([answer(1, -1), *handed(2, 0, 1)], "lost"),
        ([answer(1, -1), *handed(2, 0, 1, 3)], "skipped"),
        ([answer(1, 0), *handed(2, 1, 2, 3)], "skipped"),
        ([answer(1, -1), *handed(2, 0, 1, 3, 2)], "order"),
        ([answer(1, -1), *handed(2, 0, 1), *handed(3, 2, 3, number=9)], "lane"),
        ([*READ_ALL, Delivery("a", Place("t", 1), 3, KEY, 3, 4)], "lane"),
        (handed(2, 0, 1, 2, 3), "unasked"),
        ([*READ_ALL, *handed(4, 2)], "again"),
        (
            [*READ_ALL, OutOfRange("a", LANE, 4, 4), Reset("a", LANE, 5), *handed(6, 0)],
            "refused",
        ),
    ],
)
def test_each_kind_of_breach_is_found(events, kind) -> None:
    """One planted breach of a log of four records, by its name."""
    assert kind in kinds(run(cluster(4), *events))


def test_a_record_that_a_safe_topic_lost_voids_the_run() -> None:
    """What Kafka itself must not lose is no fault of keylane, and is named as what it is."""
    lost = Produced("t", 0, 4, KEY, 4, 1.0)

    assert kinds(run(cluster(4, lost=[lost]), *READ_ALL)) == {"kafka"}


def test_a_client_that_goes_below_its_answer_is_noted_only() -> None:
    """librdkafka hands out an old queue: keylane answered right."""
    verdict = run(
        cluster(4),
        *READ_ALL,
        answer(4, 4, "b"),
        Fetched("b", LANE, 1, 4.5),
        *handed(5, 1, 2, 3, member="b"),
        commit(6, 2, "b"),
        answer(7, 2, "c"),
    )

    assert verdict.breaches == [] and notes(verdict) == {"client"}


def test_a_commit_without_an_answer_may_count_until_the_next_one() -> None:
    """Its outcome is open until a later commit of the group settles it."""
    begin = answer(1, -1), *handed(2, 0, 1, 2, 3)
    open_ = commit(3, 2, answered_s=inf)
    later = commit(4, 4, "b", generation=2)

    assert not kinds(run(cluster(4), *begin, open_, answer(4, -1, "b")))
    assert not kinds(run(cluster(4), *begin, open_, answer(4, 2, "b")))
    assert kinds(run(cluster(4), *begin, open_, later, answer(5, 2, "c"))) == {"below"}


OLD = [Produced("t", 0, at, KEY, 90 + at, 5.0) for at in (2, 3)]
"""Lost between 5 and 25: the log goes on with other records from 2 on."""


def cut_cluster(new_s: Sequence[float] = (25.0, 25.0)) -> ClusterHistory:
    kept = cluster(2 + len(new_s), born_s=0.0, is_safe=False)
    produced = [each for each in kept.produced if each.offset < 2]
    produced += [Produced("t", 0, at, KEY, at, born_s) for at, born_s in enumerate(new_s, 2)]
    return ClusterHistory(
        produced=[*produced[:2], *OLD, *produced[2:]], logs=kept.logs, safe_topics=frozenset()
    )


OLD_READ = (
    answer(1, -1),
    *handed(6, 0, 1),
    *[Delivery("a", LANE, at, KEY, 90 + at, 6) for at in (2, 3)],
    commit(7, 4),
)


def test_after_a_cut_commits_count_up_to_the_cut() -> None:
    """An answer at the cut, or what the new log holds from there on, is right."""
    verdict = run(cut_cluster(), *OLD_READ, answer(30, 2, "b"), *handed(31, 2, 3, member="b"))

    assert verdict.breaches == []


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ([answer(30, 1, "b")], "below"),
        ([answer(30, -1, "b"), *handed(31, 0, 1, 2, 3, member="b")], "again"),
    ],
)
def test_after_a_cut_old_positions_are_a_breach(events, kind) -> None:
    """Answered behind the new records, or below what is kept and was committed."""
    assert kind in kinds(run(cut_cluster(), *OLD_READ, *events))


def test_a_commit_of_a_log_that_was_cut_is_kept_as_direct() -> None:
    """Kafka answers with what was committed; what was only concluded beyond it counts no more."""
    kept = run(cut_cluster(), *OLD_READ, answer(30, 4, "b"))
    concluded = run(cut_cluster(), *OLD_READ[:-1], commit(7, 3), answer(30, 4, "b"))

    assert "kept" in notes(kept) and "passes" not in kinds(kept)
    assert "passes" in kinds(concluded)


def test_records_that_a_kept_commit_passes_are_not_lost() -> None:
    """The member was sent back to the cut, and its commit of the old log was repeated after it."""
    went_back = Fetched("a", LANE, 2, 21)
    repeated = commit(22, 4), answer(30, 4, "b")

    kept = run(cut_cluster(), *OLD_READ, went_back, *repeated)
    nothing_said = run(cut_cluster(), *OLD_READ[:-1], commit(7, 2), went_back, answer(30, 4, "b"))

    assert kept.breaches == [] and notes(kept) == {"kept", "passed"}
    assert kinds(nothing_said) == {"passes", "lost"}


def test_a_commit_behind_records_of_other_lanes_in_a_log_that_was_cut_is_kept() -> None:
    """Its member has read no record of its lane there, but came by, and says so after the cut."""
    read = answer(1, -1), *handed(6, 0, 1)
    kept = run(cut_cluster(), *read, Fetched("a", LANE, 4, 7), commit(22, 4), answer(30, 4, "b"))
    never_there = run(cut_cluster(), *read, commit(22, 4), answer(30, 4, "b"))

    assert kept.breaches == [] and notes(kept) == {"kept", "passed"}
    assert kinds(never_there) == {"lost"}


@pytest.mark.parametrize(
    ("later", "lost"),
    [
        ([Fetched("b", LANE, 4, 61)], False),
        ([Fetched("b", LANE, 4, 61), *handed(62, 4, member="b")], False),
        ([Fetched("b", LANE, 4, 50), *handed(51, 4, member="b")], True),
        ([Fetched("b", LANE, 4, 61), OutOfRange("b", LANE, 4, 62)], True),
        ([Fetched("b", LANE, 2, 61)], True),
        ([], True),
    ],
)
def test_a_kept_commit_passes_what_was_written_after_the_question(later, lost) -> None:
    """Until its member goes on from there: what comes later, or was read from below, is lost."""
    read = *OLD_READ, answer(30, 4, "b", until_s=40)

    verdict = run(cut_cluster((10.0, 60.0)), *read, *later)

    assert "kept" in notes(verdict)
    assert kinds(verdict) == ({"lost"} if lost else set())


def test_a_commit_that_another_one_has_replaced_is_not_kept() -> None:
    """The register holds what was said last: an answer that repeats what was before passes."""
    replaced = commit(22, 2, "b", generation=2), answer(30, 4, "b")

    assert "passes" in kinds(run(cut_cluster(), *OLD_READ, *replaced))


def test_a_reset_after_a_cut_is_as_direct() -> None:
    """The client's own policy reads the log from its start."""
    verdict = run(
        cut_cluster(),
        *OLD_READ,
        OutOfRange("a", LANE, 4, 22),
        Reset("a", LANE, 23),
        *handed(31, 0, 1, 2, 3),
    )

    assert verdict.breaches == [] and notes(verdict) == {"reset"}


def test_a_reset_of_a_position_that_is_in_the_log_is_a_breach() -> None:
    """The log was cut, but above where the member stood: nothing asked it to begin again."""
    verdict = run(
        cut_cluster(),
        answer(1, -1),
        *handed(6, 0, 1),
        commit(7, 2),
        OutOfRange("a", LANE, 2, 22),
        Reset("a", LANE, 23),
        *handed(31, 0, 1, 2, 3),
    )

    assert kinds(verdict) == {"refused"}


def test_a_member_that_goes_back_behind_the_log_start_is_refused_by_right() -> None:
    """Its own wish has it read again what is left; a member that stays is no such case."""
    read = [answer(1, 3), *handed(2, 3, 4, 5), commit(3, 6)]
    away = [OutOfRange("a", LANE, 0, 5), Reset("a", LANE, 6), *handed(7, 3, 4, 5)]

    verdict = run(cluster(6, start=3), *read, Fetched("a", LANE, 0, 4), *away)

    assert verdict.breaches == [] and notes(verdict) == {"client"}
    assert kinds(run(cluster(6, start=3), *read, *away)) == {"refused"}


def test_a_record_that_was_handed_out_unacknowledged_shows_a_cut() -> None:
    """Its producer was never answered, and the log has another one there."""
    kept = cut_cluster()
    produced = [each for each in kept.produced if each not in OLD]
    kept = ClusterHistory(produced=produced, logs=kept.logs, safe_topics=frozenset(), seen=OLD)

    verdict = run(kept, *OLD_READ, answer(30, 2, "b"), *handed(31, 2, 3, member="b"))

    assert verdict.breaches == []


def test_a_position_of_the_old_log_passes_new_records_as_direct() -> None:
    """A client without leader epochs goes on where it was; that is noted, and no breach."""
    verdict = run(cut_cluster(), *OLD_READ, Fetched("a", LANE, 4, 7.5))

    assert verdict.breaches == [] and notes(verdict) == {"passed"}


def test_what_retention_took_is_not_lost() -> None:
    """Records below the log start are gone for all; a lane goes on at the start."""
    verdict = run(cluster(4, start=2, is_safe=False), answer(1, -1), *handed(2, 2, 3))

    assert verdict.breaches == []


COMMITS = st.lists(
    st.builds(
        lambda at, took, offset, member, error, cut: commit(
            at, offset, member, generation=at // 10, answered_s=inf if cut else at + took,
            error=error,
        ),
        st.integers(0, 40),
        st.integers(1, 15),
        st.integers(0, 50),
        st.sampled_from("abc"),
        st.sampled_from([0, 0, 0, 15, 22]),
        st.booleans(),
    ),
    max_size=12,
)  # fmt: skip
CUTS = st.lists(
    st.builds(lambda offset, at, took: Cut(offset, at, at + took),
              st.integers(0, 50), st.integers(0, 40), st.integers(1, 10)),
    max_size=2,
)  # fmt: skip


@given(commits=COMMITS, cuts=CUTS, at_s=st.integers(0, 60), took_s=st.integers(1, 15))
def test_the_floor_is_that_of_the_definition(commits, cuts, at_s, took_s) -> None:
    """The lowest offset of all commits that nothing has surely overwritten, by trying all."""
    asked = answer(at_s, 0, until_s=at_s + took_s)

    found = CommitFloor(commits, cuts, old_since_s=naive_old_since_s)

    assert found.floor(asked).offset == naive_floor(commits, cuts, asked)
    assert found.reach(asked) == naive_reach(commits, cuts, asked)
    current = naive_current(commits, asked)
    assert found.stands(asked) == max((each.offset for each in current), default=-1)


def naive_old_since_s(each) -> float:
    return inf if each.offset % 3 else each.asked_s - 5


def naive_current(commits, asked) -> list[Commit]:
    taken = [each for each in commits if each.error != 22]
    done = [each for each in taken if each.is_acknowledged and each.answered_s < asked.asked_s]
    possible = []
    for each in taken:
        if each.asked_s >= asked.answered_s:
            continue
        if each.answered_s < inf:
            is_over = any(later.asked_s > each.answered_s for later in done)
        else:
            is_over = any(
                later.asked_s > each.asked_s
                and (later.member == each.member or later.generation > each.generation)
                for later in done
            )
        if not is_over:
            possible.append(each)
    return possible


def naive_floor(commits, cuts, asked) -> int:
    if not any(each.is_acknowledged and each.answered_s < asked.asked_s for each in commits):
        return -1
    return min(
        min(
            [each.offset]
            + [
                cut.offset
                for cut in cuts
                if cut.end_s > each.asked_s and cut.begin_s < asked.answered_s
            ]
        )
        for each in naive_current(commits, asked)
    )


def naive_reach(commits, cuts, asked) -> int:
    farthest = -1
    for each in commits:
        if each.error != 22 and each.asked_s < asked.answered_s:
            between = [
                cut.offset
                for cut in cuts
                if cut.end_s < asked.asked_s
                and (cut.begin_s > each.answered_s or cut.end_s > naive_old_since_s(each))
            ]
            farthest = max(farthest, min([each.offset, *between]))
    return farthest
