"""Fuzzed decoders whose bytes other programs may have written.

Records of keylane's topics, and members of its nodes' group, come from any principal that a broker
lets in there. Some decoders are behind a wrapping that chance never makes: for half of the choices
the bytes are what is inside of it.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from keylane.assignor.protocol import Subscription, write_assignment, write_subscription
from keylane.errors import FrameInvalid, NodeInvalid, ScansInvalid, SettingsInvalid
from keylane.offsets.records.journal import TOPIC_NAME
from keylane.offsets.table import OffsetTable
from keylane.proxy.net.framing import FrameReader
from keylane.proxy.net.security.login_watch import LoginWatch
from keylane.proxy.nodes.messages import read_hello, read_verdict
from keylane.proxy.scans.records import SplitBook, read_packet
from keylane.proxy.topics.settings_records import SettingsState, write_assignments, write_switches
from keylane.share.handover import is_note, read_note, write_note
from keylane.wire.header import read_request_header

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
FRAME_BYTES_MAX: Final = 1 << 16
GENERATION: Final = 5
"""Generation that a verdict must have; the sound inputs have it."""
VERSION_RECORD: Final = (b'["assignments"]', b'{"format":1,"version":9}')
HALF: Final = struct.Struct(">H")


def fuzz_settings(_choice: int, data: bytes) -> None:
    """Records: a key, a zero byte, a value; then the version by which assignments count."""
    state = SettingsState()
    for record in [*data.split(b"\x01"), b"\0".join(VERSION_RECORD)]:
        key, _, value = record.partition(b"\0")
        try:
            state.apply(key, value or None)
        except SettingsInvalid:
            continue  # skipped, the next one counts
    write_assignments(state.table, {})
    write_switches(state.switches)


def fuzz_scans(_choice: int, data: bytes) -> None:
    """A record of the scans' topic: scans and cuts, or a note on a share group's partition."""
    if is_note(data):
        assert write_note(read_note(data)) == data
        return
    packet = read_packet(data, SplitBook())
    assert packet is None or None not in packet.news


def fuzz_hello(choice: int, data: bytes) -> None:
    """A member's subscription; for odd choices the JSON in it."""
    if choice % 2:
        said = Subscription(version=2, topics=(TOPIC_NAME,), user_data=data)
        data = write_subscription(said)
    read_hello(data, "member")


def fuzz_verdict(choice: int, data: bytes) -> None:
    """The leader's assignment; for odd choices the JSON in it."""
    if choice % 2:
        lanes = [(TOPIC_NAME, partition) for partition in range(choice // 2 % 4)]
        data = write_assignment(lanes, version=0, user_data=zlib.compress(data, 1))
    read_verdict(data, generation_id=GENERATION, number=0)


def fuzz_login(choice: int, data: bytes) -> None:
    """A login: tokens and answers in turns, by zero bytes and the mechanism's own rounds."""
    watch = LoginWatch(subject_claim="sub")
    watch.begin(MECHANISMS[choice % len(MECHANISMS)])
    for number in range(4):
        answer = b"" if choice & 0x80 or number else data[-40:]
        name = watch.answered(data, 58 if choice & 0x40 and number else 0, answer)
        assert name is None or len(name) < 2000


def fuzz_table(_choice: int, data: bytes) -> None:
    """A journal of pairs, each with the length of its key and of its value in front."""
    table = OffsetTable(partition_count=1)
    position = offset = 0
    while position + 2 * HALF.size <= len(data):
        key_bytes, value_bytes = struct.unpack_from(">HH", data, position)
        position += 2 * HALF.size
        key = data[position : position + key_bytes]
        position += key_bytes
        table.apply(0, offset, key, data[position : position + value_bytes] or None)
        position += value_bytes
        offset += 1
    table.finish_load()
    table.check()
    for key_, state in table.items():
        state.copy().check()
        table.records(key_, now_ms=1)
        table.tombstones(key_)
    table.take_orphan_tombstones()


def fuzz_frames(choice: int, data: bytes) -> None:
    """A stream in pieces; whole frames are requests."""
    reader = FrameReader(frame_bytes_max=FRAME_BYTES_MAX, eager=False)
    position, step = 0, 1 + choice
    while position < len(data):
        free = reader.free()
        count = min(step, len(free), len(data) - position)
        free[:count] = data[position : position + count]
        position += count
        for frame in reader.received(count):
            try:
                read_request_header(memoryview(frame)[4:])
            except FrameInvalid:
                continue  # of this frame; the session would close
        assert reader.held_bytes <= max(2 << 16, 2 * position)


PEER_TARGETS: Final = (
    fuzz_settings, fuzz_scans, fuzz_hello, fuzz_verdict, fuzz_login, fuzz_table, fuzz_frames,
)  # fmt: skip
PEER_ALLOWED: Final = (NodeInvalid, ScansInvalid, FrameInvalid)
