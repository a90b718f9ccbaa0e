"""A password or token in a file: one line, read when it is needed.

In:    the configuration key, which errors name, and the file.  Out: the secret.
Next:  `service_login`, `control_auth`.
Shell: files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from keylane.errors import ConfigInvalid

SECRET_BYTES_MAX: Final = 64 * 1024
"""Tokens with many claims have a few KiB."""


def read_secret(key: str, file: str) -> str:
    """The one line of a file, which no error shows. Raises: ConfigInvalid."""
    try:
        with Path(file).open("rb") as opened:
            data = opened.read(SECRET_BYTES_MAX + 1)
        text = data.decode().rstrip("\r\n")
    except OSError as error:
        raise ConfigInvalid(f"{key}: {error}") from None
    except UnicodeDecodeError:
        raise ConfigInvalid(f"{key}: {file} is no text") from None
    if not text or len(data) > SECRET_BYTES_MAX or not text.isprintable():
        raise ConfigInvalid(f"{key}: {file} must hold one line of text")
    return text
