"""proxy/control/watch/sampler.py: groups are looked at in turn, those with members first."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from keylane.config.node import LaneRule
from keylane.errors import NotCoordinator, UpstreamLost
from keylane.proxy.control.describe import GroupReport, MemberReport
from keylane.proxy.control.lane_reports import LaneReport
from keylane.proxy.control.watch import sampler as module
from keylane.proxy.control.watch.history import History
from keylane.proxy.control.watch.progress import ProgressBook
from keylane.proxy.control.watch.sampler import SampleBooks, Sampler
from keylane.proxy.runtime.event_log import EventLog
from keylane.proxy.scans.loads import LaneLoads
from tests.transcript.fake import FakeContext

NOW_MS = 1_700_000_000_000
HANGS = "hangs"
"""Answer of a broker that gives none."""


def report(group: str, *members: str, state: str = "Stable") -> GroupReport:
    lane = LaneReport(
        topic="orders", lane_index=0, partition=0, key_range=(0, 1), member_id=None, committed=5,
        committed_ms=None, log_end=9, lag=4, lag_is_exact=True, offset_lag=4, bytes_per_s=None,
        records_per_s=None,
    )  # fmt: skip
    return GroupReport(
        group=group,
        state=state,
        assignor="range",
        coordinator=1,
        generation_id=None,
        members=tuple(
            MemberReport(
                member_id=name,
                instance_id=None,
                client_id=name,
                host="/h",
                lane_count=0,
                bytes_per_s=0.0,
                lag=0,
                lanes_gained=None,
                lanes_lost=None,
            )
            for name in members
        ),
        lanes=(lane,),
        lag=4,
    )


class Scene:
    """A sampler of made-up groups."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, Any] = {}
        self.active: list[str] = []
        self.others: list[str] = []
        self.log = EventLog(lambda: NOW_MS)
        self.history = History()
        context = FakeContext(LaneRule(topic="orders", lanes=4))
        records: Any = None  # one sample has nothing to count
        self.sampler = Sampler(
            self,
            SampleBooks(
                progress=ProgressBook(),
                history=self.history,
                loads=LaneLoads(lambda: 0.0),
                records=records,
                event_log=self.log,
            ),
            names=lambda: (self.active, self.others),
            views=lambda: [context.lanes("orders")],
            now_ms=lambda: NOW_MS,
        )

    async def describe(self, group: str) -> GroupReport | None:
        self.asked.append(group)
        answer = self.answers.get(group, report(group, "a"))
        if answer is HANGS:
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        assert answer is None or isinstance(answer, GroupReport)
        return answer


@pytest.fixture
def scene(monkeypatch) -> Scene:
    """Without pauses."""
    monkeypatch.setattr(module, "GROUP_PAUSE_S", 0.0)
    monkeypatch.setattr(module, "LOOP_SHARE", float("inf"))
    return Scene()


async def test_a_step_notes_groups_and_topics(scene) -> None:
    """Summaries, history of both; groups that are gone are forgotten."""
    scene.active, scene.others = ["b"], ["a"]
    await scene.sampler.step()

    assert scene.asked == ["b", "a"]
    assert {name: one.lag for name, one in scene.sampler.summaries.items()} == {"a": 4, "b": 4}
    found = scene.history.find(NOW_MS, group="a", topic="orders")
    assert found.group is not None and found.topic is not None
    assert (found.group.lag[-1], [one.label for one in found.members]) == (4, ["a"])
    scene.others = []
    await scene.sampler.step()
    assert scene.sampler.summaries.keys() == {"b"}


async def test_many_groups_take_turns(scene, monkeypatch) -> None:
    """Each is looked at as often as the others."""
    monkeypatch.setattr(module, "ACTIVE_MAX", 2)
    monkeypatch.setattr(module, "OTHERS_MAX", 1)
    scene.active, scene.others = ["a", "b", "c", "d"], ["x", "y"]

    for _ in range(2):
        await scene.sampler.step()

    assert scene.asked == ["a", "b", "x", "c", "d", "y"]


async def test_a_group_that_cannot_be_looked_at_stays_as_it_was(scene) -> None:
    """Unless another node serves it, or it is gone."""
    scene.active = ["a", "b", "c"]
    await scene.sampler.step()
    scene.answers = {"a": UpstreamLost("away"), "b": NotCoordinator("elsewhere"), "c": None}

    await scene.sampler.step()

    assert scene.sampler.summaries.keys() == {"a"}


async def test_a_group_without_an_answer_does_not_stop_the_others(
    scene, monkeypatch, caplog
) -> None:
    """It stays as it was."""
    caplog.set_level(logging.DEBUG, "keylane.watch")
    scene.active = ["a", "b"]
    await scene.sampler.step()
    monkeypatch.setattr(module, "DESCRIBE_S_MAX", 0.0)
    scene.answers = {"a": HANGS, "b": report("b", "a", "c")}

    await scene.sampler.step()

    counts = {name: one.member_count for name, one in scene.sampler.summaries.items()}
    assert counts == {"a": 1, "b": 2}
    assert "group=a reason=no answer in time" in caplog.text


async def test_a_time_limit_of_a_part_inside_is_not_the_samplers(scene) -> None:
    """It is a bug of that part, and the task reports it."""
    scene.answers = {"a": TimeoutError("inside")}

    with pytest.raises(TimeoutError, match="inside"):
        await scene.sampler.sample("a")


async def test_members_of_groups_that_clients_deal_out_are_noted(scene) -> None:
    """Once the group has settled; not those that were there at the first look."""
    scene.answers["a"] = report("a", "one")
    await scene.sampler.sample("a")
    scene.answers["a"] = report("a", "one", "two", state="PreparingRebalance")
    await scene.sampler.sample("a")
    scene.answers["a"] = report("a", "two")
    await scene.sampler.sample("a")
    await scene.sampler.sample("a")

    texts = [event.text for event in scene.log.after(0, limit=9)]
    assert texts == ["two joined group a.", "one left group a."]


async def test_what_was_noted_meanwhile_is_newer(scene) -> None:
    """A description that was asked for before a member joined says nothing of it."""
    scene.log.note_members("a", {"one": "one"}, is_first=True)

    async def describe(group: str) -> GroupReport:
        scene.log.note_members("a", {"one": "one", "two": "two"}, is_first=True)
        return report(group, "one")

    scene.describe = describe
    await scene.sampler.sample("a")

    texts = [event.text for event in scene.log.after(0, limit=9)]
    assert texts == ["one joined group a.", "two joined group a."]
