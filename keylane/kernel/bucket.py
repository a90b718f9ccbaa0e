"""The interval of a hash: a guide table over the top bits, then a short search.

In:    a hash below 2**63 and the table of `lane_table`.  Out: the interval.
Source: guide tables (Chen and Asau, 1974): the top bits of the hash bound the search. With even
lanes most entries name one lane outright; with the cuts of a plan the search stays logarithmic.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from keylane.kernel.jit import leaf
from keylane.kernel.lane_table import GUIDE_SHIFT


@leaf
def interval_of_hash(key_hash: np.uint64, limits: Any, guide: Any) -> Any:
    """Return the first interval whose limit is above the hash."""
    slot = np.int64(key_hash >> GUIDE_SHIFT)
    low: Any = np.int64(guide[slot])
    high: Any = np.int64(guide[slot + 1])
    while low < high:
        middle = (low + high) >> 1
        if key_hash < limits[middle]:
            high = middle
        else:
            low = middle + 1
    return low
