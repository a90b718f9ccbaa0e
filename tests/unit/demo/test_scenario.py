"""The scenario: the show goes forward, says each thing once, and always ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keylane.demo.member import SESSION_TIMEOUT_MS
from keylane.demo.runner import JUDGED_SECONDS
from keylane.demo.scenario import (
    DRAIN_TIMEOUT_S,
    JOIN_TIMEOUT_S,
    STOP_TIMEOUT_S,
    WORKERS,
    Action,
    Cue,
    Facts,
    KillMember,
    Phase,
    Scenario,
    ShowSettings,
    StartMember,
    client_of,
    plan_beats,
)

SETTINGS = ShowSettings(seconds=40.0, members=8, kills_proxy=True)
FACTS = Facts(now_s=0.0, alive=8, reading=8, reading_possible=8, waiting_records=0)


def play(scenario: Scenario, facts: Facts, until_s: float) -> list[Action]:
    """Cue twice a second until `until_s`; returns the actions."""
    actions: list[Action] = []
    now_s = facts.now_s
    while now_s <= until_s:
        actions += scenario.step(replace(facts, now_s=now_s))
        now_s += 0.5
    return actions


def test_the_whole_show() -> None:
    """Eight start, three are killed, two join, keylane is killed, all stop: done."""
    scenario = Scenario(SETTINGS)

    actions = play(scenario, FACTS, 60.0) + list(scenario.step(replace(FACTS, now_s=61.0, alive=0)))

    kinds = [type(action) for action in actions]
    assert kinds.count(StartMember) == 10
    assert [a.number for a in actions if isinstance(a, KillMember)] == [3, 1, 2]
    steps = [action for action in actions if isinstance(action, Cue)]
    assert steps == list(Cue)
    assert scenario.phase is Phase.DONE
    assert scenario.drained
    assert not scenario._beats


def test_orders_wait_for_the_members() -> None:
    """No order is produced while a member that can read does not."""
    scenario = Scenario(SETTINGS)

    actions = play(scenario, replace(FACTS, reading=7), JOIN_TIMEOUT_S)

    assert Cue.START_PRODUCER not in actions
    assert scenario.phase is Phase.JOINING


def test_no_phase_lasts_without_end() -> None:
    """The show ends also when no member reads, nothing drains and no member stops."""
    scenario = Scenario(SETTINGS)
    stuck = replace(FACTS, reading=0, waiting_records=5)
    end_s = JOIN_TIMEOUT_S + SETTINGS.seconds + DRAIN_TIMEOUT_S + STOP_TIMEOUT_S + 10.0

    actions = play(scenario, stuck, end_s)

    assert scenario.phase is Phase.DONE
    assert not scenario.drained
    assert actions[-1] is Cue.KILL_MEMBERS


@pytest.mark.parametrize("members", [1, 2, 3, 8, 20])
def test_somebody_is_always_left(members: int) -> None:
    """Kills name members that were started and live, and never the last one."""
    alive = set(range(1, members + 1))

    for beat in plan_beats(replace(SETTINGS, members=members)):
        for action in beat.actions:
            if isinstance(action, KillMember):
                alive.remove(action.number)
            elif isinstance(action, StartMember):
                assert action.number not in alive
                alive.add(action.number)
            assert alive


def test_beats_come_in_order_and_inside_the_show() -> None:
    """Beats ascend and end before the producer stops."""
    moments = [beat.at_s for beat in plan_beats(SETTINGS)]

    assert moments == sorted(moments)
    assert moments[0] > 0 and moments[-1] < SETTINGS.seconds


def test_keylane_is_killed_when_killed_members_have_left() -> None:
    """In a show that is judged: their sessions end before, with seconds left for a rebalance."""
    beats = plan_beats(replace(SETTINGS, seconds=JUDGED_SECONDS))
    killed_s = [b.at_s for b in beats for a in b.actions if isinstance(a, KillMember)]
    (proxy_s,) = (beat.at_s for beat in beats if Cue.KILL_PROXY in beat.actions)

    assert max(killed_s) + SESSION_TIMEOUT_MS / 1000 + 2.0 < proxy_s


def test_no_proxy_is_killed_where_there_is_none() -> None:
    """Against Kafka itself the show leaves the proxy out."""
    beats = plan_beats(replace(SETTINGS, kills_proxy=False))

    assert not any(Cue.KILL_PROXY in beat.actions for beat in beats)


def test_clients_take_turns() -> None:
    """Of any three members in a row each uses another library."""
    assert len({client_of(number) for number in (4, 5, 6)}) == 3


def test_members_with_workers_have_one_client() -> None:
    """With `clients` of one name each member is started with it."""
    settings = replace(SETTINGS, clients=(WORKERS,))

    started = [
        action.client
        for beat in plan_beats(settings)
        for action in beat.actions
        if isinstance(action, StartMember)
    ]

    assert started == [WORKERS] * 2
