"""Topic names in a member's metadata: added behind the others, and taken away again."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.assignor.protocol import (
    MESSAGE_BYTES_MAX,
    add_hidden_names,
    hidden_names,
    read_names,
    read_subscription,
    split_names,
)
from tests.transcript.consumer_protocol import subscription

TOPICS = ("orders", "shop", "a.lanes-2")


def physical_name(name: str) -> str:
    """As the registry with the default pattern says it."""
    topic, _, lanes = name.rpartition(".lanes-")
    return topic if topic and lanes.isdigit() else name


names = st.one_of(
    st.sampled_from(TOPICS),
    st.builds("{}.lanes-{}".format, st.sampled_from(TOPICS), st.integers(1, 4)),
)


@given(
    said=st.lists(names, max_size=6),
    version=st.integers(0, 3),
    user_data=st.none() | st.binary(max_size=9),
    later=st.binary(max_size=9),
)
def test_what_is_added_is_taken_away_and_nothing_else_is_touched(
    said, version, user_data, later
) -> None:
    """Versions, user data and fields of versions to come are the same bytes in both directions."""
    metadata = subscription(*said, version=version, user_data=user_data) + later

    added = add_hidden_names(metadata, physical_name)

    hidden = hidden_names(said, physical_name)
    if added is None:
        assert not hidden
        return
    assert added == subscription(*said, *hidden, version=version, user_data=user_data) + later
    assert split_names(added, physical_name)[1] == metadata
    assert split_names(added, physical_name)[0] == frozenset(said)
    assert set(read_subscription(added).topics) == set(said) | {physical_name(n) for n in hidden}


@pytest.mark.parametrize(
    ("said", "hidden"),
    [
        (["orders"], ()),
        (["orders.lanes-4"], ("orders",)),
        (["orders.lanes-4", "shop", "orders.lanes-8", "shop.lanes-2"], ("orders", "shop")),
        (["a.lanes-2.lanes-4"], ()),
    ],
)
def test_each_topic_behind_lane_names_once(said, hidden) -> None:
    """A name that stands for lanes itself is no topic of a broker."""
    assert hidden_names(said, physical_name) == hidden


@pytest.mark.parametrize("said", [["orders"], ["orders", "orders.lanes-4"], ["shop", "orders"]])
def test_what_keylane_did_not_add_stays(said) -> None:
    """Of members that are connected with a broker directly, or joined before an upgrade."""
    assert split_names(subscription(*said), physical_name)[1] is None


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"\0",
        struct.pack(">hi", -1, 0),
        struct.pack(">hi", 0, -1),
        struct.pack(">hi", 0, 2**31 - 1),
        struct.pack(">hih", 0, 1, 9) + b"short",
        struct.pack(">hih", 0, 1, 2) + b"\xff\xff",
        bytes(MESSAGE_BYTES_MAX + 1),
    ],
)
def test_other_bytes_pass_as_they_are(metadata) -> None:
    """Of assignors with a format of their own, or hostile: no names, nothing added or taken."""
    assert read_names(metadata) is None
    assert split_names(metadata, physical_name)[0] == frozenset()
    assert add_hidden_names(metadata, physical_name) is None
    assert split_names(metadata, physical_name)[1] is None
