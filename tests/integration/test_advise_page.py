"""docs/advise.md: its commands are commands, and its output is what a run prints, but for figures.

With KEYLANE_PRINT_ADVICE the test prints its own output, for the page.
"""

from __future__ import annotations

import os
import re
import shlex
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer

from keylane.advise.advice import Judgement
from tests.commands import parse_command
from tests.integration.test_advise import orders_coming, run_advise
from tests.integration.test_group_handover import stable_offsets

PAGE: Final = (Path(__file__).parents[2] / "docs" / "advise.md").read_text(encoding="utf-8")
COMMANDS: Final = [
    line
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("keylane ")
]
NUMBER: Final = re.compile(r"\d[\d,.]*\d|\d")
BY_CHANCE: Final = (
    "At first",
    "With # lanes the heaviest lane",
    "Sample: ",
    "No number of",
    "# mem",
)
"""Beginnings of sentences that depend on the figures of a run."""


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_page_parses(command: str) -> None:
    """Flags are those of this version."""
    assert vars(parse_command(shlex.split(command)[1:]))


def test_every_verdict_is_explained() -> None:
    """The page has a row for each value of `verdict`."""
    assert [each.value for each in Judgement if f"| `{each.value}` |" not in PAGE] == []


@contextmanager
def slow_members(bootstrap: str, topic: str, group: str, work_s: float) -> Iterator[list[int]]:
    """Two stock members that take a time for each record; yields what each has done."""
    done, ending = [0, 0], threading.Event()

    def work(number: int) -> None:
        consumer = Consumer({
            "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 500,
        })  # fmt: skip
        consumer.subscribe([topic])
        while not ending.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                time.sleep(work_s)  # the work of a record
                done[number] += 1
        consumer.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    try:
        yield done
    finally:
        ending.set()
        for thread in threads:
            thread.join()


def test_the_output_of_the_page_is_that_of_a_run(kafka, topic) -> None:
    """Two members of 5 ms per record fall behind 1,000 records/s; figures are of the machine."""
    name = topic("orders", partitions=2)
    group = f"g-{name}"
    with (
        orders_coming(kafka, name, 1_000) as producer,
        slow_members(kafka, name, group, 0.005) as done,
    ):
        while sum(producer.acknowledged) < 5_000 or min(done) < 20:
            time.sleep(0.1)  # counters of two threads
        while min(stable_offsets(kafka, group, name, 2)) < 0:
            time.sleep(0.1)  # without commits the group has no rate, and brokers have no event
        output = run_advise(kafka, name, "--group", group, "--watch", "6")
    shown = re.search(r"```text\n(topic .*?)```", PAGE, re.DOTALL)

    assert output.code == 0, output.stderr
    text = (
        output.stdout.replace(group, "billing").replace(name, "orders").replace(kafka, "kafka:9092")
    )
    if os.environ.get("KEYLANE_PRINT_ADVICE"):
        print(text)
    assert shown is not None
    assert sentences(text) == sentences(shown[1])


def sentences(text: str) -> set[str]:
    """Sentences with # for each number, without those that a run may have or not."""
    masked = NUMBER.sub("#", re.sub(r"#+ [kMG]?B\b", "# B", NUMBER.sub("#", text)))
    found = {part.strip(" .") for line in masked.splitlines() for part in line.split(". ")}
    return {part for part in found if not part.startswith(BY_CHANCE)}
