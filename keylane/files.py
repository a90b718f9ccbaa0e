"""Files that are read up to a bound and checked, and files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from keylane.errors import ConfigInvalid

Parsed = TypeVar("Parsed")


def load_file(path: Path, parse: Callable[[bytes], Parsed], bytes_max: int) -> Parsed:
    """Return what `parse` makes of a file. It is given one byte more than `bytes_max` at most.

    Raises:
        ConfigInvalid: the file cannot be read, or `parse` refuses it; the path stands first.
    """
    try:
        with path.open("rb") as file:
            return parse(file.read(bytes_max + 1))
    except OSError as error:
        raise ConfigInvalid(f"{path}: {error.strerror}") from None
    except ConfigInvalid as error:
        raise ConfigInvalid(f"{path}: {error}") from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a path to write to; it takes the place of `path` when the block ends in order."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    yield partial
    partial.replace(path)
