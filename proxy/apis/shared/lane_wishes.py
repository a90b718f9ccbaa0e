"""Admin requests that name partitions: each wish for a lane becomes one for its partition.

An index that means a lane must never reach a broker, which would take it for a partition. So a
topic whose name means lanes is translated or refused, also while the broker does not know it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import Any, Final, Generic, TypeVar

from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName
from kio.static.primitive import i32

from keylane.errors import ConfigInvalid
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.large import check_entries
from keylane.proxy.apis.shared.refusals import RefusalReason, with_results
from keylane.proxy.apis.shared.relay import forward, relay
from keylane.proxy.apis.shared.request import Operation, Request
from keylane.proxy.apis.shared.rights import topics_question
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.topics.view import View
from keylane.wire.refused import refuse, results_of

log = logging.getLogger("keylane.admin")

REFUSED: Final = ErrorCode.policy_violation
"""Error of a well-formed request that a policy refuses (KIP-108, KIP-133)."""
Wish = TypeVar("Wish")
Decide = Callable[[View, int, Mapping[int, Wish]], Wish | RefusalReason]


@dataclass(frozen=True, slots=True)
class TopicTarget:
    """A topic named by a request."""

    name: str
    view: View | None = None
    """The lanes; None: a topic without lanes, or `refusal` has the reason."""
    refusal: RefusalReason | None = None

    @property
    def topic(self) -> str:
        """Return the broker's name of it."""
        return self.name if self.view is None else self.view.topic

    @property
    def is_plain(self) -> bool:
        """Return whether the name means no lanes: the broker is asked under it."""
        return self.view is None and self.refusal is None


def shows_lanes(context: Context) -> bool:
    """Return whether any topic may mean lanes under its own name, as answers name topics."""
    return bool(context.config.lanes or context.registry.disputes.dissenters)


async def find_target(name: str, context: Context) -> TopicTarget:
    """Return the target of a name. A name that means lanes is never plain to a broker."""
    if context.registry.rule_of(name) is None:
        return TopicTarget(name)
    try:
        view = await context.find_view(name)
    except ConfigInvalid:
        reason = f"keylane: the lanes of {name} are not served at this moment, its log says why"
        return TopicTarget(
            name, refusal=RefusalReason(ErrorCode.topic_authorization_failed, reason)
        )
    if view is not None:
        return TopicTarget(name, view)
    return TopicTarget(name, refusal=RefusalReason(await _code_of(name, context)))


async def _code_of(name: str, context: Context) -> ErrorCode:
    """Return the code by which the broker hides the topic of a lane name from this client."""
    answer = await context.ask(topics_question(context.registry.physical_name(name)))
    code: ErrorCode = answer.topics[0].error_code if answer.topics else ErrorCode.none
    return ErrorCode.unknown_topic_or_partition if code == ErrorCode.none else code


def lanes_text(view: View) -> str:
    """Return the beginning of an error message about lanes."""
    layout = view.layout
    return (
        f"keylane: topic {view.name} is seen as {layout.partition_count} partitions "
        f"of {layout.lane_count} lanes each"
    )


async def show_answer(
    request: Request, context: Context, show: Callable[[Any, Context], Awaitable[Any]]
) -> Buffers:
    """Relay a request and return its answer as `show` changes it; the bytes, where it does not."""
    if not shows_lanes(context):
        return await relay(request, context)
    frame = await forward(request, context)
    answer = request.decode_answer(frame)
    shown = await show(answer, context)
    return (frame,) if shown == answer else request.answer_entity(shown)


async def show_topic(topic: Any, context: Context) -> Any:
    """Return a kio topic entry with lanes for partitions, where its own name means lanes."""
    entries, _ = results_of(type(topic))
    view = (await find_target(_name_of(topic), context)).view
    if view is None:
        return topic
    return replace(topic, **{entries: show_lanes(getattr(topic, entries), view)})


async def show_numbers(
    topics: Iterable[Any], context: Context, name_field: str = "topic"
) -> tuple[Any, ...]:
    """Return kio topic entries that number partitions, with lanes where their own name means them.

    name_field: the topic's name in the API.
    """
    shown = []
    for topic in topics:
        view = (await find_target(getattr(topic, name_field), context)).view
        lanes = topic.partitions if view is None else lanes_of(topic.partitions, view)
        shown.append(replace(topic, partitions=tuple(map(i32, lanes))))
    return tuple(shown)


def show_lanes(entries: Iterable[Any], view: View) -> tuple[Any, ...]:
    """Return kio entries of partitions, each once per lane, in the order of lane indexes."""
    layout = view.layout
    known = [each for each in entries if _has_lanes(index_of(each), view)]
    return tuple(
        with_index(entry, lane * layout.partition_count + index_of(entry))
        for lane in range(layout.lane_count)
        for entry in known
    )


def index_of(entry: Any) -> int:
    """Return the partition of a kio entry, which every API has in its first field."""
    return int(getattr(entry, fields(entry)[0].name))


def with_index(entry: Any, index: int) -> Any:
    """Return a kio entry under another index."""
    index_field = fields(entry)[0].name
    return replace(entry, **{index_field: type(getattr(entry, index_field))(index)})


def _name_of(topic: Any) -> str:
    return str(getattr(topic, fields(topic)[0].name))


def lanes_of(partitions: Iterable[int], view: View) -> tuple[int, ...]:
    """Return the lanes of some partitions, ascending."""
    known = [number for number in partitions if _has_lanes(number, view)]
    lanes = range(view.layout.lane_count)
    return tuple(sorted(view.layout.lane_index(number, lane) for number in known for lane in lanes))


def _has_lanes(partition: int, view: View) -> bool:
    """Return whether lanes read a partition; none reads an added one (docs/decisions/006)."""
    return 0 <= partition < view.layout.partition_count


def any_lane(_view: View, _partition: int, wishes: Mapping[int, Wish]) -> Wish | RefusalReason:
    """Return the wish for a partition: that for its first lane."""
    return next(iter(wishes.values()))


@dataclass(slots=True)
class _WantedTopic(Generic[Wish]):
    """A topic of the request."""

    target: TopicTarget
    partition_of: dict[int, int] = field(default_factory=dict)
    """Wishes by index, in the order of the request."""
    wishes: dict[int, Wish] = field(default_factory=dict)
    """Wishes by partition, to ask the broker for."""
    refusals: dict[int, RefusalReason] = field(default_factory=dict)
    """Refusals by index."""

    def refuse(self, partition: int, refusal: RefusalReason) -> None:
        """Refuse all indexes of a partition."""
        self.wishes.pop(partition, None)
        found = [index for index, other in self.partition_of.items() if other == partition]
        self.refusals.update(dict.fromkeys(found, refusal))


class LaneWishes(Generic[Wish]):
    """The wishes of a request for the partitions of topics, with lanes and without.

    `decide` makes the wish for a partition out of those for its lanes, or refuses them.
    """

    def __init__(self, decide: Decide[Wish]) -> None:
        self._decide = decide
        self._asked: list[_WantedTopic[Wish]] = []
        self._count = 0

    def add(self, target: TopicTarget, wishes: Iterable[tuple[int, Wish]]) -> None:
        """Take a topic of the request: each index with its wish.

        Raises: FrameInvalid, for more partitions than one request may name.
        """
        asked: _WantedTopic[Wish] = _WantedTopic(target)
        self._asked.append(asked)
        wishes = list(wishes)
        self._count += len(wishes)
        check_entries(self._count)
        groups: dict[int, dict[int, Wish]] = {}
        for index, wish in wishes:
            refusal = _refusal_of(target, index)
            partition = index
            if refusal is not None:
                asked.refusals[index] = refusal
            elif target.view is not None:
                partition = target.view.partition_of(index)
            asked.partition_of[index] = partition
            if refusal is None:
                groups.setdefault(partition, {})[index] = wish
        for partition, group in groups.items():
            decided: Wish | RefusalReason = next(iter(group.values()))
            if target.view is not None:
                decided = self._decide(target.view, partition, group)
            if isinstance(decided, RefusalReason):
                asked.refuse(partition, decided)
            else:
                asked.wishes[partition] = decided

    def settle(self) -> dict[str, dict[int, Wish]]:
        """Return by physical topic and partition the wishes for the broker.

        Brokers accept a partition once per request. Where names of one topic have different wishes
        for a partition, the wish for the partition itself stands, and lanes are refused.
        """
        places: dict[tuple[str, int], list[_WantedTopic[Wish]]] = {}
        for asked in self._asked:
            for partition in asked.wishes:
                places.setdefault((asked.target.topic, partition), []).append(asked)
        found: dict[str, dict[int, Wish]] = {}
        for (topic, partition), askers in places.items():
            wishes = [asked.wishes[partition] for asked in askers]
            if any(wish != wishes[0] for wish in wishes):
                reason = (
                    f"keylane: different things are asked of partition {partition} of the topic "
                    f"{topic}, which has one log for all of its lanes"
                )
                for asked in askers:
                    if asked.target.view is not None:
                        asked.refuse(partition, RefusalReason(ErrorCode.invalid_request, reason))
            left = [asked.wishes[partition] for asked in askers if partition in asked.wishes]
            if left:
                found.setdefault(topic, {})[partition] = left[0]
        return found

    def answer(self, request: Request, answer: Any) -> Any:
        """Return the kio answer with a result for each named index; None: nothing was asked."""
        place, of_topic = results_of(request.answer_type)
        entries, of_entry = results_of(of_topic)
        found = by_place(() if answer is None else getattr(answer, place))
        results = (
            of_topic(**{fields(of_topic)[0].name: target.name, entries: shown})
            for target, shown in self.answers(found, of_entry)
        )
        return with_results(request, answer, results)

    async def judge(self, operation: Operation, context: Context) -> None:
        """Put the broker's error before keylane's: a client without the right learns no more."""
        for asked in self._asked:
            view = asked.target.view
            if view is None or not asked.refusals:
                continue
            code = await context.right_error(view, operation)
            if code:
                asked.refusals = dict.fromkeys(asked.refusals, RefusalReason(ErrorCode(code)))

    def log_refusals(self, api: str, context: Context) -> None:
        """Log refusals where the answer has no room for a reason: once per topic."""
        for asked in self._asked:
            for refusal in asked.refusals.values():
                if refusal.message is not None:
                    log.warning(
                        "entry refused api=%s topic=%s indexes=%d session_id=%s reason=%s",
                        api, asked.target.name, len(asked.refusals), context.session_id,
                        refusal.message,
                    )  # fmt: skip
                    break

    def answers(
        self, found: Mapping[tuple[str, int], Any], of_entry: Any = None
    ) -> list[tuple[TopicTarget, tuple[Any, ...]]]:
        """Return per topic of the request an entry per named index.

        found: the broker's kio entries by physical topic and partition; what it left out is left
        out here, too. of_entry: the type of those entries; None: refusals are left out.
        """
        results = []
        for asked in self._asked:
            entries = []
            for index, partition in asked.partition_of.items():
                entry = found.get((asked.target.topic, partition))
                if index in asked.refusals:
                    if of_entry is not None:
                        entries.append(refuse(of_entry, index, *asked.refusals[index]))
                elif entry is not None:
                    entries.append(with_index(entry, index))
            results.append((asked.target, tuple(entries)))
        return results


def _refusal_of(target: TopicTarget, index: int) -> RefusalReason | None:
    if target.view is None or not target.view.error_of(index):
        return target.refusal
    last = target.view.layout.index_count - 1
    return RefusalReason(
        ErrorCode.unknown_topic_or_partition, f"{lanes_text(target.view)}, numbered 0 to {last}"
    )


def by_place(topics: Iterable[Any]) -> dict[tuple[str, int], Any]:
    """Return kio entries of an answer by topic and partition."""
    return {
        (_name_of(topic), index_of(entry)): entry
        for topic in topics
        for entry in getattr(topic, results_of(type(topic))[0])
    }


async def find_wishes(
    asked: Sequence[tuple[Any, Iterable[tuple[int, Wish]]]],
    decide: Decide[Wish],
    context: Context,
    *,
    also_plain: bool = False,
) -> LaneWishes[Wish] | None:
    """Return the wishes of kio topic entries, each with its own by index; None: all are plain.

    also_plain: then as well, to change something else about them.
    """
    targets = [await find_target(_name_of(topic), context) for topic, _ in asked]
    if all(target.is_plain for target in targets) and not also_plain:
        return None
    wishes = LaneWishes(decide)
    for target, (_, wished) in zip(targets, asked, strict=True):
        wishes.add(target, wished)
    return wishes


async def find_numbers(
    topics: Iterable[Any], context: Context, *, also_plain: bool = False
) -> LaneWishes[None] | None:
    """Return `find_wishes` of kio topic entries that number partitions and wish no more."""
    asked = [(topic, ((int(number), None) for number in _entries_of(topic))) for topic in topics]
    return await find_wishes(asked, any_lane, context, also_plain=also_plain)


def wished_topics(
    topics: Sequence[Any], wishes: Mapping[str, Mapping[int, Any]]
) -> tuple[Any, ...]:
    """Return topic entries like those of the request, with the partitions that brokers know.

    A partition is a number in them, or an entry of a number and its wish.
    """
    if not wishes:
        return ()
    some: Any = next(chain.from_iterable(map(_entries_of, topics)))

    def made(partition: int, wish: Any) -> Any:
        if isinstance(some, int):
            return i32(partition)
        return with_index(replace(some, **{fields(some)[1].name: wish}), partition)

    name, entries = (one.name for one in fields(topics[0])[:2])
    return tuple(
        replace(
            topics[0],
            **{name: TopicName(topic), entries: tuple(made(*each) for each in of_topic.items())},
        )
        for topic, of_topic in wishes.items()
    )


def _entries_of(topic: Any) -> Sequence[Any]:
    """Return the partitions of a request's topic entry, which stand behind its name."""
    found: Sequence[Any] = getattr(topic, fields(topic)[1].name)
    return found
