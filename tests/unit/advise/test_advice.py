"""Judgements: each reason against keylane by a topic that has it, and choices of numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from keylane.advise.advice import (
    Advice,
    AdviceQuestion,
    Evidence,
    Judgement,
    command_of,
    give_advice,
)
from keylane.keyrange.hash import key_hash
from keylane.keyrange.space import HASH_MAX
from tests.reference.advise_topics import GROUP_FACTS as GROUP
from tests.reference.advise_topics import TOPIC_FACTS as TOPIC
from tests.reference.advise_topics import even_keys, keys_of, sample_of

QUESTION: Final = AdviceQuestion(bootstrap="kafka:9092", members=8, lanes=16)


def advise(evidence: Evidence, question: AdviceQuestion = QUESTION) -> Advice:
    """Ask for 8 members on 16 lanes, unless the question is another one."""
    return give_advice(question, evidence)


def test_even_keys_on_few_partitions_are_helped() -> None:
    """8 members on 2 partitions: nearly four times one member per partition."""
    advice = advise(Evidence(keys=even_keys(2)))

    assert advice.verdict is Judgement.HELPS
    assert advice.gain == pytest.approx(4, rel=0.11)
    assert advice.plain == pytest.approx(2)
    assert command_of(advice) == "keylane proxy --bootstrap kafka:9092 --lanes orders=16"


def test_records_without_keys_have_no_order_to_keep() -> None:
    """The first reason, whatever the speed-up."""
    advice = advise(Evidence(keys=keys_of({}, {1: 1}, keyless=[1000, 1000])))

    assert advice.verdict is Judgement.NO_KEYS
    assert advice.speedup.parallel > 7


def test_one_hot_key_is_not_helped() -> None:
    """Nine tenths of all records have one key."""
    keys = keys_of({5: 900, **{key_hash(bytes([n])): 1 for n in range(100)}})

    advice = advise(Evidence(keys=keys))

    assert advice.verdict is Judgement.HOT_KEY
    assert advice.ceiling == pytest.approx(10 / 9)


def test_no_more_members_than_partitions_need_no_lanes() -> None:
    """Two members on two even partitions have one each."""
    advice = advise(Evidence(keys=even_keys(2)), replace(QUESTION, members=2))

    assert advice.verdict is Judgement.PARTITIONS_ENOUGH


@pytest.mark.parametrize(("work_s", "verdict"), [(2e-7, "work-too-short"), (1e-3, "helps")])
def test_work_below_a_microsecond_waits_for_bytes(work_s: float, verdict: str) -> None:
    """One node passes on some million records/s, so that members beyond it wait for it."""
    advice = advise(Evidence(keys=even_keys(2)), replace(QUESTION, work_s=work_s))

    assert advice.verdict.value == verdict


def test_a_group_with_half_of_its_time_to_spare_needs_nothing() -> None:
    """1,000 records/s of 0.5 ms are half a member's time; of 1.5 ms they are three quarters."""
    evidence = Evidence(keys=even_keys(2), topic=TOPIC, group=GROUP)

    calm = advise(evidence, replace(QUESTION, work_s=0.0005))
    busy = advise(evidence, replace(QUESTION, work_s=0.0015))

    assert calm.verdict is Judgement.KEEPS_UP
    assert busy.verdict is Judgement.HELPS


def test_a_group_that_lags_is_helped_even_if_little_comes() -> None:
    """A backlog of an hour of work is no calm group."""
    behind = replace(GROUP, lag=10_000_000, behind_count=2, behind_per_s=4_000.0)

    advice = advise(Evidence(keys=even_keys(2), topic=TOPIC, group=behind))

    assert advice.verdict is Judgement.HELPS
    assert advice.rates is not None and advice.rates.is_estimated
    assert advice.rates.work_s == pytest.approx(0.0005)


def test_members_follow_from_rate_and_work() -> None:
    """1,000 records/s of 10 ms keep ten members busy; with a quarter to spare 13 and more."""
    question = AdviceQuestion(bootstrap="kafka:9092", work_s=0.01)

    advice = advise(Evidence(keys=even_keys(2), topic=TOPIC), question)

    assert advice.rates is not None
    assert advice.rates.members_needed == advice.speedup.members
    assert 13 <= advice.speedup.members <= 15
    assert advice.rates.lanes >= 1_250


def test_no_members_are_named_where_a_key_forbids_it() -> None:
    """A key with a fifth of 1,000 records/s of 10 ms takes two members' time alone."""
    keys = keys_of({5: 25, **{key_hash(bytes([n])): 1 for n in range(100)}})

    advice = advise(
        Evidence(keys=keys, topic=TOPIC), AdviceQuestion(bootstrap="kafka:9092", work_s=0.01)
    )

    assert advice.rates is not None and advice.rates.members_needed is None
    assert advice.ceiling == 5
    assert advice.verdict is Judgement.HELPS


def test_lanes_are_as_few_as_will_do() -> None:
    """One equal key in each eighth: 8 lanes do for 8 members, and 4 do for 4."""
    keys = keys_of({(HASH_MAX // 8 + 1) * number + 5: 10 for number in range(8)})

    chosen = [
        advise(Evidence(keys=keys), replace(QUESTION, members=members, lanes=None)).speedup.lanes
        for members in (4, 8)
    ]

    assert chosen == [4, 8]


def test_a_sample_has_an_interval_and_may_be_too_small() -> None:
    """Forty records say little of a million; four thousand of 400 keys say enough."""
    few = sample_of([key_hash(bytes([n % 20])) for n in range(40)], scale=25_000)
    many = sample_of([key_hash(f"{n % 400}".encode()) for n in range(4_000)], scale=250)

    small, good = (
        advise(Evidence(keys=sample.keys(), sample=sample, distinct_keys=1.0))
        for sample in (few, many)
    )

    assert small.is_sample_small
    assert not good.is_sample_small
    assert good.interval is not None
    low, high = good.interval
    assert 1 <= low <= good.speedup.parallel <= high <= 8


def test_the_same_input_gives_the_same_advice() -> None:
    """Redrawn samples come from a fixed seed."""
    sample = sample_of([key_hash(f"{n % 40}".encode()) for n in range(400)], scale=10)
    evidence = Evidence(keys=sample.keys(), sample=sample)

    assert advise(evidence).interval == advise(evidence).interval
