"""Reports of members that tests run as child processes."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaException, TopicPartition

from tests.integration.member import STOPPING, ConfluentMember

PROGRAM = """
import signal
from tests.integration.member import STOPPING, report
signal.signal(signal.SIGTERM, lambda *_: STOPPING.set())
report("records", text="x" * 1_000_000)
report("left", stopping=STOPPING.is_set())
"""


def test_a_signal_does_not_cut_a_report_off() -> None:
    """It comes while the pipe is full: the write ends early, and the rest follows."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = os.read(process.stdout.fileno(), 1)
        process.send_signal(signal.SIGTERM)
        lines = (first + process.stdout.read()).splitlines()

    records, left = [json.loads(line) for line in lines]
    assert len(records["text"]) == 1_000_000
    assert left["event"] == "left" and left["stopping"]


class RefusingOnce:
    """A consumer whose first commit is refused, as between JoinGroup and SyncGroup."""

    def __init__(self, _: Any) -> None:
        self.refused = self.is_closed = False

    def subscribe(self, topics: list[str], **callbacks: Any) -> None:
        """Keep the callbacks."""
        self.callbacks = callbacks

    def commit(self, **_: Any) -> None:
        """Refuse one."""
        if not self.refused:
            self.refused = True
            raise KafkaException("refused")

    def poll(self, _: float) -> None:
        """Give nothing."""

    def close(self) -> None:
        """End."""
        self.is_closed = True


@pytest.fixture
def member(monkeypatch: pytest.MonkeyPatch) -> ConfluentMember:
    """Holds lane 3, and has processed it up to offset 9."""
    monkeypatch.setattr(confluent_kafka, "Consumer", RefusingOnce)
    args = argparse.Namespace(
        bootstrap="", group="g", topic="orders", name="m", assignor="range", protocol="classic",
        isolation="read_committed", poll_records=1, session_timeout_ms=6000, request_timeout_ms=0,
        settings="",
    )  # fmt: skip
    made = ConfluentMember(args)
    made.processed[3] = TopicPartition("orders", 3, 9)
    return made


def events(capfd: pytest.CaptureFixture[str]) -> list[str]:
    """Names of what was reported."""
    return [json.loads(line)["event"] for line in capfd.readouterr().out.splitlines()]


def test_a_refused_commit_comes_again_before_lanes_are_given_up(member, capfd) -> None:
    """The next owner begins behind what was processed."""
    member.commit()
    member.consumer.callbacks["on_revoke"](member.consumer, [TopicPartition("orders", 3)])

    assert events(capfd) == ["commit_failed", "committed", "revoked"]
    assert not member.processed


def test_lost_lanes_are_not_committed(member, capfd) -> None:
    """They may be at another member, which has committed more."""
    member.consumer.callbacks["on_lost"](member.consumer, [TopicPartition("orders", 3)])

    assert events(capfd) == ["revoked"]
    assert not member.processed


def test_a_refused_commit_comes_again_before_the_end(member, capfd, monkeypatch) -> None:
    """A member that is stopped in the middle of a rebalance waits for its end."""
    monkeypatch.setattr(STOPPING, "is_set", lambda: True)
    member.run()

    assert events(capfd) == ["commit_failed", "committed", "left"]
    assert member.consumer.is_closed
