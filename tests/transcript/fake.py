"""The outside world of a handler as a script: what the broker is asked, and what it says.

A script is a list of steps. A request that differs from its step, a request behind the last
step, and a step that was never reached all fail with what was expected and what came.
"""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from kio.index import load_request_schema, load_response_schema
from kio.schema.types import TopicName

from keylane.config.node import LaneRule, ProxyConfig
from keylane.errors import TopicNotReady
from keylane.journal.owned import PreparedLock
from keylane.keyrange.key_split import PartitionSplit
from keylane.offsets.records.journal import StateKey
from keylane.offsets.state import OffsetState
from keylane.proxy.apis import ROUTES, Route, route_of
from keylane.proxy.apis.shared.context import Context, Shared
from keylane.proxy.apis.shared.relay import Handler
from keylane.proxy.apis.shared.request import Operation, Request
from keylane.proxy.apis.shared.rights import BrokerTopic
from keylane.proxy.commits.layouts import Layouts
from keylane.proxy.groups.patterns import find_matches
from keylane.proxy.lanes.fetch_request import LaneAnswer, LaneFetchRequest
from keylane.proxy.net.backlog import Backlog
from keylane.proxy.net.framing import Frame
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.runtime.stats import ProxyStats
from keylane.proxy.runtime.turns import Turns
from keylane.proxy.share.groups import OrderedGroups
from keylane.proxy.share.kit import ShareKit
from keylane.proxy.topics.registry import TopicRegistry
from keylane.proxy.topics.switches import SwitchBoard
from keylane.proxy.topics.view import View
from keylane.wire.header import (
    read_request_header,
    response_body_position,
    write_request,
)
from keylane.wire.messages import read_request, read_response, write_message
from tests.reference.response_frame import write_response
from tests.transcript.differences import check as check  # noqa: PLC0414 - tests take it from here
from tests.transcript.entities import Values, build, plain
from tests.transcript.fake_groups import FakeGroups
from tests.transcript.fake_loads import FakeLoads

ORDERS, PLAIN, SHOP = (uuid.UUID(int=number) for number in (0xA1, 0xB2, 0xC3))
CORRELATION_ID = 77
Place = tuple[str, int]
Result = TypeVar("Result")


def versions(api_key: int) -> range:
    """Every version of an API that is served."""
    return range(ROUTES[api_key].version_min, ROUTES[api_key].version_max + 1)


@dataclass(slots=True, kw_only=True)
class Step:
    """One request to the broker, and its answer."""

    api_key: int
    wants: Values | bytes | None
    """What the request must hold, other fields may be anything; bytes: exactly this body."""
    answer: Values | bytes | None
    """The answer's fields, or its body; None: it has none."""
    version: int | None = None
    """None: any."""


@dataclass(slots=True, kw_only=True)
class World:
    """What the fake context serves from; tests change it."""

    steps: deque[Step] = field(default_factory=deque)
    fetched: list[LaneFetchRequest] = field(default_factory=list)
    retired: list[PartitionSplit] = field(default_factory=list)
    """Splits in whose place others are."""
    lane_answers: deque[list[LaneAnswer]] = field(default_factory=deque)
    log_ends: dict[Place, tuple[int, int]] = field(default_factory=dict)
    denied: set[str | tuple[str, Operation]] = field(default_factory=set)
    """Topics that the client has no right to, or not for one operation."""
    groups_denied: set[str | tuple[str, Operation]] = field(default_factory=set)
    """Groups that the client has no right to, or not for one operation."""
    compared: list[str] = field(default_factory=list)
    """Patterns that were compared with topics."""
    are_patterns_busy: bool = False
    groups_too_many: set[str] = field(default_factory=set)
    """Groups that the client may not begin."""
    unlistened: set[int] = field(default_factory=set)
    """Brokers for which keylane has no listener."""
    brokers: list[int] = field(default_factory=list)
    unready: dict[str, int] = field(default_factory=dict)
    """Topics that the broker does not know yet, with its code."""
    hidden: set[str | uuid.UUID] = field(default_factory=set)
    """Topics that the broker does not show to the client."""
    unknown: dict[str, tuple[uuid.UUID, int]] = field(default_factory=dict)
    """Topics that the cluster has but keylane has not met yet."""
    sent: list[Values] = field(default_factory=list)
    """What the broker was asked."""
    racks: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Of the leaders of a topic's partitions."""
    now_s: float = 1000.0
    on_pause: Callable[[], object] = lambda: None
    on_answer: Callable[[], object] = lambda: None
    """Done while a request is on its way."""
    aside: list[Callable[[], Coroutine[Any, Any, None]]] = field(default_factory=list)
    """What is to be done beside the requests; tests run it."""
    answer_tags: bytes = b""
    """Tagged fields in the headers of the broker's answers, instead of none."""
    may_alter_cluster: bool = True
    """Of the client's principal; a broker without an authorizer grants it to every principal."""
    wait_s: float = 0.0
    """How far each answer of the broker moves the clock."""


class FakeTurns(Turns):
    """All is done at once."""

    def __init__(self, context: FakeContext) -> None:
        self.context = context

    async def pause(self, seconds: float) -> None:
        self.context.events.append("pause")
        self.context.world.now_s += seconds
        self.context.world.on_pause()

    async def in_thread(self, function: Callable[..., Result], *args: object) -> Result:
        return function(*args)

    async def in_turn(self, function: Callable[..., Result], *args: object) -> Result:
        self.context.events.append("in turn")
        return function(*args)


class FakeContext(Context):
    """Is its own connection; orders (2 partitions, 4 lanes), shop (1 partition), plain (3)."""

    def __init__(self, *rules: LaneRule, **config: Any) -> None:
        self.world = World()
        self.session_id, self.address = "s1", "10.0.0.1"
        self.principal: str | None = "User:alice"
        self.backlog = Backlog()
        rules = rules or (LaneRule(topic="orders", lanes=4),)
        made = ProxyConfig(bootstrap="kafka:9092", lanes=rules, **config)
        registry = TopicRegistry(rules, lane_name_pattern=made.lane_name_pattern)
        registry.learn("orders", ORDERS, 2)
        registry.learn("plain", PLAIN, 3)
        registry.learn("shop", SHOP, 1)
        groups = FakeGroups(Layouts(made, registry), self.now_s)
        self.events = groups.events
        parts: dict[str, Any] = {
            "cluster": SimpleNamespace(registry=registry, leaders={}),
            "fetcher": SimpleNamespace(retire=self.world.retired.append),
            "groups": groups,
            "loads": FakeLoads(),
            "admission": None,
            "ordered": OrderedGroups(cast("ShareKit", None), ()),
            "turns": FakeTurns(self),
        }
        super().__init__(
            self,
            Shared(
                config=made,
                stats=ProxyStats(),
                switches=SwitchBoard(made),
                clock=self.now_s,
                **parts,
            ),
        )
        self.groups: FakeGroups = groups
        self.loads: FakeLoads = parts["loads"]
        self._hidden = self.world.hidden

    def now_s(self) -> float:
        return self.world.now_s

    # The script.
    def expect(
        self,
        api_key: int,
        wants: Values | bytes | None,
        answer: Values | bytes | None,
        *,
        version: int | None = None,
    ) -> None:
        """Add a step."""
        step = Step(api_key=api_key, wants=wants, answer=answer, version=version)
        self.world.steps.append(step)

    def finish(self) -> None:
        """Fail when the script was not played to its end."""
        assert not self.world.steps, f"the broker was never asked {list(self.world.steps)}"

    def answer_frame(self, frame: bytes) -> bytes:
        """Play the next step."""
        assert struct.unpack_from(">i", frame)[0] == len(frame) - 4, "the frame's size is right"
        header = read_request_header(frame, 4)
        name = ROUTES[header.api_key].name
        self.events.append(f"send {name}")
        body = frame[header.body_position :]
        assert self.world.steps, f"nothing more was expected, but came {name}: {_shown(frame)}"
        self.world.sent.append(_shown(frame))
        step = self.world.steps.popleft()
        assert step.api_key == header.api_key, (
            f"{ROUTES[step.api_key].name} was expected, but came {name}: {_shown(frame)}"
        )
        assert step.version in (None, header.api_version)
        if isinstance(step.wants, bytes):
            assert body == step.wants
        elif step.wants is not None:
            check(step.wants, _shown(frame))
        if step.answer is None:
            return b""
        answer = step.answer
        if not isinstance(answer, bytes):
            schema = load_response_schema(header.api_key, header.api_version)
            answer = write_message(build(schema, answer))
        self.world.now_s += self.world.wait_s
        self.world.on_answer()
        joined = b"".join(
            write_response(header.api_key, header.api_version, header.correlation_id, [answer])
        )
        if not self.world.answer_tags:
            return joined
        tagged = joined[4:8] + self.world.answer_tags + answer
        return struct.pack(">i", len(tagged)) + tagged

    # What handlers call.
    def send(self, frame: Buffers) -> Awaitable[Frame]:
        answered: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        answered.set_result(self.answer_frame(b"".join(frame)))
        return answered

    def aside(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.world.aside.append(work)

    def send_unanswered(self, frame: Buffers) -> None:
        assert self.answer_frame(b"".join(frame)) == b"", "this request has no answer"

    async def ask(self, entity: Any) -> Any:
        api_key, version = int(entity.__api_key__), int(entity.__version__)
        frame = self.answer_frame(write_request(api_key, version, 0, None, write_message(entity)))
        start = 4 + response_body_position(api_key, version)
        return read_response(api_key, version, memoryview(frame)[start:])

    async def caught_up(self) -> None:
        pass  # the script answers at once

    async def others_done(self) -> None:
        self.events.append("others done")

    def note_login(self, *, is_over: bool | None) -> None:
        self.events.append({True: "login", False: "on the way", None: "token taken"}[is_over])

    def note_principal(self, principal: str) -> None:
        self.events.append(f"principal {principal}")

    def may_begin_group(self, group: str) -> bool:
        return group not in self.world.groups_too_many

    def release(self) -> None:
        self.events.append("release")

    def address_of(self, node_id: int) -> tuple[str, int] | None:
        unlistened = node_id in self.world.unlistened
        return None if unlistened else ("lane.example", 20_000 + node_id)

    async def learn_brokers(self, entries: Any) -> None:
        for entry in entries:
            self.world.brokers.append(
                int(getattr(entry, "node_id", getattr(entry, "broker_id", -1)))
            )

    def read_racks(self, view: View) -> tuple[frozenset[str], ...]:
        return tuple(frozenset({rack}) for rack in self.world.racks.get(view.topic, ()))

    def learn_topic(self, entry: Any) -> None:
        self.registry.learn(entry.name, entry.topic_id, len(entry.partitions))

    async def find_view(self, name: str) -> View | None:
        found = self.registry.rule_of(name)
        if found is not None and found[0] in self.world.unready:
            code = self.world.unready[found[0]]
            raise TopicNotReady(f"topic {name} is not ready", topic_error_code=code)
        return await super().find_view(name)

    async def _ask_topic(
        self, *, name: TopicName | None = None, topic_id: uuid.UUID | None = None
    ) -> bool:
        learnt = self.world.unknown.pop(str(name), None)
        if learnt is not None:
            self.registry.learn(str(name), *learnt)
        return learnt is not None

    async def fetch_error(self, view: View) -> int:
        return await self.right_error(view, Operation.READ)

    async def right_error(self, view: BrokerTopic, operation: Operation) -> int:
        denied = self.world.denied
        return 29 if view.topic in denied or (view.topic, operation) in denied else 0

    async def group_error(self, group: str, operation: Operation) -> int:
        denied = self.world.groups_denied
        return 30 if group in denied or (group, operation) in denied else 0

    def held(self, lock: PreparedLock) -> AbstractAsyncContextManager[None]:
        return lock

    async def match_pattern(self, pattern: str, topics: tuple[str, ...]) -> tuple[str, ...] | None:
        self.world.compared.append(pattern)
        if self.world.are_patterns_busy:
            return None
        return find_matches(pattern, topics)

    async def may_alter_cluster(self) -> bool:
        self.events.append("may alter the cluster")
        return self.world.may_alter_cluster

    async def name_of_id(self, topic_id: uuid.UUID) -> str | None:
        return self.registry.name_of_id(topic_id)

    async def fetch_lanes(self, request: LaneFetchRequest) -> list[LaneAnswer]:
        self.events.append("fetch lanes")
        self.world.fetched.append(request)
        answers = self.world.lane_answers.popleft()
        assert len(answers) == len(request.lanes)
        return answers

    def log_end(self, view: View, partition: int, isolation_level: int) -> tuple[int, int] | None:
        return self.world.log_ends.get((view.topic, partition))

    # What tests call.
    def lanes(self, name: str) -> View:
        """The view of a name that has one."""
        view = self.registry.view(name)
        assert view is not None
        return view

    def state(self, group: str, name: str, partition: int) -> OffsetState:
        """The state that a group has."""
        state = self.groups.table.get(StateKey(group, self.lanes(name).topic_id, partition))
        assert state is not None
        return state


def make_request(
    api_key: int, version: int, values: Values | bytes, client_id: str | None = "client"
) -> Request:
    """A client's request, as bytes and back."""
    body = values
    if not isinstance(body, bytes):
        body = write_message(build(load_request_schema(api_key, version), body))
    frame = write_request(api_key, version, CORRELATION_ID, client_id, body)
    return Request(read_request_header(memoryview(frame)[4:]), frame)


async def serve(context: FakeContext, request: Request) -> bytes:
    """The whole answer frame of a request that is served, or relayed; b"" for none."""
    route = route_of(request)
    handler = chosen_handler(context, route, request)
    if handler is None:
        frame = await context.send((request.frame,))
        answer = route.patch(request, frame, context) if route.patch else (frame,)
    else:
        answer = await handler(request, context)
    context.finish()
    joined = b"".join(answer)
    if joined:
        size, correlation_id = struct.unpack_from(">ii", joined)
        assert (size, correlation_id) == (len(joined) - 4, CORRELATION_ID)
    return joined


async def call(
    context: FakeContext,
    api_key: int,
    version: int,
    values: Values,
    client_id: str | None = "client",
) -> Values:
    """Serve a request; the answer as plain values."""
    request = make_request(api_key, version, values, client_id)
    return plain(request.decode_answer(await serve(context, request)))


def is_relayed(context: FakeContext, request: Request) -> bool:
    """Whether the session would not even call a handler."""
    return chosen_handler(context, route_of(request), request) is None


def chosen_handler(context: Any, route: Route, request: Request) -> Handler | None:
    """The handler of a request; one that is relayed is noted, as by the session."""
    handler = route.handler_of(request, context)
    if handler is None and route.note is not None:
        route.note(request, context)
    return handler


def _shown(frame: bytes) -> Values:
    header = read_request_header(frame, 4)
    body = memoryview(frame)[header.body_position :]
    return plain(read_request(header.api_key, header.api_version, body))
