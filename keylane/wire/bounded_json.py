"""JSON that a stranger may have written: bounded in size and depth before it is parsed.

Source: RFC 8259, section 9: a parser may limit size, depth and numbers.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any, Final

TOKENS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[{]+|[\]}]+', re.DOTALL)
"""A string, also one without an end, or brackets that follow each other. Every byte is looked at
once: a string that does not end takes the rest."""
QUOTE: Final = b'"'[0]
OPENING: Final = frozenset(b"[{")


class JsonInvalid(ValueError):
    """Text that is no JSON, too long, too deep, or says a name twice in one object."""


class NameTwice(JsonInvalid):
    """A name stands twice in an object: one of the two would be lost. The text says which."""


def read_json(data: bytes, *, bytes_max: int, depth_max: int) -> Any:
    """Return the value that UTF-8 text stands for; NaN and Infinity are none.

    Raises: JsonInvalid. Its text holds nothing of the data but a name that stands twice.
    """
    if len(data) > bytes_max:
        raise JsonInvalid(f"{len(data)} bytes, at most {bytes_max} are read")
    if not has_depth(data, depth_max):
        raise JsonInvalid(f"it is nested deeper than {depth_max}")
    try:
        # Not `json.loads(data)`: that would guess at UTF-16 and UTF-32.
        return json.loads(
            data.decode(),
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_float=_float,
        )
    except JsonInvalid:
        raise
    except (ValueError, RecursionError, OverflowError, MemoryError) as error:
        raise JsonInvalid(f"it is no JSON: {_reason(error)}") from None


def has_depth(data: bytes, depth_max: int) -> bool:
    """Return whether brackets outside of strings are nested no deeper than `depth_max`."""
    depth = 0
    for match in TOKENS.finditer(data):
        first = data[match.start()]
        if first == QUOTE:
            continue
        size = match.end() - match.start()
        depth += size if first in OPENING else -size
        if depth > depth_max:
            return False
    return True


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise NameTwice(f"the name {counts.most_common(1)[0][0]!r} stands twice in one object")
    return found


def _constant(name: str) -> Any:
    raise JsonInvalid(f"it is no JSON: {name}")


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise JsonInvalid("it is no JSON: a number beyond all bounds")
    return number


def _reason(error: BaseException) -> str:
    """Return the fault and its place; never the data itself, which errors of codecs show."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at {error.pos}"
    if isinstance(error, UnicodeDecodeError):
        return f"no UTF-8 at byte {error.start}"
    return type(error).__name__
