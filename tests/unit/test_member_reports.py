"""Reports of members that tests run as child processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

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
