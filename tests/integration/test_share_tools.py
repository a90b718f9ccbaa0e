"""kafka-share-groups prints the same through keylane as direct, and does the same."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.keylane_process import PATIENCE
from tests.integration.share_sides import TIMESTAMP_MS, Side
from tests.integration.share_wire import ACCEPT, wait_until
from tests.share.member import GroupTool, Printed

EARLY_MS, LATE_MS = TIMESTAMP_MS, TIMESTAMP_MS + 3_600_000
SETTLE_S = 20.0 * PATIENCE
"""Groups that other tests have left behind may change between two runs, until the sessions of their
members are over, 10 s after the last heartbeat."""
BETWEEN = "2023-11-14T22:45:00.000"
"""A time of the process' own zone, which is UTC."""


@pytest.fixture(scope="module")
def tool() -> Iterator[GroupTool]:
    """One Java process for all runs."""
    with GroupTool() as running:
        yield running


def neutral(printed: Printed, side: Side) -> Printed:
    """Return what was printed without names and addresses of a side, and without widths."""
    texts = []
    for text in (printed.out, printed.err):
        text = text.replace(side.group, "<group>").replace(side.topic, "<topic>")
        text = re.sub(r"(localhost|127\.0\.0\.1):\d+", "<address>", text)
        texts.append(re.sub(r"[ -]{2,}", "  ", text).strip())
    return Printed(printed.status, *texts)


def fill(side: Side) -> None:
    """Give the topic an early and a late batch of five, and the group three records of it."""
    side.write(5, timestamp_ms=EARLY_MS)
    side.write(5, timestamp_ms=LATE_MS)


def read(side: Side) -> None:
    """Have a member accept three records and leave."""
    client, topic_id = side.join()
    with client:
        client.acquire(topic_id, count=5, max_records=5)
        client.acknowledge(topic_id, acks=[(0, 2, [ACCEPT])])
        client.close()
    wait_until(lambda: side.offsets() == (3, 7), "the member's end is persisted")


EARLIEST = {"share_auto_offset_reset": "earliest"}
SHOWN = {
    "--list": "<group>",
    "--list --state": "Stable",
    "--list --state stable,empty": "Stable",
    "--list --state dead": "",
    "--describe --group {group}": "START-OFFSET",
    "--describe --group {group} --offsets": "LAG",
    "--describe --group {group} --offsets --verbose": "LEADER-EPOCH",
    "--describe --group {group} --members": "CONSUMER-ID",
    "--describe --group {group} --members --verbose": "MEMBER-EPOCH",
    "--describe --group {group} --state": "Stable",
    "--describe --group {group} --state --verbose": "ASSIGNMENT-EPOCH",
    "--describe --group {group} --timeout 20000 --command-config {config}": "START-OFFSET",
    "--describe --all-groups --offsets": "<group>",
    "--describe --all-groups --members": "CONSUMER-ID",
    "--describe --all-groups --state": "Stable",
    "--describe --group none-{group}": "not found",
    "--reset-offsets --group {group} --topic {topic} --to-earliest --execute": "is not empty",
    "--delete-offsets --group {group} --topic {topic}": "The group is not empty",
    "--delete --group {group}": "is not EMPTY",
    "--delete --all-groups --group x": "not both",
    "--version": "4.3.1",
    "--help": "list, describe, reset and delete share groups",
}
"""Arguments, and something of what they print, for a group with a member."""


def test_a_group_with_a_member_is_shown_as_direct(tool, share_sides, tmp_path) -> None:
    """Every way to list and describe prints the same; a change is refused with the same words."""
    side, _ = share_sides.make(**EARLIEST, share_session_timeout_ms=60_000)
    through = share_sides.proxied
    fill(side)
    read(side)
    config = tmp_path / "client.properties"
    config.write_text("client.id=tool\n")
    client, _ = side.join()
    pairs = {}

    with client:
        for line in SHOWN:
            # All runs may take longer than a session, at whose end the group has no member.
            assert client.heartbeat().error_code == 0
            pairs[line] = both(tool, side, through, arguments(line, side, config))
        client.close()

    for line, (direct, proxied) in pairs.items():
        assert proxied == direct, line
        assert SHOWN[line] in direct.out + direct.err, (line, direct)


def arguments(line: str, side: Side, config: Path | str = "") -> list[str]:
    """Split a line of arguments, with the names of a side."""
    return line.format(group=side.group, topic=side.topic, config=config).split(" ")


def both(tool: GroupTool, side: Side, through: str, args: Sequence[str]) -> tuple[Printed, Printed]:
    """Run the tool on the same group direct and through keylane."""
    deadline_s = time.monotonic() + SETTLE_S
    while True:
        direct, proxied = (
            neutral(tool.run(bootstrap, *args), side) for bootstrap in (side.bootstrap, through)
        )
        if proxied == direct or time.monotonic() > deadline_s:
            return direct, proxied


CHANGES = {
    "--reset-offsets --group {group} --topic {topic} --to-earliest --dry-run": (3, 7),
    "--reset-offsets --group {group} --topic {topic} --to-earliest --execute": (0, 10),
    "--reset-offsets --group {group} --all-topics --to-latest --dry-run": (0, 10),
    "--reset-offsets --group {group} --all-topics --to-latest --execute": (10, 0),
    "--reset-offsets --group {group} --topic {topic}:0 --to-datetime {config} --execute": (5, 5),
    "--reset-offsets --group {group} --to-earliest --execute": None,
    "--reset-offsets --group {group} --topic {topic} --to-datetime then --execute": None,
    "--delete-offsets --group {group} --topic none-{topic}": None,
    "--delete-offsets --group {group} --topic {topic}": None,
    "--describe --group {group}": None,
    "--delete --group {group}": None,
    "--list --state": None,
    "--delete --group none-{group}": None,
}
"""Arguments in order, and start offset and lag afterwards."""


def test_an_empty_group_is_changed_as_direct(tool, share_sides) -> None:
    """Offsets are reset and deleted, and the group is deleted, with the same words."""
    sides = share_sides.make(**EARLIEST)
    for side in sides:
        fill(side)
        read(side)

    stories = []
    for side in sides:
        story = {}
        for line, offsets in CHANGES.items():
            printed = tool.run(side.bootstrap, *arguments(line, side, BETWEEN))
            if line.startswith("--list"):
                printed = replace(printed, out=str(side.group in printed.out))
            shown = None if offsets is None else side.offsets()
            story[line] = (neutral(printed, side), shown)
        stories.append(story)

    direct, proxied = stories
    assert proxied == direct
    assert {line: shown for line, (_, shown) in direct.items()} == CHANGES
    assert "successful" in direct["--delete --group {group}"][0].out
    assert direct["--list --state"][0].out == "False"


WRONG = (
    "",
    "--list --describe",
    "--list --delete",
    "--describe",
    "--describe --group a --members --offsets",
    "--describe --group a --members --state",
    "--describe --group a --all-groups",
    "--list --members",
    "--list --offsets",
    "--list --group a",
    "--list --state nonsense",
    "--delete",
    "--delete --group a --topic t",
    "--delete-offsets --group a",
    "--delete-offsets --topic t",
    "--delete-offsets --group a --all-topics",
    "--reset-offsets --topic t --to-earliest --dry-run",
    "--reset-offsets --group a --group b --topic t --to-earliest --dry-run",
    "--reset-offsets --group a --topic t --to-earliest",
    "--reset-offsets --group a --topic t --to-earliest --dry-run --execute",
    "--reset-offsets --group a --topic t --to-earliest --to-latest --dry-run",
    "--reset-offsets --group a --topic t --dry-run",
    "--reset-offsets --group a --topic t --all-topics --to-latest --dry-run",
    "--describe --group a --dry-run",
    "--describe --group a --execute",
    "--describe --group a --to-latest",
    "--nonsense",
)
"""Arguments that do not fit together."""


def test_wrong_arguments_are_refused_as_direct(tool, share_sides) -> None:
    """The tool prints the same error; most are refused before any request."""
    side, _ = share_sides.make()
    through = share_sides.proxied

    pairs = {line: both(tool, side, through, line.split()) for line in WRONG}
    missing = tool.run("", "--list")

    assert (missing.status, "bootstrap-server" in missing.err) == (1, True)
    for line, (direct, proxied) in pairs.items():
        assert proxied == direct, line
        assert direct.status == 1 or direct.out.startswith("Error: "), line
