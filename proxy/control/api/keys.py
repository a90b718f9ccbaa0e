"""Topics and places of keys over HTTP.

Source: docs/control-api.md. Keys are contents of records: none is logged, or shown in an error.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from functools import partial
from http import HTTPStatus
from typing import Final
from urllib.parse import unquote_to_bytes

from aiohttp import web

from keylane.proxy.control.api.models import TOPIC_PATTERN
from keylane.proxy.control.api.operations import READ, ControlOperation
from keylane.proxy.control.api.problems import Problem
from keylane.proxy.control.api.requests import read_name
from keylane.proxy.control.topics import KeyReport, TopicDescriber, TopicsReport

LEGAL_NAME: Final = re.compile(TOPIC_PATTERN)


class KeyHandlers:
    """Handlers of `/topics`."""

    def __init__(self, topics: TopicDescriber) -> None:
        self._topics = topics

    def operations(self) -> list[ControlOperation]:
        """Return the operations, which change nothing."""
        get = partial(ControlOperation, method="GET")
        return [
            get(
                path="/topics", handler=self._get_all, answer=TopicsReport,
                summary="Topics with lanes, and records that break the promise of their hash",
            ),
            get(
                path="/topics/{topic}/keys/{key}", handler=self._get_key, answer=KeyReport,
                summary="The partition and lane of a key, and the member of each group there",
                problems=(*READ, HTTPStatus.CONFLICT, HTTPStatus.SERVICE_UNAVAILABLE),
            ),
        ]  # fmt: skip

    async def _get_all(self, _request: web.Request) -> web.Response:
        return web.json_response(asdict(self._topics.topics()))

    async def _get_key(self, request: web.Request) -> web.Response:
        topic = read_name(request, "topic", LEGAL_NAME)
        found = await self._topics.place_of(topic, read_key(request))
        if found is None:
            raise Problem(HTTPStatus.NOT_FOUND, f"there is no topic {topic}", field="topic")
        return web.json_response(asdict(found))


def read_key(request: web.Request) -> bytes:
    """Return the bytes of the key in the path, percent-encoded as those of any other key.

    From the path as it came: aiohttp leaves alone what is no UTF-8, and it would pass for text.
    """
    return unquote_to_bytes(request.raw_path.partition("?")[0].split("/keys/", 1)[1])
