"""Share sessions of members: epochs, replacement, and the end with a connection."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from keylane.share.sessions import (
    EPOCH_MAX,
    SessionKey,
    ShareSession,
    ShareSessions,
    is_valid_member,
    next_epoch,
)

KEY = SessionKey(1, "group", "member")
PLACES = [(b"t" * 16, 0), (b"t" * 16, 1), (b"u" * 16, 0)]


def opened(sessions: ShareSessions, key: SessionKey = KEY, connection: str = "c") -> ShareSession:
    session, _, code = sessions.open(key, connection, has_acks=False)
    assert session is not None and code == 0
    return session


def test_epochs_follow_one_another() -> None:
    """1, 2 and 3 behind the 0 that has opened the session; one that failed is not counted."""
    sessions = ShareSessions(9)
    session = opened(sessions)

    codes = [sessions.use(KEY, epoch)[1] for epoch in (1, 2, 2, 4, 3)]

    wrong = ErrorCode.invalid_share_session_epoch
    assert codes == [0, 0, wrong, wrong, 0]
    assert session.epoch == 3


def test_one_follows_the_highest_epoch() -> None:
    """0 would open a session, and -1 close it."""
    sessions = ShareSessions(9)
    opened(sessions).epoch = EPOCH_MAX

    assert next_epoch(EPOCH_MAX) == 1
    assert sessions.use(KEY, 1)[1] == 0


def test_the_final_epoch_fits_any() -> None:
    """And leaves the session for its last answer."""
    sessions = ShareSessions(9)
    session = opened(sessions)

    assert sessions.use(KEY, -1) == (session, 0)
    assert sessions.close(KEY) is session
    assert sessions.close(KEY) is None


@pytest.mark.parametrize("epoch", [1, 7, -1])
def test_a_session_that_is_not_there_is_not_found(epoch: int) -> None:
    """At another broker, of another group, of another member."""
    sessions = ShareSessions(9)
    opened(sessions)

    for key in (KEY._replace(broker_id=2), KEY._replace(group="g"), KEY._replace(member_id="m")):
        assert sessions.use(key, epoch) == (None, ErrorCode.share_session_not_found)


def test_epoch_0_is_no_use_of_a_session() -> None:
    """An acknowledgement cannot open one."""
    sessions = ShareSessions(9)
    opened(sessions)

    assert sessions.use(KEY, 0) == (None, ErrorCode.invalid_share_session_epoch)


def test_a_new_session_replaces_the_members_former_one() -> None:
    """Which is returned, to be given back what it holds; epochs begin anew."""
    sessions = ShareSessions(9)
    former = opened(sessions, connection="old")
    sessions.use(KEY, 1)

    session, replaced, code = sessions.open(KEY, "new", has_acks=False)

    assert session is not None and session is not former
    assert (replaced, code, len(sessions)) == (former, 0, 1)
    assert sessions.use(KEY, 1) == (session, 0)
    assert sessions.close_connection("old") == []


def test_a_session_is_not_opened_with_acknowledgements() -> None:
    """The former one stays."""
    sessions = ShareSessions(9)
    former = opened(sessions)

    assert sessions.open(KEY, "c", has_acks=True) == (None, None, ErrorCode.invalid_request)
    assert sessions.use(KEY, 1) == (former, 0)


def test_sessions_have_a_limit() -> None:
    """A member that has one may still replace it."""
    sessions = ShareSessions(1)
    opened(sessions)

    session, _, code = sessions.open(KEY._replace(member_id="m"), "c", has_acks=False)

    assert (session, code) == (None, ErrorCode.share_session_limit_reached)
    assert opened(sessions).key == KEY


def test_a_closed_connection_ends_what_it_has_opened() -> None:
    """Of all groups and brokers, and nothing of other connections."""
    sessions = ShareSessions(9)
    mine = [opened(sessions, KEY), opened(sessions, KEY._replace(group="g"))]
    other = opened(sessions, KEY._replace(broker_id=2), "other")

    closed = sessions.close_connection("c")

    assert sorted(each.key for each in closed) == sorted(each.key for each in mine)
    assert sessions.of_group("group") == [other]
    assert sessions.close_connection("c") == []


def test_partitions_take_turns() -> None:
    """Another one comes first each time; one that comes again stays at its place."""
    session = ShareSession(KEY, "c")
    session.add(PLACES)
    session.add(PLACES[:1])

    turns = [session.turn()[0] for _ in range(4)]

    assert turns == [*PLACES, PLACES[0]]
    assert session.drop([PLACES[1], (b"x" * 16, 9)]) == [PLACES[1]]


def test_member_ids_have_up_to_36_characters() -> None:
    """As brokers have it."""
    assert [is_valid_member("x" * size) for size in (0, 1, 36, 37)] == [False, True, True, False]
