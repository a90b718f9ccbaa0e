"""Questions about lanes as questions about partitions, and the answers back.

A broker refuses a request that names a partition twice, and lanes of one partition may ask
different things (offsets by time, say). Equal questions are asked once; a different question
about the same partition goes into the next round, which is one more request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from keylane.proxy.topics.view import View


@dataclass(slots=True)
class _Place:
    topic: str
    rounds: int
    partition: int
    index: int


@dataclass(slots=True)
class _AskedTopic:
    template: Any
    view: View | None
    places: list[_Place] = field(default_factory=list)


class PhysicalRounds:
    """Partition entries of a request; the broker's topics per round, then the answers.

    `index_field` is the API's name for a partition's number, `name_field` for the topic's name.
    """

    def __init__(self, *, index_field: str = "partition_index", name_field: str = "name") -> None:
        self._index_field, self._name_field = index_field, name_field
        self._rounds: list[dict[str, dict[int, Any]]] = []
        self._templates: dict[str, Any] = {}
        self._asked: list[_AskedTopic] = []

    def add_topic(self, topic: Any, view: View | None, partitions: Sequence[Any]) -> None:
        """Take a topic of the request; `partitions` are its entries to ask the broker for."""
        name = view.topic if view is not None else getattr(topic, self._name_field)
        self._templates.setdefault(name, topic)
        asked = _AskedTopic(template=topic, view=view)
        for entry in partitions:
            index = int(getattr(entry, self._index_field))
            if view is None:
                partition = index
            else:
                partition = view.partition_of(index)
                index_type = type(getattr(entry, self._index_field))
                entry = replace(entry, **{self._index_field: index_type(partition)})
            rounds = self._place(name, partition, entry)
            asked.places.append(_Place(name, rounds, partition, index))
        self._asked.append(asked)

    def _place(self, name: str, partition: int, entry: Any) -> int:
        for number, asked in enumerate(self._rounds):
            known = asked.setdefault(name, {}).setdefault(partition, entry)
            if known == entry:
                return number
        self._rounds.append({name: {partition: entry}})
        return len(self._rounds) - 1

    def requests(self) -> list[tuple[Any, ...]]:
        """Return topic entries to ask the broker for, one tuple per round."""
        return [
            tuple(
                replace(
                    self._templates[name],
                    **{
                        self._name_field: type(getattr(self._templates[name], self._name_field))(
                            name
                        ),
                        "partitions": tuple(partitions.values()),
                    },
                )
                for name, partitions in asked.items()
                if partitions
            )
            for asked in self._rounds
        ]

    def answers(self, answered: Sequence[Any]) -> list[tuple[Any, list[Any]]]:
        """Return per topic of the request the answer's entry and its partition entries as lanes.

        `answered` holds the broker's answer per round, each with `.topics`. An entry that the
        broker left out is left out here, too.
        """
        found: dict[tuple[int, str, int], Any] = {}
        topics: dict[str, Any] = {}
        for number, answer in enumerate(answered):
            for topic in answer.topics:
                name = getattr(topic, self._name_field)
                topics.setdefault(name, topic)
                for entry in topic.partitions:
                    found[number, name, int(getattr(entry, self._index_field))] = entry
        results = []
        for asked in self._asked:
            entries = []
            template = None
            for place in asked.places:
                entry = found.get((place.rounds, place.topic, place.partition))
                if entry is None:
                    continue
                template = topics[place.topic]
                index_type = type(getattr(entry, self._index_field))
                entries.append(replace(entry, **{self._index_field: index_type(place.index)}))
            if template is not None:
                name = getattr(asked.template, self._name_field)
                template = replace(template, **{self._name_field: name})
            results.append((template, entries))
        return results
