"""Pictures of the live page for the documentation, small enough for a repository.

Tests that take them write into their own folder, or into that of KEYLANE_PICTURES.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Final

from PIL import Image

BYTES_MAX: Final = 200_000
COLOURS: Final = 256
"""A page has little more; a third of the bytes of a picture in full colour."""


def picture_folder(default: Path) -> Path:
    """Return where pictures go."""
    return Path(os.environ.get("KEYLANE_PICTURES", default))


def keep_picture(shot: bytes, path: Path) -> int:
    """Write a screenshot with few colours; return its bytes, which are at most BYTES_MAX."""
    image = Image.open(io.BytesIO(shot)).convert("RGB")
    small = image.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    small.save(path, optimize=True)
    size = path.stat().st_size
    assert size <= BYTES_MAX, f"{path.name} has {size} bytes"
    return size
