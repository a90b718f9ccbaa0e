"""Requests that go on to the client's broker: unchanged, or one per round of partitions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.framing import Frame
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.topics.view import View

Handler = Callable[[Request, Context], Awaitable[Buffers]]
DecodedHandler = Callable[[Request, Any, Context], Awaitable[Buffers]]
"""A handler that gets the body of the request beside it, read once."""
Look = Callable[[Request, Context], Handler | None]
"""The handler of one request, with the parts that were read; None: it is relayed as bytes."""
Relays = Callable[[Request, Context], bool]


def among_nodes(handler: Handler) -> Look:
    """Return a look that relays requests at the lone node, where ids mean the same to brokers."""
    return lambda _request, context: None if context.placement.is_alone else handler


async def forward(
    request: Request, context: Context, entity: Any = None, *, frame: Frame | None = None
) -> Frame:
    """Return the broker's answer, for which the client's next request need not wait.

    entity, frame: sent in the place of the request's own.
    """
    if frame is None:
        frame = request.frame if entity is None else request.with_entity(entity)
    pending = context.send((frame,))
    context.release()
    return await pending


async def relay(request: Request, context: Context, entity: Any = None) -> Buffers:
    """Pass a request, or another body, and its answer as it came."""
    return (await forward(request, context, entity),)


async def ask(request: Request, entity: Any, context: Context) -> Any:
    """Return the broker's kio answer to the request with another body."""
    return request.decode_answer(await forward(request, context, entity))


class PhysicalRounds:
    """Partition entries of a request as rounds of questions to the broker, and the answers back.

    A broker refuses a request that names a partition twice, and lanes of one partition may ask
    different things (offsets by time, say). Equal questions are asked once; a different one about
    the same partition goes into the next round, which is one more request.
    index_field, name_field: the API's names of a partition's number and of a topic's name.
    """

    def __init__(self, *, index_field: str = "partition_index", name_field: str = "name") -> None:
        self._index_field, self._name_field = index_field, name_field
        self._rounds: list[dict[str, dict[int, Any]]] = []
        self._templates: dict[str, Any] = {}
        self._asked: list[list[tuple[tuple[int, str, int], int]]] = []
        """By topic of the request: round, broker's topic and partition, and index of each entry."""

    def add_topic(self, topic: Any, view: View | None, partitions: Sequence[Any]) -> None:
        """Take a topic of the request; `partitions` are its entries to ask the broker for."""
        name = view.topic if view is not None else getattr(topic, self._name_field)
        self._templates.setdefault(name, topic)
        asked = []
        for entry in partitions:
            index = partition = int(getattr(entry, self._index_field))
            if view is not None:
                partition = view.partition_of(index)
                entry = self._under(partition, entry)
            asked.append(((self._place(name, partition, entry), name, partition), index))
        self._asked.append(asked)

    def _place(self, name: str, partition: int, entry: Any) -> int:
        for number, asked in enumerate(self._rounds):
            known = asked.setdefault(name, {}).setdefault(partition, entry)
            if known == entry:
                return number
        self._rounds.append({name: {partition: entry}})
        return len(self._rounds) - 1

    def _under(self, index: int, entry: Any) -> Any:
        index_type = type(getattr(entry, self._index_field))
        return replace(entry, **{self._index_field: index_type(index)})

    def requests(self) -> list[tuple[Any, ...]]:
        """Return topic entries to ask the broker for, one tuple per round."""
        return [
            tuple(
                replace(
                    self._templates[name],
                    **{self._name_field: name, "partitions": tuple(partitions.values())},
                )
                for name, partitions in asked.items()
                if partitions
            )
            for asked in self._rounds
        ]

    def answers(self, answered: Sequence[Any]) -> list[list[Any]]:
        """Return per topic of the request the broker's entries, as lanes.

        answered: the broker's answer per round. An entry that it left out is left out here, too.
        """
        found = {
            (
                number,
                getattr(topic, self._name_field),
                int(getattr(entry, self._index_field)),
            ): entry
            for number, answer in enumerate(answered)
            for topic in answer.topics
            for entry in topic.partitions
        }
        return [
            [self._under(index, found[place]) for place, index in asked if place in found]
            for asked in self._asked
        ]


async def ask_rounds(
    request: Request,
    wanted: Any,
    rounds: PhysicalRounds,
    context: Context,
    *,
    is_judged_whole: bool = False,
) -> list[Any]:
    """Return the broker's kio answers per round; all rounds are sent before the first answer.

    is_judged_whole: the broker is asked about a request without topics as well.
    """
    asked = [topics for topics in rounds.requests() if topics]
    if not asked and is_judged_whole:
        asked = [()]
    pending = [
        context.send((request.with_entity(replace(wanted, topics=topics)),)) for topics in asked
    ]
    context.release()
    return [request.decode_answer(await answer) for answer in pending]
