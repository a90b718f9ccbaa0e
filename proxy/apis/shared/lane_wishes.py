"""Admin requests that name partitions: each wish for a lane becomes one for its partition.

In:    topics of a request, the indexes that the client names, its wish for each of them.
Out:   one wish per physical partition, and afterwards an answer, or a refusal, per index.

An index that means a lane must never reach a broker, which would take it for a partition. So a
topic whose name means lanes is translated or refused, also while the broker does not know it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, NamedTuple, TypeVar

from kio.schema.errors import ErrorCode
from kio.schema.metadata.v9.request import MetadataRequest, MetadataRequestTopic
from kio.schema.types import TopicName

from keylane.errors import ConfigInvalid
from keylane.proxy.apis.shared.context import Context, Operation, Request
from keylane.proxy.apis.shared.large import check_entries
from keylane.proxy.topics.view import View

log = logging.getLogger("keylane.admin")

NONE: Final = ErrorCode.none
UNKNOWN_PARTITION: Final = ErrorCode.unknown_topic_or_partition
REFUSED: Final = ErrorCode.policy_violation
"""The request is well-formed; as a broker's own policies say it (KIP-108, KIP-133)."""
Wish = TypeVar("Wish")


class Refusal(NamedTuple):
    """Why an index, or a whole topic, is not passed on."""

    code: ErrorCode
    message: str | None


@dataclass(frozen=True, slots=True)
class Target:
    """A topic as a request names it."""

    name: str
    view: View | None = None
    """None: a topic without lanes, or `refusal` says why not."""
    refusal: Refusal | None = None

    @property
    def topic(self) -> str:
        """As the broker names it."""
        return self.name if self.view is None else self.view.topic

    @property
    def is_plain(self) -> bool:
        """Whether the name means no lanes: the broker is asked as it stands."""
        return self.view is None and self.refusal is None


def shows_lanes(context: Context) -> bool:
    """Whether any topic may mean lanes under its own name, as answers name topics."""
    return bool(context.config.lanes or context.registry.disputes.dissenters)


async def find_target(name: str, context: Context) -> Target:
    """What a name means. A name that means lanes is never plain, whatever the broker knows."""
    if context.registry.rule_of(name) is None:
        return Target(name)
    try:
        view = await context.find_view(name)
    except ConfigInvalid:
        reason = f"keylane: the lanes of {name} are not served at this moment, its log says why"
        return Target(name, refusal=Refusal(ErrorCode.topic_authorization_failed, reason))
    if view is not None:
        return Target(name, view)
    return Target(name, refusal=Refusal(await _code_of(name, context), None))


async def find_targets(names: Iterable[str], context: Context) -> list[Target]:
    """As `find_target`, of each name."""
    return [await find_target(str(name), context) for name in names]


async def _code_of(name: str, context: Context) -> ErrorCode:
    """Why the client's broker does not show the topic of a lane name to this client."""
    answer = await context.ask(
        MetadataRequest(
            topics=(MetadataRequestTopic(name=TopicName(context.registry.physical_name(name))),),
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
    )
    code: ErrorCode = answer.topics[0].error_code if answer.topics else NONE
    return UNKNOWN_PARTITION if code == NONE else code


async def ask(request: Request, entity: Any, context: Context) -> Any:
    """The broker's kio answer to the request with another body."""
    pending = context.send((request.with_entity(entity),))
    context.release()
    return request.decode_answer(await pending)


def lanes_text(view: View) -> str:
    """How an error message begins that is about lanes."""
    layout = view.layout
    return (
        f"keylane: topic {view.name} is seen as {layout.partition_count} partitions "
        f"of {layout.lane_count} lanes each"
    )


def show_lanes(entries: Iterable[Any], view: View, index_field: str) -> tuple[Any, ...]:
    """kio entries of a broker's partitions, each once per lane, in the order of lane indexes."""
    layout = view.layout
    known = [each for each in entries if _has_lanes(getattr(each, index_field), view)]
    return tuple(
        with_index(entry, lane * layout.partition_count + getattr(entry, index_field), index_field)
        for lane in range(layout.lane_count)
        for entry in known
    )


def with_index(entry: Any, index: int, index_field: str) -> Any:
    """A kio entry under another index."""
    return replace(entry, **{index_field: type(getattr(entry, index_field))(index)})


def lanes_of(partitions: Iterable[int], view: View) -> tuple[int, ...]:
    """All lanes of some partitions, ascending."""
    known = [number for number in partitions if _has_lanes(number, view)]
    lanes = range(view.layout.lane_count)
    return tuple(sorted(view.layout.lane_index(number, lane) for number in known for lane in lanes))


def _has_lanes(partition: int, view: View) -> bool:
    """Whether a partition is one that lanes read; those that were added are none (decision 006)."""
    return 0 <= partition < view.layout.partition_count


def any_lane(_view: View, _partition: int, wishes: Mapping[int, Wish]) -> Wish | Refusal:
    """What is wished of a lane is wished of its partition."""
    return next(iter(wishes.values()))


@dataclass(slots=True)
class _Asked(Generic[Wish]):
    """A topic of the request."""

    target: Target
    partition_of: dict[int, int] = field(default_factory=dict)
    """By index, in the order of the request."""
    wishes: dict[int, Wish] = field(default_factory=dict)
    """By partition, what is to be asked."""
    refusals: dict[int, Refusal] = field(default_factory=dict)
    """By index."""

    def refuse(self, partition: int, refusal: Refusal) -> None:
        """Refuse all that was named of a partition."""
        self.wishes.pop(partition, None)
        found = [index for index, other in self.partition_of.items() if other == partition]
        self.refusals.update(dict.fromkeys(found, refusal))


class LaneWishes(Generic[Wish]):
    """What a request wants of the partitions of topics, with lanes and without.

    `decide` makes the wish for a partition out of those for its lanes, or refuses them.
    """

    def __init__(self, decide: Callable[[View, int, Mapping[int, Wish]], Wish | Refusal]) -> None:
        self._decide = decide
        self._asked: list[_Asked[Wish]] = []
        self._count = 0

    def add(self, target: Target, wishes: Iterable[tuple[int, Wish]]) -> None:
        """Take a topic of the request: each index with what is wished of it.

        Raises: FrameInvalid, of more partitions than one request may name.
        """
        asked: _Asked[Wish] = _Asked(target)
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
            decided: Wish | Refusal = next(iter(group.values()))
            if target.view is not None:
                decided = self._decide(target.view, partition, group)
            if isinstance(decided, Refusal):
                asked.refuse(partition, decided)
            else:
                asked.wishes[partition] = decided

    def settle(self) -> dict[str, dict[int, Wish]]:
        """By physical topic and partition, what the broker is to be asked.

        Brokers take a partition once per request. Where names of one topic ask different things
        of a partition, what was asked of the partition itself stands, and lanes are refused.
        """
        places: dict[tuple[str, int], list[_Asked[Wish]]] = {}
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
                        asked.refuse(partition, Refusal(ErrorCode.invalid_request, reason))
            left = [asked.wishes[partition] for asked in askers if partition in asked.wishes]
            if left:
                found.setdefault(topic, {})[partition] = left[0]
        return found

    async def judge(self, operation: Operation, context: Context) -> None:
        """Put the broker's word before keylane's: a client without the right learns no more."""
        for asked in self._asked:
            view = asked.target.view
            if view is None or not asked.refusals:
                continue
            code = await context.right_error(view, operation)
            if code:
                denied = Refusal(ErrorCode(code), None)
                asked.refusals = dict.fromkeys(asked.refusals, denied)

    def log_refusals(self, api: str, context: Context) -> None:
        """Log what is refused, where the answer has no room for a reason: once per topic."""
        for asked in self._asked:
            for refusal in asked.refusals.values():
                if refusal.message is not None:
                    log.warning(
                        "%s refused topic=%s indexes=%d session_id=%s reason=%s",
                        api, asked.target.name, len(asked.refusals), context.session_id,
                        refusal.message,
                    )  # fmt: skip
                    break

    def answers(
        self,
        found: Mapping[tuple[str, int], Any],
        refused: Callable[[int, Refusal], Any],
        index_field: str = "partition_index",
    ) -> list[tuple[Target, tuple[Any, ...]]]:
        """Per topic of the request, an entry per index that was named.

        found: the broker's kio entries by physical topic and partition; what it left out is left
        out here, too. refused: makes an entry of a refusal.
        """
        results = []
        for asked in self._asked:
            entries = []
            for index, partition in asked.partition_of.items():
                entry = found.get((asked.target.topic, partition))
                if index in asked.refusals:
                    entries.append(refused(index, asked.refusals[index]))
                elif entry is not None:
                    entries.append(with_index(entry, index, index_field))
            results.append((asked.target, tuple(entries)))
        return results


def _refusal_of(target: Target, index: int) -> Refusal | None:
    if target.view is None or not target.view.error_of(index):
        return target.refusal
    last = target.view.layout.index_count - 1
    return Refusal(UNKNOWN_PARTITION, f"{lanes_text(target.view)}, numbered 0 to {last}")


def by_place(
    topics: Sequence[Any], name_field: str, entries_field: str, index_field: str
) -> dict[tuple[str, int], Any]:
    """kio entries of an answer by topic and partition."""
    return {
        (str(getattr(topic, name_field)), int(getattr(entry, index_field))): entry
        for topic in topics
        for entry in getattr(topic, entries_field)
    }
