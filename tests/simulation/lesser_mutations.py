"""More mistakes: bounds of waits, journals that fail or are cut, changes by admins, owners.

Source: docs/guarantees.md names the promises.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from unittest import mock

from kio.schema.errors import ErrorCode

from keylane.errors import NotCoordinator, UpstreamLost
from keylane.journal import openings
from keylane.journal.owned import OwnedTables
from keylane.offsets import state
from keylane.offsets.pushes import Pushes
from keylane.offsets.records.journal import StateKey
from keylane.offsets.state import OffsetState
from keylane.offsets.table import OffsetTable
from keylane.offsets.values import OwnerEpoch, Pusher, lane_position
from keylane.proxy.apis.commits import late_offsets, offset_commit
from keylane.proxy.commits import log_ends
from keylane.proxy.commits.forgetting import Forgetting
from keylane.proxy.commits.group_offsets import GroupOffsets
from keylane.proxy.commits.late_pushes import LatePushes
from keylane.proxy.commits.log_checks import LogChecks
from keylane.proxy.lanes import pending_fetch as lane_poll
from keylane.proxy.lanes.reads import Read
from keylane.proxy.lanes.split_io import ScannedBlock
from keylane.proxy.net.answer_times import Patience
from keylane.proxy.nodes.lease import Lease
from keylane.proxy.scans.known_scans import Scans
from keylane.proxy.session.lock_holders import LockHolders
from keylane.proxy.topics.view import View
from tests.simulation.mutation import Mutation, nothing, patch

EVER_S = 1e9


def _wait_for_the_lock() -> Sequence[Any]:
    """Each request waits until the group's lock is free."""
    before = GroupOffsets.lock
    return [mock.patch.object(
        GroupOffsets, "lock", lambda self, group, _wait_s=None: before(self, group, None)
    )]  # fmt: skip


def _wait_for_leaders() -> Sequence[Any]:
    """A fetch waits for its reader, and the reader for its broker: each alone has a bound."""
    return [
        mock.patch.object(lane_poll, "READ_GRACE_S", EVER_S),
        mock.patch.object(Patience, "seconds", return_value=EVER_S),
    ]


async def _save_or_not(group: str, taken: Any, context: Any) -> ErrorCode:
    """A commit is answered well, whatever came of the journal."""
    with suppress(UpstreamLost, NotCoordinator):
        if taken:
            await context.groups.save(group, [(d.view, d.partition, d.state) for d in taken])
    return ErrorCode.none


def _take_kafka_for_known() -> Sequence[Any]:
    """A state is taken for right, wherever Kafka's own offset is found."""
    before = OffsetTable.recognise

    def recognise(self: OffsetTable, key: Any, *args: Any, **how: Any) -> Any:
        found = before(self, key, *args, **how)
        return self.get(key) if found is None else found

    return [mock.patch.object(OffsetTable, "recognise", recognise)]


def _lose_steps() -> Sequence[Any]:
    """Whole records of the journal are read, and later steps are not."""
    before = OffsetTable._apply

    def apply(self: OffsetTable, partition: int, offset: int, key: Any, value: Any) -> None:
        if key is None or key[2] != STEP:
            before(self, partition, offset, key, value)

    return [mock.patch.object(OffsetTable, "_apply", apply)]


def _serve_all() -> Sequence[Any]:
    """A node serves whatever group it is asked for, from its first generation on."""
    return [
        mock.patch.object(Lease, "holds", lambda self, _partition, _now_s: bool(self._terms)),
        mock.patch.object(Lease, "term", return_value=1),
    ]


async def _has_none(*_: Any) -> bool:
    """A cluster whose coordinator does not answer is taken for one without transactions."""
    return False


async def _push_nothing(*_: Any) -> None:
    """A late offset stays late."""


def _lead_on_by_scans(groups: GroupOffsets, led: OffsetState, key: StateKey, view: View) -> None:
    """The start of the log is ignored."""
    led.settle(groups.sure_scan(key, view))


def _start_at_the_fastest() -> Sequence[Any]:
    """A lane of several key ranges is answered the highest position."""

    def fastest(pieces: Any) -> Any:
        return max((lane_position([piece]) for piece in pieces), key=lambda found: found.offset)

    return [mock.patch.object(state, "lane_position", fastest)]


def _forget_what_lives() -> Sequence[Any]:
    """Loaded states are forgotten as if Kafka had forgotten them."""

    def find_gone(_self: Forgetting, states: Any, _absent: Any, _suspects: Any) -> Any:
        return dict(states)

    return [mock.patch.object(Forgetting, "_find_gone", find_gone)]


def _count_what_is_sent() -> Sequence[Any]:
    """A read that waits for its connection does not count as using it."""
    has_none = property(lambda _self: False, lambda _self, _has_line: None)
    return [mock.patch.object(Read, "has_line", has_none)]


def _ask_the_journal_alone(
    self: Pusher, last: Pusher | None, _owner: OwnerEpoch | None, *, is_back: bool
) -> bool:
    """The older of two pushes of a dead owner counts, if it comes last."""
    del is_back
    return self.is_overtaken(last)


def _trust_pushes_when_contradicted() -> Sequence[Any]:
    """Scans that contradict each other begin anew; what was pushed before is not asked for."""
    before = GroupOffsets.on_scanned

    def on_scanned(self: GroupOffsets, block: ScannedBlock) -> None:
        with mock.patch.object(Pushes, "note_cut", nothing):
            before(self, block)

    return [mock.patch.object(GroupOffsets, "on_scanned", on_scanned)]


STEP = 7
"""Kind of a journal record, in the third byte of its key."""
MORE: Sequence[Mutation] = (
    # Waits.
    Mutation(
        "a broker's answer is waited for without a bound",
        "a broker hangs",
        patch(LockHolders, "bound", nothing),
    ),
    Mutation("a group's lock is waited for without a bound", "a broker hangs", _wait_for_the_lock),
    Mutation(
        "a fetch waits for its leader without a bound",
        "a broker hangs",
        _wait_for_leaders,
    ),
    # The journal.
    Mutation(
        "a commit is answered well when its journal fails",
        "the journal cannot be written",
        patch(offset_commit, "_save", _save_or_not),
    ),
    Mutation(
        "a coordinator that hangs is taken for none",
        "a commit that was answered is kept",
        patch(openings, "has_transactions", _has_none),
    ),
    Mutation(
        "steps in the journal are not read", "a commit that was answered is kept", _lose_steps
    ),
    # Logs.
    Mutation(
        "lanes keep what a scan of another log has led them past",
        "a log begins anew",
        patch(OffsetState, "cut", lambda *_: False),
    ),
    Mutation(
        "offsets are answered before their logs are compared",
        "a new leader has a shorter log",
        patch(LogChecks, "waits", lambda *_: False),
    ),
    Mutation(
        "where an epoch ends is remembered",
        "a new leader has a shorter log",
        patch(log_ends, "KNOWN_S", EVER_S),
    ),
    Mutation(
        "a read behind another's long poll is taken for the first",
        "a new leader has a shorter log",
        _count_what_is_sent,
    ),
    Mutation(
        "pushes from before a contradiction of scans are trusted",
        "a log begins anew",
        _trust_pushes_when_contradicted,
    ),
    Mutation(
        "what is loaded is not compared with its log",
        "a log was cut while keylane was down",
        patch(LogChecks, "note_unsure", nothing),
    ),
    Mutation(
        "lanes do not follow where a log begins",
        "retention passes the stable offset",
        patch(Scans, "raise_to_log_start", nothing),
    ),
    Mutation(
        "late pushes do not follow where a log begins",
        "retention passes the stable offset",
        patch(GroupOffsets, "lead_on", _lead_on_by_scans),
    ),
    # Layouts.
    Mutation(
        "lanes that become one start where the fastest stands",
        "another number of lanes",
        _start_at_the_fastest,
    ),
    # Offsets.
    Mutation(
        "what was late is pushed no more",
        "the stable offset does not stall",
        patch(late_offsets, "push_late", _push_nothing),
    ),
    Mutation(
        "a quiet group is not loaded",
        "the stable offset does not stall",
        patch(GroupOffsets, "lacks", lambda *_: False),
    ),
    Mutation(
        "a push that may come late is not looked at",
        "a node hangs, and wakes up",
        patch(LatePushes, "note_unanswered", nothing),
    ),
    Mutation(
        "Kafka's own offset is not looked at",
        "the proxy is killed",
        _take_kafka_for_known,
    ),
    Mutation(
        "a deleted offset stays",
        "it ends between a commit and its record",
        patch(OffsetState, "delete_lane", nothing),
    ),
    Mutation(
        "a step back is not done",
        "a member commits lower than its lane stands",
        patch(state, "is_below", lambda *_, **__: False),
    ),
    Mutation(
        "offsets of open transactions are not looked at",
        "offsets of lanes in a transaction",
        patch(Pushes, "is_sure", lambda *_: True),
    ),
    Mutation(
        "what lives is forgotten",
        "what Kafka has forgotten is forgotten",
        _forget_what_lives,
    ),
    # Nodes.
    Mutation("a node serves groups of others", "no two nodes serve a group", _serve_all),
    Mutation(
        "a push of a node that was replaced counts",
        "a node hangs, and wakes up",
        patch(Pusher, "is_overtaken", lambda *_: False),
    ),
    Mutation(
        "a late push of an owner that died takes lanes back",
        "a node is killed",
        patch(Pusher, "is_late", _ask_the_journal_alone),
    ),
    Mutation(
        "what was loaded in another term is used",
        "a node joins",
        patch(OwnedTables, "_is_current", lambda *_: True),
    ),
)
