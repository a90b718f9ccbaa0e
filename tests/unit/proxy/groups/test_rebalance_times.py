"""Time from a round's first JoinGroup to each member's SyncGroup."""

from __future__ import annotations

from keylane.proxy.groups import rebalance_times
from keylane.proxy.groups.rebalance_times import ABANDONED_S, Rounds


def test_members_wait_from_the_first_join_on() -> None:
    """Each SyncGroup counts from the first JoinGroup of its round, by whatever member."""
    rounds = Rounds()

    began = [rounds.joins("g", 10.0), rounds.joins("g", 11.0)]
    waited = [rounds.syncs("g", 13.0), rounds.syncs("g", 13.5)]

    assert began == [True, False]
    assert waited == [3.0, 3.5]


def test_a_join_after_a_sync_begins_the_next_round() -> None:
    """Two rounds of one group are kept apart; a late SyncGroup counts for the newer one."""
    rounds = Rounds()
    rounds.joins("g", 0.0)
    rounds.syncs("g", 1.0)

    began = rounds.joins("g", 20.0)

    assert began
    assert rounds.syncs("g", 22.0) == 2.0


def test_groups_do_not_mix() -> None:
    """A group's SyncGroup does not end another's round."""
    rounds = Rounds()
    rounds.joins("a", 0.0)
    rounds.joins("b", 1.0)

    rounds.syncs("a", 2.0)

    assert not rounds.joins("b", 3.0)
    assert rounds.syncs("b", 5.0) == 4.0


def test_a_round_that_began_elsewhere_is_not_counted() -> None:
    """A SyncGroup without a JoinGroup: this process was started in between."""
    assert Rounds().syncs("g", 1.0) is None


def test_memory_is_bounded(monkeypatch) -> None:
    """Beyond the bound the longest unseen group is forgotten."""
    monkeypatch.setattr(rebalance_times, "GROUPS_MAX", 2)
    rounds = Rounds()
    rounds.joins("a", 0.0)
    rounds.joins("b", 0.0)
    rounds.joins("a", 1.0)

    rounds.joins("c", 2.0)

    assert rounds.syncs("b", 3.0) is None
    assert rounds.syncs("a", 3.0) == 3.0


def test_a_round_without_an_end_is_given_up() -> None:
    """A lone member that died before its SyncGroup does not make the next round an hour long."""
    rounds = Rounds()
    rounds.joins("g", 0.0)

    began = rounds.joins("g", ABANDONED_S)

    assert began
    assert rounds.syncs("g", ABANDONED_S + 2) == 2.0
