"""proxy/net/admission.py: bounds of addresses and principals."""

from __future__ import annotations

from keylane.proxy.net import admission as admission_module
from keylane.proxy.net.admission import Admission


def test_bounds() -> None:
    """One too many is refused, with the key that says so; a client that leaves makes room."""
    admission = Admission(connections_max=3, per_address_max=2)

    outcomes = [admission.enter(address) for address in ("a", "a", "a", "b", "c")]

    assert [outcome is None for outcome in outcomes] == [True, True, False, True, False]
    assert "connections_per_address_max 2" in str(outcomes[2])
    assert "connections_max 3" in str(outcomes[4])
    admission.check()
    admission.leave("a")
    assert admission.enter("c") is None
    admission.check()


def test_addresses_that_left_are_forgotten() -> None:
    """Memory is for those that are connected, also after refusals."""
    admission = Admission(connections_max=10, per_address_max=1)
    for number in range(1000):
        assert admission.enter(str(number)) is None
        assert admission.enter(str(number)) is not None
        admission.leave(str(number))
        admission.check()

    assert (admission.count, len(admission._by_address)) == (0, 0)


def make(*, per_principal: int = 10, groups: int = 10) -> Admission:
    return Admission(
        connections_max=100,
        per_address_max=100,
        per_principal_max=per_principal,
        groups_per_principal_max=groups,
    )


def test_connections_of_a_principal() -> None:
    """Addresses do not matter; others are not touched, and a client that leaves makes room."""
    admission = make(per_principal=2)
    for address in ("a", "b", "c", "d"):
        assert admission.enter(address) is None

    outcomes = [admission.log_in(name) for name in ("User:x", "User:x", "User:x", "User:y")]

    assert [outcome is None for outcome in outcomes] == [True, True, False, True]
    assert outcomes[2] == "connections_per_principal_max 2 is reached by 'User:x'"
    admission.check()
    admission.leave("a", "User:x")
    admission.leave("c")  # was refused: it has no principal
    admission.check()
    assert admission.log_in("User:x") is None
    for address, name in (("b", "User:x"), ("d", "User:y")):
        admission.leave(address, name)
    assert (admission.count, dict(admission._by_principal)) == (0, {"User:x": 1})


def test_groups_of_a_principal() -> None:
    """Those that it began; what has offsets already is everybody's, also to go on with."""
    admission = make(groups=2)
    standing = {"old"}

    def begin(name: str | None, *groups: str) -> list[bool]:
        return [admission.may_begin_group(name, group, standing.__contains__) for group in groups]

    assert begin("x", "g1", "g2") == [True, True]
    standing |= {"g1", "g2"}
    assert begin("x", "g3", "g1", "old", "g3") == [False, True, True, False]
    assert begin("y", "g3") == [True]
    assert begin(None, *map(str, range(100))) == [True] * 100
    standing.remove("g1")  # it was deleted
    assert begin("x", "g4") == [True]
    standing.add("g4")
    assert begin("x", "g5") == [False]
    admission.check()


def test_groups_that_never_got_offsets() -> None:
    """They count no longer when room is needed: the broker refused the commit, for example."""
    admission = make(groups=2)

    allowed = [admission.may_begin_group("x", str(number), lambda _: False) for number in range(9)]

    assert allowed == [True] * 9
    admission.check()


def test_principals_that_are_remembered(monkeypatch) -> None:
    """Those that began a group last, connected or not: a new connection does not begin anew."""
    monkeypatch.setattr(admission_module, "PRINCIPALS_MAX", 2)
    admission = make(groups=1)
    standing: set[str] = set()

    def begin(name: str, group: str) -> bool:
        allowed = admission.may_begin_group(name, group, standing.__contains__)
        standing.add(group)
        return allowed

    assert [begin("x", "1"), begin("y", "2"), begin("x", "3")] == [True, True, False]
    assert begin("z", "4")
    admission.check()
    assert [begin("x", "5"), begin("y", "6")] == [False, True]
