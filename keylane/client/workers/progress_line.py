"""A line on a terminal that shows the progress, written anew in its place."""

from __future__ import annotations

from typing import Final, TextIO

from keylane.client.workers.view import WorkersView

INTERVAL_S: Final = 0.5
CLEAR_REST: Final = "\x1b[K"


def format_line(view: WorkersView, retries: int, per_s: float) -> str:
    """Return the line's text."""
    parts = [
        f"{per_s:,.0f} records/s",
        f"{view.in_flight:,} in flight",
        f"{view.queued:,} queued",
        f"{view.keys_waiting:,} keys waiting",
        f"{retries:,} retries",
    ]
    if view.lag is not None:
        parts.append(f"lag {view.lag:,.0f}")
    return "  ".join(parts)


class ProgressLine:
    """Writes the line to a terminal; the rate is that since the last time."""

    def __init__(self, out: TextIO, now_s: float) -> None:
        self._out = out
        self._at_s, self._done = now_s, 0

    def show(self, view: WorkersView, done: int, retries: int, now_s: float) -> None:
        """Write the line anew. `done` and `retries` are counts since the start."""
        passed_s = now_s - self._at_s
        per_s = (done - self._done) / passed_s if passed_s > 0 else 0.0
        self._at_s, self._done = now_s, done
        self._out.write("\r" + format_line(view, retries, per_s) + CLEAR_REST)
        self._out.flush()

    def end(self) -> None:
        """Leave the line as it is; what follows begins below it."""
        self._out.write("\n")
        self._out.flush()
