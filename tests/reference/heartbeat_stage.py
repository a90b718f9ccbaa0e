"""A member of the consumer protocol and its clock; the coordinator's answers are the test's."""

from __future__ import annotations

from uuid import UUID

from keylane.client.group.consumer_protocol import ConsumerMember
from keylane.client.group.effects import Effect
from keylane.client.group.heartbeats import HeartbeatAnswer, HeartbeatRequest
from keylane.client.group.settings import GroupSettings
from keylane.client.values import TopicPartition

T, OTHER = UUID(int=1), UUID(int=2)
SESSION_S, POLL_S = 10.0, 60.0
REVOKE_S = 57.0
"""An interval less than the rebalance time-out."""


class Names:
    """Names that a test may add to."""

    def __init__(self) -> None:
        self.known = {T: "t"}

    def topic_name(self, topic_id: UUID) -> str | None:
        return self.known.get(topic_id)


def part(number: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, number)


class Stage:
    """A member and its clock."""

    def __init__(self, **options: object) -> None:
        values: dict[str, object] = {
            "group_id": "g",
            "topics": frozenset({"t"}),
            "session_timeout_s": SESSION_S,
            "rebalance_timeout_s": POLL_S,
        }
        settings = GroupSettings(**(values | options))  # type: ignore[arg-type]
        self.names = Names()
        self.now_s = 100.0
        self.machine = ConsumerMember(settings, "m", self.names, now_s=self.now_s)

    def ask(self) -> HeartbeatRequest:
        request = self.machine.request(self.now_s)
        assert request is not None
        return request

    def give(self, *numbers: int, epoch: int = 1, topic_id: UUID = T) -> None:
        assignment = tuple((topic_id, number, None) for number in numbers)
        self.answer(epoch=epoch, assignment=assignment)

    def answer(self, code: int = 0, **values: object) -> None:
        values = {"interval_s": 3.0, "epoch": 1, **values}
        answer = HeartbeatAnswer(code=code, name=f"CODE_{code}", **values)  # type: ignore[arg-type]
        self.machine.answered(answer, self.now_s)

    def exchange(self, *numbers: int) -> None:
        self.ask()
        self.give(*numbers)

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.machine.tick(self.now_s)

    def effects(self) -> list[Effect]:
        return self.machine.take_effects()

    @property
    def owned(self) -> set[int]:
        return {each.partition for each in self.machine.held.owned}


def joined_stage() -> Stage:
    """Return a member with partitions 0 and 1, its acknowledgement sent and answered."""
    stage = Stage()
    stage.exchange(0, 1)
    stage.ask()
    stage.answer()
    stage.effects()
    return stage
