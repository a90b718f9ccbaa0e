"""Patterns of subscriptions (KIP-848) compared with lane topics, at a cost that is bounded.

Source: KIP-848, KIP-1072 (broker side: RE2/J); github.com/google/re2/wiki/Syntax.

A pattern of a member is RE2; read as Python's `re`, a hostile one would block the event loop. RE2
matches in linear time, and yet a pattern of a KiB can take it seconds to compile, with the
interpreter's lock held: classes of Unicode under (?i), and repetitions that it writes out. Names of
topics are ASCII. So a pattern is read as bytes and within bounds; one beyond them is not read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import re2

from keylane.bounded import BoundedDict
from keylane.errors import PatternUnreadable

PATTERN_CHARS_MAX: Final = 1024
REPEATS_MAX: Final = 1000
"""Sum of the counted repetitions; RE2's own bound is that for one, nested ones included."""
MEMORY_BYTES_MAX: Final = 256 * 1024
"""Memory of one compiled pattern, its automaton included."""
PATTERNS_KEPT: Final = 10_000
"""Some 10 MB at most."""
LITERAL: Final = re.compile(r"[ -\[\]-~]|\\[dDsSwWbBAzQE]|\\[ -/:-@\[-`{-~]")
"""Characters of a pattern: ASCII, and escapes that mean ASCII. No \\p, \\x, \\C, \\1."""
COUNTED: Final = re.compile(r"\{(\d{1,9}),?(\d{0,9})\}")


def check_pattern(pattern: str) -> None:
    """Raises: PatternUnreadable, with the reason."""
    if len(pattern) > PATTERN_CHARS_MAX:
        raise PatternUnreadable(f"it has {len(pattern)} characters, at most {PATTERN_CHARS_MAX}")
    position = 0
    while position < len(pattern):
        found = LITERAL.match(pattern, position)
        if found is None:
            raise PatternUnreadable(
                f"position {position}: only ASCII, and escapes of it, can be compared"
            )
        position = found.end()
    repeats = sum(max(int(most or 0), int(least)) for least, most in COUNTED.findall(pattern))
    if repeats > REPEATS_MAX:
        raise PatternUnreadable(f"it repeats {repeats} times, at most {REPEATS_MAX}")


def find_matches(pattern: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names that a pattern matches in full, in up to some 0.05 s for each.

    Raises: PatternUnreadable.
    """
    check_pattern(pattern)
    options = re2.Options()
    options.max_mem = MEMORY_BYTES_MAX
    options.log_errors = False  # it would write the pattern to stderr
    options.never_capture = True
    options.encoding = re2.Options.Encoding.LATIN1
    try:
        compiled = re2.compile(pattern.encode("latin-1"), options)
    except re2.error:
        raise PatternUnreadable(
            "RE2 cannot read it, or not in the memory that it may take"
        ) from None
    return tuple(name for name in names if compiled.fullmatch(name.encode()))


class ComparedPatterns:
    """Lane topics that patterns match. At most PATTERNS_KEPT of them; what was used last stays."""

    def __init__(self) -> None:
        self._topics: tuple[str, ...] = ()
        """Lane topics that `_matches` is of."""
        self._matches: BoundedDict[str, tuple[str, ...]] = BoundedDict(PATTERNS_KEPT)

    def matches(self, pattern: str, topics: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return the lane topics that a pattern matches; None: it was not compared with these."""
        if topics != self._topics:
            self._topics = topics
            self._matches.clear()
        return self._matches.use(pattern)

    def note_matches(self, pattern: str, topics: tuple[str, ...], matches: tuple[str, ...]) -> None:
        """Keep the result of a comparison with lane topics."""
        if topics == self._topics:
            self._matches[pattern] = matches
