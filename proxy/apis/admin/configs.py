"""DescribeConfigs v1-4, AlterConfigs v0-2, IncrementalAlterConfigs v0-1: of topics and brokers.

Behaviour: the configuration of a lane name is that of its topic, to read and to change, and the
broker judges the right to the topic. A value that names partitions and brokers (throttled
replicas) has the numbers that the client sees: lanes, and among many nodes ids of any pair. A
broker is named by the id that clients know. All other requests pass unchanged.
Not done: nothing.

Source: KIP-226 (DescribeConfigs), KIP-339 (IncrementalAlterConfigs), KIP-73 (throttled replicas).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.lane_wishes import TopicTarget, find_target, lanes_of
from keylane.proxy.apis.shared.own_names import TOPIC_RESOURCE
from keylane.proxy.apis.shared.places import real_name
from keylane.proxy.apis.shared.relay import ask, relay
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.response_order import Buffers

THROTTLED: Final = frozenset(
    {"leader.replication.throttled.replicas", "follower.replication.throttled.replicas"}
)
"""Topic configurations whose value is `partition:broker,partition:broker`, or `*` for all."""
Pair = tuple[int, int]


class _Asked(NamedTuple):
    """A resource of a request."""

    name: str
    renamed: Any
    """The kio entry, under the name that brokers know."""
    target: TopicTarget | None
    """None: it is no topic."""


async def handle_describe_configs(request: Request, context: Context) -> Buffers:
    """Ask by the topic's or broker's own name, answer under the one that was asked for."""
    wanted = request.decode()
    asked = [await _asked(resource, context) for resource in wanted.resources]
    resources = tuple(one.renamed for one in asked)
    is_plain = all(one.target is None or one.target.is_plain for one in asked)
    if is_plain and resources == tuple(wanted.resources):
        return await relay(request, context)
    answer = await ask(request, replace(wanted, resources=resources), context)
    results = tuple(
        _with_values(result, one.target, _to_lanes) for one, result in _pairs(asked, answer.results)
    )
    return request.answer_entity(replace(answer, results=results))


async def handle_alter_configs(request: Request, context: Context) -> Buffers:
    """Change the target of each name: AlterConfigs, IncrementalAlterConfigs."""
    wanted = request.decode()
    asked = [await _asked(resource, context) for resource in wanted.resources]

    def real_pairs(target: TopicTarget, pair: Pair) -> list[Pair]:
        return [(partition_of(target, pair[0]), context.placement.real_id(pair[1]))]

    resources = tuple(
        one.renamed
        if one.target is None or (one.target.is_plain and context.placement.is_alone)
        else _with_values(one.renamed, one.target, real_pairs)
        for one in asked
    )
    if resources == tuple(wanted.resources):
        return await relay(request, context)
    answer = await ask(request, replace(wanted, resources=resources), context)
    responses = tuple(entry for _, entry in _pairs(asked, answer.responses))
    return request.answer_entity(replace(answer, responses=responses))


async def _asked(resource: Any, context: Context) -> _Asked:
    target = await _topic_target(resource, context)
    if target is None:
        name = real_name(resource, context)
    else:
        name = context.registry.physical_name(resource.resource_name)
    return _Asked(resource.resource_name, replace(resource, resource_name=name), target)


def _pairs(asked: Iterable[_Asked], results: Iterable[Any]) -> Iterator[tuple[_Asked, Any]]:
    """Yield each resource of the request that the broker has answered, under the client's name."""
    found = {(int(one.resource_type), one.resource_name): one for one in results}
    for one in asked:
        result = found.get((int(one.renamed.resource_type), one.renamed.resource_name))
        if result is not None:
            yield one, replace(result, resource_name=one.name)


async def _topic_target(resource: Any, context: Context) -> TopicTarget | None:
    """Return the target of a kio config resource that is a topic; None for other kinds."""
    if int(resource.resource_type) != TOPIC_RESOURCE:
        return None
    name = resource.resource_name
    if context.registry.rule_of(name) is None or not _names_throttled(resource):
        return TopicTarget(name)
    return await find_target(name, context)


def _names_throttled(resource: Any) -> bool:
    """Return whether a request reads or changes values that name lanes."""
    configs = getattr(resource, "configs", None)
    if configs is not None:
        return any(config.name in THROTTLED for config in configs)
    keys = resource.configuration_keys
    return keys is None or any(key in THROTTLED for key in keys)


def partition_of(target: TopicTarget, index: int) -> int:
    """Return the broker's partition of an index; an index without a lane stays as it is."""
    view = target.view
    return index if view is None or view.error_of(index) else view.partition_of(index)


def _to_lanes(target: TopicTarget, pair: Pair) -> list[Pair]:
    if target.view is None:
        return [pair]
    return [(lane, pair[1]) for lane in lanes_of([pair[0]], target.view)]


def _with_values(
    resource: Any, target: TopicTarget | None, translate: Callable[[TopicTarget, Pair], list[Pair]]
) -> Any:
    """Return a kio resource with each pair of throttled replicas translated; others stay."""
    if target is None or not any(config.name in THROTTLED for config in resource.configs):
        return resource
    configs = tuple(
        replace(config, value=translated(config.value, lambda pair: translate(target, pair)))
        if config.name in THROTTLED
        else config
        for config in resource.configs
    )
    return replace(resource, configs=configs)


def translated(value: str | None, translate: Callable[[Pair], list[Pair]]) -> str | None:
    """Return throttled replicas in other numbers, each once; text without a pair stays."""
    parts = [] if value is None else [part.split(":") for part in value.split(",")]
    if not parts or not all(len(part) == 2 and all(map(_is_number, part)) for part in parts):
        return value
    pairs = (pair for p, b in parts for pair in translate((int(p), int(b))))
    return ",".join(f"{partition}:{broker}" for partition, broker in dict.fromkeys(pairs))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 10
