"""The text: ten subjects and a command, never a key; and the document with all figures."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Final

import pytest

from keylane.advise.advice import Advice, AdviceQuestion, Evidence, Judgement, give_advice
from keylane.advise.report import document_of, render
from keylane.keyrange.hash import key_hash
from tests.reference.advise_topics import GROUP_FACTS, TOPIC_FACTS, sample_of

SUBJECTS: Final = [
    "topic", "flow", "keys", "hot keys", "today", "lanes", "limit", "work", "cost", "verdict",
    "command",
]  # fmt: skip
HOT: Final = key_hash(b"customer-1")
TOPIC: Final = replace(
    TOPIC_FACTS, offsets_kept=20_000, produced_per_s=300.0, produced_mean_per_s=250.0
)
GROUP: Final = replace(
    GROUP_FACTS, lag=5_000, consumed_per_s=200.0, behind_count=2, behind_per_s=200.0
)


def advice_of(**changes: object) -> Advice:
    """Advice for a group of two members that falls behind, of a topic with a key of a tenth."""
    hashes = [HOT if n % 10 == 0 else key_hash(f"{n % 333}".encode()) for n in range(2_000)]
    sample = sample_of(hashes[:1_000], hashes[1_000:], scale=10)
    evidence = Evidence(
        keys=sample.keys(),
        topic=replace(TOPIC, **changes),  # type: ignore[arg-type]
        group=GROUP,
        sample=sample,
        distinct_keys=sample.distinct_keys(),
    )
    return give_advice(AdviceQuestion(bootstrap="kafka:9092", members=6, lanes=16), evidence)


def lines_of(text: str) -> dict[str, str]:
    return {line[:11].strip(): line[11:] for line in text.splitlines()}


def test_each_subject_has_a_line() -> None:
    """Ten lines of figures, and the command."""
    lines = lines_of(render(advice_of()))

    assert list(lines) == SUBJECTS
    assert lines["topic"].startswith("orders: 2 partitions, replication 3. It holds 20,000")
    assert (
        "Group billing (2 members) consumes 200/s and is 5,000 behind, and 100 more"
        in (lines["flow"])
    )
    assert str(HOT) in lines["hot keys"]
    assert "at 10 ms per record, as the group's own rate says" in lines["work"]
    assert lines["verdict"].startswith("keylane helps: ")
    assert lines["command"] == "keylane proxy --bootstrap kafka:9092 --lanes orders=16"
    assert "customer-1" not in render(advice_of())


@pytest.mark.parametrize(
    ("changes", "subject", "words"),
    [
        ({"is_compacted": True}, "topic", "It is compacted"),
        ({"out_of_sync": 1}, "topic", "1 partition with replicas that are behind"),
        ({"produced_per_s": 0.0}, "flow", "0 records/s come in now, 250 on average"),
    ],
)
def test_what_is_special_of_a_topic_is_said(
    changes: dict[str, object], subject: str, words: str
) -> None:
    """Compaction, replicas that lag, a topic at rest."""
    assert words in lines_of(render(advice_of(**changes)))[subject]


@pytest.mark.parametrize("verdict", list(Judgement))
def test_each_judgement_is_said_plainly(verdict: Judgement) -> None:
    """The last line but one says whether keylane is the right answer."""
    text = lines_of(render(replace(advice_of(), verdict=verdict)))["verdict"]

    is_right = verdict is Judgement.HELPS
    assert is_right == text.startswith("keylane helps")
    assert is_right or "wrong answer" in text or "not needed" in text


def test_a_small_sample_is_said_to_be_one() -> None:
    """An interval that is wide, in capitals."""
    advice = replace(advice_of(), interval=(1.0, 6.0))

    assert "TOO SMALL" in render(advice)


def test_the_document_is_json_with_the_figures_of_the_text() -> None:
    """Every figure is a number with its unit in its name."""
    advice = advice_of()

    document = json.loads(json.dumps(document_of(advice), allow_nan=False))

    assert document["verdict"] == "helps"
    assert document["speedup"]["parallel"] == round(advice.speedup.parallel, 4)
    assert document["keys"]["hot"][0]["key_hash"] == str(HOT)
    assert document["group"]["work_ms"] == 10
    assert document["topic"]["produced_per_s"] == 300
    assert document["sample"]["records"] == 2_000


def test_a_profile_without_keys_or_rates_is_said_to_have_none() -> None:
    """Nothing is made up: no flow, no hottest key, no work."""
    sample = advice_of().keys
    bare = replace(sample, knows_keys=False)
    no_keys = replace(
        bare,
        partitions=tuple(replace(part, is_key=part.is_key & False) for part in bare.partitions),
    )

    text = render(give_advice(AdviceQuestion(bootstrap="HOST:PORT"), Evidence(keys=no_keys)))

    lines = lines_of(text)
    assert list(lines) == SUBJECTS
    assert lines["hot keys"] == "not known, the profile has no keys."
    assert lines["limit"].startswith("the hottest key is unknown")
    assert "distinct keys were not counted" in lines["keys"]
    assert "--work 10ms" in lines["work"]
