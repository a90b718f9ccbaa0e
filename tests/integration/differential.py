"""The same questions to a broker, and to keylane in front of it; what differs in the answers."""

from __future__ import annotations

import select
import socket
import struct
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from keylane.config.node import split_address
from keylane.wire.extensions import FEATURE
from keylane.wire.header import ApiKey, find_response_body, write_request
from keylane.wire.messages import read_response
from tests.integration.questions import SIDES, Question

TIMEOUT_S: Final = 60.0
SILENT_S: Final = 8.0
"""Seconds that the broker may be silent; its handlers end in exceptions for some questions."""
CLOSED: Final = "closed the connection"
SILENT: Final = "gave no answer"
ADDRESSES: Final = frozenset({"host", "port"})
"""Fields with keylane's or the broker's address, which differ in every answer."""
OWN_TOPICS: Final = ("__individual_commit_offsets", "__keylane_scans", "__keylane_settings")
"""Internal through keylane, and unknown to the broker as such."""
READS: Final = frozenset(
    {1, 2, 3, 9, 10, 15, 16, 18, 23, 29, 32, 34, 35, 41, 43, 46, 48, 49, 50, 55, 60, 61, 65, 66, 69}
    | {74, 75, 77, 89, 90}
)  # fmt: skip
"""Asked in the same words on both sides, since they change nothing, or nothing more the second
time; all others on twins, whose entries a broker that keeps them in hash maps answers in another
order."""
LAST: Final = (21, 47, 92, 42, 37, 20)
"""They take away what other questions are about: asked at the end, in this order."""
VOLATILE: Final[Mapping[int, frozenset[str]]] = {
    1: frozenset({"session_id"}),  # drawn by the broker
    11: frozenset({"member_id", "leader"}),  # drawn by the broker
    19: frozenset({"topic_id"}),  # of a topic that was just made
    22: frozenset({"producer_id"}),  # counted by the broker
    35: frozenset({"total_bytes", "usable_bytes", "partition_size"}),  # the disk goes on
    55: frozenset({"high_watermark", "log_end_offset", "last_fetch_timestamp",
                   "last_caught_up_timestamp"}),  # so do the controllers
    68: frozenset({"member_id"}),  # v0: drawn by the broker
    71: frozenset({"client_instance_id"}),  # drawn by the broker
    76: frozenset({"member_id"}),
    88: frozenset({"member_id"}),
}  # fmt: skip


class Side:
    """One of the two: a connection that is opened anew when the other end has closed it."""

    def __init__(self, address: str, number: int, ids: dict[str, uuid.UUID]) -> None:
        """ids: of its topics, by marked name."""
        self.address, self.number, self.ids = address, number, ids
        self._socket: socket.socket | None = None

    def ask(
        self, api_key: int, version: int, body: bytes, *, timeout_s: float = TIMEOUT_S
    ) -> bytes | str:
        """The answer's body, or what happened instead."""
        if self._is_ended():
            self.close()
        if self._socket is None:
            self._socket = socket.create_connection(split_address(self.address), TIMEOUT_S)
        self._socket.settimeout(timeout_s)
        try:
            self._socket.sendall(write_request(api_key, version, 5, "diff", body))
            frame = self._read(struct.unpack(">i", self._read(4))[0])
        except TimeoutError:
            self.close()
            return SILENT
        except ConnectionError:
            self.close()
            return CLOSED
        return frame[find_response_body(frame, 0, api_key, version) :]

    def _is_ended(self) -> bool:
        """Return whether the other end closed it since the last answer, as an idle one."""
        if self._socket is None:
            return False
        readable, _, _ = select.select([self._socket], [], [], 0)
        try:
            return bool(readable) and not self._socket.recv(1, socket.MSG_PEEK)
        except ConnectionError:
            return True

    def close(self) -> None:
        """End the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _read(self, size: int) -> bytes:
        assert self._socket is not None
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise ConnectionError(CLOSED)
            data += part
        return data


def in_order(questions: Iterable[Question]) -> list[Question]:
    """Those that change nothing first, those that take things away last."""

    def place(question: Question) -> tuple[int, int]:
        key = question.api_key
        return (0, 0) if key in READS else (1, LAST.index(key) if key in LAST else -1)

    return sorted(questions, key=place)


def ask_both(question: Question, direct: Side, through: Side) -> tuple[Any, Any]:
    """Return each side's answer, as plain values with the same names for twins, or its error."""
    key, version = question.api_key, question.version
    twin = direct if key in READS else through
    answers: list[Any] = []
    for side, asked_as in ((direct, direct), (through, twin)):
        # Of keylane an answer is awaited as long as it takes if the broker had one.
        timeout_s = TIMEOUT_S if answers and answers[0] != SILENT else SILENT_S
        asked = question.on(asked_as.number, asked_as.ids)
        body = side.ask(key, version, asked, timeout_s=timeout_s)
        if isinstance(body, str):
            answers.append(body)
            continue
        if asked_as is not direct:
            body = body.replace(SIDES[1], SIDES[0])
            for name, own in through.ids.items():
                body = body.replace(own.bytes, direct.ids[name].bytes)
        answers.append(show(key, version, body))
    if key not in READS:
        answers = [sort_entries(answer) for answer in answers]
    return answers[0], answers[1]


def show(api_key: int, version: int, body: bytes) -> Any:
    """An answer as plain values, without what differs on purpose or by the minute."""
    return normal(api_key, asdict(_read_answer(api_key, version, body)))


def sort_entries(value: Any) -> Any:
    """Values with all arrays in one order."""
    if isinstance(value, dict):
        return {name: sort_entries(item) for name, item in value.items()}
    return sorted(map(sort_entries, value), key=repr) if isinstance(value, list) else value


def _read_answer(api_key: int, version: int, body: bytes) -> Any:
    if api_key == ApiKey.API_VERSIONS and version > 0 and body[:2] == b"\x00\x23":
        version = 0  # KIP-511
    return read_response(api_key, version, memoryview(body))


def normal(api_key: int, value: Any) -> Any:
    """Values without addresses and volatile fields."""
    hidden = ADDRESSES | VOLATILE.get(api_key, frozenset())
    if isinstance(value, dict):
        shown = {name: normal(api_key, item) for name, item in value.items() if name not in hidden}
        if value.get("name") in OWN_TOPICS:
            shown.pop("is_internal", None)
        return shown
    if not isinstance(value, list | tuple):
        return value
    kept = [item for item in value if not isinstance(item, dict) or item.get("name") != FEATURE]
    return [normal(api_key, item) for item in kept]


def differences(direct: Any, through: Any, path: str = "") -> Iterator[str]:
    """Yield the differences of two answers, in words."""
    if isinstance(direct, dict) and isinstance(through, dict):
        for name in dict.fromkeys((*direct, *through)):
            if (name in direct) != (name in through):
                yield f"{path}.{name}: only {'direct' if name in direct else 'through keylane'}"
            else:
                yield from differences(direct[name], through[name], f"{path}.{name}")
    elif isinstance(direct, list) and isinstance(through, list):
        if len(direct) != len(through):
            yield f"{path}: {len(direct)} entries direct, {len(through)} through keylane"
        for number, (one, other) in enumerate(zip(direct, through, strict=False)):
            yield from differences(one, other, f"{path}[{number}]")
    elif direct != through or type(direct) is not type(through):
        yield f"{path}: {direct!r} direct, {through!r} through keylane"


def compare(questions: Iterable[Question], direct: Side, through: Side) -> list[str]:
    """Ask all; what differs, in words that lead to the question."""
    found = []
    for question in in_order(questions):
        reported, shown = ask_both(question, direct, through)
        name = f"{ApiKey(question.api_key).name} v{question.version} number {question.number}"
        found += [f"{name} {one}" for one in differences(reported, shown)]
    return found
