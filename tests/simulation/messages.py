"""Messages of brokers and clients in the simulation: the same one is written and read once.

Most messages are the same again and again: heartbeats, metadata, fetches that wait. Values are
compared by their pickles: equal pickles are equal values.
"""

from __future__ import annotations

import pickle
from functools import cache, lru_cache
from typing import Any

from kio.index import load_request_schema, load_response_schema

from keylane.wire.fetch import FetchRequest, read_fetch_request
from keylane.wire.messages import read_request, read_response, write_message
from tests.transcript.entities import Values, build

REMEMBERED_MAX = 4096
request_schema, response_schema = cache(load_request_schema), cache(load_response_schema)


def write_question(key: int, version: int, values: Values) -> bytes:
    """A request's body."""
    return _write(request_schema(key, version), pickle.dumps(values))


def write_answer(key: int, version: int, values: Values) -> bytes:
    """A response's body."""
    return _write(response_schema(key, version), pickle.dumps(values))


@lru_cache(REMEMBERED_MAX)
def _write(schema: Any, values: bytes) -> bytes:
    return write_message(build(schema, pickle.loads(values)))  # noqa: S301 - of our own making


@lru_cache(REMEMBERED_MAX)
def read_question(key: int, version: int, body: bytes) -> Any:
    """A request as a kio entity."""
    return read_request(key, version, memoryview(body))


@lru_cache(REMEMBERED_MAX)
def read_fetch(version: int, body: bytes) -> FetchRequest:
    """A Fetch request."""
    return read_fetch_request(body, 0, version)


@lru_cache(REMEMBERED_MAX)
def read_answer(key: int, version: int, body: bytes) -> Any:
    """A response as a kio entity."""
    return read_response(key, version, memoryview(body))
