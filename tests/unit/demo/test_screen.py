"""The screen: every fact of the moment is in the picture."""

from __future__ import annotations

import io

from rich.console import Console

from keylane.demo.ledger import Check, Counts
from keylane.demo.screen import (
    LiveScreen,
    MemberView,
    PlainScreen,
    Screen,
    ScreenView,
    render_verdict,
    render_view,
)

VIEW = ScreenView(
    elapsed_s=12.0,
    title="keylane: topic orders",
    members=(
        MemberView(1, "aiokafka", "reading", (0, 2), 250.0, 1_234, 17, 0.125),
        MemberView(2, "kafka-python", "killed", (), 0.0, 99, 0, 0.0),
    ),
    owners=((1, None), (11, 1)),
    produced=2_000,
    delivered=1_333,
    rate_per_s=250.0,
    keys=500,
    counts=Counts(deliveries=1_340, after_kill=7),
    excess=1.04,
)


def draw(view: ScreenView) -> str:
    console = Console(file=io.StringIO(), width=110)
    console.print(render_view(view, ["1.0 s  kill -9 member 2"]))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_picture_holds_the_facts() -> None:
    """Members, records, lag, lanes, redeliveries and the story are all there."""
    picture = draw(VIEW)

    for fact in (
        "aiokafka",
        "killed",
        "1,234",
        "17",
        "waiting 667",
        "after kill 7",
        "0 out of order",
        "12.5%",
        "the busiest member has 1.04 x the load that keys allow",
    ):
        assert fact in picture
    assert "partition 1   11  1" in picture
    assert "kill -9 member 2" in picture


def test_the_verdict_names_failures() -> None:
    """A failed check says so."""
    console = Console(file=io.StringIO(), width=80)

    console.print(render_verdict([Check("lost", "3", passed=False), Check("x", "1", passed=True)]))

    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "FAILED" in text and "ok" in text


def test_plain_lines_come_now_and_then() -> None:
    """Two updates within the interval are one line; the story is printed at once."""
    console = Console(file=io.StringIO(), width=40)
    screen: Screen = PlainScreen(console)

    screen.update(VIEW)
    screen.update(VIEW)
    screen.say(12.5, "kill -9 member 3")
    screen.close()

    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 2
    assert "produced 2,000, processed 1,333" in lines[0]
    assert lines[0].endswith("busiest member 1.04 x ideal load")
    assert lines[1].endswith("kill -9 member 3")


def test_the_live_view_leaves_its_last_picture() -> None:
    """What was drawn last stays after the end."""
    console = Console(file=io.StringIO(), width=110, force_terminal=True)
    screen: Screen = LiveScreen(console)

    screen.say(1.0, "start")
    screen.update(VIEW)
    screen.close()

    assert isinstance(console.file, io.StringIO)
    assert "kafka-python" in console.file.getvalue()
