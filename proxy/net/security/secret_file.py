"""A password or token in a file, read when it is needed; secrets that several programs share."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from keylane.errors import ConfigInvalid, reason_of

SECRET_BYTES_MAX: Final = 64 * 1024
"""Tokens with many claims have a few KiB."""
SHARED_LENGTH_MIN: Final = 32
"""128 bits, where each character is a hex digit."""
SHARED_MAX: Final = 8
"""A rotation takes two at a time."""


def read_secret(key: str, file: str) -> str:
    """Return the one line of a file, which no error shows. Raises: ConfigInvalid."""
    data, text = _read(key, file)
    text = text.rstrip("\r\n")
    if not text or len(data) > SECRET_BYTES_MAX or not text.isprintable():
        raise ConfigInvalid(f"{key}: {file} must hold one line of text")
    return text


def read_secrets(key: str, file: str) -> tuple[str, ...]:
    """Return a file's lines without empty ones; no error shows them. Raises: ConfigInvalid."""
    data, text = _read(key, file)
    lines = tuple(line for line in text.splitlines() if line)
    if len(data) > SECRET_BYTES_MAX or not all(map(str.isprintable, lines)):
        raise ConfigInvalid(f"{key}: {file} must hold lines of text, a secret each")
    if not 1 <= len(lines) <= SHARED_MAX:
        raise ConfigInvalid(f"{key}: {file} has {len(lines)} secrets, needed are 1 to {SHARED_MAX}")
    for number, line in enumerate(lines, start=1):
        if len(line) < SHARED_LENGTH_MIN:
            raise ConfigInvalid(
                f"{key}: {file}: secret {number} has {len(line)} characters, at least "
                f"{SHARED_LENGTH_MIN} are needed; make one with: openssl rand -hex 32"
            )
    return lines


def _read(key: str, file: str) -> tuple[bytes, str]:
    """Return the bytes, at most one more than are allowed, and text. Raises: ConfigInvalid."""
    try:
        with Path(file).open("rb") as opened:
            data = opened.read(SECRET_BYTES_MAX + 1)
        return data, data.decode()
    except OSError as error:
        raise ConfigInvalid(f"{key}: {file}: {reason_of(error)}") from None
    except UnicodeDecodeError:
        raise ConfigInvalid(f"{key}: {file} is no text") from None
