"""A script of a consumer group's calls (KIP-848) that both brokers must answer alike.

Source: requests and refusals that occur in runs of the simulation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tests.simulation.calls import Line, OpenTalk, Talk

METADATA, OFFSET_COMMIT, OFFSET_FETCH, DESCRIBE_GROUPS, OFFSET_DELETE, DELETE_GROUPS = (
    3, 8, 9, 15, 47, 42,
)  # fmt: skip
CONSUMER_HEARTBEAT, CONSUMER_DESCRIBE = 68, 69
ALL: Sequence[int] = (0, 1)
NOTHING: Sequence[int] = ()
TIMEOUT_MS = 30_000
NOT_SAID = -1
TRIES_MAX = 20_000


class ConsumerScript:
    """Use: `play`, which gives one line for each call. The topic has two partitions."""

    def __init__(self, open_talk: OpenTalk, *, topic: str, group: str) -> None:
        self._open, self.topic, self.group = open_talk, topic, group
        self.lines: list[Line] = []
        self._topic_id: Any = None
        self._epoch = 0
        """Of the first member when it is alone."""

    async def play(self) -> list[Line]:
        """Play the whole script; return its lines."""
        talk = await self._open()
        answer = await talk.ask(
            METADATA, 12, topics=[{"name": self.topic}], allow_auto_topic_creation=False
        )
        self._topic_id = answer.topics[0].topic_id
        for step in (self._refusals, self._one, self._offsets, self._two, self._static, self._ends):
            await step(talk)
        return self.lines

    def _note(self, step: str, *said: Any) -> None:
        self.lines.append((step, said))

    def _owned(self, indexes: Sequence[int] | None) -> list[dict[str, Any]] | None:
        if indexes is None:
            return None
        return [{"topic_id": self._topic_id, "partitions": list(indexes)}] if indexes else []

    async def _beat(
        self, talk: Talk, member_id: str, epoch: int, owned: Sequence[int] | None = None, **how: Any
    ) -> Any:
        """A partial heartbeat, or a full one (`full`)."""
        if how.pop("full", False):
            how = {
                "subscribed_topic_names": [self.topic], "rebalance_timeout": TIMEOUT_MS, **how,
            }  # fmt: skip
        return await talk.ask(
            CONSUMER_HEARTBEAT, 1, group_id=self.group, member_id=member_id, member_epoch=epoch,
            topic_partitions=self._owned(owned), **how,
        )  # fmt: skip

    async def _say(self, talk: Talk, step: str, *args: Any, **how: Any) -> int:
        """A heartbeat that is noted; return the member's epoch."""
        answer = await self._beat(talk, *args, **how)
        self._note(step, int(answer.error_code), answer.member_epoch, _indexes(answer))
        return int(answer.member_epoch)

    async def _until(
        self, beat: Callable[[], Awaitable[Any]], is_there: Callable[[Any], bool]
    ) -> Any:
        """Repeat a heartbeat: a broker computes assignments at most once a second."""
        for _ in range(TRIES_MAX):
            answer = await beat()
            if is_there(answer):
                return answer
        raise AssertionError(f"the broker does not move: {answer}, {self.lines}")

    async def _describe(self, talk: Talk, step: str) -> None:
        answer = await talk.ask(
            CONSUMER_DESCRIBE, 1, group_ids=[self.group], include_authorized_operations=False
        )
        found = answer.groups[0]
        members = sorted(
            (
                str(each.member_id), each.member_epoch, each.instance_id,
                list(map(str, each.subscribed_topic_names)),
                _of(each.assignment), _of(each.target_assignment), each.member_type,
            )
            for each in found.members
        )  # fmt: skip
        self._note(
            f"consumer group {step}", int(found.error_code), str(found.group_state),
            found.group_epoch, found.assignment_epoch, members,
        )  # fmt: skip

    async def _refusals(self, talk: Talk) -> None:
        await self._describe(talk, "that is not there")
        whole = {"full": True}
        for step, member_id, epoch, owned, how in (
            ("of a group that is not there", "a", 3, None, {}),
            ("leave of a group that is not there", "a", -1, None, {}),
            ("without an id", "", 0, NOTHING, whole),
            ("of no such epoch", "a", -3, NOTHING, whole),
            ("that leaves for a while without a place", "a", -2, None, {}),
            ("join that owns partitions", "a", 0, ALL, whole),
            ("join that does not say what it owns", "a", 0, None, whole),
            ("join without a time-out", "a", 0, NOTHING, {"subscribed_topic_names": [self.topic]}),
            ("join without topics", "a", 0, NOTHING, {"rebalance_timeout": TIMEOUT_MS}),
            ("join with another assignor", "a", 0, NOTHING, {"server_assignor": "x", **whole}),
        ):
            await self._say(talk, f"heartbeat {step}", member_id, epoch, owned, **how)

    async def _one(self, talk: Talk) -> None:
        epoch = await self._say(talk, "join", "a", 0, NOTHING, full=True)
        self._epoch = epoch
        await self._say(talk, "join whose answer was lost", "a", 0, NOTHING, full=True)
        await self._say(talk, "partial heartbeat", "a", epoch)
        await self._say(talk, "heartbeat with what it owns", "a", epoch, ALL)
        await self._say(talk, "full heartbeat", "a", epoch, ALL, full=True)
        await self._say(talk, "heartbeat of a later epoch", "a", epoch + 1)
        await self._say(talk, "heartbeat of an unknown member", "x", epoch)
        await self._describe(talk, "of one")

    async def _commit(
        self, talk: Talk, step: str, member_id: str, epoch: int, version: int = 9
    ) -> None:
        entries = [
            {"partition_index": index, "committed_offset": index, "committed_leader_epoch": -1,
             "committed_metadata": ""}
            for index in ALL
        ]  # fmt: skip
        answer = await talk.ask(
            OFFSET_COMMIT, version, group_id=self.group, member_id=member_id,
            generation_id_or_member_epoch=epoch,
            topics=[{"name": self.topic, "partitions": entries}],
        )  # fmt: skip
        codes = [int(each.error_code) for each in answer.topics[0].partitions]
        self._note(f"commit {step}", codes)

    async def _fetch(self, talk: Talk, step: str, member_id: str | None, epoch: int) -> None:
        answer = await talk.ask(
            OFFSET_FETCH, 9, require_stable=True, groups=[{
                "group_id": self.group, "member_id": member_id, "member_epoch": epoch,
                "topics": [{"name": self.topic, "partition_indexes": list(ALL)}],
            }],
        )  # fmt: skip
        group = answer.groups[0]
        said = [each.committed_offset for topic in group.topics for each in topic.partitions]
        self._note(f"offsets {step}", int(group.error_code), said)

    async def _offsets(self, talk: Talk) -> None:
        await self._commit(talk, "in its epoch", "a", self._epoch)
        await self._commit(talk, "in a later epoch", "a", self._epoch + 1)
        await self._commit(talk, "of an unknown member", "x", self._epoch)
        await self._commit(talk, "of no member", "", -1)
        await self._commit(talk, "in an older version", "a", self._epoch, 8)
        await self._fetch(talk, "in its epoch", "a", self._epoch)
        await self._fetch(talk, "in another epoch", "a", self._epoch + 1)
        await self._fetch(talk, "of an unknown member", "x", self._epoch)
        await self._fetch(talk, "of no member", None, NOT_SAID)
        answer = await talk.ask(
            OFFSET_DELETE, 0, group_id=self.group,
            topics=[{"name": self.topic, "partitions": [{"partition_index": 0}]}],
        )  # fmt: skip
        codes = [int(e.error_code) for topic in answer.topics for e in topic.partitions]
        self._note("delete offsets", int(answer.error_code), codes)
        answer = await talk.ask(DELETE_GROUPS, 2, groups_names=[self.group])
        self._note("delete group", int(answer.results[0].error_code))
        answer = await talk.ask(
            DESCRIBE_GROUPS, 5, groups=[self.group], include_authorized_operations=False
        )
        self._note("classic group", str(answer.groups[0].group_state))

    async def _two(self, talk: Talk) -> None:
        """A second member joins: the first one revokes before the second one is given."""
        old = self._epoch
        await self._beat(talk, "b", 0, NOTHING, full=True)
        asked = await self._until(
            lambda: self._beat(talk, "a", old), lambda answer: answer.assignment is not None
        )
        kept = _indexes(asked)
        assert kept is not None
        gone = [index for index in ALL if index not in kept]
        self._note("asked to revoke", int(asked.error_code), asked.member_epoch, len(kept))
        await self._say(talk, "before it says that it has", "a", old)
        await self._say(talk, "that still owns all", "a", old, ALL)
        second = await self._beat(talk, "b", 0, NOTHING, full=True)
        self._note("the second meanwhile", int(second.error_code), second.member_epoch,
                   _indexes(second))  # fmt: skip
        await self._commit(talk, "while it revokes", "a", old)
        first = await self._beat(talk, "a", old, kept)
        self._note("has revoked", int(first.error_code), first.member_epoch, _indexes(first))
        second = await self._beat(talk, "b", second.member_epoch, NOTHING)
        is_gone = _indexes(second) == gone
        self._note("the second is given", int(second.error_code), second.member_epoch, is_gone)
        epoch = int(first.member_epoch)
        await self._say_counted(talk, "answer was lost", "a", epoch - 1, kept)
        await self._say_counted(talk, "answer was lost, and says nothing", "a", epoch - 1, None)
        await self._say_counted(talk, "answer was lost, and owns more", "a", epoch - 1, ALL)
        await self._commit_counted(talk, "in the epoch before", "a", epoch - 1)
        await self._commit_counted(talk, "in the first epoch", "b", 0)
        await self._commit(talk, "of all in its epoch", "b", int(second.member_epoch))
        await self._say(talk, "leave of the second", "b", -1)
        await self._say(talk, "leave again", "b", -1)
        last = await self._until(
            lambda: self._beat(talk, "a", epoch, kept), lambda answer: answer.member_epoch > epoch
        )
        self._note("has all again", int(last.error_code), last.member_epoch, _indexes(last))
        await self._describe(talk, "of one again")

    async def _say_counted(self, talk: Talk, step: str, *args: Any) -> None:
        """A heartbeat; which of the partitions it is about depends on the assignor."""
        answer = await self._beat(talk, *args)
        found = _indexes(answer)
        said = None if found is None else len(found)
        self._note(step, int(answer.error_code), answer.member_epoch, said)

    async def _commit_counted(self, talk: Talk, step: str, member_id: str, epoch: int) -> None:
        await self._commit(talk, step, member_id, epoch)
        _, (codes,) = self.lines.pop()
        self._note(f"commit {step}", sorted(codes))

    async def _static(self, talk: Talk) -> None:
        """A static member leaves for a while, and is back under another id."""
        await self._say(talk, "leave of the first", "a", -1)
        place = {"instance_id": "s"}
        joined = await self._beat(talk, "s1", 0, NOTHING, full=True, **place)
        await self._say(talk, "static join again", "s1", 0, NOTHING, full=True, **place)
        epoch = int(joined.member_epoch)
        while not _indexes(joined):
            joined = await self._beat(talk, "s1", epoch, NOTHING, full=True, **place)
            epoch = int(joined.member_epoch)
        self._note("static join", int(joined.error_code), epoch, _indexes(joined))
        await self._say(talk, "second id", "s2", 0, NOTHING, full=True, **place)
        await self._say(talk, "second id in an epoch", "s2", epoch, **place)
        await self._say(talk, "another place", "s1", epoch, instance_id="t")
        await self._say(talk, "leaves for a while", "s1", -2, **place)
        await self._describe(talk, "of one that is away")
        await self._commit(talk, "of one that is away", "s1", epoch)
        await self._say(talk, "is back", "s2", 0, NOTHING, full=True, **place)
        await self._describe(talk, "of one that is back")
        await self._say(talk, "the first id", "s1", epoch, **place)
        await self._say(talk, "the first id without a place", "s1", epoch)
        await self._say(talk, "leave of the second id", "s2", -1, **place)

    async def _ends(self, talk: Talk) -> None:
        await self._describe(talk, "of none")
        await self._say(talk, "heartbeat in a group of none", "a", 1)
        await self._commit(talk, "of no member in a group of none", "", -1)
        await self._commit(talk, "of a member in a group of none", "a", 1)
        answer = await talk.ask(DELETE_GROUPS, 2, groups_names=[self.group])
        self._note("delete group of none", int(answer.results[0].error_code))
        await self._describe(talk, "that was deleted")


def _of(assignment: Any) -> list[int]:
    return sorted(int(i) for topic in assignment.topic_partitions for i in topic.partitions)


def _indexes(answer: Any) -> list[int] | None:
    return None if answer.assignment is None else _of(answer.assignment)
