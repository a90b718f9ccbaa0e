"""What was wanted beside what came: a diff of the fields that the test names."""

from __future__ import annotations

import pprint
from difflib import ndiff
from typing import Any


def check(wants: Any, got: Any) -> None:
    """Fail with a diff unless `got` holds all that is wanted."""
    cut = _cut(wants, got)
    if cut != wants:
        lines = ndiff(pprint.pformat(wants).splitlines(), pprint.pformat(cut).splitlines())
        raise AssertionError("expected (-) and got (+):\n" + "\n".join(lines))


def _cut(wants: Any, got: Any) -> Any:
    """`got` without the fields that `wants` does not name, as far as both have one shape."""
    if isinstance(wants, dict) and isinstance(got, dict):
        return {key: _cut(wants[key], got[key]) for key in wants if key in got}
    if isinstance(wants, list) and isinstance(got, list) and len(wants) == len(got):
        return [_cut(one, other) for one, other in zip(wants, got, strict=True)]
    return got
