"""proxy/net/security/secret_file.py: errors name the file, never what is in it."""

from __future__ import annotations

import pytest

from keylane.errors import ConfigInvalid
from keylane.proxy.net.security.secret_file import SECRET_BYTES_MAX, read_secret


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_secret(tmp_path, end) -> None:
    """An editor's line end is no part of it; blanks are."""
    (tmp_path / "secret").write_bytes(f" pass word{end}".encode())

    assert read_secret("key", str(tmp_path / "secret")) == " pass word"


@pytest.mark.parametrize(
    "data",
    [b"", b"\n", b"pa55w0rd\nopen", b"pa55w0rd\0", b"\xffpa55w0rd", b"s" * (SECRET_BYTES_MAX + 1)],
)
def test_what_is_no_secret(tmp_path, data) -> None:
    """Refused with the key and the file."""
    path = tmp_path / "secret"
    path.write_bytes(data)

    with pytest.raises(ConfigInvalid, match=f"key: {path}") as caught:
        read_secret("key", str(path))

    assert "pa55w0rd" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path) -> None:
    """Named by the operating system's own words."""
    with pytest.raises(ConfigInvalid, match="No such file"):
        read_secret("key", str(tmp_path / "none"))
