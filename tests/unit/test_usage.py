"""keylane/usage.py: options that exclude each other, and pairs."""

from __future__ import annotations

import click
import pytest

from keylane.usage import expect_one, split_pair


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"--a": None, "--b": False}, "--a or --b is missing"),
        ({"--a": (), "--b": None, "--c": None}, "--a, --b or --c is missing"),
        ({"--a": 0, "--b": True}, "--b: cannot stand beside --a"),
        ({"--a": None}, "--a is missing"),
    ],
)
def test_one_of_several_options_is_needed(given: dict[str, object], text: str) -> None:
    """None, or two of them, are refused; 0 is a value."""
    with pytest.raises(click.UsageError, match=text):
        expect_one(given)


def test_none_of_several_options_may_be_enough() -> None:
    """Two are too many even so."""
    expect_one({"--a": None, "--b": None}, is_needed=False)
    expect_one({"--a": 0, "--b": None})

    with pytest.raises(click.UsageError, match="--b: cannot stand beside --a"):
        expect_one({"--a": 1, "--b": 1}, is_needed=False)


def test_a_pair_is_split_at_its_first_sign() -> None:
    """A value may have more of them; one that is none is not repeated with its value."""
    assert split_pair("--set", "a=b=c") == ("a", "b=c")

    for text in ("a", "=secret"):
        with pytest.raises(click.UsageError, match="expected KEY=VALUE") as refused:
            split_pair("--set", text)
        assert "secret" not in refused.value.message
