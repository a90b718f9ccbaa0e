"""A member of a classic group and its clock; the coordinator's answers are the test's."""

from __future__ import annotations

from typing import Any

from keylane.assignor.protocol import read_subscription, write_assignment
from keylane.client.group.classic import ClassicMember
from keylane.client.group.classic_calls import (
    ClassicAnswer,
    ClassicBeat,
    ClassicCall,
    ClassicJoin,
    ClassicSync,
)
from keylane.client.group.effects import (
    Effect,
)
from keylane.client.group.settings import GroupSettings
from keylane.client.values import TopicPartition

SESSION_S, REBALANCE_S = 10.0, 60.0


def part(number: int) -> TopicPartition:
    return TopicPartition("t", number)


class Table:
    """A member and its clock; the coordinator's answers are the test's."""

    def __init__(self, **options: Any) -> None:
        values: dict[str, Any] = {
            "group_id": "g",
            "topics": frozenset({"t"}),
            "session_timeout_s": SESSION_S,
            "rebalance_timeout_s": REBALANCE_S,
            **options,
        }
        self.now_s = 100.0
        self.machine = ClassicMember(GroupSettings(**values), "x", now_s=self.now_s)

    def ask(self, kind: type[Any] = ClassicBeat) -> Any:
        call: ClassicCall | None = self.machine.request(self.now_s)
        assert isinstance(call, kind), call
        return call

    def answer(self, code: int = 0, **values: Any) -> None:
        answer = ClassicAnswer(code=code, name=f"CODE_{code}", **values)
        self.machine.answered(answer, self.now_s)

    def join(self, *numbers: int, generation_id: int = 1) -> ClassicJoin:
        """Follow another member as the leader, up to an assignment."""
        joining: ClassicJoin = self.ask(ClassicJoin)
        self.answer(member_id="m", generation_id=generation_id, leader="other")
        self.ask(ClassicSync)
        self.give(*numbers)
        return joining

    def give(self, *numbers: int, user_data: bytes = b"") -> None:
        lanes = [("t", number) for number in numbers]
        self.answer(assignment=write_assignment(lanes, version=3, user_data=user_data))

    def beat(self, code: int = 0) -> None:
        self.wait(3.0)
        self.ask(ClassicBeat)
        self.answer(code)

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.machine.tick(self.now_s)

    def effects(self) -> list[Effect]:
        return self.machine.take_effects()

    @property
    def owned(self) -> set[int]:
        return {each.partition for each in self.machine.held.owned}


def owned_in(join: ClassicJoin) -> set[int]:
    return {index for _, index in read_subscription(join.metadata).owned}
