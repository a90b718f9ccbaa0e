"""proxy/control/auth.py: the name by which an action of a client is logged."""

from __future__ import annotations

from unittest import mock

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from keylane.config.security import SecurityConfig
from keylane.proxy.control.auth import ControlGuard, identity_of

ADMIN, READER = "admin-token-0123456789", "reader-token-0123456789"


@pytest.mark.parametrize(
    ("token", "method", "expected"),
    [
        (ADMIN, "POST", "the token of control_token_file at "),
        (READER, "GET", "the token of control_read_token_file at "),
    ],
)
def test_a_token_is_named_by_its_key(tmp_path, token, method, expected) -> None:
    """The token itself is never in the name."""
    keys = {"control_token_file": ADMIN, "control_read_token_file": READER}
    for key, text in keys.items():
        (tmp_path / key).write_text(text)
    config = SecurityConfig.model_validate({key: str(tmp_path / key) for key in keys})

    identity = ControlGuard(config).check(request(method, Authorization=f"Bearer {token}"))

    assert identity.startswith(expected) and token not in identity


def request(method: str, **headers: str) -> web.Request:
    """A request over a connection without a certificate."""
    transport = mock.Mock()
    transport.get_extra_info.return_value = None
    return make_mocked_request(method, "/", headers=headers, transport=transport)


def test_a_client_of_this_machine() -> None:
    """Without tokens there is no name, only the address."""
    asked = request("POST", Host="127.0.0.1:1")

    assert ControlGuard(SecurityConfig()).check(asked).startswith("an unnamed client at ")
    assert identity_of(asked).startswith("a client at ")
