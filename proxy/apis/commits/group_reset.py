"""Resets of a group's offsets for an operator: of all lanes of a partition, or of none of them.

Behaviour: as kafka-consumer-groups does, for a group without members. Kafka's own offset of a
partition and all of its lanes get one offset. What is to come of a partition with lanes is in the
journal, as an intent, before Kafka gets it, also where it goes forward: lanes ahead of the new
offset go back, and a lost answer must not leave some of them behind. All partitions go to the
coordinator in one request with no member and no generation, which it takes of a group without
members only: a member that joins meanwhile either finds the new offsets, or has the reset refused.
Not done: a reset of some lanes of a partition; a stock tool does that through keylane.

Source: KIP-122; docs/decisions/027, 051.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.offset_fetch.v7.request import OffsetFetchRequest
from kio.schema.types import GroupId

from keylane.errors import ActionInvalid, ActionRefused, ActionUnknown, NotCoordinator, UpstreamLost
from keylane.offsets.records.journal import StateKey
from keylane.offsets.resets import (
    GroupReset,
    PartitionReset,
    PlaceFacts,
    ResetInvalid,
    ResetTo,
    plan_resets,
)
from keylane.offsets.state import OffsetState
from keylane.proxy.apis.commits.entries import error_codes
from keylane.proxy.apis.commits.lane_offsets import (
    NONE,
    UNSTABLE,
    Draft,
    fetch_committed,
    known_offset,
    open_drafts,
    own_commit,
)
from keylane.proxy.apis.commits.late_offsets import note_set
from keylane.proxy.apis.commits.pushes_sent import TOO_LONG, UNKNOWN_OUTCOMES, SentPushes
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.commits.refreshes import Beat
from keylane.proxy.groups.group_names import Place
from keylane.proxy.topics.range_views import view_of_cuts
from keylane.proxy.topics.view import View

log = logging.getLogger("keylane.offsets")

PLACES_MAX: Final = 10_000
"""Partitions of one reset."""
SHOWN_MAX: Final = 5
TRIES: Final = 3
"""Of a push: the note beside it gets shorter where a broker refuses it."""
HAS_MEMBERS: Final = frozenset({
    ErrorCode.unknown_member_id, ErrorCode.illegal_generation, ErrorCode.rebalance_in_progress,
    ErrorCode.stale_member_epoch,
})  # fmt: skip
Offsets = Callable[[Sequence[Place], int], Awaitable[dict[Place, int]]]
"""Gives offsets of logs, of EARLIEST, LATEST or a time in ms. Raises: UpstreamLost."""
Logs = Mapping[Place, tuple[int, int, int | None]]
"""Start and end of each log, and its offset of a time, if one was asked for."""
EARLIEST: Final = -2
LATEST: Final = -1


async def reset_group(
    reset: GroupReset, offsets: Offsets, context: Context, *, is_dry: bool
) -> list[PartitionReset]:
    """Reset, or only say what would come of it; the group had no members a moment ago.

    Raises: ActionInvalid, ActionRefused, NotCoordinator, and UpstreamLost but for ActionUnknown:
    nothing has changed. ActionUnknown: Kafka may have it.
    """
    await context.groups.ready(reset.group)
    places = await _find_places(reset, context)
    logs = await _look_at_logs(places, reset.to, offsets)
    if is_dry:
        committed, errors = await _committed(reset.group, places, context)
        _expect_stable(errors)
        states = _states_at(reset.group, places, context)
        look = _Look(logs, context)
        return _plan([look.facts(p, committed[p], states.get(p)) for p in places], reset.to)
    async with context.hold(reset.group):
        return await _reset(reset, places, logs, context)


# -- looks ----------------------------------------------------------------------------------


async def _find_places(reset: GroupReset, context: Context) -> list[Place]:
    """Return the partitions that are meant. Raises: ActionInvalid, UpstreamLost."""
    if reset.topics is None:
        found = await _all_committed(reset.group, context)
        if not found:
            raise ActionInvalid(
                f"group {reset.group} has no offsets: name the topics that it is to get offsets of",
                field="/topics",
            )
        return _bounded(found)
    places: dict[Place, None] = {}
    names = [context.registry.physical_name(wish.topic) for wish in reset.topics]
    await context.refresh_topics(names)  # topics may have grown, or gone, since they were learnt
    for number, (name, wish) in enumerate(zip(names, reset.topics, strict=True)):
        if await context.find_topic(name) is None:
            raise ActionInvalid(f"there is no topic {wish.topic}", field=f"/topics/{number}/topic")
        count = context.registry.count_of(name)
        for index, partition in enumerate(wish.partitions or ()):
            if partition >= count:
                raise ActionInvalid(
                    f"topic {wish.topic} has the partitions 0 to {count - 1}",
                    field=f"/topics/{number}/partitions/{index}",
                )
        wanted = range(count) if wish.partitions is None else wish.partitions
        places |= dict.fromkeys((name, partition) for partition in wanted)
    return _bounded(list(places))


def _bounded(places: list[Place]) -> list[Place]:
    if len(places) > PLACES_MAX:
        raise ActionInvalid(
            f"{len(places)} partitions are more than {PLACES_MAX}: reset topics one by one",
            field="/topics",
        )
    return sorted(places)


async def _all_committed(group: str, context: Context) -> list[Place]:
    """Return the partitions of which Kafka, or keylane, has an offset of the group."""
    asked = OffsetFetchRequest(group_id=GroupId(group), topics=None, require_stable=True)
    answer = await context.ask(asked)
    if answer.error_code != NONE:
        raise _refusal(group, answer.error_code)
    places = {
        (str(topic.name), int(entry.partition_index))
        for topic in answer.topics
        for entry in topic.partitions
        if entry.error_code == UNSTABLE or known_offset(entry) is not None
    }
    for key, state in context.groups.states_of(group).items():
        if context.registry.id_of_name(state.topic_name) == key.topic_id:
            places.add((state.topic_name, key.partition))
    return sorted(place for place in places if not place[0].startswith("__"))


async def _look_at_logs(places: Sequence[Place], to: ResetTo, offsets: Offsets) -> Logs:
    """Return where each log begins and ends, and its offset of the time that is asked for."""
    starts, ends = await offsets(places, EARLIEST), await offsets(places, LATEST)
    at_time = {} if to.time_ms is None else await offsets(places, to.time_ms)
    return {
        place: (starts[place], ends[place], None if (at := at_time.get(place, -1)) < 0 else at)
        for place in places
    }


async def _committed(
    group: str, places: Sequence[Place], context: Context
) -> tuple[dict[Place, int | None], dict[Place, ErrorCode]]:
    if not places:
        return {}, {}
    found, errors = await fetch_committed(group, places, context)
    for code in errors.values():
        if code != UNSTABLE:
            raise _refusal(group, code)
    return {place: offset for place, (offset, _) in found.items()}, errors


def _states_at(group: str, places: Sequence[Place], context: Context) -> dict[Place, OffsetState]:
    """Return the group's states on these partitions, of those that have one."""
    known, found = context.groups.states_of(group), {}
    for place in places:
        topic_id = context.registry.id_of_name(place[0])
        state = None if topic_id is None else known.get(StateKey(group, topic_id, place[1]))
        if state is not None:
            found[place] = state
    return found


class _Look:
    """Knowledge of partitions before a reset."""

    def __init__(self, logs: Logs, context: Context) -> None:
        self._logs, self._context = logs, context
        self._views: dict[str, list[View]] = {}

    def facts(self, place: Place, committed: int | None, state: OffsetState | None) -> PlaceFacts:
        """Return the facts of a partition; committed: Kafka's own offset."""
        furthest = committed
        if state is not None and state.committed:
            furthest = max(state.fastest_position, state.concluded_end, committed or 0)
        log_start, log_end, at_time = self._logs[place]
        return PlaceFacts(
            topic=place[0],
            partition=place[1],
            lanes=self._lane_count(place),
            committed=committed,
            furthest=furthest,
            log_start=log_start,
            log_end=log_end,
            at_time=at_time,
        )

    def _lane_count(self, place: Place) -> int:
        """Return the lanes under the topic's own name, or else under a lane name that was used."""
        topic, partition = place
        if topic not in self._views:
            self._views[topic] = self._views_of(topic)
        counts = (
            view.layout.lane_count
            for view in self._views[topic]
            if partition < view.layout.partition_count
        )
        return next(counts, 0)

    def _views_of(self, topic: str) -> list[View]:
        registry, layouts = self._context.registry, self._context.groups.layouts
        topic_id = registry.id_of_name(topic)
        names = [topic] if topic_id is None else [topic, *layouts.names_of(topic_id)]
        views = (registry.view(name) for name in names if not registry.is_refused(name))
        return [view for view in views if view is not None]


def _plan(facts: Sequence[PlaceFacts], to: ResetTo) -> list[PartitionReset]:
    try:
        return plan_resets(facts, to)
    except ResetInvalid as error:
        raise ActionInvalid(str(error), field="/to") from None


# -- the reset ------------------------------------------------------------------------------


async def _reset(
    reset: GroupReset,
    places: Sequence[Place],
    logs: Logs,
    context: Context,
) -> list[PartitionReset]:
    """Do the reset; the group's lock is held."""
    group = reset.group
    states = _states_at(group, places, context)
    views = {place: _view_of(place, state, context) for place, state in states.items()}
    for place, view in views.items():
        # A commit straight to a broker is not known here until a member fetches its offsets.
        context.groups.pushes.note_moved(StateKey(group, view.topic_id, place[1]))
    drafts, errors = await open_drafts(group, views, context)
    plain = [place for place in places if place not in views]
    committed, unstable = await _committed(group, plain, context)
    _expect_stable(errors | unstable)
    facts, look = [], _Look(logs, context)
    for place in places:
        draft = drafts.get(place)
        state = None if draft is None else draft.state
        found = committed.get(place) if state is None else state.pushed
        facts.append(look.facts(place, found, state))
    planned = _plan(facts, reset.to)
    targets = {(each.topic, each.partition): each.to_offset for each in planned}
    for place, draft in drafts.items():
        draft.state.reset(targets[place])
    await _push(group, targets, list(drafts.values()), context)
    return planned


def _view_of(place: Place, state: OffsetState, context: Context) -> View:
    """Return a view that has the cuts of a state; it has no lanes, and pins no layout."""
    topic = context.registry.topics[place[0]]
    cuts = [lo for lo, _, _ in state.positions()[1:]]
    return view_of_cuts(topic, place[1], cuts, context.registry.key_hash_of(topic.name))


async def _push(
    group: str, targets: Mapping[Place, int], drafts: Sequence[Draft], context: Context
) -> None:
    """Write the journal, then Kafka, then the journal."""
    sent = SentPushes(group, context)
    pushed = await sent.prepare(drafts, is_reset=True)
    if len(pushed) < len(drafts):
        sent.give_up()
        raise UpstreamLost(
            f"group {group}: the journal does not take the reset now, or an earlier one may still "
            "come into effect; nothing has changed"
        )
    try:
        codes = await _ask_kafka(group, targets, drafts, sent, context)
        taken = await sent.settle(drafts, [codes.get(draft.place) for draft in drafts])
        if taken:
            await context.groups.save(group, [(d.view, d.partition, d.state) for d in taken])
    except (NotCoordinator, UpstreamLost) as error:
        if sent.may_be_sent:
            raise ActionUnknown(f"group {group}: {error}") from None
        raise
    note_set(taken, context)
    _expect_taken(group, targets, codes)


async def _ask_kafka(
    group: str,
    targets: Mapping[Place, int],
    drafts: Sequence[Draft],
    sent: SentPushes,
    context: Context,
) -> dict[Place, ErrorCode]:
    """Commit all partitions, at once; once more those whose note is too long for the broker."""
    by_place = {draft.place: draft for draft in drafts}
    wanted, codes = dict(targets), dict[Place, ErrorCode]()
    admin = Beat(group, -1, "", None)
    for _ in range(TRIES):
        with sent.sending():
            offsets = [
                (place, offset, sent.note_of(by_place[place]) if place in by_place else "")
                for place, offset in wanted.items()
            ]
            answer = await context.ask(own_commit(admin, offsets, context))
        found = error_codes(answer)
        codes |= {place: found[place] for place in wanted if place in found}
        wanted = {place: targets[place] for place in wanted if codes.get(place) == TOO_LONG}
        if not wanted:
            break
        sent.shorten_notes()
    return codes


def _expect_stable(errors: Mapping[Place, ErrorCode]) -> None:
    """Raises: ActionRefused, UpstreamLost."""
    for (topic, partition), code in errors.items():
        where = f"topic {topic} partition {partition}"
        if code == UNSTABLE:
            raise ActionRefused(f"{where}: a transaction that is not over has an offset there")
        raise UpstreamLost(f"{where}: {code.name}")


def _expect_taken(
    group: str, targets: Mapping[Place, int], codes: Mapping[Place, ErrorCode | None]
) -> None:
    """Raises: ActionRefused, ActionUnknown, where the broker did not take all of it."""
    found = {place: codes.get(place) for place in targets}
    if any(code in UNKNOWN_OUTCOMES for code in found.values()):
        names = sorted({"no answer" if c is None else c.name for c in found.values()})
        raise ActionUnknown(f"group {group}: Kafka answers {', '.join(names)}")
    refused = {place: code for place, code in found.items() if code and code != NONE}
    if not refused:
        return
    if len(refused) == len(targets) and len(set(refused.values())) == 1:
        raise _refusal(group, next(iter(refused.values())))
    shown = [f"{topic} partition {part}: {c.name}" for (topic, part), c in refused.items()]
    more = f" and {len(shown) - SHOWN_MAX} more" if len(shown) > SHOWN_MAX else ""
    raise ActionRefused(
        f"group {group}: Kafka refused {', '.join(shown[:SHOWN_MAX])}{more}; "
        f"{len(targets) - len(refused)} other partitions are reset"
    )


def _refusal(group: str, code: ErrorCode) -> ActionRefused | UpstreamLost:
    """Return the error for a code that concerns the whole group."""
    if code in HAS_MEMBERS:
        return ActionRefused(f"group {group}: a member has joined meanwhile, nothing has changed")
    if code in (ErrorCode.group_authorization_failed, ErrorCode.topic_authorization_failed):
        return ActionRefused(
            f"group {group}: Kafka answers {code.name}; allow keylane's own principal READ on the "
            "group and on its topics"
        )
    if code == ErrorCode.invalid_commit_offset_size:  # one request is one batch of its log
        return ActionRefused(
            f"group {group}: Kafka does not take so many partitions at once, nothing has changed: "
            "reset topics one by one"
        )
    return UpstreamLost(f"group {group}: Kafka answers {code.name}; nothing has changed")
