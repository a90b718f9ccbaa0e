"""Stable offsets pushed again, when the place behind them is scanned.

Behaviour: the push has the member and generation of the group's last commit, and goes over that
commit's connection, so that the broker judges both alike. If the broker refuses it, since the
group has rebalanced, or the connection is gone, it is sent again with the next heartbeat of the
group, in the name of its member. The client sees nothing of it: its commit stands.
Offsets that are committed or deleted without a member (by an admin) are checked with the first
heartbeat.
Not done: commits of consumers that are in no group, beyond their next one.

Source: docs/decisions/021.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from kio.schema.errors import ErrorCode

from keylane.errors import KeylaneError
from keylane.offsets.records.journal import StateKey
from keylane.offsets.state import OffsetState
from keylane.proxy.apis.commits.entries import error_codes
from keylane.proxy.apis.commits.lane_offsets import Draft, open_drafts, own_commit
from keylane.proxy.apis.commits.pushes_sent import SentPushes
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.refusals import expect_right
from keylane.proxy.apis.shared.request import Operation
from keylane.proxy.commits.late_pushes import LatePush
from keylane.proxy.commits.refreshes import Beat
from keylane.proxy.topics.range_views import view_of_cuts
from keylane.proxy.topics.view import View

log = logging.getLogger("keylane.offsets")


def note_late(member: Beat | None, taken: Iterable[Draft], context: Context) -> None:
    """Note where stable offsets of a commit may be behind; None: it was an admin's."""
    if member is None:
        note_set(taken, context)
        return
    for draft in taken:
        scan = context.groups.sure_scan(draft.key, draft.view)
        make_late = partial(_make_late, member, draft, context)
        context.groups.late.note_commit(draft.key, draft.state, scan, make_late)
        if context.groups.is_unsure(draft.group, draft.view, draft.partition):
            # No news need come of what was scanned already, so the next heartbeat looks again.
            context.groups.late.note_loaded(draft.key, draft.state)


def note_set(taken: Iterable[Draft], context: Context) -> None:
    """An admin has set lanes back, or deleted them, and those without records never commit.

    In whose name their partitions' offsets may follow is known when a member lives.
    """
    for draft in taken:
        context.groups.late.note_loaded(draft.key, draft.state)


def note_transaction(draft: Draft, context: Context) -> None:
    """A transaction has taken offsets of lanes; the members' heartbeats look when it has ended."""
    late = _late(draft, lambda: None, context)
    context.groups.late.note_transaction(draft.key, draft.state, late)


def push_owed(beat: Beat, context: Context) -> None:
    """A member lives: have pushed in its name what could not be in that of the last committer."""
    for late in context.groups.late.owed(beat.group):
        context.aside(partial(push_late, beat, late.view, late.partition, context))
    for key in context.groups.late.loaded(beat.group):
        context.aside(partial(_look_at_loaded, beat, key, context))


async def _look_at_loaded(beat: Beat, key: StateKey, context: Context) -> None:
    """A state was loaded with lanes beyond its stable offset: it may be late.

    A client without a right to the group leaves the look to the next heartbeat; so does one whose
    push is refused, or that goes meanwhile.
    """
    try:
        await expect_right(beat.group, Operation.READ, context)
        context.groups.late.note_looked_at(key)
        state = context.groups.states_of(beat.group).get(key)
        if state is None:
            return
        is_done = False
        try:
            is_done = await _look_at(beat, key, state, context)
        finally:
            if not is_done and context.groups.has_state(key):
                context.groups.late.note_loaded(key, state)
                if context.groups.may_come_late(key):
                    context.groups.late.note_unanswered(key)
    except KeylaneError as error:
        log.debug("stable offset not looked at group=%s reason=%s", beat.group, error)


async def _look_at(beat: Beat, key: StateKey, state: OffsetState, context: Context) -> bool:
    """Push what is late; return whether no further look is needed."""
    view = await _view_of(key, state, context)
    if view is None:
        return True
    if context.groups.may_come_late(key):
        context.groups.pushes.note_moved(key)  # where Kafka's offset is has to be asked
        is_done = await _pushed_late(beat, view, key.partition, context)
        return is_done and not context.groups.may_come_late(key)
    is_known = context.groups.sure_scan(key, view).has_passed(state.stable_position)
    # No scan leads an unsure state on before its leader was asked, which `_pushed_late` has done.
    is_unsure = context.groups.is_unsure(beat.group, view, key.partition)
    if is_known or is_unsure or state.stable_position != state.pushed:
        return await _pushed_late(beat, view, key.partition, context)
    note_late(beat, [Draft(view, key.partition, state, beat.group)], context)
    return True


async def _view_of(key: StateKey, state: OffsetState, context: Context) -> View | None:
    """Return the view for the state. None: the topic has no lanes, or is another one by now.

    As the group does, or as others do, so that one read serves all: any cut serves that has each
    cut of the state. Lanes beside each other that stand at one offset are led on together no less
    far than the slower of them. A node that has just taken a group over need not know a name for
    it before its next rebalance or commit; without one that fits the state's own cuts are taken.
    """
    found = await context.find_topic(state.topic_name)
    if found is None or found.topic_id != key.topic_id:
        return None
    registry, cuts = context.registry, [lo for lo, _, _ in state.positions()[1:]]
    chosen = context.group_names.chosen(key.group).get(found.name, found.name)
    names = dict.fromkeys((chosen, found.name, *context.groups.layouts.names_of(key.topic_id)))
    views = (registry.view(name) for name in names if not registry.is_refused(name))
    fitting = [view for view in views if view and _is_cut_at(view, key.partition, cuts)]
    if not fitting and cuts:
        return view_of_cuts(found, key.partition, cuts, registry.key_hash_of(found.name))
    return min(
        fitting, key=lambda view: (view.name != chosen, view.layout.lane_count), default=None
    )


def _is_cut_at(view: View, partition: int, cuts: Sequence[int]) -> bool:
    is_there = partition < view.layout.partition_count
    return is_there and view.key_split(partition).has_cuts(cuts)


def _make_late(member: Beat, draft: Draft, context: Context) -> LatePush:
    push = partial(push_late, member, draft.view, draft.partition, context)
    return _late(draft, partial(context.aside, push), context)


def _late(draft: Draft, push: Callable[[], None], context: Context) -> LatePush:
    return LatePush(
        view=draft.view,
        partition=draft.partition,
        position=draft.state.stable_position,
        since_s=context.clock(),
        push=push,
    )


async def push_late(member: Beat, view: View, partition: int, context: Context) -> None:
    """Settle the state and commit its stable offset; what it does not take is owed still."""
    await _pushed_late(member, view, partition, context)


async def _pushed_late(member: Beat, view: View, partition: int, context: Context) -> bool:
    """Do the work of `push_late`; return whether nothing is owed there now."""
    group, place, is_done = member.group, (view.topic, partition), False
    try:
        # Any client can name a group in a heartbeat.
        await expect_right(group, Operation.READ, context)
        await context.caught_up()
        async with context.hold(group):
            drafts, _ = await open_drafts(group, {place: view}, context)
            draft = drafts.get(place)
            if draft is None:
                return False  # a transaction is under way there
            context.groups.lead_on(draft.state, draft.key, view)
            if draft.state.stable_position == draft.state.pushed:
                note_late(member, [draft], context)
                return True
            sent = SentPushes(group, context)
            if not await sent.prepare([draft]):
                return False  # the journal is away
            with sent.sending():
                offset = (place, draft.state.stable_position, sent.note_of(draft))
                codes = error_codes(await context.ask(own_commit(member, [offset], context)))
                code = codes.get(place, ErrorCode.unknown_topic_or_partition)
            is_done = bool(await sent.settle([draft], [code]))
            if is_done:
                await context.groups.save(group, [(view, partition, draft.state)])
                note_late(member, [draft], context)
        log.debug(
            "stable offset pushed late group=%s topic=%s partition=%d offset=%d error_code=%s",
            group, *place, draft.state.stable_position, code.name,
        )  # fmt: skip
    except KeylaneError as error:
        # The push is still owed: the next heartbeat or commit of the group brings it up.
        log.debug("stable offset not pushed late group=%s reason=%s", group, error)
    return is_done
