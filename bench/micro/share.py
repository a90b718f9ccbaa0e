"""Ordered share groups: what a poll of a member costs from its frame to its answer.

    python -m bench.micro.share [--records 10000]

The broker is an object of this process that speaks the protocol, and connections are left out: of
keylane's own work all is there, its side of the broker too. CPU time; what the members and the
broker take is taken off, by the median of what a call of theirs takes: to ask for CPU time at each
would take longer than keylane does.
Memory is what keylane holds per record of 100 B, beside the record's own bytes and with them.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
import tracemalloc
import uuid
from types import SimpleNamespace
from typing import Any, Final

from kio.index import load_response_schema

from bench.micro.kernel import make_block
from keylane.config.share_rules import ShareRule
from keylane.kernel.warmup import warm_up
from keylane.proxy.apis.share.fetch import look_share_fetch
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.share.groups import OrderedGroups
from keylane.proxy.share.kit import ShareKit
from keylane.share.dispatcher import Dispatcher
from keylane.wire.header import ApiKey, read_request_header, write_request
from keylane.wire.parts import KeyedTopic
from keylane.wire.share import (
    ACCEPT,
    FINAL_EPOCH,
    AckBatch,
    Acquired,
    ShareAnswer,
    ShareFetchRequest,
    SharePartition,
    ShareResponse,
    read_share_acknowledge_request,
    read_share_fetch_request,
    read_share_fetch_response,
    write_share_acknowledge_response,
    write_share_fetch_request,
    write_share_fetch_response,
)
from tests.transcript.entities import build
from tests.transcript.fake import PLAIN, FakeContext

RECORD_BYTES: Final = 100
BATCH_RECORDS: Final = 100
MEMBERS: Final = 8
POLLS: Final = (1, 10, 100)
VERSION: Final = 2
NODE: Final = 1
RECORD_LIMIT: Final = 1


class Spans:
    """Seconds of the same work, over and over."""

    def __init__(self) -> None:
        self._spans: list[float] = []
        self._began_s = 0.0

    def begin(self) -> None:
        """Begin one."""
        self._began_s = time.perf_counter()

    def end(self) -> None:
        """End it; no other one has begun in between."""
        self._spans.append(time.perf_counter() - self._began_s)

    def clear(self) -> None:
        """Forget all."""
        self._spans.clear()

    @property
    def total_s(self) -> float:
        """All of them, as if each had taken the median."""
        return len(self._spans) * statistics.median(self._spans) if self._spans else 0.0


class Link:
    """A broker's side of keylane's session: whole batches, one after the other."""

    def __init__(self, records: int) -> None:
        self.version_max = {ApiKey.SHARE_FETCH: 2, ApiKey.SHARE_ACKNOWLEDGE: 2}
        self.fetches, self.acknowledgements = Spans(), Spans()
        self.requests = 0
        self._batches = records // BATCH_RECORDS
        self._wire = bytes(make_block("none", RECORD_BYTES, BATCH_RECORDS, self._batches))
        self._size = len(self._wire) // self._batches
        self._next = 0

    async def request_raw(self, key: int, _version: int, body: bytes, **_: Any) -> memoryview:
        """Answer at once."""
        await asyncio.sleep(0)
        self.requests += 1
        spans = self.fetches if key == ApiKey.SHARE_FETCH else self.acknowledgements
        spans.begin()
        answer = self._fetch(body) if key == ApiKey.SHARE_FETCH else self._acknowledge(body)
        spans.end()
        return memoryview(answer)

    async def request_in_room(self, key: int, version: int, body: bytes, **_: Any) -> memoryview:
        """Do as `request_raw`."""
        return await self.request_raw(key, version, body)

    async def request(self, _entity: Any) -> Any:
        """Return the log end."""
        entry = SimpleNamespace(error_code=0, offset=self._batches * BATCH_RECORDS)
        return SimpleNamespace(topics=(SimpleNamespace(partitions=(entry,)),))

    def close(self) -> None:
        """Nothing to do."""

    def _fetch(self, body: bytes) -> bytes:
        wanted = read_share_fetch_request(body, 0, VERSION)
        first, count = self._next, -(-wanted.max_records // BATCH_RECORDS)
        self._next = min(self._batches, first + count)
        acquired: tuple[Acquired, ...] = ()
        if first < self._next:
            ends = first * BATCH_RECORDS, self._next * BATCH_RECORDS - 1
            acquired = (Acquired(*ends, 1),)
        records = self._wire[first * self._size : self._next * self._size]
        answer = ShareAnswer(0, records=(records,), acquired=acquired)
        return b"".join(write_share_fetch_response(self._response(answer)))

    def _acknowledge(self, body: bytes) -> bytes:
        read_share_acknowledge_request(body, 0, VERSION)
        response = self._response(ShareAnswer(0))
        return b"".join(write_share_acknowledge_response(response, VERSION))

    def _response(self, answer: ShareAnswer) -> ShareResponse:
        topic = KeyedTopic(None, PLAIN.bytes, (answer,))
        return ShareResponse(lock_ms=30_000, topics=(topic,))


class Members:
    """Members of one group, each on a connection."""

    def __init__(self, link: Link, poll: int) -> None:
        self._poll = poll
        context = FakeContext()
        self._fetcher_kit = make_reader_kit()
        kit = ShareKit(
            cluster=make_cluster(link),
            reader_kit=self._fetcher_kit,
            held_bytes=make_held_bytes(),
            letters=SimpleNamespace(),  # type: ignore[arg-type]
            clock=time.monotonic,
            is_here=lambda _: True,
        )
        self.groups = OrderedGroups(kit, (ShareRule(group="g"),))
        self.context = context
        context.ordered = self.groups
        context.broker_id = NODE
        context.clock = time.monotonic
        self.done = 0
        self.asking, self.taking = Spans(), Spans()

    async def work(self, number: int, until: int) -> None:
        """Poll, and acknowledge with the next poll."""
        acks: tuple[AckBatch, ...] = ()
        epoch = 0
        while epoch >= 0:
            if self.done >= until:
                epoch = FINAL_EPOCH
            self.asking.begin()
            entry = SharePartition(0, acks)
            wanted = ShareFetchRequest(
                group="g", member_id=f"m{number}", epoch=epoch, max_wait_ms=100, min_bytes=1,
                max_records=self._poll, batch_size=self._poll, acquire_mode=RECORD_LIMIT,
                topics=(KeyedTopic(None, PLAIN.bytes, (entry,)),) if acks or not epoch else (),
            )  # fmt: skip
            body = write_share_fetch_request(wanted, VERSION)
            frame = write_request(ApiKey.SHARE_FETCH, VERSION, epoch, "member", body)
            self.asking.end()
            request = Request(read_request_header(memoryview(frame)[4:]), frame)
            handler = look_share_fetch(request, self.context)
            assert handler is not None
            answer = b"".join(await handler(request, self.context))
            self.taking.begin()
            response = read_share_fetch_response(answer, request.answer_position(answer))
            assert response.error_code == 0, response
            codes = {
                (p.error_code, p.ack_error_code) for t in response.topics for p in t.partitions
            }
            assert codes <= {(0, 0)}, codes
            acquired = [one for t in response.topics for p in t.partitions for one in p.acquired]
            acks = tuple(AckBatch(a.first, a.last, bytes((ACCEPT,))) for a in acquired)
            self.done += sum(a.last - a.first + 1 for a in acquired)
            self.taking.end()
            epoch = epoch + 1 if epoch >= 0 else FINAL_EPOCH - 1


def make_reader_kit() -> Any:
    """The parts of a reader that an intake uses."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    from keylane.proxy.lanes.read_memory import Gates  # noqa: PLC0415

    return SimpleNamespace(
        gates=Gates.of(100 << 20, 100 << 20), pool=ThreadPoolExecutor(1), read_bytes_max=4 << 20,
        plain_bytes_max=8 << 20, bound_of=lambda *_: 0,
    )  # fmt: skip


def make_held_bytes() -> Any:
    """A bound that is never met."""
    from keylane.cache.slice_cache import SliceCache  # noqa: PLC0415
    from keylane.proxy.share.held_bytes import HeldBytes  # noqa: PLC0415

    return HeldBytes(SliceCache(bytes_max=1 << 30))


def make_cluster(link: Link) -> Any:
    """A cluster of one broker with a group that nothing was written of."""

    async def link_to_leader(_topic: str, _id: uuid.UUID, _partition: int) -> Any:
        return link, NODE, 0

    async def ask_coordinator(_group: str, _entity: Any) -> Any:
        partition = {"partition_index": 0, "start_offset": 0, "lag": 0, "leader_epoch": 0}
        topic = {"topic_name": "plain", "partitions": [partition]}
        group = {"group_id": "g", "topics": [topic]}
        return build(
            load_response_schema(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1), {"groups": [group]}
        )

    async def request(_entity: Any) -> Any:
        configs = [
            {"name": "share.delivery.count.limit", "value": "5"},
            {"name": "share.renew.acknowledge.enable", "value": "true"},
        ]
        result = {"resource_type": 32, "resource_name": "g", "configs": configs}
        return build(load_response_schema(ApiKey.DESCRIBE_CONFIGS, 4), {"results": [result]})

    return SimpleNamespace(
        link_to_leader=link_to_leader,
        ask_coordinator=ask_coordinator,
        request=request,
        leaders={},
        seek_leader=lambda *_: None,
    )


async def measure(records: int, poll: int) -> None:
    """Print the CPU time per record and per poll."""
    link = Link(records)
    members = Members(link, poll)
    first = records // 10
    await asyncio.gather(*(members.work(number, first) for number in range(MEMBERS)))
    beside = link.fetches, link.acknowledgements, members.asking, members.taking
    done, link.requests = members.done, 0
    for spans in beside:
        spans.clear()
    # Sessions of the warm-up have ended with their members: these are others.
    polls = [members.work(MEMBERS + number, records - first) for number in range(MEMBERS)]
    began_s = time.thread_time()
    await asyncio.gather(*polls)
    spent_s = time.thread_time() - began_s - sum(spans.total_s for spans in beside)
    count = members.done - done
    print(
        f"poll of {poll:3}: {1e6 * spent_s / count:6.1f} us per record, "
        f"{1e6 * spent_s / count * poll:6.0f} us per poll, {link.requests} requests upstream "
        f"for {count} records",
        flush=True,
    )


def measure_memory(records: int) -> None:
    """Print the bytes per held record, beside its block."""
    dispatcher = Dispatcher()
    offsets, points = list(range(records)), [number % 1000 for number in range(records)]
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    dispatcher.acquire(offsets, points, 1, 0.0)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"held record: {(after - before) / records:.0f} B beside its block")


def main() -> None:
    """Run all."""
    parser = argparse.ArgumentParser(description="measure polls of ordered share groups")
    parser.add_argument("--records", type=int, default=10_000)
    options = parser.parse_args()
    warm_up()
    for poll in POLLS:
        asyncio.run(measure(options.records, poll))
    measure_memory(2000)


if __name__ == "__main__":
    main()
