"""Requests of commands to a control port: where it is, and who asks.

In:    `host:port` or a URL, a path; the token from the environment.  Out: `Request`s.
Next:  `describe_cli`, `assign_apply` open them.
Shell: reads the environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final
from urllib.request import Request

from keylane.errors import ConfigInvalid

TOKEN_VARIABLE: Final = "KEYLANE_CONTROL_TOKEN"  # noqa: S105 - the variable's name
"""The token to show; a flag would be seen by everybody on the machine."""
SCHEMES: Final = frozenset({"http", "https"})


def control_request(
    control: str,
    path: str,
    *,
    data: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    method: str | None = None,
) -> Request:
    """A request to `control`, http unless it says https://. Raises: ConfigInvalid."""
    scheme, separator, address = control.partition("://")
    if not separator:
        scheme, address = "http", control
    if scheme not in SCHEMES or not address:
        raise ConfigInvalid(f"--control {control!r}: expected HOST:PORT or https://HOST:PORT")
    shown = dict(headers or {})
    token = os.environ.get(TOKEN_VARIABLE)
    if token:
        shown["Authorization"] = f"Bearer {token}"
    url = f"{scheme}://{address.rstrip('/')}{path}"
    return Request(url, data=data, headers=shown, method=method)  # noqa: S310 - checked above
