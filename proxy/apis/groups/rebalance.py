"""A rebalance that an operator asks for: what it would move, and the request for it.

Behaviour: a classic group is asked to join again, by its leader's next heartbeat (see
`load_checks`), and is planned by the loads of the answer, so that the lanes that it names move. Its
margins are those of any generation, so a group within them is even. Lanes of a group with the
consumer protocol move at once, without a rebalance, by fine margins. `rebalance_by_load: false`
does not count: the operator asks.
Not done: groups whose clients deal out their lanes, and Kafka Streams.

Source: docs/decisions/043, 045.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from keylane.assignor.gain import Comparison, compare
from keylane.errors import FrameInvalid
from keylane.proxy.apis.groups.consumer.plan import even_out
from keylane.proxy.apis.groups.seen_lanes import UNKNOWN_GENERATION, note_lanes
from keylane.proxy.apis.groups.sync_group import make_deal
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.group_state import CONSUMER, STABLE, GroupState, ask_group_state
from keylane.proxy.groups.assignors import STREAMS, is_replaced
from keylane.proxy.groups.consumer_group import ConsumerGroup
from keylane.proxy.groups.dealing import owners_of
from keylane.proxy.groups.rebalanced import LaneMove, Rebalanced, nothing
from keylane.proxy.topics.view import View

EVEN: Final = "the load is even already: no move would help"
NO_LANES: Final = "the group reads no lanes"
NOT_DEALT: Final = "some lanes are at no member yet: a rebalance is still to come"
BYPASSING: Final = (
    "some members bypass keylane and have whole partitions, as long as they are in the group"
)


async def rebalance_group(group: str, context: Context, *, is_dry: bool) -> Rebalanced:
    """Ask for a rebalance, or say what it would be.

    Raises: ActionRefused, UpstreamLost, NotCoordinator: nothing has changed.
    """
    served = context.consumer_groups.find(group)
    if served is not None and served.members:
        return await _rebalance_served(group, served, context, is_dry=is_dry)
    found = await ask_group_state(group, context)
    reason = _reason_against(group, found, context)
    if reason is not None:
        return nothing(reason)
    return await _rebalance_classic(group, found, context, is_dry=is_dry)


def _reason_against(group: str, found: GroupState, context: Context) -> str | None:
    """Return why the lanes of a group are none of keylane's to deal out."""
    rule = context.config.group_rule(group)
    if not found.has_members:
        return "the group has no members that are known here"
    if found.protocol_name == STREAMS:
        return "it is a group of Kafka Streams, which deals out its tasks itself"
    if found.protocol_type != CONSUMER:
        return f"its protocol is {found.protocol_type}, which has no lanes"
    if rule is not None and rule.assignor == "client":
        return "a rule with `assignor: client` leaves its lanes to its clients"
    if found.state != STABLE:
        return f"a rebalance is under way: the group is {found.state}"
    if not is_replaced(found.protocol_name, rule):
        return (
            f"its clients deal out the lanes with their own assignor {found.protocol_name}; a rule "
            "with `assignor: key-range` replaces it"
        )
    return None


async def _rebalance_classic(
    group: str, found: GroupState, context: Context, *, is_dry: bool
) -> Rebalanced:
    turns = context.load_turns
    generation_id = turns.generation_of(group)
    current = None
    if generation_id is not None:
        current = context.generations.current(group, generation_id)
    if current is None:
        seen_as = UNKNOWN_GENERATION if generation_id is None else generation_id
        current = note_lanes(group, seen_as, found, context)
    if current is None:
        return nothing(NO_LANES)
    joined, held = current
    if joined.is_mixed:
        return nothing(BYPASSING)
    try:
        deal = await make_deal(group, joined, context)
    except FrameInvalid as error:
        return nothing(f"a member's subscription cannot be read: {error}")
    compared = await context.in_thread(compare, owners_of(deal, held), deal.topics, deal.loads)
    views = {topic.name: context.registry.view(topic.name) for topic in deal.topics}
    shown = _show(compared, views, context)
    if shown.reason is not None or is_dry:
        return shown
    is_asked = generation_id is not None and turns.ask(
        group, generation_id, context.clock(), deal.loads
    )
    if not is_asked:
        reason = "no heartbeat of the group has passed this node yet: ask again"
        return replace(shown, reason=reason)
    context.stats.rebalances_asked += 1
    return replace(shown, is_asked=True)


async def _rebalance_served(
    group: str, served: ConsumerGroup, context: Context, *, is_dry: bool
) -> Rebalanced:
    if served.foreign:
        return nothing(BYPASSING)
    if served.is_still(context.clock()):
        return nothing("this node has just met the group, and its lanes stay for a moment")
    if served.is_planning or served.is_stale or not served.is_settled:
        return nothing("lanes are on their way to other members already")
    compared, views = await even_out(group, served, context, is_dry=is_dry)
    if not views:
        return nothing(NO_LANES)
    names = {identity: member.member_id for identity, member in served.members.items()}
    shown = _show(compared, views, context, names)
    return replace(shown, is_asked=shown.reason is None and not is_dry)


def _show(
    compared: Comparison | None,
    views: Mapping[str, View | None],
    context: Context,
    names: Mapping[str, str] | None = None,
) -> Rebalanced:
    """Return the preview. names: member ids, where the plan has other names of members."""
    if compared is None:
        return nothing(NOT_DEALT)
    names = names or {}
    rates = {
        name: context.loads.bytes_per_s(view) for name, view in views.items() if view is not None
    }
    moves = tuple(
        LaneMove(
            topic=topic,
            lane_index=index,
            from_member=names.get(giver, giver),
            to_member=names.get(receiver, receiver),
            bytes_per_s=rates.get(topic, {}).get(index),
        )
        for (topic, index), giver, receiver in compared.moves()
    )
    return Rebalanced(
        balance=compared.gain.busiest,
        balance_after=compared.gain.after,
        moves=moves,
        is_asked=False,
        reason=None if moves else EVEN,
    )
