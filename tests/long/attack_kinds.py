"""Attacks on a node, each from one machine, with few rights or none.

In:    where to, how long.  Out: results of the attacker, by name; none may begin with `HARM`.

mallory has few rights, alice those that a careless set-up gives to all (`hostile_stage`). Each
attack rests between its steps, since it shares the machine with what it attacks.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from tests.long.attack_client import HARM, AttackClient, Places, say
from tests.long.attack_records import poison, squat, zstd_bomb
from tests.reference.batches import Batch, Record, write_batch

Got = Counter[str]
MIB: Final = 1 << 20
FRAME_BYTES: Final = 100 * MIB
SENT_MIB_MAX: Final = 20
"""Of each frame, so that a hundred of them are 2 GB."""
LANE_NAMES: Final = 1024
HALF_HEADERS: Final = 3000
IDLE: Final = 10_000
NEWCOMERS_S: Final = 5.0
"""Seconds that others try to get in at least, also when opening connections took all the time."""
PATTERN: Final = "\\pL" * 30_000
METADATA, OFFSET_COMMIT, OFFSET_FETCH, PRODUCE, ALTER_QUOTAS, HEARTBEAT = 3, 8, 9, 0, 49, 68


def rounds(until_s: float, pause_s: float) -> Iterator[int]:
    """Numbers until the attack ends, with a rest between them."""
    number = 0
    while time.monotonic() < until_s:
        yield number
        number += 1
        time.sleep(max(0.0, min(pause_s, until_s - time.monotonic())))


def token_frames(places: Places, until_s: float) -> Got:
    """A refused token, then the beginnings of frames of 100 MiB, on a hundred connections."""
    got: Got = Counter()
    with ExitStack() as stack:
        clients = []
        for _ in range(100):
            client = stack.enter_context(AttackClient(places.keylane))
            client.ask(17, 1, {"mechanism": "OAUTHBEARER"})
            token = b"n,,\x01auth=Bearer aaaa.bbbb.\x01\x01"
            answer = client.ask(36, 1, {"auth_bytes": token})
            got[f"token: {int(answer.error_code)}"] += 1
            clients.append(client)
            try:
                client.write(struct.pack(">i", FRAME_BYTES))
                for _ in range(SENT_MIB_MAX):
                    client.write(bytes(MIB))
                    got["MiB sent"] += 1
                    time.sleep(0.005)
            except OSError as error:
                got[f"frame: {say(error)}"] += 1
        wait_until(until_s)
        got["still open"] = sum(client.is_open() for client in clients)
    return got


def patterns(places: Places, until_s: float) -> Got:
    """Long patterns that no topic has, broken ones, and heartbeats that go on with them."""
    got: Got = Counter()
    for number in rounds(until_s, 1.0):
        try:
            with AttackClient(places.keylane).log_in("mallory") as client:
                for pattern in (PATTERN, "(" + "x" * 5000, None, None):
                    values = {"group_id": "x", "member_id": f"m{number}", "rebalance_timeout": 1000,
                              "member_epoch": 1 if pattern is None else 0,
                              "subscribed_topic_names": None, "instance_id": None, "rack_id": None,
                              "subscribed_topic_regex": pattern, "server_assignor": None,
                              "topic_partitions": None}  # fmt: skip
                    answer = client.ask(HEARTBEAT, 1, values)
                    got[f"code {int(answer.error_code)}"] += 1
        except OSError as error:
            got[say(error)] += 1
    return got


def lock_holder(places: Places, until_s: float) -> Got:
    """Commits for another's group by a connection that brokers have muted (quota)."""
    got: Got = Counter()
    with AttackClient(places.admin) as admin:
        entity = {"entity_type": "user", "entity_name": "mallory"}
        op = {"key": "producer_byte_rate", "value": 1024.0, "remove": False}
        admin.ask(ALTER_QUOTAS, 1, {"entries": [{"entity": [entity], "ops": [op]}]})
    batch = write_batch(Batch(0, tuple(Record(n, b"k", b"x" * 1000) for n in range(600))))
    data = [{"name": "junk", "partition_data": [{"index": 0, "records": batch}]}]
    produce = {"acks": 1, "timeout": 1000, "transactional_id": None, "topic_data": data}
    while time.monotonic() < until_s:
        try:
            with AttackClient(places.keylane, timeout_s=30.0).log_in("mallory") as client:
                answer = client.ask(OFFSET_COMMIT, 7, commit(places))
                got[f"commit: {codes(answer)}"] += 1
                client.send(PRODUCE, 9, produce)
                client.send(OFFSET_COMMIT, 7, commit(places))
                client.receive(PRODUCE, 9)
                answer = client.receive(OFFSET_COMMIT, 7)
                got[f"muted commit: {codes(answer)}"] += 1
        except OSError as error:
            got[f"muted commit: {say(error)}"] += 1
            time.sleep(0.5)
    return got


def commit(places: Places, *names: str) -> dict[str, Any]:
    """OffsetCommit for the group under load, without being one of its members."""
    entry = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1,
             "committed_metadata": ""}  # fmt: skip
    topics = [{"name": name, "partitions": [entry]} for name in names or (places.load_topic,)]
    return {"group_id": places.load_group, "generation_id_or_member_epoch": -1, "member_id": "",
            "group_instance_id": None, "topics": topics}  # fmt: skip


def codes(answer: Any) -> list[int]:
    """Error codes of a commit's answer."""
    return sorted({int(part.error_code) for topic in answer.topics for part in topic.partitions})


def half_headers(places: Places, until_s: float) -> Got:
    """Requests at the control port that never end."""
    got: Got = Counter()
    with ExitStack() as stack:
        clients = []
        for number in range(HALF_HEADERS):
            try:
                client = stack.enter_context(AttackClient(places.control))
                client.write(b"GET /livez HTTP/1.1\r\nHost: x\r\nX-A: ")
                clients.append(client)
            except OSError as error:
                got[f"connect: {say(error)}"] += 1
            if number % 100 == 0:
                time.sleep(0.05)
        got["opened"] = len(clients)
        got.update(_newcomers(places, until_s))
        got["still open"] = sum(client.is_open() for client in clients)
    return got


def idle(places: Places, until_s: float) -> Got:
    """Connections from one address that say nothing; a client from there wants in."""
    got: Got = Counter()
    with ExitStack() as stack:
        clients = []
        for number in range(IDLE):
            try:
                clients.append(stack.enter_context(AttackClient(places.keylane)))
            except OSError as error:
                got[f"connect: {say(error)}"] += 1
            if number % 200 == 0:
                time.sleep(0.05)
        got.update(_newcomers(places, until_s))
        got["still open"] = sum(client.is_open() for client in clients)
    return got


def _newcomers(places: Places, until_s: float) -> Got:
    """Log in as alice once a second; return the results."""
    got: Got = Counter()
    for _ in rounds(max(until_s, time.monotonic() + NEWCOMERS_S), 1.0):
        try:
            with AttackClient(places.keylane).log_in("alice"):
                got["alice gets in"] += 1
        except OSError as error:
            got[f"{HARM}alice: {say(error)}"] += 1
    return got


def lane_metadata(places: Places, until_s: float) -> Got:
    """Metadata that names every lane count of one topic."""
    got: Got = Counter()
    names = [{"name": f"orders2.lanes-{count}"} for count in range(LANE_NAMES, 0, -1)]
    for _ in rounds(until_s, 1.0):
        try:
            with AttackClient(places.keylane, timeout_s=60.0).log_in("mallory") as client:
                answer = client.ask(
                    METADATA, 9, {"topics": names, "allow_auto_topic_creation": False}
                )
                got.update(f"code {int(topic.error_code)}" for topic in answer.topics)
                got["partitions"] += sum(len(topic.partitions) for topic in answer.topics)
        except OSError as error:
            got[say(error)] += 1
    return got


def refused_commits(places: Places, until_s: float) -> Got:
    """Commits of every lane name for another's group, which then asks for all of its offsets."""
    got: Got = Counter()
    names = [f"{places.load_topic}.lanes-{count}" for count in range(LANE_NAMES, 0, -1)]
    for number in rounds(until_s, 0.2):
        try:
            with AttackClient(places.keylane, timeout_s=60.0).log_in("mallory") as client:
                step = names[number * 64 % LANE_NAMES :][:64]
                answer = client.ask(OFFSET_COMMIT, 7, commit(places, *step))
                got[f"commit: {codes(answer)}"] += 1
            if number % 20 == 19:
                with AttackClient(places.keylane, timeout_s=60.0).log_in("alice") as client:
                    asked = {"group_id": places.load_group, "topics": None}
                    answer = client.ask(OFFSET_FETCH, 7, asked)
                    # One under its own name, and one that the group has used under a lane name.
                    kind = HARM if len(answer.topics) > 2 else ""
                    got[f"{kind}{len(answer.topics)} topics of the group"] += 1
        except OSError as error:
            got[say(error)] += 1
    return got


def wait_until(until_s: float) -> None:
    """Do nothing more."""
    time.sleep(max(0.0, until_s - time.monotonic()))


@dataclass(frozen=True, slots=True)
class Attack:
    """One row of the table."""

    play: Callable[[Places, float], Got]
    restarts: bool = False
    """keylane is started anew half way: what was written must not keep it from it."""
    descriptors: int = 0
    """Limit of keylane's open files; 0: that of this machine."""

    @property
    def name(self) -> str:
        """For the table."""
        return self.play.__name__.replace("_", " ")


def bomb(places: Places, until_s: float) -> Got:
    """A batch of 24 KB that is 800 MB of one record, read as lanes again and again."""
    return zstd_bomb(places, until_s, megabytes=800)


def settings_records(places: Places, until_s: float) -> Got:
    """Records that no keylane wrote, in the topic of its settings."""
    return poison(places, until_s, "__keylane_settings")


def journal_records(places: Places, until_s: float) -> Got:
    """The same in the journal of commits."""
    return poison(places, until_s, "__individual_commit_offsets")


def scan_records(places: Places, until_s: float) -> Got:
    """The same in the topic of scans."""
    return poison(places, until_s, "__keylane_scans")


def fake_node(places: Places, until_s: float) -> Got:
    """Join the group of the nodes as a stranger that says that it is one."""
    return squat(places, until_s, is_node=True)


def squatter(places: Places, until_s: float) -> Got:
    """A plain consumer in the group of the nodes."""
    return squat(places, until_s, is_node=False)


ATTACKS: Final = (
    Attack(token_frames),
    Attack(patterns),
    Attack(lock_holder),
    Attack(settings_records, restarts=True),
    Attack(squatter, restarts=True),
    Attack(fake_node, restarts=True),
    Attack(half_headers),
    Attack(half_headers, descriptors=2048),
    Attack(lane_metadata),
    Attack(bomb),
    Attack(idle),
    Attack(refused_commits),
    Attack(journal_records, restarts=True),
    Attack(scan_records),
)
