"""proxy/groups/patterns.py and pattern_turns.py: patterns within bounds, one at a time."""

from __future__ import annotations

import asyncio
import re
import threading

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from keylane.errors import PatternUnreadable
from keylane.proxy.groups import patterns
from keylane.proxy.groups.patterns import (
    PATTERN_CHARS_MAX,
    REPEATS_MAX,
    ComparedPatterns,
    check_pattern,
    find_matches,
)
from keylane.proxy.topics import pattern_turns
from keylane.proxy.topics.pattern_turns import PatternTurns
from keylane.tasks import spawn

TOPICS = ("orders", "orders-eu", "shop_1", "a.b")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("orders", ["orders"]),
        ("orders.*", ["orders", "orders-eu"]),
        ("(?i)ORDERS(-[a-z]{2})?", ["orders", "orders-eu"]),
        (r"a\.b|shop_\d+", ["shop_1", "a.b"]),
        (r"\Qa.b\E", ["a.b"]),
        ("[[:alpha:]]+", ["orders"]),
        ("rders", []),
        ("", []),
    ],
)
def test_what_a_pattern_matches(pattern, found) -> None:
    """The whole name, as brokers match it."""
    assert list(find_matches(pattern, TOPICS)) == found


@pytest.mark.parametrize(
    "pattern",
    [
        "a" * (PATTERN_CHARS_MAX + 1),
        r"\pL",
        r"(?i)\p{Greek}+",
        r"[\PL]",
        r"\x{10ffff}",
        r"\C",
        r"a\1",
        "a\\",
        "\u00fc.*",
        "a\nb",
        "(a){600}(b){0,401}",
        "(",
        "((a{30}){30}){30}",
    ],
)
def test_a_pattern_that_is_not_read(pattern, capfd) -> None:
    """Each of these takes RE2 long, or it cannot read it; it writes nothing about it."""
    with pytest.raises(PatternUnreadable):
        find_matches(pattern, TOPICS)
    assert capfd.readouterr() == ("", "")


def test_case_folding_over_unicode_is_never_compiled(monkeypatch) -> None:
    """A KiB of it takes seconds, whatever memory RE2 may have."""
    monkeypatch.setattr(re2, "compile", lambda *_: pytest.fail("compiled"))

    with pytest.raises(PatternUnreadable, match="position 4"):
        find_matches(r"(?i)" + r"\pL" * 340, TOPICS)


@given(st.text(st.sampled_from("ab.*+?()[]{}|\\^$-,0123456789dwsQE:i<P>&~"), max_size=80))
def test_a_pattern_matches_or_is_refused(pattern) -> None:
    """Nothing else comes of one, and what Python reads alike it matches alike."""
    try:
        found = find_matches(pattern, TOPICS)
    except PatternUnreadable:
        return
    if re.fullmatch(r"[ab.*|-]*", pattern) and "**" not in pattern:
        twin = re.compile(pattern)
        assert list(found) == [name for name in TOPICS if twin.fullmatch(name)]


@given(st.lists(st.integers(0, 400), max_size=6))
def test_repetitions_are_added_up(counts) -> None:
    """As they are written out by RE2."""
    pattern = "".join(f"(a){{{count}}}" for count in counts)
    if sum(counts) <= REPEATS_MAX:
        check_pattern(pattern)
    else:
        with pytest.raises(PatternUnreadable, match=str(sum(counts))):
            check_pattern(pattern)


def test_results_are_of_the_lane_topics_that_there_are(monkeypatch) -> None:
    """Of others nothing is known; they are bounded, too."""
    monkeypatch.setattr(patterns, "PATTERNS_KEPT", 2)
    kept = ComparedPatterns()
    assert kept.matches("o.*", TOPICS) is None
    for pattern in ("o.*", "s.*", "o.*", "a.*"):
        if kept.matches(pattern, TOPICS) is None:
            kept.note_matches(pattern, TOPICS, ())
    assert [kept.matches(one, TOPICS) for one in ("o.*", "s.*", "a.*")] == [(), None, ()]

    assert kept.matches("o.*", TOPICS[:1]) is None
    kept.note_matches("o.*", TOPICS, ())
    assert kept.matches("o.*", TOPICS[:1]) is None


async def test_one_comparison_at_a_time(monkeypatch) -> None:
    """Further clients wait, and of too many the last is to ask again; each is compared once."""
    monkeypatch.setattr(pattern_turns, "WAITING_MAX", 3)
    under_way, most, go = 0, 0, threading.Event()

    def compare(pattern: str, topics: tuple[str, ...]) -> tuple[str, ...]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        assert go.wait(60)
        under_way -= 1
        return find_matches(pattern, topics)

    monkeypatch.setattr(pattern_turns, "find_matches", compare)
    turns = PatternTurns(ComparedPatterns())
    waiting = [spawn(turns.compare(one, TOPICS), one) for one in ("o.*", "s.*", "a.*")]
    await asyncio.sleep(0)
    assert await turns.compare("z.*", TOPICS) is None

    go.set()

    assert [len(found or ()) for found in await asyncio.gather(*waiting)] == [2, 1, 1]
    assert most == 1
    monkeypatch.setattr(pattern_turns, "find_matches", lambda *_: pytest.fail("compared again"))
    assert await turns.compare("o.*", TOPICS) == ("orders", "orders-eu")


async def test_a_client_that_goes_away_does_not_start_the_next(monkeypatch) -> None:
    """The thread goes on, so its turn does."""
    began, go = threading.Event(), threading.Event()

    def compare(_pattern: str, _topics: tuple[str, ...]) -> tuple[str, ...]:
        began.set()
        assert go.wait(60)
        return ()

    monkeypatch.setattr(pattern_turns, "find_matches", compare)
    turns = PatternTurns(ComparedPatterns())
    first = spawn(turns.compare("o.*", TOPICS), "first")
    assert await asyncio.to_thread(began.wait, 60)
    began.clear()

    first.cancel()
    second = spawn(turns.compare("s.*", TOPICS), "second")
    await asyncio.wait({first})
    assert not began.is_set()
    go.set()

    assert await second == ()
