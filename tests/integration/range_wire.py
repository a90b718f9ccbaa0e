"""Offset ranges and key ranges by hand: commits and fetches of offsets over one connection.

Source: docs/protocol-extensions.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, Self

from kio.index import load_request_schema

from keylane.keyrange.space import KeyRange
from keylane.wire.entities import unknown_tags_of, with_unknown_tags
from keylane.wire.extensions import (
    DRAFT_ERROR,
    KEY_RANGES,
    OFFSET_RANGES,
    PARTITION_KEY_RANGES,
    STABLE_OFFSET,
    read_extensions,
    read_int16,
    read_int64,
    read_pairs,
    write_key_ranges,
    write_pairs,
    write_partition_key_ranges,
)
from keylane.wire.primitives import write_tags
from tests.integration.keylane_process import PATIENCE
from tests.integration.share_wire import PlainWire
from tests.transcript.entities import build

COMMIT, OFFSET_FETCH, API_VERSIONS = 8, 9, 18
VERSION: Final = 9
WAIT_S: Final = 20.0 * PATIENCE
LOADING: Final = (14, 15, 16)
"""Codes of a coordinator that is not ready yet."""

Pairs = Sequence[tuple[int, int]]


class Answer(NamedTuple):
    """What a commit was answered."""

    code: int
    draft_error: int
    """0: none."""
    stable_offset: int | None


class Standing(NamedTuple):
    """What a group has of a partition, or of some of its keys."""

    offset: int
    ranges: tuple[tuple[int, int], ...]
    stable_offset: int | None


class RangeWire:
    """A consumer without a group's protocol: it commits under a group id."""

    def __init__(self, bootstrap: str) -> None:
        self._wire = PlainWire(bootstrap)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._wire.close()

    def features(self) -> dict[str, tuple[int, int]]:
        """Names of supported features, with their lowest and highest version."""
        ask = build(load_request_schema(API_VERSIONS, 3), {"client_software_name": "ranges"})
        answer = self._wire.ask(ask)
        return {
            str(each.name): (int(each.min_version), int(each.max_version))
            for each in answer.supported_features
        }

    def commit(
        self,
        group: str,
        topic: str,
        index: int,
        ranges: Pairs = (),
        *,
        offset: int = -1,
        key_ranges: Iterable[KeyRange] | None = None,
        version: int = VERSION,
    ) -> Answer:
        """Commit offset ranges, asked again while the coordinator is not ready."""
        fields: dict[int, bytes] = {}
        if ranges:
            fields[OFFSET_RANGES] = write_pairs(ranges)
        if key_ranges is not None:
            fields[KEY_RANGES] = write_key_ranges(key_ranges)
        entry = {"partition_index": index, "committed_offset": offset, "committed_metadata": "m"}
        request = build(
            load_request_schema(COMMIT, version),
            {
                "group_id": group,
                "generation_id_or_member_epoch": -1,
                "topics": [{"name": topic, "partitions": [entry]}],
            },
        )
        (asked,) = request.topics
        (partition,) = asked.partitions
        tagged = with_unknown_tags(partition, write_tags(fields))
        request = replace(request, topics=(replace(asked, partitions=(tagged,)),))
        deadline_s = time.monotonic() + WAIT_S
        while True:
            answer = self._wire.ask(request)
            (found,) = answer.topics[0].partitions
            if int(found.error_code) not in LOADING or time.monotonic() > deadline_s:
                break
            time.sleep(0.05)  # the broker has no event for it
        own, rest = read_extensions(unknown_tags_of(found))
        assert rest == b"\x00"
        return Answer(
            int(found.error_code),
            read_int16(own[DRAFT_ERROR]) if DRAFT_ERROR in own else 0,
            read_int64(own[STABLE_OFFSET]) if STABLE_OFFSET in own else None,
        )

    def standing(
        self, group: str, topic: str, index: int, key_ranges: Iterable[KeyRange] | None = None
    ) -> Standing:
        """Return what the group has of an index, or of these keys of the broker's partition."""
        keys: Mapping[int, Iterable[KeyRange]] = {} if key_ranges is None else {index: key_ranges}
        request = build(
            load_request_schema(OFFSET_FETCH, 8),
            {
                "groups": [
                    {"group_id": group, "topics": [{"name": topic, "partition_indexes": [index]}]}
                ],
                "require_stable": True,
            },
        )
        (of_group,) = request.groups
        (asked,) = of_group.topics
        section = write_tags({PARTITION_KEY_RANGES: write_partition_key_ranges(keys)})
        asked = with_unknown_tags(asked, section)
        request = replace(request, groups=(replace(of_group, topics=(asked,)),))
        deadline_s = time.monotonic() + WAIT_S
        while int((answer := self._wire.ask(request)).groups[0].error_code) in LOADING:
            assert time.monotonic() < deadline_s, "the coordinator still loads"
            time.sleep(0.05)  # the broker has no event for it
        assert int(answer.groups[0].error_code) == 0
        (found,) = answer.groups[0].topics[0].partitions
        assert int(found.error_code) == 0, found
        own, _ = read_extensions(unknown_tags_of(found))
        return Standing(
            int(found.committed_offset),
            read_pairs(own[OFFSET_RANGES]) if OFFSET_RANGES in own else (),
            read_int64(own[STABLE_OFFSET]) if STABLE_OFFSET in own else None,
        )
