"""Topics of an ordered group that no rule orders: a second session of the member, at its broker.

Source: KIP-932, "Share sessions"; docs/decisions/048.

Epochs of the two sessions differ: the broker's begins with the first request that names such a
topic, and goes on with each request that is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from keylane.errors import FrameInvalid, UpstreamLost
from keylane.proxy.apis.share.node_members import node_member_id
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.places import show_endpoints
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.share.groups import Collector, HandedOut
from keylane.share.acks import check_batches
from keylane.share.sessions import ShareSession, next_epoch
from keylane.wire.header import ApiKey
from keylane.wire.share import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    ShareResponse,
    ShareTopic,
    ShareTopicAnswer,
    read_share_acknowledge_response,
    read_share_fetch_response,
    write_share_acknowledge_request,
    write_share_fetch_request,
)

TURN_MS: Final = 100
"""Turns in which a request waits for both sides: neither can wake the other's long poll."""


class PlainPart:
    """The broker's part of a request, and its answer."""

    def __init__(
        self,
        request: Request,
        wanted: ShareFetchRequest | ShareAcknowledgeRequest,
        topics: Sequence[ShareTopic],
        session: ShareSession,
        context: Context,
    ) -> None:
        self._request, self._wanted, self._session = request, wanted, session
        self._context, self._unsent = context, tuple(topics)
        self._is_sent = False
        self.topics: tuple[ShareTopicAnswer, ...] = ()
        self.throttle_ms = self.error_code = 0
        self.error_message: str | None = None

    @property
    def is_needed(self) -> bool:
        """Return whether the broker has a part in the member's session."""
        return bool(self._unsent) or self._session.upstream_epoch != INITIAL_EPOCH

    async def ask_in_turns(
        self, wait_ms: int, records_max: int, collector: Collector | None
    ) -> list[HandedOut]:
        """Ask until the broker, or the ordered side, has records, or the time is over."""
        deadline_s = self._context.clock() + wait_ms / 1000
        while True:
            left_ms = max(0, int((deadline_s - self._context.clock()) * 1000))
            await self.ask(wait_ms=min(left_ms, TURN_MS), records_max=records_max)
            taken = collector.collect() if collector is not None and not self._has_news else []
            if taken or self._has_news or left_ms == 0:
                return taken

    @property
    def _has_news(self) -> bool:
        return self.error_code != 0 or any(
            answer.acquired or answer.error_code
            for topic in self.topics
            for answer in topic.partitions
        )

    async def ask(self, *, wait_ms: int, records_max: int) -> None:
        """Send the part once; only the first time has what the member asks and acknowledges."""
        if not self.is_needed:
            return
        wanted = self._wanted
        is_final = wanted.epoch == FINAL_EPOCH
        epoch = FINAL_EPOCH if is_final else self._session.upstream_epoch
        topics, self._unsent = self._unsent, ()
        member_id = node_member_id(wanted.member_id, self._context.placement.number)
        upstream = replace(wanted, epoch=epoch, member_id=member_id, topics=topics)
        if isinstance(upstream, ShareFetchRequest):
            forgotten = () if self._is_sent else upstream.forgotten
            upstream = replace(
                upstream, max_wait_ms=wait_ms, max_records=records_max, forgotten=forgotten
            )
        self._is_sent = True
        self._count_acks(topics)
        response = await self._exchange(upstream)
        self.throttle_ms = max(self.throttle_ms, response.throttle_ms)
        self.error_code, self.error_message = response.error_code, response.error_message
        self.topics = (*self.topics, *response.topics)
        if not response.error_code:
            self._session.upstream_epoch = INITIAL_EPOCH if is_final else next_epoch(epoch)

    def _count_acks(self, topics: Sequence[ShareTopic]) -> None:
        for topic in topics:
            for entry in topic.partitions:
                if not check_batches(entry.acks):
                    self._context.stats.count_share_acks(entry.acks)

    async def _exchange(
        self, upstream: ShareFetchRequest | ShareAcknowledgeRequest
    ) -> ShareResponse:
        request, version = self._request, self._request.api_version
        if isinstance(upstream, ShareFetchRequest):
            body = write_share_fetch_request(upstream, version)
        else:
            body = write_share_acknowledge_request(upstream, version)
        frame = await self._context.send((request.with_body(body),))
        answer = request.answer_body(frame)
        shown = show_endpoints(request, answer, self._context)
        answer = answer if shown is None else memoryview(b"".join(shown))
        try:
            if request.api_key == ApiKey.SHARE_FETCH:
                return read_share_fetch_response(answer, 0)
            return read_share_acknowledge_response(answer, 0, version)
        except FrameInvalid as error:
            raise UpstreamLost(f"answer to a share request: {error}") from None
