"""proxy/runtime/log_pace.py and closing_lines.py: strangers cannot fill the log."""

from __future__ import annotations

import logging

from keylane.proxy.runtime.log_pace import LogPace
from keylane.proxy.session.hooks import INTERVAL_S, LINES_MAX, ClosingLines


def test_lines_that_are_left_out_are_counted() -> None:
    """The next line says how many there were."""
    pace = LogPace(lines_max=2, interval_s=10.0)

    assert [pace.let(0.0), pace.let(1.0), pace.let(2.0), pace.let(9.9)] == [0, 0, None, None]
    assert [pace.let(10.0), pace.let(10.0), pace.let(10.0)] == [2, 0, None]
    assert pace.let(30.0) == 1
    assert pace.let(50.0) == 0


def test_only_lines_about_strangers_are_left_out(caplog) -> None:
    """Lines about a client that has logged in are always logged."""
    caplog.set_level(logging.INFO, "keylane.session")
    lines = ClosingLines()
    for number in range(3 * LINES_MAX):
        for is_proven in (False, True):
            lines.write(
                f"s{number}", "peer", "nonsense", warn=True, is_proven=is_proven, now_s=number / 99
            )
    written = len(caplog.records)
    lines.write("s", "peer", "nonsense", warn=True, is_proven=False, now_s=2 * INTERVAL_S)

    assert written == LINES_MAX + 3 * LINES_MAX
    assert caplog.messages[-1].endswith(f"reason=nonsense lines_left_out={2 * LINES_MAX}")
