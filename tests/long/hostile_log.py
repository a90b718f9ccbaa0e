"""Contents that a log must not have after hostile clients, and its number of lines.

In:    the text of a log, how many connections and inputs there were.  Out: findings.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

from tests.long.hostile_kinds import FORGED, SECRET
from tests.long.hostile_stage import PASSWORDS

LINE: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ [\w.]+ ")
READY: Final = "keylane ready "
CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
LINE_LENGTH_MAX: Final = 1200
LINES_PER_INPUT_MAX: Final = 1.0
LINES_BESIDE: Final = 300
"""Lines of starts, of the group, and those that are logged at most once a while."""
SHOWN_MAX: Final = 160


def judge_log(text: str, *, inputs: int, name: str) -> list[str]:
    """Return the faults of a log, each kind once, with its count and first place."""
    lines = text.splitlines()
    kinds: Counter[str] = Counter()
    first: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        for kind in _breaches(line):
            kinds[kind] += 1
            first.setdefault(kind, f"line {number}: {line[:SHOWN_MAX]!a}")
    found = [f"{name}: {kind}, {count} lines, {first[kind]}" for kind, count in kinds.items()]
    bound = LINES_BESIDE + LINES_PER_INPUT_MAX * inputs
    if len(lines) > bound:
        found.append(f"{name}: {len(lines)} lines for {inputs} inputs")
    return found


def _breaches(line: str) -> Iterable[str]:
    if "Traceback (most recent call last)" in line:
        yield "a stack trace"
    if any(secret in line for secret in (SECRET, *PASSWORDS.values())):
        yield "a secret of a client"
    if line.startswith(FORGED):
        yield "a line that a client wrote"
    if CONTROLS.search(line):
        yield "bytes of a client as they are"
    if len(line) > LINE_LENGTH_MAX:
        yield f"a line of more than {LINE_LENGTH_MAX} characters"
    if line and not LINE.match(line) and not line.startswith(READY):
        yield "what is no line of a log"
