"""Each error is one line that ends in a cure."""

from __future__ import annotations

import pytest

from keylane.advise.errors import AdviceFailed, with_cure
from keylane.client import errors as e
from keylane.errors import FrameInvalid, GroupDenied, KeylaneError


@pytest.mark.parametrize(
    ("error", "cure"),
    [
        (e.ClusterUnreachable("no bootstrap server answers: a:1"), "check --bootstrap"),
        (e.AuthenticationFailed("a:1 (PLAIN)"), "check the login_* keys"),
        (e.TopicUnknown("topic orders: no broker knows it"), "kafka-topics --list"),
        (e.TopicDenied("topic orders"), "--operation Read --topic orders"),
        (GroupDenied("group billing"), "--operation Describe --group billing"),
        (e.Disconnected("node 1"), "try again when it is back"),
    ],
)
def test_known_errors_end_in_what_to_do(error: KeylaneError, cure: str) -> None:
    """The broker's words come first, the cure last."""
    text = str(with_cure(error, topic="orders", group="billing"))

    assert text.startswith(str(error))
    assert cure in text
    assert "\n" not in text


def test_other_errors_stay_as_they_are_in_one_line() -> None:
    """Line breaks of a library do not reach the terminal."""
    own = AdviceFailed("the text")

    assert str(with_cure(FrameInvalid("a\n  b"), topic="t", group=None)) == "a b"
    assert with_cure(own, topic="t", group=None) is own
