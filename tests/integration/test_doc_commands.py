"""Commands of the how-to pages run as they stand, in front of a real Kafka."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from .test_getting_started import ROOT, Reader

PAGES: Final = ("lanes", "migration", "tuning", "kubernetes", "troubleshooting")
MARKED: Final = re.compile(r"^<!-- run: (\w+) -->\n```sh\n(.*?)```", re.DOTALL | re.MULTILINE)
ALL: Final = re.compile(r"^```sh\n", re.MULTILINE)
PRODUCER: Final = "python docs/examples/start/produce.py"
MEMBER: Final = "python docs/examples/start/member.py"


def commands(kind: str) -> list[str]:
    """Return the commands of all pages of a kind, each once."""
    found = [
        command.strip()
        for page in PAGES
        for of, command in MARKED.findall(text_of(page))
        if of == kind
    ]
    return list(dict.fromkeys(found))


def text_of(page: str) -> str:
    """Return the text of a page."""
    return (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """A reader with a Kafka, and orders in it."""
    reader = Reader(tmp_path / "home", ROOT)
    try:
        reader.open("kafka", "keylane kafka --data ./kafka-data").wait_for("ready on")
        reader.open("producer", PRODUCER).wait_for("0 orders written")
        yield reader
    finally:
        reader.close()


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_is_run(page: str) -> None:
    """A block of commands without its kind would be published untried."""
    assert len(MARKED.findall(text_of(page))) == len(ALL.findall(text_of(page))) > 0


def test_commands_in_front_of_kafka(reader: Reader) -> None:
    """The proxy of the pages serves 8 lanes, and each question to it is answered."""
    (proxy,) = commands("proxy")
    reader.open("proxy", proxy).wait_for("keylane ready")
    reader.open("member", MEMBER).wait_for("customer-")

    (partitions,) = [reader.run(command) for command in commands("kcat")]
    (shown,) = [reader.run(command) for command in commands("describe")]
    (place,) = [reader.run(command) for command in commands("key")]
    answers = [reader.run(command) for command in commands("curl") if shutil.which("curl")]

    assert partitions == "8\n"
    assert shown.startswith("group billing: Stable") and "1 members, 8 lanes" in shown
    assert "partition" in place and "lane index" in place
    assert answers == [] or (answers[0].startswith("ok") and "keylane_" in answers[1])


def test_workers_of_one_machine(reader: Reader) -> None:
    """The command of the tuning page starts two nodes that share a group."""
    (workers,) = commands("workers")
    # By default the second node's ports are 100 further up, where others may have theirs.
    reader.environment["KEYLANE_WORKER_PORT_STEP"] = "1"
    proxy = reader.open("proxy", workers)
    proxy.wait_for("keylane ready")
    (ready,) = [line for line in proxy.lines if line.startswith("keylane ready")]
    assert ready.endswith(" workers=2")

    member = reader.open("member", MEMBER)

    member.wait_for("customer-")
