"""Buffers that kernels read and write: bytes as arrays, and the slack behind what is written.

In:    any contiguous buffer.  Out: a view of its bytes.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

COPY_SLACK_BYTES: Final = 32
"""`memory.copy_fast` may write this many bytes past the end; destinations are that much longer."""


def as_bytes_array(buffer: Any) -> NDArray[np.uint8]:
    """View any contiguous buffer as bytes without a copy; keep the view while kernels run."""
    return np.frombuffer(buffer, np.uint8)
