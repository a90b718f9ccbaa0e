"""Secrets by which nodes know each other, as they stand in their file.

Source: docs/decisions/033; docs/operations.md (rotation).
"""

from __future__ import annotations

import logging

from keylane.errors import ConfigInvalid
from keylane.proxy.net.security.secret_file import read_secrets

log = logging.getLogger("keylane.nodes")

KEY = "node_secret_file"


class NodeSecrets:
    """The secrets of a node; none where no file is named."""

    def __init__(self, file: str | None) -> None:
        """Raises: ConfigInvalid (the file cannot be used)."""
        self._file = file
        self._last = self._read()
        self._logged = ""

    def __call__(self) -> tuple[bytes, ...]:
        """Return the file's secrets; while it cannot be used, the last good ones."""
        try:
            found = self._read()
        except ConfigInvalid as error:
            if str(error) != self._logged:
                log.error(
                    "node secrets cannot be read, the last good ones stay reason=%s remedy=put the "
                    "secrets of the other nodes into the file, one a line",
                    error,
                )
            self._logged = str(error)
            return self._last
        if self._logged:
            log.info("node secrets can be read again file=%s", self._file)
            self._logged = ""
        self._last = found
        return found

    def _read(self) -> tuple[bytes, ...]:
        if self._file is None:
            return ()
        return tuple(secret.encode() for secret in read_secrets(KEY, self._file))
