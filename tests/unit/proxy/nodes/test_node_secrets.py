"""proxy/nodes/node_secrets.py: read at each use; what cannot be used leaves the last good ones."""

from __future__ import annotations

import pytest

from keylane.errors import ConfigInvalid
from keylane.proxy.nodes.node_secrets import NodeSecrets

OLD, NEW = "o" * 32, "n" * 40


def test_without_a_file_there_are_none() -> None:
    """And nothing is read."""
    assert NodeSecrets(None)() == ()


def test_lines_are_secrets_and_are_read_again(tmp_path) -> None:
    """In their order; empty lines are none."""
    path = tmp_path / "secret"
    path.write_text(f"{OLD}\n")
    secrets = NodeSecrets(str(path))

    before = secrets()
    path.write_text(f"\n{NEW}\r\n{OLD}\n\n")

    assert (before, secrets()) == ((OLD.encode(),), (NEW.encode(), OLD.encode()))


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("", "has 0 secrets"),
        ("s3cret" * 5, "secret 1 has 30 characters, at least 32 .* openssl rand -hex 32"),
        (f"{OLD}\ns3cret", "secret 2 has 6 characters"),
        (f"{OLD}\n" * 9, "has 9 secrets, needed are 1 to 8"),
        (f"{OLD}\0", "must hold lines of text"),
        ("s" * 70_000, "must hold lines of text"),
    ],
)
def test_what_holds_no_secrets_ends_a_start_and_not_a_node(
    tmp_path, caplog, text, reported
) -> None:
    """The error names key and file, and shows nothing of them; it is logged once."""
    path = tmp_path / "secret"
    path.write_text(OLD)
    secrets = NodeSecrets(str(path))

    path.write_text(text)
    with pytest.raises(ConfigInvalid, match=f"node_secret_file: {path}.*{reported}") as caught:
        NodeSecrets(str(path))
    kept = [secrets(), secrets()]
    path.write_text(NEW)

    assert kept == [(OLD.encode(),)] * 2 and secrets() == (NEW.encode(),)
    shown = caplog.text + str(caught.value)
    assert "s3cret" not in shown and OLD not in shown
    assert caplog.text.count("the last good ones stay") == 1


def test_a_file_that_goes_away(tmp_path, caplog) -> None:
    """As one that cannot be used; its return is logged."""
    path = tmp_path / "secret"
    path.write_text(OLD)
    secrets = NodeSecrets(str(path))

    path.unlink()

    assert secrets() == (OLD.encode(),) and "No such file" in caplog.text
