"""Handlers meet every well-formed message, and garbage: an answer, or a clean refusal.

Values are drawn at random from kio's schemas, so they make little sense; the lane topics are
mixed in. Whatever comes, a handler may only answer or raise an error of ours.
"""

from __future__ import annotations

import random
import struct
import uuid
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keylane.config.node import GroupRule
from keylane.errors import KeylaneError
from keylane.proxy.apis import ROUTES, Route
from keylane.proxy.lanes.fetch_request import LaneAnswer, LaneFetchRequest
from keylane.proxy.topics.node_values import Membership, NodeInfo
from keylane.proxy.topics.placement import Placement
from keylane.wire.header import is_flexible, read_request_header
from keylane.wire.messages import write_message
from tests.fuzz.entities import random_request, random_response
from tests.reference.response_frame import write_response
from tests.transcript.fake import ORDERS, PLAIN, FakeContext, chosen_handler, make_request

HANDLED = sorted(key for key, route in ROUTES.items() if route.handler or route.look or route.patch)
NAMES = ("orders", "plain", "orders.lanes-3", "plain.lanes-2", "unknown", "shop")


def familiar(entity: Any, rng: random.Random, ids: tuple[uuid.UUID, ...]) -> Any:
    """The entity with names, ids and small partition numbers that the context knows."""
    changes: dict[str, Any] = {}
    for one in fields(entity):
        value = getattr(entity, one.name)
        if isinstance(value, tuple) and value and is_dataclass(value[0]):
            changes[one.name] = tuple(familiar(item, rng, ids) for item in value)
        elif is_dataclass(value):
            changes[one.name] = familiar(value, rng, ids)
        elif one.name in ("name", "topic", "topic_name", "resource_name") and value is not None:
            changes[one.name] = rng.choice(NAMES)
        elif isinstance(value, uuid.UUID):
            changes[one.name] = rng.choice(ids)
        elif one.name in ("partition", "partition_index", "index"):
            changes[one.name] = rng.randrange(-1, 14)
        elif one.name in ("partitions", "partition_indexes") and isinstance(value, tuple):
            changes[one.name] = tuple(rng.randrange(-1, 14) for _ in value)
        elif one.name == "committed_offset":
            changes[one.name] = rng.randrange(-1, 1000)
        elif one.name == "group_id":
            changes[one.name] = rng.choice(("g", "h"))
    return replace(entity, **changes)


class RandomContext(FakeContext):
    """A broker that answers each request with a random message of the right kind."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(groups=(GroupRule(group="g", assignor="key-range"),))
        self._rng = rng
        self.ids = (
            ORDERS, PLAIN, uuid.UUID(int=0x99),
            self.lanes("orders.lanes-3").view_id, self.lanes("plain.lanes-2").view_id,
        )  # fmt: skip
        if rng.random() < 0.3:
            self.placement = Placement(3)
            other = NodeInfo(number=7, bootstrap=("h", 1), brokers={1: ("h", 2)})
            self.placement.update(Membership(generation_id=1, nodes=(other,), owners=(3, 7, -1)))
        if rng.random() < 0.3:
            self.world.denied.add("orders")
        if rng.random() < 0.3:
            self.world.log_ends["orders", 0] = (100, 5)
        self.groups.is_journal_down = rng.random() < 0.2

    def answer_frame(self, frame: bytes) -> bytes:
        header = read_request_header(frame, 4)
        assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
        self.world.now_s += 0.2
        entity = random_response(header.api_key, header.api_version, self._rng.getrandbits(32))
        entity = familiar(entity, self._rng, self.ids)
        body = write_message(entity)
        head = header.api_key, header.api_version, header.correlation_id
        return b"".join(write_response(*head, [body]))

    def send_unanswered(self, frame: Any) -> None:
        self.answer_frame(b"".join(frame))

    def address_of(self, node_id: int) -> tuple[str, int]:
        return "lane.example", 19_092

    async def ask_coordinator(self, group: str, entity: Any) -> Any:
        return await self.ask(entity)

    def learn_topic(self, entry: Any) -> None:
        pass  # random counts would make all lanes unknown

    async def fetch_lanes(self, request: LaneFetchRequest) -> list[LaneAnswer]:
        return [LaneAnswer(0, 9, 9, 0, None, (b"x",), 1) for _ in request.lanes]


async def handle(context: FakeContext, route: Route, version: int, body: bytes) -> bytes:
    """Return the answer, which a client of this version can read; empty: refused, or none."""
    request = make_request(route.api_key, version, body)
    try:
        handler = chosen_handler(context, route, request)
        if handler is None:
            frame = await context.send((request.frame,))
            answer = route.patch(request, frame, context) if route.patch else (frame,)
        else:
            answer = await handler(request, context)
    except KeylaneError:
        return b""
    joined = b"".join(answer)
    if joined:
        request.decode_answer(joined)
    return joined


def is_one_frame(answer: bytes) -> bool:
    return not answer or struct.unpack_from(">i", answer)[0] == len(answer) - 4


@pytest.mark.parametrize("api_key", HANDLED, ids=lambda key: ROUTES[key].name)
@settings(max_examples=100)
@given(data=st.data(), seed=st.integers(0, 2**32))
async def test_any_message_is_answered_or_refused(api_key, data, seed) -> None:
    """Random requests with known topics in them, random answers of the broker."""
    rng = random.Random(seed)
    route = ROUTES[api_key]
    version = data.draw(st.integers(route.version_min, route.version_max))
    context = RandomContext(rng)
    entity = familiar(random_request(api_key, version, seed), rng, context.ids)

    assert is_one_frame(await handle(context, route, version, write_message(entity)))


@pytest.mark.parametrize("api_key", HANDLED, ids=lambda key: ROUTES[key].name)
@settings(max_examples=100)
@given(data=st.data(), seed=st.integers(0, 2**32))
async def test_a_damaged_message_is_answered_or_refused(api_key, data, seed) -> None:
    """Bytes flipped, cut off and put in: nothing but a clean refusal, or luck."""
    rng = random.Random(seed)
    route = ROUTES[api_key]
    version = data.draw(st.integers(route.version_min, route.version_max))
    context = RandomContext(rng)
    entity = familiar(random_request(api_key, version, seed), rng, context.ids)
    body = bytearray(write_message(entity))
    for _ in range(rng.randrange(1, 4)):
        position = rng.randrange(len(body) + 1)
        match rng.randrange(3):
            case 0:
                del body[position:]
            case 1:
                body[position:position] = rng.randbytes(rng.randrange(1, 5))
            case 2 if position < len(body):
                body[position] ^= 1 << rng.randrange(8)

    assert is_one_frame(await handle(context, route, version, bytes(body)))


@pytest.mark.parametrize("api_key", sorted(ROUTES), ids=lambda key: ROUTES[key].name)
def test_headers_of_every_version_are_known(api_key) -> None:
    """A flexible version that is taken for an old one would be read from the wrong byte."""
    route = ROUTES[api_key]
    for version in range(route.version_min, route.version_max + 1):
        entity = random_request(api_key, version, 1)

        assert is_flexible(api_key, version) is type(entity).__flexible__
