"""States of a held record."""

from __future__ import annotations

from typing import Final

HELD: Final = 0
"""Locked at the broker and at no member."""
OUT: Final = 1
"""At a member."""
DONE: Final = 2
"""The member, or its deadline, has decided; the broker has not confirmed it."""
GONE: Final = 3
"""At no member and not locked: it comes again, or is finished."""
STATE_NAMES: Final = ("held", "out", "done", "gone")
