"""proxy/admission.py: connections are bounded in total and by address."""

from __future__ import annotations

from keylane.proxy.admission import Admission


def test_bounds() -> None:
    """One too many is refused, with the key that says so; who leaves makes room."""
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
