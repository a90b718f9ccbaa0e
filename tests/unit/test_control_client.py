"""keylane/control_client.py: where a command asks, and what it shows."""

from __future__ import annotations

import pytest

from keylane.control_client import TOKEN_VARIABLE, control_request
from keylane.errors import ConfigInvalid


@pytest.mark.parametrize(
    ("control", "url"),
    [
        ("127.0.0.1:19090", "http://127.0.0.1:19090/groups/g"),
        ("http://127.0.0.1:19090/", "http://127.0.0.1:19090/groups/g"),
        ("https://keylane.example", "https://keylane.example/groups/g"),
    ],
)
def test_where(control, url, monkeypatch) -> None:
    """Without a scheme it is http, and no token is shown where there is none."""
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)

    request = control_request(control, "/groups/g")

    assert request.full_url == url
    assert not request.has_header("Authorization")


def test_who(monkeypatch) -> None:
    """The token from the environment, beside the command's own headers."""
    monkeypatch.setenv(TOKEN_VARIABLE, "token-0123456789")

    request = control_request("h:1", "/x", data=b"{}", headers={"If-match": '"1"'}, method="PATCH")

    assert dict(request.header_items()) == {
        "Authorization": "Bearer token-0123456789",
        "If-match": '"1"',
    }
    assert (request.get_method(), request.data) == ("PATCH", b"{}")


@pytest.mark.parametrize("control", ["file:///etc/passwd", "ftp://h:1", "", "https://"])
def test_what_is_no_address(control) -> None:
    """Refused before anything is opened."""
    with pytest.raises(ConfigInvalid, match="--control"):
        control_request(control, "/x")
