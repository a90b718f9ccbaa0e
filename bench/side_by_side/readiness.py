"""Time from keylane's start until it serves.

In:    nothing.  Out: seconds with compiled kernels on disk, and with none.

Test tools are hidden from it, as users do not have them: kio makes strategies for hypothesis of
all its types as soon as it finds it, a tenth of the start.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from bench.side_by_side.lineup import KEYLANE_LOG, Lineup, progress
from bench.side_by_side.outcome import Outcome, median, spread
from tests.integration.keylane_process import KeylaneProcess

HIDDEN: Final = "hypothesis"
WARM_S_MAX: Final = 1.2
COLD_S_MAX: Final = 6.0


def run(lineup: Lineup) -> Outcome:
    """Start it again and again, once without compiled kernels."""
    warm: list[float] = []
    for number in range(lineup.repetitions):
        progress(f"readiness {number}/{lineup.repetitions}")
        warm.append(start_once(lineup, f"warm-{number}", {}))
    progress("readiness: cold")
    empty = lineup.stage.folder / "no-kernels"
    cold = start_once(lineup, "cold", {"NUMBA_CACHE_DIR": str(empty)})
    outcome = Outcome("readiness", "From start to ready", ("kernels", "seconds"))
    outcome.rows += [("compiled before", spread(warm)), ("none", f"{cold:.1f}")]
    outcome.keep("seconds", warm=warm, cold=[cold])
    outcome.target("ready with warm kernels, s", median(warm), at_most=WARM_S_MAX)
    outcome.target("ready cold, s", cold, at_most=COLD_S_MAX)
    return outcome


def start_once(lineup: Lineup, name: str, environment: dict[str, str]) -> float:
    """Seconds of one start."""
    environment = environment | {"PYTHONPATH": hide_test_tools(lineup.stage.folder / "hidden")}
    process = KeylaneProcess(
        lineup.kafka.bootstrap,
        [],
        log_path=lineup.stage.folder / f"ready-{name}.log",
        environment={"KEYLANE_LOG": KEYLANE_LOG} | environment,
    )
    started_s = time.perf_counter()
    process.start()
    seconds = time.perf_counter() - started_s
    process.stop()
    return seconds


def hide_test_tools(folder: Path) -> str:
    """Make a folder whose modules cannot be imported; the PYTHONPATH that puts it first."""
    folder.mkdir(exist_ok=True)
    (folder / f"{HIDDEN}.py").write_text("raise ImportError('hidden')\n")
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
